//! What runs left, by name, with `Range`: GET `runs/NAME/artifacts[/NAME]` and `tasks/NAME/artifacts[/RUN-UID/NAME]`.
//!
//! The latter also has what is left of Runs that do not count: of those that are Lost, and, for a day, of those that were
//! deleted while their device still had something to say.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, RANGE};
use http::{HeaderMap, StatusCode};
use panda_api::{BlobRef, Run, RunPhase, Task, TaskResult, VerifyResult};
use panda_store::blob::{Digest, Range};
use serde::Serialize;

use super::http::{self as answers, Failure};
use super::orphans::OrphanRecord;
use super::{Agentlets, objects};

pub(crate) fn routes(agentlets: Arc<Agentlets>) -> Router {
    const RUN: &str = "/apis/panda.dev/v1alpha1/namespaces/{namespace}/runs/{name}/artifacts";
    const TASK: &str = "/apis/panda.dev/v1alpha1/namespaces/{namespace}/tasks/{name}/artifacts";
    Router::new()
        .route(RUN, get(of_run))
        .route(&format!("{RUN}/{{*artifact}}"), get(artifact))
        .route(TASK, get(of_task))
        .route(&format!("{TASK}/{{run}}/{{*artifact}}"), get(left_artifact))
        .with_state(agentlets)
}

/// What one run left.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Left {
    run: String,
    run_uid: String,
    attempt: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    device: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<RunPhase>,
    /// Whether it came of a Run that does not count.
    orphan: bool,
    /// Whether the Run itself is gone.
    deleted: bool,
    artifacts: Vec<Named>,
}

/// One artifact.
#[derive(Debug, PartialEq, Serialize)]
struct Named {
    name: String,
    digest: String,
    size: u64,
}

/// A list of them.
#[derive(Debug, Serialize)]
struct List {
    items: Vec<Left>,
}

/// Everything that has a name: `patch`, `bundle`, declared outputs, and `verify/CHECK` for a check's log.
fn all(result: Option<&TaskResult>, verify: &[VerifyResult]) -> Vec<Named> {
    let named = |name: &str, blob: &BlobRef| Named {
        name: name.to_owned(),
        digest: blob.digest.clone(),
        size: blob.size,
    };
    let mut found = Vec::new();
    if let Some(result) = result {
        found.extend(result.artifacts.iter().map(|artifact| Named {
            name: artifact.name.clone(),
            digest: artifact.digest.clone(),
            size: artifact.size,
        }));
        for (name, blob) in [("patch", &result.patch), ("bundle", &result.bundle)] {
            let declared = found.iter().any(|known| known.name == name);
            found.extend(blob.as_ref().filter(|_| !declared).map(|blob| named(name, blob)));
        }
    }
    for check in verify {
        let log = check.log.as_ref();
        found.extend(log.map(|blob| named(&format!("verify/{}", check.name), blob)));
    }
    found
}

fn of(run: &Run) -> Vec<Named> {
    let status = &run.status;
    match status
        .late_result
        .as_deref()
        .filter(|late| late.arrival_time.is_some())
    {
        Some(late) => all(late.result.as_ref(), &late.verify),
        None => all(status.result.as_ref(), &status.verify),
    }
}

fn left(run: &Run, accepted: &str) -> Left {
    Left {
        run: run.metadata.name.clone(),
        run_uid: run.metadata.uid.clone(),
        attempt: run.spec.attempt,
        device: run.spec.device_name.clone(),
        phase: run.status.phase,
        orphan: run.status.phase == Some(RunPhase::Lost) && run.metadata.name != accepted,
        deleted: false,
        artifacts: of(run),
    }
}

fn left_behind(record: &OrphanRecord) -> Option<Left> {
    let report = record.report.as_deref()?;
    Some(Left {
        run: record.run.clone(),
        run_uid: record.run_uid.clone(),
        attempt: record.attempt,
        device: record.device.clone(),
        phase: report.phase,
        orphan: true,
        deleted: true,
        artifacts: all(
            report.result.as_ref(),
            report.verify.as_deref().unwrap_or_default(),
        ),
    })
}

impl Agentlets {
    /// What all runs left that belong, or belonged, to Tasks of this name.
    async fn left_of(&self, namespace: &str, name: &str) -> Result<Vec<Left>, objects::Error> {
        let task = self.objects.get::<Task>(namespace, name).await?;
        let accepted = |uid: &str| {
            let task = task.as_ref().map(|task| &task.object);
            task.filter(|task| task.metadata.uid == uid)
                .map_or("", |task| task.status.accepted_run.as_str())
        };
        let (runs, _) = self.objects.list::<Run>().await?;
        let mut found: Vec<Left> = runs
            .iter()
            .filter(|run| run.metadata.namespace == namespace && run.spec.task_ref.name == name)
            .map(|run| left(run, accepted(&run.spec.task_ref.uid)))
            .collect();
        for record in self.objects.orphans().await? {
            let record = &record.object;
            if record.namespace == namespace && record.task == name {
                let known = found.iter().any(|left| left.run_uid == record.run_uid);
                found.extend(left_behind(record).filter(|_| !known));
            }
        }
        Ok(found)
    }
}

async fn of_run(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let run = agentlets.run_named(&namespace, &name).await?;
    let task = agentlets
        .objects
        .get::<Task>(&namespace, &run.spec.task_ref.name)
        .await?;
    let accepted = task
        .as_ref()
        .map(|task| &task.object)
        .filter(|task| task.metadata.uid == run.spec.task_ref.uid)
        .map_or("", |task| task.status.accepted_run.as_str());
    let items = vec![left(&run, accepted)];
    Ok(answers::json(200, &List { items }))
}

async fn of_task(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Response, Failure> {
    let items = agentlets.left_of(&namespace, &name).await?;
    Ok(answers::json(200, &List { items }))
}

/// The first byte and the length of `bytes=A-B`, `bytes=A-` or `bytes=-N`; other forms are ignored, as HTTP allows.
fn range(headers: &HeaderMap, size: u64) -> Option<Result<(u64, u64), ()>> {
    let value = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?;
    let (first, last) = value.split_once('-')?;
    let bounds = match (first.trim(), last.trim()) {
        ("", suffix) => {
            let length = suffix.parse::<u64>().ok()?.min(size);
            (size - length, length)
        }
        (first, "") => (first.parse().ok()?, u64::MAX),
        (first, last) => {
            let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
            (first, last.checked_sub(first)?.saturating_add(1))
        }
    };
    let (offset, length) = bounds;
    if offset >= size || length == 0 {
        Some(Err(()))
    } else {
        Some(Ok((offset, length.min(size - offset))))
    }
}

async fn artifact(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name, artifact)): Path<(String, String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let run = agentlets.run_named(&namespace, &name).await?;
    serve(&agentlets, of(&run), &artifact, &headers).await
}

async fn left_artifact(
    State(agentlets): State<Arc<Agentlets>>,
    Path((namespace, name, run, artifact)): Path<(String, String, String, String)>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let left = agentlets.left_of(&namespace, &name).await?;
    let left = left.into_iter().find(|left| left.run_uid == run);
    let left = left.ok_or_else(|| answers::not_found("runs", &run))?;
    serve(&agentlets, left.artifacts, &artifact, &headers).await
}

async fn serve(
    agentlets: &Agentlets,
    artifacts: Vec<Named>,
    artifact: &str,
    headers: &HeaderMap,
) -> Result<Response, Failure> {
    let blob = artifacts
        .into_iter()
        .find(|named| named.name == artifact)
        .ok_or_else(|| answers::not_found("artifacts", artifact))?;
    let digest: Digest = blob
        .digest
        .parse()
        .map_err(|_| answers::not_found("artifacts", artifact))?;
    let wanted = range(headers, blob.size);
    let (offset, length) = match wanted {
        None => (0, None),
        Some(Ok((offset, length))) => (offset, Some(length)),
        Some(Err(())) => {
            let unsatisfied = [(CONTENT_RANGE, format!("bytes */{}", blob.size))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, unsatisfied).into_response());
        }
    };
    let body = agentlets.blobs.get(digest, Range { offset, length }).await?;
    let mut response = Response::builder()
        .status(if length.is_some() {
            StatusCode::PARTIAL_CONTENT
        } else {
            StatusCode::OK
        })
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(ACCEPT_RANGES, "bytes")
        .header(ETAG, format!("\"{}\"", blob.digest))
        .header(CONTENT_LENGTH, body.length);
    if length.is_some() {
        response = response.header(
            CONTENT_RANGE,
            format!(
                "bytes {offset}-{}/{}",
                offset + body.length.saturating_sub(1),
                body.size
            ),
        );
    }
    response
        .body(Body::from_stream(body.body))
        .map_err(|_| answers::bad_request("the artifact's name cannot stand in a header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(value: &str, size: u64) -> Option<Result<(u64, u64), ()>> {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, value.parse().unwrap());
        range(&headers, size)
    }

    #[test]
    fn ranges_are_those_of_http() {
        assert_eq!(asked("bytes=0-9", 100), Some(Ok((0, 10))));
        assert_eq!(asked("bytes=90-", 100), Some(Ok((90, 10))));
        assert_eq!(asked("bytes=-30", 100), Some(Ok((70, 30))));
        assert_eq!(asked("bytes=50-500", 100), Some(Ok((50, 50))));
        assert_eq!(asked("bytes=100-", 100), Some(Err(())));
        assert_eq!(asked("bytes=-0", 100), Some(Err(())));
        assert_eq!(asked("bytes=9-1", 100), None);
        assert_eq!(asked("bytes=0-18446744073709551615", 100), Some(Ok((0, 100))));
        assert_eq!(asked("lines=1-2", 100), None);
    }
}
