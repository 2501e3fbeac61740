//! POST `runs/NAME/binding`: the one way in which a Run gets its device.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use axum::routing::post;
use panda_api::meta::{Condition, Reason, Status, set_condition};
use panda_api::{
    DEVICE_FINALIZER, Device, Lease, NetworkMode, NetworkSpec, Run, RunPhase, SandboxProfile, TASK_UID,
};
use panda_store::{ListRequest, Scope};
use serde::Deserialize;
use tokio::sync::{Mutex, MutexGuard};

use super::http::{self, Failure};
use super::orphans::{self, OrphanRecord};
use super::{Agentlets, leases, objects};
use crate::query::Params;

/// How often a lost race is run again.
const ATTEMPTS: usize = 8;
/// How many Tasks may bind at a time.
const TURNS: usize = 64;

/// Bindings of one Task come one after the other: whether another run of it is bound is looked up before the commit, and
/// two schedulers must not both find that none is. Tasks share turns; that costs them a commit's time.
pub(crate) struct Turns([Mutex<()>; TURNS]);

impl Default for Turns {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Turns {
    async fn of(&self, task_uid: &str) -> MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        task_uid.hash(&mut hasher);
        let turn = usize::try_from(hasher.finish() % TURNS as u64).unwrap_or_default();
        self.0[turn].lock().await
    }
}

/// What a scheduler asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Binding {
    /// The device.
    device_name: String,
    /// The profile that the run gets when it named none.
    #[serde(default)]
    sandbox_profile: Option<SandboxProfile>,
}

pub(crate) fn routes(agentlets: Arc<Agentlets>) -> Router {
    Router::new()
        .route(
            "/apis/panda.dev/v1alpha1/namespaces/{namespace}/runs/{name}/binding",
            post(bind),
        )
        .with_state(agentlets)
}

async fn bind(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name)): Path<(String, String)>,
    uri: Uri,
    body: Bytes,
) -> Result<Response, Failure> {
    let dry_run = Params::of(&uri)?.dry_run()?;
    let binding: Binding = serde_json::from_slice(&body).map_err(|error| {
        http::bad_request(format!("the body must be {{\"deviceName\": \"...\"}}: {error}"))
    })?;
    agentlets.active().await?;
    for _ in 0..ATTEMPTS {
        let mut run = agentlets
            .objects
            .get::<Run>(&namespace, &name)
            .await?
            .ok_or_else(|| http::not_found("runs", &name))?;
        let device = agentlets
            .objects
            .get::<Device>("", &binding.device_name)
            .await?
            .ok_or_else(|| http::not_found("devices", &binding.device_name))?
            .object;
        if run.object.spec.device_name == binding.device_name
            && run.object.spec.device_uid == device.metadata.uid
        {
            return Ok(done(&run.object));
        }
        refusal(&run.object, &device).map_or(Ok(()), |why| Err(conflict(&name, &why)))?;
        let task = run.object.spec.task_ref.uid.clone();
        let _turn = agentlets.turns.of(&task).await;
        for outbox in agentlets.objects.outboxes().await? {
            if let Some(stranger) = outbox.object.strangers.iter().find(|s| s.task_uid == task) {
                let why = format!(
                    "run {} of the same task is alive on a device and unknown here; it has to end first",
                    stranger.run_uid
                );
                return Err(conflict(&name, &why));
            }
        }
        if let Some(other) = agentlets.former(&run.object).await? {
            let why = format!(
                "run {other} of the same task may be alive on its device; it has to end first, or its lease to be taken"
            );
            return Err(conflict(&name, &why));
        }
        agentlets.index.synced().await;
        let (live, seen) = agentlets.index.live(&device.metadata.uid);
        let slot = agentlets.slots.take(&device, &run.object, &live, seen);
        let slot = slot.map_err(|lacking| conflict(&name, &lacking))?;
        let now = agentlets.clock.now();
        write(&mut run.object, &device, binding.sandbox_profile, now.into());
        if dry_run {
            return Ok(done(&run.object));
        }
        let lease = leases::run_lease(
            &run.object,
            agentlets.ids.uuid().to_string(),
            agentlets.ttl,
            now.into(),
        );
        let record = OrphanRecord::of(&run.object);
        let record = objects::Stored::absent(orphans::key(&record.run_uid), record);
        match agentlets
            .objects
            .commit(vec![run.write(), objects::new(lease).write(), record.write()])
            .await
        {
            Ok(committed) => {
                let bound = committed.entries.into_iter().next().flatten();
                slot.committed(bound.map_or(committed.revision, |entry| entry.revision));
                return Ok(done(&run.object));
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(conflict(&name, "it changes too often; try again"))
}

impl Agentlets {
    /// Another run of the same Task that may be alive: its Lease says so, whatever has become of its Run.
    async fn former(&self, run: &Run) -> Result<Option<String>, objects::Error> {
        let Some(task) = leases::task_label(run) else {
            return Ok(None);
        };
        let request = ListRequest {
            scope: Scope::namespace(objects::resource::<Lease>(), run.metadata.namespace.as_str()),
            ..ListRequest::default()
        };
        for entry in self.objects.store().list(request).await?.items {
            // Most are of other Tasks, and need not be read whole.
            let uid = task.as_bytes();
            if !entry.value.windows(uid.len()).any(|window| window == uid) {
                continue;
            }
            let meta = objects::decode::<Lease>(&entry)?.metadata;
            if meta.is_on_device() && meta.labels.get(TASK_UID).is_some_and(|uid| uid == task) {
                return Ok(Some(meta.name));
            }
        }
        Ok(None)
    }
}

fn done(run: &Run) -> Response {
    let mut status = Status {
        api_version: "v1".into(),
        kind: "Status".into(),
        status: "Success".into(),
        code: 201,
        ..Status::default()
    };
    status.message = format!(
        "run {} is bound to device {}",
        run.metadata.name, run.spec.device_name
    );
    http::json(201, &status)
}

fn conflict(name: &str, why: &str) -> Failure {
    Status::failure(
        Reason::Conflict,
        format!("Operation cannot be fulfilled on runs.panda.dev \"{name}\": {why}"),
    )
    .into()
}

/// Why the Run cannot be bound to this device now.
fn refusal(run: &Run, device: &Device) -> Option<String> {
    if !run.spec.device_name.is_empty() {
        return Some(format!("it is bound to device {} already", run.spec.device_name));
    }
    if run.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted".into());
    }
    if run.spec.cancel == Some(true) || run.status.phase.is_some_and(RunPhase::is_terminal) {
        return Some("it has ended or was cancelled".into());
    }
    if device.spec.unschedulable == Some(true) {
        return Some(format!("device {} is cordoned", device.metadata.name));
    }
    if device.metadata.deletion_timestamp.is_some() {
        return Some(format!("device {} is being removed", device.metadata.name));
    }
    None
}

fn write(run: &mut Run, device: &Device, profile: Option<SandboxProfile>, now: panda_api::meta::Time) {
    let spec = &mut run.spec;
    spec.device_name = device.metadata.name.clone();
    spec.device_uid = device.metadata.uid.clone();
    spec.lease_epoch = Some(1);
    let sandbox = spec.sandbox.get_or_insert_default();
    let default = device.status.sandbox.as_ref().and_then(|sandbox| sandbox.default);
    let resolved = *sandbox
        .profile
        .get_or_insert(profile.or(default).unwrap_or(SandboxProfile::Off));
    let mode = if resolved == SandboxProfile::Off {
        NetworkMode::Host
    } else {
        NetworkMode::ModelOnly
    };
    sandbox
        .network
        .get_or_insert_with(NetworkSpec::default)
        .mode
        .get_or_insert(mode);
    run.metadata.generation += 1;
    if !run.metadata.is_on_device() {
        run.metadata.finalizers.push(DEVICE_FINALIZER.into());
    }
    run.status.bind_time = Some(now);
    run.status.unschedulable.clear();
    let condition = Condition {
        type_: "Scheduled".into(),
        status: "True".into(),
        observed_generation: Some(run.metadata.generation),
        last_transition_time: now,
        reason: "Bound".into(),
        message: format!("bound to device {}", device.metadata.name),
    };
    set_condition(&mut run.status.conditions, condition);
}
