//! Logs that are written, cut, changed and verified.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use panda_api::meta::{RandomIds, SystemClock};

use super::event::Event;
use super::verify::{Findings, verify};
use super::{Audit, Bounds, Error, Head};

const BOUNDS: Bounds = Bounds {
    segment: 8192,
    total: 1 << 20,
};

fn open(dir: &Path, bounds: Bounds) -> Audit {
    Audit::open(dir, bounds, Arc::new(SystemClock), Arc::new(RandomIds)).unwrap()
}

fn event(text: &str) -> Event {
    Event::note(text.to_owned(), String::new(), jiff::Timestamp::UNIX_EPOCH.into())
}

/// A log with so many records, over several files.
async fn written(count: usize) -> (tempfile::TempDir, Head) {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path(), BOUNDS);
    for n in 0..count {
        audit.record(&event(&format!("record {n}"))).await;
    }
    audit.close().await;
    let head = audit.head();
    (dir, head)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    super::files::segments(dir)
        .unwrap()
        .into_iter()
        .map(|(_, path)| path)
        .collect()
}

fn check(dir: &Path) -> Findings {
    verify(dir, None).unwrap()
}

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

fn write(path: &Path, lines: &[String]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(path, text).unwrap();
}

#[tokio::test]
async fn a_log_is_one_chain_over_files_and_starts() {
    let (dir, head) = written(50).await;
    let found = check(dir.path());
    assert!(found.is_sound(), "{found:?}");
    assert_eq!((found.records, found.first, &found.head), (52, 1, &head));
    assert!(files(dir.path()).len() > 2);
    let audit = open(dir.path(), BOUNDS);
    audit.record(&event("again")).await;
    assert!(matches!(
        Audit::open(dir.path(), BOUNDS, Arc::new(SystemClock), Arc::new(RandomIds)),
        Err(Error::Locked { .. })
    ));
    audit.close().await;
    let found = verify(dir.path(), Some(&head)).unwrap();
    assert_eq!(
        (found.is_sound(), found.records, found.known),
        (true, 55, Some(true))
    );
}

#[tokio::test]
async fn what_was_changed_removed_reordered_or_spliced_is_found() {
    let (other, _) = written(50).await;
    let foreign = lines(&files(other.path())[1]);
    type Change = fn(&mut Vec<String>, &[String]);
    let cases: [(&str, Change); 7] = [
        ("a changed word", |lines, _| {
            lines[3] = lines[3].replace("record", "nothing")
        }),
        ("a removed record", |lines, _| drop(lines.remove(3))),
        ("a doubled record", |lines, _| lines.insert(3, lines[3].clone())),
        ("two swapped records", |lines, _| lines.swap(3, 4)),
        ("a record of another log", |lines, foreign| {
            lines[3].clone_from(&foreign[3])
        }),
        ("another log's file", |lines, foreign| *lines = foreign.to_vec()),
        ("a cut file", |lines, _| lines.truncate(3)),
    ];
    for (name, change) in cases {
        let (dir, _) = written(50).await;
        let file = &files(dir.path())[1];
        let mut all = lines(file);
        change(&mut all, &foreign);
        write(file, &all);
        assert!(!check(dir.path()).is_sound(), "{name}");
    }
    for (name, at) in [("the first file", 0), ("a file in the middle", 1)] {
        let (dir, _) = written(50).await;
        fs::remove_file(&files(dir.path())[at]).unwrap();
        assert!(!check(dir.path()).is_sound(), "{name}");
    }
}

#[tokio::test]
async fn a_cut_end_and_a_log_written_anew_show_against_a_head_that_was_kept() {
    let (dir, head) = written(50).await;
    let last = files(dir.path()).pop().unwrap();
    let mut all = lines(&last);
    all.pop();
    write(&last, &all);
    assert!(check(dir.path()).is_sound(), "by itself it does not show");
    assert_eq!(verify(dir.path(), Some(&head)).unwrap().known, Some(false));
    let (anew, _) = written(60).await;
    let found = verify(anew.path(), Some(&head)).unwrap();
    assert!(found.faults.is_empty() && found.known == Some(false));
}

#[tokio::test]
async fn what_a_crash_leaves_behind_is_mended_and_said() {
    let (dir, head) = written(5).await;
    let last = files(dir.path()).pop().unwrap();
    let whole = fs::read(&last).unwrap();
    for torn in [&b"{\"seq\":9,\"pre"[..], &[0; 700]] {
        fs::write(&last, [&whole[..], torn].concat()).unwrap();
        assert_eq!(check(dir.path()).unfinished, torn.len() as u64);
        let audit = open(dir.path(), BOUNDS);
        audit.close().await;
        let found = verify(dir.path(), Some(&head)).unwrap();
        assert!(found.is_sound(), "{found:?}");
        let text = fs::read_to_string(files(dir.path()).pop().unwrap()).unwrap();
        assert!(
            text.contains(&format!("{} bytes of a record", torn.len())),
            "{text}"
        );
        fs::write(&last, &whole).unwrap();
    }
    // A file that was made and never written to.
    let empty = dir.path().join(format!("{:020}.jsonl", head.seq + 1));
    fs::write(&empty, "").unwrap();
    open(dir.path(), BOUNDS).close().await;
    assert!(verify(dir.path(), Some(&head)).unwrap().is_sound());
}

#[tokio::test]
async fn damage_stays_where_it_is_and_the_chain_goes_on() {
    // As many as leave a few in the last file.
    let mut count = 50;
    let (dir, head, last, mut all) = loop {
        let (dir, head) = written(count).await;
        let last = files(dir.path()).pop().unwrap();
        let all = lines(&last);
        if all.len() > 4 {
            break (dir, head, last, all);
        }
        count += 2;
    };
    all[1] = all[1].replace("record", "nothing");
    write(&last, &all);
    let audit = open(dir.path(), BOUNDS);
    audit.record(&event("after the damage")).await;
    audit.close().await;
    let found = verify(dir.path(), Some(&head)).unwrap();
    let places: Vec<_> = found
        .faults
        .iter()
        .map(|fault| (&fault.file, fault.line))
        .collect();
    // The line itself, and that a number is missing at the next.
    assert_eq!(places, [(&last, 2), (&last, 3)], "{found:?}");
    assert_eq!(found.known, Some(true));
    assert_eq!(found.head.seq, head.seq + 3);
}

#[tokio::test]
async fn old_files_go_and_the_log_says_so() {
    let bounds = Bounds {
        segment: 4096,
        total: 16_384,
    };
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path(), bounds);
    for n in 0..300 {
        audit.record(&event(&format!("record {n}"))).await;
    }
    audit.close().await;
    let found = check(dir.path());
    assert!(found.is_sound() && found.first > 200, "{found:?}");
    let size: u64 = files(dir.path())
        .iter()
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert!(size < bounds.total + bounds.segment, "{size}");
    // Removing one more than the log says is found.
    fs::remove_file(&files(dir.path())[0]).unwrap();
    assert!(!check(dir.path()).is_sound());
}

#[tokio::test]
async fn records_of_many_at_once_are_all_there() {
    let dir = tempfile::tempdir().unwrap();
    let audit = open(dir.path(), BOUNDS);
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let audit = audit.clone();
            tokio::spawn(async move { audit.record(&event(&format!("record {n}."))).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // Acknowledged is written, also when nobody closes it.
    let found = check(dir.path());
    assert!(found.is_sound() && found.records == 201, "{found:?}");
    audit.close().await;
    let all: String = files(dir.path())
        .iter()
        .map(|file| fs::read_to_string(file).unwrap())
        .collect();
    assert!((0..200).all(|n| all.contains(&format!("record {n}."))));
}
