//! What goes wrong around an agent, in the words of the API.

use panda_api::{Failure, FailureReason};
use panda_sandbox::{FloorError, LaunchError};

use super::io::Io;
use crate::driver::is_retryable;
use crate::supervisor::spec::Limits;
use crate::supervisor::watch::Expired;

pub(super) fn failure(reason: FailureReason, message: String) -> Failure {
    Failure {
        reason,
        message,
        exit_code: None,
        retryable: is_retryable(reason),
        retry_after: None,
        refusal: None,
    }
}

/// What a person is told of an agent that behaves badly.
pub(super) fn trouble(reason: FailureReason, why: &str, limits: &Limits) -> String {
    match reason {
        FailureReason::LoopDetected => format!(
            "it goes round in circles, {} times {why}. Raise `supervision.repeatLimit` if it should",
            limits.repeat
        ),
        _ => why.to_owned(),
    }
}

pub(super) fn of_launch(error: &LaunchError) -> Failure {
    let reason = match error {
        LaunchError::Floor(FloorError::ProgramNotFound { .. } | FloorError::Exec { .. }) => {
            FailureReason::AgentNotFound
        }
        LaunchError::Floor(FloorError::WorkingDirectory { .. }) => FailureReason::WorkspaceFailed,
        LaunchError::Floor(
            FloorError::RootWithoutUser | FloorError::Layer { .. } | FloorError::CannotHide { .. },
        ) => FailureReason::SandboxUnavailable,
        LaunchError::Floor(FloorError::Invalid { .. }) | LaunchError::Helper { .. } => {
            FailureReason::Internal
        }
    };
    let mut message = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        message = format!("{message}: {source}");
    }
    failure(reason, message)
}

pub(super) fn of_watchdog(expired: Expired, limits: &Limits, io: &Io) -> Failure {
    let last = io.last_words();
    let last = if last.is_empty() {
        "it wrote nothing at all".to_owned()
    } else {
        format!("its last output: {last}")
    };
    match expired {
        Expired::FirstOutput => failure(
            FailureReason::NoFirstOutput,
            format!(
                "no output, no event and no use of the processor for {:?} after the start; {last}. It may wait for \
                 input or for an answer on a terminal: it has neither. Give the prompt as an argument, set \
                 `stdin: Prompt` in the Agent, or raise `supervision.firstOutput`",
                limits.first_output
            ),
        ),
        Expired::Silence => failure(
            FailureReason::Stalled,
            format!(
                "no output, no event and no use of the processor for {:?}; {last}. Raise `supervision.silence` if \
                 the agent may be quiet for longer",
                limits.silence
            ),
        ),
        Expired::Attempt => failure(
            FailureReason::TimedOut,
            format!(
                "still at work after {:?} (`attemptTimeout`); {last}",
                limits.attempt
            ),
        ),
    }
}
