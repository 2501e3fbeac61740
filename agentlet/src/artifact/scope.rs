//! Globs over paths of a workspace.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use super::{Error, Snapshot, parse};

/// Compiled globs: `*` stays within a folder, `**` does not.
#[derive(Clone, Debug)]
pub struct Globs(GlobSet);

impl Globs {
    /// Compiles them.
    pub fn new<S: AsRef<str>>(globs: &[S]) -> Result<Self, Error> {
        let mut set = GlobSetBuilder::new();
        for glob in globs {
            let glob = glob.as_ref();
            let error = |e: globset::Error| Error::Glob {
                glob: glob.to_owned(),
                detail: e.kind().to_string(),
            };
            let compiled = GlobBuilder::new(glob.strip_prefix("./").unwrap_or(glob))
                .literal_separator(true)
                .backslash_escape(true)
                .build()
                .map_err(error)?;
            set.add(compiled);
        }
        set.build().map(Self).map_err(|e| Error::Glob {
            glob: e.glob().unwrap_or_default().to_owned(),
            detail: e.kind().to_string(),
        })
    }

    /// Whether one of them matches `path`.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        self.0.is_match(Path::new(OsStr::from_bytes(path)))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Changed paths outside of `spec.workspace.writes`; without globs everything may be written.
#[must_use]
pub fn violations(snapshot: &Snapshot, writes: &Globs) -> Vec<String> {
    if writes.is_empty() {
        return Vec::new();
    }
    snapshot
        .changes
        .iter()
        .filter(|change| parse(&change.path).is_none_or(|path| !writes.matches(&path)))
        .map(|change| change.path.clone())
        .collect()
}
