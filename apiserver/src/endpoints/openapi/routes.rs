//! What can be asked at which address, in neither version's words.

use crate::endpoints::discovery::{SUBRESOURCES, Subresource};
use crate::endpoints::openapi::definitions;
use crate::endpoints::reviews;
use crate::registry::{Kind, is_custom};
use crate::respond::JSON;

const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const APPLY: &str = "application/apply-patch+yaml";
const JSON_PATCH: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// An address.
pub(super) struct Route {
    pub(super) url: String,
    /// Parts of the address that are filled in.
    pub(super) places: Vec<&'static str>,
    pub(super) operations: Vec<Operation>,
}

/// What a method does there.
pub(super) struct Operation {
    pub(super) kind: Kind,
    /// HTTP method, lower case.
    pub(super) method: &'static str,
    /// Upstream's word for it.
    pub(super) action: &'static str,
    /// Its name, unique in all documents.
    pub(super) id: String,
    pub(super) query: Vec<Query>,
    pub(super) body: Option<Body>,
    pub(super) produces: &'static str,
    /// Codes of success.
    pub(super) codes: &'static [&'static str],
    /// Name of the definition that the answer has; none: it is not described.
    pub(super) answer: Option<String>,
    /// Kind of what is taken or given, where it is not `kind`.
    pub(super) of: Option<(&'static str, &'static str, &'static str)>,
}

impl Operation {
    /// Group, version and kind of what is taken or given.
    pub(super) fn gvk(&self) -> (&'static str, &'static str, &'static str) {
        self.of
            .unwrap_or((self.kind.group, self.kind.version, self.kind.kind))
    }
}

/// A query parameter.
#[derive(Clone, Copy)]
pub(super) struct Query {
    pub(super) name: &'static str,
    pub(super) type_: &'static str,
    pub(super) description: &'static str,
}

/// What is sent.
pub(super) struct Body {
    pub(super) required: bool,
    pub(super) media: Vec<&'static str>,
    /// Name of its definition; none: any object.
    pub(super) definition: Option<String>,
}

const fn query(name: &'static str, type_: &'static str, description: &'static str) -> Query {
    Query {
        name,
        type_,
        description,
    }
}

const DRY_RUN: Query = query(
    "dryRun",
    "string",
    "With All, everything is checked and answered, and nothing is stored.",
);
const FIELD_MANAGER: Query = query(
    "fieldManager",
    "string",
    "Name of who makes the change, at most 128 printable bytes; required for apply patches.",
);
const FIELD_VALIDATION: Query = query(
    "fieldValidation",
    "string",
    "What becomes of unknown and duplicate fields: Strict refuses, Warn answers with warnings, Ignore drops them.",
);
const FORCE: Query = query(
    "force",
    "boolean",
    "Takes fields over that others own; only for apply patches.",
);
const LABEL_SELECTOR: Query = query("labelSelector", "string", "Which labels the objects must have.");
const FIELD_SELECTOR: Query = query("fieldSelector", "string", "Which fields the objects must have.");
const LIMIT: Query = query("limit", "integer", "Most objects of an answer.");
const CONTINUE: Query = query("continue", "string", "Token of the page before.");
const VERSION: Query = query(
    "resourceVersion",
    "string",
    "Version that the answer must be of, or be newer than.",
);
const VERSION_MATCH: Query = query(
    "resourceVersionMatch",
    "string",
    "How resourceVersion is meant: NotOlderThan or Exact.",
);
const TIMEOUT: Query = query("timeoutSeconds", "integer", "Seconds after which a watch ends.");
const WATCH: Query = query(
    "watch",
    "boolean",
    "Changes as they happen instead of the objects that there are.",
);
const BOOKMARKS: Query = query(
    "allowWatchBookmarks",
    "boolean",
    "Whether a watch also says how far it is.",
);
const INITIAL: Query = query(
    "sendInitialEvents",
    "boolean",
    "Whether a watch begins with the objects that there are and a bookmark after them.",
);
const GRACE: Query = query(
    "gracePeriodSeconds",
    "integer",
    "Seconds that an object is given to end.",
);
const PROPAGATION: Query = query(
    "propagationPolicy",
    "string",
    "What becomes of dependents: Background, Foreground or Orphan.",
);

const WRITE: &[Query] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION];
const PATCH: &[Query] = &[DRY_RUN, FIELD_MANAGER, FIELD_VALIDATION, FORCE];
const DELETE: &[Query] = &[DRY_RUN, GRACE, PROPAGATION];
const READ: &[Query] = &[VERSION];
const LIST: &[Query] = &[
    BOOKMARKS,
    CONTINUE,
    FIELD_SELECTOR,
    LABEL_SELECTOR,
    LIMIT,
    VERSION,
    VERSION_MATCH,
    INITIAL,
    TIMEOUT,
    WATCH,
];
const DELETE_MANY: &[Query] = &[
    CONTINUE,
    DRY_RUN,
    FIELD_SELECTOR,
    GRACE,
    LABEL_SELECTOR,
    LIMIT,
    PROPAGATION,
    VERSION,
    VERSION_MATCH,
];

/// `apis/panda.dev/v1alpha1`.
pub(super) fn base(kind: Kind) -> String {
    if kind.group.is_empty() {
        format!("api/{}", kind.version)
    } else {
        format!("apis/{}/{}", kind.group, kind.version)
    }
}

/// Every address of a kind.
pub(super) fn of(kind: Kind) -> Vec<Route> {
    let root = format!("/{}", base(kind));
    let inside = if kind.namespaced {
        "/namespaces/{namespace}"
    } else {
        ""
    };
    let collection = format!("{root}{inside}/{}", kind.plural);
    let here: Vec<&'static str> = kind.namespaced.then_some("namespace").into_iter().collect();
    let named: Vec<&'static str> = here.iter().copied().chain(["name"]).collect();
    if reviews::is_review(kind) {
        return vec![Route {
            url: collection,
            places: here,
            operations: vec![create(kind)],
        }];
    }
    let object = format!("{collection}/{{name}}");
    let mut routes = vec![
        Route {
            url: collection,
            places: here,
            operations: vec![list(kind, ""), create(kind), delete_many(kind)],
        },
        Route {
            url: object.clone(),
            places: named.clone(),
            operations: vec![get(kind, ""), replace(kind, ""), patch(kind, ""), delete(kind)],
        },
    ];
    if kind.has_status {
        routes.push(Route {
            url: format!("{object}/status"),
            places: named.clone(),
            operations: vec![
                get(kind, "Status"),
                replace(kind, "Status"),
                patch(kind, "Status"),
            ],
        });
    }
    let own = |sub: &&Subresource| sub.group == kind.group && sub.resource == kind.plural;
    for sub in SUBRESOURCES.iter().filter(own) {
        routes.push(Route {
            url: format!("{object}/{}", sub.name),
            places: named.clone(),
            operations: sub
                .verbs
                .iter()
                .filter_map(|verb| special(kind, sub, verb))
                .collect(),
        });
    }
    if kind.namespaced {
        routes.push(Route {
            url: format!("{root}/{}", kind.plural),
            places: Vec::new(),
            operations: vec![list(kind, "ForAllNamespaces")],
        });
    }
    routes
}

/// `readPandaDevV1alpha1NamespacedTaskStatus`.
fn id(word: &str, kind: Kind, suffix: &str) -> String {
    let group = if kind.group.is_empty() { "core" } else { kind.group };
    let all = suffix == "ForAllNamespaces";
    let mut out = word.to_owned();
    for part in group.split(['.', '-']).chain([kind.version]) {
        out.push_str(&upper(part));
    }
    if kind.namespaced && !all {
        out.push_str("Namespaced");
    }
    out + kind.kind + suffix
}

fn upper(word: &str) -> String {
    let mut letters = word.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

fn operation(kind: Kind, method: &'static str, action: &'static str, id: String) -> Operation {
    Operation {
        kind,
        method,
        action,
        id,
        query: Vec::new(),
        body: None,
        produces: JSON,
        codes: &["200"],
        answer: Some(kind.definition_name.to_owned()),
        of: None,
    }
}

fn sent(kind: Kind) -> Option<Body> {
    let mut media = vec![JSON, YAML];
    if !is_custom(kind) {
        media.push(PROTOBUF);
    }
    Some(Body {
        required: true,
        media,
        definition: Some(kind.definition_name.to_owned()),
    })
}

fn create(kind: Kind) -> Operation {
    Operation {
        query: WRITE.to_vec(),
        body: sent(kind),
        codes: &["201"],
        ..operation(kind, "post", "post", id("create", kind, ""))
    }
}

fn list(kind: Kind, suffix: &str) -> Operation {
    Operation {
        query: LIST.to_vec(),
        answer: Some(definitions::list_name(kind)),
        ..operation(kind, "get", "list", id("list", kind, suffix))
    }
}

fn delete_many(kind: Kind) -> Operation {
    Operation {
        query: DELETE_MANY.to_vec(),
        body: options(),
        answer: Some(definitions::list_name(kind)),
        ..operation(
            kind,
            "delete",
            "deletecollection",
            id("deleteCollection", kind, ""),
        )
    }
}

fn options() -> Option<Body> {
    Some(Body {
        required: false,
        media: vec![JSON, YAML],
        definition: Some(definitions::DELETE_OPTIONS.to_owned()),
    })
}

fn get(kind: Kind, suffix: &str) -> Operation {
    Operation {
        query: READ.to_vec(),
        ..operation(kind, "get", "get", id("read", kind, suffix))
    }
}

fn replace(kind: Kind, suffix: &str) -> Operation {
    Operation {
        query: WRITE.to_vec(),
        body: sent(kind),
        ..operation(kind, "put", "put", id("replace", kind, suffix))
    }
}

fn patch(kind: Kind, suffix: &str) -> Operation {
    let mut media = vec![APPLY, JSON_PATCH, MERGE];
    if !is_custom(kind) {
        media.push(STRATEGIC);
    }
    Operation {
        query: PATCH.to_vec(),
        body: Some(Body {
            required: true,
            media,
            definition: Some(definitions::PATCH.to_owned()),
        }),
        codes: &["200", "201"],
        ..operation(kind, "patch", "patch", id("patch", kind, suffix))
    }
}

/// The answer is a `Status`, or the object while finalizers hold it.
fn delete(kind: Kind) -> Operation {
    Operation {
        query: DELETE.to_vec(),
        body: options(),
        answer: None,
        ..operation(kind, "delete", "delete", id("delete", kind, ""))
    }
}

/// A subresource of a kind's own.
fn special(kind: Kind, sub: &Subresource, verb: &str) -> Option<Operation> {
    let suffix = upper(sub.name);
    let of = sub.of.map(|(group, version)| (group, version, sub.kind));
    let same = sub.of.is_none() && sub.kind == kind.kind;
    let free = Body {
        required: true,
        media: vec![JSON, YAML],
        definition: None,
    };
    let base = match verb {
        "get" if sub.name == "approval" => get(kind, &suffix),
        "get" => Operation {
            answer: None,
            produces: if sub.name == "log" { "text/plain" } else { JSON },
            ..operation(kind, "get", "connect", id("read", kind, &suffix))
        },
        "update" => replace(kind, &suffix),
        "create" => Operation {
            query: WRITE.to_vec(),
            body: Some(free),
            codes: &["201"],
            answer: None,
            ..operation(kind, "post", "post", id("create", kind, &suffix))
        },
        _ => return None,
    };
    debug_assert!(same || of.is_some(), "{} says what it is", sub.name);
    Some(Operation { of, ..base })
}
