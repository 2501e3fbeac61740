//! The snapshot of a git workspace: a commit on top of its base, made without git ever seeing the workspace.

use std::fs::{self, File};
use std::io::{self, BufWriter, PipeWriter, Read, Write};
use std::path::Path;

use super::path::display;
use super::walk::{Base, BaseEntry, Visitor, Walk};
use super::{Change, ChangeKind, Error, GitResult, Snapshot, Stamp, Stored, blob};
use crate::git::transfer::FSCK;
use crate::git::{self, Git, Repo, Sink};
use crate::workspace::{self, Workspace, Workspaces, clone};

/// Where the commit is kept in our repository.
const RESULT: &str = "refs/panda/result";
/// Bytes of a commit message.
const MAX_MESSAGE: usize = 4096;

pub(super) async fn take(
    workspaces: &Workspaces,
    workspace: &Workspace,
    dir: &Path,
    repository: &Path,
    branch: &str,
    stamp: &Stamp,
) -> Result<Snapshot, Error> {
    let git = &workspaces.git;
    let limits = workspaces.config.limits;
    let record = &workspace.record;
    let (Some(base), Some(mirror), Some(identity)) = (&record.base, &record.mirror, record.tree) else {
        return Err(workspace::Error::NotLent {
            run_uid: workspace.run_uid.clone(),
        }
        .into());
    };
    let repo = Repo {
        git_dir: dir.join("repo.git"),
        user: None,
    };
    git.call("init")
        .args(["--quiet", "--bare", "--template="])
        .arg(format!("--object-format={}", record.format))
        .arg(&repo.git_dir)
        .run()
        .await?;
    clone::neutralise(&repo.git_dir)?;
    clone::borrow(&repo.git_dir, &mirror.join("objects"))?;
    let entries = entries(git, &repo, base).await?;
    let (reader, writer) = io::pipe().map_err(Error::Write)?;
    let import = repo
        .call(git, "fast-import")
        .setting("fastimport.unpackLimit=0")
        .args(["--quiet", "--force", "--done", "--date-format=raw"])
        .input_pipe(reader)
        .run();
    let header = header(base, stamp);
    let tree = workspace.tree();
    let owner = workspaces.config.agent;
    let read = tokio::task::spawn_blocking(move || {
        let mut stream = Stream {
            to: BufWriter::with_capacity(1 << 16, writer),
        };
        stream.to.write_all(&header).map_err(Error::Write)?;
        let walk = Walk {
            identity,
            base: Some(&entries),
            owner,
            limits,
        };
        let seen = walk.run(&tree, &mut stream)?;
        stream.to.write_all(b"done\n").map_err(Error::Write)?;
        stream.to.flush().map_err(Error::Write)?;
        Ok(seen)
    });
    let (imported, read) = tokio::join!(import, read);
    let read = read.map_err(|e| Error::Write(io::Error::other(e))).flatten();
    let seen = match (imported, read) {
        // A reader that went away is only a consequence.
        (Err(e), Err(Error::Write(w))) if w.kind() == io::ErrorKind::BrokenPipe => return Err(e.into()),
        (_, Err(e)) => return Err(e),
        (Err(e), Ok(_)) => return Err(e.into()),
        (Ok(_), Ok(seen)) => seen,
    };
    check(git, &repo).await?;
    let mut commit = id_of(git, &repo, &format!("{RESULT}^{{commit}}")).await?;
    let result_tree = id_of(git, &repo, &format!("{commit}^{{tree}}")).await?;
    if result_tree == id_of(git, &repo, &format!("{base}^{{tree}}")).await? {
        commit.clone_from(base);
    }
    let changes = changes(git, &repo, base, &commit).await?;
    let diffstat = repo
        .call(git, "diff")
        .args(["--shortstat", "--no-renames", "--no-ext-diff", "--no-textconv"])
        .args([base, &commit])
        .line()
        .await?
        .trim()
        .to_owned();
    let patch = dir.join("patch");
    repo.call(git, "diff")
        .args([
            "--binary",
            "--full-index",
            "--no-color",
            "--no-renames",
            "--no-ext-diff",
            "--no-textconv",
            "--src-prefix=a/",
            "--dst-prefix=b/",
        ])
        .args([base, &commit])
        .run_into(sink(&patch, limits.patch_bytes)?)
        .await
        .map_err(|e| too_large(e, "bytes of patch", limits.patch_bytes))?;
    let bundle = if commit == *base {
        None
    } else {
        let path = dir.join("bundle");
        let reference = format!("refs/heads/{branch}");
        repo.call(git, "update-ref")
            .args(["--no-deref", &reference, &commit])
            .run()
            .await?;
        repo.call(git, "bundle")
            .args(["create", "--quiet", "-", &reference, &format!("^{base}")])
            .run_into(sink(&path, limits.patch_bytes)?)
            .await
            .map_err(|e| too_large(e, "bytes of bundle", limits.patch_bytes))?;
        Some(blob(&path).await?)
    };
    Ok(Snapshot {
        run_uid: workspace.run_uid.clone(),
        digest: seen.digest,
        files: seen.files,
        bytes: seen.bytes,
        changes,
        diffstat,
        skipped: seen.skipped,
        store: Stored::Git(GitResult {
            base: base.clone(),
            commit,
            tree: result_tree,
            branch: branch.to_owned(),
            repository: repository.to_owned(),
            patch: blob(&patch).await?,
            bundle,
            git_dir: repo.git_dir,
        }),
    })
}

/// What a commit tracks.
pub(crate) async fn entries(git: &Git, repo: &Repo, commit: &str) -> Result<Base, git::Error> {
    let out = repo
        .call(git, "ls-tree")
        .args(["-r", "-z", "--full-tree", commit])
        .run()
        .await?;
    let mut entries = Base::new();
    for line in out.split(|b| *b == 0).filter(|line| !line.is_empty()) {
        // `<mode> <type> <id>\t<path>`
        let parsed = line
            .iter()
            .position(|b| *b == b'\t')
            .and_then(|tab| Some((std::str::from_utf8(&line[..tab]).ok()?, &line[tab + 1..])))
            .and_then(|(meta, path)| {
                let mut fields = meta.split(' ');
                let (mode, _kind, id) = (fields.next()?, fields.next()?, fields.next()?);
                Some((path, mode.to_owned(), id.to_owned()))
            });
        let Some((path, mode, id)) = parsed else {
            return Err(git::Error::Unexpected {
                command: "ls-tree".to_owned(),
                detail: display(line),
            });
        };
        entries.insert(path.to_owned(), BaseEntry { mode, id });
    }
    Ok(entries)
}

/// Lets git check the new objects as strictly as if a stranger had sent them.
async fn check(git: &Git, repo: &Repo) -> Result<(), Error> {
    let packs = repo.git_dir.join("objects/pack");
    let index = repo.git_dir.join("check.idx");
    for entry in fs::read_dir(&packs).map_err(Error::Write)? {
        let pack = entry.map_err(Error::Write)?.path();
        if pack.extension().is_some_and(|extension| extension == "pack") {
            repo.call(git, "index-pack")
                .args([FSCK, "--no-rev-index"])
                .arg("-o")
                .arg(&index)
                .arg(&pack)
                .run()
                .await
                .map_err(|e| match e {
                    git::Error::Failed { stderr, .. } => Error::Unsafe { detail: stderr },
                    e => e.into(),
                })?;
            workspace::disk::remove_file(&index)?;
        }
    }
    Ok(())
}

async fn id_of(git: &Git, repo: &Repo, name: &str) -> Result<String, git::Error> {
    repo.call(git, "rev-parse")
        .args(["--verify", "--end-of-options", name])
        .line()
        .await
}

async fn changes(git: &Git, repo: &Repo, base: &str, commit: &str) -> Result<Vec<Change>, git::Error> {
    let out = repo
        .call(git, "diff-tree")
        .args(["-r", "-z", "--no-renames", "--name-status", base, commit])
        .run()
        .await?;
    let mut fields = out.split(|b| *b == 0);
    let mut changes = Vec::new();
    while let (Some(status), Some(path)) = (fields.next(), fields.next()) {
        let kind = match status {
            b"A" => ChangeKind::Added,
            b"D" => ChangeKind::Deleted,
            _ => ChangeKind::Modified,
        };
        changes.push(Change {
            path: display(path),
            kind,
        });
    }
    Ok(changes)
}

fn sink(path: &Path, limit: u64) -> Result<Sink, Error> {
    let file = File::create(path).map_err(Error::Write)?;
    Ok(Sink::File { file, limit })
}

fn too_large(error: git::Error, what: &'static str, limit: u64) -> Error {
    match error {
        git::Error::TooMuch { .. } => Error::Limit {
            what,
            limit,
            path: ".".to_owned(),
        },
        error => error.into(),
    }
}

fn header(base: &str, stamp: &Stamp) -> Vec<u8> {
    let mut message: String = stamp
        .message
        .chars()
        .filter(|c| *c == '\n' || !c.is_control())
        .collect();
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    let mut out = format!(
        "feature done\ncommit {RESULT}\ncommitter {name} <{email}> {seconds} +0000\ndata {size}\n",
        name = git::IDENTITY_NAME,
        email = git::IDENTITY_EMAIL,
        seconds = stamp.seconds.max(0),
        size = message.len(),
    );
    out.push_str(&message);
    out.push_str(&format!("\nfrom {base}\ndeleteall\n"));
    out.into_bytes()
}

/// The stream that fast-import reads.
struct Stream {
    to: BufWriter<PipeWriter>,
}

impl Stream {
    fn inline(&mut self, mode: &str, path: &[u8], size: u64) -> io::Result<()> {
        write!(self.to, "M {mode} inline ")?;
        quote(&mut self.to, path)?;
        write!(self.to, "\ndata {size}\n")
    }
}

impl Visitor for Stream {
    fn file(&mut self, path: &[u8], executable: bool, size: u64, content: &mut dyn Read) -> io::Result<()> {
        self.inline(if executable { "100755" } else { "100644" }, path, size)?;
        io::copy(content, &mut self.to)?;
        self.to.write_all(b"\n")
    }

    fn link(&mut self, path: &[u8], target: &[u8]) -> io::Result<()> {
        self.inline("120000", path, target.len() as u64)?;
        self.to.write_all(target)?;
        self.to.write_all(b"\n")
    }

    fn submodule(&mut self, path: &[u8], id: &str) -> io::Result<()> {
        write!(self.to, "M 160000 {id} ")?;
        quote(&mut self.to, path)?;
        self.to.write_all(b"\n")
    }
}

/// Writes a path so that none of its bytes has a meaning.
fn quote(to: &mut impl Write, path: &[u8]) -> io::Result<()> {
    to.write_all(b"\"")?;
    for byte in path {
        match byte {
            b'"' | b'\\' | 0..=0x1f | 0x7f => write!(to, "\\{byte:03o}")?,
            _ => to.write_all(&[*byte])?,
        }
    }
    to.write_all(b"\"")
}
