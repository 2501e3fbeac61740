//! The controllers' configuration file: a versioned object, unknown fields refused.

use std::path::PathBuf;

use panda_api::meta::Duration;
use panda_client::runtime::leader;
use serde::{Deserialize, Serialize};

use crate::{device, gitsource, manager};

/// The `kind` of the configuration.
pub const KIND: &str = "ControllersConfiguration";
/// Where the Lease of the leader is.
const LEASE_NAMESPACE: &str = "panda-system";
/// The Lease of the leader.
const LEASE: &str = "panda-controllers";

/// Configuration of the controllers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ControllersConfiguration {
    /// `config.panda.dev/v1alpha1`.
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Every object is looked at again after about so long.
    #[serde(default = "default_resync")]
    pub resync: Duration,
    /// Objects of one controller that are worked on at a time.
    #[serde(default = "default_workers")]
    pub workers: usize,
    /// When a run is taken away from a device that is out of reach.
    #[serde(default)]
    pub lost: device::Lost,
    /// How the repositories of GitSources are fetched.
    #[serde(default)]
    pub git_sources: GitSources,
    /// How one of several processes is chosen.
    #[serde(default)]
    pub leader_election: LeaderElection,
}

/// How the repositories of GitSources are fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GitSources {
    /// Folder for what is fetched, an absolute path; empty: GitSources are not worked on.
    pub work_dir: PathBuf,
    /// Folders below which `file://` repositories may lie, absolute paths; none: `file://` is refused. Whoever may make a
    /// GitSource can read the manifests there.
    pub file_roots: Vec<PathBuf>,
    /// Hosts, names or addresses, that may be reached though their address is not public.
    pub allowed_hosts: Vec<String>,
}

/// Times of the leader's Lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeaderElection {
    /// Without a renewal for this long, another process takes over. Whole seconds.
    pub lease_duration: Duration,
    /// Without a renewal for this long, the leader stops working.
    pub renew_deadline: Duration,
    /// Between tries.
    pub retry_period: Duration,
}

impl Default for LeaderElection {
    fn default() -> Self {
        let usual = leader::Config::new(LEASE_NAMESPACE, LEASE, String::new());
        Self {
            lease_duration: usual.lease_duration.into(),
            renew_deadline: usual.renew_deadline.into(),
            retry_period: usual.retry_period.into(),
        }
    }
}

fn default_resync() -> Duration {
    Duration::from_secs(600)
}

fn default_workers() -> usize {
    manager::Config::default().controller.workers
}

/// Why a configuration is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Error {
    /// Path of the field.
    pub field: &'static str,
    /// What is wrong, and what would be right.
    pub problem: &'static str,
}

impl ControllersConfiguration {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// When a number or a time makes no sense.
    pub fn validate(&self) -> Result<(), Error> {
        let fail = |field, problem| Err(Error { field, problem });
        if self.workers == 0 {
            return fail("workers", "must be at least 1");
        }
        if self.resync.get().is_zero() {
            return fail("resync", "must not be zero");
        }
        let sources = &self.git_sources;
        if !sources.work_dir.as_os_str().is_empty() && !sources.work_dir.is_absolute() {
            return fail("gitSources.workDir", "must be an absolute path");
        }
        if sources.file_roots.iter().any(|root| !root.is_absolute()) {
            return fail("gitSources.fileRoots", "must be absolute paths");
        }
        match self.election(String::new()).problem() {
            Some(problem) => fail("leaderElection", problem),
            None => Ok(()),
        }
    }

    /// How the controllers behave.
    #[must_use]
    pub fn manager(&self) -> manager::Config {
        let mut config = manager::Config {
            resync: Some(self.resync.get()),
            lost: self.lost.clone(),
            ..manager::Config::default()
        };
        config.controller.workers = self.workers;
        config
    }

    /// How repositories are fetched, by the git in one of the folders of `path` (as in `PATH`); `exe` is this program. None
    /// when they are not, or there is no git.
    #[must_use]
    pub fn git_sources(&self, path: &str, exe: Option<PathBuf>) -> Option<gitsource::Settings> {
        let sources = &self.git_sources;
        if sources.work_dir.as_os_str().is_empty() {
            return None;
        }
        let folders = path.split(':').filter(|folder| folder.starts_with('/'));
        let program = folders
            .map(|folder| PathBuf::from(folder).join("git"))
            .find(|program| program.is_file())?;
        Some(gitsource::Settings {
            exe,
            file_roots: sources.file_roots.clone(),
            allowed_hosts: sources.allowed_hosts.clone(),
            ..gitsource::Settings::new(program, path.to_owned(), sources.work_dir.clone())
        })
    }

    /// How one of several processes is chosen; `identity` is this one.
    #[must_use]
    pub fn election(&self, identity: String) -> leader::Config {
        let times = &self.leader_election;
        leader::Config {
            lease_duration: times.lease_duration.get(),
            renew_deadline: times.renew_deadline.get(),
            retry_period: times.retry_period.get(),
            ..leader::Config::new(LEASE_NAMESPACE, LEASE, identity)
        }
    }
}

#[cfg(test)]
mod tests {
    use panda_api::component;
    use serde_json::Map;

    use super::*;

    fn read(rest: &str) -> Result<ControllersConfiguration, String> {
        let text = format!("apiVersion: config.panda.dev/v1alpha1\nkind: ControllersConfiguration\n{rest}");
        let file = Some(("c.yaml", text.as_bytes()));
        component::read::<ControllersConfiguration>(KIND, file, Map::new()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_means_the_defaults() {
        let config = read("").unwrap();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.election("a".into()).lease_duration.as_secs(), 15);
        assert_eq!(config.manager().resync, manager::Config::default().resync);
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(
            read("leaderElection: {leaseDuraton: 15s}\n")
                .unwrap_err()
                .contains("leaseDuraton")
        );
        for (text, field) in [
            ("workers: 0\n", "workers"),
            ("resync: 0s\n", "resync"),
            ("leaderElection: {renewDeadline: 20s}\n", "leaderElection"),
            ("gitSources: {workDir: x}\n", "gitSources.workDir"),
            ("gitSources: {fileRoots: [x]}\n", "gitSources.fileRoots"),
        ] {
            assert_eq!(read(text).unwrap().validate().unwrap_err().field, field);
        }
    }
}
