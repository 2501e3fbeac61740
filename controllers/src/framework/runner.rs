//! From a plan to what the controller runtime does next.

use panda_api::ObjectReference;
use panda_client::Client;
use panda_client::runtime::{Outcome as Next, Recorder};

use super::execute::{Error, Outcome, execute};
use super::{Basis, ClientApi, Notice, Plan};

/// Carries out plans for one controller; cheap to clone.
#[derive(Clone, Debug)]
pub struct Runner {
    api: ClientApi,
    recorder: Recorder,
}

impl Runner {
    /// A runner over `client` that reports to `recorder`.
    #[must_use]
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Self {
            api: ClientApi::new(client),
            recorder,
        }
    }

    /// Carries out a plan, as part of the trace `traceparent`, and says when to look again.
    ///
    /// # Errors
    /// See [`execute`].
    pub async fn run(&self, plan: &Plan, traceparent: Option<&str>) -> Result<Next, Error> {
        match execute(&self.api.with_traceparent(traceparent), plan).await? {
            Outcome::Done => {
                if let Some(basis) = &plan.basis {
                    plan.events.iter().for_each(|notice| self.report(basis, notice));
                }
                for (basis, notice) in &plan.elsewhere {
                    self.report(basis, notice);
                }
                Ok(plan.requeue.map_or(Next::Done, Next::After))
            }
            Outcome::Stale(target) => {
                tracing::debug!(object = %target, "the view was out of date");
                Ok(Next::Again)
            }
            Outcome::Taken(target) => {
                tracing::warn!(object = %target, "the name is taken by an object of another owner");
                Ok(Next::Again)
            }
        }
    }

    fn report(&self, basis: &Basis, notice: &Notice) {
        let about = ObjectReference {
            api_version: basis.target.kind.api_version(),
            kind: basis.target.kind.kind.to_owned(),
            namespace: basis.target.namespace.clone(),
            name: basis.target.name.clone(),
            uid: basis.uid.clone(),
            resource_version: basis.resource_version.clone(),
            field_path: String::new(),
        };
        self.recorder
            .record(about, notice.severity, notice.reason, &notice.message);
    }
}
