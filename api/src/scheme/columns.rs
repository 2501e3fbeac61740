//! Columns of the tables that `get` prints, readable at 80 characters; more with `-o wide`.

use jiff::Timestamp;
use serde_json::Value;

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// `string`, `integer`, `boolean` or `date`, for programs.
    pub type_: &'static str,
    /// `name` for the column with the object's name, otherwise empty.
    pub format: &'static str,
    /// What the column says.
    pub description: &'static str,
    /// 0: always shown; more: with `-o wide` only.
    pub priority: i32,
}

const fn col(name: &'static str, type_: &'static str, description: &'static str) -> Column {
    Column {
        name,
        type_,
        format: "",
        description,
        priority: 0,
    }
}

const fn wide(name: &'static str, type_: &'static str, description: &'static str) -> Column {
    Column {
        priority: 1,
        ..col(name, type_, description)
    }
}

const NAME: Column = Column {
    format: "name",
    ..col("Name", "string", "Name, unique within its namespace and kind.")
};
const AGE: Column = col("Age", "date", "Time since the object was created.");

pub(super) const TASK: &[Column] = &[
    NAME,
    col("Phase", "string", "Where the task stands."),
    col(
        "Agent",
        "string",
        "Agent of the newest attempt, or the first candidate.",
    ),
    col(
        "Device",
        "string",
        "Device of the newest attempt, or the one asked for.",
    ),
    col("Attempts", "integer", "Attempts so far."),
    AGE,
    wide("Run", "string", "The newest Run."),
    wide("Reason", "string", "Why it failed or waits."),
    wide("Message", "string", "The same as a sentence."),
];

pub(super) fn task(object: &Value, now: Timestamp) -> Vec<Value> {
    let status = &object["status"];
    let spec = &object["spec"];
    let why = if status["failure"].is_object() {
        &status["failure"]
    } else {
        &status["unschedulable"][0]
    };
    vec![
        name(object),
        text(&status["phase"]),
        first_text(&[&status["agent"], &spec["agents"][0]["name"]]),
        first_text(&[&status["device"], &spec["device"]["name"]]),
        number(&status["attempts"]),
        age(object, now),
        text(&status["currentRun"]),
        text(&why["reason"]),
        line(&why["message"]),
    ]
}

pub(super) const RUN: &[Column] = &[
    NAME,
    col("Phase", "string", "Where the attempt stands."),
    col("Agent", "string", "The agent."),
    col("Device", "string", "The device that it is bound to."),
    AGE,
    wide("Task", "string", "The task that it belongs to."),
    wide("Attempt", "integer", "Number of the attempt."),
    wide("Reason", "string", "Why it failed or waits."),
    wide("Message", "string", "The same as a sentence."),
];

pub(super) fn run(object: &Value, now: Timestamp) -> Vec<Value> {
    let status = &object["status"];
    let spec = &object["spec"];
    let why = if status["failure"].is_object() {
        &status["failure"]
    } else {
        &status["unschedulable"][0]
    };
    vec![
        name(object),
        text(&status["phase"]),
        text(&spec["agent"]["name"]),
        text(&spec["deviceName"]),
        age(object, now),
        text(&spec["taskRef"]["name"]),
        number(&spec["attempt"]),
        text(&why["reason"]),
        line(&why["message"]),
    ]
}

pub(super) const AGENT: &[Column] = &[
    NAME,
    col("Driver", "string", "How it is spoken to, first choice."),
    col(
        "Ready",
        "string",
        "Devices that can run it, of those that report it.",
    ),
    col("Running", "integer", "Live runs."),
    AGE,
    wide("Version", "string", "Version on the first device that is ready."),
    wide("Capabilities", "string", "What it can do."),
    wide(
        "Reason",
        "string",
        "Why the first device that is not ready cannot run it.",
    ),
];

pub(super) fn agent(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let devices = items(&object["status"]["devices"]);
    let ready: Vec<&Value> = devices.iter().filter(|d| d["ready"] == true).collect();
    let lacking = devices.iter().find(|d| d["ready"] != true);
    let capabilities: Vec<&str> = items(&spec["capabilities"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    vec![
        name(object),
        text(&spec["drivers"][0]["kind"]),
        format!("{}/{}", ready.len(), devices.len()).into(),
        number(&object["status"]["running"]),
        age(object, now),
        ready.first().map_or_else(none, |d| text(&d["version"])),
        if capabilities.is_empty() {
            none()
        } else {
            capabilities.join(",").into()
        },
        lacking.map_or_else(none, |d| line(&d["reason"])),
    ]
}

pub(super) const DEVICE: &[Column] = &[
    NAME,
    col("Status", "string", "Whether it takes work."),
    col("Agents", "string", "Agents that can run on it."),
    col("Runs", "string", "Live runs, of the most that it takes."),
    AGE,
    wide("OS", "string", "Operating system and processor."),
    wide("Class", "string", "Class of device."),
    wide("Version", "string", "Version of its agentlet."),
    wide("Sandbox", "string", "Profile that runs get when they name none."),
];

pub(super) fn device(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    let status = &object["status"];
    let ready = items(&status["conditions"]).iter().find(|c| c["type"] == "Ready");
    let mut state = match ready.and_then(|c| c["status"].as_str()) {
        Some("True") => "Ready".to_owned(),
        Some("Unknown") | None => "Unknown".to_owned(),
        Some(_) => "NotReady".to_owned(),
    };
    if spec["unschedulable"] == true {
        state.push_str(",SchedulingDisabled");
    }
    let mut agents: Vec<&str> = items(&status["agents"])
        .iter()
        .filter(|a| a["driver"].is_string())
        .filter_map(|a| a["name"].as_str())
        .collect();
    agents.sort_unstable();
    agents.dedup();
    let most = [&spec["maxRuns"], &status["maxRuns"]]
        .into_iter()
        .find(|v| v.is_number())
        .map_or_else(|| "?".to_owned(), Value::to_string);
    let info = &status["info"];
    vec![
        name(object),
        state.into(),
        if agents.is_empty() {
            none()
        } else {
            cut(&agents.join(","), 32).into()
        },
        format!("{}/{most}", status["running"].as_u64().unwrap_or(0)).into(),
        age(object, now),
        match (info["os"].as_str(), info["arch"].as_str()) {
            (Some(os), Some(arch)) => format!("{os}/{arch}").into(),
            _ => none(),
        },
        text(&info["deviceClass"]),
        text(&info["agentletVersion"]),
        text(&status["sandbox"]["default"]),
    ]
}

pub(super) const NAMESPACE: &[Column] = &[
    NAME,
    col("Status", "string", "Whether it is in use or going."),
    AGE,
];

pub(super) fn namespace(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), text(&object["status"]["phase"]), age(object, now)]
}

pub(super) const SECRET: &[Column] = &[
    NAME,
    col("Type", "string", "What the values are for."),
    col("Data", "integer", "Number of values."),
    AGE,
];

pub(super) fn secret(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        text(&object["type"]),
        count(&[&object["data"]]),
        age(object, now),
    ]
}

pub(super) const CONFIG_MAP: &[Column] = &[NAME, col("Data", "integer", "Number of values."), AGE];

pub(super) fn config_map(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        count(&[&object["data"], &object["binaryData"]]),
        age(object, now),
    ]
}

pub(super) const EVENT: &[Column] = &[
    col("Last Seen", "string", "Time since it was last seen."),
    col("Type", "string", "Normal or Warning."),
    col("Reason", "string", "Stable word."),
    col("Object", "string", "What it is about."),
    col("Message", "string", "Sentence for people."),
    Column {
        format: "name",
        ..wide("Name", "string", "Name of the event.")
    },
    wide("Source", "string", "Who saw it."),
    wide("Count", "integer", "How often it was seen."),
];

pub(super) fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let involved = &object["involvedObject"];
    let about = format!(
        "{}/{}",
        involved["kind"].as_str().unwrap_or_default().to_lowercase(),
        involved["name"].as_str().unwrap_or_default()
    );
    let seen = [
        &object["lastTimestamp"],
        &object["eventTime"],
        &object["firstTimestamp"],
    ]
    .into_iter()
    .find(|t| t.is_string())
    .map_or_else(|| age(object, now), |t| since(t, now));
    vec![
        seen,
        text(&object["type"]),
        text(&object["reason"]),
        about.into(),
        line(&object["message"]),
        name(object),
        first_text(&[&object["source"]["component"], &object["reportingComponent"]]),
        object["count"].as_i64().unwrap_or(1).into(),
    ]
}

pub(super) const LEASE: &[Column] = &[
    NAME,
    col("Holder", "string", "Who holds it."),
    col(
        "Epoch",
        "integer",
        "The fencing epoch: how often it was given out or taken away.",
    ),
    AGE,
    wide("Renewed", "string", "Time since the holder renewed it."),
];

pub(super) fn lease(object: &Value, now: Timestamp) -> Vec<Value> {
    let spec = &object["spec"];
    vec![
        name(object),
        text(&spec["holderIdentity"]),
        number(&spec["leaseTransitions"]),
        age(object, now),
        since(&spec["renewTime"], now),
    ]
}

pub(super) const PLAIN: &[Column] = &[NAME, AGE];

pub(super) fn plain(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age(object, now)]
}

pub(super) const QUOTA: &[Column] = &[
    NAME,
    col("Used", "string", "How many there are, of how many."),
    AGE,
];

pub(super) fn quota(object: &Value, now: Timestamp) -> Vec<Value> {
    let (hard, used) = (&object["spec"]["hard"], &object["status"]["used"]);
    let parts = hard.as_object().into_iter().flatten().map(|(name, most)| {
        let used = used[name].as_str().unwrap_or("0");
        format!("{name}: {used}/{}", most.as_str().unwrap_or_default())
    });
    let parts: Vec<String> = parts.collect();
    vec![name(object), parts.join(", ").into(), age(object, now)]
}

pub(super) const BINDING: &[Column] = &[
    NAME,
    col("Role", "string", "The role that it grants."),
    AGE,
    wide("Users", "string", "Users that it grants to."),
    wide("Groups", "string", "Groups that it grants to."),
    wide("ServiceAccounts", "string", "Accounts that it grants to."),
];

pub(super) fn binding(object: &Value, now: Timestamp) -> Vec<Value> {
    let role = &object["roleRef"];
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of_kind = |kind: &str| -> Value {
        let subjects = items(&object["subjects"]).iter().filter(|s| s["kind"] == kind);
        let names = subjects.map(|subject| match word(&subject["namespace"]) {
            namespace if namespace.is_empty() => word(&subject["name"]),
            namespace => format!("{namespace}/{}", word(&subject["name"])),
        });
        names.collect::<Vec<_>>().join(", ").into()
    };
    vec![
        name(object),
        format!("{}/{}", word(&role["kind"]), word(&role["name"])).into(),
        age(object, now),
        of_kind("User"),
        of_kind("Group"),
        of_kind("ServiceAccount"),
    ]
}

pub(super) const CERTIFICATE_REQUEST: &[Column] = &[
    NAME,
    AGE,
    col("SignerName", "string", "Who is to sign it."),
    col("Requestor", "string", "Who asked."),
    col("Condition", "string", "What became of it."),
];

pub(super) fn certificate_request(object: &Value, now: Timestamp) -> Vec<Value> {
    let status = &object["status"];
    let mut words: Vec<&str> = items(&status["conditions"])
        .iter()
        .filter_map(|condition| condition["type"].as_str())
        .collect();
    if status["certificate"].as_str().is_some_and(|pem| !pem.is_empty()) {
        words.push("Issued");
    }
    let condition = if words.is_empty() {
        "Pending".to_owned()
    } else {
        words.join(",")
    };
    vec![
        name(object),
        age(object, now),
        text(&object["spec"]["signerName"]),
        text(&object["spec"]["username"]),
        condition.into(),
    ]
}

pub(super) const GIT_SOURCE: &[Column] = &[
    NAME,
    col("Ready", "string", "Whether the newest commit is applied."),
    col("Reason", "string", "Why, or why not."),
    col("Commit", "string", "The commit that is applied."),
    col(
        "Objects",
        "string",
        "Objects as wanted, of all in the repository.",
    ),
    AGE,
    wide("URL", "string", "Where the repository is."),
    wide("Ref", "string", "Branch, tag or commit."),
    wide("Message", "string", "The reason as a sentence."),
];

pub(super) fn git_source(object: &Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&object["spec"], &object["status"]);
    let ready = items(&status["conditions"])
        .iter()
        .find(|condition| condition["type"] == "Ready")
        .unwrap_or(&Value::Null);
    let counts = &status["counts"];
    let commit = status["appliedCommit"].as_str().unwrap_or_default();
    vec![
        name(object),
        text(&ready["status"]),
        text(&ready["reason"]),
        text(&commit.get(..12).unwrap_or(commit).into()),
        if counts.is_object() {
            let number = |key: &str| counts[key].as_u64().unwrap_or(0);
            format!("{}/{}", number("applied"), number("total")).into()
        } else {
            none()
        },
        age(object, now),
        text(&spec["url"]),
        text(&spec["ref"]),
        line(&ready["message"]),
    ]
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn none() -> Value {
    "<none>".into()
}

fn name(object: &Value) -> Value {
    object["metadata"]["name"].as_str().unwrap_or_default().into()
}

fn text(value: &Value) -> Value {
    match value.as_str() {
        Some(text) if !text.is_empty() => text.into(),
        _ => none(),
    }
}

fn first_text(values: &[&Value]) -> Value {
    values
        .iter()
        .find(|v| v.as_str().is_some_and(|t| !t.is_empty()))
        .map_or_else(none, |v| text(v))
}

fn number(value: &Value) -> Value {
    value.as_i64().unwrap_or(0).into()
}

fn count(maps: &[&Value]) -> Value {
    maps.iter()
        .filter_map(|m| m.as_object())
        .map(serde_json::Map::len)
        .sum::<usize>()
        .into()
}

/// Free text as one line: a cell must never break the table.
fn line(value: &Value) -> Value {
    let Some(text) = value.as_str() else { return none() };
    let words: Vec<&str> = text.split_whitespace().collect();
    if words.is_empty() {
        none()
    } else {
        cut(&words.join(" "), 160).into()
    }
}

fn cut(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let head: String = text.chars().take(max.saturating_sub(3)).collect();
    format!("{head}...")
}

fn age(object: &Value, now: Timestamp) -> Value {
    since(&object["metadata"]["creationTimestamp"], now)
}

fn since(value: &Value, now: Timestamp) -> Value {
    match value.as_str().map(str::parse::<Timestamp>) {
        Some(Ok(then)) => human_duration(now.as_second().saturating_sub(then.as_second())).into(),
        _ => "<unknown>".into(),
    }
}

/// A length of time in at most two units, the way that kubectl prints ages: `90s`, `5m30s`, `3h5m`, `2d5h`, `1y20d`.
/// Times that lie ahead count as `0s`: clocks differ.
#[must_use]
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let s = seconds.max(0);
    let two = |big: i64, unit: &str, rest: i64, small: &str| {
        if rest == 0 {
            format!("{big}{unit}")
        } else {
            format!("{big}{unit}{rest}{small}")
        }
    };
    match s {
        _ if s < 2 * MINUTE => format!("{s}s"),
        _ if s < 10 * MINUTE => two(s / MINUTE, "m", s % MINUTE, "s"),
        _ if s < 3 * HOUR => format!("{}m", s / MINUTE),
        _ if s < 8 * HOUR => two(s / HOUR, "h", s % HOUR / MINUTE, "m"),
        _ if s < 2 * DAY => format!("{}h", s / HOUR),
        _ if s < 8 * DAY => two(s / DAY, "d", s % DAY / HOUR, "h"),
        _ if s < 2 * YEAR => format!("{}d", s / DAY),
        _ if s < 8 * YEAR => two(s / YEAR, "y", s % YEAR / DAY, "d"),
        _ => format!("{}y", s / YEAR),
    }
}
