//! The private clone.
//!
//! Its own git folder, with the mirror's objects borrowed, one branch, no remote, no hooks. Files are byte for byte what
//! the commit holds: line endings, encodings, `$Id$` and filters (large-file pointers too) are left alone here, in the
//! agent's own git and in every extraction, so that what is checked is what was written.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::Error;
use super::disk::io_error;
use crate::git::mirror::Mirror;
use crate::git::{Git, Repo};

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
    borrow(&repo.git_dir, &mirror.objects())?;
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

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(io_error("making", parent))?;
    }
    fs::write(path, bytes).map_err(io_error("writing", path))
}
