//! The device's certificate, renewed with the same key at two thirds of its life.
//!
//! A renewed certificate is used from the next connection on; what runs over an older one is not touched. After expiry the
//! device asks over TLS without a certificate, and its request waits for a person.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::{Clock, IdSource};
use panda_client::config::Identity;
use rcgen::KeyPair;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::credentials::Credentials;
use crate::endpoints::{DeviceConnector, Endpoints, PlainConnector};
use crate::join::{Answer, Ask, bearer, refusal, signing_request};

/// The wall clock is looked at so often at least: it may jump.
const LOOK: Duration = Duration::from_secs(60);
/// Pauses between failed tries double from the first to the last of these.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// The task that renews.
#[derive(Debug)]
pub struct Renewal {
    /// Where to.
    pub endpoints: Arc<Endpoints>,
    /// The credentials in use; renewed ones go out here.
    pub credentials: watch::Sender<Arc<Credentials>>,
    /// Where they are kept.
    pub data_dir: PathBuf,
    /// Wall time.
    pub clock: Arc<dyn Clock>,
    /// For pauses that differ.
    pub ids: Arc<dyn IdSource>,
}

/// Why there is no new certificate.
enum Failure {
    /// It may pass by itself.
    Passing(String),
    /// A person must act.
    Person(String),
    /// The control plane does not take this device's identity.
    Refused(String),
}

impl Renewal {
    /// Renews until `token` is cancelled.
    pub async fn run(self, token: CancellationToken) {
        tokio::select! {
            () = token.cancelled() => {}
            () = self.work() => {}
        }
    }

    async fn work(&self) {
        let mut pause = BACKOFF.0;
        let mut told = String::new();
        loop {
            let current = Arc::clone(&self.credentials.borrow());
            let now = self.clock.now().as_second();
            if now < current.renew_at() {
                let left = u64::try_from(current.renew_at() - now).unwrap_or(0);
                tokio::time::sleep(LOOK.min(Duration::from_secs(left))).await;
                continue;
            }
            match self.renew(&current, now >= current.not_after).await {
                Ok(renewed) => {
                    tracing::info!(until = renewed.not_after, "certificate renewed");
                    pause = BACKOFF.0;
                    told.clear();
                    self.keep(renewed).await;
                    continue;
                }
                Err(Failure::Passing(why)) => {
                    tracing::warn!(why, "the certificate is not renewed yet, trying again");
                }
                Err(Failure::Person(why) | Failure::Refused(why)) if why != told => {
                    tracing::error!(why, "the certificate is not renewed");
                    told = why;
                }
                Err(Failure::Person(_) | Failure::Refused(_)) => {}
            }
            let part = u32::from(self.ids.uuid().as_bytes()[0]);
            tokio::time::sleep(pause / 2 + pause * part / 512).await;
            // A short life leaves little time for pauses.
            let life = u64::try_from(current.not_after - current.not_before).unwrap_or(0);
            pause = (pause * 2).min(BACKOFF.1).min(Duration::from_secs(life / 12 + 1));
        }
    }

    /// Uses the new credentials at once, and keeps them as soon as the disk takes them; until then the old ones stay there.
    async fn keep(&self, renewed: Credentials) {
        let renewed = Arc::new(renewed);
        self.credentials.send_replace(Arc::clone(&renewed));
        let mut pause = BACKOFF.0;
        while let Err(error) = renewed.save(&self.data_dir) {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the new certificate cannot be kept, the old one stays on the disk; trying again"
            );
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    async fn renew(&self, current: &Credentials, expired: bool) -> Result<Credentials, Failure> {
        let broken = |error: rcgen::Error| Failure::Person(format!("the device's key cannot sign: {error}"));
        let key = KeyPair::from_pem(&current.key_pem).map_err(broken)?;
        let request = signing_request(&key, &current.name).map_err(broken)?;
        let device = DeviceConnector::http1(Arc::clone(&self.endpoints), self.credentials.subscribe());
        let ways = self.ask(Arc::new(device), Identity::None)?;
        let answer = match ways.once(&request).await {
            // The server's clock decides; ours may be wrong.
            Err(_) if expired => {
                let plain = PlainConnector {
                    endpoints: Arc::clone(&self.endpoints),
                    ca_pem: current.ca_pem.clone(),
                };
                self.ask(Arc::new(plain), Identity::Bearer(bearer(&request)))?
                    .once(&request)
                    .await
            }
            answer => answer,
        };
        match answer {
            Ok(Answer::Issued(pem)) => Credentials::new(pem, current.key_pem.clone(), current.ca_pem.clone())
                .map_err(|problem| Failure::Person(format!("the answer is no identity: {problem}"))),
            Ok(Answer::Waits { name }) => Err(Failure::Person(format!(
                "the certificate has expired; a person must let this device back in: pandactl certificate approve {name}"
            ))),
            Ok(Answer::Denied { name }) => Err(Failure::Person(format!(
                "a person has denied request {name}; delete it to let this device ask again, or remove the device and \
                 join it anew"
            ))),
            Err(error) => Err(match refusal(&error) {
                Some(why) => Failure::Refused(why),
                None => Failure::Passing(crate::runner::chain(&error)),
            }),
        }
    }

    fn ask(
        &self,
        connector: Arc<dyn panda_client::connector::Connector>,
        identity: Identity,
    ) -> Result<Ask, Failure> {
        Ask::new(self.endpoints.servers(), connector, identity)
            .map_err(|error| Failure::Person(crate::runner::chain(&error)))
    }

    /// Whether the control plane says that this device is no longer one of its own. When it says nothing, it still is.
    pub(crate) async fn is_removed(&self) -> bool {
        let current = Arc::clone(&self.credentials.borrow());
        let expired = self.clock.now().as_second() >= current.not_after;
        match tokio::time::timeout(LOOK / 3, self.renew(&current, expired)).await {
            Ok(Ok(_)) => false,
            Ok(Err(Failure::Refused(why))) => {
                tracing::warn!(why, "the control plane does not take this device's identity");
                true
            }
            Ok(Err(Failure::Passing(_) | Failure::Person(_))) | Err(_) => false,
        }
    }
}
