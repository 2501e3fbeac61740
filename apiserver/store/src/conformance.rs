//! What every store must do: one suite, run for every backend and for the watch cache over each.
//!
//! Each function takes an empty store and panics where the contract is broken.
//! [`store_conformance!`](crate::store_conformance) makes a test of each.

#![expect(
    clippy::unwrap_used,
    reason = "a broken contract is a panic; this code runs in tests only"
)]

mod lists;
mod model;
mod objects;
mod watches;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

pub use lists::*;
pub use model::*;
pub use objects::*;
pub use watches::*;

use crate::{
    Body, Committed, Entry, Error, Event, Key, ListRequest, Op, Revision, Scope, Store, Watch, WatchRequest,
};

/// Longest that anything in the suite may take to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// An empty store, and whatever must live as long as it.
pub struct Fixture {
    /// The store under test.
    pub store: Arc<dyn Store>,
    /// Folders, tasks; dropped after the store.
    pub guards: Vec<Box<dyn Any + Send>>,
}

impl std::fmt::Debug for Fixture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fixture").finish_non_exhaustive()
    }
}

/// Makes a test of every function of the suite. The argument is an async function that makes a [`Fixture`].
#[macro_export]
macro_rules! store_conformance {
    ($factory:path) => {
        $crate::store_conformance!(@each $factory:
            creates_reads_updates_and_deletes refuses_failed_preconditions transactions_are_all_or_nothing
            refuses_malformed_transactions every_change_has_its_own_revision deletes_carry_the_last_state
            concurrent_writers_lose_nothing concurrent_creators_have_one_winner reads_follow_commits
            guaranteed_update_reports_what_is_missing
            scopes_select_by_resource_and_namespace pages_are_one_snapshot_while_writes_go_on
            pages_count_what_remains refuses_revisions_from_the_future compaction_keeps_what_is_current
            lists_at_every_kept_revision_are_exact
            watchers_see_the_same_order watches_resume_from_any_revision watches_stay_in_their_scope
            progress_moves_while_idle watching_compacted_history_is_refused events_carry_the_previous_state
            history_is_read_in_pieces
        );
    };
    (@each $factory:path: $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let fixture = $factory().await;
                $crate::conformance::$name(&fixture.store).await;
            }
        )*
    };
}

/// The resource that the suite uses.
pub(crate) const TASKS: &str = "panda.dev/tasks";

pub(crate) fn key(namespace: &str, name: &str) -> Key {
    Key::new(TASKS, namespace, name)
}

/// An object with a payload and a gap for its revision.
pub(crate) fn body(payload: u64) -> Body {
    let head = r#"{"metadata":{"resourceVersion":""#;
    Body::new(
        format!(r#"{head}"}},"payload":{payload}}}"#).into_bytes(),
        head.len(),
    )
}

/// The final bytes of [`body`].
pub(crate) fn json(payload: u64, revision: Revision) -> Vec<u8> {
    format!(r#"{{"metadata":{{"resourceVersion":"{revision}"}},"payload":{payload}}}"#).into_bytes()
}

/// The payload of a value made by [`body`].
pub(crate) fn payload(value: &[u8]) -> u64 {
    let text = std::str::from_utf8(value).unwrap();
    text.rsplit_once(':')
        .unwrap()
        .1
        .trim_end_matches('}')
        .parse()
        .unwrap()
}

pub(crate) async fn create(store: &dyn Store, key: &Key, payload: u64) -> Arc<Entry> {
    only(
        store
            .commit(Op::create(key.clone(), body(payload)).into())
            .await
            .unwrap(),
    )
}

pub(crate) async fn update(store: &dyn Store, entry: &Entry, payload: u64) -> Arc<Entry> {
    only(
        store
            .commit(Op::update(entry.key.clone(), entry.revision, body(payload)).into())
            .await
            .unwrap(),
    )
}

pub(crate) async fn delete(store: &dyn Store, entry: &Entry) -> Arc<Entry> {
    only(
        store
            .commit(Op::delete(entry.key.clone(), entry.revision, None).into())
            .await
            .unwrap(),
    )
}

fn only(committed: Committed) -> Arc<Entry> {
    assert_eq!(committed.entries.len(), 1);
    let entry = committed.entries.into_iter().next().flatten().unwrap();
    assert_eq!(entry.revision, committed.revision);
    entry
}

pub(crate) async fn list(
    store: &dyn Store,
    scope: Scope,
    at: Option<Revision>,
) -> Result<Vec<Arc<Entry>>, Error> {
    let request = ListRequest {
        scope,
        at,
        ..ListRequest::default()
    };
    store.list(request).await.map(|page| page.items)
}

pub(crate) async fn watch(store: &dyn Store, scope: Scope, from: Revision) -> Watch {
    store.watch(WatchRequest { scope, from }).await.unwrap()
}

/// The next event, or a panic once it is overdue.
pub(crate) async fn next(watch: &mut Watch) -> Arc<Event> {
    let next = tokio::time::timeout(PATIENCE, watch.next()).await;
    next.expect("an event is overdue")
        .expect("the watch ended")
        .unwrap()
}

pub(crate) async fn take(watch: &mut Watch, count: usize) -> Vec<Arc<Event>> {
    let mut events = Vec::with_capacity(count);
    while events.len() < count {
        events.push(next(watch).await);
    }
    events
}

/// The error that ends a watch, at its start or later.
pub(crate) async fn refusal(store: &dyn Store, scope: Scope, from: Revision) -> Error {
    match store.watch(WatchRequest { scope, from }).await {
        Err(error) => error,
        Ok(mut watch) => loop {
            match tokio::time::timeout(PATIENCE, watch.next())
                .await
                .expect("the refusal is overdue")
            {
                Some(Ok(_)) => {}
                Some(Err(error)) => return error,
                None => panic!("the watch ended without an error"),
            }
        },
    }
}
