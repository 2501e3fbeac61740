//! The private clone.
//!
//! Its own git folder, one branch, no remote, no hooks. Where agents run as another user, the mirror's objects are
//! borrowed, and file permissions keep them from being written. Where an agent runs as ourselves nothing would, and the
//! mirror is what `restore` and every other task trust: there the clone gets copies, and the agent never needs the mirror. Files are byte for byte what
//! the commit holds: line endings, encodings, `$Id$` and filters (large-file pointers too) are left alone here, in the
//! agent's own git and in every extraction, so that what is checked is what was written.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Error;
use super::disk::io_error;
use crate::git::mirror::Mirror;
use crate::git::{Git, Ids, Repo};

/// Attributes that outrank every `.gitattributes`: nothing is converted, no driver is named.
pub(crate) const ATTRIBUTES: &str = "* -text -eol -crlf -ident -filter -working-tree-encoding !diff !merge\n";

/// Makes the clone in the empty folder `tree`, which only we can reach so far.
pub(super) async fn make(
    git: &Git,
    mirror: &Mirror,
    format: &str,
    commit: &str,
    branch: &str,
    tree: &Path,
    agent: Option<Ids>,
) -> Result<(), Error> {
    git.call("init")
        .args(["--quiet", "--template="])
        .arg(format!("--object-format={format}"))
        .arg(format!("--initial-branch={branch}"))
        .arg(tree)
        .run()
        .await?;
    let repo = Repo {
        git_dir: tree.join(".git"),
        user: None,
    };
    neutralise(&repo.git_dir)?;
    match agent {
        Some(_) => borrow(&repo.git_dir, &mirror.objects())?,
        None => copy(&mirror.objects(), &repo.git_dir.join("objects")).await?,
    }
    for (name, value) in [("user.name", "Panda"), ("user.email", "panda@localhost")] {
        repo.call(git, "config").args([name, value]).run().await?;
    }
    repo.call(git, "update-ref")
        .args(["--no-deref", &format!("refs/heads/{branch}"), commit])
        .run()
        .await?;
    repo.call(git, "read-tree")
        .work_tree(tree)
        .cwd(tree)
        .args(["-m", "-u", commit])
        .run()
        .await?;
    Ok(())
}

/// Turns conversions off in a repository of ours.
pub(crate) fn neutralise(git_dir: &Path) -> Result<(), Error> {
    write(&git_dir.join("info/attributes"), ATTRIBUTES.as_bytes())
}

/// Lets a repository of ours read `objects` as its own.
pub(crate) fn borrow(git_dir: &Path, objects: &Path) -> Result<(), Error> {
    let mut line = objects.as_os_str().as_bytes().to_vec();
    line.push(b'\n');
    write(&git_dir.join("objects/info/alternates"), &line)
}

/// Copies the packs of a mirror, which holds nothing else; a file system that can shares their blocks.
async fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let (from, to) = (from.join("pack"), to.join("pack"));
    let failed = io_error("copying to", &to);
    let target = to.clone();
    tokio::task::spawn_blocking(move || {
        fs::create_dir_all(&target)?;
        for entry in fs::read_dir(&from)? {
            let index = entry?.path();
            // A pack counts once its index is there; one that is just arriving is not needed.
            if index.extension().is_some_and(|extension| extension == "idx") {
                for extension in ["pack", "idx"] {
                    let file = index.with_extension(extension);
                    fs::copy(&file, target.join(file.file_name().unwrap_or_default()))?;
                }
            }
        }
        Ok(())
    })
    .await
    .map_err(io::Error::other)
    .flatten()
    .map_err(failed)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io_error("making", parent))?;
    }
    fs::write(path, bytes).map_err(io_error("writing", path))
}
