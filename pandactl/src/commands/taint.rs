//! `pandactl taint`.

use panda_api::{Device, Taint};
use panda_client::params::{ListParams, WriteParams};
use panda_client::{Api, ApiResource};
use serde_json::json;

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::session::{Session, object_name};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Arguments of `taint`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl taint device laptop battery=yes:NoSchedule
  pandactl taint device laptop battery=no:NoSchedule --overwrite
  pandactl taint device laptop battery:NoSchedule-
  pandactl taint device laptop battery-
  pandactl taint devices -l room=lab lab=closed:NoExecute

NoSchedule keeps new runs away, PreferNoSchedule does where others are free,
NoExecute also moves the runs that are there. Tasks tolerate taints with
spec.device.tolerations.")]
pub struct TaintArgs {
    /// [device] NAME..., then KEY[=VALUE]:EFFECT to set, KEY[:EFFECT]- to remove
    #[arg(value_name = "DEVICE|KEY=VALUE:EFFECT|KEY-", required = true)]
    pub words: Vec<String>,
    /// Replace values that are there
    #[arg(long)]
    pub overwrite: bool,
    /// Label selector
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// All devices
    #[arg(long)]
    pub all: bool,
    /// Say what would be changed
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client", value_parser = ["none", "client", "server"], hide_possible_values = true)]
    pub dry_run: Option<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Change {
    Set(Taint),
    /// Key, and effect if only that one.
    Remove(String, Option<String>),
}

pub(crate) async fn run(args: TaintArgs, session: &mut Session<'_>) -> Result<Exit> {
    let (names, changes) = parse(&args.words)?;
    let api: Api<Device> = Api::cluster(session.client()?);
    let names = devices(&api, names, args.selector.as_deref(), args.all).await?;
    let mut resource = ApiResource::of::<Device>();
    resource.singular = "device".to_owned();
    let dry_run = args.dry_run.as_deref().filter(|place| *place != "none");
    let added = changes.iter().any(|change| matches!(change, Change::Set(_)));
    let word = match (added, changes.iter().any(|c| matches!(c, Change::Remove(..)))) {
        (true, true) => "modified",
        (true, false) => "tainted",
        _ => "untainted",
    };
    let mut failed: Option<Error> = None;
    for name in names {
        let suffix = match dry_run {
            None => "",
            Some("server") => " (server dry run)",
            Some(_) => " (dry run)",
        };
        match one(&api, &name, &changes, args.overwrite, dry_run).await {
            Ok(()) => session.out(format!("{} {word}{suffix}\n", object_name(&resource, &name)))?,
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    crate::cli::report(&before, &session.io.stderr, session.color_err());
                }
            }
        }
    }
    session.io.flush()?;
    failed.map_or(Ok(0), Err)
}

/// The names of the devices that are meant.
pub(super) async fn devices(
    api: &Api<Device>,
    names: Vec<String>,
    selector: Option<&str>,
    all: bool,
) -> Result<Vec<String>> {
    let selecting = all || selector.is_some();
    if names.is_empty() && !selecting {
        return Err(Error::user("which device?").hint("give names, a selector with -l, or --all"));
    }
    if !selecting {
        return Ok(names);
    }
    if !names.is_empty() {
        return Err(Error::user("names do not mix with --all and selectors").hint("leave one of them out"));
    }
    let params = ListParams {
        label_selector: selector.map(str::to_owned),
        ..ListParams::default()
    };
    let found = api.list_all(&params).await?.items;
    Ok(found.into_iter().map(|device| device.metadata.name).collect())
}

/// Names of devices without the word for the kind.
pub(super) fn names(words: &[String]) -> Vec<String> {
    let kind = |word: &str| word == "node" || word == "nodes" || crate::args::is_kind(word, "Device");
    let words = match words.split_first() {
        Some((first, rest)) if kind(first) => rest,
        _ => words,
    };
    words
        .iter()
        .map(|word| match word.split_once('/') {
            Some((first, name)) if kind(first) => name.to_owned(),
            _ => word.clone(),
        })
        .collect()
}

fn parse(words: &[String]) -> Result<(Vec<String>, Vec<Change>)> {
    let is_change = |word: &String| word.contains([':', '=']) || word.ends_with('-');
    let first = words.iter().position(is_change).unwrap_or(words.len());
    let (objects, changes) = words.split_at(first);
    if changes.is_empty() {
        return Err(Error::user("no taint given").hint("KEY=VALUE:NoSchedule sets one, KEY- removes it"));
    }
    let changes = changes.iter().map(|word| change(word)).collect::<Result<_>>()?;
    Ok((names(objects), changes))
}

fn change(word: &str) -> Result<Change> {
    let wrong = |what: &str| {
        Error::user(format!("{word:?}: {what}"))
            .hint("the forms are KEY=VALUE:EFFECT, KEY:EFFECT, KEY:EFFECT- and KEY-")
    };
    let effect_of = |effect: &str| {
        if EFFECTS.contains(&effect) {
            Ok(effect.to_owned())
        } else {
            Err(wrong(&format!("the effects are {}", EFFECTS.join(", "))))
        }
    };
    if let Some(gone) = word.strip_suffix('-') {
        let (key, effect) = match gone.split_once(':') {
            Some((key, effect)) => (key, Some(effect_of(effect)?)),
            None => (gone, None),
        };
        let key = key.split_once('=').map_or(key, |(key, _)| key);
        return if key.is_empty() {
            Err(wrong("there is no key"))
        } else {
            Ok(Change::Remove(key.to_owned(), effect))
        };
    }
    let (pair, effect) = word.rsplit_once(':').ok_or_else(|| wrong("there is no effect"))?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    if key.is_empty() {
        return Err(wrong("there is no key"));
    }
    Ok(Change::Set(Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect_of(effect)?,
    }))
}

async fn one(
    api: &Api<Device>,
    name: &str,
    changes: &[Change],
    overwrite: bool,
    dry_run: Option<&str>,
) -> Result<()> {
    let device = api.get(name).await?;
    let taints = apply(&device.spec.taints, changes, overwrite).map_err(|error| error.during(name))?;
    if dry_run == Some("client") || taints == device.spec.taints {
        return Ok(());
    }
    let params = WriteParams {
        field_manager: Some("pandactl".to_owned()),
        dry_run: dry_run.is_some(),
        ..WriteParams::default()
    };
    // A list is replaced as a whole: it must still be the one that was read.
    let version = &device.metadata.resource_version;
    let patch = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
    api.patch_merge(name, &patch, &params).await?;
    Ok(())
}

fn apply(there: &[Taint], changes: &[Change], overwrite: bool) -> Result<Vec<Taint>> {
    let mut taints = there.to_vec();
    for change in changes {
        match change {
            Change::Remove(key, effect) => {
                let before = taints.len();
                taints.retain(|taint| {
                    taint.key != *key || effect.as_ref().is_some_and(|effect| *effect != taint.effect)
                });
                if taints.len() == before {
                    return Err(Error::user(format!("taint {key:?} not found"))
                        .hint("`pandactl describe device NAME` shows the taints"));
                }
            }
            Change::Set(new) => {
                let found = taints
                    .iter_mut()
                    .find(|taint| taint.key == new.key && taint.effect == new.effect);
                match found {
                    None => taints.push(new.clone()),
                    Some(old) if old == new => {}
                    Some(old) if overwrite => *old = new.clone(),
                    Some(_) => {
                        return Err(Error::user(format!(
                            "taint {} with effect {} is there already",
                            new.key, new.effect
                        ))
                        .hint("--overwrite replaces its value"));
                    }
                }
            }
        }
    }
    Ok(taints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn taint(key: &str, value: &str, effect: &str) -> Taint {
        Taint {
            key: key.into(),
            value: value.into(),
            effect: effect.into(),
        }
    }

    #[test]
    fn devices_come_first_in_every_form() {
        for text in [
            "device a b k=v:NoExecute",
            "a b k=v:NoExecute",
            "nodes a b k=v:NoExecute",
            "device/a dev/b k=v:NoExecute",
        ] {
            let (names, changes) = parse(&words(text)).unwrap();
            assert_eq!(names, ["a", "b"], "{text}");
            assert_eq!(changes, [Change::Set(taint("k", "v", "NoExecute"))]);
        }
        for text in [
            "a",
            "a k=v",
            "a k=v:Never",
            "a =v:NoExecute",
            "a -",
            "a k:NoExecute b",
        ] {
            assert!(parse(&words(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn taints_are_set_replaced_and_removed() {
        let there = [
            taint("a", "1", "NoSchedule"),
            taint("a", "1", "NoExecute"),
            taint("b", "", "NoSchedule"),
        ];
        let with = |text: &str, overwrite| {
            let changes: Vec<Change> = words(text).iter().map(|word| change(word).unwrap()).collect();
            apply(&there, &changes, overwrite).map(|taints| taints.len())
        };
        assert_eq!(with("a-", false).unwrap(), 1);
        assert_eq!(with("a:NoExecute-", false).unwrap(), 2);
        assert_eq!(with("c:NoExecute", false).unwrap(), 4);
        assert_eq!(with("a=1:NoSchedule", false).unwrap(), 3);
        assert!(with("a=2:NoSchedule", false).is_err());
        assert_eq!(with("a=2:NoSchedule", true).unwrap(), 3);
        assert!(with("c-", false).is_err());
    }
}
