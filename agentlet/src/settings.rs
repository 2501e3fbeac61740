//! The agentlet's configuration file: a versioned object, unknown fields refused, flags over it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use http::Uri;
use panda_api::OwnerConfig;
use panda_api::meta::Duration;
use serde::Deserialize;

use crate::config::Config;
use crate::credentials::Credentials;
use crate::places;

/// The `kind` of the configuration.
pub const KIND: &str = "AgentletConfiguration";
/// [`AgentletConfiguration::kill_grace`].
const KILL_GRACE: RangeInclusive<std::time::Duration> =
    std::time::Duration::from_secs(1)..=std::time::Duration::from_secs(600);
/// [`AgentletConfiguration::reserve_bytes`]: what the ends of a few runs need, and no disk's worth of it.
const RESERVE: RangeInclusive<u64> = (1 << 20)..=(16 << 30);
/// Most servers.
const MAX_SERVERS: usize = 16;

/// Configuration of an agentlet, as its owner writes it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentletConfiguration {
    /// `config.panda.dev/v1alpha1`.
    pub api_version: String,
    /// [`KIND`].
    pub kind: String,
    /// Addresses of the control plane (`https://host:port`), in the order in which they are tried. Absent: those that
    /// the device joined with.
    #[serde(default)]
    pub servers: Vec<String>,
    /// Name that the device joins under. Absent: the host's name.
    #[serde(default)]
    pub name: Option<String>,
    /// Private state. Absent: the usual place.
    #[serde(default)]
    pub data_dir: Option<PathBuf>,
    /// Where agents work. Absent: below the data folder, for root below `/var/lib/panda/work`.
    #[serde(default)]
    pub work_dir: Option<PathBuf>,
    /// What the owner allows.
    #[serde(default)]
    pub owner: Owner,
    /// Runs at one time. Absent: one a processor, at least 4.
    #[serde(default)]
    pub max_runs: Option<u32>,
    /// Labels that the device sets on itself.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Between renewals of its leases.
    #[serde(default)]
    pub renew_every: Option<Duration>,
    /// How long after the end of a grant everything of a run has ended; `lost.killGrace` of the controllers. Absent: 15 s.
    #[serde(default)]
    pub kill_grace: Option<Duration>,
    /// Bytes held back on the disk, so that running work can still be finished when it is full. Absent: 32 MiB.
    #[serde(default)]
    pub reserve_bytes: Option<u64>,
    /// Free bytes below which no new runs are taken; at most 3 % of the disk count. Absent: 512 MiB.
    #[serde(default)]
    pub disk_pressure_bytes: Option<u64>,
    /// User and group that agents run as; only root may name one. Absent: a number that nothing else uses, for root.
    #[serde(default, rename = "agentUID")]
    pub agent_uid: Option<u32>,
    /// `PATH` of agents. Absent: the agentlet's own.
    #[serde(default)]
    pub path: Option<String>,
    /// Folders and files that agents must not see, beside the agentlet's own.
    #[serde(default)]
    pub hidden: Vec<PathBuf>,
}

/// What the owner allows. Other than in [`OwnerConfig`], unknown fields are refused: a rule that is misspelt must not
/// allow more than was meant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Owner {
    /// Namespaces that it serves; `*` for all. Absent: all.
    #[serde(default)]
    pub namespaces: Option<Vec<String>>,
    /// Folders whose repositories may be used.
    #[serde(default)]
    pub workspace_roots: Vec<PathBuf>,
    /// Weakest profile that it accepts.
    #[serde(default)]
    pub min_sandbox: Option<panda_api::SandboxProfile>,
    /// Agents whose login files may be lent to runs.
    #[serde(default)]
    pub logins: Vec<String>,
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value makes no sense.
    #[error("{field}: {problem}")]
    Value {
        /// Path of the field.
        field: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A folder cannot be used.
    #[error("{field}")]
    Place {
        /// Path of the field.
        field: String,
        /// Which folder, and why.
        #[source]
        source: places::Error,
    },
}

/// What the process stands in; gathered by `main`, so that nothing here reads the environment.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// `HOME`.
    pub home: Option<PathBuf>,
    /// `PATH`.
    pub path: String,
    /// The whole environment, looked at for logins only.
    pub env: BTreeMap<String, String>,
    /// The host's name.
    pub hostname: String,
}

fn bad(field: impl Into<String>, problem: impl Into<String>) -> Error {
    Error::Value {
        field: field.into(),
        problem: problem.into(),
    }
}

impl AgentletConfiguration {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// When a value makes no sense.
    pub fn validate(&self) -> Result<(), Error> {
        self.servers()?;
        if self.servers.len() > MAX_SERVERS {
            return Err(bad("servers", format!("at most {MAX_SERVERS} addresses")));
        }
        if self.max_runs == Some(0) {
            return Err(bad("maxRuns", "must be at least 1"));
        }
        if self
            .renew_every
            .as_ref()
            .is_some_and(|every| every.get().is_zero())
        {
            return Err(bad("renewEvery", "must not be zero"));
        }
        let grace = self.kill_grace.as_ref().map(Duration::get);
        if grace.is_some_and(|grace| !KILL_GRACE.contains(&grace)) {
            return Err(bad(
                "killGrace",
                "must be from 1s to 10m, and no longer than lost.killGrace of the controllers",
            ));
        }
        if self.reserve_bytes.is_some_and(|bytes| !RESERVE.contains(&bytes)) {
            return Err(bad(
                "reserveBytes",
                format!("must be from {} to {}", RESERVE.start(), RESERVE.end()),
            ));
        }
        let named = self.name.iter().any(|name| places::device_name(name) != *name);
        if named {
            return Err(bad(
                "name",
                "must be at most 63 lower-case letters, digits and dashes, with no dash at its ends",
            ));
        }
        Ok(())
    }

    /// The addresses.
    ///
    /// # Errors
    /// When one is none.
    pub fn servers(&self) -> Result<Vec<Uri>, Error> {
        let parse = |(index, text): (usize, &String)| {
            parse_server(text).ok_or_else(|| {
                bad(
                    format!("servers[{index}]"),
                    format!("want https://host:port, found {text:?}"),
                )
            })
        };
        self.servers.iter().enumerate().map(parse).collect()
    }

    /// The private folder.
    ///
    /// # Errors
    /// When none is named and there is no home.
    pub fn data_dir(&self, around: &Surroundings) -> Result<PathBuf, Error> {
        match (&self.data_dir, &around.home) {
            (Some(dir), _) => Ok(dir.clone()),
            (None, _) if rustix::process::geteuid().is_root() => Ok("/var/lib/panda/agentlet".into()),
            (None, Some(home)) => Ok(home.join(".local/share/panda-agentlet")),
            (None, None) => Err(bad(
                "dataDir",
                "there is no home folder to keep data in; name one",
            )),
        }
    }

    /// The name to join under.
    #[must_use]
    pub fn device_name(&self, around: &Surroundings) -> String {
        self.name
            .clone()
            .unwrap_or_else(|| places::device_name(&around.hostname))
    }

    /// What the agentlet is told, for a device that has joined. `data_dir` exists.
    ///
    /// # Errors
    /// When a folder cannot be used, or there is no git.
    pub fn config(
        &self,
        credentials: &Credentials,
        data_dir: PathBuf,
        around: &Surroundings,
    ) -> Result<Config, Error> {
        let mut config = Config::new(&credentials.name, &credentials.uid, data_dir);
        config.work_dir =
            places::work_dir(self.work_dir.as_deref(), &config.data_dir).map_err(|source| Error::Place {
                field: "workDir".into(),
                source,
            })?;
        config.path = self.path.clone().unwrap_or_else(|| around.path.clone());
        config.git = places::program("git", &config.path)
            .ok_or_else(|| bad("path", "git was not found there; workspaces are made with it"))?;
        config.env = around.env.clone();
        config.owner = self.owner()?;
        config.owner_home = around.home.clone();
        let processors =
            std::thread::available_parallelism().map_or(4, |n| u32::try_from(n.get()).unwrap_or(4));
        config.max_runs = self.max_runs.unwrap_or(processors.max(4));
        config.labels = self.labels.clone();
        config.agent_uid = self.agent_uid.unwrap_or_else(places::agent_uid);
        config.hidden = self.hidden.clone();
        config
            .hidden
            .extend(around.home.iter().map(|home| home.join(".panda")));
        config.renew_every = self.renew_every.as_ref().map(Duration::get);
        if let Some(grace) = &self.kill_grace {
            config.kill_grace = grace.get();
        }
        config.reserve_bytes = self.reserve_bytes.unwrap_or(config.reserve_bytes);
        config.disk_pressure_bytes = self.disk_pressure_bytes.unwrap_or(config.disk_pressure_bytes);
        Ok(config)
    }

    fn owner(&self) -> Result<OwnerConfig, Error> {
        let usual = OwnerConfig::default();
        let root = |(index, root): (usize, &PathBuf)| {
            root.canonicalize()
                .map(|root| root.display().to_string())
                .map_err(|source| Error::Place {
                    field: format!("owner.workspaceRoots[{index}]"),
                    source: places::Error {
                        path: root.clone(),
                        source,
                    },
                })
        };
        Ok(OwnerConfig {
            namespaces: self.owner.namespaces.clone().unwrap_or(usual.namespaces),
            workspace_roots: self
                .owner
                .workspace_roots
                .iter()
                .enumerate()
                .map(root)
                .collect::<Result<_, _>>()?,
            min_sandbox: self.owner.min_sandbox.unwrap_or(usual.min_sandbox),
            logins: self.owner.logins.clone(),
        })
    }
}

/// An address of a server; none when it is no `https://host[:port]`.
#[must_use]
pub fn parse_server(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let plain = uri.scheme_str() == Some("https")
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.path_and_query().is_none_or(|path| path == "/");
    plain.then_some(uri)
}

#[cfg(test)]
mod tests {
    use panda_api::component;
    use serde_json::{Map, Value, json};

    use super::*;

    fn read(rest: &str, flags: Value) -> Result<AgentletConfiguration, String> {
        let text = format!("apiVersion: config.panda.dev/v1alpha1\nkind: AgentletConfiguration\n{rest}");
        let flags: Map<String, Value> = serde_json::from_value(flags).unwrap();
        let config: AgentletConfiguration =
            component::read(KIND, Some(("agentlet.yaml", text.as_bytes())), flags)
                .map_err(|error| error.to_string())?;
        config.validate().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn every_field_is_read() {
        let config = read(
            "servers: [https://a:7443, https://b:7443]\nname: pi\ndataDir: /d\nworkDir: /w\nowner:\n  namespaces: [web]\n  \
             workspaceRoots: [/]\n  minSandbox: Standard\n  logins: [claude-code]\nmaxRuns: 2\nlabels: {room: lab}\n\
             renewEvery: 2s\nkillGrace: 5s\nreserveBytes: 4194304\ndiskPressureBytes: 0\nagentUID: 64000\npath: /usr/bin\nhidden: [/secret]\n",
            json!({"maxRuns": 3}),
        )
        .unwrap();
        assert_eq!(config.servers().unwrap().len(), 2);
        assert_eq!((config.max_runs, config.agent_uid), (Some(3), Some(64000)));
        let grace = config.kill_grace.as_ref().map(Duration::get);
        assert_eq!(grace, Some(std::time::Duration::from_secs(5)));
        assert_eq!(
            (config.reserve_bytes, config.disk_pressure_bytes),
            (Some(4 << 20), Some(0))
        );
        let owner = config.owner().unwrap();
        assert_eq!(
            (owner.namespaces, owner.workspace_roots),
            (vec!["web".to_owned()], vec!["/".to_owned()])
        );
        assert_eq!(
            read("", json!({})).unwrap().owner().unwrap(),
            OwnerConfig::default()
        );
    }

    #[test]
    fn errors_name_the_field() {
        for (text, field) in [
            ("servers: [http://a]\n", "servers[0]"),
            ("servers: ['https://a/x']\n", "servers[0]"),
            ("servers: [a:7443]\n", "servers[0]"),
            ("maxRuns: 0\n", "maxRuns"),
            ("renewEvery: 0s\n", "renewEvery"),
            ("renewEvery: soon\n", "renewEvery"),
            ("killGrace: 0s\n", "killGrace"),
            ("killGrace: 1h\n", "killGrace"),
            ("reserveBytes: 0\n", "reserveBytes"),
            ("reserveBytes: -1\n", "reserveBytes"),
            ("diskPressureBytes: lots\n", "diskPressureBytes"),
            ("name: My_Device\n", "name"),
            ("owner: {minSandbox: Weak}\n", "owner.minSandbox"),
            ("owner: {workspaceRoot: []}\n", "workspaceRoot"),
            ("colour: red\n", "colour"),
        ] {
            let error = read(text, json!({})).unwrap_err();
            assert!(error.contains(field), "{text}: {error}");
        }
        let gone = read("owner: {workspaceRoots: [/, /not/there]}\n", json!({})).unwrap();
        assert!(
            gone.owner()
                .unwrap_err()
                .to_string()
                .contains("owner.workspaceRoots[1]")
        );
    }
}
