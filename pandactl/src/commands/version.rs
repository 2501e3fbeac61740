//! `pandactl version`.

use serde_json::{Value, json};

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::text;
use crate::session::Session;

/// Arguments of `version`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  pandactl version\n  pandactl version --client -o json")]
pub struct VersionArgs {
    /// Only that of this program; no server is asked
    #[arg(long)]
    pub client: bool,
    /// json or yaml
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
}

pub(crate) async fn run(args: VersionArgs, session: &mut Session<'_>) -> Result<Exit> {
    let client = env!("CARGO_PKG_VERSION");
    let server: Option<Value> = if args.client {
        None
    } else {
        Some(session.client()?.get_json("/version").await?)
    };
    let mut all = json!({"clientVersion": {"gitVersion": format!("v{client}")}});
    if let Some(server) = &server {
        all["serverVersion"] = server.clone();
    }
    let text = match args.output.as_deref() {
        Some("json") => format!("{}\n", serde_json::to_string_pretty(&all).unwrap_or_default()),
        Some("yaml") => panda_api::manifest::to_yaml(&all),
        Some(other) => {
            return Err(
                Error::user(format!("unknown output format {other:?}")).hint("the formats are json and yaml")
            );
        }
        None => {
            let mut text = format!("Client Version: v{client}\n");
            if let Some(server) = server {
                let version = server["gitVersion"].as_str().unwrap_or("unknown");
                text.push_str(&format!("Server Version: {}\n", text::line(version)));
            }
            text
        }
    };
    session.out(text)?;
    Ok(0)
}
