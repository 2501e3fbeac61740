//! The named schemas of the documents: the kinds, their lists, and what all kinds share.

use serde_json::{Map, Value, json};

use crate::endpoints::reviews;
use crate::registry::Kind;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// `Status`.
pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
/// `DeleteOptions`.
pub(super) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
/// Any patch.
pub(super) const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";

/// Name of the definition of a kind's list.
pub(super) fn list_name(kind: Kind) -> String {
    format!("{}List", kind.definition_name)
}

/// The definitions of these kinds; `place` is where references lead, for example `#/definitions/`.
pub(super) fn of(kinds: &[Kind], place: &str) -> Map<String, Value> {
    let mut out = shared(place);
    for kind in kinds {
        out.insert(kind.definition_name.to_owned(), kind.schema().clone());
        if !reviews::is_review(kind) {
            out.insert(list_name(kind), list(kind, place));
        }
    }
    out
}

fn list(kind: Kind, place: &str) -> Value {
    json!({
        "description": format!("A list of {} objects.", kind.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": text("Version of this representation."),
            "kind": text("Kind of the list."),
            "metadata": {"$ref": format!("{place}{LIST_META}")},
            "items": {
                "description": "The objects, in the order of namespace and name.",
                "type": "array",
                "items": {"$ref": format!("{place}{}", kind.definition_name)},
            },
        },
        "x-kubernetes-group-version-kind":
            [{"group": kind.group, "version": kind.version, "kind": kind.list_kind()}],
    })
}

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn integer(format: &str, description: &str) -> Value {
    json!({"type": "integer", "format": format, "description": description})
}

fn shared(place: &str) -> Map<String, Value> {
    let list_meta = json!({
        "description": "Metadata of a list.",
        "type": "object",
        "properties": {
            "continue": text("Token for the next page; absent on the last."),
            "remainingItemCount": integer("int64", "How many objects follow, where that is known."),
            "resourceVersion": text("Version of which the list is the state."),
        },
    });
    let cause = json!({
        "description": "One of the reasons of a failure.",
        "type": "object",
        "properties": {
            "field": text("Path of the field that is meant."),
            "message": text("What is wrong, for people."),
            "reason": text("What is wrong, for programs."),
        },
    });
    let details = json!({
        "description": "What the answer is about.",
        "type": "object",
        "properties": {
            "causes": {"type": "array", "items": {"$ref": format!("{place}{META}.StatusCause")},
                "description": "Single reasons.", "x-kubernetes-list-type": "atomic"},
            "group": text("API group of what it is about."),
            "kind": text("Plural, or with reason Invalid the kind, of what it is about."),
            "name": text("Name of what it is about."),
            "retryAfterSeconds": integer("int32", "Seconds after which the request may be tried again."),
            "uid": text("Identity of what it is about."),
        },
    });
    let status = json!({
        "description": "Answer of what returns no object, and of everything that failed.",
        "type": "object",
        "properties": {
            "apiVersion": text("Version of this representation."),
            "kind": text("Status."),
            "code": integer("int32", "The HTTP status."),
            "details": {"$ref": format!("{place}{META}.StatusDetails")},
            "message": text("What happened, for people."),
            "metadata": {"$ref": format!("{place}{LIST_META}")},
            "reason": text("Why it failed, for programs."),
            "status": text("Success or Failure."),
        },
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Status"}],
    });
    let preconditions = json!({
        "description": "What must hold of the object.",
        "type": "object",
        "properties": {
            "resourceVersion": text("Version that it must have."),
            "uid": text("Identity that it must have."),
        },
    });
    let delete_options = json!({
        "description": "How to delete.",
        "type": "object",
        "properties": {
            "apiVersion": text("Version of this representation."),
            "kind": text("DeleteOptions."),
            "dryRun": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic",
                "description": "With All, everything is checked and answered, and nothing is deleted."},
            "gracePeriodSeconds": integer("int64", "Seconds that the object is given to end."),
            "orphanDependents": {"type": "boolean", "description": "The older way to say propagationPolicy."},
            "preconditions": {"$ref": format!("{place}{META}.Preconditions")},
            "propagationPolicy": text("What becomes of dependents: Background, Foreground or Orphan."),
        },
    });
    let patch = json!({
        "description": "A patch, in the form that the content type says.",
        "type": "object",
    });
    [
        (LIST_META.to_owned(), list_meta),
        (format!("{META}.StatusCause"), cause),
        (format!("{META}.StatusDetails"), details),
        (STATUS.to_owned(), status),
        (format!("{META}.Preconditions"), preconditions),
        (DELETE_OPTIONS.to_owned(), delete_options),
        (PATCH.to_owned(), patch),
    ]
    .into_iter()
    .collect()
}
