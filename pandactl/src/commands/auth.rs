//! `pandactl auth`: who one is, and what one may do. The server is asked; nothing is guessed here.

mod can_i;

use panda_api::access::SelfSubjectReview;
use panda_client::Api;
use panda_client::params::WriteParams;

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::{table, text};
use crate::session::Session;

/// Arguments of `auth`.
#[derive(Clone, Debug, clap::Args)]
pub struct AuthArgs {
    /// What to ask.
    #[command(subcommand)]
    pub what: Auth,
}

/// What can be asked.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Auth {
    /// Tell who the server takes one for
    Whoami(WhoamiArgs),
    /// Tell whether one may do something
    CanI(can_i::CanIArgs),
}

/// Arguments of `auth whoami`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl auth whoami -o yaml")]
pub struct WhoamiArgs {
    /// json or yaml
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
}

pub(crate) async fn run(args: AuthArgs, session: &mut Session<'_>) -> Result<Exit> {
    match args.what {
        Auth::Whoami(args) => whoami(args, session).await,
        Auth::CanI(args) => can_i::run(args, session).await,
    }
}

async fn whoami(args: WhoamiArgs, session: &mut Session<'_>) -> Result<Exit> {
    let api: Api<SelfSubjectReview> = Api::cluster(session.client()?);
    let review = api
        .create(&SelfSubjectReview::default(), &WriteParams::default())
        .await?;
    let value = serde_json::to_value(&review).unwrap_or_default();
    let shown = match args.output.as_deref() {
        Some("json") => format!("{}\n", serde_json::to_string_pretty(&value).unwrap_or_default()),
        Some("yaml") => panda_api::manifest::to_yaml(&value),
        Some(other) => {
            return Err(
                Error::user(format!("unknown output format {other:?}")).hint("the formats are json and yaml")
            );
        }
        None => {
            let user = review.status.user_info;
            let list = |words: &[String]| format!("[{}]", text::line(&words.join(" ")));
            let mut rows = vec![
                vec!["ATTRIBUTE".to_owned(), "VALUE".to_owned()],
                vec!["Username".to_owned(), text::line(&user.username)],
            ];
            if !user.uid.is_empty() {
                rows.push(vec!["UID".to_owned(), text::line(&user.uid)]);
            }
            rows.push(vec!["Groups".to_owned(), list(&user.groups)]);
            for (key, values) in &user.extra {
                rows.push(vec![format!("Extra: {}", text::line(key)), list(values)]);
            }
            table::align(&rows)
        }
    };
    session.out(shown)?;
    Ok(0)
}
