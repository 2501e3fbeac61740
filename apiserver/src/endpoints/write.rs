//! Create, update, patch.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::{Method, StatusCode};
use panda_api::meta::Reason;
use serde_json::Value;

use crate::audit::event::{Notes, WroteObject};
use crate::authz::admission::Admission;
use crate::body;
use crate::endpoints::read::printer;
use crate::endpoints::{Api, Call};
use crate::negotiate::{Encoding, content_type, encoding, unsupported};
use crate::patch::{self, JsonPatch};
use crate::policy::Policies;
use crate::query::invalid;
use crate::registry::{Error, Kind, Object, Part, Write, WriteOptions, cause, is_custom, meta};
use crate::respond::Failure;

/// What a write to this subresource may change; nothing when the kind has no such subresource.
pub(crate) fn part(kind: Kind, subresource: Option<&str>) -> Option<Part> {
    match subresource {
        None => Some(Part::Spec),
        Some("status") if kind.has_status => Some(Part::Status),
        Some("finalize") if kind.group.is_empty() && kind.kind == "Namespace" => Some(Part::Finalize),
        Some(_) => None,
    }
}

async fn options(api: &Api, call: &Call, duplicates: Vec<String>) -> Result<WriteOptions, Failure> {
    call.params.check_manager()?;
    let user = call.user()?;
    let dry_run = call.params.dry_run()?;
    let notes = call.parts.extensions.get::<Notes>().cloned().unwrap_or_default();
    let policies = Policies::of(
        &api.registry,
        &user,
        call.namespace(),
        dry_run,
        &call.warnings,
        &notes,
    )
    .await?;
    let admission = Admission::of(user, Arc::clone(&api.authorizer), &api.registry)
        .await?
        .with(policies);
    Ok(WriteOptions {
        admission: Some(Arc::new(admission)),
        dry_run,
        field_validation: call.params.field_validation()?.unwrap_or_default(),
        duplicates,
        traceparent: call.traceparent(),
        ..WriteOptions::default()
    })
}

/// The encoding of an object in the body. Panda's own kinds have no protobuf form, as upstream's custom kinds.
fn encoding_of(call: &Call) -> Result<Encoding, Failure> {
    match encoding(&call.parts.headers)? {
        Encoding::Protobuf if is_custom(call.kind) => Err(unsupported(
            "application/vnd.kubernetes.protobuf",
            "application/json, application/yaml",
        )),
        encoding => Ok(encoding),
    }
}

/// Leaves what was written for the request's audit record.
pub(crate) fn recorded(mut answer: Response, written: &Object) -> Response {
    answer.extensions_mut().insert(WroteObject {
        name: written.key.name.to_string(),
        resource_version: written.revision.to_string(),
    });
    answer
}

pub(crate) async fn create(api: &Arc<Api>, call: &Call, body: Body) -> Result<Response, Failure> {
    let printer = printer(api, call)?;
    let encoding = encoding_of(call)?;
    let bytes = body::read(body, call.body_limit()).await?;
    let decoded = body::decode(&bytes, encoding, call.params.field_validation()?)?;
    let options = options(api, call, decoded.duplicates).await?;
    let namespace = call.namespace().to_owned();
    let write = Write::Create {
        kind: call.kind,
        namespace,
        object: decoded.value,
    };
    let written = api.registry.write(write, &options).await?;
    call.warnings.add(written.warnings);
    let answer = printer.answer(StatusCode::CREATED, &written.object.json)?;
    Ok(recorded(answer, &written.object))
}

pub(crate) async fn update(api: &Arc<Api>, call: &Call, part: Part, body: Body) -> Result<Response, Failure> {
    let printer = printer(api, call)?;
    let encoding = encoding_of(call)?;
    let bytes = body::read(body, call.body_limit()).await?;
    let decoded = body::decode(&bytes, encoding, call.params.field_validation()?)?;
    let options = options(api, call, decoded.duplicates).await?;
    if is_custom(call.kind) && meta::text(&decoded.value, "resourceVersion").is_empty() {
        // Whether it exists comes first: a PUT never creates.
        api.registry.get(call.kind, call.namespace(), call.name()).await?;
        let text = "Invalid value: \"\": must be specified for an update";
        let causes = vec![cause("FieldValueInvalid", "metadata.resourceVersion", text)];
        return Err(Error::invalid(call.kind, call.name(), causes).into());
    }
    let write = Write::Update {
        kind: call.kind,
        namespace: call.namespace().to_owned(),
        name: call.name().to_owned(),
        part,
        object: decoded.value,
    };
    let written = api.registry.write(write, &options).await?;
    call.warnings.add(written.warnings);
    let answer = printer.answer(StatusCode::OK, &written.object.json)?;
    Ok(recorded(answer, &written.object))
}

/// A patch, ready to be applied to whatever is stored.
enum Patch {
    Merge(Value),
    Json(JsonPatch),
}

impl Patch {
    fn apply(&self, kind: Kind, current: &Value) -> Result<Value, Error> {
        match self {
            Self::Merge(patch) => {
                let mut out = current.clone();
                patch::merge(&mut out, patch);
                Ok(out)
            }
            Self::Json(patch) => patch.apply(current).map_err(|error| match error {
                patch::Error::Malformed(_) | patch::Error::TooLarge => Error::BadRequest(error.to_string()),
                _ => Error::Unprocessable(format!(
                    "{} {:?}: {error}",
                    kind.kind,
                    meta::text(current, "name")
                )),
            }),
        }
    }
}

pub(crate) async fn patch(api: &Arc<Api>, call: &Call, part: Part, body: Body) -> Result<Response, Failure> {
    debug_assert_eq!(call.parts.method, Method::PATCH);
    let printer = printer(api, call)?;
    let media = content_type(&call.parts.headers).unwrap_or_default();
    let is_json_patch = match media.as_str() {
        "application/merge-patch+json" => false,
        "application/json-patch+json" => true,
        // Built-in kinds have no lists that would merge otherwise here.
        "application/strategic-merge-patch+json" if !is_custom(call.kind) => false,
        other => {
            let strategic = if is_custom(call.kind) {
                ""
            } else {
                ", application/strategic-merge-patch+json"
            };
            let accepted = format!("application/json-patch+json, application/merge-patch+json{strategic}");
            return Err(unsupported(other, &accepted));
        }
    };
    if call.params.get("force").is_some_and(|force| !force.is_empty()) {
        return Err(invalid(
            "PatchOptions",
            "force",
            "FieldValueForbidden",
            "Forbidden: may not be specified for non-apply patch",
        ));
    }
    let bytes = body::read(body, call.body_limit()).await?;
    let decoded = body::decode(&bytes, Encoding::Json, call.params.field_validation()?)?;
    let options = options(api, call, decoded.duplicates).await?;
    let patch = if is_json_patch {
        Patch::Json(JsonPatch::parse(decoded.value).map_err(|error| Failure::bad_request(error.to_string()))?)
    } else if decoded.value.is_object() {
        Patch::Merge(decoded.value)
    } else {
        return Err(Failure::new(
            Reason::BadRequest,
            "a merge patch must be a JSON object",
        ));
    };
    let kind = call.kind;
    let change = move |current: &Value| patch.apply(kind, current);
    let written = api
        .registry
        .modify(kind, call.namespace(), call.name(), part, change, &options)
        .await?;
    call.warnings.add(written.warnings);
    let answer = printer.answer(StatusCode::OK, &written.object.json)?;
    Ok(recorded(answer, &written.object))
}
