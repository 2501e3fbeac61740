//! What agents wrote about themselves: `fakeagent --beat FILE` adds a line with its pid and the time, again and again.
//!
//! The file is the task's, and no part of the product has a hand in it. Two agents that beat in turns lived at a time.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use serde::Deserialize;

#[derive(Clone, Copy, Debug, Deserialize)]
struct Line {
    pid: u32,
    boottime: u64,
}

/// The time from the first to the last beat of one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Its process.
    pub pid: u32,
    /// Milliseconds since boot.
    pub first: u64,
    /// Milliseconds since boot; it may have lived for one beat more.
    pub last: u64,
}

/// The lives in every file of a folder, by the file's name, in the order of their first beats.
///
/// # Errors
/// When a file cannot be read or has a line that is none.
pub fn lives(folder: &Path) -> anyhow::Result<BTreeMap<String, Vec<Life>>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path())?;
        let mut lives: BTreeMap<u32, Life> = BTreeMap::new();
        for text in text.lines() {
            let line: Line =
                serde_json::from_str(text).with_context(|| format!("{}: {text}", entry.path().display()))?;
            let life = lives.entry(line.pid).or_insert(Life {
                pid: line.pid,
                first: line.boottime,
                last: line.boottime,
            });
            life.last = life.last.max(line.boottime);
        }
        let mut lives: Vec<Life> = lives.into_values().collect();
        lives.sort_by_key(|life| life.first);
        all.insert(entry.file_name().display().to_string(), lives);
    }
    Ok(all)
}

/// Fails when two agents of one task lived at a time.
///
/// # Errors
/// Names the task and the two lives.
pub fn no_overlap(all: &BTreeMap<String, Vec<Life>>) -> anyhow::Result<()> {
    for (task, lives) in all {
        for pair in lives.windows(2) {
            ensure!(
                pair[0].last <= pair[1].first,
                "two agents of {task} lived at a time: {:?} and {:?}",
                pair[0],
                pair[1]
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_beat_in_turns_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, beats: &[(u32, u64)]| {
            let lines = beats
                .iter()
                .map(|(pid, at)| format!("{{\"event\":\"beat\",\"pid\":{pid},\"boottime\":{at}}}\n"));
            std::fs::write(dir.path().join(name), lines.collect::<String>()).unwrap();
        };
        write("good", &[(1, 10), (1, 20), (2, 21), (2, 30)]);
        let all = lives(dir.path()).unwrap();
        assert_eq!(all["good"].len(), 2);
        no_overlap(&all).unwrap();
        write("bad", &[(1, 10), (2, 15), (1, 20), (2, 30)]);
        let error = no_overlap(&lives(dir.path()).unwrap()).unwrap_err();
        assert!(error.to_string().contains("two agents of bad"), "{error}");
    }
}
