//! What is wanted of the floor, and what it turned out to be.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A program to run on the floor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FloorSpec {
    /// Program and arguments. A name without a slash is looked up on the `PATH` of [`env`](Self::env).
    pub argv: Vec<String>,
    /// The whole environment; nothing of the caller's is kept.
    pub env: Vec<(String, String)>,
    /// Working directory.
    pub cwd: PathBuf,
    /// User to become. Required when the caller is root, refused otherwise.
    pub user: Option<User>,
    /// Paths that the program must not see, existing or not.
    pub hidden: Vec<PathBuf>,
    /// Paths beneath hidden ones that it may see all the same: its workspace, its home.
    pub visible: Vec<PathBuf>,
    /// Control group (version 2) to join first.
    pub cgroup: Option<PathBuf>,
    /// Whether the program is killed when the thread that started it ends. Only for callers whose starting thread
    /// lives as long as they do.
    pub die_with_parent: bool,
    /// Layers that are not tried: for hosts where one is known to do harm.
    pub without: Vec<Layer>,
}

/// A user that a root caller gives the program to. Supplementary groups are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// User id, not 0.
    pub uid: u32,
    /// Group id, not 0.
    pub gid: u32,
}

/// One wall of the floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Layer {
    /// Only the given environment, only the descriptors 0, 1 and 2, default signal handling.
    Environment,
    /// Own session without a controlling terminal.
    NoTerminal,
    /// Set-user-id programs and file capabilities have no effect.
    NoNewPrivileges,
    /// Another user than the agentlet's.
    User,
    /// Landlock hides paths.
    Landlock,
    /// Landlock keeps signals inside.
    SignalScope,
    /// Empty folders lie over hidden paths in a private mount namespace.
    MountNamespace,
    /// A control group holds the whole tree.
    Cgroup,
}

impl Layer {
    /// Stable name, as in status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::NoTerminal => "noTerminal",
            Self::NoNewPrivileges => "noNewPrivileges",
            Self::User => "user",
            Self::Landlock => "landlock",
            Self::SignalScope => "signalScope",
            Self::MountNamespace => "mountNamespace",
            Self::Cgroup => "cgroup",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How well a layer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Strength {
    /// The kernel enforces it.
    Hard,
    /// It holds against accidents.
    Soft,
    /// It is absent.
    None,
}

impl Strength {
    /// `hard`, `soft` or `none`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hard => "hard",
            Self::Soft => "soft",
            Self::None => "none",
        }
    }
}

/// What became of one layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Which.
    pub layer: Layer,
    /// How well it holds.
    pub strength: Strength,
    /// Why it is not hard, and what would help; empty otherwise.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// What was really enforced, layer by layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The layers, in the order of application.
    pub layers: Vec<LayerReport>,
}

impl Report {
    /// How well `layer` holds.
    #[must_use]
    pub fn strength(&self, layer: Layer) -> Strength {
        self.layers
            .iter()
            .find(|l| l.layer == layer)
            .map_or(Strength::None, |l| l.strength)
    }

    /// Whether everything that the floor consists of holds: one of the two ways of hiding is enough.
    #[must_use]
    pub fn holds(&self) -> bool {
        let hard = |layer| self.strength(layer) == Strength::Hard;
        hard(Layer::Environment)
            && hard(Layer::NoTerminal)
            && hard(Layer::NoNewPrivileges)
            && (hard(Layer::Landlock) || hard(Layer::MountNamespace))
    }

    pub(crate) fn add(&mut self, layer: Layer, strength: Strength, reason: impl Into<String>) {
        self.layers.push(LayerReport {
            layer,
            strength,
            reason: reason.into(),
        });
    }
}

/// Why a program did not start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum FloorError {
    /// The request makes no sense.
    #[error("invalid floor: {because}")]
    Invalid {
        /// What is wrong.
        because: String,
    },
    /// Root must name another user.
    #[error(
        "a root agentlet runs agents under another uid, and none was given; set agentUser in its configuration"
    )]
    RootWithoutUser,
    /// A layer that is always demanded could not be made.
    #[error("cannot make the {layer} layer: {because}")]
    Layer {
        /// Which.
        layer: Layer,
        /// What the kernel said.
        because: String,
    },
    /// Neither way of hiding works here.
    #[error(
        "cannot hide {path}: {because}; a kernel with Landlock (5.13 or later, lsm=landlock) or user namespaces is needed"
    )]
    CannotHide {
        /// The path that would stay in sight.
        path: PathBuf,
        /// What was tried.
        because: String,
    },
    /// The working directory cannot be entered.
    #[error("cannot enter {path} as the agent's user: {because}")]
    WorkingDirectory {
        /// The directory.
        path: PathBuf,
        /// What the kernel said.
        because: String,
    },
    /// No such program.
    #[error("program {program:?} not found or not executable for the agent's user (PATH {path:?})")]
    ProgramNotFound {
        /// As it was named.
        program: String,
        /// Where it was looked for.
        path: String,
    },
    /// The program was found and could not be run.
    #[error("cannot run {program:?}: {because}")]
    Exec {
        /// As it was named.
        program: String,
        /// What the kernel said.
        because: String,
    },
}
