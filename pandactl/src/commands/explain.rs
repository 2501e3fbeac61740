//! `pandactl explain`: what the fields of a kind mean, from the server's OpenAPI document.

use serde_json::Value;

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::text;
use crate::session::Session;

/// Deepest nesting that is shown.
const DEPTH: usize = 16;

/// Arguments of `explain`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl explain task
  pandactl explain task.spec.workspace.git
  pandactl explain device.spec --recursive")]
pub struct ExplainArgs {
    /// KIND, or KIND.FIELD.FIELD
    #[arg(value_name = "KIND[.FIELD]")]
    pub path: String,
    /// The names of all fields below
    #[arg(long)]
    pub recursive: bool,
}

pub(crate) async fn run(args: ExplainArgs, session: &mut Session<'_>) -> Result<Exit> {
    let mut parts = args.path.split('.');
    let kind = parts.next().unwrap_or_default();
    let resource = session.resolve(kind).await?;
    let base = if resource.group.is_empty() {
        format!("api/{}", resource.version)
    } else {
        format!("apis/{}/{}", resource.group, resource.version)
    };
    let document: Value = session.client()?.get_json(&format!("/openapi/v3/{base}")).await?;
    let schemas = &document["components"]["schemas"];
    let named = |schema: &&Value| {
        let kinds = schema["x-kubernetes-group-version-kind"].as_array();
        kinds.is_some_and(|kinds| kinds.iter().any(|k| k["kind"] == resource.kind.as_str()))
    };
    let root = schemas
        .as_object()
        .and_then(|schemas| schemas.values().find(named))
        .ok_or_else(|| {
            Error::user(format!("the server describes no {}", resource.kind))
                .hint("`pandactl api-resources` lists the kinds")
        })?;
    let mut schema = root;
    let mut walked = resource.singular.clone();
    let mut last = None;
    for part in parts.filter(|part| !part.is_empty()) {
        let owner = inner(schema, schemas);
        let Some(next) = owner["properties"].get(part) else {
            let known: Vec<&str> = fields(owner).map(|(name, _)| name.as_str()).collect();
            return Err(
                Error::user(format!("{walked} has no field {part:?}")).hint(if known.is_empty() {
                    "it has no fields below".to_owned()
                } else {
                    format!("its fields are {}", known.join(", "))
                }),
            );
        };
        last = Some((part.to_owned(), type_of(next, schemas), is_required(owner, part)));
        walked = format!("{walked}.{part}");
        schema = next;
    }
    let mut out = String::new();
    if !resource.group.is_empty() {
        out.push_str(&format!("GROUP:      {}\n", resource.group));
    }
    out.push_str(&format!(
        "KIND:       {}\nVERSION:    {}\n\n",
        resource.kind, resource.version
    ));
    if let Some((name, type_, required)) = last {
        let required = if required { " -required-" } else { "" };
        out.push_str(&format!("FIELD: {name} <{type_}>{required}\n\n"));
    }
    out.push_str("DESCRIPTION:\n");
    out.push_str(&text::wrap(&describe(schema, schemas), 4));
    let owner = inner(schema, schemas);
    if fields(owner).next().is_some() {
        out.push_str("\nFIELDS:\n");
        list(&mut out, owner, schemas, args.recursive, 1);
    }
    session.out(out)?;
    Ok(0)
}

/// A reference, or the only part of `allOf` and `anyOf`, in place of itself.
fn resolve<'a>(schema: &'a Value, schemas: &'a Value) -> &'a Value {
    let mut at = schema;
    for _ in 0..DEPTH {
        let next = match at["$ref"].as_str() {
            Some(link) => schemas.get(link.rsplit('/').next().unwrap_or_default()),
            None => ["allOf", "anyOf", "oneOf"]
                .iter()
                .filter(|_| at.get("properties").is_none() && at.get("type").is_none())
                .find_map(|key| at[*key].as_array()?.iter().find(|part| part["type"] != "null")),
        };
        match next {
            Some(next) => at = next,
            None => break,
        }
    }
    at
}

/// What holds the fields: items of a list, values of a map.
fn inner<'a>(schema: &'a Value, schemas: &'a Value) -> &'a Value {
    let mut at = resolve(schema, schemas);
    for _ in 0..DEPTH {
        let next = if at["items"].is_object() {
            &at["items"]
        } else if at["additionalProperties"].is_object() && at.get("properties").is_none() {
            &at["additionalProperties"]
        } else {
            break;
        };
        at = resolve(next, schemas);
    }
    at
}

fn fields(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flatten()
}

fn is_required(owner: &Value, name: &str) -> bool {
    let list = owner["required"].as_array();
    list.is_some_and(|list| list.iter().any(|field| field == name))
}

fn type_of(schema: &Value, schemas: &Value) -> String {
    let at = resolve(schema, schemas);
    let word = match &at["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|t| *t != "null"),
        other => other.as_str(),
    };
    match word {
        Some("array") => format!("[]{}", type_of(&at["items"], schemas)),
        Some("object") if at["additionalProperties"].is_object() && at.get("properties").is_none() => {
            format!("map[string]{}", type_of(&at["additionalProperties"], schemas))
        }
        Some("object") | None if at.get("properties").is_some() => "Object".to_owned(),
        Some("string") if at["enum"].is_array() => "enum".to_owned(),
        Some(word) => word.to_owned(),
        None => "Object".to_owned(),
    }
}

/// The description of a field, or else of its type; with the words of an enumeration.
fn describe(schema: &Value, schemas: &Value) -> String {
    let at = resolve(schema, schemas);
    let own = schema["description"].as_str();
    let mut words = own.or(at["description"].as_str()).unwrap_or("<empty>").to_owned();
    if let Some(values) = at["enum"].as_array() {
        let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        words.push_str(&format!("\n\nOne of: {}.", values.join(", ")));
    }
    words
}

fn list(out: &mut String, owner: &Value, schemas: &Value, recursive: bool, depth: usize) {
    for (name, schema) in fields(owner) {
        let required = if is_required(owner, name) {
            " -required-"
        } else {
            ""
        };
        let pad = "  ".repeat(depth);
        out.push_str(&format!(
            "{pad}{name}\t<{}>{required}\n",
            type_of(schema, schemas)
        ));
        if !recursive {
            out.push_str(&text::wrap(&describe(schema, schemas), 2 * depth + 2));
            out.push('\n');
        } else if depth < DEPTH {
            list(out, inner(schema, schemas), schemas, recursive, depth + 1);
        }
    }
}
