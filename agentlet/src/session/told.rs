//! What is said in the log about sessions: each complaint once, however often it comes again, until a session is open.

use std::collections::BTreeSet;
use std::time::Duration;

use tonic::Code;

use super::Ended;

/// Different complaints that are remembered; further ones are not said.
const MOST: usize = 16;

/// What was said, and whether the server has spoken in the session at hand.
#[derive(Debug, Default)]
pub(super) struct Told {
    said: BTreeSet<String>,
    heard: bool,
}

impl Told {
    /// A try begins.
    pub(super) fn begin(&mut self) {
        self.heard = false;
    }

    /// Whether the server has said anything in this session.
    pub(super) fn heard(&self) -> bool {
        self.heard
    }

    /// The server said something.
    pub(super) fn hears(&mut self, server: &str) {
        if self.heard {
            return;
        }
        self.heard = true;
        if !self.said.is_empty() {
            tracing::info!(server, "the control plane works with this device again");
            self.said.clear();
        }
    }

    /// The server said nothing.
    pub(super) fn silent(&mut self, server: &str, within: Duration) {
        if self.is_new(format!("{server} silent")) {
            tracing::warn!(
                server,
                "no answer within {within:?}; it is passed over while there is another"
            );
        }
    }

    /// A session was refused, or broke.
    pub(super) fn ended(&mut self, server: &str, status: &tonic::Status) -> Ended {
        let why = why(status);
        if status.code() == Code::PermissionDenied {
            if self.is_new(format!("{server} refused: {why}")) {
                tracing::error!(
                    server,
                    why,
                    "the control plane does not take this device: it starts no work, and asks again every few minutes. To \
                     make it a device again, start it once with the flags that `pandactl device join-token` prints"
                );
            }
            return Ended::Refused;
        }
        if self.is_new(format!("{server} {:?}: {why}", status.code())) {
            if self.heard {
                tracing::info!(server, why, "the session ended, another is opened");
            } else {
                tracing::warn!(server, why, "no session, trying on");
            }
        }
        Ended::Broken
    }

    fn is_new(&mut self, complaint: String) -> bool {
        self.said.len() < MOST && self.said.insert(complaint)
    }
}

/// What a status says, without the words of the libraries in between where the server has spoken.
fn why(status: &tonic::Status) -> String {
    let transport = std::error::Error::source(status).is_some();
    match (transport, status.code()) {
        (true, _) => "the connection broke".to_owned(),
        (false, _) if status.message().is_empty() => status.code().description().to_owned(),
        (false, _) => status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "https://one:1";

    #[test]
    fn a_complaint_is_said_once_until_the_server_speaks_again() {
        let mut told = Told::default();
        told.begin();
        let removed = tonic::Status::permission_denied("removed");
        assert_eq!(told.ended(SERVER, &removed), Ended::Refused);
        assert!(!told.is_new(format!("{SERVER} refused: removed")));
        assert_eq!(
            told.ended(SERVER, &tonic::Status::unavailable("restored")),
            Ended::Broken
        );
        assert_eq!(told.said.len(), 2);
        told.hears(SERVER);
        assert!(told.heard() && told.said.is_empty());
    }

    #[test]
    fn complaints_that_all_differ_are_bounded() {
        let mut told = Told::default();
        for n in 0..1000 {
            told.ended(SERVER, &tonic::Status::unknown(n.to_string()));
        }
        assert_eq!(told.said.len(), MOST);
    }

    #[test]
    fn a_server_is_quoted_and_an_empty_status_still_says_something() {
        assert_eq!(why(&tonic::Status::permission_denied("go away")), "go away");
        assert!(!why(&tonic::Status::new(Code::Internal, "")).is_empty());
    }
}
