//! What lives on this machine, found by a mark in its command line or environment.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A process that is alive.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Command line and environment.
    pub text: String,
}

/// Every process that is alive, this one left out.
#[must_use]
pub fn all() -> Vec<Process> {
    let me = std::process::id();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let state = stat.rsplit(')').next()?.trim_start().chars().next()?;
            if pid == me || state == 'Z' {
                return None;
            }
            let mut text = std::fs::read(entry.path().join("cmdline")).ok()?;
            text.extend(std::fs::read(entry.path().join("environ")).unwrap_or_default());
            let text = String::from_utf8_lossy(&text).replace('\0', " ");
            Some(Process { pid, text })
        })
        .collect()
}

/// Those that name this folder or something below it.
#[must_use]
pub fn naming(folder: &Path) -> Vec<Process> {
    let needle = folder.display().to_string();
    let mut found = all();
    found.retain(|process| {
        process.text.match_indices(&needle).any(|(at, _)| {
            // Not a longer name that begins alike.
            !process.text[at + needle.len()..].starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-')
        })
    });
    found
}

/// Sends a signal to one process; one that is gone already is no matter.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _: Result<(), _> = kill_process(pid, signal);
    }
}

/// Kills everything that names this folder, until nothing does. Says whether that was reached.
pub fn kill_naming(folder: &Path, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    loop {
        let found = naming(folder);
        if found.is_empty() {
            return true;
        }
        for process in found {
            signal(process.pid, Signal::KILL);
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
