//! What is served: groups, versions, resources, plain and aggregated. Made once: the kinds do not change.

use std::collections::BTreeMap;

use axum::response::{IntoResponse, Response};
use http::header::{ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use panda_api::scheme::{self, KindInfo};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::negotiate::{Entry, accept};
use crate::registry::Kind;
use crate::respond::{Failure, JSON, bytes_response};

/// A subresource besides `status`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subresource {
    /// API group of the kind.
    pub(crate) group: &'static str,
    /// Plural of the kind.
    pub(crate) resource: &'static str,
    /// Name, for example `log`.
    pub(crate) name: &'static str,
    /// Kind of what it takes or gives.
    pub(crate) kind: &'static str,
    /// API group and version of that kind, where they are not those of the resource.
    pub(crate) of: Option<(&'static str, &'static str)>,
    /// What may be done with it.
    pub(crate) verbs: &'static [&'static str],
}

/// The subresources that the server's own services answer.
pub(crate) const SUBRESOURCES: &[Subresource] = &[
    Subresource {
        group: "",
        resource: "namespaces",
        name: "finalize",
        kind: "Namespace",
        of: None,
        verbs: &["update"],
    },
    Subresource {
        group: "",
        resource: "serviceaccounts",
        name: "token",
        kind: "TokenRequest",
        of: Some(("authentication.k8s.io", "v1")),
        verbs: &["create"],
    },
    Subresource {
        group: "certificates.k8s.io",
        resource: "certificatesigningrequests",
        name: "approval",
        kind: "CertificateSigningRequest",
        of: None,
        verbs: &["get", "update"],
    },
    Subresource {
        group: "panda.dev",
        resource: "runs",
        name: "artifacts",
        kind: "Run",
        of: None,
        verbs: &["get"],
    },
    Subresource {
        group: "panda.dev",
        resource: "runs",
        name: "binding",
        kind: "Run",
        of: None,
        verbs: &["create"],
    },
    Subresource {
        group: "panda.dev",
        resource: "runs",
        name: "events",
        kind: "Run",
        of: None,
        verbs: &["get"],
    },
    Subresource {
        group: "panda.dev",
        resource: "runs",
        name: "log",
        kind: "Run",
        of: None,
        verbs: &["get"],
    },
    Subresource {
        group: "panda.dev",
        resource: "tasks",
        name: "log",
        kind: "Task",
        of: None,
        verbs: &["get"],
    },
];

const STATUS_VERBS: &[&str] = &["get", "patch", "update"];

/// A document, ready to be sent.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    pub(crate) etag: String,
}

impl Document {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let etag = format!("\"{}\"", hex::encode_upper(&Sha256::digest(&bytes)[..16]));
        Self { bytes, etag }
    }

    fn of(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    /// The document, or 304 when the client has it.
    pub(crate) fn answer(&self, headers: &HeaderMap, content_type: &str) -> Response {
        let known = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
        let same = known.is_some_and(|known| known.split(',').any(|tag| tag.trim() == self.etag));
        let mut response = if same {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            bytes_response(StatusCode::OK, content_type, self.bytes.clone())
        };
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            response.headers_mut().insert(ETAG, etag);
        }
        response
            .headers_mut()
            .insert(VARY, HeaderValue::from_static("Accept"));
        response
    }
}

/// The version of the aggregated form.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Aggregated {
    V2,
    V2Beta1,
}

impl Aggregated {
    const fn word(self) -> &'static str {
        match self {
            Self::V2 => "v2",
            Self::V2Beta1 => "v2beta1",
        }
    }

    fn content_type(self) -> String {
        format!(
            "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList",
            self.word()
        )
    }

    fn wanted(entry: &Entry<'_>) -> Option<Self> {
        let is_list = entry.is_json()
            && entry.parameter("as") == Some("APIGroupDiscoveryList")
            && entry.parameter("g") == Some("apidiscovery.k8s.io");
        match entry.parameter("v").filter(|_| is_list)? {
            "v2" => Some(Self::V2),
            "v2beta1" => Some(Self::V2Beta1),
            _ => None,
        }
    }
}

/// All documents, by path.
#[derive(Debug)]
pub(crate) struct Documents {
    plain: BTreeMap<String, Document>,
    aggregated: BTreeMap<(String, &'static str), Document>,
}

/// The kinds of each group and version; groups of upstream first.
fn by_group() -> BTreeMap<(&'static str, &'static str), Vec<Kind>> {
    let mut groups: BTreeMap<_, Vec<Kind>> = BTreeMap::new();
    for kind in scheme::served() {
        groups.entry((kind.group, kind.version)).or_default().push(kind);
    }
    for kinds in groups.values_mut() {
        kinds.sort_by_key(|kind| kind.plural);
    }
    groups
}

fn group_version(group: &str, version: &str) -> Value {
    let group_version = if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    };
    json!({"groupVersion": group_version, "version": version})
}

impl Documents {
    pub(crate) fn new() -> Self {
        let groups = by_group();
        let mut plain = BTreeMap::new();
        let mut list = Vec::new();
        plain.insert(
            "/api".to_owned(),
            Document::of(&json!({
                "kind": "APIVersions", "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            })),
        );
        for ((group, version), kinds) in &groups {
            let at = group_version(group, version);
            let resources: Vec<Value> = kinds.iter().flat_map(|kind| resources(kind)).collect();
            let resource_list = json!({
                "kind": "APIResourceList", "apiVersion": "v1",
                "groupVersion": at["groupVersion"], "resources": resources,
            });
            if group.is_empty() {
                plain.insert(format!("/api/{version}"), Document::of(&resource_list));
                continue;
            }
            plain.insert(format!("/apis/{group}/{version}"), Document::of(&resource_list));
            let group_value = json!({"name": group, "versions": [at], "preferredVersion": at});
            list.push(group_value.clone());
            let mut document = group_value;
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            plain.insert(format!("/apis/{group}"), Document::of(&document));
        }
        let group_list = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list});
        plain.insert("/apis".to_owned(), Document::of(&group_list));
        let mut aggregated = BTreeMap::new();
        for form in [Aggregated::V2, Aggregated::V2Beta1] {
            for (path, core) in [("/api", true), ("/apis", false)] {
                let items: Vec<Value> = groups
                    .iter()
                    .filter(|((group, _), _)| group.is_empty() == core)
                    .map(|((group, version), kinds)| {
                        let resources: Vec<Value> = kinds.iter().map(|kind| aggregate(kind)).collect();
                        let version =
                            json!({"version": version, "freshness": "Current", "resources": resources});
                        json!({"metadata": {"name": group}, "versions": [version]})
                    })
                    .collect();
                let document = json!({
                    "kind": "APIGroupDiscoveryList",
                    "apiVersion": format!("apidiscovery.k8s.io/{}", form.word()),
                    "metadata": {},
                    "items": items,
                });
                aggregated.insert((path.to_owned(), form.word()), Document::of(&document));
            }
        }
        Self { plain, aggregated }
    }
}

fn verbs(kind: &KindInfo) -> Vec<&'static str> {
    let mut verbs = kind.verbs.to_vec();
    if verbs.contains(&"delete") && !verbs.contains(&"deletecollection") {
        verbs.push("deletecollection");
    }
    verbs.sort_unstable();
    verbs
}

fn subresources(kind: &'static KindInfo) -> Vec<Subresource> {
    let own = SUBRESOURCES
        .iter()
        .filter(|sub| sub.group == kind.group && sub.resource == kind.plural);
    let status = kind.has_status.then_some(Subresource {
        group: kind.group,
        resource: kind.plural,
        name: "status",
        kind: kind.kind,
        of: None,
        verbs: STATUS_VERBS,
    });
    own.copied().chain(status).collect()
}

fn resources(kind: Kind) -> Vec<Value> {
    let mut main = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
        "kind": kind.kind, "verbs": verbs(kind),
    });
    if !kind.short_names.is_empty() {
        main["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        main["categories"] = json!(kind.categories);
    }
    let subs = subresources(kind).into_iter().map(|sub| {
        let mut entry = json!({
            "name": format!("{}/{}", kind.plural, sub.name), "singularName": "", "namespaced": kind.namespaced,
            "kind": sub.kind, "verbs": sub.verbs,
        });
        if let Some((group, version)) = sub.of {
            entry["group"] = group.into();
            entry["version"] = version.into();
        }
        entry
    });
    std::iter::once(main).chain(subs).collect()
}

fn aggregate(kind: Kind) -> Value {
    let of = |of: Option<(&str, &str)>, name: &str| {
        let (group, version) = of.unwrap_or((kind.group, kind.version));
        json!({"group": group, "version": version, "kind": name})
    };
    let mut out = json!({
        "resource": kind.plural, "responseKind": of(None, kind.kind),
        "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": kind.singular, "verbs": verbs(kind),
    });
    if !kind.short_names.is_empty() {
        out["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        out["categories"] = json!(kind.categories);
    }
    let subs: Vec<Value> = subresources(kind)
        .into_iter()
        .map(|sub| json!({"subresource": sub.name, "responseKind": of(sub.of, sub.kind), "verbs": sub.verbs}))
        .collect();
    if !subs.is_empty() {
        out["subresources"] = subs.into();
    }
    out
}

/// The document at this path, if there is one.
pub(crate) fn serve(
    documents: &Documents,
    path: &str,
    headers: &HeaderMap,
) -> Option<Result<Response, Failure>> {
    let path = path.strip_suffix('/').unwrap_or(path);
    let plain = documents.plain.get(path)?;
    let entries = accept(headers);
    let can_aggregate = path == "/api" || path == "/apis";
    for entry in &entries {
        if let Some(form) = Aggregated::wanted(entry).filter(|_| can_aggregate)
            && let Some(document) = documents.aggregated.get(&(path.to_owned(), form.word()))
        {
            return Some(Ok(document.answer(headers, &form.content_type())));
        }
        if entry.is_json() && entry.parameter("as").is_none() {
            return Some(Ok(plain.answer(headers, JSON)));
        }
    }
    // Discovery comes before everything else: a client that can read nothing of it still learns more than by 406.
    Some(Ok(plain.answer(headers, JSON)))
}
