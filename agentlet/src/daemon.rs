//! The dispatcher: one task that owns the truth about the device's runs and takes everything in one order.
//!
//! Messages of the server, news of workers, new reports and timers all come in here, and wishes and messages go out.
//! Workers do the work and never speak to the server about state; they put reports into the outbox, and the
//! dispatcher sends them.

mod dispatch;
mod grants;
mod inbox;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::Clock;
use panda_rpc::v1::DeviceStatusUpdate;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::boot::Boot;
use crate::outbox::{self, Outbox};
use crate::runner::mail::Runs;
use crate::session::SessionEvent;

pub(crate) use dispatch::Dispatcher;

/// What the dispatcher is told about its device.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) device_uid: String,
    /// Runs at one time.
    pub(crate) max_runs: u32,
    /// Namespaces that its owner lets run on it; `*` for all.
    pub(crate) namespaces: Vec<String>,
    /// Between renewals; a quarter of what the grants last, if absent.
    pub(crate) renew_every: Option<Duration>,
    /// What becomes of live runs when the daemon stops.
    pub(crate) shutdown: Shutdown,
}

/// What becomes of live runs when the daemon is told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// They go on under their supervisors and are adopted at the next start.
    KeepRuns,
    /// They are ended as failures of the device; the daemon waits at most this long for their reports to be taken.
    StopRuns {
        /// Longest wait.
        within: Duration,
    },
}

/// What the dispatcher works with.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) outbox: Outbox,
    pub(crate) boot: Arc<dyn Boot>,
    /// The wall clock, which the server compares with its own.
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) runs: Arc<dyn Runs>,
    pub(crate) session: mpsc::Receiver<SessionEvent>,
    /// What the device looks like; `None` until it is known.
    pub(crate) status: watch::Receiver<Option<DeviceStatusUpdate>>,
    /// True while the disk is too full for new runs.
    pub(crate) pressure: watch::Receiver<bool>,
    /// JSON list of the Agents to look for.
    pub(crate) agents: watch::Sender<Vec<u8>>,
    /// Slots that are taken.
    pub(crate) running: watch::Sender<u32>,
}

/// Why the dispatcher ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The outbox failed for good.
    #[error("reports cannot be kept")]
    Outbox(#[from] outbox::Error),
    /// The folder of runs cannot be read.
    #[error("the runs on this device cannot be read")]
    Runs(#[source] std::io::Error),
}

/// Starts a dispatcher over what is on the disk, and runs it until `token` is cancelled.
pub(crate) async fn run(settings: Settings, parts: Parts, token: CancellationToken) -> Result<(), Error> {
    let mut workers = JoinSet::new();
    let mut dispatcher = Dispatcher::open(settings, parts, &mut workers).await?;
    dispatcher.run(&mut workers, token).await
}
