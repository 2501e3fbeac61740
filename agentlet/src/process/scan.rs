//! What `/proc` says about processes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proc {
    /// Process id.
    pub pid: i32,
    /// Parent.
    pub ppid: i32,
    /// Session.
    pub session: i32,
    /// State letter of the kernel; `Z` and `X` are dead.
    pub state: u8,
    /// Processor time, that of children already waited for included.
    pub cpu: Duration,
    /// Start, in clock ticks since boot: with the pid it names a process for good.
    pub starttime: u64,
}

impl Proc {
    /// Whether it is more than an exit status.
    #[must_use]
    pub const fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X')
    }
}

/// A process by its id.
#[must_use]
pub fn stat(pid: i32) -> Option<Proc> {
    parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// All processes.
pub(super) fn all() -> Vec<Proc> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok())
        .filter_map(stat)
        .collect()
}

/// Everything below `root`, without it.
pub(super) fn descendants(all: &[Proc], root: i32) -> BTreeSet<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for process in all {
        children.entry(process.ppid).or_default().push(process.pid);
    }
    let mut found = BTreeSet::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        for child in children.get(&pid).into_iter().flatten() {
            if found.insert(*child) {
                open.push(*child);
            }
        }
    }
    found
}

/// Whether the environment that a process was started with has the entry `NAME=value`.
pub(super) fn has_mark(pid: i32, entry: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|env| env.split(|b| *b == 0).any(|e| e == entry.as_bytes()))
}

/// Real uid of a process.
pub(super) fn uid(pid: i32) -> Option<u32> {
    fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()?
        .lines()
        .find_map(|l| l.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok())
}

/// The program's name may hold anything, parentheses and line breaks included: fields count from the last one.
fn parse(stat: &[u8]) -> Option<Proc> {
    let close = stat.iter().rposition(|b| *b == b')')?;
    let pid = std::str::from_utf8(&stat[..stat.iter().position(|b| *b == b' ')?])
        .ok()?
        .parse()
        .ok()?;
    let fields: Vec<&str> = std::str::from_utf8(stat.get(close + 2..)?)
        .ok()?
        .split(' ')
        .collect();
    let number = |n: usize| fields.get(n)?.trim().parse::<u64>().ok();
    // Ticks are 1/100 s on every architecture in the /proc interface.
    let ticks: u64 = (11..15).filter_map(number).sum();
    Some(Proc {
        pid,
        state: *fields.first()?.as_bytes().first()?,
        ppid: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        cpu: Duration::from_millis(ticks.saturating_mul(10)),
        starttime: number(19)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_program_name_with_parentheses_and_spaces() {
        let line = b"42 (a) b (c) S 7 42 41 0 -1 4194560 1 0 0 0 10 5 3 2 20 0 1 0 777 1 1 1\n";
        let got = parse(line).unwrap();
        assert_eq!((got.pid, got.ppid, got.session, got.state), (42, 7, 41, b'S'));
        assert_eq!((got.cpu, got.starttime), (Duration::from_millis(200), 777));
    }

    #[test]
    fn rubbish_is_no_process() {
        for bad in [&b""[..], b"1", b"1 (x", b"1 (x)", b"x (y) S 1 1 1", b"\xff\xfe"] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn descent_is_followed_through_generations_and_ends_in_cycles() {
        let p = |pid, ppid| Proc {
            pid,
            ppid,
            session: 1,
            state: b'S',
            cpu: Duration::ZERO,
            starttime: 1,
        };
        let all = [p(2, 1), p(3, 2), p(4, 3), p(9, 8), p(8, 9)];
        assert_eq!(descendants(&all, 1), BTreeSet::from([2, 3, 4]));
        assert_eq!(descendants(&all, 9), BTreeSet::from([8, 9]));
    }

    #[test]
    fn finds_itself() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(all().iter().any(|p| p.pid == me && p.is_alive()));
        assert!(uid(me).is_some());
    }
}
