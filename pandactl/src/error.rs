//! The one seam through which every failure reaches a person: what happened, and what to do next.

use std::fmt::Write as _;
use std::io;

pub use panda_api::component::chain;
use panda_api::meta::{Reason, Status};
use panda_client::{connector, transport};

/// Whose fault it is, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The command or a file is wrong.
    User,
    /// The server refused.
    Api,
    /// The kubeconfig is wrong or missing.
    Config,
    /// The server cannot be reached.
    Connect,
    /// Something that should not happen.
    Internal,
    /// Standard output takes no more, because its reader is gone. Nothing is said about it.
    ClosedPipe,
}

/// A failure, ready to be shown.
#[derive(Debug)]
pub struct Error {
    /// Whose fault it is.
    pub kind: Kind,
    /// What happened; one sentence, or several lines.
    pub message: String,
    /// What to do next.
    pub hints: Vec<String>,
    /// Exit code of the process.
    pub exit: u8,
}

/// What a command comes to.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hints: Vec::new(),
            exit: 1,
        }
    }

    /// The command or a file is wrong.
    pub fn user(message: impl Into<String>) -> Self {
        Self::new(Kind::User, message)
    }

    /// The kubeconfig is wrong or missing.
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Kind::Config, message)
    }

    /// Something that should not happen.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
            .hint("this is a fault of Panda: please report it, with the command and `pandactl version`")
    }

    /// A file cannot be read or written.
    #[must_use]
    pub fn file(what: &str, path: &std::path::Path, source: &io::Error) -> Self {
        let hint = match source.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "check its owner and mode",
            _ => "check the path, its owner and mode, and the space left",
        };
        Self::user(format!("cannot {what} {}: {source}", path.display())).hint(hint)
    }

    /// Adds what to do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Puts what was being done before the message.
    #[must_use]
    pub fn during(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Ends the process with another code.
    #[must_use]
    pub const fn exit(mut self, code: u8) -> Self {
        self.exit = code;
        self
    }

    /// Standard output could not be written.
    #[must_use]
    pub fn output(error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Kind::ClosedPipe, "").exit(0);
        }
        Self::new(Kind::User, format!("cannot write to standard output: {error}"))
            .hint("what was written so far is not complete: check where the output goes")
    }
}

impl From<panda_client::Error> for Error {
    fn from(error: panda_client::Error) -> Self {
        use panda_client::Error as E;
        let text = chain(&error);
        match error {
            E::Api(status) => refused(&status),
            E::Transport(transport::Error::Connect(connector::Error::Handshake { .. })) => {
                Self::new(Kind::Connect, text)
                    .hint("the configuration may belong to another server: `pandactl up` writes it anew; see `pandactl config view`")
            }
            E::Transport(transport::Error::Connect(_)) => Self::new(Kind::Connect, text)
                .hint("start a server with `pandactl up`, or name another one with --context or --kubeconfig"),
            E::Transport(_) => Self::new(Kind::Connect, text).hint("run the command again: the connection broke half-way"),
            E::Timeout { .. } => {
                Self::new(Kind::Connect, text).hint("run the command again, or allow more time with --request-timeout")
            }
            E::Connector(_) => Self::new(Kind::Config, text).hint("see `pandactl config view`; `pandactl up` writes the configuration anew"),
            E::Request(_) => Self::user(text).hint("see `pandactl --help`"),
            _ => Self::new(Kind::Api, text).hint("client and server may be of different versions: compare with `pandactl version`"),
        }
    }
}

/// What the server says, with the faults of fields one a line.
fn refused(status: &Status) -> Error {
    let mut message = status.message.clone();
    if message.is_empty() {
        message = format!("the server answered {}", status.code);
    }
    let details = status.details.as_ref();
    if let Some(details) = details.filter(|d| d.causes.len() > 1 && status.is(Reason::Invalid)) {
        message = format!("{} {:?} is invalid:", details.kind, details.name);
        for cause in &details.causes {
            let _: std::fmt::Result = write!(message, "\n  {}: {}", cause.field, cause.message);
        }
    }
    if !status.reason.is_empty() && !status.is(Reason::Invalid) && !status.is(Reason::BadRequest) {
        let _: std::fmt::Result = write!(message, " ({})", status.reason);
    }
    let error = Error::new(Kind::Api, message);
    let plural = details.map_or("", |d| d.kind.as_str());
    match status.code {
        404 if matches!(plural, "namespaces" | "devices") => {
            error.hint(format!("`pandactl get {plural}` lists what there is"))
        }
        404 if !plural.is_empty() => {
            error.hint(format!("`pandactl get {plural} -A` lists what there is, in all namespaces"))
        }
        404 => error.hint("the server may be older than this command: compare with `pandactl version`"),
        401 => error.hint("the credentials of the configuration are not valid here: `pandactl up` writes them anew; see `pandactl config view`"),
        403 => error.hint("ask whoever runs the server, or use another context with --context"),
        409 if status.is(Reason::AlreadyExists) => error.hint("choose another name, or change the existing object with `pandactl apply`"),
        409 => error.hint("somebody else changed it at the same time: run the command again"),
        410 => error.hint("run the command again"),
        413 => error.hint("make the object smaller: large content belongs into files of the workspace"),
        422 | 400 => error.hint("correct what is named above and run the command again"),
        429 | 503 | 504 => error.hint("the server is busy: run the command again in a moment"),
        _ => error.hint("the server's own log says more"),
    }
}

impl From<panda_client::discovery::Error> for Error {
    fn from(error: panda_client::discovery::Error) -> Self {
        match error {
            panda_client::discovery::Error::Request(source) => Self::from(source),
            unknown @ panda_client::discovery::Error::Unknown { .. } => Self::user(unknown.to_string())
                .hint("`pandactl api-resources` lists the kinds of this server"),
        }
    }
}

impl From<panda_client::config::Error> for Error {
    fn from(error: panda_client::config::Error) -> Self {
        Self::config(chain(&error)).hint("mend the file, or let `pandactl up` write it anew")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        let closed = Error::output(&io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!((closed.kind, closed.exit), (Kind::ClosedPipe, 0));
        let full = Error::output(&io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!((full.kind, full.exit), (Kind::User, 1));
    }

    #[test]
    fn every_refusal_says_what_to_do_next() {
        for reason in [
            Reason::BadRequest,
            Reason::Unauthorized,
            Reason::Forbidden,
            Reason::NotFound,
            Reason::AlreadyExists,
            Reason::Conflict,
            Reason::Expired,
            Reason::Invalid,
            Reason::TooManyRequests,
            Reason::InternalError,
        ] {
            let error = Error::from(panda_client::Error::Api(Box::new(Status::failure(reason, "no"))));
            assert_eq!(error.kind, Kind::Api);
            assert!(!error.hints.is_empty(), "{reason:?}");
        }
    }

    #[test]
    fn a_server_that_is_not_there_is_started_with_up() {
        let source = io::Error::from(io::ErrorKind::ConnectionRefused);
        let connect = connector::Error::Connect {
            target: "127.0.0.1:7443".into(),
            source,
        };
        let error = Error::from(panda_client::Error::Transport(transport::Error::Connect(connect)));
        assert_eq!(error.kind, Kind::Connect);
        assert!(
            error.message.contains("127.0.0.1:7443") && error.hints[0].contains("pandactl up"),
            "{error:?}"
        );
    }
}
