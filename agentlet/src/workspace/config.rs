//! Where workspaces live, and their bounds.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::Clock;

use crate::git::Ids;

/// Where workspaces live and what they may cost.
#[derive(Clone, Debug)]
pub struct Config {
    /// Records, snapshots and results; no agent can write here.
    pub state_dir: PathBuf,
    /// Mirrors; agents read their objects.
    pub mirrors_dir: PathBuf,
    /// Folders that agents work in.
    pub work_dir: PathBuf,
    /// Folders whose repositories may be used.
    pub workspace_roots: Vec<PathBuf>,
    /// The git program, an absolute path.
    pub git: PathBuf,
    /// The user that agents run as; `None`: the same as ours.
    pub agent: Option<Ids>,
    /// Bounds.
    pub limits: Limits,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// Bounds of workspaces and of what is taken out of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Deadline of one git call.
    pub git_timeout: Duration,
    /// Bytes that one git call may print into memory.
    pub git_output: u64,
    /// Bytes of one transfer between repositories.
    pub transfer_bytes: u64,
    /// Files in a snapshot.
    pub files: u64,
    /// Bytes of one file in a snapshot.
    pub file_bytes: u64,
    /// Bytes of a snapshot.
    pub total_bytes: u64,
    /// Folders inside one another.
    pub depth: usize,
    /// Bytes of a patch, and of a bundle.
    pub patch_bytes: u64,
    /// Bytes of one declared output.
    pub output_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            git_timeout: Duration::from_secs(600),
            git_output: 256 * MIB,
            transfer_bytes: 16 * 1024 * MIB,
            files: 500_000,
            file_bytes: 512 * MIB,
            total_bytes: 16 * 1024 * MIB,
            depth: 200,
            patch_bytes: 512 * MIB,
            output_bytes: 256 * MIB,
        }
    }
}
