//! Reading an audit log from its folder, and finding what was changed in it. The server may run meanwhile.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::chain::{self, Head, Record};
use super::files::{next_line, segments};
use super::{Error, REMOVED, failed};

/// Most faults that are told.
const MAX_FAULTS: usize = 100;

/// Where the log is in a data folder.
#[must_use]
pub fn folder(data: &Path) -> PathBuf {
    data.join("audit")
}

/// Something that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: u64,
    /// What is wrong.
    pub what: String,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Records that are whole.
    pub records: u64,
    /// Number of the first record that is kept.
    pub first: u64,
    /// The newest record.
    pub head: Head,
    /// What is wrong, in order; at most 100.
    pub faults: Vec<Fault>,
    /// Bytes at the end that are no whole record: one is being written, or its writer died.
    pub unfinished: u64,
    /// Whether the head that was given is in the log; none when none was.
    pub known: Option<bool>,
}

impl Findings {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty() && self.known != Some(false)
    }

    fn fault(&mut self, file: &Path, line: u64, what: impl Into<String>) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault {
                file: file.to_owned(),
                line,
                what: what.into(),
            });
        }
    }
}

/// Reads the whole log, in order; in constant memory.
///
/// # Errors
/// When a file cannot be read. What was changed in them is no error, but a fault.
pub fn verify(dir: &Path, known: Option<&Head>) -> Result<Findings, Error> {
    let mut findings = Findings::default();
    let mut last: Option<Head> = None;
    // The newest record that the log itself says was removed.
    let mut removed = 0;
    let mut seen = false;
    let unfinished = read(dir, &mut |place, record| {
        let Some(record) = record else {
            findings.fault(place.file, place.line, "this is no record as it was written");
            return true;
        };
        findings.records += 1;
        match &last {
            None => findings.first = record.head.seq,
            Some(last) if record.head.seq != last.seq + 1 => {
                let what = format!("record {} follows record {}", record.head.seq, last.seq);
                findings.fault(place.file, place.line, what);
            }
            Some(last) if record.prev != last.hash => {
                let what = format!("record {} is not bound to the one before it", record.head.seq);
                findings.fault(place.file, place.line, what);
            }
            Some(_) => {}
        }
        if place.line == 1 && place.first != record.head.seq {
            let what = format!("the file begins with record {}", record.head.seq);
            findings.fault(place.file, 1, what);
        }
        if record.head.seq == 1 && record.prev != Head::default().hash {
            findings.fault(
                place.file,
                place.line,
                "the first record is not bound to the beginning",
            );
        }
        if record.event.contains(REMOVED) {
            removed = removed_through(&record).unwrap_or(removed).max(removed);
        }
        seen |= known.is_some_and(|known| *known == record.head);
        last = Some(record.head);
        true
    })?;
    findings.unfinished = unfinished;
    let begins = findings.first;
    if findings.records > 0 && begins != removed + 1 {
        let what = format!(
            "the log begins with record {begins}, and itself says {}",
            removed + 1
        );
        let file = segments(dir)?
            .into_iter()
            .next()
            .map_or(dir.to_owned(), |(_, path)| path);
        findings.fault(&file, 1, what);
    }
    findings.head = last.unwrap_or_default();
    findings.known = known.map(|known| seen || *known == Head::default());
    Ok(findings)
}

fn removed_through(record: &Record<'_>) -> Option<u64> {
    let event: Value = serde_json::from_str(record.event).ok()?;
    event["annotations"][REMOVED].as_str()?.parse().ok()
}

/// Where a record stands.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The file.
    pub file: &'a Path,
    /// The number in its name.
    pub first: u64,
    /// The line, from 1.
    pub line: u64,
}

/// Shows every line of the log, oldest first, until `visit` says false; none where a line is no record. Bytes at the end
/// that are no whole line are not shown; how many there are is returned.
///
/// # Errors
/// When a file cannot be read.
pub fn read(dir: &Path, visit: &mut dyn FnMut(Place<'_>, Option<Record<'_>>) -> bool) -> Result<u64, Error> {
    let mut unfinished = 0;
    let mut line = Vec::new();
    let all = segments(dir)?;
    for (at, (first, file)) in all.iter().enumerate() {
        let mut from = BufReader::new(match File::open(file) {
            // Removed by rotation since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && at == 0 => continue,
            opened => opened.map_err(failed("open", file))?,
        });
        let mut number = 0;
        while next_line(&mut from, &mut line).map_err(failed("read", file))? {
            number += 1;
            let place = Place {
                file,
                first: *first,
                line: number,
            };
            match line.strip_suffix(b"\n") {
                None if at + 1 == all.len() => unfinished += line.len() as u64,
                None => {
                    if !visit(place, None) {
                        return Ok(unfinished);
                    }
                }
                Some(text) => {
                    if !visit(place, chain::read(text)) {
                        return Ok(unfinished);
                    }
                }
            }
        }
    }
    Ok(unfinished)
}
