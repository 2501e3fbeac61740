//! `pandactl edit`: an object in an editor.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use panda_api::manifest;
use panda_client::api::PatchKind;
use panda_client::params::{FieldValidation, WriteParams};
use panda_client::{ApiResource, DynamicApi};
use serde_json::{Map, Value, json};

use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::text;
use crate::session::{Session, object_name};

/// Most rounds with the editor.
const ROUNDS: usize = 20;

/// Arguments of `edit`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl edit task/fix-login
  EDITOR='code --wait' pandactl edit agent claude-code
  pandactl edit device laptop -o json

The editor is PANDA_EDITOR, KUBE_EDITOR, VISUAL or EDITOR, otherwise vi. What
cannot be saved is kept in a file, and the editor opens again with the reason.
An empty file, or one that is left as it was, changes nothing.")]
pub struct EditArgs {
    /// KIND NAME or KIND/NAME
    #[arg(value_name = "KIND[/NAME]", required = true)]
    pub resources: Vec<String>,
    /// yaml or json
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml", value_parser = ["yaml", "json"], hide_possible_values = true)]
    pub output: String,
    /// status: edit the status instead of the rest
    #[arg(long, value_name = "NAME", value_parser = ["status"], hide_possible_values = true)]
    pub subresource: Option<String>,
}

pub(crate) async fn run(args: EditArgs, session: &mut Session<'_>) -> Result<Exit> {
    for (resource, name) in args::named(session, &args.resources).await? {
        let api = session.api(&resource)?;
        edit(&args, &api, &resource, &name, session).await?;
        session.io.flush()?;
    }
    Ok(0)
}

async fn edit(
    args: &EditArgs,
    api: &DynamicApi,
    resource: &ApiResource,
    name: &str,
    session: &mut Session<'_>,
) -> Result<()> {
    let mut live = api.get(name).await?;
    let mut shown = text_of(&live, &args.output);
    let mut why = String::new();
    let suffix = format!(".{}", args.output);
    let file = tempfile::Builder::new()
        .prefix("pandactl-edit-")
        .suffix(&suffix)
        .tempfile()
        .map_err(|error| Error::file("make", Path::new("a file to edit"), &error))?;
    for _ in 0..ROUNDS {
        let before = format!("{}{shown}", head(&why, &args.output));
        write(file.path(), &before)?;
        editor(session, file.path()).await?;
        let after =
            std::fs::read_to_string(file.path()).map_err(|error| Error::file("read", file.path(), &error))?;
        let content = without_comments(&after);
        if content.trim().is_empty() {
            session.note("Edit cancelled, saved file was empty.");
            return Ok(());
        }
        if without_comments(&before) == content {
            if why.is_empty() {
                session.note("Edit cancelled, no changes made.");
                return Ok(());
            }
            return Err(kept(file, &why));
        }
        shown = content;
        let wanted = match manifest::read_value("the edited file", after.as_bytes()) {
            Ok(wanted) => wanted,
            Err(errors) => {
                why = errors
                    .iter()
                    .map(|e| e.render(false))
                    .collect::<Vec<_>>()
                    .join("\n");
                continue;
            }
        };
        match save(args, api, name, &live, &wanted).await {
            Ok(true) => {
                session.out(format!("{} edited\n", object_name(resource, name)))?;
                return Ok(());
            }
            Ok(false) => {
                session.note("Edit cancelled, no changes made.");
                return Ok(());
            }
            Err(Refused::Conflict) => {
                // Their change stays unless it is to the same field: only differences are sent.
                let original = live.clone();
                live = api.get(name).await?;
                let mine = difference(&original, &wanted);
                let theirs = difference(&original, &live);
                if !overlap(&mine, &theirs) {
                    let mut merged = live.clone();
                    merge(&mut merged, &mine);
                    if save(args, api, name, &live, &merged).await.is_ok() {
                        session.out(format!("{} edited\n", object_name(resource, name)))?;
                        return Ok(());
                    }
                }
                why = "somebody else changed the same fields meanwhile; what is saved now replaces their change"
                    .to_owned();
            }
            Err(Refused::Invalid(message)) => why = message,
            Err(Refused::Other(error)) => return Err(keep(file, error)),
        }
    }
    Err(kept(file, &why))
}

/// Why a change was not stored.
enum Refused {
    Conflict,
    Invalid(String),
    Other(Error),
}

/// Sends the differences; whether there were any.
async fn save(
    args: &EditArgs,
    api: &DynamicApi,
    name: &str,
    live: &Value,
    wanted: &Value,
) -> std::result::Result<bool, Refused> {
    for field in ["apiVersion", "kind"] {
        if live[field] != wanted[field] {
            return Err(Refused::Invalid(format!("{field} cannot be changed")));
        }
    }
    for field in ["name", "namespace"] {
        if live["metadata"][field] != wanted["metadata"][field] {
            return Err(Refused::Invalid(format!("metadata.{field} cannot be changed")));
        }
    }
    let mut patch = difference(live, wanted);
    if patch.as_object().is_none_or(Map::is_empty) {
        return Ok(false);
    }
    patch["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
    let params = WriteParams {
        field_manager: Some("pandactl-edit".to_owned()),
        field_validation: Some(FieldValidation::Strict),
        ..WriteParams::default()
    };
    let subresource = args.subresource.as_deref();
    match api
        .patch_as(name, subresource, PatchKind::Merge, &patch, &params)
        .await
    {
        Ok(_) => Ok(true),
        Err(error) if error.is_conflict() => Err(Refused::Conflict),
        Err(panda_client::Error::Api(status)) if matches!(status.code, 400 | 422) => Err(Refused::Invalid(
            Error::from(panda_client::Error::Api(status)).message,
        )),
        Err(error) => Err(Refused::Other(error.into())),
    }
}

/// The merge patch that makes the second of the first; what only the server writes is left out.
fn difference(old: &Value, new: &Value) -> Value {
    fn of(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
        let mut patch = Map::new();
        for (key, value) in new {
            match (old.get(key), value) {
                (Some(before), now) if before == now => {}
                (Some(Value::Object(before)), Value::Object(now)) => {
                    patch.insert(key.clone(), of(before, now).into());
                }
                (_, now) => drop(patch.insert(key.clone(), now.clone())),
            }
        }
        let gone = old.keys().filter(|key| !new.contains_key(*key));
        patch.extend(gone.map(|key| (key.clone(), Value::Null)));
        patch
    }
    let plain = |object: &Value| {
        let mut object = object.clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            for field in [
                "resourceVersion",
                "managedFields",
                "generation",
                "uid",
                "creationTimestamp",
            ] {
                meta.remove(field);
            }
        }
        object
    };
    match (plain(old), plain(new)) {
        (Value::Object(old), Value::Object(new)) => of(&old, &new).into(),
        _ => json!({}),
    }
}

/// Applies a merge patch.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

/// Whether two merge patches speak of the same field.
fn overlap(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => a
            .iter()
            .any(|(key, mine)| b.get(key).is_some_and(|theirs| overlap(mine, theirs))),
        _ => true,
    }
}

fn text_of(object: &Value, format: &str) -> String {
    let mut object = object.clone();
    if let Some(meta) = object["metadata"].as_object_mut() {
        meta.remove("managedFields");
    }
    if format == "json" {
        serde_json::to_string_pretty(&object).unwrap_or_default() + "\n"
    } else {
        manifest::to_yaml(&object)
    }
}

fn head(why: &str, format: &str) -> String {
    if format == "json" {
        return String::new();
    }
    let mut lines = String::from(
        "# Lines that begin with # are left out. An empty file ends the edit.\n# If saving fails, this file opens again with the reason.\n#\n",
    );
    for line in why.lines() {
        lines.push_str(&format!("# {}\n", text::line(line)));
    }
    lines
}

fn without_comments(text: &str) -> String {
    // Only those at the head: # may be content further down.
    let rest = text.lines().skip_while(|line| line.starts_with('#'));
    rest.map(|line| format!("{line}\n")).collect()
}

fn write(path: &Path, content: &str) -> Result<()> {
    let failed = |error| Error::file("write", path, &error);
    let mut file = std::fs::File::create(path).map_err(failed)?;
    file.write_all(content.as_bytes()).map_err(failed)
}

async fn editor(session: &Session<'_>, path: &Path) -> Result<()> {
    let env = &session.io.env;
    let words = ["PANDA_EDITOR", "KUBE_EDITOR", "VISUAL", "EDITOR"]
        .iter()
        .find_map(|name| env.var(name))
        .unwrap_or("vi");
    let hint = "set EDITOR to a program that waits until the file is closed, for example EDITOR=nano";
    // As everywhere, EDITOR is a piece of shell: it may carry arguments and quotes.
    let status = tokio::process::Command::new("/bin/sh")
        .args(["-c", &format!("{words} \"$0\"")])
        .arg(path)
        .stdin(Stdio::inherit())
        .status()
        .await
        .map_err(|error| Error::user(format!("cannot start the editor {words:?}: {error}")).hint(hint))?;
    if status.success() {
        Ok(())
    } else {
        Err(Error::user(format!("the editor {words:?} failed: {status}")).hint(hint))
    }
}

fn keep(file: tempfile::NamedTempFile, error: Error) -> Error {
    match file.keep() {
        Ok((_, path)) => error.hint(saved(&path)),
        Err(_) => error,
    }
}

fn kept(file: tempfile::NamedTempFile, why: &str) -> Error {
    keep(file, Error::user(format!("the edit was not saved: {why}")))
}

fn saved(path: &Path) -> String {
    format!("a copy of your changes is in {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_differences_are_sent() {
        let old = json!({"metadata": {"name": "x", "labels": {"a": "1", "b": "2"}, "generation": 1}, "spec": {"l": [1], "n": 1}});
        let new = json!({"metadata": {"name": "x", "labels": {"a": "1"}, "generation": 7}, "spec": {"l": [2], "n": 1, "o": {}}});
        assert_eq!(
            difference(&old, &new),
            json!({"metadata": {"labels": {"b": null}}, "spec": {"l": [2], "o": {}}})
        );
        assert_eq!(difference(&old, &old), json!({}));
    }

    #[test]
    fn changes_of_the_same_field_meet() {
        let a = json!({"spec": {"x": 1, "y": 1}});
        assert!(overlap(&a, &json!({"spec": {"y": 2}})));
        assert!(overlap(&a, &json!({"spec": null})));
        assert!(!overlap(&a, &json!({"spec": {"z": 2}, "status": {"x": 1}})));
    }

    #[test]
    fn comments_are_cut_at_the_head_only() {
        assert_eq!(without_comments("# a\n#\nspec:\n# b\n"), "spec:\n# b\n");
    }
}
