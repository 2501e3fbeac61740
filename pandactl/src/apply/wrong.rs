//! What is wrong with the objects of one command.

use panda_api::manifest::Errors;

use super::faults::Fault;
use crate::error::{Error, Kind, Result};
use crate::session::Session;

/// What is wrong so far; each fault is shown when it is found.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    /// How much.
    pub(crate) count: usize,
}

impl Wrong {
    pub(crate) fn unreadable(&mut self, errors: &Errors, session: &Session<'_>) {
        for error in errors {
            self.count += 1;
            session.note(&error.render(session.color_err()));
        }
    }

    /// Shows faults. A server that cannot be reached ends everything: the rest would fail the same way.
    pub(crate) fn faults(&mut self, faults: &[Fault], session: &Session<'_>) -> Result<()> {
        for fault in faults {
            self.count += 1;
            if let Fault::Other(error) = fault
                && matches!(error.kind, Kind::Connect | Kind::Config)
            {
                return Err(Error {
                    kind: error.kind,
                    message: error.message.clone(),
                    hints: error.hints.clone(),
                    exit: 1,
                });
            }
            session.note(&fault.render(session.color_err()));
        }
        Ok(())
    }

    pub(crate) fn problems(&self) -> String {
        if self.count == 1 {
            "one problem".to_owned()
        } else {
            format!("{} problems", self.count)
        }
    }

    pub(crate) fn nothing_applied(&self) -> Error {
        Error::user(format!("nothing was applied: {}", self.problems()))
            .hint("correct what is shown above; --continue-on-error applies what is right")
    }

    pub(crate) fn some_applied(&self) -> Error {
        Error::user(format!("not everything was applied: {}", self.problems()))
            .hint("correct what is shown above and apply again")
    }
}
