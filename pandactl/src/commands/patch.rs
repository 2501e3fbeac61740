//! `pandactl patch`.

use panda_api::manifest;
use panda_client::api::PatchKind;
use panda_client::params::WriteParams;
use serde_json::Value;

use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::format::Format;
use crate::session::{Session, object_name};

/// Arguments of `patch`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl patch task fix-login -p '{\"spec\":{\"priority\":5}}'
  pandactl patch device/laptop -p 'spec: {maxRuns: 2}'
  pandactl patch task/x --type=json \\
    -p '[{\"op\":\"replace\",\"path\":\"/spec/priority\",\"value\":5}]'
  pandactl patch task/x --patch-file change.yaml --dry-run=server -o yaml")]
pub struct PatchArgs {
    /// KIND NAME or KIND/NAME
    #[arg(value_name = "KIND[/NAME]", required = true)]
    pub resources: Vec<String>,
    /// The patch, as JSON or YAML
    #[arg(short = 'p', long, value_name = "PATCH")]
    pub patch: Option<String>,
    /// File with the patch
    #[arg(long, value_name = "FILE", conflicts_with = "patch")]
    pub patch_file: Option<std::path::PathBuf>,
    /// merge: null deletes, lists are replaced; json: a list of operations
    #[arg(long = "type", value_name = "TYPE", default_value = "merge", value_parser = ["merge", "json", "strategic"], hide_possible_values = true)]
    pub type_: String,
    /// status: change the status instead of the rest
    #[arg(long, value_name = "NAME", value_parser = ["status"], hide_possible_values = true)]
    pub subresource: Option<String>,
    /// Say what would be changed
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client", value_parser = ["none", "client", "server"], hide_possible_values = true)]
    pub dry_run: Option<String>,
    /// json, yaml, name, jsonpath=TEMPLATE or custom-columns=…: print the result
    #[arg(short, long, value_name = "FORMAT")]
    pub output: Option<String>,
}

pub(crate) async fn run(args: PatchArgs, session: &mut Session<'_>) -> Result<Exit> {
    let format = Format::parse(args.output.as_deref())?;
    let kind = match args.type_.as_str() {
        "json" => PatchKind::Json,
        "strategic" => {
            return Err(Error::user("there is no strategic merge for these kinds")
                .hint("use --type=merge, which replaces lists as a whole, or --type=json"));
        }
        _ => PatchKind::Merge,
    };
    let patch = body(&args)?;
    check_shape(kind, &patch)?;
    // A server alone can apply a patch truly: without one, a dry run says nothing.
    let dry_run = args.dry_run.as_deref().filter(|place| *place != "none");
    let suffix = match dry_run {
        None => "",
        Some("server") => " (server dry run)",
        Some(_) => " (dry run)",
    };
    let params = WriteParams {
        field_manager: Some("pandactl-patch".to_owned()),
        dry_run: dry_run.is_some(),
        ..WriteParams::default()
    };
    let mut failed: Option<Error> = None;
    for (resource, name) in args::named(session, &args.resources).await? {
        let api = session.api(&resource)?;
        let changed = async {
            let before = api.get(&name).await?;
            let after = api
                .patch_as(&name, args.subresource.as_deref(), kind, &patch, &params)
                .await?;
            Ok::<_, Error>((before != after, after))
        };
        match changed.await {
            Ok((changed, object)) => {
                let text = if format.is_table() {
                    let no_change = if changed { "" } else { " (no change)" };
                    format!("{} patched{no_change}{suffix}\n", object_name(&resource, &name))
                } else {
                    format.one(&object, &resource)?
                };
                session.out(text)?;
            }
            Err(error) => {
                if let Some(before) = failed.replace(error) {
                    crate::cli::report(&before, &session.io.stderr, session.color_err());
                }
            }
        }
    }
    session.io.flush()?;
    failed.map_or(Ok(0), Err)
}

fn body(args: &PatchArgs) -> Result<Value> {
    let (name, bytes) = match (&args.patch, &args.patch_file) {
        (Some(text), _) => ("-p".to_owned(), text.clone().into_bytes()),
        (None, Some(path)) => {
            let bytes = std::fs::read(path).map_err(|error| Error::file("read", path, &error))?;
            (path.display().to_string(), bytes)
        }
        (None, None) => {
            return Err(Error::user("no patch given").hint("give one with -p or --patch-file"));
        }
    };
    manifest::read_value(&name, &bytes).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(|error| error.render(false)).collect();
        Error::user(format!("the patch cannot be read:\n{}", lines.join("\n")))
            .hint("write it as JSON or YAML, for example -p '{\"spec\":{\"priority\":5}}'")
    })
}

fn check_shape(kind: PatchKind, patch: &Value) -> Result<()> {
    match kind {
        PatchKind::Merge if !patch.is_object() => Err(Error::user("a merge patch is an object")
            .hint("for example '{\"spec\":{\"priority\":5}}'; --type=json takes a list of operations")),
        PatchKind::Json if !patch.is_array() => Err(Error::user("a JSON patch is a list of operations")
            .hint("for example '[{\"op\":\"remove\",\"path\":\"/spec/deadline\"}]'")),
        _ => Ok(()),
    }
}
