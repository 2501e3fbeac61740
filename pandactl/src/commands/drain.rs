//! `pandactl drain`: cordon a device and wait until no run is left on it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use panda_api::{Device, Run, RunPhase};
use panda_client::params::{ListParams, WatchParams, WriteParams};
use panda_client::watch::WatchEvent;
use panda_client::{Api, ApiResource};
use serde_json::json;
use tokio::time::Instant;

use super::taint::{devices, names};
use crate::args;
use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::session::{Session, object_name};

/// Before a watch that ended is begun again.
const PAUSE: Duration = Duration::from_millis(500);

/// Arguments of `drain`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl drain laptop
  pandactl drain laptop --wait-runs --timeout=2h
  pandactl drain laptop --dry-run
  pandactl uncordon laptop

The device is cordoned, and its runs are moved: each ends there, and its task
starts again on another device without spending a retry. A run that is being
published finishes. The device stays cordoned.")]
pub struct DrainArgs {
    /// Names of devices
    #[arg(value_name = "DEVICE")]
    pub devices: Vec<String>,
    /// Label selector
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// How long to wait for each device; 0: as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = args::timeout, default_value = "0")]
    pub timeout: Duration,
    /// Let the runs finish instead of moving them
    #[arg(long)]
    pub wait_runs: bool,
    /// End runs that can go nowhere else, too: their tasks wait for this device
    #[arg(long, conflicts_with = "wait_runs")]
    pub force: bool,
    /// Say what would be done
    #[arg(long, value_name = "WHERE", num_args = 0..=1, require_equals = true, default_missing_value = "client", value_parser = ["none", "client", "server"], hide_possible_values = true)]
    pub dry_run: Option<String>,
}

pub(crate) async fn run(args: DrainArgs, session: &mut Session<'_>) -> Result<Exit> {
    let api: Api<Device> = Api::cluster(session.client()?);
    let mut failed: Option<Error> = None;
    for name in devices(&api, names(&args.devices), args.selector.as_deref(), false).await? {
        if let Err(error) = drain(&api, &name, &args, session).await
            && let Some(before) = failed.replace(error)
        {
            crate::cli::report(&before, &session.io.stderr, session.color_err());
        }
        session.io.flush()?;
    }
    failed.map_or(Ok(0), Err)
}

fn shown(kind: &str, resource: ApiResource, name: &str) -> String {
    let resource = ApiResource {
        singular: kind.to_owned(),
        ..resource
    };
    object_name(&resource, name)
}

async fn drain(api: &Api<Device>, name: &str, args: &DrainArgs, session: &mut Session<'_>) -> Result<()> {
    let dry_run = args.dry_run.as_deref().filter(|place| *place != "none");
    let device = api.get(name).await?;
    let word = shown("device", ApiResource::of::<Device>(), name);
    let suffix = match dry_run {
        None => "",
        Some("server") => " (server dry run)",
        Some(_) => " (dry run)",
    };
    if device.spec.unschedulable == Some(true) {
        session.out(format!("{word} already cordoned{suffix}\n"))?;
    } else {
        if dry_run != Some("client") {
            let cordon = json!({"spec": {"unschedulable": true}});
            api.patch_merge(name, &cordon, &params(dry_run.is_some())).await?;
        }
        session.out(format!("{word} cordoned{suffix}\n"))?;
    }
    session.io.flush()?;
    let runs: Api<Run> = Api::all(session.client()?);
    let here = live(&runs, &device).await?;
    if !args.force && !args.wait_runs {
        refuse_pinned(&here, name)?;
    }
    if dry_run.is_some() {
        for run in here {
            session.out(format!("{} would be {}{suffix}\n", label(&run), fate(&run, args)))?;
        }
        return Ok(());
    }
    if !here.is_empty() && !is_ready(&device) {
        session.note(&format!(
            "Warning: {word} is not Ready: its runs end when it is back, or when they are taken to be lost"
        ));
    }
    wait(&runs, &device, args, session).await?;
    session.out(format!("{word} drained\n"))
}

/// Moves or awaits the runs until none is left.
async fn wait(runs: &Api<Run>, device: &Device, args: &DrainArgs, session: &mut Session<'_>) -> Result<()> {
    let deadline = (!args.timeout.is_zero()).then(|| Instant::now() + args.timeout);
    // By uid: what was last said of each run.
    let mut told: BTreeMap<String, (String, &'static str)> = BTreeMap::new();
    loop {
        let listed = runs.list_all(&ListParams::fields(selector(device))).await?;
        let version = listed.metadata.resource_version.clone();
        let mut here: BTreeMap<String, Run> = BTreeMap::new();
        for run in listed.items {
            see(&mut here, run, device);
        }
        let params = WatchParams {
            field_selector: Some(selector(device)),
            ..WatchParams::after(version)
        };
        let mut events = runs.watch(&params).await.ok();
        loop {
            tell(runs, &here, &mut told, args, session).await?;
            if here.is_empty() {
                return Ok(());
            }
            let next = async {
                match &mut events {
                    Some(events) => events.next().await,
                    None => None,
                }
            };
            let event = match deadline {
                None => Ok(next.await),
                Some(deadline) => tokio::time::timeout_at(deadline, next).await,
            };
            match event {
                Err(_) => return Err(timed_out(here.len(), device)),
                Ok(Some(Ok(WatchEvent::Added(run) | WatchEvent::Modified(run)))) => {
                    see(&mut here, run, device);
                }
                Ok(Some(Ok(WatchEvent::Deleted(run)))) => drop(here.remove(&run.metadata.uid)),
                Ok(Some(Ok(WatchEvent::Bookmark { .. }))) => {}
                // The stream ended or lost its place: from the list again.
                Ok(_) => break,
            }
        }
        let pause = Instant::now() + PAUSE;
        tokio::time::sleep_until(deadline.map_or(pause, |deadline| deadline.min(pause))).await;
    }
}

/// Takes a run as it is now into the runs that are left.
fn see(here: &mut BTreeMap<String, Run>, run: Run, device: &Device) {
    let uid = run.metadata.uid.clone();
    if is_live(&run, device) {
        here.insert(uid, run);
    } else {
        here.remove(&uid);
    }
}

/// Evicts what is to go, and says what has changed.
async fn tell(
    runs: &Api<Run>,
    here: &BTreeMap<String, Run>,
    told: &mut BTreeMap<String, (String, &'static str)>,
    args: &DrainArgs,
    session: &mut Session<'_>,
) -> Result<()> {
    let gone: Vec<String> = told
        .keys()
        .filter(|uid| !here.contains_key(*uid))
        .cloned()
        .collect();
    for uid in gone {
        if let Some((name, _)) = told.remove(&uid) {
            session.out(format!("{name} gone\n"))?;
        }
    }
    for (uid, run) in here {
        let fate = fate(run, args);
        if fate == "evicted" && run.spec.evict != Some(true) {
            evict(runs, run).await?;
        }
        let before = told.insert(uid.clone(), (label(run), fate));
        if before.is_none_or(|(_, before)| before != fate) {
            session.out(format!("{} {fate}\n", label(run)))?;
        }
    }
    session.io.flush()
}

fn timed_out(left: usize, device: &Device) -> Error {
    Error::user(format!(
        "timed out: {left} run(s) are still on device {}",
        device.metadata.name
    ))
    .hint("the device stays cordoned; run drain again to go on waiting, or uncordon it")
}

/// What becomes of a run.
fn fate(run: &Run, args: &DrainArgs) -> &'static str {
    let published = run.status.phase == Some(RunPhase::Publishing) || run.spec.publish.is_some();
    if args.wait_runs || published {
        "awaited"
    } else {
        "evicted"
    }
}

fn label(run: &Run) -> String {
    let name = shown("run", ApiResource::of::<Run>(), &run.metadata.name);
    format!("{name} (namespace {})", run.metadata.namespace)
}

fn is_ready(device: &Device) -> bool {
    let ready = device.status.conditions.iter().find(|c| c.type_ == "Ready");
    ready.is_some_and(|ready| ready.status == "True")
}

fn params(dry_run: bool) -> WriteParams {
    WriteParams {
        field_manager: Some("pandactl".to_owned()),
        dry_run,
        ..WriteParams::default()
    }
}

fn selector(device: &Device) -> String {
    format!("spec.deviceName={}", device.metadata.name)
}

/// Whether a run is bound to the device and has not ended.
fn is_live(run: &Run, device: &Device) -> bool {
    run.spec.device_name == device.metadata.name
        && run.spec.device_uid == device.metadata.uid
        && !run.status.phase.is_some_and(RunPhase::is_terminal)
}

async fn live(runs: &Api<Run>, device: &Device) -> Result<Vec<Run>> {
    let mut found = runs.list_all(&ListParams::fields(selector(device))).await?.items;
    found.retain(|run| is_live(run, device));
    Ok(found)
}

fn refuse_pinned(here: &[Run], device: &str) -> Result<()> {
    let pinned: Vec<String> = here
        .iter()
        .filter(|run| {
            let wanted = run.spec.device.as_ref();
            wanted.is_some_and(|wanted| wanted.name == device)
        })
        .map(label)
        .collect();
    if pinned.is_empty() {
        return Ok(());
    }
    Err(Error::user(format!(
        "these runs ask for this device by name and can go nowhere else: {}",
        pinned.join(", ")
    ))
    .hint("--wait-runs lets all runs finish; --force ends these, too"))
}

/// Exactly this version: it may have come to its publication meanwhile. The watch brings every change.
async fn evict(runs: &Api<Run>, run: &Run) -> Result<()> {
    let meta = &run.metadata;
    let patch = json!({
        "metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "spec": {"cancel": true, "evict": true},
    });
    let api = runs.within(&meta.namespace);
    match api.patch_merge(&meta.name, &patch, &params(false)).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
