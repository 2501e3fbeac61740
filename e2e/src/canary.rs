//! Looks for values that must be nowhere: raw and in every encoding that a program might print, on its own terms and not
//! by the code that masks them.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A value and the forms in which it is looked for.
#[derive(Clone, Debug)]
pub struct Canary {
    name: String,
    needles: Vec<(String, Vec<u8>)>,
    /// All needles at once: most files hold none.
    any: regex::bytes::Regex,
}

/// Where a value was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Name of the value.
    pub value: String,
    /// In which form.
    pub form: String,
    /// Where.
    pub place: String,
}

impl Canary {
    /// Looks for `value` as a whole, and for each of its lines that is long enough.
    #[must_use]
    pub fn new(name: &str, value: &str) -> Self {
        let mut needles: Vec<(String, Vec<u8>)> = Vec::new();
        let lines = value
            .lines()
            .filter(|line| line.len() >= 12 && !line.starts_with("---"));
        for text in std::iter::once(value).chain(lines.filter(|line| *line != value)) {
            let mut add = |form: &str, bytes: Vec<u8>| {
                if needles.iter().all(|(_, known)| *known != bytes) {
                    needles.push((form.to_owned(), bytes));
                }
            };
            add("raw", text.into());
            add("reversed", text.chars().rev().collect::<String>().into());
            let json = serde_json::Value::from(text).to_string();
            let inner = json[1..json.len() - 1].to_owned();
            let twice = serde_json::Value::from(inner.as_str()).to_string();
            add("JSON", inner.into());
            add("JSON twice", twice[1..twice.len() - 1].into());
            let hex: String = text.bytes().map(|b| format!("{b:02x}")).collect();
            add("HEX", hex.to_uppercase().into());
            add("hex", hex.into());
            let percent: String = text
                .bytes()
                .map(|b| match b {
                    b if b.is_ascii_alphanumeric() || b"-._~".contains(&b) => char::from(b).to_string(),
                    b => format!("%{b:02X}"),
                })
                .collect();
            add("URL", percent.into());
            for (shift, before) in ["", "?", "??"].iter().enumerate() {
                let encoded = base64(format!("{before}{text}").as_bytes());
                // What the neighbours have no part in.
                let inner = &encoded[[0, 2, 3][shift]..(before.len() + text.len()) * 8 / 6];
                add("base64", inner.into());
                add("base64url", inner.replace('+', "-").replace('/', "_").into());
            }
        }
        let all: String = needles
            .iter()
            .map(|(_, needle)| needle.iter().map(|b| format!("\\x{b:02x}")).collect::<String>())
            .collect::<Vec<_>>()
            .join("|");
        Self {
            name: name.to_owned(),
            needles,
            any: regex::bytes::Regex::new(&format!("(?-u:{all})")).expect("escaped bytes are a pattern"),
        }
    }

    /// Every form that stands in `bytes`.
    #[must_use]
    pub fn sightings(&self, place: &str, bytes: &[u8]) -> Vec<Sighting> {
        // A terminal's line break does not hide anything.
        let broken = bytes.iter().any(|b| matches!(b, b'\n' | b'\r'));
        let joined: Vec<u8> = bytes
            .iter()
            .copied()
            .filter(|b| !matches!(b, b'\n' | b'\r'))
            .collect();
        if !(self.any.is_match(bytes) || broken && self.any.is_match(&joined)) {
            return Vec::new();
        }
        let found = self.needles.iter().filter(|(_, needle)| {
            contains(bytes, needle) || (needle.len() >= 12 && contains(&joined, needle))
        });
        found
            .map(|(form, _)| Sighting {
                value: self.name.clone(),
                form: form.clone(),
                place: place.to_owned(),
            })
            .collect()
    }
}

/// Every form of every canary in the names and bytes of everything below `folders`. Nothing is left out but what
/// vanishes while it is read.
///
/// # Errors
/// When something cannot be read.
pub fn scan(folders: &[PathBuf], canaries: &[Canary]) -> io::Result<Vec<Sighting>> {
    let mut found = Vec::new();
    let mut look = |place: &str, bytes: &[u8]| {
        for canary in canaries {
            found.extend(canary.sightings(place, bytes));
        }
    };
    let mut stack = folders.to_vec();
    while let Some(path) = stack.pop() {
        let result = (|| {
            let kind = fs::symlink_metadata(&path)?.file_type();
            let place = path.display().to_string();
            look(
                &format!("name of {place}"),
                path.file_name().unwrap_or_default().as_encoded_bytes(),
            );
            if kind.is_dir() {
                for entry in fs::read_dir(&path)? {
                    stack.push(entry?.path());
                }
            } else if kind.is_file() {
                look(&place, &fs::read(&path)?);
            } else if kind.is_symlink() {
                look(&place, fs::read_link(&path)?.as_os_str().as_encoded_bytes());
            }
            io::Result::Ok(())
        })();
        match result {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(found)
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    let Some(first) = needle.first() else {
        return false;
    };
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|b| b == first) {
        if bytes[from + at..].starts_with(needle) {
            return true;
        }
        from += at + 1;
    }
    false
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_usize, |sum, b| sum << 8 | usize::from(*b));
        for shift in [18, 12, 6, 0] {
            out.push(char::from(ALPHABET[word >> shift & 63]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_values_are_found_in_every_form() {
        let value = r#"s3cr3t-"quoted""#;
        let canary = Canary::new("quoted", value);
        for (form, planted) in [
            ("raw", value.to_owned()),
            ("raw", "s3cr3t-\"qu\noted\"".to_owned()),
            ("reversed", r#""detouq"-t3rc3s"#.to_owned()),
            ("JSON", r#"{"a":"s3cr3t-\"quoted\""}"#.to_owned()),
            ("JSON twice", r#"s3cr3t-\\\"quoted\\\""#.to_owned()),
            ("hex", "7333637233742d2271756f74656422".to_owned()),
            ("URL", "https://u:s3cr3t-%22quoted%22@host/".to_owned()),
            ("base64", base64(format!("T={value}").as_bytes())),
            ("base64", base64(format!("TOKEN={value}").as_bytes())),
            ("base64", base64(format!("AB={value}\n").as_bytes())),
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir_all(dir.path().join("a/b")).unwrap();
            fs::write(dir.path().join("a/b/f"), format!("before {planted} after")).unwrap();
            let found = scan(&[dir.path().to_owned()], std::slice::from_ref(&canary)).unwrap();
            assert!(
                found.iter().any(|s| s.form == form),
                "{form}: {planted}: {found:?}"
            );
            fs::write(dir.path().join("a/b/f"), "before s3cr3t after").unwrap();
            let found = scan(&[dir.path().to_owned()], std::slice::from_ref(&canary)).unwrap();
            assert_eq!(found, []);
        }
    }

    #[test]
    fn a_line_of_a_key_and_a_name_are_found() {
        let canary = Canary::new("key", "-----BEGIN-----\nMIIEvQIBADANBgkq\n-----END-----\n");
        assert_eq!(canary.sightings("x", b"  MIIEvQIBADANBgkq").len(), 1);
        assert_eq!(canary.sightings("x", b"-----BEGIN-----"), []);
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("MIIEvQIBADANBgkq"), "").unwrap();
        std::os::unix::fs::symlink("MIIEvQIBADANBgkq", dir.path().join("link")).unwrap();
        assert_eq!(scan(&[dir.path().to_owned()], &[canary]).unwrap().len(), 2);
    }
}
