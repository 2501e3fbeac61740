//! `label` and `annotate`.

use panda_client::params::{ListParams, WriteParams};
use panda_client::{ApiResource, DynamicApi};
use serde_json::{Map, Value, json};

use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::text;
use crate::session::{Session, object_name};

/// Arguments of `label`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl label task/fix-login team=web
  pandactl label task fix-login team- --overwrite
  pandactl label device laptop gpu=yes
  pandactl label task fix-login --list")]
pub struct LabelArgs {
    #[command(flatten)]
    common: Common,
}

/// Arguments of `annotate`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl annotate task/fix-login example.com/ticket=42
  pandactl annotate task fix-login example.com/ticket-")]
pub struct AnnotateArgs {
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// KIND/NAME... or KIND NAME..., then KEY=VALUE to set and KEY- to remove
    #[arg(value_name = "KIND[/NAME]|KEY=VALUE|KEY-", required = true)]
    words: Vec<String>,
    /// Replace values that are there
    #[arg(long)]
    overwrite: bool,
    /// Label selector
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// All objects of the kind in the namespace
    #[arg(long)]
    all: bool,
    /// Show what there is, and change nothing
    #[arg(long, conflicts_with = "overwrite")]
    list: bool,
}

pub(crate) async fn label(args: LabelArgs, session: &mut Session<'_>) -> Result<Exit> {
    change(args.common, "labels", "labeled", session).await
}

pub(crate) async fn annotate(args: AnnotateArgs, session: &mut Session<'_>) -> Result<Exit> {
    change(args.common, "annotations", "annotated", session).await
}

async fn change(common: Common, field: &str, done: &str, session: &mut Session<'_>) -> Result<Exit> {
    if common.list {
        return list(&common, field, session).await;
    }
    let (words, changes) = split(&common.words, field)?;
    let mut failed: Option<Error> = None;
    for (api, resource, name) in objects(&common, &words, session).await? {
        match one(&api, &resource, &name, field, &changes, common.overwrite).await {
            Ok(true) => session.out(format!("{} {done}\n", object_name(&resource, &name)))?,
            Ok(false) => session.out(format!("{} not {done}\n", object_name(&resource, &name)))?,
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

/// Shows them, one a line; with several objects, under the name of each.
async fn list(common: &Common, field: &str, session: &mut Session<'_>) -> Result<Exit> {
    let found = objects(common, &common.words, session).await?;
    for (api, resource, name) in &found {
        let object = api.get(name).await?;
        if found.len() > 1 {
            session.out(format!("{}:\n", object_name(resource, name)))?;
        }
        let pairs = object["metadata"][field].as_object();
        for (key, value) in pairs.into_iter().flatten() {
            let line = text::line(&format!("{key}={}", value.as_str().unwrap_or_default()));
            session.out(format!("{line}\n"))?;
        }
    }
    Ok(0)
}

/// Objects come first, changes after them.
fn split(words: &[String], field: &str) -> Result<(Vec<String>, Map<String, Value>)> {
    let is_change = |word: &String| word.contains('=') || word.ends_with('-');
    let first = words.iter().position(is_change).unwrap_or(words.len());
    let (objects, changes) = words.split_at(first);
    let mut all = Map::new();
    for word in changes {
        let (key, value) = match (word.split_once('='), word.strip_suffix('-')) {
            (Some((key, value)), _) => (key, Value::from(value)),
            (None, Some(key)) => (key, Value::Null),
            (None, None) => {
                return Err(Error::user(format!("{word:?} is neither KEY=VALUE nor KEY-"))
                    .hint("name the objects first"));
            }
        };
        if all.insert(key.to_owned(), value).is_some() {
            return Err(Error::user(format!("{key:?} is given twice")).hint("give each key once"));
        }
    }
    if all.is_empty() {
        return Err(Error::user(format!("no {field} given")).hint("KEY=VALUE sets one, KEY- removes it"));
    }
    Ok((objects.to_vec(), all))
}

async fn objects(
    common: &Common,
    words: &[String],
    session: &mut Session<'_>,
) -> Result<Vec<(DynamicApi, ApiResource, String)>> {
    let mut all = Vec::new();
    for target in args::targets(session, words).await? {
        let api = session.api(&target.resource)?;
        if target.names.is_empty() {
            if !common.all && common.selector.is_none() {
                return Err(Error::user(format!("which {}?", target.resource.plural))
                    .hint("give names, a selector with -l, or --all"));
            }
            let params = ListParams {
                label_selector: common.selector.clone(),
                ..ListParams::default()
            };
            for object in api.list_all(&params).await?.items {
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                all.push((api.clone(), target.resource.clone(), name));
            }
        }
        all.extend(
            target
                .names
                .into_iter()
                .map(|name| (api.clone(), target.resource.clone(), name)),
        );
    }
    Ok(all)
}

/// Whether anything was changed.
async fn one(
    api: &DynamicApi,
    resource: &ApiResource,
    name: &str,
    field: &str,
    changes: &Map<String, Value>,
    overwrite: bool,
) -> Result<bool> {
    let live = api.get(name).await?;
    let there = &live["metadata"][field];
    let mut news = Map::new();
    for (key, value) in changes {
        let old = &there[key];
        if old == value {
            continue;
        }
        if !overwrite && !old.is_null() && !value.is_null() {
            return Err(
                Error::user(format!("{}: {key} is {old} already", object_name(resource, name)))
                    .hint("--overwrite replaces it"),
            );
        }
        news.insert(key.clone(), value.clone());
    }
    if news.is_empty() {
        return Ok(false);
    }
    let mut patch = json!({"metadata": {field: news}});
    if !overwrite {
        // What was looked at above must still be so.
        patch["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    }
    let params = WriteParams {
        field_manager: Some("pandactl".to_owned()),
        ..WriteParams::default()
    };
    api.patch_merge(name, &patch, &params).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_before_changes() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (objects, changes) = split(&words("task x a=b=c d-"), "labels").unwrap();
        assert_eq!(objects, ["task", "x"]);
        assert_eq!(Value::Object(changes), json!({"a": "b=c", "d": null}));
        assert!(split(&words("task x"), "labels").is_err());
        assert!(split(&words("task a=1 a-"), "labels").is_err());
        assert!(split(&words("task a=1 x"), "labels").is_err());
    }
}
