//! `pandactl create serviceaccount` and `pandactl create token`.

use std::time::Duration;

use panda_api::ServiceAccount;
use panda_api::access::{TokenRequest, TokenRequestSpec};
use panda_client::ApiResource;
use serde_json::{Value, json};

use super::Making;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::session::Session;

/// Arguments of `create serviceaccount`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl create serviceaccount ci")]
pub struct AccountArgs {
    /// Its name
    pub name: String,
    #[command(flatten)]
    making: Making,
}

/// Arguments of `create token`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The token is shown once and stored nowhere. It ends with its time, and with its account.

Example:
  pandactl create token ci --duration 24h"
)]
pub struct TokenArgs {
    /// Name of the ServiceAccount
    #[arg(value_name = "ACCOUNT")]
    pub name: String,
    /// How long it is good, at least 10m
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = crate::args::duration)]
    pub duration: Duration,
    /// Whom it is for, instead of this API; may be repeated
    #[arg(long, value_name = "AUDIENCE")]
    pub audience: Vec<String>,
    /// json or yaml: show the whole answer
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
}

pub(super) async fn account(args: AccountArgs, session: &mut Session<'_>) -> Result<Exit> {
    let object = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": super::metadata(&args.name, session)?,
    });
    args.making.make(object, session).await?;
    Ok(0)
}

pub(super) async fn token(args: TokenArgs, session: &mut Session<'_>) -> Result<Exit> {
    let request = TokenRequest {
        spec: TokenRequestSpec {
            audiences: args.audience,
            expiration_seconds: Some(i64::try_from(args.duration.as_secs()).unwrap_or(i64::MAX)),
            bound_object_ref: None,
        },
        ..TokenRequest::default()
    };
    let mut resource = ApiResource::of::<ServiceAccount>();
    resource.singular = "serviceaccount".to_owned();
    let answer: Value = session
        .api(&resource)?
        .post_subresource(&args.name, "token", &request)
        .await?;
    let shown = match args.output.as_deref() {
        None => format!("{}\n", answer["status"]["token"].as_str().unwrap_or_default()),
        Some("json") => format!("{}\n", serde_json::to_string_pretty(&answer).unwrap_or_default()),
        Some("yaml") => panda_api::manifest::to_yaml(&answer),
        Some(other) => {
            return Err(
                Error::user(format!("unknown output format {other:?}")).hint("the formats are json and yaml")
            );
        }
    };
    session.out(shown)?;
    Ok(0)
}
