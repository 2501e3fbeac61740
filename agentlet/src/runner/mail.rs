//! What the dispatcher and a run's worker tell each other.

use std::sync::Arc;

use futures::future::BoxFuture;
use panda_api::Run;
use panda_rpc::v1::Fence;
use tokio::sync::{mpsc, watch};

pub(crate) use crate::supervisor::Grant;

/// Everything that the dispatcher wants of a worker: level-triggered, so that nothing queues up behind a busy worker.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// Newest desired state.
    pub(crate) run: Arc<Run>,
    /// Whether the server said so since the agentlet started; else it is what was accepted once.
    pub(crate) heard: bool,
    /// Store that it came from.
    pub(crate) store_uid: String,
    /// Store that gets its log and blobs.
    pub(crate) ship_to: String,
    /// Newest grant.
    pub(crate) grant: Option<Grant>,
    /// Newest report of this run that the server has dealt with.
    pub(crate) settled: u64,
    /// Set when the server called a report of this run stale: the run is not ours any more.
    pub(crate) stale: Option<String>,
    /// The server has forgotten the run.
    pub(crate) gone: bool,
    /// The device ends the run, and why.
    pub(crate) stop: Option<String>,
}

impl Wish {
    pub(crate) fn new(run: Arc<Run>, store_uid: String) -> Self {
        Self {
            run,
            heard: false,
            ship_to: store_uid.clone(),
            store_uid,
            grant: None,
            settled: 0,
            stale: None,
            gone: false,
            stop: None,
        }
    }
}

/// What a worker tells the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromRun {
    /// Nothing of the run uses the device any more: its slot is free. Sent before the report that says so.
    SlotFree,
    /// Its terminal report is in the outbox.
    Finished,
}

/// Sends [`FromRun`] with the run's uid.
pub(crate) type Events = mpsc::Sender<(String, FromRun)>;

/// A run that was found on the disk.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) run: Arc<Run>,
    pub(crate) store_uid: String,
    /// Whether its end was reported once.
    pub(crate) finished: bool,
    /// Store that has everything of it, logs and blobs included.
    pub(crate) shipped_to: Option<String>,
}

/// How the dispatcher gets its workers.
pub(crate) trait Runs: Send + Sync + std::fmt::Debug + 'static {
    /// Every run that has a folder on the disk. What can be made nothing of is ended and moved aside.
    fn stored(&self) -> BoxFuture<'_, std::io::Result<Vec<Stored>>>;
    /// Writes down that a run must end as a failure of the device, unless it has ended. Durable when it returns.
    fn condemn(&self, run: &Run, why: &str) -> std::io::Result<()>;
    /// A worker: goes on from whatever the run's folder says, and ends once nothing is left to do.
    fn work(&self, wish: watch::Receiver<Wish>, events: Events) -> BoxFuture<'static, ()>;
    /// Ends what is left of a run whose worker cannot go on, then reports it as failed, unless its end is reported.
    fn give_up(&self, run: &Run, events: Events) -> BoxFuture<'static, ()>;
    /// Removes what is left of a run whose worker has ended.
    fn forget(&self, run: &Run) -> BoxFuture<'static, ()>;
}

/// Who speaks about `run` on device `device_uid`.
pub(crate) fn fence(run: &Run, device_uid: &str) -> Fence {
    Fence {
        task_uid: run.spec.task_ref.uid.clone(),
        run_uid: run.metadata.uid.clone(),
        attempt: run.spec.attempt,
        epoch: run.spec.lease_epoch.unwrap_or(0),
        device_uid: device_uid.to_owned(),
    }
}
