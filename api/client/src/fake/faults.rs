//! What goes wrong on the way.

use std::time::Duration;

use panda_api::meta::Status;

use crate::transport::Error;

/// A request that reached the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// `get list watch create update patch delete`, or `other` for what is no resource.
    pub verb: &'static str,
    /// Plural of the kind, with its subresource if there is one: `tasks`, `tasks/status`.
    pub resource: String,
    /// Namespace, or nothing.
    pub namespace: String,
    /// Name, or nothing.
    pub name: String,
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Effect {
    /// The server refuses it.
    Refuse(Box<Status>),
    /// No connection: nothing is sent.
    Unreachable,
    /// The connection breaks before the server got it.
    LoseRequest,
    /// The server does it, and the connection breaks before the answer.
    LoseReply,
    /// The server does it and never answers: the client runs into its timeout.
    Hang,
    /// The server takes its time (tokio's).
    Delay(Duration),
}

/// A fault in waiting.
#[derive(Clone, Debug)]
pub struct Fault {
    verb: String,
    resource: String,
    skip: u32,
    times: u32,
    effect: Effect,
}

impl Fault {
    /// Happens to the next request with this verb (`*`: any) for this resource (`tasks`, `tasks/status`; `*`: any).
    #[must_use]
    pub fn on(verb: &str, resource: &str, effect: Effect) -> Self {
        Self {
            verb: verb.to_owned(),
            resource: resource.to_owned(),
            skip: 0,
            times: 1,
            effect,
        }
    }

    /// Lets so many such requests pass first.
    #[must_use]
    pub const fn after(mut self, requests: u32) -> Self {
        self.skip = requests;
        self
    }

    /// Happens so many times.
    #[must_use]
    pub const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    fn matches(&self, seen: &Seen) -> bool {
        (self.verb == "*" || self.verb == seen.verb)
            && (self.resource == "*" || self.resource == seen.resource)
    }
}

/// The effect of the first fault that matches, which it uses up.
pub(super) fn next(faults: &mut Vec<Fault>, seen: &Seen) -> Option<Effect> {
    let index = faults.iter().position(|f| f.times > 0 && f.matches(seen))?;
    let fault = &mut faults[index];
    if fault.skip > 0 {
        fault.skip -= 1;
        return None;
    }
    fault.times -= 1;
    let effect = fault.effect.clone();
    faults.retain(|f| f.times > 0);
    Some(effect)
}

/// A broken connection.
pub(super) fn cut() -> Error {
    Error::Broken("cut by the test".into())
}
