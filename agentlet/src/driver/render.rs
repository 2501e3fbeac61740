//! An Agent manifest turned into a job: arguments, environment, files, rules.
//!
//! Nothing passes a shell: a placeholder stays within its argument, and what replaces it is not looked at again.

pub(crate) mod escape;
mod template;

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use panda_api::{
    AgentFile, AgentSpec, DriverKind, DriverSpec, EnvVar, FailureReason, FileFormat, PermissionLevel,
    SecretKeyRef, StdinMode, StopSpec, SupervisionSpec, UsagePaths,
};
use rustix::process::Signal;
use serde_json::Value;

use self::template::Values;
use super::{AcpConfig, Consent, DIALECTS, DriverConfig, StreamJsonConfig, dialect, is_implemented};
use crate::process::{StopPolicy, StopTarget};
use crate::supervisor::{Limits, Part, SecretFile, SecretId};

/// Levels of permission that may be used without a sandbox that asks, best first.
const LEVELS: [&str; 2] = ["all", "edits"];

/// Everything that a manifest is filled in with.
#[derive(Debug)]
pub struct Input<'a> {
    /// The Agent.
    pub agent: &'a AgentSpec,
    /// The way to run it, usually of [`choose_driver`].
    pub driver: &'a DriverSpec,
    /// What it is asked.
    pub prompt: &'a str,
    /// Model; empty for the agent's default.
    pub model: &'a str,
    /// Session to go on with; empty for a new one.
    pub session: &'a str,
    /// Working directory.
    pub workspace: &'a Path,
    /// HOME.
    pub home: &'a Path,
    /// Name of the Run.
    pub run: &'a str,
    /// Name of the Task.
    pub task: &'a str,
    /// `PATH` of the agent.
    pub path: &'a str,
    /// Environment of the Run, over that of the Agent.
    pub env: &'a [EnvVar],
    /// Limits to hand over, by the name under which the manifest takes them: `turns` and `toolCalls` as numbers,
    /// `money` as a decimal number, `wallTime` in seconds, `requestTimeout` in milliseconds.
    pub limits: &'a [(&'a str, String)],
}

/// A file to be written into HOME before the agent starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedFile {
    /// Path under HOME: no `..`, not absolute.
    pub path: PathBuf,
    /// Permissions.
    pub mode: u32,
    /// What is in it.
    pub content: String,
}

/// A manifest, filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// Folders under HOME that the environment names.
    pub folders: Vec<PathBuf>,
    /// Files to write.
    pub files: Vec<RenderedFile>,
    /// Variables whose value is that of a Secret.
    pub secret_env: Vec<(String, SecretId)>,
    /// Files that hold the key of the model's endpoint, by their path under HOME.
    pub secret_files: Vec<SecretFile>,
    /// Commands to run before.
    pub pre_run: Vec<Vec<String>>,
    /// How it is talked to and judged.
    pub driver: DriverConfig,
    /// How it is stopped.
    pub stop: StopPolicy,
    /// Level of permission that was set; empty when the agent has none.
    pub permission: &'static str,
}

/// What is wrong with a manifest, for this run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No way to run it.
    #[error("drivers: none of {0:?} is implemented yet; add one of kind ACP, StreamJson, Jsonl or Exec")]
    NoDriver(Vec<DriverKind>),
    /// A program that is not there.
    #[error("drivers: program {0:?} is not on the device's PATH")]
    NoProgram(String),
    /// The program is missing.
    #[error("drivers[].command is empty")]
    NoCommand,
    /// A placeholder that means nothing.
    #[error("{field}: unknown placeholder {{{{{name}}}}}; known are {known}")]
    UnknownPlaceholder {
        /// Where.
        field: String,
        /// Which.
        name: String,
        /// Those that may stand there.
        known: String,
    },
    /// A placeholder without a value.
    #[error("{field}: {{{{{name}}}}} has no value here; {remedy}")]
    NoValue {
        /// Where.
        field: String,
        /// Which.
        name: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A dialect that is not built in.
    #[error(
        "drivers[].dialect: unknown dialect {0:?}; known are {DIALECTS:?}; write the field paths in `events`"
    )]
    UnknownDialect(String),
    /// No level of permission that may be used.
    #[error("permissions: without a sandbox level `all` or `edits` is needed, and the Agent has only {0:?}")]
    NoPermission(Vec<String>),
    /// An argument that is not there.
    #[error("permissions.{level}.argv: the command has no element {after:?} to add after")]
    NoSuchArgument {
        /// Level.
        level: &'static str,
        /// The element.
        after: String,
    },
    /// A value that cannot be.
    #[error("{field}: {because}")]
    Invalid {
        /// Where.
        field: String,
        /// What is wrong.
        because: String,
    },
}

/// The first way to run an agent that is implemented and whose program is there, and where the program is.
///
/// # Errors
///
/// When there is none.
pub fn choose_driver<'a>(
    agent: &'a AgentSpec,
    program: impl Fn(&str) -> Option<PathBuf>,
) -> Result<(&'a DriverSpec, PathBuf), Error> {
    let name = |driver: &'a DriverSpec| driver.command.first().map_or("", String::as_str);
    let mut usable = agent.drivers.iter().filter(|d| is_implemented(d.kind)).peekable();
    let Some(first) = usable.peek().copied() else {
        return Err(Error::NoDriver(agent.drivers.iter().map(|d| d.kind).collect()));
    };
    usable
        .find_map(|driver| Some((driver, program(name(driver))?)))
        .ok_or_else(|| Error::NoProgram(name(first).to_owned()))
}

/// How long an agent may be silent, and work.
#[must_use]
pub fn limits(supervision: Option<&SupervisionSpec>, attempt: Option<Duration>) -> Limits {
    let default = Limits::default();
    let get = |d: &Option<panda_api::meta::Duration>| d.as_ref().map(panda_api::meta::Duration::get);
    Limits {
        first_output: supervision
            .and_then(|s| get(&s.first_output))
            .unwrap_or(default.first_output),
        silence: supervision
            .and_then(|s| get(&s.silence))
            .unwrap_or(default.silence),
        attempt: attempt.unwrap_or(default.attempt),
        repeat: supervision.and_then(|s| s.repeat_limit).unwrap_or(default.repeat),
    }
}

/// Fills a manifest in.
///
/// # Errors
///
/// When something in it cannot be used, with the field it stands in.
pub fn render(input: &Input<'_>) -> Result<Rendered, Error> {
    let agent = input.agent;
    let values = values(input);
    let (level, permission) = permission(agent)?;
    let argv = argv(input, &values, level, permission)?;
    let (env, secret_env) = env(input, &values, level, permission)?;
    let (secret_files, files): (Vec<_>, Vec<_>) = files(agent, &values, input.home)?
        .into_iter()
        .partition(|file| file.parts.iter().any(|part| matches!(part, Part::Secret(..))));
    Ok(Rendered {
        env,
        secret_env,
        secret_files,
        folders: [".config", ".cache", ".local/share", ".local/state", "tmp"]
            .map(PathBuf::from)
            .into(),
        files: files.into_iter().map(RenderedFile::from).collect(),
        pre_run: agent
            .pre_run
            .iter()
            .enumerate()
            .map(|(n, command)| fill_all(command, &format!("preRun[{n}]"), &values))
            .collect::<Result<_, _>>()?,
        driver: driver(input, level, permission)?,
        stop: stop(agent.stop.as_ref())?,
        permission: level,
        argv,
    })
}

fn values(input: &Input<'_>) -> Values {
    let models = input.agent.models.as_ref();
    let default = models.map_or("", |m| m.default.as_str());
    let endpoint = models.and_then(|m| m.endpoint.as_ref());
    Values::new([
        ("prompt", input.prompt.to_owned()),
        (
            "model",
            if input.model.is_empty() {
                default
            } else {
                input.model
            }
            .to_owned(),
        ),
        ("session", input.session.to_owned()),
        ("workspace", input.workspace.display().to_string()),
        ("home", input.home.display().to_string()),
        ("run", input.run.to_owned()),
        ("task", input.task.to_owned()),
        (
            "baseUrl",
            endpoint.map_or_else(String::new, |e| format!("{}{}", e.base_url, e.suffix)),
        ),
    ])
}

fn permission(agent: &AgentSpec) -> Result<(&'static str, Option<&PermissionLevel>), Error> {
    if agent.permissions.is_empty() {
        return Ok(("", None));
    }
    LEVELS
        .iter()
        .find_map(|level| Some((*level, Some(agent.permissions.get(*level)?))))
        .ok_or_else(|| Error::NoPermission(agent.permissions.keys().cloned().collect()))
}

fn argv(
    input: &Input<'_>,
    values: &Values,
    level: &'static str,
    permission: Option<&PermissionLevel>,
) -> Result<Vec<String>, Error> {
    let driver = input.driver;
    let resume = driver.resume.as_ref().filter(|_| !input.session.is_empty());
    // Added to the template, before the prompt is in it: a prompt that looks like an argument is none.
    let mut template = match resume {
        Some(resume) if !resume.command.is_empty() => resume.command.clone(),
        _ => driver.command.clone(),
    };
    if template.first().is_none_or(String::is_empty) {
        return Err(Error::NoCommand);
    }
    let mode_says_it = driver.kind == DriverKind::Acp && permission.is_some_and(|p| !p.acp_mode.is_empty());
    for addition in permission.map_or(&[][..], |p| &p.argv) {
        let at = if addition.after.is_empty() {
            template.len()
        } else {
            match template.iter().position(|a| *a == addition.after) {
                Some(n) => n + 1,
                // For another driver: an adapter does not know the flags of the agent behind it.
                None if mode_says_it => continue,
                None => {
                    return Err(Error::NoSuchArgument {
                        level,
                        after: addition.after.clone(),
                    });
                }
            }
        };
        template.splice(at..at, addition.add.iter().cloned());
    }
    if let Some(resume) = resume {
        template.extend(resume.append.iter().cloned());
    }
    let mut argv = fill_all(&template, "drivers[].command", values)?;
    for (name, value) in input.limits {
        let limit = input.agent.limits.get(*name);
        let with = values.with("value", value);
        argv.extend(fill_all(
            limit.map_or(&[][..], |l| &l.argv),
            &format!("limits.{name}.argv"),
            &with,
        )?);
    }
    Ok(argv)
}

fn fill_all(templates: &[String], field: &str, values: &Values) -> Result<Vec<String>, Error> {
    let filled = templates.iter().enumerate();
    filled
        .map(|(n, template)| values.fill(template, &format!("{field}[{n}]"), FileFormat::Raw))
        .collect()
}

type Plain = Vec<(String, String)>;
type Secret = Vec<(String, SecretId)>;

/// What a variable is set to.
enum Set {
    Plain(String),
    Secret(SecretId),
}

/// Later ones win: what every run has, the endpoint, the Agent, its driver, the permission, limits, the Run.
fn env(
    input: &Input<'_>,
    values: &Values,
    level: &str,
    permission: Option<&PermissionLevel>,
) -> Result<(Plain, Secret), Error> {
    let home = |below: &str| input.home.join(below).display().to_string();
    let mut env: BTreeMap<String, Set> = [
        ("PATH", input.path.to_owned()),
        ("HOME", input.home.display().to_string()),
        ("XDG_CONFIG_HOME", home(".config")),
        ("XDG_CACHE_HOME", home(".cache")),
        ("XDG_DATA_HOME", home(".local/share")),
        ("XDG_STATE_HOME", home(".local/state")),
        ("TMPDIR", home("tmp")),
        ("USER", "agent".to_owned()),
        ("LOGNAME", "agent".to_owned()),
        ("LANG", "C.UTF-8".to_owned()),
        ("TERM", "dumb".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), Set::Plain(value)))
    .into();
    let endpoint = input.agent.models.as_ref().and_then(|m| m.endpoint.as_ref());
    if let Some(endpoint) = endpoint.filter(|e| !e.base_url_env.is_empty() && !e.base_url.is_empty()) {
        env.insert(
            endpoint.base_url_env.clone(),
            Set::Plain(format!("{}{}", endpoint.base_url, endpoint.suffix)),
        );
    }
    if let Some(credential) = input.agent.credential().filter(|c| !c.env.is_empty()) {
        let reference = credential.secret_key_ref.as_ref();
        env.extend(reference.map(|reference| (credential.env.clone(), Set::Secret(id(reference)))));
    }
    let sources = [
        ("env".to_owned(), input.agent.env.as_slice()),
        ("drivers[].env".to_owned(), input.driver.env.as_slice()),
        (
            format!("permissions.{level}.env"),
            permission.map_or(&[][..], |p| &p.env),
        ),
    ];
    for (field, vars) in sources {
        for var in vars {
            let value = match var.secret_key_ref() {
                Some(reference) => Set::Secret(id(reference)),
                None => Set::Plain(values.fill(
                    var.value.as_deref().unwrap_or_default(),
                    &format!("{field}.{}", var.name),
                    FileFormat::Raw,
                )?),
            };
            env.insert(var.name.clone(), value);
        }
    }
    for (name, value) in input.limits {
        if let Some(limit) = input.agent.limits.get(*name).filter(|l| !l.env.is_empty()) {
            env.insert(limit.env.clone(), Set::Plain(value.clone()));
        }
    }
    for var in input.env {
        let value = match var.secret_key_ref() {
            Some(reference) => Set::Secret(id(reference)),
            None => Set::Plain(var.value.clone().unwrap_or_default()),
        };
        env.insert(var.name.clone(), value);
    }
    let (mut plain, mut secret) = (Vec::new(), Vec::new());
    for (name, value) in env {
        match value {
            Set::Plain(value) => plain.push((name, value)),
            Set::Secret(id) => secret.push((name, id)),
        }
    }
    Ok((plain, secret))
}

fn id(reference: &SecretKeyRef) -> SecretId {
    SecretId {
        name: reference.name.clone(),
        key: reference.key.clone(),
    }
}

impl From<SecretFile> for RenderedFile {
    fn from(file: SecretFile) -> Self {
        let text = |part| match part {
            Part::Text(text) => text,
            Part::Secret(..) => String::new(),
        };
        Self {
            path: file.path,
            mode: file.mode,
            content: file.parts.into_iter().map(text).collect(),
        }
    }
}

/// What the template of a file names the key of the model's endpoint with.
const CREDENTIAL: &str = "{{credential}}";

fn files(agent: &AgentSpec, values: &Values, home: &Path) -> Result<Vec<SecretFile>, Error> {
    let credential = agent.credential().and_then(|c| c.secret_key_ref.as_ref()).map(id);
    let render = |(n, file): (usize, &AgentFile)| {
        let field = |name: &str| format!("files[{n}].{name}");
        let invalid = |name: &str, because: &str| Error::Invalid {
            field: field(name),
            because: because.into(),
        };
        let path = values.fill(&file.path, &field("path"), FileFormat::Raw)?;
        let path = Path::new(&path);
        let path = path
            .strip_prefix(home)
            .or_else(|_| path.strip_prefix("~"))
            .unwrap_or(path);
        let mut parts = path.components();
        if path.as_os_str().is_empty() || !parts.all(|c| matches!(c, Component::Normal(_))) {
            return Err(invalid("path", "must lie under HOME, without '..'"));
        }
        let mode = match file.mode.as_str() {
            "" => 0o600,
            text => u32::from_str_radix(text, 8)
                .ok()
                .filter(|m| *m <= 0o777)
                .ok_or_else(|| invalid("mode", "must be an octal number up to 0777, for example \"0600\""))?,
        };
        let mut parts = Vec::new();
        for (n, text) in file.template.split(CREDENTIAL).enumerate() {
            if n > 0 {
                let credential = credential.clone().ok_or_else(|| Error::NoValue {
                    field: field("template"),
                    name: "credential".into(),
                    remedy: "set models.endpoint.credential.secretKeyRef",
                })?;
                parts.push(Part::Secret(credential, file.format));
            }
            parts.push(Part::Text(values.fill(text, &field("template"), file.format)?));
        }
        Ok(SecretFile {
            path: path.into(),
            mode,
            parts,
        })
    };
    agent.files.iter().enumerate().map(render).collect()
}

fn driver(
    input: &Input<'_>,
    level: &str,
    permission: Option<&PermissionLevel>,
) -> Result<DriverConfig, Error> {
    let (agent, driver) = (input.agent, input.driver);
    if driver.kind == DriverKind::Acp && driver.client_capabilities.as_ref().is_some_and(offers) {
        return Err(Error::Invalid {
            field: "drivers[].clientCapabilities".into(),
            because: "neither files nor terminals are offered to agents; leave it out".into(),
        });
    }
    let consent = match level {
        "all" => Consent::All,
        "edits" => Consent::Edits,
        _ => Consent::Nothing,
    };
    let stream_json = (driver.kind == DriverKind::StreamJson).then(|| StreamJsonConfig {
        prompt: input.prompt.to_owned(),
        consent,
    });
    let acp = (driver.kind == DriverKind::Acp).then(|| AcpConfig {
        prompt: input.prompt.to_owned(),
        cwd: input.workspace.to_owned(),
        session: input.session.to_owned(),
        authenticate: driver.authenticate.clone(),
        mode: permission.map_or_else(String::new, |p| p.acp_mode.clone()),
        consent,
    });
    let builtin = dialect(&driver.dialect);
    let paths = match (driver.kind, &driver.events, &builtin) {
        (DriverKind::Jsonl, Some(events), _) => Some(events.clone()),
        (DriverKind::Jsonl, None, Some(builtin)) => Some(builtin.dialect.clone()),
        (DriverKind::Jsonl, None, None) => return Err(Error::UnknownDialect(driver.dialect.clone())),
        // What is said beside the events is known of this one only.
        (DriverKind::StreamJson, _, Some(builtin)) if driver.dialect == "claude" => {
            Some(builtin.dialect.clone())
        }
        (DriverKind::StreamJson, ..) => {
            return Err(Error::Invalid {
                field: "drivers[].dialect".into(),
                because: "a StreamJson driver speaks the dialect `claude` only".into(),
            });
        }
        _ => None,
    };
    let exit_codes = agent
        .exit_codes
        .iter()
        .map(|(code, reason): (&String, &FailureReason)| {
            let code = code.parse::<i32>().map_err(|_| Error::Invalid {
                field: format!("exitCodes.{code}"),
                because: "the key must be a number".into(),
            })?;
            Ok((code, *reason))
        });
    Ok(DriverConfig {
        kind: driver.kind,
        dialect: paths,
        stdin: matches!(agent.stdin, Some(StdinMode::Prompt)).then(|| input.prompt.to_owned()),
        usage: usage(agent.usage.as_ref(), driver.kind).or_else(|| builtin.map(|b| b.usage)),
        acp,
        stream_json,
        failures: agent.failures.clone(),
        exit_codes: exit_codes.collect::<Result<_, _>>()?,
    })
}

/// Paths that speak of what this kind of driver reads. `event: session/prompt` is the answer to a prompt over ACP.
fn usage(paths: Option<&UsagePaths>, kind: DriverKind) -> Option<UsagePaths> {
    let acp = kind == DriverKind::Acp;
    let fits = |paths: &&UsagePaths| paths.event.is_empty() || (paths.event == "session/prompt") == acp;
    paths.filter(fits).cloned()
}

/// Whether a client that says this offers anything.
fn offers(capabilities: &Value) -> bool {
    match capabilities {
        Value::Bool(offered) => *offered,
        Value::Object(fields) => fields.values().any(offers),
        Value::Null => false,
        Value::Number(_) | Value::String(_) | Value::Array(_) => true,
    }
}

fn stop(spec: Option<&StopSpec>) -> Result<StopPolicy, Error> {
    let Some(spec) = spec else {
        return Ok(StopPolicy::default());
    };
    let invalid = |field: &str, because: &str| Error::Invalid {
        field: format!("stop.{field}"),
        because: because.into(),
    };
    let signal = match spec.signal.as_str() {
        "" | "TERM" => Signal::TERM,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        "KILL" => Signal::KILL,
        _ => return Err(invalid("signal", "must be TERM, INT, HUP or KILL")),
    };
    let to = match spec.to.as_str() {
        "" | "Group" => StopTarget::Group,
        "Process" => StopTarget::Process,
        _ => return Err(invalid("to", "must be Group or Process")),
    };
    Ok(StopPolicy {
        signal: signal.as_raw(),
        to,
        grace: spec
            .grace
            .as_ref()
            .map_or(StopPolicy::default().grace, panda_api::meta::Duration::get),
    })
}

#[cfg(test)]
mod tests;
