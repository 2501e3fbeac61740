//! Records of requests: every write, every refused read.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_TYPE, USER_AGENT};
use http_body_util::BodyExt;
use panda_api::meta::{Clock, Reason, StatusDetails};

use super::trace::RequestId;
use crate::audit::Audit;
use crate::audit::event::{Arrival, Asking, Event, Notes, WroteObject};
use crate::request::{RequestInfo, Verb};
use crate::respond::Failure;

/// Refusals of nobody in particular that are recorded at once, and after that a second.
const BURST: u32 = 100;
const EVERY: Duration = Duration::from_millis(100);
/// Seconds after which a write may be tried again that was refused for want of space.
const RETRY_AFTER: u32 = 5;
/// How long the body of a write that is refused may take to arrive.
const TAKEN_IN: Duration = Duration::from_secs(10);

pub(super) struct Auditing {
    pub(super) audit: Audit,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) strangers: Mutex<Strangers>,
}

/// Who asks; authentication fills it in.
#[derive(Clone, Debug, Default)]
pub(super) struct AskingCell(pub(super) Arc<OnceLock<Asking>>);

/// What is recorded of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interest {
    /// It, whatever comes of it; and not without space for the record.
    Write,
    /// It, whatever comes of it.
    Always,
    /// Only that it was refused.
    Refusal,
}

fn interest(info: &RequestInfo, grpc: bool) -> Interest {
    if grpc {
        // What a device reports is in the objects that it is about; values that leave the server are another thing.
        return if info.path.ends_with("/GetRunSecrets") {
            Interest::Always
        } else {
            Interest::Refusal
        };
    }
    let group = info.target.as_ref().map_or("", |target| target.group.as_str());
    match info.verb {
        Verb::Get | Verb::List | Verb::Watch => Interest::Refusal,
        // They ask and change nothing.
        Verb::Create if matches!(group, "authorization.k8s.io" | "authentication.k8s.io") => {
            Interest::Refusal
        }
        _ => Interest::Write,
    }
}

fn is_refusal(response: &Response) -> bool {
    let grpc = response.headers().get("grpc-status").map(|code| code.as_bytes());
    matches!(
        response.status(),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN
    ) || matches!(grpc, Some(b"7" | b"16"))
}

pub(super) async fn record(
    State(auditing): State<Arc<Auditing>>,
    mut request: Request,
    next: Next,
) -> Response {
    let info = request.extensions().get::<Arc<RequestInfo>>().cloned();
    let Some(info) = info.filter(|_| !super::health_path(request.uri().path())) else {
        return next.run(request).await;
    };
    let kind = request.headers().get(CONTENT_TYPE);
    let grpc = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    let interest = interest(&info, grpc);
    if interest == Interest::Write && !auditing.audit.is_ready() {
        take_in(request).await;
        return no_space().into_response();
    }
    let asking = AskingCell::default();
    let notes = Notes::default();
    request.extensions_mut().insert(asking.clone());
    request.extensions_mut().insert(notes.clone());
    let open = Open {
        auditing: Arc::clone(&auditing),
        uri: request.uri().clone(),
        agent: request.headers().get(USER_AGENT).cloned(),
        source: request.extensions().get::<SocketAddr>().copied(),
        id: request
            .extensions()
            .get::<RequestId>()
            .map_or_else(String::new, |id| id.0.clone()),
        at: auditing.clock.now(),
        info,
        asking,
        notes,
        over: interest == Interest::Refusal,
    };
    let response = next.run(request).await;
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        // Nobody has looked at it.
        open.over();
        return response;
    }
    if interest != Interest::Refusal || is_refusal(&response) {
        let wrote = response.extensions().get::<WroteObject>().cloned();
        open.end(response.status().as_u16(), wrote).await;
    }
    response
}

/// Reads what the client still sends (the body's bound is further out): an answer before the end of a request reaches
/// many clients as a broken connection.
async fn take_in(request: Request) {
    let mut body = request.into_body();
    let read = async { while let Some(Ok(_)) = body.frame().await {} };
    // Who is slower is told nothing better than that the connection ended.
    let _: Result<(), _> = tokio::time::timeout(TAKEN_IN, read).await;
}

fn no_space() -> Failure {
    let mut status = panda_api::meta::Status::failure(
        Reason::ServiceUnavailable,
        "writes are refused: there is no space for their audit records; free some on the server's disk",
    );
    status.details = Some(StatusDetails {
        retry_after_seconds: RETRY_AFTER,
        ..StatusDetails::default()
    });
    status.into()
}

/// A request that is to be recorded. One that is dropped was left by its client, or its handler panicked: what it did
/// until then is done, so it is recorded all the same.
struct Open {
    auditing: Arc<Auditing>,
    uri: http::Uri,
    agent: Option<http::HeaderValue>,
    source: Option<SocketAddr>,
    id: String,
    at: jiff::Timestamp,
    info: Arc<RequestInfo>,
    asking: AskingCell,
    notes: Notes,
    over: bool,
}

impl Open {
    fn event(&self) -> Event {
        let agent = self.agent.as_ref().and_then(|agent| agent.to_str().ok());
        Event::begin(Arrival {
            id: self.id.clone(),
            uri: self
                .uri
                .path_and_query()
                .map_or_else(String::new, ToString::to_string),
            info: &self.info,
            source: self.source,
            user_agent: agent.unwrap_or_default().to_owned(),
            at: self.at.into(),
        })
    }

    fn over(mut self) {
        self.over = true;
    }

    async fn end(mut self, code: u16, wrote: Option<WroteObject>) {
        self.over = true;
        let asking = self.asking.0.get().cloned().unwrap_or_default();
        let suppressed = match asking.user {
            Some(_) => 0,
            // Nobody in particular must not be able to push out the records of others.
            None => match self.auditing.strangers().admit(self.auditing.clock.monotonic()) {
                Some(suppressed) => suppressed,
                None => return,
            },
        };
        let now = self.auditing.clock.now().into();
        let event = self.event().answered(&asking, code, wrote.as_ref(), now);
        self.auditing
            .audit
            .record(&event.noted(&self.notes).after_suppressed(suppressed))
            .await;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let asking = self.asking.0.get().cloned().unwrap_or_default();
        let now = self.auditing.clock.now().into();
        let event = self.event().abandoned(&asking, std::thread::panicking(), now);
        self.auditing.audit.submit(&event);
    }
}

impl Auditing {
    fn strangers(&self) -> std::sync::MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many refusals of nobody in particular are recorded.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// When the bucket would be full again.
    full_at: Duration,
    suppressed: u64,
}

impl Strangers {
    /// Whether the next one is recorded, and how many were not before it.
    fn admit(&mut self, now: Duration) -> Option<u64> {
        let full_at = self.full_at.max(now) + EVERY;
        if full_at > now + EVERY * BURST {
            self.suppressed += 1;
            return None;
        }
        self.full_at = full_at;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_strangers_is_counted_and_not_recorded_one_by_one() {
        let mut strangers = Strangers::default();
        let now = Duration::from_secs(9);
        let admitted = (0..1000).filter(|_| strangers.admit(now).is_some()).count();
        assert_eq!(admitted, BURST as usize);
        assert_eq!(strangers.admit(now + EVERY), Some(900));
        assert_eq!(strangers.admit(now + EVERY), None);
    }

    #[test]
    fn writes_are_recorded_and_questions_are_not() {
        use http::Method;
        let of = |method: Method, uri: &str, grpc| {
            interest(&RequestInfo::new(&method, &uri.parse().unwrap(), grpc), grpc)
        };
        let tasks = "/apis/panda.dev/v1alpha1/namespaces/a/tasks";
        assert_eq!(of(Method::POST, tasks, false), Interest::Write);
        assert_eq!(of(Method::DELETE, tasks, false), Interest::Write);
        assert_eq!(of(Method::POST, "/activation", false), Interest::Write);
        assert_eq!(of(Method::TRACE, tasks, false), Interest::Write);
        assert_eq!(of(Method::GET, tasks, false), Interest::Refusal);
        let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        assert_eq!(of(Method::POST, review, false), Interest::Refusal);
        assert_eq!(
            of(Method::POST, "/panda.v1.Agentlet/Session", true),
            Interest::Refusal
        );
        assert_eq!(
            of(Method::POST, "/panda.v1.Agentlet/GetRunSecrets", true),
            Interest::Always
        );
    }
}
