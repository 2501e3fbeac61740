//! Reading an agent's tree without trusting it.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::path::{display, is_git_folder};
use super::{Error, Skipped};
use crate::git::Ids;
use crate::workspace::Limits;
use crate::workspace::disk::Identity;
use crate::workspace::remove::open_folder;

/// How many left-out paths are listed.
const MAX_SKIPPED: usize = 1000;
/// Bytes of a `.gitignore` that are read.
const MAX_IGNORE_FILE: u64 = 1 << 20;
/// Bytes of a path; git takes no longer ones.
const MAX_PATH: usize = 4000;

/// What the base commit tracks.
pub(crate) type Base = BTreeMap<Vec<u8>, BaseEntry>;

/// An entry of the base commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BaseEntry {
    pub(crate) mode: String,
    pub(crate) id: String,
}

impl BaseEntry {
    pub(super) fn is_submodule(&self) -> bool {
        self.mode == "160000"
    }
}

/// Takes what a walk finds, in its order.
pub(super) trait Visitor {
    /// A regular file with exactly `size` bytes.
    fn file(&mut self, path: &[u8], executable: bool, size: u64, content: &mut dyn Read) -> io::Result<()>;
    /// A link, not followed.
    fn link(&mut self, path: &[u8], target: &[u8]) -> io::Result<()>;
    /// A submodule of the base commit, as it was there.
    fn submodule(&mut self, path: &[u8], id: &str) -> io::Result<()>;
}

/// What a walk is about.
pub(super) struct Walk<'a> {
    /// Which folder it must be.
    pub(super) identity: Identity,
    /// What the base tracks; `None`: nothing is ignored.
    pub(super) base: Option<&'a Base>,
    /// Only files of this user are taken, when we could read those of others.
    pub(super) owner: Option<Ids>,
    pub(super) limits: Limits,
}

/// What a walk saw.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) digest: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
    pub(super) skipped: Vec<Skipped>,
}

/// A folder on the way down.
struct Frame {
    dir: OwnedFd,
    /// Names still to be visited, last first.
    names: Vec<CString>,
    /// Length of its path, with the slash.
    prefix: usize,
    rules: Option<Gitignore>,
    /// Whether it is ignored, so that only what the base tracks counts.
    ignored: bool,
}

struct State<'a, V> {
    walk: &'a Walk<'a>,
    visitor: &'a mut V,
    hash: Sha256,
    seen: Seen,
    path: Vec<u8>,
    frames: Vec<Frame>,
}

impl Walk<'_> {
    /// Visits everything in the tree at `root`, in an order that only depends on the names. Blocks.
    pub(super) fn run(&self, root: &Path, visitor: &mut impl Visitor) -> Result<Seen, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let read = |source: io::Error| Error::Read {
            path: ".".to_owned(),
            source,
        };
        let dir = rustix::fs::openat(CWD, root, flags, Mode::empty()).map_err(|e| read(e.into()))?;
        let stat = rustix::fs::fstat(&dir).map_err(|e| read(e.into()))?;
        if (stat.st_dev, stat.st_ino) != (self.identity.dev, self.identity.ino) {
            return Err(read(io::Error::other("another folder stands in its place")));
        }
        let mut state = State {
            walk: self,
            visitor,
            hash: Sha256::new(),
            seen: Seen {
                digest: String::new(),
                files: 0,
                bytes: 0,
                skipped: Vec::new(),
            },
            path: Vec::new(),
            frames: Vec::new(),
        };
        state.enter(dir, false)?;
        while let Some(frame) = state.frames.last_mut() {
            match frame.names.pop() {
                Some(name) => state.visit(&name)?,
                None => {
                    state.frames.pop();
                }
            }
        }
        state.seen.digest = format!("sha256:{}", hex::encode(state.hash.finalize()));
        Ok(state.seen)
    }
}

impl<V: Visitor> State<'_, V> {
    fn visit(&mut self, name: &CStr) -> Result<(), Error> {
        let Some(frame) = self.frames.last() else {
            return Ok(());
        };
        let ignored = frame.ignored;
        self.path.truncate(frame.prefix);
        self.path.extend_from_slice(name.to_bytes());
        if is_git_folder(name.to_bytes()) {
            // Its own git folder is no surprise.
            if frame.prefix > 0 || name.to_bytes() != b".git" {
                self.skip("it is named like a git folder");
            }
            return Ok(());
        }
        if self.path.len() > MAX_PATH {
            return Err(self.limit("bytes in one path", MAX_PATH as u64));
        }
        let stat = match rustix::fs::statat(&frame.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(self.read(e.into())),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return self.folder(name, ignored);
        }
        let tracked = self.walk.base.is_some_and(|base| base.contains_key(&self.path));
        if !tracked && (ignored || self.is_ignored(false)) {
            return Ok(());
        }
        match kind {
            FileType::RegularFile => self.file(name),
            FileType::Symlink => self.link(name),
            _ => {
                self.skip("it is neither a file, a folder nor a link");
                Ok(())
            }
        }
    }

    fn folder(&mut self, name: &CStr, ignored: bool) -> Result<(), Error> {
        let mut ignored = ignored;
        if let Some(base) = self.walk.base {
            if let Some(entry) = base.get(&self.path)
                && entry.is_submodule()
            {
                self.hash_entry(&entry.mode, entry.id.as_bytes());
                return self
                    .visitor
                    .submodule(&self.path, &entry.id)
                    .map_err(Error::Write);
            }
            ignored = ignored || self.is_ignored(true);
            if ignored && !self.tracks_inside(base) {
                return Ok(());
            }
        }
        if self.frames.len() > self.walk.limits.depth {
            return Err(self.limit("folders inside one another", self.walk.limits.depth as u64));
        }
        let Some(frame) = self.frames.last() else {
            return Ok(());
        };
        let dir = match open_folder(&frame.dir, name) {
            Ok(dir) => dir,
            Err(e) => return Err(self.read(e)),
        };
        let stat = rustix::fs::fstat(&dir).map_err(|e| self.read(e.into()))?;
        if stat.st_dev != self.walk.identity.dev {
            self.skip("another file system is mounted there");
            return Ok(());
        }
        self.path.push(b'/');
        self.enter(dir, ignored)
    }

    fn enter(&mut self, dir: OwnedFd, ignored: bool) -> Result<(), Error> {
        let mut names = Vec::new();
        let mut listing = Dir::read_from(&dir).map_err(|e| self.read(e.into()))?;
        while let Some(entry) = listing.read() {
            let entry = entry.map_err(|e| self.read(e.into()))?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..") {
                names.push(name.to_owned());
            }
            if names.len() as u64 > self.walk.limits.files {
                return Err(self.limit("files", self.walk.limits.files));
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        let rules = match self.walk.base {
            Some(_) if !ignored => self.rules(&dir),
            _ => None,
        };
        self.frames.push(Frame {
            dir,
            names,
            prefix: self.path.len(),
            rules,
            ignored,
        });
        Ok(())
    }

    fn file(&mut self, name: &CStr) -> Result<(), Error> {
        let Some(frame) = self.frames.last() else {
            return Ok(());
        };
        let (file, stat) = match open_file(&frame.dir, name) {
            Ok(Some(opened)) => opened,
            Ok(None) => {
                self.skip("it is not a regular file");
                return Ok(());
            }
            Err(e) => return Err(self.read(e)),
        };
        if stat.st_dev != self.walk.identity.dev {
            self.skip("another file system is mounted there");
            return Ok(());
        }
        if self.walk.owner.is_some_and(|owner| owner.uid != stat.st_uid) {
            self.skip("it belongs to another user");
            return Ok(());
        }
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        if size > self.walk.limits.file_bytes {
            return Err(self.limit("bytes in one file", self.walk.limits.file_bytes));
        }
        self.count(size)?;
        let executable = stat.st_mode & 0o100 != 0;
        let mut content = Exactly {
            hash: Sha256::new(),
            left: size,
            file,
        };
        let result = self.visitor.file(&self.path, executable, size, &mut content);
        result.map_err(|e| {
            if e.kind() == io::ErrorKind::UnexpectedEof {
                self.read(e)
            } else {
                Error::Write(e)
            }
        })?;
        let digest = content.hash.finalize();
        self.hash_entry(if executable { "100755" } else { "100644" }, &digest);
        Ok(())
    }

    fn link(&mut self, name: &CStr) -> Result<(), Error> {
        let Some(frame) = self.frames.last() else {
            return Ok(());
        };
        let target = rustix::fs::readlinkat(&frame.dir, name, Vec::new())
            .map_err(|e| self.read(e.into()))?
            .into_bytes();
        self.count(target.len() as u64)?;
        self.visitor.link(&self.path, &target).map_err(Error::Write)?;
        let digest = Sha256::digest(&target);
        self.hash_entry("120000", &digest);
        Ok(())
    }

    fn count(&mut self, size: u64) -> Result<(), Error> {
        self.seen.files += 1;
        self.seen.bytes += size;
        if self.seen.files > self.walk.limits.files {
            return Err(self.limit("files", self.walk.limits.files));
        }
        if self.seen.bytes > self.walk.limits.total_bytes {
            return Err(self.limit("bytes", self.walk.limits.total_bytes));
        }
        Ok(())
    }

    /// Adds an entry to the digest of the tree.
    fn hash_entry(&mut self, mode: &str, content: &[u8]) {
        self.hash.update(mode.as_bytes());
        for field in [self.path.as_slice(), content] {
            self.hash.update((field.len() as u64).to_be_bytes());
            self.hash.update(field);
        }
    }

    /// The rules of a folder's `.gitignore`, if it is a plain file of sensible size.
    fn rules(&self, dir: &OwnedFd) -> Option<Gitignore> {
        let (file, stat) = open_file(dir, c".gitignore").ok()??;
        if self.walk.owner.is_some_and(|owner| owner.uid != stat.st_uid) {
            return None;
        }
        let mut bytes = Vec::new();
        file.take(MAX_IGNORE_FILE).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut builder = GitignoreBuilder::new("");
        for line in text.trim_start_matches('\u{feff}').lines() {
            // Git ignores a pattern that it cannot understand, too.
            drop(builder.add_line(None, line));
        }
        builder.build().ok()
    }

    /// Whether the current path is ignored by the rules of the folders above it, the nearest first.
    fn is_ignored(&self, is_dir: bool) -> bool {
        for frame in self.frames.iter().rev() {
            let Some(rules) = &frame.rules else {
                continue;
            };
            let relative = Path::new(OsStr::from_bytes(&self.path[frame.prefix..]));
            match rules.matched(relative, is_dir) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
        }
        false
    }

    fn tracks_inside(&self, base: &Base) -> bool {
        let mut prefix = self.path.clone();
        prefix.push(b'/');
        base.range(prefix.clone()..)
            .next()
            .is_some_and(|(path, _)| path.starts_with(&prefix))
    }

    fn skip(&mut self, why: &str) {
        if self.seen.skipped.len() < MAX_SKIPPED {
            self.seen.skipped.push(Skipped {
                path: display(&self.path),
                why: why.to_owned(),
            });
        }
    }

    fn limit(&self, what: &'static str, limit: u64) -> Error {
        Error::Limit {
            what,
            limit,
            path: display(&self.path),
        }
    }

    fn read(&self, source: io::Error) -> Error {
        Error::Read {
            path: display(&self.path),
            source,
        }
    }
}

/// Opens `name` if it is a regular file; never waits, never follows.
pub(super) fn open_file(dir: &OwnedFd, name: &CStr) -> io::Result<Option<(File, Stat)>> {
    let is_file = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if !is_file(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            // Its owner took the right to read away; nobody is left whom giving it back could disturb.
            let path_flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let handle = rustix::fs::openat(dir, name, path_flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&handle)?;
            if !is_file(&stat) {
                return Ok(None);
            }
            let mode = Mode::from_raw_mode(stat.st_mode & 0o777) | Mode::RUSR;
            rustix::fs::chmod(format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd()), mode)?;
            rustix::fs::openat(dir, name, flags, Mode::empty())?
        }
        other => other?,
    };
    let stat = rustix::fs::fstat(&opened)?;
    Ok(is_file(&stat).then(|| (File::from(opened), stat)))
}

/// Reads exactly as many bytes as the file had when it was opened, and hashes them.
struct Exactly {
    file: File,
    left: u64,
    hash: Sha256,
}

impl Read for Exactly {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        let want = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let n = self.file.read(&mut buffer[..want])?;
        if n == 0 && want > 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the file became shorter while it was read",
            ));
        }
        self.left -= n as u64;
        self.hash.update(&buffer[..n]);
        Ok(n)
    }
}

/// Passes on what is written, and hashes it.
pub(super) struct Hashing<W> {
    to: W,
    hash: Sha256,
}

impl<W: Write> Hashing<W> {
    pub(super) fn new(to: W) -> Self {
        Self {
            to,
            hash: Sha256::new(),
        }
    }

    pub(super) fn digest(self) -> String {
        format!("sha256:{}", hex::encode(self.hash.finalize()))
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.to.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
