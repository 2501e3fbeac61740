//! Delete, one object or many.

use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use http::StatusCode;
use panda_api::meta::{Status, StatusDetails};
use serde::Deserialize;
use serde_json::json;

use crate::body;
use crate::endpoints::read::{self, printer};
use crate::endpoints::write::recorded;
use crate::endpoints::{Api, Call, list_head};
use crate::negotiate::encoding;
use crate::query::{dry_run, invalid};
use crate::registry::{Effect, Error, ListOptions, Preconditions, Propagation, WriteOptions, Written, meta};
use crate::respond::{Failure, json};

/// `DeleteOptions`, as clients send them: often without kind, often not at all.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeleteOptions {
    kind: Option<String>,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    preconditions: Option<Demanded>,
    dry_run: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Demanded {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// What a deletion demands.
struct Demand {
    preconditions: Preconditions,
    write: WriteOptions,
}

async fn demand(call: &Call, body: Body) -> Result<Demand, Failure> {
    let bytes = body::read(body, call.body_limit()).await?;
    let options: DeleteOptions = if bytes.is_empty() {
        DeleteOptions::default()
    } else {
        let decoded = body::decode(&bytes, encoding(&call.parts.headers)?, None)?;
        serde_json::from_value(decoded.value)
            .map_err(|error| Failure::bad_request(format!("the body is no DeleteOptions: {error}")))?
    };
    if options
        .kind
        .as_deref()
        .is_some_and(|kind| !kind.is_empty() && kind != "DeleteOptions")
    {
        return Err(Failure::bad_request("the body of a DELETE must be DeleteOptions"));
    }
    let propagation = propagation(&options, call)?;
    let in_body: Vec<&str> = options.dry_run.iter().flatten().map(String::as_str).collect();
    let dry_run = dry_run(&in_body)? || call.params.dry_run()?;
    let demanded = options.preconditions.unwrap_or_default();
    Ok(Demand {
        preconditions: Preconditions {
            uid: demanded.uid,
            resource_version: demanded.resource_version,
        },
        write: WriteOptions {
            dry_run,
            propagation,
            ..WriteOptions::default()
        },
    })
}

/// What becomes of dependents. `orphanDependents` is the older way to say it; both at once is a mistake.
fn propagation(options: &DeleteOptions, call: &Call) -> Result<Option<Propagation>, Failure> {
    let policy = options
        .propagation_policy
        .as_deref()
        .or(call.params.get("propagationPolicy"))
        .filter(|policy| !policy.is_empty());
    let older = call.params.get("orphanDependents").map(crate::request::truth);
    let orphan = options.orphan_dependents.or(older);
    match (policy, orphan) {
        (Some(_), Some(_)) => {
            let text = "Invalid value: orphanDependents and propagationPolicy cannot both be set";
            Err(invalid(
                "DeleteOptions",
                "propagationPolicy",
                "FieldValueInvalid",
                text,
            ))
        }
        (Some("Background"), _) | (None, Some(false)) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), _) => Ok(Some(Propagation::Foreground)),
        (Some("Orphan"), _) | (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (None, None) => Ok(None),
        (Some(_), _) => {
            let text = "Unsupported value: supported values: \"Background\", \"Foreground\", \"Orphan\"";
            Err(invalid(
                "DeleteOptions",
                "propagationPolicy",
                "FieldValueNotSupported",
                text,
            ))
        }
    }
}

pub(crate) async fn object(api: &Arc<Api>, call: &Call, body: Body) -> Result<Response, Failure> {
    let printer = printer(api, call)?;
    let demand = demand(call, body).await?;
    let written = api
        .registry
        .delete(
            call.kind,
            call.namespace(),
            call.name(),
            demand.preconditions,
            &demand.write,
        )
        .await?;
    if written.effect != Effect::Deleted {
        let answer = printer.answer(StatusCode::OK, &written.object.json)?;
        return Ok(recorded(answer, &written.object));
    }
    Ok(recorded(
        json(StatusCode::OK, &gone(call, &written)?),
        &written.object,
    ))
}

fn gone(call: &Call, written: &Written) -> Result<Status, Failure> {
    let value = written.object.value()?;
    let mut status = Status {
        api_version: "v1".to_owned(),
        kind: "Status".to_owned(),
        status: "Success".to_owned(),
        code: StatusCode::OK.as_u16(),
        ..Status::default()
    };
    status.details = Some(StatusDetails {
        name: call.name().to_owned(),
        group: call.kind.group.to_owned(),
        kind: call.kind.plural.to_owned(),
        uid: meta::text(&value, "uid").to_owned(),
        ..StatusDetails::default()
    });
    Ok(status)
}

pub(crate) async fn collection(api: &Arc<Api>, call: &Call, body: Body) -> Result<Response, Failure> {
    let demand = demand(call, body).await?;
    let options = ListOptions {
        namespace: Some(call.namespace().to_owned()),
        filter: call.params.filter(call.kind)?,
        limit: call.params.limit()?,
        continue_: call.params.continue_token(),
        at: call.params.list_version()?,
    };
    let list = api.registry.list(call.kind, &options).await?;
    let mut removed = Vec::with_capacity(list.items.len());
    for item in &list.items {
        let value = item.value()?;
        // Only the object that was selected: not another that took its name meanwhile.
        let mut preconditions = demand.preconditions.clone();
        preconditions
            .uid
            .get_or_insert_with(|| meta::text(&value, "uid").to_owned());
        let (namespace, name) = (&item.key.namespace, &item.key.name);
        match api
            .registry
            .delete(call.kind, namespace, name, preconditions, &demand.write)
            .await
        {
            Ok(written) => removed.push(written.object),
            Err(Error::NotFound { .. } | Error::Conflict { .. })
                if demand.preconditions == Preconditions::default() => {}
            Err(error) => return Err(error.into()),
        }
    }
    let metadata = json!({"resourceVersion": list.revision.to_string()});
    read::objects(list_head(call.kind, &metadata.to_string()), removed)
}
