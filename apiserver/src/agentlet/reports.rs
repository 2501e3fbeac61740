//! Takes reports of devices into the store: each once, however often it is sent.
//!
//! The outbox number and the status change that it carries commit in one transaction, together with the check that
//! the device still holds the Run's Lease.

use panda_api::meta::{Condition, MicroTime, ObjectMeta};
use panda_api::{Device, DeviceStatus, Event, EventSource, Lease, ObjectReference, Resource, Run, RunPhase};
use panda_rpc::report::RunReport;
use panda_rpc::v1::{DeviceStatusUpdate, Fence, Report};
use panda_store::Op;
use sha2::{Digest, Sha256};
use tonic::Status;

use super::accept::{self, Stale};
use super::labels;
use super::objects::{self, OutboxRecord, Stored};
use super::session::internal;
use super::skew::CLOCK_SKEW;
use super::{Agentlets, DeviceId, late, orphans};
use crate::certificates::EXPIRING;

/// How often a lost race is run again.
const ATTEMPTS: usize = 16;
/// How far the number of a device moves on whose outbox was rolled back.
const ROLLED_BACK: u64 = 1_000_000_000;
/// Reports of a device whose digests are kept.
const RECENT: usize = 32;
/// Largest report: the store's own bound for one object leaves room beside it.
const MAX_REPORT: usize = 1 << 20;
/// Most labels that a device may set on itself.
const MAX_LABELS: usize = 64;

/// What became of a report.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is in the store: as the Run's status, or as what came late of a Run that was Lost.
    Accepted,
    /// It was in the store already.
    Repeated,
    /// It does not count.
    Stale(Stale),
}

impl OutboxRecord {
    fn remember(&mut self, seq: u64, digest: String) {
        self.last_seq = seq;
        self.recent.push_back((seq, digest));
        while self.recent.len() > RECENT {
            self.recent.pop_front();
        }
    }

    /// Whether another report was accepted under this number.
    fn contradicts(&self, seq: u64, digest: &str) -> bool {
        self.recent
            .iter()
            .any(|(known, was)| *known == seq && was != digest)
    }
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
    let digest = digest(fence, &report.body);
    for _ in 0..ATTEMPTS {
        let mut outbox = objects.outbox(&device.uid).await.map_err(internal)?;
        if report.outbox_seq <= outbox.object.last_seq {
            if outbox.object.contradicts(report.outbox_seq, &digest) {
                return Err(rolled_back(agentlets, device, outbox).await);
            }
            return Ok(Outcome::Repeated);
        }
        outbox.object.remember(report.outbox_seq, digest.clone());
        let verdict = judge(agentlets, device, fence, &change, report.outbox_seq).await?;
        if change.phase.is_some_and(RunPhase::is_terminal) {
            outbox.object.strangers.retain(|run| run.run_uid != fence.run_uid);
        }
        let mut ops = vec![outbox.write()];
        ops.extend(verdict.ops);
        match objects.commit(ops).await {
            Ok(_) => {
                if let Outcome::Stale(why) = &verdict.outcome {
                    tracing::warn!(
                        device = %device.name,
                        run = %fence.run_uid,
                        seq = report.outbox_seq,
                        %why,
                        "stale report"
                    );
                    agentlets.metrics.stale.inc();
                }
                if verdict.late {
                    agentlets.metrics.late.inc();
                }
                return Ok(verdict.outcome);
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(internal(error)),
        }
    }
    Err(Status::unavailable(
        "the run changes too often; send the report again",
    ))
}

/// What tells one report from another.
fn digest(fence: &Fence, body: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(fence.run_uid.as_bytes());
    hash.update([0]);
    hash.update(body);
    hex::encode(&hash.finalize()[..8])
}

/// The device's outbox went back in time. The number moves beyond all that it can have written since, so that the next
/// Welcome tells the device, which ends its runs and begins a new outbox.
async fn rolled_back(agentlets: &Agentlets, device: &DeviceId, mut outbox: Stored<OutboxRecord>) -> Status {
    tracing::error!(device = %device.name, "the outbox of the device was rolled back");
    outbox.object.last_seq = outbox.object.last_seq.saturating_add(ROLLED_BACK);
    outbox.object.recent.clear();
    match agentlets.objects.commit(vec![outbox.write()]).await {
        Ok(_) => {
            Status::aborted("the device's outbox says something else under an old number; connect again")
        }
        Err(error) => internal(error),
    }
}

/// What a report leads to, and what is written for it.
struct Verdict {
    outcome: Outcome,
    ops: Vec<Op>,
    /// Whether it was the last report of a Run that was Lost.
    late: bool,
}

impl Verdict {
    fn stale(why: Stale, ops: Vec<Op>) -> Self {
        Self {
            outcome: Outcome::Stale(why),
            ops,
            late: false,
        }
    }
}

async fn judge(
    agentlets: &Agentlets,
    device: &DeviceId,
    fence: &Fence,
    change: &RunReport,
    seq: u64,
) -> Result<Verdict, Status> {
    let objects = &agentlets.objects;
    let now = agentlets.clock.now().into();
    let run = match agentlets.index.find(&device.uid, &fence.run_uid) {
        Some(key) => objects
            .get::<Run>(&key.namespace, &key.name)
            .await
            .map_err(internal)?,
        None => None,
    };
    let Some(mut run) = run.filter(|run| run.object.metadata.uid == fence.run_uid) else {
        return orphaned(agentlets, device, fence, change).await;
    };
    if let Err(why) = accept::check_fence(&run.object, fence, &device.uid) {
        return Ok(Verdict::stale(why, Vec::new()));
    }
    if run.object.status.phase == Some(RunPhase::Lost) {
        return Ok(match late::apply(&run.object, change, now) {
            Err(why) => Verdict::stale(why, Vec::new()),
            Ok(late) => {
                run.object.status = late.status;
                let mut ops = vec![run.write()];
                if late.last {
                    let phase = change.phase.unwrap_or(RunPhase::Lost);
                    let text = format!("the device came back and reported {phase:?}; the Run stays Lost");
                    ops.push(event(agentlets, &run.object, "LateResult", &text).write());
                }
                Verdict {
                    outcome: if late.last {
                        Outcome::Accepted
                    } else {
                        Outcome::Stale(Stale::LeaseLost)
                    },
                    ops,
                    late: late.last,
                }
            }
        });
    }
    let lease = objects.run_lease(&run.object).await.map_err(internal)?;
    let held = accept::check_lease(lease.as_ref().map(|lease| &lease.object), fence);
    let status = held.and_then(|()| accept::apply(&run.object, change, seq, now));
    Ok(match status {
        Err(why) => Verdict::stale(why, Vec::new()),
        Ok(status) => {
            let ended = status.phase.is_some_and(RunPhase::is_terminal);
            run.object.status = status;
            let mut ops = if ended {
                let lease = lease.map(|mut lease| lease.release());
                lease.into_iter().chain([run.release()]).collect()
            } else {
                let lease = lease.map(|lease| lease.unchanged());
                lease.into_iter().chain([run.write()]).collect::<Vec<_>>()
            };
            if let Some((reason, message)) = &change.event {
                ops.push(event(agentlets, &run.object, reason, message).write());
            }
            Verdict {
                outcome: Outcome::Accepted,
                ops,
                late: false,
            }
        }
    })
}

/// A report about a Run that is not here: kept when it is of the Run's own device, and without effect.
async fn orphaned(
    agentlets: &Agentlets,
    device: &DeviceId,
    fence: &Fence,
    change: &RunReport,
) -> Result<Verdict, Status> {
    let mut ops = Vec::new();
    if let Some(mut record) = agentlets.orphan_of(device, fence).await.map_err(internal)? {
        if change.phase.is_some_and(RunPhase::is_terminal) {
            // Nothing of it is alive any more, so that another attempt may follow.
            let (namespace, name) = (&record.object.namespace, &record.object.run);
            let lease = agentlets.objects.get::<Lease>(namespace, name).await;
            let ours = |lease: &Stored<Lease>| {
                let meta = &lease.object.metadata;
                meta.is_on_device() && meta.owner_references.iter().any(|o| o.uid == fence.run_uid)
            };
            let lease = lease.map_err(internal)?.filter(ours);
            ops.extend(lease.map(|mut lease| lease.release()));
        }
        if orphans::is_worth_keeping(change) {
            record.object.report = Some(Box::new(change.clone()));
            ops.push(record.write());
        }
    }
    Ok(Verdict::stale(Stale::UnknownRun, ops))
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
        "Failed" | "Crashed" | "WorkspaceFailed" | "VerifyFailed" | "PublishConflict" | "LateResult"
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
        status.certificate_expires = object.status.certificate_expires;
        // The device speaks for its own conditions; `Ready` and `ClockSkew` are what others see of it, and about its
        // certificate the signer knows what the device does not say.
        let says = status
            .conditions
            .iter()
            .any(|condition| condition.type_ == EXPIRING);
        let ours = |condition: &Condition| {
            ["Ready", CLOCK_SKEW].contains(&condition.type_.as_str())
                || (condition.type_ == EXPIRING && !says)
        };
        status.conditions.retain(|condition| !ours(condition));
        let kept = object
            .status
            .conditions
            .iter()
            .filter(|condition| ours(condition));
        status.conditions.extend(kept.cloned());
        object.status = status;
        let reported = update.labels.iter();
        labels::take(
            &mut object.metadata,
            reported.map(|(key, value)| (key.clone(), value.clone())),
        );
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
