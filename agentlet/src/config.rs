//! What an agentlet is told about its device and its owner's wishes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use panda_api::OwnerConfig;

use crate::daemon::Shutdown;

/// Configuration of an agentlet; nothing is read from the environment.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the Device.
    pub device_name: String,
    /// Uid of the Device: the fence that every report carries.
    pub device_uid: String,
    /// Private state: outbox, run folders, snapshots. No agent can see it.
    pub data_dir: PathBuf,
    /// Folders that agents work in; must be reachable by [`Config::agent_uid`].
    pub work_dir: PathBuf,
    /// `PATH` of agents and of their detection.
    pub path: String,
    /// The owner's environment, looked at for logins only: an Agent names variables, never gets them from here.
    pub env: BTreeMap<String, String>,
    /// The owner's home, looked at for login files.
    pub owner_home: Option<PathBuf>,
    /// What the owner allows.
    pub owner: OwnerConfig,
    /// Runs at one time.
    pub max_runs: u32,
    /// Labels that the device sets on itself, beside the standard ones.
    pub labels: BTreeMap<String, String>,
    /// User and group that agents run as; 0: the agentlet's own, which root may not do.
    pub agent_uid: u32,
    /// The git program, an absolute path.
    pub git: PathBuf,
    /// What agents must not see beside `data_dir`: the control plane's data, `~/.panda`.
    pub hidden: Vec<PathBuf>,
    /// Size of the outbox at most.
    pub outbox_bytes: u64,
    /// Space held back on the disk of `data_dir`, so that running work can still be finished when that is full.
    pub reserve_bytes: u64,
    /// Free disk below which no new runs are taken; at most 3 % of the disk.
    pub disk_pressure_bytes: u64,
    /// Time between renewals; a quarter of what the server's grants last, if absent.
    pub renew_every: Option<Duration>,
    /// The control plane starts another attempt so long after a grant's end (`lost.killGrace` there): everything of the
    /// run is to have ended by then.
    pub kill_grace: Duration,
    /// What becomes of live runs when the agentlet is told to stop.
    pub shutdown: Shutdown,
    /// Addresses of the control plane, in order: where runs with a token of their own get to the API.
    pub servers: Vec<String>,
    /// Its authority, PEM.
    pub ca_pem: String,
}

impl Config {
    /// A configuration with the usual values, for a device of this name and uid.
    #[must_use]
    pub fn new(device_name: impl Into<String>, device_uid: impl Into<String>, data_dir: PathBuf) -> Self {
        Self {
            device_name: device_name.into(),
            device_uid: device_uid.into(),
            work_dir: data_dir.join("work"),
            data_dir,
            path: "/usr/local/bin:/usr/bin:/bin".into(),
            env: BTreeMap::new(),
            owner_home: None,
            owner: OwnerConfig::default(),
            max_runs: 4,
            labels: BTreeMap::new(),
            agent_uid: 0,
            git: "/usr/bin/git".into(),
            hidden: Vec::new(),
            outbox_bytes: 64 << 20,
            reserve_bytes: 32 << 20,
            disk_pressure_bytes: 512 << 20,
            renew_every: None,
            kill_grace: Duration::from_secs(15),
            shutdown: Shutdown::KeepRuns,
            servers: Vec::new(),
            ca_pem: String::new(),
        }
    }

    /// Everything that agents must not see.
    pub(crate) fn all_hidden(&self) -> Vec<PathBuf> {
        let mut hidden = self.hidden.clone();
        hidden.push(self.data_dir.clone());
        // Other tasks' folders and the mirrors, from which checks are restored; what is a run's own is made visible.
        hidden.push(self.work_dir.clone());
        hidden
    }

    /// Bare mirrors, whose objects agents read.
    pub(crate) fn mirrors_dir(&self) -> PathBuf {
        self.work_dir.join("mirrors")
    }

    /// A folder with nothing in it.
    pub(crate) fn empty_dir(&self) -> PathBuf {
        self.work_dir.join("empty")
    }
}
