//! One session of one device.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{Stream, StreamExt};
use panda_api::{Agent, Run};
use panda_rpc::v1::{
    Ack, AgentsUpsert, DeviceMessage, Grant, Hello, Report, RunGone, RunUpsert, Snapshot, Stale, Welcome,
    device_message, server_message,
};
use panda_store::{Scope, WatchRequest};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::hello::Greeting;
use super::index::{Indexed, Wanted};
use super::members::REMOVED;
use super::outgoing::Outgoing;
use super::{Agentlets, DeviceId, objects, reports, skew};

/// Bytes of runs in one part of a snapshot; a larger run has a part to itself.
const PART: usize = 256 << 10;

/// How long a new session may take to say who it is, at least.
const HELLO: std::time::Duration = std::time::Duration::from_secs(20);

/// What a session last told its device.
#[derive(Default)]
struct Told {
    /// Run uid → what was wanted.
    runs: BTreeMap<String, Wanted>,
}

pub(crate) struct Session<'a> {
    pub(crate) agentlets: &'a Agentlets,
    pub(crate) device: DeviceId,
    pub(crate) out: Outgoing,
}

impl Session<'_> {
    /// Serves the device until its stream ends, it falls silent, or a newer session cuts this one.
    pub(crate) async fn run<S>(&self, mut incoming: S, cut: CancellationToken) -> Result<(), Status>
    where
        S: Stream<Item = Result<DeviceMessage, Status>> + Unpin + Send,
    {
        self.agentlets.index.synced().await;
        // First the token, then the look: a removal in between is seen by one of the two.
        let removed = self.agentlets.members.until_removed(&self.device.uid);
        self.agentlets.registered(&self.device).await?;
        // A device renews several times within a grant: after one and a half the session is dead.
        let silence = self.agentlets.ttl * 3 / 2;
        let hello = tokio::time::timeout(silence.max(HELLO), incoming.next()).await;
        let hello = match hello {
            Ok(Some(message)) => match message?.body {
                Some(device_message::Body::Hello(hello)) => hello,
                _ => {
                    return Err(Status::failed_precondition(
                        "the first message of a session must be Hello",
                    ));
                }
            },
            Ok(None) => return Ok(()),
            Err(_) => return Err(Status::deadline_exceeded("no Hello")),
        };
        let active = self.welcome(&hello).await?.active;
        let mut clocks = skew::Verdict::default();
        let wall = hello.wall_time_ms;
        self.agentlets
            .compare_clocks(&self.device, wall, &mut clocks)
            .await?;
        let mut changes = self.agentlets.index.subscribe(&self.device.uid);
        // A server that is not active hears devices out and asks nothing of them. Activation cuts this session.
        let (mut told, mut parts) = if active {
            self.snapshot()
        } else {
            Default::default()
        };
        let mut agent_changes = self.watch_agents().await?;
        let mut certificate = std::pin::pin!(tokio::time::sleep(
            self.agentlets.certificate(&self.device).await?
        ));
        loop {
            tokio::select! {
                () = removed.cancelled() => return Err(Status::permission_denied(REMOVED)),
                () = &mut certificate => {
                    let next = self.agentlets.certificate(&self.device).await?;
                    certificate.as_mut().reset(tokio::time::Instant::now() + next);
                }
                () = cut.cancelled() => return Err(Status::aborted("this session was ended: a newer one took over, the device was removed, or the server changed state")),
                message = tokio::time::timeout(silence, incoming.next()) => match message {
                    Err(_) => return Err(Status::deadline_exceeded("the device fell silent")),
                    Ok(None) => return Ok(()),
                    Ok(Some(message)) => self.message(message?, active, &mut clocks).await?,
                },
                // Grants go out between the parts: a slow link must not cost what runs on the device.
                sent = self.send_part(parts.front()), if !parts.is_empty() => {
                    sent?;
                    parts.pop_front();
                }
                // What is missing from the parts counts as gone, so news wait for the last of them.
                changed = changes.changed(), if parts.is_empty() => {
                    changed.map_err(|_| Status::unavailable("the server is shutting down"))?;
                    if active {
                        self.update(&mut told).await?;
                    }
                }
                event = agent_changes.next() => match event {
                    Some(Ok(_)) => {
                        while agent_changes.try_next().is_some() {}
                        let (agents, _) = self.agentlets.objects.list::<Agent>().await.map_err(internal)?;
                        self.send_agents(&agents).await?;
                    }
                    _ => agent_changes = self.watch_agents().await?,
                },
            }
        }
    }

    async fn send(&self, body: server_message::Body) -> Result<(), Status> {
        self.out.send(body).await
    }

    async fn send_part(&self, part: Option<&Part>) -> Result<(), Status> {
        match part {
            Some(part) => self.send(server_message::Body::Snapshot(part.message())).await,
            None => Ok(()),
        }
    }

    async fn welcome(&self, hello: &Hello) -> Result<Greeting, Status> {
        let greeting = self.agentlets.greet(&self.device, hello).await?;
        let revision = self.agentlets.objects.store().current_revision().await;
        self.send(server_message::Body::Welcome(Welcome {
            store_uid: greeting.store_uid.clone(),
            revision: revision.map_err(|error| internal(error.into()))?.0,
            last_outbox_seq: greeting.last_outbox_seq,
        }))
        .await?;
        Ok(greeting)
    }

    /// All runs of the device, in parts.
    fn snapshot(&self) -> (Told, VecDeque<Part>) {
        let (runs, revision) = self.agentlets.index.of_device(&self.device.uid);
        let told = Told {
            runs: runs.iter().map(|(uid, run)| (uid.clone(), run.wanted)).collect(),
        };
        (told, parts(runs.into_values(), revision.0))
    }

    async fn update(&self, told: &mut Told) -> Result<(), Status> {
        let (runs, revision) = self.agentlets.index.of_device(&self.device.uid);
        let gone: BTreeSet<String> = told
            .runs
            .keys()
            .filter(|uid| !runs.contains_key(*uid))
            .cloned()
            .collect();
        for uid in gone {
            told.runs.remove(&uid);
            self.send(server_message::Body::RunGone(RunGone {
                run_uid: uid,
                revision: revision.0,
            }))
            .await?;
        }
        for (uid, run) in &runs {
            if told.runs.get(uid) != Some(&run.wanted) {
                told.runs.insert(uid.clone(), run.wanted);
                self.send(server_message::Body::RunUpsert(upsert(run))).await?;
            }
        }
        Ok(())
    }

    /// Tells the device of all agents, and watches for changes from there.
    async fn watch_agents(&self) -> Result<panda_store::Watch, Status> {
        let (agents, from) = self.agentlets.objects.list::<Agent>().await.map_err(internal)?;
        self.send_agents(&agents).await?;
        let scope = Scope::resource(objects::resource::<Agent>());
        let watch = self
            .agentlets
            .objects
            .store()
            .watch(WatchRequest { scope, from })
            .await;
        watch.map_err(|error| internal(error.into()))
    }

    async fn send_agents(&self, agents: &[Agent]) -> Result<(), Status> {
        let agents = serde_json::to_vec(agents).map_err(|_| Status::internal("agents do not serialise"))?;
        self.send(server_message::Body::Agents(AgentsUpsert { agents }))
            .await
    }

    async fn message(
        &self,
        message: DeviceMessage,
        active: bool,
        clocks: &mut skew::Verdict,
    ) -> Result<(), Status> {
        match message.body {
            Some(device_message::Body::Renew(renew)) => {
                self.agentlets.registered(&self.device).await?;
                let live = if active { self.live_runs() } else { Vec::new() };
                let now = self.agentlets.clock.now().into();
                let granted = self
                    .agentlets
                    .keeper
                    .renew(&self.device, &live, now)
                    .await
                    .map_err(internal)?;
                let ttl_ms = u64::try_from(granted.ttl.as_millis()).unwrap_or(u64::MAX);
                self.send(server_message::Body::Grant(Grant {
                    renew_seq: renew.seq,
                    ttl_ms,
                    runs: granted.runs,
                }))
                .await?;
                // After the grant, which must not wait for it.
                let wall = renew.wall_time_ms;
                self.agentlets.compare_clocks(&self.device, wall, clocks).await
            }
            Some(device_message::Body::Report(report)) => self.report(report).await,
            Some(device_message::Body::Status(update)) => {
                reports::device_status(self.agentlets, &self.device, &update).await
            }
            Some(device_message::Body::Hello(_)) => Err(Status::failed_precondition("one Hello a session")),
            None => Ok(()),
        }
    }

    fn live_runs(&self) -> Vec<Run> {
        let (runs, _) = self.agentlets.index.of_device(&self.device.uid);
        runs.values()
            .filter(|run| !run.ended)
            .filter_map(|run| objects::decode(&run.entry).ok())
            .collect()
    }

    async fn report(&self, report: Report) -> Result<(), Status> {
        let seq = report.outbox_seq;
        match reports::accept(self.agentlets, &self.device, report).await? {
            reports::Outcome::Accepted | reports::Outcome::Repeated => {
                self.send(server_message::Body::Ack(Ack { outbox_seq: seq }))
                    .await
            }
            reports::Outcome::Stale(why) => {
                self.send(server_message::Body::Stale(Stale {
                    outbox_seq: seq,
                    reason: why.to_string(),
                }))
                .await
            }
        }
    }
}

fn upsert(run: &Indexed) -> RunUpsert {
    RunUpsert {
        run: run.ended_record().unwrap_or_else(|| run.entry.value.to_vec()),
        revision: run.entry.revision.0,
    }
}

/// A part of a snapshot. It shares the bytes of the index until it is sent.
struct Part {
    revision: u64,
    runs: Vec<Indexed>,
    more: bool,
}

impl Part {
    fn message(&self) -> Snapshot {
        Snapshot {
            revision: self.revision,
            runs: self.runs.iter().map(upsert).collect(),
            more: self.more,
        }
    }
}

/// A snapshot in parts of [`PART`] bytes; there is always one.
fn parts(runs: impl Iterator<Item = Indexed>, revision: u64) -> VecDeque<Part> {
    let next = || Part {
        revision,
        runs: Vec::new(),
        more: false,
    };
    let (mut parts, mut part, mut size) = (VecDeque::new(), next(), 0);
    for run in runs {
        let bytes = run.entry.value.len();
        if size > 0 && size + bytes > PART {
            part.more = true;
            parts.push_back(std::mem::replace(&mut part, next()));
            size = 0;
        }
        size += bytes;
        part.runs.push(run);
    }
    parts.push_back(part);
    parts
}

/// What a device may hear of a fault of ours.
pub(crate) fn internal(error: objects::Error) -> Status {
    tracing::error!(
        error = &error as &dyn std::error::Error,
        "agentlet service failed"
    );
    Status::unavailable("the control plane cannot do this now; try again")
}

/// Makes sure that a device has one session at most.
#[derive(Default)]
pub(crate) struct Sessions {
    live: std::sync::Mutex<std::collections::HashMap<String, (u64, CancellationToken)>>,
    begun: AtomicU64,
}

impl Sessions {
    /// Cuts the device's older session, if there is one; the returned token is the new one's.
    pub(crate) fn begin(&self, device_uid: &str) -> (u64, CancellationToken) {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        let token = CancellationToken::new();
        let mut live = self
            .live
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((_, older)) = live.insert(device_uid.to_owned(), (number, token.clone())) {
            older.cancel();
        }
        (number, token)
    }

    /// Forgets a session, unless a newer one has taken its place.
    pub(crate) fn end(&self, device_uid: &str, number: u64) {
        let mut live = self
            .live
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if live.get(device_uid).is_some_and(|(n, _)| *n == number) {
            live.remove(device_uid);
        }
    }

    /// Cuts the sessions of all devices but those whose uid is to `stay`.
    pub(crate) fn cut_unless(&self, stay: impl Fn(&str) -> bool) {
        let live = self
            .live
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for (uid, (_, token)) in live.iter() {
            if !stay(uid) {
                token.cancel();
            }
        }
    }

    /// Cuts every session: the server is shutting down, or was activated.
    pub(crate) fn cut_all(&self) {
        let live = self
            .live
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for (_, token) in live.values() {
            token.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use panda_store::{Entry, Key, Revision};

    use super::super::slots::Demand;
    use super::*;

    #[test]
    fn a_snapshot_comes_in_parts_and_only_the_last_is_the_end() {
        let of_size = |size: &usize| {
            let key = Key::new(objects::resource::<Run>(), "n", "r");
            Indexed {
                key: key.clone(),
                wanted: Wanted::default(),
                ended: false,
                demand: Demand::of(&Run::default()),
                entry: Arc::new(Entry {
                    key,
                    revision: Revision(1),
                    create_revision: Revision(1),
                    value: vec![b' '; *size].into(),
                }),
            }
        };
        let shape = |sizes: &[usize]| {
            let parts = parts(sizes.iter().map(of_size), 7);
            assert!(parts.iter().all(|part| part.revision == 7));
            let shape = parts.iter().map(|part| (part.message().runs.len(), part.more));
            shape.collect::<Vec<_>>()
        };
        assert_eq!(shape(&[]), [(0, false)]);
        assert_eq!(shape(&[1, 2]), [(2, false)]);
        let expected = [(1, true), (2, true), (1, true), (1, false)];
        assert_eq!(shape(&[PART, 1, PART - 1, 2 * PART, 1]), expected);
    }
}
