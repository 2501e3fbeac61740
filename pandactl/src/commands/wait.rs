//! `pandactl wait`.

use std::time::Duration;

use panda_client::params::ListParams;
use panda_client::{ApiResource, DynamicApi};
use serde_json::Value;
use tokio::time::Instant;

use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::follow::{self, Ended, task};
use crate::output::jsonpath::Template;
use crate::session::{Session, object_name};

/// Default of `--timeout` when `--for` is given, as in kubectl.
const DEFAULT: Duration = Duration::from_secs(30);

/// Arguments of `wait`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl wait task/fix-login
  pandactl wait task/fix-login --exit-status
  pandactl wait --for=condition=Complete task/fix-login --timeout=10m
  pandactl wait --for=jsonpath='{.status.phase}'=Running task/fix-login
  pandactl wait --for=delete task/fix-login

Without --for a task is waited for until it has ended, or waits for review.
Exit codes: 0 met, 1 timed out or deleted.
With --exit-status: 0 succeeded, 2 failed, 3 cancelled, 5 in review.")]
pub struct WaitArgs {
    /// KIND/NAME..., KIND NAME..., or KIND with -l or --all
    #[arg(value_name = "KIND[/NAME]", required = true)]
    pub resources: Vec<String>,
    /// condition=TYPE[=STATUS], jsonpath={PATH}[=VALUE], delete or create
    #[arg(long = "for", value_name = "WHAT")]
    pub for_: Option<String>,
    /// How long to wait in all; 0: look once; negative: a week [default: 30s with --for]
    #[arg(long, value_name = "DURATION", value_parser = args::timeout, allow_hyphen_values = true)]
    pub timeout: Option<Duration>,
    /// Label selector
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Field selector
    #[arg(long, value_name = "FIELDS")]
    pub field_selector: Option<String>,
    /// Selected objects of all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// All objects of the kind in the namespace
    #[arg(long)]
    pub all: bool,
    /// End with the task, and mirror how it ended
    #[arg(long)]
    pub exit_status: bool,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq)]
enum Wanted {
    /// The task has ended.
    Finished,
    /// A condition has a status.
    Condition(String, String),
    /// A path gives something, or a value.
    Path(Template, Option<String>),
    /// The object is not there.
    Deleted,
    /// The object is there.
    Created,
}

impl Wanted {
    fn parse(text: Option<&str>) -> Result<Self> {
        let help = "the forms are condition=TYPE[=STATUS], jsonpath='{.path}'[=VALUE], delete and create";
        let Some(text) = text else {
            return Ok(Self::Finished);
        };
        if text.eq_ignore_ascii_case("delete") {
            return Ok(Self::Deleted);
        }
        if text.eq_ignore_ascii_case("create") {
            return Ok(Self::Created);
        }
        if let Some(condition) = text.strip_prefix("condition=") {
            let (kind, status) = condition.split_once('=').unwrap_or((condition, "True"));
            if kind.is_empty() || status.is_empty() {
                return Err(Error::user(format!("--for={text}: no condition named")).hint(help));
            }
            return Ok(Self::Condition(kind.to_owned(), status.to_owned()));
        }
        if let Some(path) = text.strip_prefix("jsonpath=") {
            // A filter in the path may hold `==`: the value comes after the closing brace.
            let (path, value) = match path.rfind('}') {
                Some(end) => {
                    let (path, rest) = path.split_at(end + 1);
                    match rest.strip_prefix('=') {
                        Some(value) => (path, Some(value.to_owned())),
                        None if rest.is_empty() => (path, None),
                        None => {
                            return Err(
                                Error::user(format!("--for={text}: want = after the path")).hint(help)
                            );
                        }
                    }
                }
                None => match path.split_once('=') {
                    Some((path, value)) => (path, Some(value.to_owned())),
                    None => (path, None),
                },
            };
            let template = Template::path(path).map_err(|error| Error::user(error.to_string()).hint(help))?;
            return Ok(Self::Path(template, value));
        }
        Err(Error::user(format!("--for={text}: not known")).hint(help))
    }

    /// Whether it is so; `None` when it is not, yet.
    fn met(&self, object: Option<&Value>) -> Result<bool> {
        Ok(match (self, object) {
            (Self::Deleted, None) | (Self::Created, Some(_)) => true,
            (Self::Deleted | Self::Created | Self::Finished, _) | (_, None) => false,
            (Self::Condition(kind, wanted), Some(object)) => {
                condition(object, kind).is_some_and(|s| s.eq_ignore_ascii_case(wanted))
            }
            (Self::Path(path, wanted), Some(object)) => {
                let values = path
                    .values(object)
                    .map_err(|error| Error::user(error.to_string()))?;
                match (values.first(), wanted) {
                    (None | Some(Value::Null), _) => false,
                    (Some(_), None) => true,
                    (Some(Value::String(text)), Some(wanted)) => text == wanted,
                    (Some(other), Some(wanted)) => other.to_string() == *wanted,
                }
            }
        })
    }
}

/// The status of a condition; one that speaks of an older generation does not count.
fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let generation = object["metadata"]["generation"].as_i64().unwrap_or(0);
    let found = object["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| {
            condition["type"]
                .as_str()
                .is_some_and(|name| name.eq_ignore_ascii_case(kind))
        })?;
    let observed = found["observedGeneration"].as_i64();
    if observed.is_some_and(|observed| observed > 0 && observed < generation) {
        return None;
    }
    found["status"].as_str()
}

pub(crate) async fn run(args: WaitArgs, session: &mut Session<'_>) -> Result<Exit> {
    let wanted = Wanted::parse(args.for_.as_deref())?;
    let objects = objects(&args, &wanted, session).await?;
    if wanted == Wanted::Finished && objects.iter().any(|object| object.resource.kind != "Task") {
        return Err(Error::user("only tasks end by themselves")
            .hint("say what to wait for, for example --for=condition=Ready"));
    }
    let timeout = args
        .timeout
        .or_else(|| (wanted != Wanted::Finished).then_some(DEFAULT));
    // One time for all of them; what is looked at when it is over is looked at once.
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut exit = 0;
    for object in objects {
        let Waited {
            api,
            resource,
            namespace,
            name,
        } = object;
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if wanted == Wanted::Finished {
            match task::finished(session, &namespace, &name, left).await? {
                Some((task, outcome)) => {
                    session.out(format!(
                        "{} {}\n",
                        object_name(&resource, &task.metadata.name),
                        outcome.word()
                    ))?;
                    if args.exit_status {
                        exit = exit.max(outcome.exit());
                    }
                }
                None => return Err(task::timed_out(&name)),
            }
        } else {
            let mirrored = one(&args, &wanted, &api, &resource, &name, left, session).await?;
            exit = exit.max(mirrored);
        }
        session.io.flush()?;
    }
    Ok(exit)
}

async fn one(
    args: &WaitArgs,
    wanted: &Wanted,
    api: &DynamicApi,
    resource: &ApiResource,
    name: &str,
    timeout: Option<Duration>,
    session: &mut Session<'_>,
) -> Result<Exit> {
    let shown = object_name(resource, name);
    let mirrors = args.exit_status && resource.kind == "Task";
    let deletes = *wanted == Wanted::Deleted;
    let creates = *wanted == Wanted::Created;
    let uid = if deletes {
        api.get_opt(name)
            .await?
            .map(|live| live["metadata"]["uid"].clone())
    } else {
        None
    };
    let mut check = |object: Option<&Value>| -> Result<Option<Option<task::Outcome>>> {
        if deletes
            && object.is_some_and(|object| uid.as_ref().is_some_and(|uid| object["metadata"]["uid"] != *uid))
        {
            // Another object of that name: the one that was meant is gone.
            return Ok(Some(None));
        }
        if wanted.met(object)? {
            return Ok(Some(None));
        }
        match object {
            None if !creates => Err(Error::user(format!("{shown} is not there"))
                .hint("--for=create waits for it to be made; -n names another namespace")),
            Some(object) if mirrors => Ok(task::outcome(&task::decode(object)?).map(Some)),
            _ => Ok(None),
        }
    };
    let deadline = timeout
        .filter(|timeout| !timeout.is_zero())
        .map(|timeout| Instant::now() + timeout);
    if timeout == Some(Duration::ZERO) {
        let object = api.get_opt(name).await?;
        return match check(object.as_ref())? {
            Some(None) => said(session, &shown),
            Some(Some(outcome)) => Ok(outcome.exit()),
            None => Err(Error::user(format!("{shown}: condition not met")).hint("allow time with --timeout")),
        };
    }
    match follow::until(api, name, deadline, &mut check).await? {
        Ended::Met(None) => said(session, &shown),
        Ended::Met(Some(outcome)) => {
            session.note(&format!("{shown} {} before that", outcome.word()));
            Ok(outcome.exit().max(u8::from(outcome == task::Outcome::Succeeded)))
        }
        Ended::TimedOut(_) => Err(
            Error::user(format!("timed out waiting for the condition on {shown}")).hint(format!(
                "`pandactl describe {}/{name}` shows how it stands; --timeout allows more time",
                resource.singular
            )),
        ),
    }
}

fn said(session: &mut Session<'_>, shown: &str) -> Result<Exit> {
    session.out(format!("{shown} condition met\n"))?;
    Ok(0)
}

/// An object that is waited for.
struct Waited {
    api: DynamicApi,
    resource: ApiResource,
    namespace: String,
    name: String,
}

async fn objects(args: &WaitArgs, wanted: &Wanted, session: &mut Session<'_>) -> Result<Vec<Waited>> {
    let mut all = Vec::new();
    let here = session.namespace()?;
    for target in args::targets(session, &args.resources).await? {
        let resource = &target.resource;
        if !target.names.is_empty() {
            if args.all_namespaces {
                return Err(Error::user("a named object is in one namespace, not in all")
                    .hint("use -n NAMESPACE instead of -A"));
            }
            let api = session.api(resource)?;
            all.extend(target.names.iter().map(|name| Waited {
                api: api.clone(),
                resource: resource.clone(),
                namespace: here.clone(),
                name: name.clone(),
            }));
            continue;
        }
        if !args.all && args.selector.is_none() && args.field_selector.is_none() {
            return Err(Error::user(format!("which {}?", resource.plural))
                .hint("give names, a selector with -l, or --all"));
        }
        let params = ListParams {
            label_selector: args.selector.clone(),
            field_selector: args.field_selector.clone(),
            ..ListParams::default()
        };
        let place = (!args.all_namespaces).then_some(here.as_str());
        let api = session.api_in(resource, place)?;
        for object in api.list_all(&params).await?.items {
            let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
            let namespace = text("namespace");
            all.push(Waited {
                api: api.within(&namespace),
                resource: resource.clone(),
                namespace,
                name: text("name"),
            });
        }
    }
    if all.is_empty() && *wanted != Wanted::Deleted {
        return Err(
            Error::user("no matching objects found").hint("check the names, the selector and the namespace")
        );
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_forms_of_kubectl_are_understood() {
        assert_eq!(Wanted::parse(Some("delete")).unwrap(), Wanted::Deleted);
        assert_eq!(
            Wanted::parse(Some("condition=Complete")).unwrap(),
            Wanted::Condition("Complete".into(), "True".into())
        );
        let Wanted::Path(_, value) = Wanted::parse(Some("jsonpath={.items[?(@.a==\"b\")].c}=d")).unwrap()
        else {
            panic!()
        };
        assert_eq!(value.as_deref(), Some("d"));
        for wrong in ["condition=", "jsonpath={.a}x", "jsonpath={", "done"] {
            assert!(
                !Wanted::parse(Some(wrong)).unwrap_err().hints.is_empty(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn conditions_of_an_older_generation_do_not_count() {
        let task = |observed: i64| {
            json!({"metadata": {"generation": 2}, "status": {"phase": "Running", "conditions": [
            {"type": "Complete", "status": "True", "observedGeneration": observed}]}})
        };
        let wanted = Wanted::parse(Some("condition=complete")).unwrap();
        assert!(!wanted.met(Some(&task(1))).unwrap());
        assert!(wanted.met(Some(&task(2))).unwrap());
        let phase = Wanted::parse(Some("jsonpath={.status.phase}=Running")).unwrap();
        assert!(phase.met(Some(&task(1))).unwrap() && !phase.met(None).unwrap());
    }
}
