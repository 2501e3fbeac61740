//! The end of a run: files handed over, the result published, the end reported, the last bytes shipped.

use std::io;
use std::path::Path;
use std::time::Duration;

use panda_api::{FailureReason, PublishStatus, Push, Retain, RunPhase};
use panda_rpc::report::RunReport;

use super::job::chain;
use super::mail::FromRun;
use super::record::{Ending, Stage};
use super::worker::{Halt, RETRY, Worker, failed, trouble};
use crate::artifact::{GitResult, Snapshot};
use crate::blobship;
use crate::logship::LogShip;
use crate::workspace;

/// How long files of a failed attempt may hold up the report of the failure.
pub(super) const AFTER_FAILURE: Duration = Duration::from_secs(10);
/// The terminal report is written so long before everything must have ended, or when two thirds of the time are over.
pub(super) const MARGIN: Duration = Duration::from_secs(15);
/// Pause before files are offered again.
const AGAIN: Duration = Duration::from_secs(5);

impl Worker {
    /// Hands files over, so that the server has them when it hears of the end. A server that is out of reach does not
    /// keep the end from being written down in time: they follow then.
    pub(super) async fn hand_over(&mut self) -> Result<(), Halt> {
        self.take_grant();
        let now = self.now();
        self.record.ended.get_or_insert(now);
        let upload = async {
            tokio::select! {
                done = self.upload() => Ok(done),
                () = self.time_to_report() => Err(()),
            }
        };
        match self.guarded(upload).await? {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let why = chain(&error);
                self.logs
                    .say(&format!("a file of the result could not be handed over: {why}"));
                if self.record.ending.is_none() {
                    return Err(Halt::End(failed(FailureReason::Internal, why)));
                }
            }
            Err(_) => tracing::info!(run = self.uid(), "files follow after the report"),
        }
        if let Some(ending) = self.record.ending.clone() {
            return self.finish(ending.phase, Some(ending)).await;
        }
        if !self.publishes() {
            return self.finish(RunPhase::Succeeded, None).await;
        }
        self.tell(FromRun::SlotFree).await;
        self.report(RunReport {
            phase: Some(RunPhase::Publishing),
            ..self.record.facts.clone()
        })
        .await;
        self.advance(Stage::Publishing)
    }

    /// Returns when the report cannot wait for files any longer; renewed grants put it off.
    async fn time_to_report(&self) {
        if self.record.ending.is_some() {
            return tokio::time::sleep(AFTER_FAILURE).await;
        }
        let (mut wish, mut deadline) = (self.wish.clone(), self.kill_deadline());
        loop {
            let grant = wish.borrow_and_update().grant.clone();
            let renewed = grant.and_then(|grant| grant.deadline.checked_add(self.after()));
            deadline = deadline.max(renewed);
            let left = deadline
                .unwrap_or_default()
                .saturating_sub(self.env.boot.boottime());
            let wait = left.saturating_sub(MARGIN.min(left / 3));
            tokio::select! {
                () = tokio::time::sleep(wait) => return,
                Ok(()) = wish.changed() => {}
            }
        }
    }

    async fn upload(&self) -> Result<(), blobship::Error> {
        let mut client = self.env.client.clone();
        for file in &self.record.blobs {
            blobship::upload(&mut client, &self.fence, file).await?;
        }
        Ok(())
    }

    fn publishes(&self) -> bool {
        let workspace = self.record.run.spec.workspace.as_ref();
        let push = workspace.and_then(|w| w.result.as_ref()).map(|r| r.push);
        let result = self.record.facts.result.as_ref();
        push == Some(Push::OnSuccess)
            && result.is_some_and(|r| !r.commit.is_empty() && r.commit != r.base_commit)
    }

    /// Waits for the word to publish and publishes, as often as asked.
    pub(super) async fn publish(&mut self) -> Result<(), Halt> {
        self.tell(FromRun::SlotFree).await;
        let tried = self.record.facts.publish.as_ref().map_or(0, |p| p.try_number);
        let mut wish = self.wish.clone();
        let word = self.guarded(async move {
            let wanted = |wish: &super::mail::Wish| {
                let publish = wish.run.spec.publish.as_ref();
                publish.is_some_and(|publish| publish.try_number.max(1) > tried)
            };
            let seen = wish.wait_for(wanted).await.ok()?;
            seen.run.spec.publish.clone()
        });
        let Some(spec) = word.await? else {
            return Err(Halt::Trouble(io::Error::other("the dispatcher is gone")));
        };
        if spec.epoch != self.fence.epoch {
            tracing::warn!(
                run = self.uid(),
                epoch = spec.epoch,
                "word to publish is of another epoch"
            );
            return Err(Halt::End(failed(
                FailureReason::DeviceLost,
                "another attempt was told to publish",
            )));
        }
        self.granted().await?;
        let try_number = spec.try_number.max(1);
        let expected = Some(spec.expected_old_commit.as_str()).filter(|commit| !commit.is_empty());
        let snapshot = self.snapshot().await?;
        let Some(git) = snapshot.as_ref().and_then(Snapshot::git) else {
            let message = "the result that was to be published is gone";
            return Err(Halt::End(failed(FailureReason::PublishFailed, message)));
        };
        match self.env.workspaces.publish(git, expected).await {
            Ok(_) => {
                self.published(git, try_number);
                self.finish(RunPhase::Succeeded, None).await
            }
            Err(error) => {
                let (reason, why) = (error.reason(), chain(&error));
                self.logs.say(&format!("not published: {why}"));
                let conflict = reason == FailureReason::PublishConflict;
                self.record.facts.publish = Some(PublishStatus {
                    state: if conflict { "Conflict" } else { "Failed" }.into(),
                    commit: String::new(),
                    reason: why.clone(),
                    try_number,
                });
                if conflict {
                    let ending = failed(reason, why);
                    return self.finish(RunPhase::Failed, Some(ending)).await;
                }
                self.save()?;
                self.report(RunReport {
                    publish: self.record.facts.publish.clone(),
                    ..RunReport::default()
                })
                .await;
                Ok(())
            }
        }
    }

    fn published(&mut self, git: &GitResult, try_number: u32) {
        self.logs
            .say(&format!("published as {} ({})", git.branch, git.commit));
        let facts = &mut self.record.facts;
        facts.publish = Some(PublishStatus {
            state: "Published".into(),
            commit: git.commit.clone(),
            reason: String::new(),
            try_number,
        });
        facts
            .result
            .get_or_insert_default()
            .branch
            .clone_from(&git.branch);
    }

    pub(super) async fn snapshot(&self) -> Result<Option<Snapshot>, Halt> {
        let key = super::key(&self.record.run);
        let taken = self.env.workspaces.taken(&key, self.uid()).await;
        taken.map_err(|e| trouble(&e))
    }

    /// Writes the terminal report. A success counts only when it is in the outbox before the device's leave has ended.
    async fn finish(&mut self, phase: RunPhase, ending: Option<Ending>) -> Result<(), Halt> {
        let last = match &ending {
            None => "succeeded".to_owned(),
            Some(ending) => format!("{:?}: {}", ending.failure.reason, ending.failure.message),
        };
        let published = self.record.stage == Stage::Publishing;
        let now = self.now();
        let at = self.record.ended.filter(|_| !published).unwrap_or(now);
        self.in_time(&ending)?;
        self.logs.say(&format!("run ended: {last}"));
        self.record.facts.completion_time = Some(at);
        self.record.facts.logs = Some(self.logs.status(true));
        self.tell(FromRun::SlotFree).await;
        let report = RunReport {
            phase: Some(phase),
            failure: ending.as_ref().map(|ending| ending.failure.clone()),
            ..self.record.facts.clone()
        };
        if self.record.tainted {
            // Before the next attempt can hear of the end.
            self.release(phase).await;
        }
        let mut pause = RETRY.0;
        while let Err(error) = self.try_report(&report).await {
            self.in_time(&ending)?;
            tracing::warn!(run = self.uid(), %error, "terminal report waits");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
            self.in_time(&ending)?;
        }
        self.record.ending = ending;
        // From here on the outbox says that it is finished, whatever becomes of this file.
        self.record.stage = Stage::Finished;
        if let Err(error) = self.save() {
            tracing::warn!(run = self.uid(), ?error, "record of a finished run not written");
        }
        Ok(())
    }

    /// The run ends otherwise when a success comes too late.
    fn in_time(&mut self, ending: &Option<Ending>) -> Result<(), Halt> {
        self.take_grant();
        let over = self
            .kill_deadline()
            .is_some_and(|deadline| self.env.boot.boottime() >= deadline);
        if ending.is_none() && over {
            return Err(Halt::End(failed(
                FailureReason::DeviceLost,
                "the result was ready only after the device's leave to work had ended",
            )));
        }
        Ok(())
    }

    /// Gives the workspace back and hands over what the server does not have yet.
    pub(super) async fn wind_up(&mut self) -> Result<(), Halt> {
        self.tell(FromRun::Finished).await;
        let phase = match &self.record.ending {
            None => RunPhase::Succeeded,
            Some(ending) => ending.phase,
        };
        while !self.release(phase).await {
            self.guarded(tokio::time::sleep(AGAIN)).await?;
        }
        self.complete.send_replace(true);
        loop {
            let store = self.wish.borrow().ship_to.clone();
            if self.record.shipped_to.as_ref() == Some(&store) {
                return Ok(());
            }
            self.ship_logs();
            while !self.shipper.is_empty() {
                let mut shipper = std::mem::take(&mut self.shipper);
                self.guarded(async { shipper.join_next().await }).await?;
            }
            while let Err(error) = self.guarded(self.upload()).await? {
                if matches!(
                    error,
                    blobship::Error::Refused { .. } | blobship::Error::Read { .. }
                ) {
                    tracing::warn!(run = self.uid(), error = chain(&error), "file is not handed over");
                    break;
                }
                self.guarded(tokio::time::sleep(AGAIN)).await?;
            }
            self.record.shipped_to = Some(store);
            self.record.store_uid = self.wish.borrow().store_uid.clone();
            self.save()?;
        }
    }

    /// Brings the log to the server, from now on.
    pub(super) fn ship_logs(&mut self) {
        if self.shipper.is_empty() {
            let ship = LogShip {
                fence: self.fence.clone(),
                sources: self.logs.sources(),
                client: self.env.client.clone(),
                complete: self.complete.subscribe(),
            };
            self.shipper.spawn(ship.run());
        }
    }

    /// Gives the workspace back. False when that should be tried again: the disk is full.
    pub(super) async fn release(&self, phase: RunPhase) -> bool {
        self.sweep().await;
        let retain = self.record.run.spec.workspace.as_ref().and_then(|w| w.retain);
        let retain = retain
            .filter(|_| !self.record.tainted)
            .unwrap_or(if self.record.tainted {
                Retain::Never
            } else {
                Retain::default()
            });
        let succeeded = phase == RunPhase::Succeeded;
        let key = super::key(&self.record.run);
        let result = match self.env.workspaces.reopen(&key, self.uid()).await {
            Ok(workspace) => {
                let empty = self.empty();
                self.env
                    .workspaces
                    .release(workspace, &empty, retain, succeeded)
                    .await
            }
            // There is none, or its making was cut short.
            Err(workspace::Error::NotLent { .. }) => self.env.workspaces.undo(&key, self.uid()).await,
            Err(error) => Err(error),
        };
        let Err(error) = result else { return true };
        tracing::warn!(
            run = self.uid(),
            error = chain(&error),
            "workspace not given back"
        );
        error.reason() != FailureReason::DiskFull
    }

    /// The environment that every process of a run starts from.
    pub(super) fn base_env(&self, home: &Path, tmp: &Path) -> Vec<(String, String)> {
        let text = |path: &Path| path.display().to_string();
        vec![
            ("PATH".into(), self.env.config.path.clone()),
            ("HOME".into(), text(home)),
            ("TMPDIR".into(), text(tmp)),
            ("XDG_CONFIG_HOME".into(), text(&home.join(".config"))),
            ("XDG_CACHE_HOME".into(), text(&home.join(".cache"))),
            ("XDG_DATA_HOME".into(), text(&home.join(".local/share"))),
            ("XDG_STATE_HOME".into(), text(&home.join(".local/state"))),
            ("LANG".into(), "C.UTF-8".into()),
        ]
    }
}
