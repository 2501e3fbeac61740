//! The stages of a run, and what interrupts them.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::Time;
use panda_api::{DisconnectPolicy, Failure, FailureReason, OnDisconnect, RunPhase};
use panda_rpc::report::RunReport;
use panda_rpc::v1::Fence;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{Instrument, info_span};

use super::Env;
use super::logs::Logs;
use super::mail::{Events, FromRun, Grant, Wish, fence};
use super::record::{Ending, FORMAT, Folder, Record, Stage};
use super::secrets::Values;
use crate::disk;
use crate::driver::plain;
use crate::outbox;
use crate::workspace::TreeEmpty;

/// Pause before something that failed is tried again: from the first to the last, doubling.
pub(super) const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// So often something of ours may fail in one stage before the run does.
const TROUBLES: u32 = 8;
/// Paths that a report names at most.
pub(super) const MAX_PATHS: usize = 1000;

/// What takes a worker out of its stage.
#[derive(Debug)]
pub(super) enum Halt {
    /// The run ends otherwise than by itself.
    End(Ending),
    /// Nobody wants it any more: everything is ended and nothing reported.
    Gone,
    /// Something of ours failed; the stage is done again.
    Trouble(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Trouble(error)
    }
}

/// Something of ours failed; a full disk stays to be told from the rest.
pub(super) fn trouble(error: &(dyn std::error::Error + 'static)) -> Halt {
    let kind = if disk::is_full(error) {
        io::ErrorKind::StorageFull
    } else {
        io::ErrorKind::Other
    };
    Halt::Trouble(io::Error::new(kind, super::chain(error)))
}

/// Longest message of a failure, in characters: an agent chooses the names of files that stand in it.
const MESSAGE: usize = 1000;

pub(super) fn failed(reason: FailureReason, message: impl Into<String>) -> Ending {
    Ending {
        phase: RunPhase::Failed,
        failure: Failure {
            reason,
            message: shorten(&plain(&message.into()), MESSAGE),
            retryable: crate::driver::is_retryable(reason),
            ..Failure::default()
        },
    }
}

/// The beginning and the end of a text that is too long: what went wrong stands in the one, why in the other.
fn shorten(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most / 2).collect();
    let tail: String = text.chars().skip(count - most / 2 + 5).collect();
    format!("{head} ... {tail}")
}

/// One run's worker.
pub(super) struct Worker {
    pub(super) env: Arc<Env>,
    pub(super) folder: Folder,
    pub(super) record: Record,
    pub(super) fence: Fence,
    pub(super) wish: watch::Receiver<Wish>,
    pub(super) grant: Option<Grant>,
    pub(super) logs: Logs,
    /// The values of Secrets that it names, once they were needed.
    pub(super) values: Option<Values>,
    /// Newest report of progress.
    pub(super) told: RunReport,
    events: Events,
    /// Brings the log to the server.
    pub(super) shipper: JoinSet<()>,
    /// True once the log will not grow any more.
    pub(super) complete: watch::Sender<bool>,
}

impl Worker {
    pub(super) fn new(env: Arc<Env>, wish: watch::Receiver<Wish>, events: Events) -> Self {
        let (run, store_uid) = {
            let wish = wish.borrow();
            (Arc::clone(&wish.run), wish.store_uid.clone())
        };
        let folder = Folder::new(&env.runs(), &run.metadata.uid);
        let record = Record {
            format: FORMAT,
            store_uid,
            boot_id: env.boot.boot_id(),
            accepted: env.clock.now(),
            stage: Stage::Accepted,
            facts: RunReport::default(),
            ending: None,
            ended: None,
            journal: 0,
            blobs: Vec::new(),
            shipped_to: None,
            tainted: false,
            run: run.as_ref().clone(),
        };
        Self {
            fence: fence(&run, &env.config.device_uid),
            logs: Logs::new(&folder, Arc::clone(&env.clock)),
            grant: None,
            values: None,
            told: RunReport::default(),
            shipper: JoinSet::new(),
            complete: watch::Sender::new(false),
            env,
            folder,
            record,
            wish,
            events,
        }
    }

    pub(super) fn uid(&self) -> &str {
        &self.fence.run_uid
    }

    /// Goes through what is left of the run, as part of the trace that the Run belongs to.
    pub(super) async fn run(self) {
        let meta = &self.record.run.metadata;
        let span = info_span!(
            "run",
            kind = "Run",
            namespace = meta.namespace,
            name = meta.name,
            uid = meta.uid,
            attempt = self.record.run.spec.attempt,
            traceparent = meta.traceparent()
        );
        self.stages().instrument(span).await;
    }

    async fn stages(mut self) {
        let mut pause = RETRY.0;
        let mut troubles = 0;
        let mut opened = false;
        loop {
            let step = if opened {
                self.step().await
            } else {
                self.open().await.map(|()| {
                    opened = true;
                    true
                })
            };
            match step {
                Ok(true) => (pause, troubles) = (RETRY.0, 0),
                Ok(false) => return,
                Err(Halt::Gone) => return self.abandon().await,
                Err(Halt::End(ending)) => self.end(ending),
                Err(Halt::Trouble(error)) => {
                    tracing::warn!(run = self.uid(), %error, stage = ?self.record.stage, "tried again");
                    troubles += 1;
                    let full = disk::is_full(&error);
                    if full && self.env.reserve.release() {
                        continue;
                    }
                    if self.record.ending.is_none() && (full || troubles >= TROUBLES) {
                        let reason = if full {
                            FailureReason::DiskFull
                        } else {
                            FailureReason::Internal
                        };
                        self.end(failed(reason, error.to_string()));
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
    }

    /// Reads what an earlier worker wrote.
    async fn open(&mut self) -> Result<(), Halt> {
        let terminal = self.env.outbox.terminal("", self.uid()).await;
        let finished = terminal.map_err(io::Error::other)?.is_some();
        match self.folder.load()? {
            // Refused before it had a folder: there is nothing to hand over, and it must never start.
            None if finished => self.record.shipped_to = Some(self.wish.borrow().ship_to.clone()),
            None => self.save()?,
            Some(record) => {
                self.record = record;
                self.grant = self.folder.load_grant();
            }
        }
        if finished {
            self.record.stage = Stage::Finished;
        } else if self.record.stage == Stage::Finished {
            // The outbox was lost: the end is told once more.
            self.report(self.record.terminal()).await;
            return Ok(());
        }
        let boot_id = self.env.boot.boot_id();
        if self.record.boot_id != boot_id && !finished {
            self.grant = None;
            self.record.boot_id = boot_id;
            if self.record.stage < Stage::Publishing {
                self.end(failed(
                    FailureReason::DeviceRestarted,
                    "the device was restarted while the attempt was at work",
                ));
            }
            self.save()?;
        }
        if let Some(why) = self.folder.condemned()?
            && !finished
        {
            self.end(failed(FailureReason::DeviceRestarted, why));
        }
        if self.record.stage > Stage::Working {
            self.logs.agent_ended();
        }
        if self.record.stage > Stage::Accepted && !finished {
            self.ship_logs();
        }
        Ok(())
    }

    /// One stage. False once nothing is left to do.
    async fn step(&mut self) -> Result<bool, Halt> {
        match self.record.stage {
            Stage::Accepted => self.admit().await?,
            Stage::Preparing => self.prepare().instrument(info_span!("prepare")).await?,
            Stage::Working => self.work().instrument(info_span!("agent")).await?,
            Stage::Collecting => self.collect().instrument(info_span!("snapshot")).await?,
            Stage::Verifying => self.verify().instrument(info_span!("verify")).await?,
            Stage::Handing => self.hand_over().instrument(info_span!("upload")).await?,
            Stage::Publishing => self.publish().instrument(info_span!("publish")).await?,
            Stage::Finished => {
                self.wind_up().await?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Decides how the run ends, unless that is decided. The stage that comes next takes what there is.
    pub(super) fn end(&mut self, ending: Ending) {
        self.record.ending.get_or_insert(ending);
        // Before a job exists there is nothing to wait for; a job that exists is ended by its own stage.
        self.record.stage = match self.record.stage {
            Stage::Accepted | Stage::Preparing => Stage::Collecting,
            Stage::Publishing => Stage::Handing,
            stage => stage,
        };
        if self.record.stage == Stage::Collecting {
            self.logs.agent_ended();
        }
    }

    async fn admit(&mut self) -> Result<(), Halt> {
        let seq = self.report(phase(RunPhase::Preparing)).await;
        let mut wish = self.wish.clone();
        self.guarded(async move { wish.wait_for(|wish| wish.settled >= seq).await.is_ok() })
            .await?;
        self.ship_logs();
        // Not written down: after a kill it is simply admitted again.
        self.record.stage = Stage::Preparing;
        Ok(())
    }

    /// Saves the record with its next stage.
    pub(super) fn advance(&mut self, stage: Stage) -> Result<(), Halt> {
        let before = self.record.stage;
        self.record.stage = stage;
        self.save().inspect_err(|_| self.record.stage = before)
    }

    pub(super) fn save(&self) -> Result<(), Halt> {
        Ok(self.folder.save(&self.record)?)
    }

    /// Puts a report into the outbox, however long the disk takes.
    pub(super) async fn report(&self, report: RunReport) -> u64 {
        let mut pause = RETRY.0;
        loop {
            match self.try_report(&report).await {
                Ok(seq) => return seq,
                Err(error) => {
                    tracing::warn!(run = self.uid(), %error, "report waits");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(RETRY.1);
                }
            }
        }
    }

    /// One try; the error is one that may pass.
    pub(super) async fn try_report(&self, report: &RunReport) -> Result<u64, outbox::Error> {
        let outbox = &self.env.outbox;
        let report = &self.masked(report);
        let result = match outbox.report(&self.fence, report).await {
            Err(error @ outbox::Error::TooLarge(_)) => {
                tracing::warn!(run = self.uid(), %error, "report is cut");
                let mut report = report.clone();
                report.changed_files = None;
                for check in report.verify.iter_mut().flatten() {
                    check.tail.clear();
                }
                outbox.report(&self.fence, &report).await
            }
            result => result,
        };
        match result {
            Err(error @ outbox::Error::Full) => {
                self.env.reserve.release();
                Err(error)
            }
            // The dispatcher ends for the same reason, and this worker with it.
            Err(error) if !error.is_retryable() => {
                tracing::error!(run = self.uid(), %error, "report cannot be kept");
                pending().await
            }
            result => result,
        }
    }

    /// The report without values of Secrets.
    fn masked(&self, report: &RunReport) -> RunReport {
        let mask = self.mask();
        if mask.is_empty() {
            return report.clone();
        }
        let masked = serde_json::to_value(report).and_then(|mut value| {
            mask.json(&mut value);
            serde_json::from_value(value)
        });
        // A value that is a word of the API's: then without any text.
        masked.unwrap_or_else(|_| RunReport {
            phase: report.phase,
            failure: report.failure.as_ref().map(|failure| Failure {
                message: "the message cannot be told".into(),
                ..failure.clone()
            }),
            ..RunReport::default()
        })
    }

    pub(super) async fn tell(&self, news: FromRun) {
        // A dispatcher that is gone needs no news.
        drop(self.events.send((self.uid().to_owned(), news)).await);
    }

    /// What `future` says, unless something interrupts it first.
    pub(super) async fn guarded<T>(&self, future: impl Future<Output = T>) -> Result<T, Halt> {
        let mut wish = self.wish.clone();
        let decided = self.record.ending.is_some() || self.record.stage == Stage::Finished;
        tokio::select! {
            halt = interrupted(&mut wish, decided) => Err(halt),
            value = future => Ok(value),
        }
    }

    /// Waits for leave to work.
    pub(super) async fn granted(&mut self) -> Result<Grant, Halt> {
        loop {
            self.take_grant();
            if let Some(grant) = &self.grant
                && grant.boot_id == self.env.boot.boot_id()
                && self.env.boot.boottime() < grant.deadline
            {
                return Ok(grant.clone());
            }
            let (mut wish, known) = (self.wish.clone(), self.grant.clone());
            self.guarded(async move { wish.wait_for(|wish| wish.grant != known).await.is_ok() })
                .await?;
        }
    }

    /// Keeps a newer grant. True when there was one.
    pub(super) fn take_grant(&mut self) -> bool {
        let newest = self.wish.borrow().grant.clone();
        let newer = match (&newest, &self.grant) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(newest), Some(held)) => newest.is_newer_than(held),
        };
        if !newer {
            return false;
        }
        self.grant = newest;
        if let Some(grant) = &self.grant
            && let Err(error) = self.folder.save_grant(grant)
        {
            tracing::warn!(run = self.uid(), %error, "grant not kept");
        }
        true
    }

    /// When everything of the run must have ended, if no further grant comes.
    pub(super) fn kill_deadline(&self) -> Option<Duration> {
        self.grant.as_ref()?.deadline.checked_add(self.after())
    }

    /// How long the run may live after the end of its grant.
    pub(super) fn after(&self) -> Duration {
        let rule = self.on_disconnect();
        match rule.policy {
            DisconnectPolicy::Stop => Duration::ZERO,
            DisconnectPolicy::Pause | DisconnectPolicy::Continue => rule.after.get(),
        }
    }

    pub(super) fn on_disconnect(&self) -> OnDisconnect {
        let device = self.record.run.spec.device.as_ref();
        device.and_then(|d| d.on_disconnect.clone()).unwrap_or_default()
    }

    pub(super) fn now(&self) -> Time {
        Time::from(self.env.clock.now())
    }

    /// The word that no process of this run is left. Only for stages after the job's end.
    pub(super) fn empty(&self) -> TreeEmpty {
        TreeEmpty::proved(self.uid())
    }
}

pub(super) fn phase(phase: RunPhase) -> RunReport {
    RunReport {
        phase: Some(phase),
        ..RunReport::default()
    }
}

/// What the wish says against going on.
pub(super) fn objection(wish: &Wish) -> Option<Halt> {
    let end = |reason, message: String| Some(Halt::End(failed(reason, message)));
    if wish.gone {
        return Some(Halt::Gone);
    }
    if let Some(why) = &wish.stop {
        return end(FailureReason::DeviceRestarted, why.clone());
    }
    if let Some(why) = &wish.stale {
        return end(
            FailureReason::DeviceLost,
            format!("the control plane took the attempt away from this device: {why}"),
        );
    }
    if let Some(phase) = wish.run.status.phase.filter(|phase| phase.is_terminal()) {
        return end(
            FailureReason::DeviceLost,
            format!("the control plane ended the attempt as {phase:?}"),
        );
    }
    // One that is being deleted is kept only until it has ended here.
    let deleted = wish.run.metadata.deletion_timestamp.is_some();
    if deleted || wish.run.spec.cancel == Some(true) {
        let why = if deleted {
            "the run was deleted"
        } else {
            "cancelled on request"
        };
        return Some(Halt::End(Ending {
            phase: RunPhase::Cancelled,
            ..failed(FailureReason::Cancelled, why)
        }));
    }
    None
}

/// Returns when the wish says something against going on. Where the end is `decided`, only that nobody wants the run.
async fn interrupted(wish: &mut watch::Receiver<Wish>, decided: bool) -> Halt {
    loop {
        match objection(&wish.borrow_and_update()) {
            Some(Halt::End(_)) if decided => {}
            Some(halt) => return halt,
            None => {}
        }
        if wish.changed().await.is_err() {
            // The dispatcher is ending and takes this worker with it.
            pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_bounded_and_keep_both_ends() {
        assert_eq!(shorten("short", 10), "short");
        let path = "d/".repeat(3000);
        let failure = failed(
            FailureReason::WorkspaceFailed,
            format!("cannot read {path}: too long"),
        )
        .failure;
        assert_eq!(failure.message.chars().count(), MESSAGE);
        assert!(failure.message.starts_with("cannot read d/") && failure.message.ends_with("d/: too long"));
    }
}
