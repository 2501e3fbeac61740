//! `pandactl device`: how machines become devices, and stop being ones.

use http::Method;
use panda_api::Device;
use panda_api::scheme;
use panda_client::params::DeleteParams;
use serde_json::{Value, json};

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::format::Format;
use crate::output::table::align;
use crate::output::text;
use crate::session::{Session, resource_of};

/// Where join tokens are made.
const JOIN_TOKENS: &str = "/apis/panda.dev/v1alpha1/jointokens";

/// Arguments of `device`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl device join-token --name pi
  pandactl device join-token list
  pandactl device list
  pandactl device remove pi")]
pub struct DeviceArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: DeviceVerb,
}

/// The verbs of `device`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum DeviceVerb {
    /// Print the command that makes a machine a device; it works once
    JoinToken(JoinTokenArgs),
    /// Show the devices
    List,
    /// Forget devices: their certificates are worth nothing from then on
    Remove(RemoveArgs),
}

/// Arguments of `device join-token`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl device join-token --name pi
  pandactl device join-token list
  pandactl device join-token revoke 3f0c9a1b2d4e")]
pub struct JoinTokenArgs {
    /// What to do; without it, a token is made
    #[command(subcommand)]
    pub verb: Option<JoinTokenVerb>,
    /// What token to make
    #[command(flatten)]
    pub create: CreateTokenArgs,
}

/// The verbs of `device join-token`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum JoinTokenVerb {
    /// Make a token and print the command that uses it
    Create(CreateTokenArgs),
    /// Show the tokens, never their secrets: those that are good, and for a day those that were
    List(ListTokensArgs),
    /// Make tokens worthless; devices that have joined with them stay
    Revoke(RevokeTokensArgs),
}

/// Arguments of `device join-token create`.
#[derive(Clone, Debug, clap::Args)]
pub struct CreateTokenArgs {
    /// The only name that it is good for
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// How long it is good, at most 168h
    #[arg(long, value_name = "DURATION", default_value = "1h")]
    pub ttl: panda_api::meta::Duration,
    /// Address that the device reaches the server by [default: the one of the kubeconfig]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Print the token alone
    #[arg(long)]
    pub token_only: bool,
}

/// Arguments of `device join-token list`.
#[derive(Clone, Debug, clap::Args)]
pub struct ListTokensArgs {
    /// json or yaml
    #[arg(short, long, value_name = "FORMAT", value_parser = ["json", "yaml"], hide_possible_values = true)]
    pub output: Option<String>,
    /// No headings
    #[arg(long)]
    pub no_headers: bool,
}

/// Arguments of `device join-token revoke`.
#[derive(Clone, Debug, clap::Args)]
pub struct RevokeTokensArgs {
    /// Ids, as `list` shows them: the part of a token before the dot
    #[arg(value_name = "ID", required = true)]
    pub ids: Vec<String>,
}

/// Arguments of `device remove`.
#[derive(Clone, Debug, clap::Args)]
pub struct RemoveArgs {
    /// Names
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

/// Runs `device`.
pub(crate) async fn run(args: DeviceArgs, session: &mut Session<'_>) -> Result<Exit> {
    match args.verb {
        DeviceVerb::JoinToken(args) => match args.verb {
            None => join_token(args.create, session).await,
            Some(JoinTokenVerb::Create(create)) => join_token(create, session).await,
            Some(JoinTokenVerb::List(args)) => list_tokens(args, session).await,
            Some(JoinTokenVerb::Revoke(args)) => revoke_tokens(args, session).await,
        },
        DeviceVerb::List => list(session).await,
        DeviceVerb::Remove(args) => remove(args, session).await,
    }
}

async fn join_token(args: CreateTokenArgs, session: &mut Session<'_>) -> Result<Exit> {
    let server = match args.server {
        Some(server) => server,
        None => session.server()?,
    };
    let client = session.client()?;
    let mut body = json!({"ttlSeconds": args.ttl.get().as_secs()});
    if let Some(name) = &args.name {
        body["deviceName"] = name.as_str().into();
    }
    let request = panda_client::client::request(Method::POST, JOIN_TOKENS, Some(body.to_string().into()))?;
    let made: Value = client.request_json(request).await?;
    let text = |field: &str| made[field].as_str().unwrap_or_default().to_owned();
    let (token, hash) = (text("token"), text("caCertHash"));
    if token.is_empty() || hash.is_empty() {
        return Err(Error::user("the server sent no token").hint("compare `pandactl version`"));
    }
    if args.token_only {
        session.out(format!("{token}\n"))?;
        return Ok(0);
    }
    let name = args
        .name
        .map(|name| format!(" --name {name}"))
        .unwrap_or_default();
    let server = server.trim_end_matches('/');
    session.out(format!(
        "agentlet --server {server} --token {token} --ca-cert-hash {hash}{name}\n"
    ))?;
    session.note(&format!("good once, until {}", text("expires")));
    if ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .any(|host| server.contains(host))
    {
        session.note(
            "this address works on this machine only; for another, name one that it can reach: --server URL",
        );
    }
    Ok(0)
}

async fn list_tokens(args: ListTokensArgs, session: &mut Session<'_>) -> Result<Exit> {
    let request = panda_client::client::request(Method::GET, JOIN_TOKENS, None)?;
    let tokens: Value = session.client()?.request_json(request).await?;
    if let Some(format) = Format::parse(args.output.as_deref())?.machine(&tokens) {
        session.out(format)?;
        return Ok(0);
    }
    let tokens = tokens["items"].as_array().map_or(&[][..], Vec::as_slice);
    if tokens.is_empty() {
        session.note("No join tokens; `pandactl device join-token` makes one");
        return Ok(0);
    }
    let mut rows = Vec::new();
    if !args.no_headers {
        rows.push(
            ["ID", "STATE", "EXPIRES", "FOR", "JOINED"]
                .map(str::to_owned)
                .to_vec(),
        );
    }
    for token in tokens {
        let cell = |value: &Value, absent: &str| {
            let text = value.as_str().filter(|text| !text.is_empty());
            text::line(text.unwrap_or(absent))
        };
        rows.push(vec![
            cell(&token["metadata"]["name"], "?"),
            cell(&token["state"], "?"),
            cell(&token["expires"], "?"),
            cell(&token["deviceName"], "<any>"),
            cell(&token["joined"], "<none>"),
        ]);
    }
    session.out(align(&rows))?;
    Ok(0)
}

async fn revoke_tokens(args: RevokeTokensArgs, session: &mut Session<'_>) -> Result<Exit> {
    let client = session.client()?;
    for given in &args.ids {
        // Who pastes the whole token means its first part; the rest is not sent anywhere.
        let id = given.split('.').next().unwrap_or_default();
        if id.is_empty() || !id.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(
                Error::user(format!("{:?} is no id of a join token", text::line(id)))
                    .hint("`pandactl device join-token list` shows them"),
            );
        }
        let request = panda_client::client::request(Method::DELETE, &format!("{JOIN_TOKENS}/{id}"), None)?;
        let revoked: std::result::Result<Value, panda_client::Error> = client.request_json(request).await;
        let revoked = revoked.map_err(|error| match error.status() {
            Some(status) if status.code == 404 => Error::user(format!("there is no join token {id}"))
                .hint("`pandactl device join-token list` shows those that are kept"),
            _ => error.into(),
        })?;
        session.out(format!("join token {id} revoked\n"))?;
        if let Some(device) = revoked["joined"].as_str().filter(|name| !name.is_empty()) {
            let device = text::line(device);
            session.note(&format!(
                "device {device} has joined with it and stays; `pandactl device remove {device}` ends that"
            ));
        }
    }
    Ok(0)
}

async fn list(session: &mut Session<'_>) -> Result<Exit> {
    let api = session.api(&resource_of(scheme::of::<Device>()))?;
    let devices = api.list_all(&Default::default()).await?;
    let mut lines = vec![
        ["NAME", "READY", "CERTIFICATE UNTIL", "KEY"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for device in &devices.items {
        let status = &device["status"];
        let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
        let or_none = |value: &Value| {
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .unwrap_or("<none>")
                .to_owned()
        };
        let key = or_none(&status["keyFingerprint"]);
        lines.push(vec![
            or_none(&device["metadata"]["name"]),
            ready.map_or_else(|| "Unknown".to_owned(), |ready| or_none(&ready["status"])),
            or_none(&status["certificateExpires"]),
            // Enough to compare by eye.
            key.chars().take("sha256:".len() + 16).collect(),
        ]);
    }
    session.out(align(&lines))?;
    Ok(0)
}

async fn remove(args: RemoveArgs, session: &mut Session<'_>) -> Result<Exit> {
    let api = session.api(&resource_of(scheme::of::<Device>()))?;
    for name in &args.names {
        api.delete(name, &DeleteParams::default()).await?;
        session.out(format!("device {name} removed\n"))?;
    }
    Ok(0)
}
