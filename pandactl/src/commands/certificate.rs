//! `pandactl certificate`: requests for certificates that wait for a person.

use http::Method;
use panda_api::CertificateSigningRequest;
use panda_api::certificates::{APPROVED, DENIED, RequestCondition};
use panda_api::scheme;
use panda_client::Api;
use serde_json::json;

use crate::cli::Exit;
use crate::error::Result;
use crate::output::table::align;
use crate::session::{Session, resource_of};

/// Arguments of `certificate`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl certificate list
  pandactl certificate approve expired-pi")]
pub struct CertificateArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: CertificateVerb,
}

/// The verbs of `certificate`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum CertificateVerb {
    /// Show the requests
    List,
    /// Have requests answered with a certificate
    Approve(NamesArgs),
    /// Refuse requests
    Deny(NamesArgs),
}

/// Names of requests.
#[derive(Clone, Debug, clap::Args)]
pub struct NamesArgs {
    /// Names
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
}

/// Runs `certificate`.
pub(crate) async fn run(args: CertificateArgs, session: &mut Session<'_>) -> Result<Exit> {
    match args.verb {
        CertificateVerb::List => list(session).await,
        CertificateVerb::Approve(args) => decide(&args.names, APPROVED, "approved", session).await,
        CertificateVerb::Deny(args) => decide(&args.names, DENIED, "denied", session).await,
    }
}

async fn list(session: &mut Session<'_>) -> Result<Exit> {
    let api = Api::<CertificateSigningRequest>::cluster(session.client()?);
    let requests = api.list_all(&Default::default()).await?;
    let mut lines = vec![["NAME", "REQUESTOR", "CONDITION"].map(str::to_owned).to_vec()];
    for request in &requests.items {
        let decided = [APPROVED, DENIED]
            .iter()
            .find(|type_| request.status.condition(type_).is_some());
        lines.push(vec![
            request.metadata.name.clone(),
            request.spec.username.clone(),
            decided.map_or("Pending", |type_| *type_).to_owned(),
        ]);
    }
    session.out(align(&lines))?;
    Ok(0)
}

async fn decide(names: &[String], type_: &str, done: &str, session: &mut Session<'_>) -> Result<Exit> {
    let client = session.client()?;
    let api = Api::<CertificateSigningRequest>::cluster(client.clone());
    for name in names {
        let mut request = api.get(name).await?;
        request.status.conditions.push(RequestCondition {
            type_: type_.to_owned(),
            status: "True".to_owned(),
            reason: "DecidedByPerson".to_owned(),
            message: format!(
                "pandactl certificate {}",
                if type_ == APPROVED { "approve" } else { "deny" }
            ),
            ..RequestCondition::default()
        });
        let path = format!(
            "{}/{name}/approval",
            resource_of(scheme::of::<CertificateSigningRequest>()).path(None)
        );
        let body = json!(request).to_string();
        let put = panda_client::client::request(Method::PUT, &path, Some(body.into()))?;
        let _: CertificateSigningRequest = client.request_json(put).await?;
        session.out(format!("certificate request {name} {done}\n"))?;
    }
    Ok(0)
}
