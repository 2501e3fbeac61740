//! `cordon` and `uncordon`.

use panda_api::Device;
use panda_client::ApiResource;
use panda_client::params::WriteParams;
use serde_json::json;

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::session::{Session, object_name};

/// Arguments of `cordon`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl cordon laptop")]
pub struct CordonArgs {
    /// Names of devices
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,
}

/// Arguments of `uncordon`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Example:\n  pandactl uncordon laptop")]
pub struct UncordonArgs {
    /// Names of devices
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<String>,
}

pub(crate) async fn cordon(args: CordonArgs, session: &mut Session<'_>) -> Result<Exit> {
    set(&args.devices, true, session).await
}

pub(crate) async fn uncordon(args: UncordonArgs, session: &mut Session<'_>) -> Result<Exit> {
    set(&args.devices, false, session).await
}

async fn set(devices: &[String], cordoned: bool, session: &mut Session<'_>) -> Result<Exit> {
    let mut resource = ApiResource::of::<Device>();
    resource.singular = "device".to_owned();
    let api = session.api_in(&resource, None)?;
    let params = WriteParams {
        field_manager: Some("pandactl".to_owned()),
        ..WriteParams::default()
    };
    let done = if cordoned { "cordoned" } else { "uncordoned" };
    let mut failed: Option<Error> = None;
    for word in devices {
        let name = word.strip_prefix("device/").unwrap_or(word);
        let outcome = async {
            let live = api.get(name).await?;
            if live["spec"]["unschedulable"].as_bool().unwrap_or(false) == cordoned {
                return Ok::<_, Error>(format!("{} already {done}\n", object_name(&resource, name)));
            }
            api.patch_merge(name, &json!({"spec": {"unschedulable": cordoned}}), &params)
                .await?;
            Ok(format!("{} {done}\n", object_name(&resource, name)))
        };
        match outcome.await {
            Ok(line) => session.out(line)?,
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
