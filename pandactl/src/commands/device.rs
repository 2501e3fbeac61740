//! `pandactl device`: how machines become devices, and stop being ones.

use http::Method;
use panda_api::Device;
use panda_api::scheme;
use panda_client::params::DeleteParams;
use serde_json::{Value, json};

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::session::{Session, resource_of};

/// Where join tokens are made.
const JOIN_TOKENS: &str = "/apis/panda.dev/v1alpha1/jointokens";

/// Arguments of `device`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl device join-token --name pi
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
pub struct JoinTokenArgs {
    /// `create`, which is also meant when nothing is said
    #[arg(value_name = "VERB", value_parser = ["create"])]
    pub verb: Option<String>,
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
        DeviceVerb::JoinToken(args) => join_token(args, session).await,
        DeviceVerb::List => list(session).await,
        DeviceVerb::Remove(args) => remove(args, session).await,
    }
}

async fn join_token(args: JoinTokenArgs, session: &mut Session<'_>) -> Result<Exit> {
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

async fn list(session: &mut Session<'_>) -> Result<Exit> {
    let api = session.api(&resource_of(scheme::of::<Device>()))?;
    let devices = api.list_all(&Default::default()).await?;
    let mut lines = vec![["NAME", "READY", "CERTIFICATE UNTIL", "KEY"].map(str::to_owned)];
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
        lines.push([
            or_none(&device["metadata"]["name"]),
            ready.map_or_else(|| "Unknown".to_owned(), |ready| or_none(&ready["status"])),
            or_none(&status["certificateExpires"]),
            // Enough to compare by eye.
            key.chars().take("sha256:".len() + 16).collect(),
        ]);
    }
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let mut out = String::new();
    for [name, ready, until, key] in &lines {
        let [a, b, c] = widths;
        out.push_str(&format!("{name:a$}   {ready:b$}   {until:c$}   {key}\n"));
    }
    session.out(out)?;
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
