//! What several commands read from their arguments: durations, targets.

use std::time::Duration;

use panda_client::ApiResource;

use crate::error::{Error, Result};
use crate::session::Session;

/// A duration: `90s`, `1h30m`, or a number of seconds.
///
/// # Errors
/// When it is none; the text says what is wanted.
pub fn duration(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse::<u32>() {
        return Ok(Duration::from_secs(u64::from(seconds)));
    }
    text.parse::<panda_api::meta::Duration>()
        .map(|duration| duration.get())
        .map_err(|_| "want a duration such as 90s, 5m or 1h30m".to_owned())
}

/// A timeout, where a negative one stands for a week, as in kubectl.
///
/// # Errors
/// When it is no duration.
pub fn timeout(text: &str) -> Result<Duration, String> {
    match text.strip_prefix('-') {
        Some(rest) => duration(rest).map(|_| Duration::from_secs(7 * 24 * 3600)),
        None => duration(text),
    }
}

/// What a command is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The kind.
    pub resource: ApiResource,
    /// The names; none: all of the kind.
    pub names: Vec<String>,
}

/// Reads `KIND`, `KIND NAME...`, `KIND/NAME...` and `KIND,KIND`.
///
/// # Errors
/// When a kind is not known, or the forms are mixed.
pub async fn targets(session: &mut Session<'_>, words: &[String]) -> Result<Vec<Target>> {
    let Some(first) = words.first() else {
        return Err(Error::user("no kind given")
            .hint("for example `pandactl get tasks`; `pandactl api-resources` lists the kinds"));
    };
    let mut targets: Vec<Target> = Vec::new();
    if words.iter().any(|word| word.contains('/')) {
        for word in words {
            let Some((kind, name)) = word.split_once('/') else {
                return Err(
                    Error::user(format!("{word:?}: KIND/NAME and other arguments do not mix"))
                        .hint("write each object as KIND/NAME, or one kind followed by names"),
                );
            };
            if kind.is_empty() || name.is_empty() || name.contains('/') {
                return Err(
                    Error::user(format!("{word:?} is not KIND/NAME")).hint("for example task/fix-login")
                );
            }
            let resource = session.resolve(kind).await?;
            match targets.iter_mut().find(|target| target.resource == resource) {
                Some(target) => target.names.push(name.to_owned()),
                None => targets.push(Target {
                    resource,
                    names: vec![name.to_owned()],
                }),
            }
        }
        return Ok(targets);
    }
    for kind in first.split(',') {
        for resource in kinds(session, kind).await? {
            targets.push(Target {
                resource,
                names: words[1..].to_vec(),
            });
        }
    }
    if targets.len() > 1 && words.len() > 1 {
        return Err(Error::user("names need one kind").hint("write KIND/NAME for objects of different kinds"));
    }
    Ok(targets)
}

/// The kinds of a word: one, or those of a category. `all` stands for what people work with.
async fn kinds(session: &mut Session<'_>, word: &str) -> Result<Vec<ApiResource>> {
    if word == "all" || word == "panda" {
        let discovery = session.discovery().await?;
        let mut found: Vec<ApiResource> = discovery.category(word).cloned().collect();
        if found.is_empty() {
            found = discovery.category("panda").cloned().collect();
        }
        if !found.is_empty() {
            return Ok(found);
        }
    }
    Ok(vec![session.resolve(word).await?])
}

/// Exactly the named objects: every target must have a name.
///
/// # Errors
/// See [`targets`]; and when no name is given.
pub async fn named(session: &mut Session<'_>, words: &[String]) -> Result<Vec<(ApiResource, String)>> {
    let mut all = Vec::new();
    for target in targets(session, words).await? {
        if target.names.is_empty() {
            return Err(
                Error::user(format!("no name given: which of the {}?", target.resource.plural)).hint(
                    format!(
                        "write for example {}/NAME; `pandactl get {}` lists them",
                        target.resource.singular, target.resource.plural
                    ),
                ),
            );
        }
        for name in target.names {
            all.push((target.resource.clone(), name));
        }
    }
    Ok(all)
}

/// One task, as `task/NAME` or `NAME`.
///
/// # Errors
/// When another kind is named.
pub fn task_name(word: &str) -> Result<String> {
    match word.split_once('/') {
        None if !word.is_empty() => Ok(word.to_owned()),
        Some((kind, name)) if !name.is_empty() && is_kind(kind, "Task") => Ok(name.to_owned()),
        _ => Err(Error::user(format!("{word:?} is no task"))
            .hint("write task/NAME or NAME; `pandactl get tasks` lists them")),
    }
}

/// Whether a word means a kind that this program knows.
#[must_use]
pub fn is_kind(word: &str, kind: &str) -> bool {
    panda_api::scheme::by_word(word).is_some_and(|info| info.kind == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_or_have_units() {
        assert_eq!(duration("90"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert!(duration("soon").is_err());
        assert_eq!(timeout("-1s"), Ok(Duration::from_secs(604_800)));
    }

    #[test]
    fn a_bare_name_is_a_task_and_other_kinds_are_refused() {
        assert_eq!(task_name("x").ok().as_deref(), Some("x"));
        assert_eq!(task_name("tk/x").ok().as_deref(), Some("x"));
        assert!(task_name("run/x").is_err() && task_name("task/").is_err() && task_name("").is_err());
    }
}
