//! `pandactl config`.

mod entries;

use std::io::Write;
use std::path::Path;

use panda_client::config::Kubeconfig;
use serde_json::Value;

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::table::align;
use crate::output::text;
use crate::session::Session;

/// Arguments of `config`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  pandactl config get-contexts\n  pandactl config use-context panda\n  pandactl config set-context --current --namespace web\n  pandactl config set-cluster lab --server https://lab:7443 --certificate-authority ca.crt --embed-certs\n  pandactl config set-credentials robot --token \"$TOKEN\"\n  pandactl config view"
)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub what: What,
}

/// What can be done.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum What {
    /// Show the kubeconfig, without what is secret
    View {
        /// Show what is secret, too
        #[arg(long)]
        raw: bool,
    },
    /// Show the name of the current context
    CurrentContext,
    /// Choose the current context
    UseContext {
        /// Its name
        name: String,
    },
    /// Make a context, or change one: what is not given stays
    SetContext {
        /// Its name
        #[arg(required_unless_present = "current", conflicts_with = "current")]
        name: Option<String>,
        /// The current one
        #[arg(long)]
        current: bool,
        /// Name of the cluster in the kubeconfig
        #[arg(long)]
        cluster: Option<String>,
        /// Name of the user in the kubeconfig
        #[arg(long)]
        user: Option<String>,
    },
    /// Make a cluster, or change one: what is not given stays
    SetCluster(entries::SetCluster),
    /// Make a user, or change one: what is not given stays
    SetCredentials(entries::SetCredentials),
    /// Remove a context
    DeleteContext {
        /// Its name
        name: String,
    },
    /// Give a context another name
    RenameContext {
        /// Its name
        name: String,
        /// The name it gets
        new: String,
    },
    /// List the contexts
    GetContexts {
        /// name: names only
        #[arg(short, long, value_name = "FORMAT", value_parser = ["name"], hide_possible_values = true)]
        output: Option<String>,
        /// No headings
        #[arg(long)]
        no_headers: bool,
    },
}

pub(crate) fn run(args: ConfigArgs, session: &mut Session<'_>) -> Result<Exit> {
    let makes = matches!(
        args.what,
        What::SetCluster(_) | What::SetCredentials(_) | What::SetContext { .. }
    );
    let mut config = match session.kubeconfig() {
        // Who sets something may begin with nothing.
        Err(_) if makes && is_absent(&session.config_path()?) => Kubeconfig::default(),
        config => config?,
    };
    match args.what {
        What::View { raw } => {
            let yaml = config.to_yaml()?;
            let mut value: Value = serde_yaml::from_str(&yaml)
                .map_err(|error| Error::config(error.to_string()).hint("mend the file by hand"))?;
            if !raw {
                redact(&mut value);
            }
            session.out(panda_api::manifest::to_yaml(&value))?;
        }
        What::CurrentContext => match config.current_context() {
            Some(name) => {
                let line = format!("{}\n", text::line(name));
                session.out(line)?;
            }
            None => return Err(no_current()),
        },
        What::UseContext { name } => {
            config.set_current_context(&name)?;
            save(&config, session)?;
            session.out(format!("Switched to context \"{}\".\n", text::line(&name)))?;
        }
        What::SetContext {
            name,
            cluster,
            user,
            current: _,
        } => {
            let name = name.or_else(|| config.current_context().map(str::to_owned));
            let name = name.ok_or_else(no_current)?;
            let old = config
                .contexts()?
                .into_iter()
                .find(|context| context.name == name);
            let done = if old.is_some() { "modified" } else { "created" };
            let mut context = old.unwrap_or_default();
            context.name.clone_from(&name);
            context.cluster = cluster.unwrap_or(context.cluster);
            context.user = user.unwrap_or(context.user);
            context.namespace = session.global.namespace.clone().or(context.namespace);
            if context.cluster.is_empty() {
                return Err(Error::user("which cluster is the context of?")
                    .hint("name one of the kubeconfig with --cluster"));
            }
            config.set_context(&context);
            save(&config, session)?;
            session.out(format!("Context \"{}\" {done}.\n", text::line(&name)))?;
        }
        What::SetCluster(args) => {
            let (name, done) = args.apply(&mut config)?;
            save(&config, session)?;
            session.out(format!("Cluster \"{name}\" {done}.\n"))?;
        }
        What::SetCredentials(args) => {
            let (name, done) = args.apply(&mut config)?;
            save(&config, session)?;
            session.out(format!("User \"{name}\" {done}.\n"))?;
        }
        What::DeleteContext { name } => {
            config.remove_context(&name)?;
            save(&config, session)?;
            session.out(format!("Deleted context \"{}\".\n", text::line(&name)))?;
        }
        What::RenameContext { name, new } => {
            config.rename_context(&name, &new)?;
            save(&config, session)?;
            let (name, new) = (text::line(&name), text::line(&new));
            session.out(format!("Context \"{name}\" renamed to \"{new}\".\n"))?;
        }
        What::GetContexts { output, no_headers } => {
            let names = output.is_some();
            let current = config.current_context().unwrap_or_default().to_owned();
            let mut rows = Vec::new();
            if !names && !no_headers {
                rows.push(
                    ["CURRENT", "NAME", "CLUSTER", "USER", "NAMESPACE"]
                        .map(str::to_owned)
                        .to_vec(),
                );
            }
            for context in config.contexts()? {
                if names {
                    rows.push(vec![text::line(&context.name)]);
                    continue;
                }
                let mark = if context.name == current { "*" } else { "" };
                let namespace = context.namespace.unwrap_or_default();
                rows.push(
                    [mark, &context.name, &context.cluster, &context.user, &namespace]
                        .map(text::line)
                        .to_vec(),
                );
            }
            session.out(align(&rows))?;
        }
    }
    Ok(0)
}

fn no_current() -> Error {
    Error::config("no current context is set").hint("choose one with `pandactl config use-context NAME`")
}

fn is_absent(path: &Path) -> bool {
    matches!(path.try_exists(), Ok(false))
}

fn save(config: &Kubeconfig, session: &Session<'_>) -> Result<()> {
    let path = session.config_path()?;
    replace(&path, config.to_yaml()?.as_bytes()).map_err(|error| Error::file("write", &path, &error))
}

fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match key.as_str() {
                    "client-key-data" | "token" | "password" => *value = "REDACTED".into(),
                    "certificate-authority-data" | "client-certificate-data" => {
                        *value = "DATA+OMITTED".into()
                    }
                    _ => redact(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(redact),
        _ => {}
    }
}

/// Replaces a file as a whole, for its owner's eyes only.
fn replace(path: &Path, content: &[u8]) -> std::io::Result<()> {
    if is_absent(path)
        && let Some(folder) = path.parent()
    {
        std::fs::create_dir_all(folder)?;
    }
    // A link stays a link: what it points to is replaced.
    let path = match std::fs::canonicalize(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => path.to_owned(),
        path => path?,
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_not_shown() {
        let mut value =
            serde_json::json!({"users": [{"name": "u", "user": {"client-key-data": "a2V5", "token": "t"}}]});
        redact(&mut value);
        assert!(!value.to_string().contains("a2V5") && !value.to_string().contains("\"t\""));
    }
}
