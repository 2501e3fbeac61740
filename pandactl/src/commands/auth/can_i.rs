//! `pandactl auth can-i`.

use panda_api::access::{
    AccessReviewSpec, NonResourceAttributes, ResourceAttributes, SelfSubjectAccessReview,
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectRulesReviewStatus,
};
use panda_client::Api;
use panda_client::params::WriteParams;

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::{table, text};
use crate::session::Session;

/// Arguments of `auth can-i`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 yes, 1 no.

Examples:
  pandactl auth can-i create tasks
  pandactl auth can-i get task/fix-login --subresource log
  pandactl auth can-i '*' '*' -A
  pandactl auth can-i get /metrics
  pandactl auth can-i --list -n web")]
pub struct CanIArgs {
    /// get, list, watch, create, update, patch, delete, use, …; `*` for all
    #[arg(value_name = "VERB", required_unless_present = "list")]
    pub verb: Option<String>,
    /// A kind, an object as KIND/NAME, or a path that begins with /
    #[arg(value_name = "KIND[/NAME]|PATH", required_unless_present = "list")]
    pub what: Option<String>,
    /// Name of the object
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// A part of the object, for example log or status
    #[arg(long, value_name = "PART")]
    pub subresource: Option<String>,
    /// In all namespaces
    #[arg(short = 'A', long)]
    pub all_namespaces: bool,
    /// All that is allowed, instead
    #[arg(long, conflicts_with_all = ["verb", "all_namespaces", "subresource"])]
    pub list: bool,
    /// Say nothing, answer by exit code
    #[arg(short, long)]
    pub quiet: bool,
}

pub(super) async fn run(args: CanIArgs, session: &mut Session<'_>) -> Result<Exit> {
    if args.list {
        return list(session).await;
    }
    let spec = question(&args, session).await?;
    let api: Api<SelfSubjectAccessReview> = Api::cluster(session.client()?);
    let review = SelfSubjectAccessReview {
        spec,
        ..SelfSubjectAccessReview::default()
    };
    let status = api.create(&review, &WriteParams::default()).await?.status;
    if !args.quiet {
        let mut answer = if status.allowed { "yes" } else { "no" }.to_owned();
        for more in [&status.reason, &status.evaluation_error] {
            if !more.is_empty() {
                answer.push_str(&format!(" - {}", text::line(more)));
            }
        }
        session.out(format!("{answer}\n"))?;
    }
    Ok(Exit::from(!status.allowed))
}

async fn question(args: &CanIArgs, session: &mut Session<'_>) -> Result<AccessReviewSpec> {
    let verb = args.verb.clone().unwrap_or_default();
    let what = args.what.as_deref().unwrap_or_default();
    if what.starts_with('/') {
        if args.subresource.is_some() || args.name.is_some() {
            return Err(Error::user("a path has no name and no subresource")
                .hint("ask for example: pandactl auth can-i get /metrics"));
        }
        return Ok(AccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes {
                path: what.to_owned(),
                verb,
            }),
            ..AccessReviewSpec::default()
        });
    }
    let (word, name) = match (what.split_once('/'), &args.name) {
        (Some(_), Some(_)) => {
            return Err(Error::user("the name is given twice").hint("want KIND/NAME or KIND NAME"));
        }
        (Some((word, name)), None) => (word, name.to_owned()),
        (None, name) => (what, name.clone().unwrap_or_default()),
    };
    let namespace = if args.all_namespaces {
        String::new()
    } else {
        session.namespace()?
    };
    let mut on = ResourceAttributes {
        verb,
        namespace,
        name,
        subresource: args.subresource.clone().unwrap_or_default(),
        ..ResourceAttributes::default()
    };
    if word == "*" {
        on.group = "*".to_owned();
        on.resource = "*".to_owned();
    } else if let Ok(resource) = session.resolve(word).await {
        if !resource.namespaced {
            if session.global.namespace.is_some() {
                session.note(&format!(
                    "Warning: resource '{}' is not namespace scoped",
                    text::line(&resource.plural)
                ));
            }
            on.namespace = String::new();
        }
        on.group = resource.group;
        on.version = resource.version;
        on.resource = resource.plural;
    } else {
        // Roles may speak of resources that are no kinds, as `sandboxprofiles`.
        let (plural, group) = word.split_once('.').unwrap_or((word, ""));
        session.note(&format!(
            "Warning: the server doesn't have a resource type '{}'",
            text::line(word)
        ));
        on.resource = plural.to_owned();
        on.group = group.to_owned();
    }
    Ok(AccessReviewSpec {
        resource_attributes: Some(on),
        ..AccessReviewSpec::default()
    })
}

async fn list(session: &mut Session<'_>) -> Result<Exit> {
    let namespace = session.namespace()?;
    let api: Api<SelfSubjectRulesReview> = Api::cluster(session.client()?);
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec { namespace },
        ..SelfSubjectRulesReview::default()
    };
    let status = api.create(&review, &WriteParams::default()).await?.status;
    if status.incomplete {
        session.note(&format!(
            "Warning: the list may be incomplete: {}",
            text::line(&status.evaluation_error)
        ));
    }
    session.out(table::align(&rows(status)))?;
    Ok(0)
}

fn rows(status: SubjectRulesReviewStatus) -> Vec<Vec<String>> {
    let show = |words: &[String]| format!("[{}]", text::line(&words.join(" ")));
    let mut rows = Vec::new();
    for rule in &status.resource_rules {
        for group in &rule.api_groups {
            for resource in &rule.resources {
                let qualified = if group.is_empty() {
                    resource.clone()
                } else {
                    format!("{resource}.{group}")
                };
                let names = show(&rule.resource_names);
                rows.push(vec![
                    text::line(&qualified),
                    "[]".to_owned(),
                    names,
                    show(&rule.verbs),
                ]);
            }
        }
    }
    for rule in &status.non_resource_rules {
        for path in &rule.non_resource_urls {
            rows.push(vec![
                String::new(),
                show(std::slice::from_ref(path)),
                "[]".to_owned(),
                show(&rule.verbs),
            ]);
        }
    }
    rows.sort();
    rows.dedup();
    // Objects first, as kubectl shows them.
    rows.sort_by_key(|row| row[0].is_empty());
    let head = ["Resources", "Non-Resource URLs", "Resource Names", "Verbs"];
    rows.insert(0, head.map(ToOwned::to_owned).to_vec());
    rows
}
