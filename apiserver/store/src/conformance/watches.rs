//! Watches and history.

use std::sync::Arc;

use futures::future::join_all;

use super::{TASKS, create, delete, key, next, refusal, take, update, watch};
use crate::{Error, Event, EventKind, HistoryRequest, Key, Revision, Scope, Store};

async fn some_history(store: &dyn Store, rounds: u64) {
    for n in 0..rounds {
        let first = create(store, &key("default", &format!("n{n}")), n).await;
        let second = update(store, &first, n + 1).await;
        if n % 2 == 0 {
            delete(store, &second).await;
        }
    }
}

fn revisions(events: &[Arc<Event>]) -> Vec<u64> {
    events.iter().map(|event| event.revision.0).collect()
}

/// Concurrent writers, several watchers, one order.
pub async fn watchers_see_the_same_order(store: &Arc<dyn Store>) {
    let watchers = (0..4).map(|_| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let mut watch = watch(&store, Scope::all(), Revision::ZERO).await;
            take(&mut watch, 160).await
        })
    });
    let watchers: Vec<_> = watchers.collect();
    let writers = (0..4).map(|writer| {
        let store = Arc::clone(store);
        async move {
            for n in 0..40 {
                create(&store, &key(&format!("w{writer}"), &format!("n{n}")), n).await;
            }
        }
    });
    join_all(writers).await;
    let seen: Vec<Vec<Arc<Event>>> = join_all(watchers).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(revisions(&seen[0]), (1..=160).collect::<Vec<u64>>());
    for other in &seen[1..] {
        assert_eq!(*other, seen[0]);
    }
}

/// From whatever revision: nothing lost, nothing twice, history and present in one stream.
pub async fn watches_resume_from_any_revision(store: &Arc<dyn Store>) {
    some_history(&**store, 12).await;
    let now = store.current_revision().await.unwrap().0;
    let mut watches = Vec::new();
    for from in 0..=now {
        watches.push(watch(store, Scope::all(), Revision(from)).await);
    }
    create(store, &key("default", "late"), 1).await;
    create(store, &key("default", "later"), 1).await;
    let all = take(&mut watches[0], usize::try_from(now).unwrap() + 2).await;
    assert_eq!(revisions(&all), (1..=now + 2).collect::<Vec<u64>>());
    for (from, watch) in watches.iter_mut().enumerate().skip(1) {
        assert_eq!(take(watch, all.len() - from).await, all[from..]);
        assert!(watch.try_next().is_none());
    }
}

/// A watcher of a scope hears of nothing else.
pub async fn watches_stay_in_their_scope(store: &Arc<dyn Store>) {
    let mut scoped = watch(store, Scope::namespace(TASKS, "a"), Revision::ZERO).await;
    let mut resource = watch(store, Scope::resource(TASKS), Revision::ZERO).await;
    for n in 0..10 {
        create(store, &key("a", &format!("n{n}")), n).await;
        create(store, &key("b", &format!("n{n}")), n).await;
        create(store, &Key::new("panda.dev/runs", "a", format!("n{n}")), n).await;
    }
    assert_eq!(
        revisions(&take(&mut scoped, 10).await),
        (0..10).map(|n| n * 3 + 1).collect::<Vec<u64>>()
    );
    let expected: Vec<u64> = (0..10).flat_map(|n| [n * 3 + 1, n * 3 + 2]).collect();
    assert_eq!(revisions(&take(&mut resource, 20).await), expected);
    let mut late = watch(store, Scope::namespace(TASKS, "b"), Revision(3)).await;
    assert_eq!(next(&mut late).await.revision, Revision(5));
}

/// A bookmark of an idle watcher moves on; one of a watcher with unread events does not pass them.
pub async fn progress_moves_while_idle(store: &Arc<dyn Store>) {
    let mut watch = watch(store, Scope::namespace(TASKS, "a"), Revision::ZERO).await;
    let first = create(store, &key("a", "one"), 1).await;
    assert_eq!(watch.progress(), Revision::ZERO);
    assert_eq!(next(&mut watch).await.revision, first.revision);
    let other = create(store, &key("b", "one"), 1).await;
    let reached = async {
        while watch.progress() < other.revision {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(super::PATIENCE, reached)
        .await
        .expect("progress is overdue");
    let second = create(store, &key("a", "two"), 1).await;
    create(store, &key("b", "two"), 1).await;
    assert!(watch.progress() < second.revision);
    assert_eq!(next(&mut watch).await.revision, second.revision);
}

/// Below the oldest revision the answer is `Compacted`, at it everything comes.
pub async fn watching_compacted_history_is_refused(store: &Arc<dyn Store>) {
    some_history(&**store, 10).await;
    let now = store.current_revision().await.unwrap();
    let oldest = store.compact(Revision(10)).await.unwrap();
    assert_eq!(oldest, Revision(9));
    let answer = refusal(&**store, Scope::all(), Revision(8)).await;
    assert!(
        matches!(answer, Error::Compacted { oldest: Revision(9) }),
        "{answer:?}"
    );
    let answer = store
        .history(HistoryRequest {
            scope: Scope::all(),
            after: Revision(8),
            max: 10,
        })
        .await;
    assert!(matches!(answer, Err(Error::Compacted { .. })), "{answer:?}");
    let mut watch = watch(store, Scope::all(), oldest).await;
    let rest = take(&mut watch, usize::try_from(now.0 - oldest.0).unwrap()).await;
    assert_eq!(revisions(&rest), (10..=now.0).collect::<Vec<u64>>());
    assert!(
        rest.iter()
            .all(|event| (event.kind == EventKind::Created) == event.prev.is_none())
    );
}

/// An update and a delete say what was there before.
pub async fn events_carry_the_previous_state(store: &Arc<dyn Store>) {
    let created = create(store, &key("default", "one"), 1).await;
    let updated = update(store, &created, 2).await;
    let deleted = delete(store, &updated).await;
    let mut watch = watch(store, Scope::all(), Revision::ZERO).await;
    let event = |entry: &crate::Entry, kind, before: Option<&crate::Entry>| Event {
        revision: entry.revision,
        key: entry.key.clone(),
        kind,
        value: entry.value.clone(),
        prev: before.map(|before| before.value.clone()),
        prev_revision: before.map_or(Revision::ZERO, |before| before.revision),
        create_revision: created.revision,
    };
    let seen = take(&mut watch, 3).await;
    assert_eq!(*seen[0], event(&created, EventKind::Created, None));
    assert_eq!(*seen[1], event(&updated, EventKind::Updated, Some(&created)));
    assert_eq!(*seen[2], event(&deleted, EventKind::Deleted, Some(&updated)));
}

/// Pieces of any size make up the same history.
pub async fn history_is_read_in_pieces(store: &Arc<dyn Store>) {
    some_history(&**store, 9).await;
    let now = store.current_revision().await.unwrap();
    let scope = Scope::namespace(TASKS, "default");
    let mut watch = watch(store, scope.clone(), Revision::ZERO).await;
    let all = take(&mut watch, usize::try_from(now.0).unwrap()).await;
    for max in [1, 4, 1000] {
        let (mut after, mut events) = (Revision::ZERO, Vec::new());
        while after < now {
            let batch = store
                .history(HistoryRequest {
                    scope: scope.clone(),
                    after,
                    max,
                })
                .await
                .unwrap();
            assert!(batch.through > after && batch.events.len() <= max);
            after = batch.through;
            events.extend(batch.events);
        }
        assert_eq!(events, all);
    }
    let elsewhere = HistoryRequest {
        scope: Scope::resource("panda.dev/runs"),
        after: Revision::ZERO,
        max: 5,
    };
    let batch = store.history(elsewhere).await.unwrap();
    assert_eq!((batch.events.len(), batch.through), (0, now));
}
