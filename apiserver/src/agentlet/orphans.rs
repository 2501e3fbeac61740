//! What is left of Runs that no longer count.
//!
//! 1. A record of whom a Run was bound to is made with the binding and outlives the Run by a day, so that its own device
//!    is known from any other one.
//! 2. What that device reports of a Run that was deleted changes nothing, and is kept in the record. Blobs that it names
//!    stay as long as it does.
//! 3. Of a Run that is Lost everything is in its `status.lateResult`.

use std::sync::Arc;

use panda_api::Run;
use panda_api::meta::Time;
use panda_rpc::report::RunReport;
use panda_rpc::v1::Fence;
use panda_store::{Key, ListRequest, Scope};
use serde::{Deserialize, Serialize};

use super::objects::{Error, Objects, Stored};
use super::{Agentlets, DeviceId};

/// Internal resource: one record a Run that was bound, by its uid.
pub(crate) const RECORDS: &str = "panda.internal/fences";

/// Whom a Run was bound to, and what came after it was deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct OrphanRecord {
    /// Namespace of the Run.
    pub namespace: String,
    /// Its name.
    pub run: String,
    /// Its uid.
    pub run_uid: String,
    /// Name of its Task.
    pub task: String,
    /// Uid of its Task.
    pub task_uid: String,
    /// Number of the attempt.
    pub attempt: u32,
    /// Epoch at binding.
    pub epoch: i32,
    /// The device.
    pub device: String,
    /// Its uid.
    pub device_uid: String,
    /// Since when the Run is known to be gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gone_time: Option<Time>,
    /// The last thing that its device said of it then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Box<RunReport>>,
}

impl OrphanRecord {
    /// The record of a Run that is being bound.
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            namespace: run.metadata.namespace.clone(),
            run: run.metadata.name.clone(),
            run_uid: run.metadata.uid.clone(),
            task: run.spec.task_ref.name.clone(),
            task_uid: run.spec.task_ref.uid.clone(),
            attempt: run.spec.attempt,
            epoch: run.spec.lease_epoch.unwrap_or(0),
            device: run.spec.device_name.clone(),
            device_uid: run.spec.device_uid.clone(),
            ..Self::default()
        }
    }

    /// Whether `fence` is the one of the Run that this is the record of.
    fn is_of(&self, fence: &Fence) -> bool {
        *fence
            == Fence {
                task_uid: self.task_uid.clone(),
                run_uid: self.run_uid.clone(),
                attempt: self.attempt,
                epoch: self.epoch,
                device_uid: self.device_uid.clone(),
            }
    }
}

/// The key of the record of a Run.
pub(crate) fn key(run_uid: &str) -> Key {
    Key::new(RECORDS, "", run_uid)
}

impl Objects {
    /// Every record that can be read.
    pub(crate) async fn orphans(&self) -> Result<Vec<Stored<OrphanRecord>>, Error> {
        let request = ListRequest {
            scope: Scope::resource(RECORDS),
            ..ListRequest::default()
        };
        let page = self.store().list(request).await?;
        let records = page.items.iter().filter_map(|entry| {
            let object = serde_json::from_slice(&entry.value).ok()?;
            Some(Stored::existing(object, Arc::clone(entry)))
        });
        Ok(records.collect())
    }
}

impl Agentlets {
    /// The record of the Run that a fence names, if it was this device's.
    pub(crate) async fn orphan_of(
        &self,
        device: &DeviceId,
        fence: &Fence,
    ) -> Result<Option<Stored<OrphanRecord>>, Error> {
        let record = self.objects.internal::<OrphanRecord>(key(&fence.run_uid)).await?;
        Ok(record.filter(|record| record.object.is_of(fence) && fence.device_uid == device.uid))
    }
}

/// Whether a report says enough to be kept.
pub(crate) fn is_worth_keeping(report: &RunReport) -> bool {
    report.result.is_some() || report.phase.is_some_and(panda_api::RunPhase::is_terminal)
}

/// How long a record outlives its Run.
const KEPT: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// What becomes of a record in a sweep.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It stays as it is.
    Stay,
    /// Its Run is gone: that is written down.
    Age,
    /// Its time is over.
    Go,
}

/// What becomes of a record whose Run is there or not.
pub(crate) fn fate(record: &OrphanRecord, there: bool, now: jiff::Timestamp) -> Fate {
    match record.gone_time {
        _ if there => Fate::Stay,
        None => Fate::Age,
        Some(since) if since.0 + KEPT <= now => Fate::Go,
        Some(_) => Fate::Stay,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let mut run = Run::default();
        run.metadata.uid = "run-1".into();
        run.spec.task_ref.uid = "task-1".into();
        run.spec.attempt = 2;
        run.spec.lease_epoch = Some(1);
        run.spec.device_uid = "dev-1".into();
        run
    }

    #[test]
    fn a_record_knows_the_fence_of_its_run_and_no_other() {
        let run = run();
        let record = OrphanRecord::of(&run);
        let fence = crate::agentlet::accept::fence_of(&run);
        assert!(record.is_of(&fence));
        for change in [
            |f: &mut Fence| f.attempt = 1,
            |f: &mut Fence| f.epoch = 2,
            |f: &mut Fence| f.task_uid = "task-2".into(),
            |f: &mut Fence| f.device_uid = "dev-2".into(),
        ] {
            let mut other = fence.clone();
            change(&mut other);
            assert!(!record.is_of(&other), "{other:?}");
        }
    }

    #[test]
    fn a_record_outlives_its_run_by_a_day() {
        let now: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut record = OrphanRecord::of(&run());
        assert_eq!(fate(&record, true, now), Fate::Stay);
        assert_eq!(fate(&record, false, now), Fate::Age);
        record.gone_time = Some(Time(now));
        assert_eq!(fate(&record, false, now), Fate::Stay);
        assert_eq!(fate(&record, false, now + KEPT), Fate::Go);
    }
}
