//! `pandactl api-resources`.

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::table::align;
use crate::output::text;
use crate::session::Session;

/// Arguments of `api-resources`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  pandactl api-resources\n  pandactl api-resources --api-group panda.dev -o name"
)]
pub struct ApiResourcesArgs {
    /// Only kinds of this group; empty for the core group
    #[arg(long, value_name = "GROUP")]
    pub api_group: Option<String>,
    /// Only kinds with namespaces, or without
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub namespaced: Option<bool>,
    /// wide or name
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
    /// No headings
    #[arg(long)]
    pub no_headers: bool,
}

pub(crate) async fn run(args: ApiResourcesArgs, session: &mut Session<'_>) -> Result<Exit> {
    let wide = match args.output.as_deref() {
        None | Some("" | "name") => false,
        Some("wide") => true,
        Some(other) => {
            return Err(
                Error::user(format!("unknown output format {other:?}")).hint("the formats are wide and name")
            );
        }
    };
    let names = args.output.as_deref() == Some("name");
    let kinds: Vec<_> = session
        .discovery()
        .await?
        .resources()
        .iter()
        .filter(|kind| args.api_group.as_ref().is_none_or(|group| *group == kind.group))
        .filter(|kind| args.namespaced.is_none_or(|wanted| wanted == kind.namespaced))
        .cloned()
        .collect();
    let mut rows = Vec::new();
    if !names && !args.no_headers {
        let mut heads = vec!["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"];
        if wide {
            heads.extend(["VERBS", "CATEGORIES"]);
        }
        rows.push(heads.into_iter().map(str::to_owned).collect());
    }
    for kind in kinds {
        if names {
            rows.push(vec![kind.to_string()]);
            continue;
        }
        let mut row = vec![
            kind.plural.clone(),
            kind.short_names.join(","),
            kind.api_version(),
            kind.namespaced.to_string(),
            kind.kind.clone(),
        ];
        if wide {
            row.extend([kind.verbs.join(","), kind.categories.join(",")]);
        }
        rows.push(row.iter().map(|cell| text::line(cell)).collect::<Vec<_>>());
    }
    session.out(align(&rows))?;
    Ok(0)
}
