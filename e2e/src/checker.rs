//! Says from the evidence whether anything was lost, doubled or left behind.
//!
//! Independent on purpose: it knows the lines of files and of the wire, and nothing of the code that wrote them. The
//! evidence is what supervisors journalled about starts and ends (here), what agents wrote about themselves ([`beats`])
//! and what the server told a watcher ([`history`]).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

pub mod beats;
pub mod history;

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

/// A moment at which everything on a device was dead, as whoever killed it saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    /// The device's data folder.
    pub device: PathBuf,
    /// Milliseconds since boot.
    pub at: u64,
}

/// Everything that the journals below `folder` say, by task uid.
///
/// # Errors
/// When there is no journal, or one cannot be read.
pub fn starts(folder: &Path) -> anyhow::Result<BTreeMap<String, Vec<Span>>> {
    starts_and_deaths(folder, &[], &[])
}

/// The same, where devices died: nobody was left to write the end of what died with them. What lies in the folders
/// `without` is not read: where nobody was left to enforce a grant, `protocol.md` allows that attempts overlap.
///
/// # Errors
/// When there is no journal, or one cannot be read.
pub fn starts_and_deaths(
    folder: &Path,
    deaths: &[Death],
    without: &[PathBuf],
) -> anyhow::Result<BTreeMap<String, Vec<Span>>> {
    let mut files = Vec::new();
    find(folder, &mut files)?;
    ensure!(!files.is_empty(), "no starts.jsonl below {}", folder.display());
    let mut tasks: BTreeMap<String, Vec<Span>> = BTreeMap::new();
    files.retain(|file| !without.iter().any(|folder| file.starts_with(folder)));
    for file in files {
        let mut of_file: BTreeMap<String, Vec<Span>> = BTreeMap::new();
        let text = std::fs::read_to_string(&file)?;
        let mut open: BTreeMap<(String, i32, u64), (String, usize)> = BTreeMap::new();
        for text in text.lines() {
            let line: Line =
                serde_json::from_str(text).with_context(|| format!("{}: {text}", file.display()))?;
            let key = (line.boot_id.clone(), line.pid, line.starttime);
            if line.event == "start" {
                let spans = of_file.entry(line.task.clone()).or_default();
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
                let span = of_file
                    .get_mut(&task)
                    .and_then(|spans| spans.get_mut(at))
                    .context("a span of this file")?;
                span.end = Some(line.boottime);
            }
        }
        for (task, mut spans) in of_file {
            for span in &mut spans {
                let died = deaths.iter().filter(|death| file.starts_with(&death.device));
                let died = died.map(|death| death.at).filter(|at| *at >= span.start).min();
                span.end = span.end.into_iter().chain(died).min();
            }
            tasks.entry(task).or_default().append(&mut spans);
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
mod tests;
