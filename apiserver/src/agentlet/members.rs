//! Which devices there still are: what a device has open is cut when it is removed, or when its certificate has ended and
//! no other was issued.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use panda_api::meta::{Condition, set_condition};
use panda_api::{Device, Resource};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{Agentlets, DeviceId, objects, session};
use crate::certificates::EXPIRING;

/// What a device that was removed is told.
pub(super) const REMOVED: &str = "this device was removed; join it again";
/// How often a lost race is run again.
const ATTEMPTS: usize = 8;
/// The wall clock is looked at so often at least: it may jump.
const LOOK: Duration = Duration::from_secs(60);

/// Tokens by device uid; each is cancelled when its device is removed.
#[derive(Default)]
pub(super) struct Members(Mutex<HashMap<String, CancellationToken>>);

impl Members {
    /// Cancelled when the device is removed. Whether it still is there must be looked at afterwards.
    pub(super) fn until_removed(&self, uid: &str) -> CancellationToken {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.entry(uid.to_owned()).or_default().child_token()
    }

    /// Uids of devices that have, or had, something open.
    pub(super) fn known(&self) -> Vec<String> {
        let tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.keys().cloned().collect()
    }

    /// Cuts everything of these devices.
    pub(super) fn cut(&self, uids: impl IntoIterator<Item = String>) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for uid in uids {
            if let Some(token) = tokens.remove(&uid) {
                tracing::info!(%uid, "a device was removed, what it has open is cut");
                token.cancel();
            }
        }
    }
}

impl Agentlets {
    /// Whether a device is still registered under its uid.
    pub(super) async fn registered(&self, device: &DeviceId) -> Result<(), Status> {
        self.member(device).await.map(|_| ())
    }

    /// The Device, while it is registered under its uid.
    pub(super) async fn member(&self, device: &DeviceId) -> Result<objects::Stored<Device>, Status> {
        let stored = self
            .objects
            .get::<Device>("", &device.name)
            .await
            .map_err(session::internal)?;
        stored
            .filter(|stored| stored.object.metadata().uid == device.uid)
            .ok_or_else(|| Status::permission_denied(REMOVED))
    }

    /// Checks that the device is registered, and records the key that it shows where no request for a certificate did:
    /// such a certificate was made by the control plane itself, as for the device of its own process.
    pub(super) async fn note_key(&self, device: &DeviceId, fingerprint: &str) -> Result<(), Status> {
        for _ in 0..ATTEMPTS {
            let mut stored = self.member(device).await?;
            let status = &mut stored.object.status;
            if status.certificate_expires.is_some()
                || fingerprint.is_empty()
                || status.key_fingerprint == fingerprint
            {
                return Ok(());
            }
            fingerprint.clone_into(&mut status.key_fingerprint);
            match self.objects.commit(vec![stored.write()]).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(session::internal(error)),
            }
        }
        Err(Status::unavailable("too many changes at a time; connect again"))
    }

    /// How long until the device's certificate must be looked at again; an error when it has ended.
    pub(super) async fn certificate(&self, device: &DeviceId) -> Result<Duration, Status> {
        let mut stored = self.member(device).await?;
        // Certificates that no request was made for are checked by the connection alone.
        let Some(end) = stored.object.status.certificate_expires else {
            return Ok(LOOK);
        };
        let left = end.0.as_second() - self.clock.now().as_second();
        if let Ok(left @ 1..) = u64::try_from(left) {
            return Ok(LOOK.min(Duration::from_secs(left)));
        }
        let object = &mut stored.object;
        let condition = Condition {
            type_: EXPIRING.to_owned(),
            status: "True".to_owned(),
            observed_generation: Some(object.metadata.generation),
            last_transition_time: self.clock.now().into(),
            reason: "Expired".to_owned(),
            message: format!("the certificate ended at {}", end.0),
        };
        set_condition(&mut object.status.conditions, condition);
        match self.objects.commit(vec![stored.write()]).await {
            Ok(_) => {}
            // Whoever was faster knows better.
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(session::internal(error)),
        }
        Err(Status::unauthenticated(
            "the device's certificate has ended and was not renewed",
        ))
    }
}
