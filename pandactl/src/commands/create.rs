//! `pandactl create`: objects out of flags.

mod account;
mod task;

use panda_client::params::{FieldValidation, WriteParams};
use serde_json::{Value, json};

use crate::apply::merge;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::format::Format;
use crate::session::{Session, object_name};

/// Arguments of `create`.
#[derive(Clone, Debug, clap::Args)]
pub struct CreateArgs {
    /// What to make.
    #[command(subcommand)]
    pub what: Create,
}

/// What can be made.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Create {
    /// Make a task: something for an agent to do
    Task(Box<task::TaskArgs>),
    /// Make a namespace
    Namespace(NamespaceArgs),
    /// Make a config map
    Configmap(LiteralArgs),
    /// Make a secret
    #[command(subcommand)]
    Secret(Secret),
    /// Make an account for a program
    #[command(alias = "sa")]
    Serviceaccount(account::AccountArgs),
    /// Make a token of an account
    Token(account::TokenArgs),
}

/// Secrets.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Secret {
    /// Make a secret out of values
    Generic(LiteralArgs),
}

/// How the object is made and shown.
#[derive(Clone, Debug, clap::Args)]
pub struct Making {
    /// none, client or server: say what would be made
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client", value_parser = ["none", "client", "server"], hide_possible_values = true)]
    pub dry_run: Option<String>,
    /// json, yaml, name or jsonpath=TEMPLATE: show the object
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
}

/// Arguments of `create namespace`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl create namespace web")]
pub struct NamespaceArgs {
    /// Its name
    pub name: String,
    #[command(flatten)]
    making: Making,
}

/// Arguments of `create configmap` and `create secret generic`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl create secret generic gh --from-literal=token=ghp_…
  pandactl create secret generic gh --from-file=token=./token.txt
  pandactl create secret generic gh --from-env-file=./tokens.env
  pandactl create configmap style --from-file=guide.md")]
pub struct LiteralArgs {
    /// Its name
    pub name: String,
    /// A value; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub from_literal: Vec<String>,
    /// A value out of a file; the key is the file's name if none is given
    #[arg(long, value_name = "[KEY=]FILE")]
    pub from_file: Vec<String>,
    /// Values out of a file with a KEY=VALUE in each line; empty lines and lines that begin with # do not count
    #[arg(long, value_name = "FILE")]
    pub from_env_file: Vec<String>,
    #[command(flatten)]
    making: Making,
}

impl Making {
    fn is_dry(&self) -> bool {
        self.dry_run.as_deref().is_some_and(|place| place != "none")
    }

    /// Makes the object, or shows what would be made.
    async fn make(&self, object: Value, session: &mut Session<'_>) -> Result<Value> {
        let format = self
            .output
            .as_deref()
            .map(|text| Format::parse(Some(text)))
            .transpose()?;
        if format.as_ref().is_some_and(Format::is_table) {
            return Err(Error::user("create shows no tables").hint("use -o json, yaml, name or jsonpath="));
        }
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let resource = session
            .find(&text("apiVersion"), &text("kind"))
            .await?
            .ok_or_else(|| {
                Error::user(format!("the server has no kind {}", text("kind")))
                    .hint("`pandactl api-resources` lists the kinds")
            })?;
        let made = if self.dry_run.as_deref() == Some("client") {
            object
        } else {
            let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
            let api = session.api_in(&resource, namespace.as_deref())?;
            let params = WriteParams {
                dry_run: self.is_dry(),
                field_manager: Some("pandactl-create".to_owned()),
                field_validation: Some(FieldValidation::Strict),
                ..WriteParams::default()
            };
            api.create(&object, &params).await?
        };
        let name = made["metadata"]["name"].as_str().unwrap_or_default();
        let suffix = match self.dry_run.as_deref() {
            Some("client") => " (dry run)",
            Some("server") => " (server dry run)",
            _ => "",
        };
        let shown = match format {
            Some(format) => {
                let text = format.one(&made, &resource)?;
                format.safe(text, session.io.terminal.stdout)
            }
            None => format!("{} created{suffix}\n", object_name(&resource, name)),
        };
        session.out(shown)?;
        session.io.flush()?;
        Ok(made)
    }
}

pub(crate) async fn run(args: CreateArgs, session: &mut Session<'_>) -> Result<Exit> {
    match args.what {
        Create::Task(args) => task::run(*args, session).await,
        Create::Serviceaccount(args) => account::account(args, session).await,
        Create::Token(args) => account::token(args, session).await,
        Create::Namespace(args) => {
            let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": args.name}});
            args.making.make(object, session).await?;
            Ok(0)
        }
        Create::Configmap(args) => {
            let mut object =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(&args.name, session)?});
            for (key, bytes) in values(&args, session)? {
                match String::from_utf8(bytes) {
                    Ok(text) => object["data"][key] = text.into(),
                    Err(error) => object["binaryData"][key] = base64(error.as_bytes()).into(),
                }
            }
            args.making.make(object, session).await?;
            Ok(0)
        }
        Create::Secret(Secret::Generic(args)) => {
            let mut object = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata(&args.name, session)?});
            for (key, bytes) in values(&args, session)? {
                object["data"][key] = base64(&bytes).into();
            }
            merge::settle_secret(&mut object);
            args.making.make(object, session).await?;
            Ok(0)
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn metadata(name: &str, session: &mut Session<'_>) -> Result<Value> {
    Ok(json!({"name": name, "namespace": session.namespace()?}))
}

/// Largest file of a value: objects are no larger.
const MAX_VALUE: u64 = 1 << 20;

fn content(path: &str, session: &Session<'_>) -> Result<Vec<u8>> {
    let full = session.io.env.cwd.join(path);
    let fail = |error: std::io::Error| Error::file("read", std::path::Path::new(path), &error);
    if std::fs::metadata(&full).map_err(fail)?.len() > MAX_VALUE {
        return Err(Error::user(format!("{path} is larger than {MAX_VALUE} bytes"))
            .hint("large content belongs into files of the workspace"));
    }
    std::fs::read(&full).map_err(fail)
}

fn values(args: &LiteralArgs, session: &Session<'_>) -> Result<Vec<(String, Vec<u8>)>> {
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for literal in &args.from_literal {
        let Some((key, value)) = literal.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            // The text may be a secret: it is not repeated.
            return Err(
                Error::user("--from-literal: want KEY=VALUE").hint("for example --from-literal=token=abc")
            );
        };
        all.push((key.to_owned(), value.as_bytes().to_vec()));
    }
    for file in &args.from_file {
        let (key, path) = match file.split_once('=') {
            Some((key, path)) => (key.to_owned(), path),
            None => (file.rsplit('/').next().unwrap_or(file).to_owned(), file.as_str()),
        };
        all.push((key, content(path, session)?));
    }
    for path in &args.from_env_file {
        let bytes = content(path, session)?;
        let text = std::str::from_utf8(&bytes).map_err(|_| {
            Error::user(format!("{path} is not text")).hint("use --from-file for a value that is none")
        })?;
        for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            let line = line.trim_start();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            // The line may hold a secret: it is not repeated.
            let (key, value) = line
                .split_once('=')
                .filter(|(key, _)| !key.is_empty())
                .ok_or_else(|| {
                    Error::user(format!("{path}:{}: want KEY=VALUE", number + 1))
                        .hint("every line sets one key, without quotes")
                })?;
            all.push((key.to_owned(), value.as_bytes().to_vec()));
        }
    }
    for (at, (key, _)) in all.iter().enumerate() {
        if all[..at].iter().any(|(before, _)| before == key) {
            return Err(Error::user(format!("key {key:?} is given twice")).hint("give each key once"));
        }
    }
    Ok(all)
}
