//! Reads what supervisors journalled about starts and ends, and says whether any task ran twice at a time.
//!
//! Independent on purpose: it knows the lines of the file and nothing of the code that wrote them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    event: String,
    #[serde(rename = "taskUID")]
    task: String,
    #[serde(rename = "runUID")]
    run: String,
    attempt: u32,
    pid: i32,
    starttime: u64,
    boot_id: String,
    boottime: u64,
}

/// One process of a task, from its start to the moment when nothing of it was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Uid of the Run.
    pub run: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Milliseconds since boot.
    pub start: u64,
    /// Milliseconds since boot; none while it runs, or when its end was never written.
    pub end: Option<u64>,
    /// Its first process.
    pub pid: i32,
}

/// Everything that the journals below `folder` say, by task uid.
///
/// # Errors
/// When there is no journal, or one cannot be read.
pub fn starts(folder: &Path) -> anyhow::Result<BTreeMap<String, Vec<Span>>> {
    let mut files = Vec::new();
    find(folder, &mut files)?;
    ensure!(!files.is_empty(), "no starts.jsonl below {}", folder.display());
    let mut tasks: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(&file)?;
        let mut open: BTreeMap<(String, i32, u64), (String, usize)> = BTreeMap::new();
        for text in text.lines() {
            let line: Line =
                serde_json::from_str(text).with_context(|| format!("{}: {text}", file.display()))?;
            let key = (line.boot_id.clone(), line.pid, line.starttime);
            if line.event == "start" {
                let spans = tasks.entry(line.task.clone()).or_default();
                open.insert(key, (line.task, spans.len()));
                let (run, attempt, start, pid) = (line.run, line.attempt, line.boottime, line.pid);
                spans.push(Span {
                    run,
                    attempt,
                    start,
                    end: None,
                    pid,
                });
            } else if let Some((task, at)) = open.remove(&key) {
                let span = tasks
                    .get_mut(&task)
                    .and_then(|spans| spans.get_mut(at))
                    .context("a span of this file")?;
                span.end = Some(line.boottime);
            }
        }
    }
    for spans in tasks.values_mut() {
        spans.sort_by_key(|span| span.start);
    }
    Ok(tasks)
}

/// Fails when two processes of one task were alive at a time, or an attempt went back.
///
/// # Errors
/// Names the task and the two spans.
pub fn no_overlap(tasks: &BTreeMap<String, Vec<Span>>) -> anyhow::Result<()> {
    for (task, spans) in tasks {
        for pair in spans.windows(2) {
            let (earlier, later) = (&pair[0], &pair[1]);
            let ended = earlier.end.is_some_and(|end| end <= later.start);
            ensure!(
                ended,
                "task {task} ran twice at a time: {earlier:?} and {later:?}"
            );
            ensure!(
                earlier.attempt <= later.attempt,
                "task {task} went back: {earlier:?} before {later:?}"
            );
        }
    }
    Ok(())
}

fn find(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            // Folders of runs may go away while we look.
            let _: Result<(), _> = find(&entry.path(), files);
        } else if entry.file_name() == "starts.jsonl" {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(attempt: u32, start: u64, end: Option<u64>) -> Span {
        Span {
            run: format!("r{attempt}"),
            attempt,
            start,
            end,
            pid: 1,
        }
    }

    #[test]
    fn overlaps_and_steps_back_are_found() {
        let check = |spans: Vec<Span>| no_overlap(&BTreeMap::from([("t".to_owned(), spans)]));
        assert!(check(vec![span(1, 0, Some(5)), span(2, 5, Some(9)), span(3, 10, None)]).is_ok());
        assert!(check(vec![span(1, 0, Some(6)), span(2, 5, Some(9))]).is_err());
        assert!(check(vec![span(1, 0, None), span(2, 5, Some(9))]).is_err());
        assert!(check(vec![span(2, 0, Some(1)), span(1, 5, Some(9))]).is_err());
    }

    #[test]
    fn lines_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let line = |event: &str, at: u64| {
            format!(
                "{{\"event\":\"{event}\",\"taskUID\":\"t\",\"runUID\":\"r\",\"attempt\":1,\"pid\":7,\"starttime\":3,\
                 \"bootId\":\"b\",\"boottime\":{at}}}\n"
            )
        };
        std::fs::create_dir(dir.path().join("state")).unwrap();
        std::fs::write(
            dir.path().join("state/starts.jsonl"),
            line("start", 10) + &line("end", 20),
        )
        .unwrap();
        let tasks = starts(dir.path()).unwrap();
        assert_eq!(
            tasks["t"],
            [Span {
                run: "r".into(),
                attempt: 1,
                start: 10,
                end: Some(20),
                pid: 7
            }]
        );
    }
}
