//! What follows from the removal of a Device: its streams are cut, and what was kept of it goes.

use std::collections::BTreeSet;

use futures::StreamExt;
use panda_api::{Device, Resource};
use panda_store::{EventKind, Scope, WatchRequest};
use tokio_util::sync::CancellationToken;

use super::Agentlets;
use super::objects::{self, Error};

/// Pause before the watch is begun again.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(500);

impl Agentlets {
    /// Follows Devices until cancelled.
    pub(crate) async fn follow_devices(&self, token: CancellationToken) {
        loop {
            let followed = tokio::select! {
                () = token.cancelled() => return,
                followed = self.follow_devices_once() => followed,
            };
            if let Err(error) = followed {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the watch of devices starts again"
                );
            }
            tokio::select! {
                () = token.cancelled() => return,
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    async fn follow_devices_once(&self) -> Result<(), Error> {
        // Known before the list: a device that joins in between is not taken for one that is gone.
        let known = self.members.known();
        let (devices, from) = self.objects.list::<Device>().await?;
        let there: BTreeSet<&str> = devices
            .iter()
            .map(|device| device.metadata().uid.as_str())
            .collect();
        let gone = known.into_iter().filter(|uid| !there.contains(uid.as_str()));
        self.members.cut(gone);
        self.sessions.cut_unless(|uid| there.contains(uid));
        for outbox in self.objects.outboxes().await? {
            if !there.contains(outbox.object.device_uid.as_str()) {
                self.forget_device(&outbox.object.device_uid).await?;
            }
        }
        let scope = Scope::resource(objects::resource::<Device>());
        let mut watch = self.objects.store().watch(WatchRequest { scope, from }).await?;
        while let Some(event) = watch.next().await {
            let event = event?;
            if event.kind != EventKind::Deleted {
                continue;
            }
            if let Ok(device) = serde_json::from_slice::<Device>(&event.value) {
                let uid = &device.metadata.uid;
                tracing::warn!(device = %device.metadata.name, uid = %uid, "device was removed");
                self.members.cut([uid.clone()]);
                self.sessions.cut_unless(|live| live != uid);
                self.forget_device(uid).await?;
            }
        }
        Ok(())
    }

    /// A removed device does not come back under its uid, so its numbers mean nothing any more.
    async fn forget_device(&self, uid: &str) -> Result<(), Error> {
        let Some(op) = self.objects.outbox(uid).await?.remove() else {
            return Ok(());
        };
        match self.objects.commit(vec![op]).await {
            Err(error) if !error.is_conflict() => Err(error),
            // A report that was under way wrote it; the next look removes it.
            _ => Ok(()),
        }
    }
}
