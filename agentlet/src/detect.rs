//! Which of the server's Agents this device has, and how it would run them.
//!
//! An Agent is somebody else's text: its command runs on the floor, in an empty folder that is its HOME too, with PATH
//! and nothing more, for thirty seconds at most, and 64 KiB of what it says are read.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use panda_api::{Agent, DetectSpec, DeviceAgent, LoggedIn};
use panda_sandbox::{FloorSpec, Launcher, User};
use regex::RegexBuilder;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::driver::render::choose_driver;
use crate::process::{self, StopPolicy};
use crate::runner::chain;

/// How long a detection may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How soon a program that did not answer in time is asked again: the device may have been busy.
const RETRY: Duration = Duration::from_secs(15);
/// How much of its output is read.
const MAX_OUTPUT: usize = 64 << 10;
/// How often everything is looked for again.
const AGAIN: Duration = Duration::from_secs(300);
/// Agents that are looked for at most.
const MAX_AGENTS: usize = 500;

/// What was found when an agent was looked for.
#[derive(Debug)]
struct Answer {
    seen: DeviceAgent,
    /// Whether it would be the same if the device were idle.
    sure: bool,
}

/// Why a program told no version.
#[derive(Debug)]
struct NoVersion {
    reason: String,
    sure: bool,
}

impl From<String> for NoVersion {
    fn from(reason: String) -> Self {
        Self { reason, sure: true }
    }
}

/// What is known of an agent.
#[derive(Clone, Debug)]
struct Known {
    seen: DeviceAgent,
    /// Look again at the next opportunity.
    again: bool,
}

impl Known {
    /// A program that was there and is slow today is still there.
    fn after(answer: Answer, before: Option<&Self>) -> Self {
        let found_before = before.filter(|before| before.seen.driver.is_some());
        let seen = match found_before {
            Some(before) if !answer.sure => before.seen.clone(),
            _ => answer.seen,
        };
        Self {
            seen,
            again: !answer.sure,
        }
    }
}

/// Looks for agents.
#[derive(Debug)]
pub(crate) struct Detector {
    pub(crate) config: Arc<Config>,
    pub(crate) launcher: Launcher,
    pub(crate) user: Option<User>,
    /// An empty folder, the working directory and HOME of detections.
    pub(crate) empty: PathBuf,
}

impl Detector {
    /// Looks whenever the list changes, and from time to time, until `token` is cancelled.
    pub(crate) async fn run(
        self,
        mut agents: watch::Receiver<Vec<u8>>,
        found: watch::Sender<Vec<DeviceAgent>>,
        token: CancellationToken,
    ) {
        let mut known: BTreeMap<(String, String), Known> = BTreeMap::new();
        // When all were looked for last.
        let mut looked = tokio::time::Instant::now();
        loop {
            let list: Vec<Agent> = match agents.borrow_and_update().as_slice() {
                [] => Vec::new(),
                bytes => serde_json::from_slice(bytes).unwrap_or_else(|error| {
                    tracing::error!(%error, "list of agents cannot be read");
                    Vec::new()
                }),
            };
            let mut fresh = BTreeMap::new();
            for agent in list.into_iter().take(MAX_AGENTS) {
                let key = (agent.metadata.namespace.clone(), agent.metadata.name.clone());
                let before = known
                    .get(&key)
                    .filter(|known| known.seen.generation == Some(agent.metadata.generation));
                let now = match before {
                    Some(before) if !before.again => before.clone(),
                    _ => {
                        let answer = tokio::select! {
                            answer = self.look(&agent) => answer,
                            () = token.cancelled() => return,
                        };
                        Known::after(answer, before)
                    }
                };
                fresh.insert(key, now);
            }
            known = fresh;
            let list: Vec<DeviceAgent> = known.values().map(|known| known.seen.clone()).collect();
            let wait = if known.values().any(|known| known.again) {
                RETRY
            } else {
                AGAIN
            };
            found.send_if_modified(|old| {
                let changed = *old != list;
                *old = list;
                changed
            });
            tokio::select! {
                changed = agents.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {
                    let all = looked.elapsed() >= AGAIN;
                    if all {
                        looked = tokio::time::Instant::now();
                    }
                    known.values_mut().for_each(|known| known.again |= all);
                }
                () = token.cancelled() => return,
            }
        }
    }

    /// Looks for one agent.
    async fn look(&self, agent: &Agent) -> Answer {
        let spec = &agent.spec;
        let mut seen = DeviceAgent {
            namespace: agent.metadata.namespace.clone(),
            name: agent.metadata.name.clone(),
            generation: Some(agent.metadata.generation),
            ..DeviceAgent::default()
        };
        let usable = match choose_driver(spec, |program| which(program, &self.config.path)) {
            Ok((driver, path)) => {
                seen.path = path.display().to_string();
                driver
            }
            Err(error) => {
                seen.reason = error.to_string();
                return Answer { seen, sure: true };
            }
        };
        if let Some(detect) = &spec.detect {
            if !detect.argv.is_empty() {
                match self.version(agent, detect).await {
                    Ok(version) => seen.version = version,
                    Err(NoVersion { reason, sure }) => {
                        seen.reason = reason;
                        return Answer { seen, sure };
                    }
                }
            }
            seen.logged_in = detect.logged_in.as_ref().and_then(|rule| self.logged_in(rule));
        }
        seen.driver = Some(usable.kind);
        Answer { seen, sure: true }
    }

    async fn version(&self, agent: &Agent, detect: &DetectSpec) -> Result<String, NoVersion> {
        let request = process::Request {
            floor: FloorSpec {
                argv: detect.argv.clone(),
                env: vec![
                    ("PATH".into(), self.config.path.clone()),
                    // Some programs do not start without one.
                    ("HOME".into(), self.empty.display().to_string()),
                ],
                cwd: self.empty.clone(),
                user: self.user,
                hidden: self.config.all_hidden(),
                visible: vec![self.empty.clone()],
                ..FloorSpec::default()
            },
            stdin: Vec::new(),
            timeout: TIMEOUT,
            stop: StopPolicy::default(),
            max_output: MAX_OUTPUT / 2,
            name: format!("detect-{}", agent.metadata.uid),
        };
        let program = detect.argv.first().cloned().unwrap_or_default();
        let finished = process::run(&self.launcher, request, &CancellationToken::new())
            .await
            .map_err(|error| chain(&error))?;
        if finished.cut_short {
            return Err(NoVersion {
                reason: format!("{program:?} did not answer within {TIMEOUT:?}"),
                sure: false,
            });
        }
        let mut text = String::from_utf8_lossy(&finished.stdout).into_owned();
        text.push('\n');
        text.push_str(&String::from_utf8_lossy(&finished.stderr));
        if detect.match_.is_empty() {
            return if finished.exit.success() {
                Ok(String::new())
            } else {
                Err(format!("{program:?} ended as a failure").into())
            };
        }
        let regex = RegexBuilder::new(&detect.match_)
            .size_limit(1 << 20)
            .build()
            .map_err(|error| format!("detect.match: {error}"))?;
        let found = regex
            .captures(&text)
            .and_then(|captures| captures.get(1).or_else(|| captures.get(0)))
            .ok_or_else(|| {
                format!("{program:?} is another program: its answer does not match detect.match")
            })?;
        Ok(found.as_str().chars().take(100).collect())
    }

    /// Whether any sign of a login is there; `None` when the Agent names none.
    fn logged_in(&self, rule: &LoggedIn) -> Option<bool> {
        if rule.env.is_empty() && rule.files.is_empty() {
            return None;
        }
        let env = rule
            .env
            .iter()
            .any(|name| self.config.env.get(name).is_some_and(|v| !v.is_empty()));
        let file = |file: &String| {
            let beneath = Path::new(file)
                .components()
                .all(|c| matches!(c, Component::Normal(_)));
            let home = self.config.owner_home.as_ref();
            beneath && home.is_some_and(|home| home.join(file).is_file())
        };
        Some(env || rule.files.iter().any(file))
    }
}

/// Where a program is: as given when it has a slash, else on `path`.
pub(crate) fn which(program: &str, path: &str) -> Option<PathBuf> {
    let runs = |file: &Path| {
        std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.is_empty() {
        return None;
    }
    if program.contains('/') {
        let file = PathBuf::from(program);
        return (file.is_absolute() && runs(&file)).then_some(file);
    }
    path.split(':')
        .filter(|dir| dir.starts_with('/'))
        .map(|dir| Path::new(dir).join(program))
        .find(|file| runs(file))
}

#[cfg(test)]
mod tests {
    use panda_api::DriverKind;

    use super::*;

    fn answer(driver: Option<DriverKind>, sure: bool) -> Answer {
        Answer {
            seen: DeviceAgent {
                driver,
                ..DeviceAgent::default()
            },
            sure,
        }
    }

    #[test]
    fn a_program_that_is_slow_is_asked_again_and_not_taken_for_gone() {
        let there = Known::after(answer(Some(DriverKind::Acp), true), None);
        assert!(!there.again);
        let slow = Known::after(answer(None, false), Some(&there));
        assert_eq!((slow.seen.driver, slow.again), (Some(DriverKind::Acp), true));
        let never_seen = Known::after(answer(None, false), None);
        assert_eq!((never_seen.seen.driver, never_seen.again), (None, true));
        let gone = Known::after(answer(None, true), Some(&slow));
        assert_eq!((gone.seen.driver, gone.again), (None, false));
    }
}
