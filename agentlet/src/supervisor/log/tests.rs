use proptest::prelude::*;

use super::*;

const SMALL: Caps = Caps {
    head: 10,
    tail: 30,
    segment: 8,
};

fn read_all(reader: &LogReader, step: usize) -> Vec<(u64, Chunk)> {
    let mut out = Vec::new();
    let mut offset = 0;
    loop {
        let chunk = reader.read(offset, step).unwrap();
        let next = match &chunk {
            Chunk::Data(bytes) => offset + bytes.len() as u64,
            Chunk::Gap { to } => *to,
            Chunk::End => return out,
        };
        assert!(next > offset, "reading goes on");
        out.push((offset, chunk));
        offset = next;
    }
}

#[test]
fn a_stream_that_does_not_exist_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let reader = LogReader::new(&dir.path().join("none"), Stream::Log);
    assert_eq!(reader.read(0, 10).unwrap(), Chunk::End);
    assert_eq!(reader.end().unwrap(), 0);
}

#[test]
fn streams_in_one_folder_do_not_mix() {
    let dir = tempfile::tempdir().unwrap();
    LogWriter::new(dir.path(), Stream::Log, SMALL)
        .append(b"out")
        .unwrap();
    LogWriter::new(dir.path(), Stream::Events, SMALL)
        .append(b"err")
        .unwrap();
    let read = |stream| LogReader::new(dir.path(), stream).read(0, 99).unwrap();
    assert_eq!(read(Stream::Log), Chunk::Data(b"out".to_vec()));
    assert_eq!(read(Stream::Events), Chunk::Data(b"err".to_vec()));
}

/// Bytes of all files in a folder.
fn held(dir: &Path) -> u64 {
    let sizes = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len());
    sizes.sum()
}

#[test]
fn log_and_events_of_a_run_together_stay_within_their_bound() {
    // The usual bounds, a thousandth of each, so that going far beyond them takes no time.
    const SCALE: u64 = 1 << 10;
    const BOUND: u64 = (64 << 20) / SCALE;
    let usual = Caps::default();
    let caps = Caps {
        head: usual.head / SCALE,
        tail: usual.tail / SCALE,
        segment: usual.segment / SCALE,
    };
    let dir = tempfile::tempdir().unwrap();
    let mut log = LogWriter::new(dir.path(), Stream::Log, caps);
    let mut events = LogWriter::new(dir.path(), Stream::Events, caps.of_events());
    let mut most = 0;
    for n in 0..2000_usize {
        log.append(&vec![b'x'; n % 701]).unwrap();
        events.append(&vec![b'y'; n % 307]).unwrap();
        if n % 50 == 0 {
            most = most.max(held(dir.path()));
        }
    }
    assert!(log.end() + events.end() > 10 * BOUND);
    assert!(most < BOUND && most > BOUND / 2, "{most} bytes");
}

#[test]
fn what_cannot_be_written_is_a_gap_and_one_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = LogWriter::new(dir.path(), Stream::Log, SMALL);
    writer.append(b"0123456789").unwrap();
    // The next file's name is taken, so it cannot be made.
    let block = file_path(dir.path(), Stream::Log, 10);
    fs::create_dir(&block).unwrap();
    assert!(writer.append(b"lost").is_err());
    fs::remove_dir(&block).unwrap();
    writer.append(b"kept").unwrap();
    assert_eq!(writer.end(), 18);
    let reader = LogReader::new(dir.path(), Stream::Log);
    assert_eq!(reader.read(10, 99).unwrap(), Chunk::Gap { to: 14 });
    assert_eq!(reader.read(14, 99).unwrap(), Chunk::Data(b"kept".to_vec()));
}

proptest! {
    /// Whatever is written in whatever pieces: the first bytes and the newest are read back at their offsets, the
    /// bound holds, and every byte is either there or in a gap.
    #[test]
    fn first_and_newest_bytes_are_kept_at_their_offsets(
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20),
        step in 1_usize..50,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::new(dir.path(), Stream::Log, SMALL);
        let reader = LogReader::new(dir.path(), Stream::Log);
        let mut all = Vec::new();
        for piece in &pieces {
            writer.append(piece).unwrap();
            all.extend_from_slice(piece);
            let on_disk: u64 = reader.files().unwrap().iter().map(|f| f.1).sum();
            prop_assert!(on_disk <= SMALL.head + SMALL.tail);
        }
        prop_assert_eq!(writer.end(), all.len() as u64);
        prop_assert_eq!(reader.end().unwrap(), all.len() as u64);
        let mut covered = 0;
        for (offset, chunk) in read_all(&reader, step) {
            prop_assert_eq!(offset, covered);
            match chunk {
                Chunk::Data(bytes) => {
                    let at = usize::try_from(offset).unwrap();
                    prop_assert_eq!(&all[at..at + bytes.len()], &bytes[..]);
                    covered += bytes.len() as u64;
                }
                Chunk::Gap { to } => {
                    prop_assert!(offset >= SMALL.head, "the first bytes are never lost");
                    prop_assert!(to + SMALL.tail >= all.len() as u64, "no more is lost than must be");
                    covered = to;
                }
                Chunk::End => unreachable!(),
            }
        }
        prop_assert_eq!(covered, all.len() as u64);
    }
}
