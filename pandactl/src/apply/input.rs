//! Files, folders and standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

use panda_api::manifest::{self, Document, Errors};

use crate::error::{Error, Result};
use crate::io::Io;

/// Deepest nesting of folders with `-R`.
const MAX_DEPTH: usize = 32;
/// Most files of one command.
const MAX_FILES: usize = 10_000;

/// What the files hold.
#[derive(Debug, Default)]
pub struct Sources {
    /// The objects, in order.
    pub documents: Vec<Document>,
    /// What cannot be read, a file at a time.
    pub errors: Vec<Errors>,
}

/// Reads what `-f` names.
///
/// # Errors
/// When a file is not there or cannot be read at all.
pub fn read(io: &mut Io, sources: &[String], recursive: bool) -> Result<Sources> {
    let mut out = Sources::default();
    let mut stdin_used = false;
    for source in sources {
        if source == "-" {
            if stdin_used {
                return Err(Error::user("standard input can be read once only").hint("give `-f -` once"));
            }
            stdin_used = true;
            let mut bytes = Vec::new();
            let limit = manifest::MAX_FILE_BYTES as u64 + 1;
            (&mut io.stdin)
                .take(limit)
                .read_to_end(&mut bytes)
                .map_err(|error| {
                    Error::user(format!("cannot read standard input: {error}"))
                        .hint("name a file instead of -")
                })?;
            out.add("standard input", &bytes);
            continue;
        }
        if source.starts_with("http://") || source.starts_with("https://") {
            return Err(
                Error::user(format!("{source}: manifests are not fetched from the network")).hint(format!(
                    "look at it first: `curl -fsSL {source} -o manifest.yaml`, then apply the file"
                )),
            );
        }
        let path = io.env.cwd.join(source);
        let shown = PathBuf::from(source);
        let kind = std::fs::metadata(&path).map_err(|error| Error::file("read", &shown, &error))?;
        let files = if kind.is_dir() {
            let mut files = Vec::new();
            folder(&path, &shown, recursive, 0, &mut files)?;
            if files.is_empty() {
                return Err(Error::user(format!("no manifests in {}", shown.display()))
                    .hint("files must end in .yaml, .yml or .json; -R looks into the folders below, too"));
            }
            files
        } else {
            vec![(path, shown)]
        };
        for (path, shown) in files {
            let bytes = read_file(&path).map_err(|error| Error::file("read", &shown, &error))?;
            out.add(&shown.display().to_string(), &bytes);
        }
    }
    Ok(out)
}

/// Reads a file up to its bound; the reader of manifests says what is wrong with more.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(manifest::MAX_FILE_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl Sources {
    /// Adds what a file holds; `name` is what messages call it.
    pub fn add(&mut self, name: &str, bytes: &[u8]) {
        let read = manifest::read(name, bytes);
        self.documents.extend(read.documents);
        if !read.errors.is_empty() {
            self.errors.push(read.errors);
        }
    }
}

fn folder(
    path: &Path,
    shown: &Path,
    recursive: bool,
    depth: usize,
    files: &mut Vec<(PathBuf, PathBuf)>,
) -> Result<()> {
    let fail = |error: std::io::Error| Error::file("read", shown, &error);
    let mut names: Vec<_> = std::fs::read_dir(path)
        .and_then(|entries| {
            entries
                .map(|entry| entry.map(|entry| entry.file_name()))
                .collect()
        })
        .map_err(fail)?;
    names.sort();
    for name in names {
        let (inner, shown) = (path.join(&name), shown.join(&name));
        let Ok(kind) = std::fs::metadata(&inner) else {
            continue;
        };
        if kind.is_dir() {
            if recursive && depth < MAX_DEPTH {
                folder(&inner, &shown, recursive, depth + 1, files)?;
            }
        } else if inner
            .extension()
            .and_then(|e| e.to_str())
            .is_some_and(|e| matches!(e, "yaml" | "yml" | "json"))
        {
            if files.len() >= MAX_FILES {
                return Err(
                    Error::user(format!("more than {MAX_FILES} files")).hint("apply the folders one by one")
                );
            }
            files.push((inner, shown));
        }
    }
    Ok(())
}
