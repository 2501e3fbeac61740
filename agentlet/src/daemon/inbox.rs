//! What the server says, and what the dispatcher makes of it.

use std::sync::Arc;
use std::time::Duration;

use panda_api::{Failure, FailureReason, Run, RunPhase};
use panda_rpc::report::RunReport;
use panda_rpc::v1::{Fence, Grant as GrantMessage, RunUpsert, Snapshot, Welcome, server_message::Body};
use tokio::task::JoinSet;

use super::Error;
use super::dispatch::{Dispatcher, Known};
use crate::runner::mail::{Grant, fence};
use crate::session::SessionEvent;

/// What runs fail with when the outbox is behind the server.
const ROLLED_BACK: &str = "the device's disk was rolled back, or its outbox was lost";

impl Dispatcher {
    pub(super) async fn on_session(
        &mut self,
        event: SessionEvent,
        workers: &mut JoinSet<()>,
    ) -> Result<(), Error> {
        match event {
            SessionEvent::Open(link) => {
                self.reset_session(Some(link));
                self.hello().await
            }
            SessionEvent::Closed => {
                self.reset_session(None);
                Ok(())
            }
            SessionEvent::Message(heard) => match heard.message.body {
                Some(Body::Welcome(welcome)) => self.on_welcome(welcome, workers).await,
                // Nothing counts before the server said which store it is.
                Some(_) if self.store.is_none() => Ok(()),
                Some(body) => self.on_message(body, workers).await,
                None => Ok(()),
            },
        }
    }

    async fn on_message(&mut self, body: Body, workers: &mut JoinSet<()>) -> Result<(), Error> {
        match body {
            Body::Grant(grant) => self.on_grant(&grant),
            Body::Snapshot(snapshot) => self.on_snapshot(snapshot, workers).await?,
            Body::RunUpsert(upsert) => {
                self.on_upsert(upsert, workers).await?;
            }
            Body::RunGone(gone) => {
                self.revision = self.revision.max(gone.revision);
                self.on_gone(&gone.run_uid).await?;
            }
            Body::Ack(ack) => self.on_settled(ack.outbox_seq, None).await?,
            Body::Stale(stale) => self.on_settled(stale.outbox_seq, Some(stale.reason)).await?,
            Body::Agents(agents) => {
                self.parts.agents.send_replace(agents.agents);
            }
            Body::Welcome(_) => {}
        }
        Ok(())
    }

    async fn on_welcome(&mut self, welcome: Welcome, workers: &mut JoinSet<()>) -> Result<(), Error> {
        let store = welcome.store_uid;
        if store.is_empty() {
            tracing::error!("server did not name its store");
            return Ok(());
        }
        let newest = *self.parts.outbox.newest().borrow();
        if welcome.last_outbox_seq > newest {
            tracing::error!(
                ours = newest,
                server = welcome.last_outbox_seq,
                "this device's outbox is behind what the server has: its disk was rolled back, or its outbox lost"
            );
            // Written down first: a kill must not leave runs of the past that nobody knows to be that.
            for known in self.runs.values().filter(|known| !known.finished) {
                if let Some(run) = &known.run
                    && let Err(error) = self.parts.runs.condemn(run, ROLLED_BACK)
                {
                    tracing::warn!(%error, "tried again with the next session");
                    self.cut();
                    return Ok(());
                }
            }
            let restarted = self.parts.outbox.restart_above(welcome.last_outbox_seq).await;
            if self.outbox_ok(restarted)?.is_none() {
                self.cut();
                return Ok(());
            }
            for known in self.runs.values().filter(|known| !known.finished) {
                known.tell(|wish| wish.stop = Some(ROLLED_BACK.into()));
            }
        }
        if store == self.memory.store_uid {
            if welcome.revision < self.revision {
                tracing::warn!(
                    ours = self.revision,
                    server = welcome.revision,
                    "server is older than what it told this device before"
                );
            }
        } else {
            if self
                .outbox_ok(self.parts.outbox.set_store(&store).await)?
                .is_none()
            {
                self.cut();
                return Ok(());
            }
            self.memory.store_uid.clone_from(&store);
            self.memory.last_revision = 0;
            self.revision = 0;
        }
        self.store = Some(store);
        self.ship_again(workers);
        self.renew_soon = true;
        self.send_status();
        Ok(())
    }

    /// A store that is new to the device gets logs and blobs once more, those of finished runs as well.
    fn ship_again(&mut self, workers: &mut JoinSet<()>) {
        let Some(store) = self.store.clone() else {
            return;
        };
        let mut resting = Vec::new();
        for (uid, known) in &mut self.runs {
            let told = known.shipping_to.as_ref() == Some(&store);
            known.shipping_to = Some(store.clone());
            known.tell(|wish| store.clone_into(&mut wish.ship_to));
            if known.finished && known.run.is_some() && known.wish.is_none() && !told {
                resting.push(uid.clone());
            }
        }
        for uid in resting {
            self.start(&uid, workers);
        }
    }

    fn cut(&self) {
        if let Some(link) = &self.link {
            link.cut();
        }
    }

    fn on_grant(&mut self, grant: &GrantMessage) {
        let ttl = Duration::from_millis(grant.ttl_ms);
        let Some(deadline) = self.renewals.answer(grant.renew_seq, ttl) else {
            return;
        };
        let boot_id = self.parts.boot.boot_id();
        for run in &grant.runs {
            if let Some(known) = self.runs.get(&run.run_uid)
                && known.fence.epoch == run.epoch
            {
                known.tell(|wish| {
                    wish.grant = Some(Grant {
                        boot_id: boot_id.clone(),
                        deadline,
                    });
                });
            }
        }
    }

    async fn on_snapshot(&mut self, snapshot: Snapshot, workers: &mut JoinSet<()>) -> Result<(), Error> {
        self.revision = self.revision.max(snapshot.revision);
        for upsert in snapshot.runs {
            if let Some(uid) = self.on_upsert(upsert, workers).await? {
                self.named.insert(uid);
            }
        }
        if snapshot.more {
            return Ok(());
        }
        let named = std::mem::take(&mut self.named);
        let missing: Vec<String> = self
            .runs
            .keys()
            .filter(|uid| !named.contains(*uid))
            .cloned()
            .collect();
        for uid in missing {
            self.on_gone(&uid).await?;
        }
        Ok(())
    }

    /// The server has forgotten a run. Only the store that spoke of it last can say so.
    async fn on_gone(&mut self, uid: &str) -> Result<(), Error> {
        let Some(store) = self.store.clone() else {
            return Ok(());
        };
        self.undecided.remove(uid);
        let Some(known) = self.runs.get_mut(uid) else {
            return Ok(());
        };
        if known.store_uid != store {
            // A store that dealt with its end has spoken of it, too.
            let settled = match known.finished {
                true => self
                    .parts
                    .outbox
                    .terminal(&store, uid)
                    .await
                    .map(|t| t == Some(true)),
                false => Ok(false),
            };
            if self.outbox_ok(settled)? != Some(true) {
                tracing::info!(
                    run = uid,
                    "unknown to this store; kept, and goes on under its grant"
                );
                return Ok(());
            }
        }
        let Some(known) = self.runs.get_mut(uid) else {
            return Ok(());
        };
        known.store_uid = store;
        known.gone = true;
        if known.wish.is_some() {
            known.tell(|wish| wish.gone = true);
            return Ok(());
        }
        self.forget(uid).await
    }

    async fn on_settled(&mut self, seq: u64, stale: Option<String>) -> Result<(), Error> {
        let Some(store) = self.store.clone() else {
            return Ok(());
        };
        let Some(uid) = self.inflight.remove(&seq).map(|sent| sent.run_uid) else {
            return Ok(());
        };
        self.outbox_ok(self.parts.outbox.settle(&store, seq).await)?;
        self.memory.last_ack = self.memory.last_ack.max(seq);
        if let Some(reason) = &stale {
            tracing::warn!(run = uid, seq, reason, "report was stale");
        }
        match self.runs.get(&uid) {
            // A store that has never spoken of a run cannot take it away, nor let it start.
            Some(known) if stale.is_some() && known.store_uid != store => {}
            Some(known) => known.tell(|wish| {
                wish.settled = wish.settled.max(seq);
                if stale.is_some() {
                    wish.stale.clone_from(&stale);
                }
            }),
            // The run was gone before its last report arrived.
            None => {
                self.outbox_ok(self.parts.outbox.gone(&store, &uid).await)?;
            }
        }
        Ok(())
    }

    /// A run as the server has it now. Its uid, when the message could be read.
    pub(super) async fn on_upsert(
        &mut self,
        upsert: RunUpsert,
        workers: &mut JoinSet<()>,
    ) -> Result<Option<String>, Error> {
        self.revision = self.revision.max(upsert.revision);
        let run: Run = match serde_json::from_slice(&upsert.run) {
            Ok(run) => run,
            Err(error) => {
                tracing::error!(%error, "run from the server cannot be read");
                return Ok(None);
            }
        };
        let uid = run.metadata.uid.clone();
        if run.spec.device_uid != self.settings.device_uid || uid.is_empty() || uid.contains(['/', '.']) {
            tracing::error!(run = uid, "run from the server is not of this device");
            return Ok(None);
        }
        let Some(store) = self.store.clone() else {
            return Ok(None);
        };
        self.undecided.remove(&uid);
        let run = Arc::new(run);
        let fence = fence(&run, &self.settings.device_uid);
        if let Some(known) = self.runs.get_mut(&uid) {
            if (fence.attempt, fence.epoch) != (known.fence.attempt, known.fence.epoch) {
                tracing::warn!(run = uid, epoch = fence.epoch, "run of another epoch ignored");
                return Ok(Some(uid));
            }
            known.store_uid.clone_from(&store);
            known.run = Some(Arc::clone(&run));
            known.heard = true;
            known.tell(|wish| {
                wish.run = run;
                wish.heard = true;
                wish.ship_to.clone_from(&store);
                wish.store_uid = store;
            });
            return Ok(Some(uid));
        }
        if self.leaving {
            // The next agentlet hears of it with its first snapshot.
            return Ok(Some(uid));
        }
        self.supersede(&fence);
        self.hear_news();
        let crowded = self.outbox_ok(self.parts.outbox.is_crowded().await)?;
        let refusal = self.refusal(&run, crowded.unwrap_or(true));
        let mut known = Known::new(Some(Arc::clone(&run)), fence.clone(), store);
        match refusal {
            None if run.status.phase.is_some_and(RunPhase::is_terminal) => return Ok(Some(uid)),
            None => {
                known.slot = true;
                known.heard = true;
                self.runs.insert(uid.clone(), known);
                self.start(&uid, workers);
                self.renew_soon = true;
            }
            Some(failure) => {
                let report = RunReport {
                    phase: Some(RunPhase::Failed),
                    failure: Some(failure),
                    ..RunReport::default()
                };
                if self
                    .outbox_ok(self.parts.outbox.report(&fence, &report).await)?
                    .is_some()
                {
                    known.finished = true;
                    known.run = None;
                    self.runs.insert(uid.clone(), known);
                } else {
                    // The server told it once and waits.
                    self.undecided.insert(uid.clone(), upsert);
                }
            }
        }
        Ok(Some(uid))
    }

    /// A newer attempt of a task means that older ones were taken away, whatever else the server says of them.
    fn supersede(&self, newer: &Fence) {
        for (uid, known) in &self.runs {
            let older = known.fence.task_uid == newer.task_uid && known.fence.attempt < newer.attempt;
            if older && !known.finished && !newer.task_uid.is_empty() {
                tracing::warn!(run = uid, "a newer attempt of its task is here: it is ended");
                known.tell(|wish| wish.stale = Some("a newer attempt was given to this device".into()));
            }
        }
    }

    /// Why a run that the device has never seen is not started.
    fn refusal(&self, run: &Run, crowded: bool) -> Option<Failure> {
        let phase = run.status.phase.unwrap_or(RunPhase::Pending);
        if phase.is_terminal() {
            return None;
        }
        let namespace = &run.metadata.namespace;
        let served = self
            .settings
            .namespaces
            .iter()
            .any(|n| n == "*" || n == namespace);
        let (reason, message) = if self.stopping {
            (
                FailureReason::DeviceRestarted,
                "the agentlet is stopping".to_owned(),
            )
        } else if phase != RunPhase::Pending {
            (
                FailureReason::DeviceRestarted,
                "the device no longer has this run: its disk was changed or replaced".to_owned(),
            )
        } else if !served {
            (
                FailureReason::Internal,
                format!("the device's owner does not serve namespace {namespace}"),
            )
        } else if *self.parts.pressure.borrow() {
            (
                FailureReason::DiskFull,
                "the device's disk is nearly full: it takes no new runs".to_owned(),
            )
        } else if crowded {
            (
                FailureReason::DiskFull,
                "the device has more to report than the control plane takes: it takes no new runs before that is told"
                    .to_owned(),
            )
        } else if self.busy() >= self.settings.max_runs {
            (
                FailureReason::OutOfSlots,
                format!("all {} slots of the device are taken", self.settings.max_runs),
            )
        } else {
            return None;
        };
        Some(Failure {
            reason,
            message,
            retryable: true,
            ..Failure::default()
        })
    }
}
