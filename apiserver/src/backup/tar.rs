//! The part of the tar format (POSIX.1-1988, `ustar`) that a backup is written in, so that everybody can look inside
//! with the usual tools: regular files with plain paths, one after the other.
//!
//! Reading takes exactly what writing makes. Links, devices, folders, absolute paths, checksums that do not add up and
//! bytes behind the end are damage.

use std::io::{self, Read, Write};

const BLOCK: usize = 512;
const NAME: std::ops::Range<usize> = 0..100;
const SIZE: std::ops::Range<usize> = 124..136;
const SUM: std::ops::Range<usize> = 148..156;
const KIND: usize = 156;
const MAGIC: std::ops::Range<usize> = 257..265;
const PREFIX: std::ops::Range<usize> = 345..500;

/// Why an archive cannot be read on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It ends in the middle.
    #[error("the archive ends too early")]
    Truncated,
    /// It is not what was written.
    #[error("the archive is damaged: {0}")]
    Damaged(&'static str),
    /// It cannot be read or written.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            Self::Truncated
        } else {
            Self::Io(error)
        }
    }
}

/// The header of a file; none when the path does not fit.
fn header(path: &str, size: u64) -> Option<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    let (prefix, name) = if path.len() <= NAME.len() {
        ("", path)
    } else {
        let mut cuts = path.match_indices('/').map(|(at, _)| at);
        let cut = cuts.rfind(|at| *at <= PREFIX.len() && path.len() - at - 1 <= NAME.len())?;
        (&path[..cut], &path[cut + 1..])
    };
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[PREFIX.start..PREFIX.start + prefix.len()].copy_from_slice(prefix.as_bytes());
    block[100..108].copy_from_slice(b"0000600\0");
    block[108..116].copy_from_slice(b"0000000\0");
    block[116..124].copy_from_slice(b"0000000\0");
    if size < 1 << 33 {
        block[SIZE].copy_from_slice(format!("{size:011o}\0").as_bytes());
    } else {
        // Beyond 8 GiB in binary, as GNU and everybody after it.
        block[SIZE.start] = 0x80;
        block[SIZE.end - 8..SIZE.end].copy_from_slice(&size.to_be_bytes());
    }
    block[136..148].copy_from_slice(b"00000000000\0");
    block[KIND] = b'0';
    block[MAGIC].copy_from_slice(b"ustar\x0000");
    let sum = format!("{:06o}\0 ", checksum(&block));
    block[SUM].copy_from_slice(sum.as_bytes());
    Some(block)
}

/// The sum of all bytes, those of the sum itself counted as spaces.
fn checksum(block: &[u8; BLOCK]) -> u32 {
    let all: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let own: u32 = block[SUM].iter().map(|byte| u32::from(*byte)).sum();
    all - own + 8 * u32::from(b' ')
}

fn padding(size: u64) -> usize {
    let over = usize::try_from(size % BLOCK as u64).unwrap_or(0);
    if over == 0 { 0 } else { BLOCK - over }
}

/// Writes an archive.
pub(super) struct Writer<W> {
    to: W,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to }
    }

    /// Writes one file of exactly `size` bytes.
    pub(super) fn file(&mut self, path: &str, size: u64, content: &mut impl Read) -> Result<(), Error> {
        let header = header(path, size).ok_or(Error::Damaged("a path is too long for it"))?;
        self.to.write_all(&header)?;
        let copied = io::copy(&mut content.take(size), &mut self.to)?;
        if copied != size {
            return Err(Error::Truncated);
        }
        self.to.write_all(&[0; BLOCK][..padding(size)])?;
        Ok(())
    }

    /// Writes the end.
    pub(super) fn finish(mut self) -> Result<W, Error> {
        self.to.write_all(&[0; 2 * BLOCK])?;
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Reads an archive.
pub(super) struct Reader<R> {
    from: R,
}

/// The next file of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) path: String,
    pub(super) size: u64,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { from }
    }

    /// The next file; none at the end. Its content has to be read with [`Self::content`] before the next call.
    pub(super) fn next(&mut self) -> Result<Option<Header>, Error> {
        let mut block = [0; BLOCK];
        self.from.read_exact(&mut block)?;
        if block == [0; BLOCK] {
            self.from.read_exact(&mut block)?;
            if block != [0; BLOCK] {
                return Err(Error::Damaged("something stands behind its end"));
            }
            return match self.from.read(&mut block)? {
                0 => Ok(None),
                _ => Err(Error::Damaged("something stands behind its end")),
            };
        }
        parse(&block).map(Some)
    }

    /// Copies the content of the file whose header was read last.
    pub(super) fn content(&mut self, size: u64, to: &mut impl Write) -> Result<(), Error> {
        if io::copy(&mut (&mut self.from).take(size), to)? != size {
            return Err(Error::Truncated);
        }
        let mut rest = [0; BLOCK];
        let rest = &mut rest[..padding(size)];
        self.from.read_exact(rest)?;
        if rest.iter().any(|byte| *byte != 0) {
            return Err(Error::Damaged("its padding is not empty"));
        }
        Ok(())
    }
}

fn parse(block: &[u8; BLOCK]) -> Result<Header, Error> {
    if &block[MAGIC] != b"ustar\x0000" {
        return Err(Error::Damaged("it is no tar archive, or of another program"));
    }
    let written = text(&block[SUM]).and_then(|text| u32::from_str_radix(text.trim_end(), 8).ok());
    if written != Some(checksum(block)) {
        return Err(Error::Damaged("the checksum of a header is wrong"));
    }
    if block[KIND] != b'0' {
        return Err(Error::Damaged("it holds something that is no regular file"));
    }
    let binary =
        block[SIZE.start] == 0x80 && block[SIZE.start + 1..SIZE.end - 8].iter().all(|byte| *byte == 0);
    let size = if binary {
        block[SIZE.end - 8..SIZE.end]
            .try_into()
            .ok()
            .map(u64::from_be_bytes)
    } else {
        text(&block[SIZE]).and_then(|text| u64::from_str_radix(text, 8).ok())
    };
    let size = size.ok_or(Error::Damaged("a size is wrong"))?;
    let part = |bytes| text(bytes).ok_or(Error::Damaged("a path is no text"));
    let (prefix, name) = (part(&block[PREFIX])?, part(&block[NAME])?);
    let path = if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}/{name}")
    };
    Ok(Header { path, size })
}

/// The text before the first NUL; what follows must be NUL, too.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    let (text, rest) = field.split_at(end);
    let plain = rest.iter().all(|byte| *byte == 0 || *byte == b' ');
    std::str::from_utf8(text).ok().filter(|_| plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Vec<u8> {
        let long = format!("{}/{}", "a".repeat(90), "b".repeat(60));
        let mut writer = Writer::new(Vec::new());
        writer.file("x", 3, &mut &b"one"[..]).unwrap();
        writer.file(&long, 512, &mut &[7; 512][..]).unwrap();
        writer.file("empty", 0, &mut &b""[..]).unwrap();
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let mut reader = Reader::new(bytes);
        let mut found = Vec::new();
        while let Some(header) = reader.next()? {
            let mut content = Vec::new();
            reader.content(header.size, &mut content)?;
            found.push((header.path, content));
        }
        Ok(found)
    }

    #[test]
    fn what_was_written_is_read_and_every_changed_header_or_cut_is_found() {
        let bytes = archive();
        let found = read(&bytes).unwrap();
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], ("x".to_owned(), b"one".to_vec()));
        assert_eq!((found[1].0.len(), found[1].1.len()), (151, 512));
        for cut in 0..bytes.len() {
            assert!(matches!(read(&bytes[..cut]), Err(Error::Truncated)), "{cut}");
        }
        for at in 0..BLOCK {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(read(&bad).is_err(), "{at}");
        }
        assert!(read(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn sizes_beyond_eight_gibibytes_and_paths_that_do_not_fit() {
        let block = header("big", 9 << 30).unwrap();
        assert_eq!(parse(&block).unwrap().size, 9 << 30);
        assert!(header(&"x".repeat(101), 0).is_none());
    }

    #[test]
    fn the_usual_tool_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.tar");
        std::fs::write(&file, archive()).unwrap();
        let listed = std::process::Command::new("tar")
            .arg("tf")
            .arg(&file)
            .output()
            .unwrap();
        assert!(listed.status.success());
        assert_eq!(String::from_utf8_lossy(&listed.stdout).lines().count(), 3);
    }
}
