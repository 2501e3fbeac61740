//! The dispatcher's state and its loop.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use panda_api::Run;
use panda_rpc::v1::{Fence, Hello, Renew, Report, RunUpsert, device_message::Body};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::grants::Renewals;
use super::{Error, Parts, Settings, Shutdown};
use crate::outbox;
use crate::runner::mail::{Events, FromRun, Wish, fence};
use crate::session::{LINK_QUEUE, Link};

/// Reports sent and not yet settled.
const WINDOW: usize = LINK_QUEUE / 2;
/// Bytes of reports sent and not yet settled, but for the last of them.
const WINDOW_BYTES: usize = 8 << 20;
/// How long a daemon that leaves its runs alone waits until the server has what the outbox holds.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// News of workers that may wait.
const EVENTS: usize = 256;
/// A session whose renewals stay unanswered for so many periods is cut.
const DEAD_AFTER: u32 = 2;
/// A worker that panics is started again so often.
const PANICS: u32 = 3;

/// A run that the device knows.
#[derive(Debug)]
pub(super) struct Known {
    /// Absent when only the outbox remembers it.
    pub(super) run: Option<Arc<Run>>,
    pub(super) fence: Fence,
    /// Store that spoke of it last; only that one can make it gone.
    pub(super) store_uid: String,
    /// Store that a worker was told to hand logs and blobs to.
    pub(super) shipping_to: Option<String>,
    /// Whether the server spoke of it since the agentlet started.
    pub(super) heard: bool,
    pub(super) slot: bool,
    pub(super) finished: bool,
    pub(super) gone: bool,
    panics: u32,
    /// Set while it has a worker.
    pub(super) wish: Option<watch::Sender<Wish>>,
}

impl Known {
    pub(super) fn new(run: Option<Arc<Run>>, fence: Fence, store_uid: String) -> Self {
        Self {
            run,
            fence,
            store_uid,
            shipping_to: None,
            heard: false,
            slot: false,
            finished: false,
            gone: false,
            panics: 0,
            wish: None,
        }
    }

    pub(super) fn tell(&self, change: impl FnOnce(&mut Wish)) {
        if let Some(wish) = &self.wish {
            wish.send_modify(change);
        }
    }
}

/// A report on its way.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) run_uid: String,
    bytes: usize,
}

/// One task's state: see [`crate::daemon`].
#[derive(Debug)]
pub(crate) struct Dispatcher {
    pub(super) settings: Settings,
    pub(super) parts: Parts,
    pub(super) memory: outbox::Memory,
    pub(super) runs: BTreeMap<String, Known>,
    pub(super) link: Option<Link>,
    /// The store of the open session, once it said Welcome.
    pub(super) store: Option<String>,
    pub(super) inflight: BTreeMap<u64, Sent>,
    sent_to: u64,
    pub(super) renewals: Renewals,
    pub(super) renew_soon: bool,
    /// Runs that the parts of a snapshot have named so far.
    pub(super) named: BTreeSet<String>,
    /// Runs whose refusal could not be written: they are looked at again.
    pub(super) undecided: BTreeMap<String, RunUpsert>,
    pub(super) revision: u64,
    events: Events,
    news: mpsc::Receiver<(String, FromRun)>,
    tasks: HashMap<Id, String>,
    pub(super) stopping: bool,
    /// Only what was said already is still handed over.
    pub(super) leaving: bool,
}

impl Dispatcher {
    /// Reads what is on the disk and starts a worker for every run that has something left to do.
    pub(super) async fn open(
        settings: Settings,
        parts: Parts,
        workers: &mut JoinSet<()>,
    ) -> Result<Self, Error> {
        let memory = parts.outbox.memory().await?;
        let boot = parts.boot.boot_id();
        if memory.boot_id != boot {
            parts.outbox.set_boot(&boot).await?;
        }
        let (events, news) = mpsc::channel(EVENTS);
        let mut this = Self {
            revision: memory.last_revision,
            memory,
            runs: BTreeMap::new(),
            link: None,
            store: None,
            inflight: BTreeMap::new(),
            sent_to: 0,
            renewals: Renewals::new(settings.renew_every),
            renew_soon: false,
            named: BTreeSet::new(),
            undecided: BTreeMap::new(),
            events,
            news,
            tasks: HashMap::new(),
            stopping: false,
            leaving: false,
            settings,
            parts,
        };
        for fence in this.parts.outbox.finished().await? {
            let mut known = Known::new(None, fence.clone(), this.memory.store_uid.clone());
            known.finished = true;
            this.runs.insert(fence.run_uid, known);
        }
        let runs = Arc::clone(&this.parts.runs);
        for stored in runs.stored().await.map_err(Error::Runs)? {
            let uid = stored.run.metadata.uid.clone();
            let fence = fence(&stored.run, &this.settings.device_uid);
            let finished = this.runs.contains_key(&uid);
            let mut known = Known::new(Some(stored.run), fence, stored.store_uid);
            known.shipping_to.clone_from(&stored.shipped_to);
            known.finished = finished;
            known.slot = !finished && !stored.finished;
            this.runs.insert(uid.clone(), known);
            if !finished || stored.shipped_to.as_ref() != Some(&this.memory.store_uid) {
                this.start(&uid, workers);
            }
        }
        Ok(this)
    }

    /// Gives a run a worker.
    pub(super) fn start(&mut self, uid: &str, workers: &mut JoinSet<()>) {
        let Some(known) = self.runs.get_mut(uid) else {
            return;
        };
        let Some(run) = &known.run else { return };
        let (wish, seen) = watch::channel(Wish {
            heard: known.heard,
            ..Wish::new(Arc::clone(run), known.store_uid.clone())
        });
        known.wish = Some(wish);
        let task = workers.spawn(self.parts.runs.work(seen, self.events.clone()));
        self.tasks.insert(task.id(), uid.to_owned());
        if let Some(store) = &self.store {
            known.tell(|wish| store.clone_into(&mut wish.ship_to));
        }
    }

    /// Takes events until `token` is cancelled and, if runs are to be stopped, until they are.
    pub(super) async fn run(
        &mut self,
        workers: &mut JoinSet<()>,
        token: CancellationToken,
    ) -> Result<(), Error> {
        let mut newest = self.parts.outbox.newest();
        let mut ticked = Instant::now();
        let mut until: Option<Instant> = None;
        loop {
            if until.is_some_and(|until| self.may_leave(workers) || Instant::now() >= until) {
                break;
            }
            let wake = until.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                () = token.cancelled(), if until.is_none() => match self.settings.shutdown {
                    Shutdown::KeepRuns => {
                        until = Some(Instant::now() + LAST_WORDS);
                        self.leaving = true;
                    }
                    Shutdown::StopRuns { within } => {
                        until = Some(Instant::now() + within);
                        self.stop_all("the agentlet was stopped");
                    }
                },
                Some(event) = self.parts.session.recv() => {
                    self.on_session(event, workers).await?;
                    while let Ok(event) = self.parts.session.try_recv() {
                        self.on_session(event, workers).await?;
                    }
                }
                Some((uid, news)) = self.news.recv() => self.on_news(&uid, news),
                Some(ended) = workers.join_next_with_id(), if !workers.is_empty() => {
                    self.on_end(ended, workers).await?;
                }
                Ok(()) = newest.changed() => {}
                Ok(()) = self.parts.status.changed() => self.send_status(),
                // A shorter grant than before shortens the wait that has begun.
                () = tokio::time::sleep_until(ticked + self.renewals.period()) => {
                    ticked = Instant::now();
                    self.on_tick(workers).await?;
                }
                () = tokio::time::sleep_until(wake) => {}
            }
            let busy = self.busy();
            self.parts
                .running
                .send_if_modified(|running| std::mem::replace(running, busy) != busy);
            self.flush().await?;
            if std::mem::take(&mut self.renew_soon) {
                self.renew();
            }
        }
        if let Some(link) = self.link.take() {
            link.cut();
        }
        // Workers may be cut at any point: each goes on from its folder at the next start.
        workers.shutdown().await;
        Ok(())
    }

    /// Slots that are taken.
    pub(super) fn busy(&self) -> u32 {
        let busy = self.runs.values().filter(|known| known.slot).count();
        u32::try_from(busy).unwrap_or(u32::MAX)
    }

    fn stop_all(&mut self, why: &str) {
        self.stopping = true;
        for known in self.runs.values().filter(|known| !known.finished) {
            known.tell(|wish| wish.stop = Some(why.to_owned()));
        }
    }

    /// Whether there is nothing left to wait for.
    fn may_leave(&self, workers: &JoinSet<()>) -> bool {
        if self.leaving {
            self.store.is_none() || self.nothing_in_flight()
        } else {
            self.all_told(workers)
        }
    }

    /// Every run ended, and the server, if it is there, knows all of it.
    fn all_told(&self, workers: &JoinSet<()>) -> bool {
        let ended = self
            .runs
            .values()
            .all(|known| known.finished || known.wish.is_none());
        let told = self.store.is_none() || (workers.is_empty() && self.nothing_in_flight());
        ended && told
    }

    fn nothing_in_flight(&self) -> bool {
        self.inflight.is_empty() && self.sent_to >= *self.parts.outbox.newest().borrow()
    }

    pub(super) fn on_news(&mut self, uid: &str, news: FromRun) {
        if let Some(known) = self.runs.get_mut(uid) {
            known.slot = false;
            known.finished |= news == FromRun::Finished;
        }
    }

    /// Takes what workers said before anything is decided about slots.
    pub(super) fn hear_news(&mut self) {
        while let Ok((uid, news)) = self.news.try_recv() {
            self.on_news(&uid, news);
        }
    }

    async fn on_end(
        &mut self,
        ended: Result<(Id, ()), JoinError>,
        workers: &mut JoinSet<()>,
    ) -> Result<(), Error> {
        self.hear_news();
        let (id, panicked) = match ended {
            Ok((id, ())) => (id, false),
            Err(error) => (error.id(), error.is_panic()),
        };
        let Some(uid) = self.tasks.remove(&id) else {
            return Ok(());
        };
        let Some(known) = self.runs.get_mut(&uid) else {
            return Ok(());
        };
        if panicked {
            known.panics += 1;
            if known.panics <= PANICS {
                tracing::error!(run = uid, "worker failed; it is started again");
                self.start(&uid, workers);
                return Ok(());
            }
            if let (Some(run), true) = (&known.run, known.panics == PANICS + 1) {
                tracing::error!(run = uid, "worker fails again and again; its run is ended");
                // To the server it lives until nothing of it is left.
                let task = workers.spawn(self.parts.runs.give_up(run, self.events.clone()));
                self.tasks.insert(task.id(), uid);
                return Ok(());
            }
        }
        known.wish = None;
        known.slot = false;
        if known.gone {
            self.forget(&uid).await?;
        }
        Ok(())
    }

    /// Drops the last traces of a run that the server has forgotten.
    pub(super) async fn forget(&mut self, uid: &str) -> Result<(), Error> {
        if let Some(known) = self.runs.remove(uid) {
            if let Some(run) = &known.run {
                self.parts.runs.forget(run).await;
            }
            self.outbox_ok(self.parts.outbox.gone(&known.store_uid, uid).await)?;
        }
        Ok(())
    }

    pub(super) async fn hello(&self) -> Result<(), Error> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        let to_name = self.parts.outbox.to_name(&self.memory.store_uid).await;
        let Some(finished_runs) = self.outbox_ok(to_name)? else {
            link.cut();
            return Ok(());
        };
        let live = |known: &&Known| known.wish.is_some() && !known.finished && !known.gone;
        link.send(Body::Hello(Hello {
            device_uid: self.settings.device_uid.clone(),
            boot_id: self.parts.boot.boot_id(),
            store_uid: self.memory.store_uid.clone(),
            last_revision: self.revision,
            last_ack: self.memory.last_ack,
            live_runs: self.runs.values().filter(live).map(|k| k.fence.clone()).collect(),
            finished_runs,
            wall_time_ms: self.wall_time_ms(),
        }));
        Ok(())
    }

    fn wall_time_ms(&self) -> u64 {
        u64::try_from(self.parts.clock.now().as_millisecond()).unwrap_or(0)
    }

    async fn on_tick(&mut self, workers: &mut JoinSet<()>) -> Result<(), Error> {
        for upsert in std::mem::take(&mut self.undecided).into_values() {
            self.on_upsert(upsert, workers).await?;
        }
        if self.revision > self.memory.last_revision {
            self.memory.last_revision = self.revision;
            self.outbox_ok(self.parts.outbox.set_revision(self.revision).await)?;
        }
        let waited = self.renewals.waited(self.parts.boot.boottime());
        if waited >= self.renewals.period() * DEAD_AFTER {
            if let Some(link) = &self.link {
                link.cut();
            }
        } else {
            self.renew();
        }
        Ok(())
    }

    pub(super) fn renew(&mut self) {
        if let (Some(link), Some(_)) = (&self.link, &self.store) {
            let seq = self.renewals.send(self.parts.boot.boottime());
            let wall_time_ms = self.wall_time_ms();
            link.send(Body::Renew(Renew { seq, wall_time_ms }));
        }
    }

    pub(super) fn send_status(&mut self) {
        if let (Some(link), Some(_)) = (&self.link, &self.store)
            && let Some(status) = self.parts.status.borrow_and_update().clone()
        {
            link.send(Body::Status(status));
        }
    }

    /// Sends what the open store has not settled, in order, as far as the window allows.
    pub(super) async fn flush(&mut self) -> Result<(), Error> {
        let (Some(link), Some(store)) = (self.link.clone(), self.store.clone()) else {
            return Ok(());
        };
        let newest = *self.parts.outbox.newest().borrow();
        let sent: usize = self.inflight.values().map(|sent| sent.bytes).sum();
        if self.sent_to >= newest || self.inflight.len() >= WINDOW || sent >= WINDOW_BYTES {
            return Ok(());
        }
        let room = WINDOW - self.inflight.len();
        let pending = self.parts.outbox.pending(&store, self.sent_to, room).await;
        let Some(pending) = self.outbox_ok(pending)? else {
            return Ok(());
        };
        let bytes: usize = pending.iter().map(|entry| entry.body.len()).sum();
        if pending.len() < room && bytes < outbox::PENDING_BYTES {
            // Numbers up to the newest known before the query are either in `pending` or settled.
            self.sent_to = newest;
        }
        for entry in pending {
            self.sent_to = self.sent_to.max(entry.seq);
            let sent = Sent {
                run_uid: entry.fence.run_uid.clone(),
                bytes: entry.body.len(),
            };
            self.inflight.insert(entry.seq, sent);
            link.send(Body::Report(Report {
                outbox_seq: entry.seq,
                fence: Some(entry.fence),
                body: entry.body,
            }));
        }
        Ok(())
    }

    /// Forgets what belongs to a session that is over, or begins.
    pub(super) fn reset_session(&mut self, link: Option<Link>) {
        self.link = link;
        self.store = None;
        self.inflight.clear();
        self.sent_to = 0;
        self.undecided.clear();
        self.named.clear();
        self.renewals.clear();
    }

    /// A disk that is full or slow now is no reason to stop: what was not written is sent or settled again.
    pub(super) fn outbox_ok<T>(&self, result: Result<T, outbox::Error>) -> Result<Option<T>, Error> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "outbox not written");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}
