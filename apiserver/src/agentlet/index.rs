//! Which runs belong to which device: kept in memory from a watch, read level by level.
//!
//! A session never queues changes. It compares what it last sent with what is here now, so a slow device costs
//! nothing and misses nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use panda_api::meta::ObjectMeta;
use panda_api::{Run, RunPhase, RunSpec, WorkspaceSpec};
use panda_store::{Entry, Event, EventKind, Key, Revision, Scope, WatchRequest};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::objects::{self, Objects};
use super::slots::Demand;

/// What a device has to know of a Run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    generation: i64,
    deleting: bool,
    lost: bool,
}

/// What the index keeps of a bound Run.
#[derive(Clone, Debug)]
pub(crate) struct Indexed {
    /// Where the Run is.
    pub key: Key,
    /// Moves with each change of what the device has to know: what is wanted of it, and that the Run was given up. That
    /// is the one end which it does not report itself; it may wait for a grant that never comes.
    pub wanted: Wanted,
    /// Whether its phase is terminal.
    pub ended: bool,
    /// What it takes of the device.
    pub demand: Demand,
    /// The stored object.
    pub entry: Arc<Entry>,
}

impl Indexed {
    /// The Run without what nobody asks for once it has ended: devices keep what ended for as long as it is here, and
    /// are told of all of it whenever they connect. None while it lives.
    pub(crate) fn ended_record(&self) -> Option<Vec<u8>> {
        let run: Run = self.ended.then(|| objects::decode(&self.entry).ok())??;
        let (meta, spec) = (run.metadata, run.spec);
        let mut small = Run {
            metadata: ObjectMeta {
                namespace: meta.namespace,
                name: meta.name,
                uid: meta.uid,
                generation: meta.generation,
                deletion_timestamp: meta.deletion_timestamp,
                ..ObjectMeta::default()
            },
            spec: RunSpec {
                task_ref: spec.task_ref,
                role: spec.role,
                attempt: spec.attempt,
                rerun: spec.rerun,
                device_name: spec.device_name,
                device_uid: spec.device_uid,
                lease_epoch: spec.lease_epoch,
                publish: spec.publish,
                pause: spec.pause,
                cancel: spec.cancel,
                workspace: spec.workspace.map(|workspace| WorkspaceSpec {
                    retain: workspace.retain,
                    ..WorkspaceSpec::default()
                }),
                ..RunSpec::default()
            },
            ..Run::default()
        };
        small.status.phase = run.status.phase;
        serde_json::to_vec(&small).ok()
    }
}

#[derive(Default)]
struct State {
    /// Device uid → run uid → Run.
    devices: HashMap<String, BTreeMap<String, Indexed>>,
    /// Key → device uid and run uid, to find what a change replaces.
    keys: HashMap<Key, (String, String)>,
    signals: HashMap<String, watch::Sender<u64>>,
}

/// The index. Cheap to share.
pub(crate) struct RunIndex {
    state: Mutex<State>,
    synced: watch::Sender<Option<Revision>>,
}

impl RunIndex {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            synced: watch::Sender::new(None),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        // Every change below leaves the maps consistent, so a panic elsewhere does not spoil them.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the index has been filled once, and says up to which revision it shows the store.
    pub(crate) async fn synced(&self) -> Revision {
        let mut receiver = self.synced.subscribe();
        loop {
            if let Some(revision) = *receiver.borrow_and_update() {
                return revision;
            }
            if receiver.changed().await.is_err() {
                return Revision::ZERO;
            }
        }
    }

    /// Tells of every change to the runs of a device.
    pub(crate) fn subscribe(&self, device_uid: &str) -> watch::Receiver<u64> {
        self.state()
            .signals
            .entry(device_uid.to_owned())
            .or_insert_with(|| watch::Sender::new(0))
            .subscribe()
    }

    /// The runs bound to a device, and the revision that they are of.
    pub(crate) fn of_device(&self, device_uid: &str) -> (BTreeMap<String, Indexed>, Revision) {
        let state = self.state();
        let revision = self.synced.borrow().unwrap_or_default();
        (
            state.devices.get(device_uid).cloned().unwrap_or_default(),
            revision,
        )
    }

    /// What the runs take that a device works on, or is about to, and the revision that this is of.
    pub(crate) fn live(&self, device_uid: &str) -> (Vec<Demand>, Revision) {
        let state = self.state();
        let revision = self.synced.borrow().unwrap_or_default();
        let runs = state.devices.get(device_uid);
        let live = runs
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter(|run| !run.ended);
        (live.map(|run| run.demand.clone()).collect(), revision)
    }

    /// Where a run of a device is stored.
    pub(crate) fn find(&self, device_uid: &str, run_uid: &str) -> Option<Key> {
        Some(self.state().devices.get(device_uid)?.get(run_uid)?.key.clone())
    }

    /// Fills the index and follows the store until cancelled.
    pub(crate) async fn run(&self, objects: &Objects, token: CancellationToken) {
        let mut pause = std::time::Duration::from_millis(50);
        while !token.is_cancelled() {
            let followed = tokio::select! {
                () = token.cancelled() => return,
                followed = self.follow(objects) => followed,
            };
            if let Err(error) = followed {
                tracing::warn!(%error, "the index of runs starts again");
            }
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(std::time::Duration::from_secs(2));
        }
    }

    async fn follow(&self, objects: &Objects) -> Result<(), objects::Error> {
        let scope = Scope::resource(objects::resource::<Run>());
        let request = panda_store::ListRequest {
            scope: scope.clone(),
            ..Default::default()
        };
        let page = objects.store().list(request).await?;
        self.replace(&page.items, page.revision);
        let mut watch = objects
            .store()
            .watch(WatchRequest {
                scope,
                from: page.revision,
            })
            .await?;
        while let Some(event) = watch.next().await {
            let event = event?;
            self.change(&event);
        }
        Ok(())
    }

    fn replace(&self, entries: &[Arc<Entry>], revision: Revision) {
        let mut state = self.state();
        state.devices.clear();
        state.keys.clear();
        for entry in entries {
            state.put(entry);
        }
        for signal in state.signals.values() {
            signal.send_modify(|n| *n += 1);
        }
        // Under the lock: a revision always goes with what it shows.
        self.synced.send_replace(Some(revision));
    }

    fn change(&self, event: &Event) {
        let mut state = self.state();
        let mut touched = Vec::new();
        if let Some((device, run)) = state.keys.remove(&event.key) {
            if let Some(runs) = state.devices.get_mut(&device) {
                runs.remove(&run);
            }
            touched.push(device);
        }
        if event.kind != EventKind::Deleted {
            let entry = Arc::new(Entry {
                key: event.key.clone(),
                revision: event.revision,
                create_revision: event.create_revision,
                value: event.value.clone(),
            });
            touched.extend(state.put(&entry));
        }
        touched.dedup();
        for device in touched {
            if state.devices.get(&device).is_some_and(BTreeMap::is_empty) {
                state.devices.remove(&device);
            }
            if let Some(signal) = state.signals.get(&device) {
                if signal.is_closed() {
                    state.signals.remove(&device);
                } else {
                    signal.send_modify(|n| *n += 1);
                }
            }
        }
        self.synced.send_if_modified(|revision| {
            *revision = Some(event.revision);
            false
        });
    }
}

impl State {
    fn put(&mut self, entry: &Arc<Entry>) -> Option<String> {
        let run: Run = match objects::decode(entry) {
            Ok(run) => run,
            Err(error) => {
                tracing::error!(key = %entry.key, %error, "stored run cannot be read");
                return None;
            }
        };
        if run.spec.device_uid.is_empty() {
            return None;
        }
        let demand = Demand::of(&run);
        let device = run.spec.device_uid;
        let indexed = Indexed {
            key: entry.key.clone(),
            wanted: Wanted {
                generation: run.metadata.generation,
                deleting: run.metadata.deletion_timestamp.is_some(),
                lost: run.status.phase == Some(RunPhase::Lost),
            },
            ended: run.status.phase.is_some_and(RunPhase::is_terminal),
            demand,
            entry: Arc::clone(entry),
        };
        self.keys
            .insert(entry.key.clone(), (device.clone(), run.metadata.uid.clone()));
        self.devices
            .entry(device.clone())
            .or_default()
            .insert(run.metadata.uid, indexed);
        Some(device)
    }
}
