//! What happens by itself: Events are for people and live a day; quotas show what is used.

use std::time::Duration;

use panda_api::Event;
use panda_api::meta::{MicroTime, Time};
use panda_api::scheme;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::registry::{Error, ListOptions, Preconditions, Registry, WriteOptions};

/// How often old Events are looked for.
const PERIOD: Duration = Duration::from_secs(300);
/// Events looked at in one step.
const STEP: usize = 1000;
/// How often the numbers of quotas are brought up to date.
const RECOUNT: Duration = Duration::from_secs(2);

pub(crate) struct Housekeeping {
    pub(crate) registry: Registry,
    pub(crate) event_ttl: Duration,
}

/// The times of an Event.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Times {
    metadata: Made,
    last_timestamp: Option<Time>,
    event_time: Option<MicroTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    #[serde(default)]
    uid: String,
    creation_timestamp: Option<Time>,
}

impl Times {
    fn newest(&self) -> Option<jiff::Timestamp> {
        let created = self.metadata.creation_timestamp.map(|time| time.0);
        [
            created,
            self.last_timestamp.map(|time| time.0),
            self.event_time.map(|time| time.0),
        ]
        .into_iter()
        .flatten()
        .max()
    }
}

impl Housekeeping {
    pub(crate) async fn run(self, stop: CancellationToken) {
        tokio::join!(self.run_events(&stop), self.run_quotas(&stop));
    }

    async fn run_quotas(&self, stop: &CancellationToken) {
        while stop
            .run_until_cancelled(tokio::time::sleep(RECOUNT))
            .await
            .is_some()
        {
            if let Err(error) = self.registry.recount().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "quotas were not counted"
                );
            }
        }
    }

    async fn run_events(&self, stop: &CancellationToken) {
        loop {
            match self.sweep().await {
                Ok(0) => {}
                Ok(removed) => tracing::debug!(removed, "old events removed"),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "old events not removed");
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(PERIOD) => {}
            }
        }
    }

    /// Removes the Events whose time is over; how many.
    async fn sweep(&self) -> Result<usize, Error> {
        let kind = scheme::of::<Event>();
        let now = self.registry.clock().now();
        let ttl = jiff::SignedDuration::try_from(self.event_ttl).unwrap_or(jiff::SignedDuration::MAX);
        let Ok(oldest) = now.checked_sub(ttl) else {
            return Ok(0);
        };
        let mut options = ListOptions {
            limit: Some(STEP),
            ..ListOptions::default()
        };
        let mut removed = 0;
        loop {
            let page = self.registry.list(kind, &options).await?;
            for object in &page.items {
                let Ok(times) = serde_json::from_slice::<Times>(&object.json) else {
                    continue;
                };
                if times.newest().is_none_or(|newest| newest >= oldest) {
                    continue;
                }
                let preconditions = Preconditions {
                    uid: Some(times.metadata.uid),
                    resource_version: None,
                };
                let (namespace, name) = (&object.key.namespace, &object.key.name);
                let write = WriteOptions::default();
                match self
                    .registry
                    .delete(kind, namespace, name, preconditions, &write)
                    .await
                {
                    Ok(_) => removed += 1,
                    Err(Error::NotFound { .. } | Error::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            match page.continue_ {
                Some(token) => options.continue_ = Some(token),
                None => return Ok(removed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use panda_api::ObjectReference;
    use panda_api::meta::{Clock, ObjectMeta, RandomIds};
    use panda_store::Memory;

    use super::*;
    use crate::registry::Sealer;

    #[derive(Debug, Default)]
    struct Hours(AtomicI64);

    impl Clock for Hours {
        fn now(&self) -> jiff::Timestamp {
            jiff::Timestamp::from_second(1_800_000_000 + self.0.load(Ordering::Relaxed) * 3600).unwrap()
        }

        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }
    }

    #[tokio::test]
    async fn events_go_a_day_after_they_were_last_seen() {
        let dir = tempfile::tempdir().unwrap();
        let sealer = Sealer::open(&dir.path().join("key")).unwrap();
        let clock = Arc::new(Hours::default());
        let store = Arc::new(Memory::new("test"));
        let registry = Registry::new(store, sealer, Arc::<Hours>::clone(&clock), Arc::new(RandomIds));
        registry.bootstrap().await.unwrap();
        let event = |name: &str, last: Option<Time>| Event {
            metadata: ObjectMeta::namespaced("default", name),
            involved_object: ObjectReference {
                kind: "Task".to_owned(),
                name: "t".to_owned(),
                namespace: "default".to_owned(),
                ..ObjectReference::default()
            },
            last_timestamp: last,
            ..Event::default()
        };
        registry.create_as(&event("once", None)).await.unwrap();
        clock.0.store(10, Ordering::Relaxed);
        registry.create_as(&event("later", None)).await.unwrap();
        let seen_again = Time(clock.now());
        registry
            .modify_as::<Event>("default", "once", crate::registry::Part::Spec, move |event| {
                event.last_timestamp = Some(seen_again);
                true
            })
            .await
            .unwrap();
        let housekeeping = Housekeeping {
            registry,
            event_ttl: Duration::from_secs(24 * 3600),
        };
        for (hours, gone) in [(25, 0), (34, 0), (35, 2), (36, 0)] {
            clock.0.store(hours, Ordering::Relaxed);
            assert_eq!(housekeeping.sweep().await.unwrap(), gone, "after {hours} h");
        }
    }
}
