//! The snapshot of a workspace without git: one file that holds them all.
//!
//! `PANDA-TREE 1\n`, then for each entry in the walk's order `<f|x|l> <path length> <content length>\n`, the path, the
//! content; `end\n` at last. The same tree gives the same bytes. Reading checks everything again: the archive is ours,
//! but it may have been cut short, and a path may never leave the folder that it is unpacked into.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::path::{display, is_git_folder, parts};
use super::walk::{Visitor, Walk};
use super::{Change, ChangeKind, Error, Globs, Snapshot, Stored, blob};
use crate::workspace::{self, Workspace, Workspaces};

const MAGIC: &[u8] = b"PANDA-TREE 1\n";
/// Bytes of a path or a link's target.
const MAX_NAME: u64 = 4096;

pub(super) async fn take(
    workspaces: &Workspaces,
    workspace: &Workspace,
    dir: &Path,
) -> Result<Snapshot, Error> {
    let Some(identity) = workspace.record.tree else {
        return Err(workspace::Error::NotLent {
            run_uid: workspace.run_uid.clone(),
        }
        .into());
    };
    let path = dir.join("tree");
    let (tree, owner, limits) = (
        workspace.tree(),
        workspaces.config.agent,
        workspaces.config.limits,
    );
    let target = path.clone();
    let (seen, changes) = tokio::task::spawn_blocking(move || {
        let mut writer = Writer {
            to: BufWriter::new(File::create(&target).map_err(Error::Write)?),
            changes: Vec::new(),
        };
        writer.to.write_all(MAGIC).map_err(Error::Write)?;
        let walk = Walk {
            identity,
            base: None,
            owner,
            limits,
        };
        let seen = walk.run(&tree, &mut writer)?;
        writer.to.write_all(b"end\n").map_err(Error::Write)?;
        let file = writer.to.into_inner().map_err(|e| Error::Write(e.into_error()))?;
        file.sync_all().map_err(Error::Write)?;
        Ok::<_, Error>((seen, writer.changes))
    })
    .await
    .map_err(|e| Error::Write(io::Error::other(e)))
    .flatten()?;
    let diffstat = match changes.len() {
        0 => String::new(),
        1 => "1 file changed".to_owned(),
        n => format!("{n} files changed"),
    };
    Ok(Snapshot {
        run_uid: workspace.run_uid.clone(),
        digest: seen.digest,
        files: seen.files,
        bytes: seen.bytes,
        changes,
        diffstat,
        skipped: seen.skipped,
        store: Stored::Archive {
            archive: blob(&path).await?,
        },
    })
}

struct Writer {
    to: BufWriter<File>,
    /// The workspace started empty, so that everything in it is new.
    changes: Vec<Change>,
}

impl Writer {
    fn entry(&mut self, kind: char, path: &[u8], size: u64) -> io::Result<()> {
        self.changes.push(Change {
            path: display(path),
            kind: ChangeKind::Added,
        });
        writeln!(self.to, "{kind} {} {size}", path.len())?;
        self.to.write_all(path)
    }
}

impl Visitor for Writer {
    fn file(&mut self, path: &[u8], executable: bool, size: u64, content: &mut dyn Read) -> io::Result<()> {
        self.entry(if executable { 'x' } else { 'f' }, path, size)?;
        io::copy(content, &mut self.to).map(drop)
    }

    fn link(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        self.entry('l', path, target.len() as u64)?;
        self.to.write_all(target)
    }

    fn submodule(&mut self, _path: &[u8], _id: &str) -> io::Result<()> {
        Err(io::Error::other("a tree without git has no submodules"))
    }
}

/// Unpacks an archive into the empty folder `to`, without the paths that `leave_out` matches. Blocks.
pub(crate) fn unpack(archive: &Path, to: &Path, leave_out: &Globs) -> io::Result<()> {
    let mut from = BufReader::new(File::open(archive)?);
    let mut magic = [0; MAGIC.len()];
    from.read_exact(&mut magic)?;
    if magic != MAGIC {
        return Err(bad("not an archive of a tree"));
    }
    let top: OwnedFd = rustix::fs::openat(CWD, to, DIR_FLAGS, Mode::empty())?;
    loop {
        let mut line = Vec::new();
        (&mut from).take(64).read_until(b'\n', &mut line)?;
        if line == b"end\n" {
            return Ok(());
        }
        let (kind, path_size, size) = header(&line).ok_or_else(|| bad("a header is damaged"))?;
        if path_size > MAX_NAME || (kind == b'l' && size > MAX_NAME) {
            return Err(bad("a name is too long"));
        }
        let path = read_bytes(&mut from, path_size)?;
        let parts = parts(&path).ok_or_else(|| bad("a path leaves the tree"))?;
        if parts.iter().any(|part| is_git_folder(part)) {
            return Err(bad("a path is named like a git folder"));
        }
        let mut content = (&mut from).take(size);
        if leave_out.matches(&path) {
            io::copy(&mut content, &mut io::sink())?;
        } else {
            place(&top, &parts, kind, &mut content)?;
        }
        if content.limit() != 0 {
            return Err(bad("it ends in the middle of a file"));
        }
    }
}

fn place(top: &OwnedFd, parts: &[&[u8]], kind: u8, content: &mut dyn Read) -> io::Result<()> {
    let Some((name, folders)) = parts.split_last() else {
        return Err(bad("a path is empty"));
    };
    let mut dir = rustix::io::dup(top)?;
    for folder in folders {
        let folder = CString::new(*folder)?;
        match rustix::fs::mkdirat(&dir, &folder, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        dir = rustix::fs::openat(&dir, &folder, DIR_FLAGS, Mode::empty())?;
    }
    let name = CString::new(*name)?;
    if kind == b'l' {
        let mut target = Vec::new();
        content.read_to_end(&mut target)?;
        return Ok(rustix::fs::symlinkat(CString::new(target)?, &dir, &name)?);
    }
    let mode = if kind == b'x' { 0o755 } else { 0o644 };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(&dir, &name, flags, Mode::from_raw_mode(mode))?);
    io::copy(content, &mut file).map(drop)
}

const DIR_FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

fn header(line: &[u8]) -> Option<(u8, u64, u64)> {
    let text = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let mut fields = text.split(' ');
    let kind = match fields.next()? {
        "f" => b'f',
        "x" => b'x',
        "l" => b'l',
        _ => return None,
    };
    let path = fields.next()?.parse().ok()?;
    let size = fields.next()?.parse().ok()?;
    fields.next().is_none().then_some((kind, path, size))
}

fn read_bytes(from: &mut impl Read, size: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    from.take(size).read_to_end(&mut out)?;
    if out.len() as u64 == size {
        Ok(out)
    } else {
        Err(bad("it ends in the middle of a path"))
    }
}

fn bad(detail: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}
