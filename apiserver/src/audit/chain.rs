//! One record a line, each bound to all before it.
//!
//! A line is `{"seq":N,"prev":"H","hash":"H","event":{...}}`. `hash` is the SHA-256 of `panda-audit-1\nN\nPREV\n` and the
//! event's bytes, `prev` the `hash` of the record before; before the first stand 64 zeros. So whoever knows the newest
//! number and hash (the head) knows that nothing before it was changed, removed, added or reordered.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

const DOMAIN: &[u8] = b"panda-audit-1\n";

/// The newest record: its number and hash. Kept elsewhere it shows later whether the log was rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Head {
    /// Number of the record; 0 before the first.
    pub seq: u64,
    /// Its hash, 64 hexadecimal digits.
    pub hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            seq: 0,
            hash: "0".repeat(64),
        }
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.seq, self.hash)
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    seq: u64,
    prev: &'a str,
    hash: &'a str,
    #[serde(borrow)]
    event: &'a RawValue,
}

/// A record as it stands in a file, whole in itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Number and hash.
    pub head: Head,
    /// Hash of the record before.
    pub prev: &'a str,
    /// The event, JSON.
    pub event: &'a str,
}

fn hash(seq: u64, prev: &str, event: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(DOMAIN);
    hash.update(format!("{seq}\n{prev}\n"));
    hash.update(event);
    hex::encode(hash.finalize())
}

/// Appends the record after `head` to `out`; the new head.
pub(super) fn append(head: &Head, event: &str, out: &mut Vec<u8>) -> Head {
    let seq = head.seq + 1;
    let hash = hash(seq, &head.hash, event);
    let line = format!(
        "{{\"seq\":{seq},\"prev\":\"{}\",\"hash\":\"{hash}\",\"event\":{event}}}\n",
        head.hash
    );
    out.extend_from_slice(line.as_bytes());
    Head { seq, hash }
}

/// Reads a line, without its end. Nothing when it is not what was written once: no record, or its hash is another one.
pub(super) fn read(line: &[u8]) -> Option<Record<'_>> {
    let line: Line<'_> = serde_json::from_slice(line).ok()?;
    let event = line.event.get();
    (line.hash == hash(line.seq, line.prev, event)).then(|| Record {
        head: Head {
            seq: line.seq,
            hash: line.hash.to_owned(),
        },
        prev: line.prev,
        event,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_as_written_and_no_byte_of_it_may_change() {
        let mut out = Vec::new();
        let first = append(&Head::default(), r#"{"a":1}"#, &mut out);
        let line = out[..out.len() - 1].to_vec();
        let record = read(&line).unwrap();
        assert_eq!((record.head, record.event), (first, r#"{"a":1}"#));
        assert_eq!(record.prev, "0".repeat(64));
        for at in 0..line.len() {
            let mut bad = line.clone();
            bad[at] ^= 1;
            assert!(read(&bad).is_none(), "byte {at}");
        }
    }
}
