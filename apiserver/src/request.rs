//! What a request is about, read off its method and URL once, for authorisation, metrics and dispatch.

use http::{Method, Uri};

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "the names are the documentation; they are Kubernetes' own verbs"
)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// A method that no verb goes with.
    Other,
}

impl Verb {
    /// The word in rules and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Other => "other",
        }
    }
}

/// An object or a collection that a URL names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// API group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Namespace; empty for all, and for cluster-scoped kinds.
    pub namespace: String,
    /// Plural.
    pub resource: String,
    /// Name of the object; none: the collection.
    pub name: Option<String>,
    /// What follows the name, for example `status` or `artifacts/report`.
    pub subresource: Option<String>,
}

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo {
    /// What is to be done.
    pub verb: Verb,
    /// To what; none for URLs that are not about objects.
    pub target: Option<Target>,
    /// The path.
    pub path: String,
    /// Whether the answer goes on without end: no deadline, and another bound.
    pub long: bool,
    /// Whether the answer shows metadata only, and never values.
    pub metadata_only: bool,
}

impl RequestInfo {
    /// Reads a request. `grpc`: its content type says so.
    #[must_use]
    pub fn new(method: &Method, uri: &Uri, grpc: bool) -> Self {
        let path = uri.path().to_owned();
        let target = target(&path);
        let named = target.as_ref().is_some_and(|target| target.name.is_some());
        let watch = target.is_some() && flag(uri.query(), "watch");
        let verb = match *method {
            Method::GET | Method::HEAD if watch => Verb::Watch,
            Method::GET | Method::HEAD if target.is_some() && !named => Verb::List,
            Method::GET | Method::HEAD => Verb::Get,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE if named => Verb::Delete,
            Method::DELETE => Verb::DeleteCollection,
            _ => Verb::Other,
        };
        let subresource = target
            .as_ref()
            .and_then(|target| target.subresource.as_deref())
            .unwrap_or_default();
        let stream = subresource == "log" || subresource == "events" || subresource.starts_with("artifacts/");
        Self {
            verb,
            target,
            path,
            long: verb == Verb::Watch || stream || grpc,
            metadata_only: false,
        }
    }
}

/// Whether a query parameter is set: present, and neither `false` nor `0`.
fn flag(query: Option<&str>, name: &str) -> bool {
    query.unwrap_or_default().split('&').any(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        key == name && truth(value)
    })
}

/// Upstream's rule for booleans in a query.
pub(crate) fn truth(value: &str) -> bool {
    !value.eq_ignore_ascii_case("false") && value != "0"
}

fn target(path: &str) -> Option<Target> {
    let mut parts: Vec<String> = path
        .strip_prefix('/')?
        .split('/')
        .map(decode)
        .collect::<Option<Vec<String>>>()?;
    if parts.last().is_some_and(String::is_empty) {
        parts.pop();
    }
    if parts.iter().any(String::is_empty) {
        return None;
    }
    let mut parts = parts.into_iter();
    let (group, version) = match parts.next()?.as_str() {
        "api" => (String::new(), parts.next()?),
        "apis" => (parts.next()?, parts.next()?),
        _ => return None,
    };
    let mut rest: Vec<String> = parts.collect();
    let mut namespace = String::new();
    // /namespaces/N is the object N and /namespaces/N/status its part; /namespaces/N/tasks is inside it.
    let inside =
        rest.len() > 2 && rest[0] == "namespaces" && !matches!(rest[2].as_str(), "status" | "finalize");
    if inside {
        rest.remove(0);
        namespace = rest.remove(0);
    }
    let mut rest = rest.into_iter();
    let resource = rest.next()?;
    let name = rest.next();
    let tail: Vec<String> = rest.collect();
    let subresource = (!tail.is_empty()).then(|| tail.join("/"));
    Some(Target {
        group,
        version,
        namespace,
        resource,
        name,
        subresource,
    })
}

/// Percent-decodes one part of a path.
fn decode(part: &str) -> Option<String> {
    if !part.contains('%') {
        return Some(part.to_owned());
    }
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            out.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            out.push(byte);
        }
    }
    // A slash inside a part would be read as two by whoever looks at the text.
    String::from_utf8(out).ok().filter(|text| !text.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: Method, uri: &str) -> RequestInfo {
        RequestInfo::new(&method, &uri.parse().unwrap(), false)
    }

    /// `group/version|namespace|resource|name|subresource`; nothing when it is no object's URL.
    fn parts(uri: &str) -> Option<String> {
        let t = read(Method::GET, uri).target?;
        let (name, sub) = (t.name.unwrap_or_default(), t.subresource.unwrap_or_default());
        Some(format!(
            "{}/{}|{}|{}|{name}|{sub}",
            t.group, t.version, t.namespace, t.resource
        ))
    }

    #[test]
    fn urls_name_their_target() {
        for (uri, want) in [
            ("/api/v1/namespaces", Some("/v1||namespaces||")),
            ("/api/v1/namespaces/web", Some("/v1||namespaces|web|")),
            (
                "/api/v1/namespaces/web/finalize",
                Some("/v1||namespaces|web|finalize"),
            ),
            ("/api/v1/namespaces/web/secrets", Some("/v1|web|secrets||")),
            ("/api/v1/namespaces/web/secrets/a/", Some("/v1|web|secrets|a|")),
            (
                "/apis/panda.dev/v1alpha1/tasks",
                Some("panda.dev/v1alpha1||tasks||"),
            ),
            (
                "/apis/panda.dev/v1alpha1/namespaces/web/runs/r/artifacts/out.txt",
                Some("panda.dev/v1alpha1|web|runs|r|artifacts/out.txt"),
            ),
            (
                "/apis/g/v/devices/system%3Ax/status",
                Some("g/v||devices|system:x|status"),
            ),
            ("/apis/g/v", None),
            ("/apis", None),
            ("/version", None),
            ("/apis/g/v/tasks/a%2fb", None),
            ("/apis/g/v//tasks", None),
        ] {
            assert_eq!(parts(uri).as_deref(), want, "{uri}");
        }
    }

    #[test]
    fn methods_and_queries_make_verbs() {
        let tasks = "/apis/panda.dev/v1alpha1/namespaces/web/tasks";
        assert_eq!(read(Method::GET, tasks).verb, Verb::List);
        assert_eq!(
            read(Method::GET, &format!("{tasks}?watch=True")).verb,
            Verb::Watch
        );
        assert_eq!(
            read(Method::GET, &format!("{tasks}?watch=false")).verb,
            Verb::List
        );
        assert_eq!(read(Method::GET, &format!("{tasks}/a?watch=1")).verb, Verb::Watch);
        assert_eq!(read(Method::DELETE, tasks).verb, Verb::DeleteCollection);
        assert_eq!(read(Method::DELETE, &format!("{tasks}/a")).verb, Verb::Delete);
        assert!(read(Method::GET, &format!("{tasks}/a/log")).long);
        assert_eq!(read(Method::GET, "/version?watch=1").verb, Verb::Get);
    }
}
