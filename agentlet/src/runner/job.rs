//! One supervised job: started or adopted, steered by what is wished, followed to its end.

use std::io;
use std::time::Duration;

pub(crate) use panda_api::component::chain;
use panda_api::{FailureReason, RunPhase};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::mail::Grant;
use super::record::Stage;
use super::worker::{Halt, Worker, failed, objection};
use crate::disk;
use crate::supervisor::{Adopted, Entry, Handle, HandleError, Handover, Outcome, RunFolder};

/// Entries of a journal that may wait for the worker.
const ENTRIES: usize = 64;
/// Supervisors that may end without having started anything.
const TRIES: u32 = 3;
/// How long a supervisor may leave an order to pause unanswered: what is paused must not go on working.
const DEAF: Duration = Duration::from_secs(10);
/// Between reports of progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// Whose job it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Agent,
    Check,
}

/// What a supervisor was told already.
#[derive(Debug, Default)]
struct Told {
    grant: Option<Grant>,
    /// Unknown of a supervisor that an earlier agentlet spoke to.
    paused: Option<bool>,
    stopped: bool,
    /// When a supervisor that was told to stop counts as one that does not obey.
    overdue: Option<Instant>,
    overruled: bool,
    /// Since when it does not freeze its run, though it was asked to.
    deaf: Option<Instant>,
}

impl Worker {
    /// Sees a job to its end, from wherever it is. The agent's journal is reported on the way.
    ///
    /// When something interrupts it, its tree is ended first and the interruption is in the record or the error.
    pub(super) async fn attend(&mut self, job: &RunFolder, kind: Kind) -> Result<Outcome, Halt> {
        let mut tries = 0;
        loop {
            match Handle::adopt(job).await.map_err(io::Error::other)? {
                Adopted::Running(handle) => self.follow(&handle, kind, Told::default()).await?,
                Adopted::Ended(outcome) | Adopted::Crashed(outcome) => {
                    self.replay(job, kind).await?;
                    return Ok(*outcome);
                }
                Adopted::NeverStarted => {
                    let started = self.start(tries, job).await;
                    match started {
                        Ok(handle) => {
                            tries += 1;
                            let told = Told {
                                paused: Some(false),
                                ..Told::default()
                            };
                            self.follow(&handle, kind, told).await?;
                        }
                        Err(halt) => {
                            if !matches!(halt, Halt::Trouble(_)) {
                                job.forbid().map_err(io::Error::other)?;
                            }
                            return Err(halt);
                        }
                    }
                }
            }
        }
    }

    async fn start(&mut self, tries: u32, job: &RunFolder) -> Result<Handle, Halt> {
        let spec = job.spec().map_err(io::Error::other)?;
        self.may_start(tries, job).await?;
        let handover = self.handover(spec.secrets.as_ref()).await?;
        // Asked last: the values may have been long in coming.
        let grant = self.may_start(tries, job).await?;
        self.launch(job, &grant, handover.as_ref())
    }

    async fn may_start(&mut self, tries: u32, job: &RunFolder) -> Result<Grant, Halt> {
        if let Some(halt) = objection(&self.wish.borrow()) {
            return Err(halt);
        }
        if let Some(ending) = self.record.ending.clone() {
            return Err(Halt::End(ending));
        }
        if tries >= TRIES {
            let said = std::fs::read_to_string(job.supervisor_log()).unwrap_or_default();
            let said = said.lines().last().unwrap_or("nothing");
            let message =
                format!("the supervisor ended {tries} times before it started anything; it said: {said}");
            let reason = if disk::is_full_at(&self.env.config.data_dir) {
                FailureReason::DiskFull
            } else {
                FailureReason::Internal
            };
            return Err(Halt::End(failed(reason, message)));
        }
        self.granted().await
    }

    fn launch(&self, job: &RunFolder, grant: &Grant, handover: Option<&Handover>) -> Result<Handle, Halt> {
        job.write_grant(grant).map_err(io::Error::other)?;
        Handle::spawn_with(&self.env.supervise, job, handover).map_err(|error| match error {
            HandleError::Spawn { .. } => Halt::End(failed(FailureReason::Internal, chain(&error))),
            other => Halt::Trouble(io::Error::other(other)),
        })
    }

    /// Until the supervisor has ended.
    async fn follow(&mut self, handle: &Handle, kind: Kind, mut told: Told) -> Result<(), Halt> {
        let (tx, mut entries) = mpsc::channel(ENTRIES);
        let mut tail = handle.tail(1);
        let mut tailing = JoinSet::new();
        tailing.spawn(async move {
            while let Ok(Some(entry)) = tail.next().await {
                if tx.send(entry).await.is_err() {
                    return;
                }
            }
        });
        let mut gone = false;
        let mut wish = self.wish.clone();
        let mut next_progress = Instant::now() + PROGRESS;
        loop {
            gone |= self.steer(handle, &mut told).await;
            let wake = self.wake(next_progress);
            let wake = told.overdue.map_or(wake, |at| wake.min(at));
            tokio::select! {
                entry = entries.recv() => match entry {
                    Some(entry) => self.on_entry(entry, kind).await?,
                    None => break,
                },
                Ok(()) = wish.changed() => {}
                () = sleep_until(wake) => {}
            }
            if Instant::now() >= next_progress {
                next_progress = Instant::now() + PROGRESS;
                if kind == Kind::Agent {
                    self.report_progress().await;
                }
            }
        }
        if gone { Err(Halt::Gone) } else { Ok(()) }
    }

    /// When to look again without being called: for progress, or because the grant is over.
    fn wake(&self, next_progress: Instant) -> Instant {
        let now = self.env.boot.boottime();
        let over = self.kill_deadline().filter(|deadline| *deadline > now);
        over.map_or(next_progress, |deadline| {
            next_progress.min(Instant::now() + (deadline - now) + Duration::from_millis(1))
        })
    }

    /// Tells the supervisor what it does not know yet. True when nobody wants the run any more.
    async fn steer(&mut self, handle: &Handle, told: &mut Told) -> bool {
        self.take_grant();
        if told.grant != self.grant
            && let Some(grant) = self.grant.clone()
        {
            let answer = handle.grant(grant.clone()).await;
            if answer.is_ok() {
                told.grant = Some(grant);
            }
            answered(answer);
        }
        let (halt, pause) = {
            let wish = self.wish.borrow();
            // What was wished when the run was accepted may be long out of date.
            let pause = wish.heard.then_some(wish.run.spec.pause == Some(true));
            (objection(&wish), pause)
        };
        let gone = matches!(halt, Some(Halt::Gone));
        if let Some(Halt::End(ending)) = halt {
            self.record.ending.get_or_insert(ending);
        }
        let over = self
            .kill_deadline()
            .is_some_and(|deadline| self.env.boot.boottime() >= deadline);
        if over {
            self.record.ending.get_or_insert(failed(
                FailureReason::DeviceLost,
                "the control plane was out of reach for longer than the run may go on without it",
            ));
        }
        if over && told.overdue.is_none() && !told.overruled {
            // The supervisor ends the run by itself; here is only seen to it that this happens.
            told.overdue = Some(Instant::now() + handle.patience_at_grant_end());
        }
        if !told.stopped && (gone || self.record.ending.is_some()) {
            told.stopped = true;
            let (reason, message) = match &self.record.ending {
                Some(ending) => (ending.failure.reason, ending.failure.message.as_str()),
                None => (FailureReason::Cancelled, "the run is gone"),
            };
            let answer = handle.stop(reason, message).await;
            let patience = if answer.is_ok() {
                handle.patience()
            } else {
                Duration::ZERO
            };
            let at = Instant::now() + patience;
            told.overdue = Some(told.overdue.map_or(at, |overdue| overdue.min(at)));
            answered(answer);
        }
        if told.overdue.is_some_and(|at| Instant::now() >= at) {
            told.overdue = None;
            told.overruled = true;
            tracing::warn!(run = self.uid(), "supervisor does not stop its run and is killed");
            answered(handle.overrule().await);
        }
        if let Some(pause) = pause
            && told.paused != Some(pause)
            && !told.stopped
        {
            let answer = if pause {
                handle.pause().await
            } else {
                handle.resume().await
            };
            if answer.is_ok() {
                told.paused = Some(pause);
                told.deaf = None;
            } else if pause {
                let since = *told.deaf.get_or_insert_with(Instant::now);
                if since.elapsed() >= DEAF {
                    self.record.ending.get_or_insert(failed(
                        FailureReason::Crashed,
                        "the supervisor of this run did not pause it, so that it had to be ended",
                    ));
                    told.stopped = true;
                    told.overdue = Some(Instant::now());
                }
            }
            answered(answer);
        }
        gone
    }

    /// Entries that were written while nobody followed.
    async fn replay(&mut self, job: &RunFolder, kind: Kind) -> Result<(), Halt> {
        let entries = crate::supervisor::JournalReader::open(&job.journal()).read()?;
        for entry in entries {
            self.on_entry(entry, kind).await?;
        }
        Ok(())
    }

    async fn on_entry(&mut self, entry: Entry, kind: Kind) -> Result<(), Halt> {
        match kind {
            Kind::Agent => self.on_agent(entry).await,
            Kind::Check => Ok(()),
        }
    }

    /// Ends a job, whatever it is doing, without caring for what came of it.
    pub(super) async fn put_down(&self, job: &RunFolder) -> Result<(), Halt> {
        if !job.spec_path().exists() {
            return Ok(());
        }
        match Handle::adopt(job).await.map_err(io::Error::other)? {
            Adopted::NeverStarted => job.forbid().map_err(|e| Halt::Trouble(io::Error::other(e))),
            Adopted::Ended(_) | Adopted::Crashed(_) => Ok(()),
            Adopted::Running(handle) => {
                answered(handle.stop(FailureReason::Cancelled, "the run is gone").await);
                let mut tail = handle.tail(1);
                let ended = async {
                    while tail.next().await?.is_some() {}
                    io::Result::Ok(())
                };
                match timeout(handle.patience(), ended).await {
                    Ok(ended) => Ok(ended?),
                    Err(_) => {
                        answered(handle.overrule().await);
                        Err(Halt::Trouble(io::Error::other(
                            "the supervisor did not stop its run and is killed",
                        )))
                    }
                }
            }
        }
    }

    /// The run is not wanted by anybody: everything of it is ended, nothing is reported.
    pub(super) async fn abandon(mut self) {
        self.shipper.abort_all();
        let mut jobs = vec![RunFolder::at(&self.folder.agent())];
        jobs.extend((0..self.record.run.spec.verify.len()).map(|n| RunFolder::at(&self.folder.check(n))));
        for job in &jobs {
            while let Err(error) = self.put_down(job).await {
                tracing::warn!(
                    run = self.uid(),
                    ?error,
                    "job of a run that is gone does not end yet"
                );
                tokio::time::sleep(PROGRESS).await;
            }
        }
        if self.record.stage < Stage::Finished {
            self.release(RunPhase::Cancelled).await;
        }
    }
}

/// A supervisor that does not answer has ended or will: its journal says what became of the job.
fn answered<T>(answer: Result<T, HandleError>) {
    if let Err(error) = answer {
        tracing::debug!(%error, "supervisor not told");
    }
}
