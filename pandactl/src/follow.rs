//! Waiting for one object to become as wanted, across broken connections and forgotten versions.

pub mod progress;
pub mod task;

use std::time::Duration;

use futures::StreamExt;
use panda_client::DynamicApi;
use panda_client::params::{ListParams, WatchParams};
use panda_client::watch::WatchEvent;
use serde_json::Value;
use tokio::time::Instant;

use crate::error::{Error, Kind, Result};

/// How long the server may be away before waiting for it is given up.
const AWAY: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(500);

/// How waiting ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended<R> {
    /// It is as wanted.
    Met(R),
    /// The time is over; the last state, if the object is there.
    TimedOut(Option<Box<Value>>),
}

/// Waits until `check` says something about the object; it is asked at every change, and with `None` when the object is
/// not there. `deadline` absent: for as long as it takes.
///
/// # Errors
/// When the server refuses, stays away for a minute, or `check` fails.
pub async fn until<R>(
    api: &DynamicApi,
    name: &str,
    deadline: Option<Instant>,
    check: &mut (dyn FnMut(Option<&Value>) -> Result<Option<R>> + Send),
) -> Result<Ended<R>> {
    let mut last = None;
    let outcome = {
        let watching = watch(api, name, check, &mut last);
        match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, watching).await,
            None => Ok(watching.await),
        }
    };
    match outcome {
        Ok(found) => found.map(Ended::Met),
        Err(_) => Ok(Ended::TimedOut(last.map(Box::new))),
    }
}

async fn watch<R>(
    api: &DynamicApi,
    name: &str,
    check: &mut (dyn FnMut(Option<&Value>) -> Result<Option<R>> + Send),
    last: &mut Option<Value>,
) -> Result<R> {
    let selector = format!("metadata.name={name}");
    let mut lost: Option<Instant> = None;
    loop {
        let listed = match api.list(&ListParams::fields(selector.clone())).await {
            Ok(listed) => listed,
            Err(error) => {
                let retryable = error.is_retryable();
                let error = Error::from(error);
                let since = *lost.get_or_insert_with(Instant::now);
                if !(retryable || error.kind == Kind::Connect) || since.elapsed() > AWAY {
                    return Err(error);
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        lost = None;
        *last = listed.items.into_iter().next();
        if let Some(found) = check(last.as_ref())? {
            return Ok(found);
        }
        let params = WatchParams {
            field_selector: Some(selector.clone()),
            ..WatchParams::after(listed.metadata.resource_version)
        };
        let Ok(mut events) = api.watch(&params).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        while let Some(Ok(event)) = events.next().await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => *last = Some(object),
                WatchEvent::Deleted(_) => *last = None,
                WatchEvent::Bookmark { .. } => continue,
                WatchEvent::Error(_) | WatchEvent::Undecodable(_) => break,
            }
            if let Some(found) = check(last.as_ref())? {
                return Ok(found);
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
