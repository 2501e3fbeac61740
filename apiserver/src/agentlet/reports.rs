//! Takes reports of devices into the store: each once, however often it is sent.
//!
//! The outbox number and the status change that it carries commit in one transaction, together with the check that
//! the device still holds the Run's Lease.

use panda_api::meta::{MicroTime, ObjectMeta};
use panda_api::{Device, DeviceStatus, Event, EventSource, ObjectReference, Resource, Run};
use panda_rpc::report::RunReport;
use panda_rpc::v1::{DeviceStatusUpdate, Report};
use tonic::Status;

use super::accept::{self, Stale};
use super::objects::{self, Stored};
use super::session::internal;
use super::{Agentlets, DeviceId};

/// How often a lost race is run again.
const ATTEMPTS: usize = 16;
/// Largest report: the store's own bound for one object leaves room beside it.
const MAX_REPORT: usize = 1 << 20;
/// Most labels that a device may set on itself.
const MAX_LABELS: usize = 64;

/// What became of a report.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is in the store.
    Accepted,
    /// It was in the store already.
    Repeated,
    /// It does not count.
    Stale(Stale),
}

/// Accepts one report of a device.
pub(crate) async fn accept(
    agentlets: &Agentlets,
    device: &DeviceId,
    report: Report,
) -> Result<Outcome, Status> {
    if report.body.len() > MAX_REPORT {
        return Err(Status::resource_exhausted(format!(
            "a report is at most {MAX_REPORT} bytes"
        )));
    }
    let Some(fence) = &report.fence else {
        return Err(Status::invalid_argument("a report needs a fence"));
    };
    let change: RunReport = serde_json::from_slice(&report.body)
        .map_err(|error| Status::invalid_argument(format!("the report cannot be read: {error}")))?;
    let objects = &agentlets.objects;
    for _ in 0..ATTEMPTS {
        let mut outbox = objects.outbox(&device.uid).await.map_err(internal)?;
        if report.outbox_seq <= outbox.object.last_seq {
            return Ok(Outcome::Repeated);
        }
        outbox.object.last_seq = report.outbox_seq;
        let mut ops = vec![outbox.write()];
        let verdict = match agentlets.index.find(&device.uid, &fence.run_uid) {
            None => Err(Stale::UnknownRun),
            Some(key) => match objects
                .get::<Run>(&key.namespace, &key.name)
                .await
                .map_err(internal)?
            {
                None => Err(Stale::UnknownRun),
                Some(run) => {
                    let lease = objects.run_lease(&run.object).await.map_err(internal)?;
                    judge(
                        &run,
                        lease.as_ref().map(|lease| &lease.object),
                        device,
                        fence,
                        &change,
                        report.outbox_seq,
                        agentlets,
                    )
                    .map(|changed| (changed, lease))
                }
            },
        };
        let outcome = match verdict {
            Ok((changed, lease)) => {
                ops.push(changed.write());
                ops.extend(lease.map(|lease| lease.unchanged()));
                if let Some((reason, message)) = &change.event {
                    ops.push(event(agentlets, &changed.object, reason, message).write());
                }
                Outcome::Accepted
            }
            Err(stale) => {
                tracing::warn!(device = %device.name, run = %fence.run_uid, seq = report.outbox_seq, why = %stale, "stale report");
                agentlets.metrics.stale.inc();
                Outcome::Stale(stale)
            }
        };
        match objects.commit(ops).await {
            Ok(_) => return Ok(outcome),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(internal(error)),
        }
    }
    Err(Status::unavailable(
        "the run changes too often; send the report again",
    ))
}

fn judge(
    run: &Stored<Run>,
    lease: Option<&panda_api::Lease>,
    device: &DeviceId,
    fence: &panda_rpc::v1::Fence,
    change: &RunReport,
    seq: u64,
    agentlets: &Agentlets,
) -> Result<Stored<Run>, Stale> {
    accept::check_fence(&run.object, fence, &device.uid)?;
    accept::check_lease(lease, fence)?;
    let mut changed = run.clone();
    changed.object.status = accept::apply(&run.object, change, seq, agentlets.clock.now().into())?;
    Ok(changed)
}

fn event(agentlets: &Agentlets, run: &Run, reason: &str, message: &str) -> Stored<Event> {
    let now = agentlets.clock.now();
    let uid = agentlets.ids.uuid().to_string();
    let name = format!("{}.{}", run.metadata.name, &uid[..8]);
    let metadata = ObjectMeta {
        uid,
        creation_timestamp: Some(now.into()),
        ..ObjectMeta::namespaced(&run.metadata.namespace, name)
    };
    let warning = matches!(
        reason,
        "Failed" | "Crashed" | "WorkspaceFailed" | "VerifyFailed" | "PublishConflict"
    );
    objects::new(Event {
        metadata,
        involved_object: ObjectReference {
            api_version: Run::api_version(),
            kind: Run::KIND.into(),
            namespace: run.metadata.namespace.clone(),
            name: run.metadata.name.clone(),
            uid: run.metadata.uid.clone(),
            ..ObjectReference::default()
        },
        reason: reason.chars().take(128).collect(),
        message: message.chars().take(1024).collect(),
        type_: if warning { "Warning" } else { "Normal" }.into(),
        source: EventSource {
            component: "agentlet".into(),
            host: run.spec.device_name.clone(),
        },
        first_timestamp: Some(now.into()),
        last_timestamp: Some(now.into()),
        count: Some(1),
        event_time: Some(MicroTime(now)),
        reporting_component: "panda.dev/agentlet".into(),
        reporting_instance: run.spec.device_uid.clone(),
        ..Event::default()
    })
}

/// Takes over what a device says of itself. Conditions that controllers own stay.
pub(crate) async fn device_status(
    agentlets: &Agentlets,
    device: &DeviceId,
    update: &DeviceStatusUpdate,
) -> Result<(), Status> {
    if update.status.len() > MAX_REPORT || update.labels.len() > MAX_LABELS {
        return Err(Status::resource_exhausted("the device status is too large"));
    }
    let reported: DeviceStatus = serde_json::from_slice(&update.status)
        .map_err(|error| Status::invalid_argument(format!("the device status cannot be read: {error}")))?;
    let valid = |text: &str| {
        text.len() <= 253
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_./".contains(&b))
    };
    if update
        .labels
        .iter()
        .any(|(key, value)| key.is_empty() || !valid(key) || !valid(value) || value.len() > 63)
    {
        return Err(Status::invalid_argument("a label is not valid"));
    }
    for _ in 0..ATTEMPTS {
        let Some(mut stored) = agentlets
            .objects
            .get::<Device>("", &device.name)
            .await
            .map_err(internal)?
        else {
            return Err(Status::not_found("the device is not registered any more"));
        };
        if stored.object.metadata.uid != device.uid {
            return Err(Status::permission_denied(
                "the name belongs to another device now",
            ));
        }
        let before = stored.object.clone();
        let object = &mut stored.object;
        let mut status = reported.clone();
        status.observed_generation = Some(object.metadata.generation);
        status.key_fingerprint = object.status.key_fingerprint.clone();
        // The device speaks for its own conditions; `Ready` is what others see of its lease.
        status.conditions.retain(|condition| condition.type_ != "Ready");
        status.conditions.extend(
            object
                .status
                .conditions
                .iter()
                .filter(|c| c.type_ == "Ready")
                .cloned(),
        );
        object.status = status;
        object
            .metadata
            .labels
            .extend(update.labels.iter().map(|(k, v)| (k.clone(), v.clone())));
        if stored.object == before {
            return Ok(());
        }
        match agentlets.objects.commit(vec![stored.write()]).await {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(internal(error)),
        }
    }
    Err(Status::unavailable(
        "the device object changes too often; send the status again",
    ))
}
