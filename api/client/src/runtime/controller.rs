//! Runs a reconcile function for every key that a change may concern.
//!
//! 1. Reconciling starts when all caches it reads have seen their first list.
//! 2. Every change of a watched object leads to a reconcile of each key it maps to, after the change is in the cache;
//!    several changes may share one.
//! 3. No key is reconciled twice at a time, whatever the number of workers.
//! 4. A reconcile that fails or panics is repeated with exponential back-off; the number of failures so far is part of
//!    its [`Request`]. Success forgets it.
//! 5. After cancellation no reconcile begins; those that run have the grace period to end, then they are dropped at
//!    their next await.

use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use panda_api::Resource;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::informer::InformerHandle;
use super::metrics::{self, Metrics, NoMetrics};
use super::store::Change;
use super::{ObjectRef, WorkQueue};
use crate::backoff::Backoff;
use crate::resource::Object;

/// How a controller behaves.
#[derive(Clone)]
pub struct Config {
    /// Reconciles at a time.
    pub workers: usize,
    /// Delay after failures of one key.
    pub backoff: Backoff,
    /// How long running reconciles may take after cancellation.
    pub grace: Duration,
    /// Seed of the back-off's jitter.
    pub seed: u64,
    /// Where counts go.
    pub metrics: Arc<dyn Metrics>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 2,
            backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(60)),
            grace: Duration::from_secs(10),
            seed: 0,
            metrics: Arc::new(NoMetrics),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("workers", &self.workers)
            .field("backoff", &self.backoff)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// What to reconcile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The object; it need not exist any more.
    pub key: ObjectRef,
    /// How often this key failed in a row before.
    pub failures: u32,
    /// Number of this reconcile, for logs.
    pub id: u64,
}

/// What is to happen after a reconcile that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing until something changes.
    Done,
    /// Again after this long.
    After(Duration),
    /// Again soon, with back-off: what was seen was out of date.
    Again,
}

/// Maps changes to keys and reconciles them.
pub struct Controller {
    name: &'static str,
    config: Config,
    queue: WorkQueue<ObjectRef>,
    caches: Vec<BoxFuture<'static, bool>>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller")
            .field("name", &self.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Controller {
    /// A controller that watches nothing yet.
    #[must_use]
    pub fn new(name: &'static str, config: Config) -> Self {
        Self {
            name,
            queue: WorkQueue::new(config.backoff, config.seed),
            config,
            caches: Vec::new(),
        }
    }

    /// Reconciles the object that changed.
    #[must_use]
    pub fn reconciles<K: Object>(self, informer: &InformerHandle<K>) -> Self {
        self.watches(informer, |object| vec![ObjectRef::of(object.meta())])
    }

    /// Reconciles the managing owner of the object that changed, if it is an `Owner`.
    #[must_use]
    pub fn owns<Owner: Resource, K: Object>(self, informer: &InformerHandle<K>) -> Self {
        self.watches(informer, |object| {
            let meta = object.meta();
            let namespace = if Owner::NAMESPACED { &meta.namespace } else { "" };
            meta.controller()
                .filter(|owner| owner.kind == Owner::KIND && owner.api_version == Owner::api_version())
                .map(|owner| ObjectRef::new(namespace, &owner.name))
                .into_iter()
                .collect()
        })
    }

    /// Reconciles the keys that `map` gives for the object that changed, as it was and as it is.
    #[must_use]
    pub fn watches<K: Object>(
        self,
        informer: &InformerHandle<K>,
        map: impl Fn(&K) -> Vec<ObjectRef> + Send + Sync + 'static,
    ) -> Self {
        let queue = self.queue.clone();
        informer.on_change(move |change| {
            if let Change::Updated { old, new } = change
                && !Arc::ptr_eq(old, new)
            {
                map(old).into_iter().for_each(|key| queue.add(key));
            }
            map(change.object()).into_iter().for_each(|key| queue.add(key));
        });
        self.reads(informer)
    }

    /// Waits for this cache, too, before the first reconcile; its changes lead to none.
    #[must_use]
    pub fn reads<K: Object>(mut self, informer: &InformerHandle<K>) -> Self {
        let store = informer.store().clone();
        self.caches.push(async move { store.wait_synced().await }.boxed());
        self
    }

    /// The queue, for triggers that are no watched object: timers, external events.
    #[must_use]
    pub fn queue(&self) -> WorkQueue<ObjectRef> {
        self.queue.clone()
    }

    /// Reconciles until the token is cancelled.
    pub async fn run<F, Fut, E>(mut self, reconcile: F, token: CancellationToken)
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: std::error::Error + 'static,
    {
        let caches = futures::future::join_all(std::mem::take(&mut self.caches));
        let queue = self.queue();
        tokio::select! {
            () = token.cancelled() => {}
            synced = caches => {
                if synced.contains(&false) {
                    tracing::warn!(controller = self.name, "a cache ended before its first list, not started");
                } else {
                    self.work(Arc::new(reconcile), &token).await;
                }
            }
        }
        queue.shut_down();
    }

    async fn work<F, Fut, E>(self, reconcile: Arc<F>, token: &CancellationToken)
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: std::error::Error + 'static,
    {
        tracing::debug!(
            controller = self.name,
            workers = self.config.workers,
            "controller started"
        );
        let ids = Arc::new(AtomicU64::new(1));
        let mut workers = JoinSet::new();
        for _ in 0..self.config.workers.max(1) {
            let worker = Worker {
                name: self.name,
                queue: self.queue.clone(),
                metrics: Arc::clone(&self.config.metrics),
                ids: Arc::clone(&ids),
                reconcile: Arc::clone(&reconcile),
            };
            workers.spawn(worker.run());
        }
        token.cancelled().await;
        self.queue.shut_down();
        let all = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout(self.config.grace, all).await.is_err() {
            tracing::warn!(controller = self.name, "reconciles did not end in time, dropped");
            workers.shutdown().await;
        }
    }
}

struct Worker<F> {
    name: &'static str,
    queue: WorkQueue<ObjectRef>,
    metrics: Arc<dyn Metrics>,
    ids: Arc<AtomicU64>,
    reconcile: Arc<F>,
}

impl<F> Worker<F> {
    async fn run<Fut, E>(self)
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Outcome, E>> + Send + 'static,
        E: std::error::Error + 'static,
    {
        while let Some(item) = self.queue.get().await {
            let request = Request {
                key: item.key().clone(),
                failures: item.failures(),
                id: self.ids.fetch_add(1, Ordering::Relaxed),
            };
            let (key, id) = (request.key.clone(), request.id);
            self.metrics
                .queue(self.name, self.queue.len(), self.queue.in_work());
            let span = tracing::debug_span!("reconcile", controller = self.name, %key, reconcile_id = id);
            let started = Instant::now();
            // The call itself may panic, too, before there is a future.
            let work = AssertUnwindSafe(async { (self.reconcile)(request).await });
            let ended = work.catch_unwind().instrument(span).await;
            let result = self.settle(&key, id, ended);
            self.metrics.reconciled(self.name, result, started.elapsed());
            drop(item);
        }
    }

    fn settle<E: std::error::Error + 'static>(
        &self,
        key: &ObjectRef,
        id: u64,
        ended: std::thread::Result<Result<Outcome, E>>,
    ) -> metrics::Result {
        match ended {
            Ok(Ok(Outcome::Done)) => {
                self.queue.forget(key);
                metrics::Result::Done
            }
            Ok(Ok(Outcome::After(delay))) => {
                self.queue.forget(key);
                self.queue.add_after(key.clone(), delay);
                metrics::Result::Requeued
            }
            Ok(Ok(Outcome::Again)) => {
                self.queue.add_backoff(key.clone());
                metrics::Result::Retried
            }
            Ok(Err(error)) => {
                let delay = self.queue.add_backoff(key.clone());
                tracing::warn!(
                    controller = self.name,
                    %key,
                    reconcile_id = id,
                    ?delay,
                    error = &error as &dyn std::error::Error,
                    "reconcile failed"
                );
                metrics::Result::Failed
            }
            Err(_) => {
                let delay = self.queue.add_backoff(key.clone());
                tracing::error!(controller = self.name, %key, reconcile_id = id, ?delay, "reconcile panicked");
                metrics::Result::Panicked
            }
        }
    }
}

#[cfg(test)]
mod tests;
