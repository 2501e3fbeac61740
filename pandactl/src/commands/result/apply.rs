//! `result --apply`: everything is checked before anything is touched.

use std::collections::BTreeSet;
use std::path::Path;

use crate::error::{Error, Result};
use crate::git;
use crate::output::text;
use crate::session::Session;

/// Files that a message names.
const SHOWN: usize = 10;

pub(super) async fn run(task: &str, folder: &Path, patch: &[u8], session: &mut Session<'_>) -> Result<()> {
    let top = git::top_level(folder).await?;
    let files = files(&top, patch).await?;
    let local = git::changed(&top).await?;
    let both: Vec<&Vec<u8>> = files.iter().filter(|file| touches(&local, file)).collect();
    if !both.is_empty() {
        return Err(Error::user(format!(
            "nothing was changed: {} of the result {} local changes: {}",
            if both.len() == 1 { "a file" } else { "files" },
            if both.len() == 1 { "has" } else { "have" },
            names(both.into_iter())
        ))
        .hint("commit or stash them first (`git stash`), then run the command again"));
    }
    let plain = git::call(
        &top,
        &["apply", "--check", "--whitespace=nowarn", "-"],
        Some(patch),
    )
    .await?;
    if plain.ok {
        let done = git::call(&top, &["apply", "--whitespace=nowarn", "-"], Some(patch)).await?;
        if !done.ok {
            return Err(Error::user(format!("git apply failed: {}", done.stderr))
                .hint("`git status` shows what it did"));
        }
    } else {
        three_way(task, &top, patch, &plain.stderr).await?;
    }
    let count = if files.len() == 1 {
        "1 file".to_owned()
    } else {
        format!("{} files", files.len())
    };
    session.out(format!(
        "changed {count} in {}; nothing is committed\n",
        text::line(&top.display().to_string())
    ))?;
    for file in files.iter().take(SHOWN * 4) {
        session.out(format!("  {}\n", text::line(&String::from_utf8_lossy(file))))?;
    }
    Ok(())
}

/// The repository has moved on: merges, but only when the merge is clean. It is tried in an index of its own first, so
/// that a conflict leaves no trace.
async fn three_way(task: &str, top: &Path, patch: &[u8], why: &str) -> Result<()> {
    let refused = |why: &str| {
        Error::user(format!("nothing was changed: the result does not fit this state of {}: {why}", top.display()))
            .hint(format!("work from its base commit (`pandactl describe task/{task}`), or merge by hand: `pandactl result task/{task} --patch | git apply --3way`"))
    };
    let scratch = tempfile::tempdir()
        .map_err(|error| Error::file("make a folder in", Path::new("the temporary folder"), &error))?;
    let index = scratch.path().join("index");
    let Some(index) = index.to_str() else {
        return Err(refused(why));
    };
    let read = git::call_with_index(top, index, &["read-tree", "HEAD"], None).await?;
    if !read.ok {
        return Err(refused(&read.stderr));
    }
    let tried = git::call_with_index(
        top,
        index,
        &["apply", "--cached", "--3way", "--whitespace=nowarn", "-"],
        Some(patch),
    )
    .await?;
    let unmerged = git::call_with_index(top, index, &["ls-files", "--unmerged", "-z"], None).await?;
    if !tried.ok || !unmerged.stdout.is_empty() {
        return Err(refused(why));
    }
    // The same change, as a patch against the files as they are now.
    let merged = git::call_with_index(
        top,
        index,
        &[
            "diff",
            "--cached",
            "--binary",
            "--no-ext-diff",
            "--no-textconv",
            "--no-renames",
            "HEAD",
        ],
        None,
    )
    .await?;
    if !merged.ok {
        return Err(refused(&merged.stderr));
    }
    for args in [
        &["apply", "--check", "--whitespace=nowarn", "-"][..],
        &["apply", "--whitespace=nowarn", "-"],
    ] {
        let step = git::call(top, args, Some(&merged.stdout)).await?;
        if !step.ok {
            return Err(refused(&step.stderr));
        }
    }
    Ok(())
}

/// The paths that a patch changes.
async fn files(top: &Path, patch: &[u8]) -> Result<BTreeSet<Vec<u8>>> {
    let listed = git::call(
        top,
        &["apply", "--numstat", "-z", "--whitespace=nowarn", "-"],
        Some(patch),
    )
    .await?;
    if !listed.ok {
        return Err(
            Error::user(format!("git cannot read the result's patch: {}", listed.stderr))
                .hint("see it with --patch"),
        );
    }
    let mut all = BTreeSet::new();
    let mut entries = listed.stdout.split(|&b| b == 0).filter(|entry| !entry.is_empty());
    while let Some(entry) = entries.next() {
        let path = entry.splitn(3, |&b| b == b'\t').nth(2).unwrap_or(entry);
        if path.is_empty() {
            // A rename: old and new name follow.
            all.extend(entries.next().map(<[u8]>::to_vec));
            all.extend(entries.next().map(<[u8]>::to_vec));
        } else {
            all.insert(path.to_vec());
        }
    }
    Ok(all)
}

/// Whether a local change is at a path, above it or below it (a file where the patch needs a folder).
fn touches(local: &BTreeSet<Vec<u8>>, file: &[u8]) -> bool {
    let below = |inner: &[u8], outer: &[u8]| {
        inner.len() > outer.len()
            && inner.starts_with(outer)
            && (outer.ends_with(b"/") || inner[outer.len()] == b'/')
    };
    local
        .iter()
        .any(|path| path == file || below(path, file) || below(file, path))
}

fn names<'a>(files: impl Iterator<Item = &'a Vec<u8>>) -> String {
    let all: Vec<String> = files
        .map(|file| text::line(&String::from_utf8_lossy(file)))
        .collect();
    if all.len() > SHOWN {
        format!("{} and {} more", all[..SHOWN].join(", "), all.len() - SHOWN)
    } else {
        all.join(", ")
    }
}
