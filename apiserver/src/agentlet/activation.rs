//! Whether this server may act on its store, or was restored and waits for a person.
//!
//! A store that went back in time says things that are no longer true: Runs that have ended look alive, and others are
//! missing. A server on one binds, grants and publishes nothing until a person has said that it may. That it went back is
//! written by a restore, or seen here: a device remembers a newer revision, or an acknowledgement that this store never
//! gave. From then on the store has another identity for devices, so that they hand over once more what they still have.
//!
//! `GET /activation` says where it stands; `POST /activation` ends the waiting.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use panda_api::meta::{Reason, Status as ApiStatus, Time};
use panda_store::Key;
use serde::{Deserialize, Serialize};

use super::Agentlets;
use super::http::{self, Failure};
use super::objects::{Error, Stored};

/// How often a lost race is run again.
const ATTEMPTS: usize = 8;

/// The marker in the store. There is none as long as nothing was ever restored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Activation {
    /// True: nothing is bound, granted or published.
    pub inactive: bool,
    /// What devices know the store as; empty: the store's own identity.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub store_uid: String,
    /// Why it is taken for restored.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The device whose memory showed it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
}

/// Where the marker is in the store.
pub(crate) fn key() -> Key {
    Key::new("panda.internal/activations", "", "store")
}

pub(crate) fn routes(agentlets: Arc<Agentlets>) -> Router {
    Router::new()
        .route("/activation", get(show).post(activate))
        .with_state(agentlets)
}

async fn show(State(agentlets): State<Arc<Agentlets>>) -> Result<Response, Failure> {
    let activation = agentlets.activation().await?;
    Ok(http::json(200, &activation.object))
}

async fn activate(State(agentlets): State<Arc<Agentlets>>) -> Result<Response, Failure> {
    for _ in 0..ATTEMPTS {
        let mut activation = agentlets.activation().await?;
        if !activation.object.inactive {
            return Ok(http::json(200, &activation.object));
        }
        activation.object.inactive = false;
        match agentlets.objects.commit(vec![activation.write()]).await {
            Ok(_) => {
                tracing::warn!("the store was activated: runs are bound, granted and published again");
                agentlets.metrics.inactive.set(0);
                // Each device hears everything anew.
                agentlets.sessions.cut_all();
                return Ok(http::json(200, &activation.object));
            }
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(http::bad_request("the marker changes too often; try again"))
}

impl Agentlets {
    /// The marker, or what stands for none.
    pub(crate) async fn activation(&self) -> Result<Stored<Activation>, Error> {
        let stored = self.objects.internal(key()).await?;
        Ok(stored.unwrap_or_else(|| Stored::absent(key(), Activation::default())))
    }

    /// What devices know the store as.
    pub(crate) fn store_uid(&self, activation: &Activation) -> String {
        if activation.store_uid.is_empty() {
            self.objects.store().store_uid().to_string()
        } else {
            activation.store_uid.clone()
        }
    }

    /// Says at the start whether the server waits for activation.
    pub(crate) async fn tell_activation(&self) {
        match self.activation().await {
            Ok(marker) if marker.object.inactive => {
                self.metrics.inactive.set(1);
                tracing::error!(
                    reason = marker.object.reason,
                    "the store was restored: nothing is bound, granted or published until POST /activation"
                );
            }
            Ok(_) => {}
            Err(error) => tracing::error!(
                error = &error as &dyn std::error::Error,
                "whether the store is active cannot be read"
            ),
        }
    }

    /// Refuses while the server is inactive.
    pub(crate) async fn active(&self) -> Result<(), Failure> {
        let activation = self.activation().await?.object;
        if !activation.inactive {
            return Ok(());
        }
        Err(ApiStatus::failure(
            Reason::ServiceUnavailable,
            format!(
                "the store was restored and is not active: {}; POST /activation once its state is what you want",
                activation.reason
            ),
        )
        .into())
    }

    /// Notes that the store went back in time. Everything stops until a person activates it.
    pub(crate) async fn mark_restored(&self, device: &str, reason: String) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let mut activation = self.activation().await?;
            if activation.object.inactive {
                return Ok(());
            }
            activation.object = Activation {
                inactive: true,
                store_uid: self.ids.uuid().to_string(),
                reason: reason.clone(),
                device: device.to_owned(),
                since: Some(self.clock.now().into()),
            };
            match self.objects.commit(vec![activation.write()]).await {
                Ok(_) => {
                    tracing::error!(
                        device,
                        reason,
                        "the store was restored: nothing is bound, granted or published until POST /activation"
                    );
                    self.metrics.inactive.set(1);
                    self.sessions.cut_all();
                    return Ok(());
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
