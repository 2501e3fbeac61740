//! Requests to one server, with timeouts, safe retries and typed errors.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT, WARNING};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use panda_api::meta::Status;
use serde::de::DeserializeOwned;

use crate::backoff::{Backoff, Jitter};
use crate::config::{Config, Identity};
use crate::connector::{Connector, TlsConnector};
use crate::error::Error;
use crate::transport::{Body, HttpTransport, Transport};

/// Receives the server's warnings, one sentence at a time.
pub type WarningHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// How a client behaves.
#[derive(Clone)]
pub struct Options {
    /// What the client calls itself; also its field manager, up to the `/`.
    pub user_agent: String,
    /// A whole request with its answer takes no longer, retries included; of a stream, the time to its head.
    pub request_timeout: Duration,
    /// Opening a connection takes no longer.
    pub connect_timeout: Duration,
    /// An answer that is not a stream is no larger.
    pub max_response_bytes: usize,
    /// One line of a watch is no larger.
    pub max_line_bytes: usize,
    /// How often a request that did no harm is tried again.
    pub retries: u32,
    /// Delay between such tries.
    pub backoff: Backoff,
    /// Seed of the jitter.
    pub seed: u64,
    /// Namespace used when nothing else is said.
    pub namespace: String,
    /// Receives the server's warnings; without it they are logged.
    pub on_warning: Option<WarningHandler>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            user_agent: concat!("panda-client/", env!("CARGO_PKG_VERSION")).to_owned(),
            request_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            max_response_bytes: 64 << 20,
            max_line_bytes: 16 << 20,
            retries: 3,
            backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(5)),
            seed: 0,
            namespace: "default".to_owned(),
            on_warning: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("user_agent", &self.user_agent)
            .field("request_timeout", &self.request_timeout)
            .field("retries", &self.retries)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// A client of one server; cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
    traceparent: Option<HeaderValue>,
    acting_as: Option<HeaderValue>,
}

#[derive(Debug)]
struct Shared {
    transport: Arc<dyn Transport>,
    authorization: Option<HeaderValue>,
    user_agent: HeaderValue,
    options: Options,
    jitter: Mutex<Jitter>,
}

impl Client {
    /// A client over any transport.
    #[must_use]
    pub fn new(transport: Arc<dyn Transport>, options: Options) -> Self {
        Self::build(transport, None, options)
    }

    /// A client for `config` over TLS and TCP.
    ///
    /// # Errors
    /// When the credentials of the configuration cannot be used.
    pub fn connect(config: &Config, options: Options) -> Result<Self, Error> {
        let connector = TlsConnector::new(config, options.connect_timeout).map_err(Error::Connector)?;
        Self::over(config, Arc::new(connector), options)
    }

    /// A client for `config` over a given connector.
    ///
    /// # Errors
    /// When the token of the configuration cannot stand in a header.
    pub fn over(config: &Config, connector: Arc<dyn Connector>, mut options: Options) -> Result<Self, Error> {
        let authorization = match &config.identity {
            Identity::Bearer(token) => {
                let mut value = HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(|_| {
                    Error::Request("the token has characters that no header may hold".to_owned())
                })?;
                value.set_sensitive(true);
                Some(value)
            }
            Identity::ClientCert { .. } | Identity::None => None,
        };
        options.namespace.clone_from(&config.namespace);
        let transport = Arc::new(HttpTransport::new(config.server.clone(), connector));
        Ok(Self::build(transport, authorization, options))
    }

    fn build(transport: Arc<dyn Transport>, authorization: Option<HeaderValue>, options: Options) -> Self {
        let user_agent = HeaderValue::try_from(options.user_agent.as_str())
            .unwrap_or_else(|_| HeaderValue::from_static("panda-client"));
        Self {
            shared: Arc::new(Shared {
                transport,
                authorization,
                user_agent,
                jitter: Mutex::new(Jitter::new(options.seed)),
                options,
            }),
            traceparent: None,
            acting_as: None,
        }
    }

    /// The same client, whose requests are made as another user, with that user's rights alone: who the client itself is needs
    /// the right to impersonate.
    ///
    /// # Errors
    /// When the name cannot stand in a header.
    pub fn acting_as(&self, user: &str) -> Result<Self, Error> {
        let user = HeaderValue::try_from(user)
            .map_err(|_| Error::Request(format!("{user:?} has characters that no header may hold")))?;
        Ok(Self {
            acting_as: Some(user),
            ..self.clone()
        })
    }

    /// The same client, whose requests belong to the trace that `traceparent` (W3C) names.
    #[must_use]
    pub fn with_traceparent(&self, traceparent: Option<&str>) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            traceparent: traceparent.and_then(|t| HeaderValue::try_from(t).ok()),
            acting_as: self.acting_as.clone(),
        }
    }

    /// Namespace used when nothing else is said.
    #[must_use]
    pub fn default_namespace(&self) -> &str {
        &self.shared.options.namespace
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Sends a request (its URI a path with query) and reads the whole answer. Anything but success is an error.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn request(&self, request: Request<Bytes>) -> Result<Response<Bytes>, Error> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let after = self.shared.options.request_timeout;
        let exchange = async {
            let response = self.exchange(request).await?;
            let (parts, body) = response.into_parts();
            let bytes = self.collect(body, &method, &path).await?;
            Ok(Response::from_parts(parts, bytes))
        };
        match tokio::time::timeout(after, exchange).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout { method, path, after }),
        }
    }

    /// Sends a request and returns its answer as a stream, once the head is there.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn stream(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let after = self.shared.options.request_timeout;
        match tokio::time::timeout(after, self.exchange(request)).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout { method, path, after }),
        }
    }

    /// Sends a request and decodes its answer.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn request_json<T: DeserializeOwned>(&self, request: Request<Bytes>) -> Result<T, Error> {
        let what = format!("{} {}", request.method(), request.uri().path());
        let response = self.request(request).await?;
        serde_json::from_slice(response.body()).map_err(|source| Error::Decode { what, source })
    }

    /// Gets a path as JSON.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get_json<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.request_json(request(Method::GET, path, None)?).await
    }

    /// Gets a path as text (`/healthz`, `/metrics`, `/version`).
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn get_text(&self, path: &str) -> Result<String, Error> {
        let mut request = request(Method::GET, path, None)?;
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static("*/*"));
        let response = self.request(request).await?;
        Ok(String::from_utf8_lossy(response.body()).into_owned())
    }

    /// Tries until an answer comes, as often as that is safe; turns refusals into errors.
    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let shared = &*self.shared;
        let (parts, body) = request.into_parts();
        let safe = parts.method == Method::GET || parts.method == Method::HEAD;
        let mut failures = 0;
        loop {
            let mut attempt = Request::from_parts(parts.clone(), body.clone());
            self.add_headers(&mut attempt);
            let result = shared.transport.send(attempt).await;
            failures += 1;
            let delay = match result {
                Ok(response) if response.status().is_success() => {
                    self.surface_warnings(&response);
                    return Ok(response);
                }
                Ok(response) => {
                    let asked = retry_after(&response, safe);
                    let error = self.refusal(response, &parts.method, parts.uri.path()).await;
                    match asked {
                        Some(delay) if failures <= shared.options.retries => delay.max(self.delay(failures)),
                        _ => return Err(error),
                    }
                }
                Err(error)
                    if failures <= shared.options.retries
                        && error.is_retryable()
                        && (safe || !error.may_have_been_sent()) =>
                {
                    self.delay(failures)
                }
                Err(error) => return Err(Error::Transport(error)),
            };
            tracing::debug!(method = %parts.method, path = parts.uri.path(), failures, ?delay, "request is tried again");
            tokio::time::sleep(delay).await;
        }
    }

    fn delay(&self, failures: u32) -> Duration {
        let mut jitter = self.shared.jitter.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared.options.backoff.jittered(failures, &mut jitter)
    }

    fn add_headers(&self, request: &mut Request<Bytes>) {
        let headers = request.headers_mut();
        headers
            .entry(ACCEPT)
            .or_insert(HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, self.shared.user_agent.clone());
        if let Some(value) = &self.shared.authorization {
            headers.insert(AUTHORIZATION, value.clone());
        }
        if let Some(value) = &self.acting_as {
            headers.insert("impersonate-user", value.clone());
        }
        if let Some(value) = &self.traceparent {
            headers.insert("traceparent", value.clone());
        }
    }

    fn surface_warnings(&self, response: &Response<Body>) {
        for value in response.headers().get_all(WARNING) {
            let Some(text) = warning_text(value) else { continue };
            match &self.shared.options.on_warning {
                Some(handler) => handler(&text),
                None => tracing::warn!(warning = text, "the server warns"),
            }
        }
    }

    /// The error that an answer other than success stands for.
    async fn refusal(&self, response: Response<Body>, method: &Method, path: &str) -> Error {
        let (parts, body) = response.into_parts();
        let bytes = match self.collect(body, method, path).await {
            Ok(bytes) => bytes,
            Err(error) => return error,
        };
        let mut status = serde_json::from_slice::<Status>(&bytes)
            .ok()
            .filter(|s| s.kind == "Status" && !s.message.is_empty())
            .unwrap_or_else(|| plain_refusal(parts.status, &bytes, method, path));
        if status.code == 0 {
            status.code = parts.status.as_u16();
        }
        Error::Api(Box::new(status))
    }

    async fn collect(&self, mut body: Body, method: &Method, path: &str) -> Result<Bytes, Error> {
        let limit = self.shared.options.max_response_bytes;
        let mut all = BytesMut::new();
        while let Some(part) = body.next().await {
            let part = part.map_err(Error::Transport)?;
            if all.len() + part.len() > limit {
                return Err(Error::TooLarge {
                    what: format!("{method} {path}"),
                    limit,
                });
            }
            all.extend_from_slice(&part);
        }
        Ok(all.freeze())
    }
}

/// A request with an optional JSON body.
///
/// # Errors
/// When `path` is no path.
pub fn request(method: Method, path: &str, json: Option<Bytes>) -> Result<Request<Bytes>, Error> {
    let mut builder = Request::builder().method(method).uri(path);
    if json.is_some() {
        builder = builder.header(CONTENT_TYPE, "application/json");
    }
    builder
        .body(json.unwrap_or_default())
        .map_err(|e| Error::Request(format!("{path:?} is no path: {e}")))
}

/// How long the server asks to wait. 429 says that nothing was done; the rest is repeated only for reads.
fn retry_after(response: &Response<Body>, safe: bool) -> Option<Duration> {
    let asked = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.trim().parse::<u64>().ok())
        .map(Duration::from_secs);
    match response.status() {
        StatusCode::TOO_MANY_REQUESTS => Some(asked.unwrap_or_default()),
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT if safe => {
            asked
        }
        _ => None,
    }
}

/// A status for an answer that is not one: a proxy's page, an empty body.
fn plain_refusal(code: StatusCode, bytes: &[u8], method: &Method, path: &str) -> Status {
    let text: String = String::from_utf8_lossy(bytes).trim().chars().take(200).collect();
    let reason = match code {
        StatusCode::UNAUTHORIZED => "Unauthorized",
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::NOT_FOUND => "NotFound",
        StatusCode::GONE => "Expired",
        StatusCode::TOO_MANY_REQUESTS => "TooManyRequests",
        _ => "Unknown",
    };
    Status {
        api_version: "v1".into(),
        kind: "Status".into(),
        status: "Failure".into(),
        reason: reason.into(),
        message: if text.is_empty() {
            format!("{method} {path}: the server answered {code}")
        } else {
            format!("{method} {path}: the server answered {code}: {text}")
        },
        code: code.as_u16(),
        ..Status::default()
    }
}

/// The text of a `Warning: 299 agent "text"` header.
fn warning_text(value: &HeaderValue) -> Option<String> {
    let value = String::from_utf8_lossy(value.as_bytes());
    let start = value.find('"')?;
    let mut text = String::new();
    let mut chars = value[start + 1..].chars();
    while let Some(c) = chars.next() {
        match c {
            '"' => return Some(text),
            '\\' => text.extend(chars.next()),
            _ => text.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests;
