//! One at a time: leader election over a Lease.
//!
//! A candidate takes the Lease when nobody holds it, or when it has not changed for its whole duration on the
//! candidate's own monotonic clock; the wall clock decides nothing. Every write is a compare-and-swap on
//! `resourceVersion`. A leader that could not renew for [`Config::renew_deadline`], counted from when its last renewal
//! was *sent*, tells its work to end; what has not ended when another may take over is dropped.
//!
//! A machine that was suspended wakes as leader until its next timer fires. So election keeps two from working at
//! cross purposes; that nothing is done twice is the business of preconditions on each write.

use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::{Clock, MicroTime, ObjectMeta};
use panda_api::{Lease, LeaseSpec};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::client::Client;
use crate::error::Error;
use crate::params::WriteParams;

/// Whose Lease, and how long it is good for.
#[derive(Clone, Debug)]
pub struct Config {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who this candidate is; no other may have the same.
    pub identity: String,
    /// Without a renewal for this long, others take the Lease. Whole seconds.
    pub lease_duration: Duration,
    /// Without a renewal for this long, the leader stops its work. Shorter than the duration: the difference is the
    /// time that the work has to end.
    pub renew_deadline: Duration,
    /// Between tries to get or keep the Lease.
    pub retry_period: Duration,
}

impl Config {
    /// The usual times: 15 s, 10 s, 2 s.
    #[must_use]
    pub fn new(namespace: &str, name: &str, identity: String) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }

    /// What is wrong with the times, if anything.
    #[must_use]
    pub fn problem(&self) -> Option<&'static str> {
        if self.lease_duration.subsec_nanos() > 0 || self.lease_duration.is_zero() {
            Some("the lease's duration must be whole seconds, at least one")
        } else if self.renew_deadline >= self.lease_duration {
            Some("the renewal's deadline must be shorter than the lease's duration")
        } else if self.retry_period.is_zero() || self.retry_period >= self.renew_deadline {
            Some("the time between tries must be shorter than the renewal's deadline, and not zero")
        } else {
            None
        }
    }
}

/// How leading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It was told to stop, or the work came to its own end; the Lease was given back.
    Done,
    /// The Lease could not be kept.
    Lost,
}

/// What became of one try.
enum Step {
    /// The Lease is ours.
    Held,
    /// It changed in between, perhaps only its labels: the next try sees whose it is.
    Raced,
    /// It is another's.
    Others,
}

/// One candidate.
#[derive(Debug)]
pub struct Elector {
    api: Api<Lease>,
    clock: Arc<dyn Clock>,
    config: Config,
    /// The Lease as it was last seen to change, and when that was.
    seen: Option<(Lease, Instant)>,
}

impl Elector {
    /// A candidate for the Lease of `config`.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>, config: Config) -> Self {
        Self {
            api: Api::namespaced(client, &config.namespace),
            clock,
            config,
            seen: None,
        }
    }

    /// Waits for the Lease, then does `work` while it is held. The work's token is cancelled when the Lease is lost or
    /// `token` is cancelled.
    pub async fn run<F>(
        mut self,
        token: CancellationToken,
        work: impl FnOnce(CancellationToken) -> F,
    ) -> Ended
    where
        F: Future<Output = ()>,
    {
        let Some(mut held) = self.acquire(&token).await else {
            return Ended::Done;
        };
        tracing::info!(lease = %self.config.name, identity = %self.config.identity, "leading");
        let inner = token.child_token();
        let mut work = std::pin::pin!(work(inner.clone()));
        let mut retry = tokio::time::interval(self.config.retry_period);
        loop {
            let deadline = held + self.config.renew_deadline;
            tokio::select! {
                () = &mut work => break,
                () = tokio::time::sleep_until(deadline) => return self.lost(held, inner, work).await,
                _ = retry.tick() => {}
            }
            let sent = Instant::now();
            let renewed = tokio::select! {
                () = &mut work => break,
                () = tokio::time::sleep_until(deadline) => return self.lost(held, inner, work).await,
                renewed = self.step() => renewed,
            };
            match renewed {
                Ok(Step::Held) => held = sent,
                Ok(Step::Raced) => {}
                Ok(Step::Others) => return self.lost(held, inner, work).await,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "the lease was not renewed"
                    );
                }
            }
        }
        self.release().await;
        Ended::Done
    }

    async fn lost(
        &self,
        held: Instant,
        inner: CancellationToken,
        work: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Ended {
        tracing::error!(lease = %self.config.name, identity = %self.config.identity, "the lease is lost, work ends");
        inner.cancel();
        // From here on another may lead; what is still under way is dropped by the caller's return.
        if tokio::time::timeout_at(held + self.config.lease_duration, work)
            .await
            .is_err()
        {
            tracing::error!("work did not end in time and is cut");
        }
        Ended::Lost
    }

    /// Tries until the Lease is held; the time at which the winning write was sent.
    async fn acquire(&mut self, token: &CancellationToken) -> Option<Instant> {
        let mut retry = tokio::time::interval(self.config.retry_period);
        loop {
            tokio::select! {
                () = token.cancelled() => return None,
                _ = retry.tick() => {}
            }
            let sent = Instant::now();
            let tried = tokio::select! {
                () = token.cancelled() => return None,
                tried = self.step() => tried,
            };
            match tried {
                Ok(Step::Held) => return Some(sent),
                Ok(Step::Raced | Step::Others) => {}
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot ask for the lease"
                    );
                }
            }
        }
    }

    /// Takes or renews the Lease if that is allowed now.
    async fn step(&mut self) -> Result<Step, Error> {
        let Some(lease) = self.api.get_opt(&self.config.name).await? else {
            let new = Lease {
                metadata: ObjectMeta::namespaced(&self.config.namespace, &self.config.name),
                spec: self.spec(None),
                ..Lease::default()
            };
            return self.written(self.api.create(&new, &WriteParams::default()).await);
        };
        let changed = match &self.seen {
            Some((seen, _)) => seen.metadata.resource_version != lease.metadata.resource_version,
            None => true,
        };
        if changed {
            self.seen = Some((lease.clone(), Instant::now()));
        }
        if !self.may_take(&lease) {
            return Ok(Step::Others);
        }
        let next = Lease {
            spec: self.spec(Some(&lease.spec)),
            ..lease
        };
        self.written(
            self.api
                .replace(&self.config.name, &next, &WriteParams::default())
                .await,
        )
    }

    fn written(&mut self, written: Result<Lease, Error>) -> Result<Step, Error> {
        match written {
            Ok(lease) => {
                self.seen = Some((lease, Instant::now()));
                Ok(Step::Held)
            }
            Err(error) if error.is_conflict() || error.is_already_exists() => Ok(Step::Raced),
            Err(error) => Err(error),
        }
    }

    fn may_take(&self, lease: &Lease) -> bool {
        match lease.spec.holder_identity.as_deref() {
            None | Some("") => true,
            Some(holder) if holder == self.config.identity => true,
            Some(_) => self.seen.as_ref().is_some_and(|(_, since)| {
                let seconds = lease.spec.lease_duration_seconds.unwrap_or(0);
                since.elapsed() >= Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
            }),
        }
    }

    fn spec(&self, before: Option<&LeaseSpec>) -> LeaseSpec {
        let now = MicroTime(self.clock.now());
        let own = before.filter(|spec| spec.holder_identity.as_deref() == Some(&self.config.identity));
        LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_duration_seconds: i32::try_from(self.config.lease_duration.as_secs()).ok(),
            acquire_time: own.and_then(|spec| spec.acquire_time).or(Some(now)),
            renew_time: Some(now),
            lease_transitions: match (own, before) {
                (Some(spec), _) => spec.lease_transitions,
                (None, Some(spec)) => Some(spec.lease_transitions.unwrap_or(0).saturating_add(1)),
                (None, None) => Some(0),
            },
        }
    }

    /// Gives the Lease back, so that the next need not wait.
    async fn release(&self) {
        match tokio::time::timeout(self.config.retry_period, self.give_back()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "the lease was not given back"
                );
            }
            Err(_) => tracing::debug!("the lease was not given back in time"),
        }
    }

    async fn give_back(&self) -> Result<(), Error> {
        let mut lease = self.api.get(&self.config.name).await?;
        if lease.spec.holder_identity.as_deref() == Some(&self.config.identity) {
            lease.spec.holder_identity = None;
            self.api
                .replace(&self.config.name, &lease, &WriteParams::default())
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
