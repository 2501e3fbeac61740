//! Lists, at the newest and at earlier revisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{TASKS, body, create, delete, key, list, update};
use crate::{Entry, Error, Key, ListRequest, Op, Page, Revision, Scope, Store};

fn names(entries: &[Arc<Entry>]) -> Vec<String> {
    entries
        .iter()
        .map(|entry| format!("{}/{}", entry.key.namespace, entry.key.name))
        .collect()
}

async fn page(store: &dyn Store, limit: usize, after: Option<&Page>) -> Result<Page, Error> {
    let request = ListRequest {
        scope: Scope::resource(TASKS),
        limit: Some(limit),
        start_after: after
            .and_then(|page| page.items.last())
            .map(|entry| entry.key.clone()),
        at: after.map(|page| page.revision),
    };
    store.list(request).await
}

/// Everything, a resource, a namespace; always in key order.
pub async fn scopes_select_by_resource_and_namespace(store: &Arc<dyn Store>) {
    for (resource, namespace, name) in [
        (TASKS, "b", "two"),
        (TASKS, "a", "one"),
        (TASKS, "b", "one"),
        ("panda.dev/tasksets", "a", "one"),
        ("/namespaces", "", "a"),
        ("panda.dev/task", "a", "one"),
    ] {
        create(store, &Key::new(resource, namespace, name), 1).await;
    }
    let tasks = list(store, Scope::resource(TASKS), None).await.unwrap();
    assert_eq!(names(&tasks), ["a/one", "b/one", "b/two"]);
    assert_eq!(
        names(&list(store, Scope::namespace(TASKS, "b"), None).await.unwrap()),
        ["b/one", "b/two"]
    );
    assert_eq!(
        names(&list(store, Scope::resource("/namespaces"), None).await.unwrap()),
        ["/a"]
    );
    assert!(
        list(store, Scope::namespace(TASKS, "").clone(), None)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        list(store, Scope::resource("panda.dev/runs"), None)
            .await
            .unwrap()
            .is_empty()
    );
    let all = list(store, Scope::all(), None).await.unwrap();
    assert_eq!(all.len(), 6);
    assert!(all.is_sorted_by_key(|entry| entry.key.clone()));
}

/// A list in pages shows the state of its first page, whatever is written meanwhile.
pub async fn pages_are_one_snapshot_while_writes_go_on(store: &Arc<dyn Store>) {
    let mut entries = Vec::new();
    for n in 0..20 {
        entries.push(create(store, &key("default", &format!("n{n:02}")), n).await);
    }
    let mut collected = Vec::new();
    let mut last: Option<Page> = None;
    for round in 0.. {
        let next = page(&**store, 3, last.as_ref()).await.unwrap();
        collected.extend(next.items.iter().cloned());
        if !next.more {
            break;
        }
        // Before, at and behind the place reached: an update, a deletion, two creations.
        update(
            store,
            &store
                .get(entries[round * 2 + 1].key.clone())
                .await
                .unwrap()
                .unwrap(),
            100,
        )
        .await;
        if let Some(gone) = store.get(entries[19 - round].key.clone()).await.unwrap() {
            delete(store, &gone).await;
        }
        create(store, &key("default", &format!("a{round}")), 7).await;
        create(store, &key("default", &format!("z{round}")), 7).await;
        last = Some(next);
    }
    assert_eq!(collected, entries);
}

/// `remaining` and `more` are exact; no limit means all.
pub async fn pages_count_what_remains(store: &Arc<dyn Store>) {
    for n in 0..7 {
        create(store, &key("default", &format!("n{n}")), n).await;
    }
    let first = page(&**store, 3, None).await.unwrap();
    assert_eq!((first.items.len(), first.remaining, first.more), (3, 4, true));
    create(store, &key("default", "zzz"), 9).await;
    let second = page(&**store, 3, Some(&first)).await.unwrap();
    assert_eq!((second.items.len(), second.remaining, second.more), (3, 1, true));
    let third = page(&**store, 3, Some(&second)).await.unwrap();
    assert_eq!((third.items.len(), third.remaining, third.more), (1, 0, false));
    let exact = page(&**store, 8, None).await.unwrap();
    assert_eq!((exact.items.len(), exact.remaining, exact.more), (8, 0, false));
    let unlimited = page(&**store, 0, None).await.unwrap();
    assert_eq!(
        (unlimited.items.len(), unlimited.remaining, unlimited.more),
        (8, 0, false)
    );
}

/// What has not happened cannot be listed or watched.
pub async fn refuses_revisions_from_the_future(store: &Arc<dyn Store>) {
    let now = create(store, &key("default", "one"), 1).await.revision;
    let future = now.next();
    let answer = list(store, Scope::all(), Some(future)).await;
    assert!(
        matches!(answer, Err(Error::FutureRevision { requested, current }) if requested == future && current == now),
        "{answer:?}"
    );
    let answer = super::refusal(&**store, Scope::all(), future).await;
    assert!(matches!(answer, Error::FutureRevision { .. }), "{answer:?}");
}

/// Compaction drops history and nothing else.
pub async fn compaction_keeps_what_is_current(store: &Arc<dyn Store>) {
    let quiet = create(store, &key("default", "quiet"), 0).await;
    let mut busy = create(store, &key("default", "busy"), 0).await;
    let gone = create(store, &key("default", "gone"), 0).await;
    for n in 1..600 {
        busy = update(store, &busy, n).await;
    }
    delete(store, &gone).await;
    let before = list(store, Scope::all(), None).await.unwrap();
    let now = store.current_revision().await.unwrap();
    let half = Revision(now.0 / 2);
    assert_eq!(store.compact(half).await.unwrap(), Revision(half.0 - 1));
    // An older request changes nothing.
    assert_eq!(store.compact(Revision(1)).await.unwrap(), Revision(half.0 - 1));
    let compacted = list(store, Scope::all(), Some(Revision(half.0 - 2))).await;
    assert!(
        matches!(compacted, Err(Error::Compacted { oldest }) if oldest.0 == half.0 - 1),
        "{compacted:?}"
    );
    assert_eq!(
        list(store, Scope::all(), Some(Revision(half.0 - 1)))
            .await
            .unwrap()
            .len(),
        3
    );
    // Beyond the newest means to the newest.
    assert_eq!(
        store.compact(Revision(u64::MAX)).await.unwrap(),
        Revision(now.0 - 1)
    );
    assert_eq!(list(store, Scope::all(), None).await.unwrap(), before);
    assert_eq!(before, [busy, quiet]);
    let again = create(store, &key("default", "gone"), 1).await;
    assert_eq!(again.revision, now.next());
}

/// The state at every revision, before and after a compaction, equals what it was then.
pub async fn lists_at_every_kept_revision_are_exact(store: &Arc<dyn Store>) {
    let mut states: Vec<Vec<Arc<Entry>>> = vec![Vec::new()];
    let mut model: BTreeMap<Key, Arc<Entry>> = BTreeMap::new();
    for n in 0_u64..120 {
        let key = key(if n % 3 == 0 { "a" } else { "b" }, &format!("n{}", n * 7 % 11));
        match model.get(&key).cloned() {
            None => {
                model.insert(key.clone(), create(store, &key, n).await);
            }
            Some(entry) if n % 4 == 0 => {
                store
                    .commit(Op::delete(key.clone(), entry.revision, Some(body(n))).into())
                    .await
                    .unwrap();
                model.remove(&key);
            }
            Some(entry) => {
                model.insert(key, update(store, &entry, n).await);
            }
        }
        states.push(model.values().cloned().collect());
    }
    for compacted in [0_usize, 50, 90] {
        store.compact(Revision(compacted as u64)).await.unwrap();
        for (revision, state) in states.iter().enumerate().skip(compacted.saturating_sub(1)) {
            let at = Some(Revision(revision as u64));
            assert_eq!(
                list(store, Scope::all(), at).await.unwrap(),
                *state,
                "at {revision}"
            );
            let scoped: Vec<_> = state
                .iter()
                .filter(|entry| *entry.key.namespace == *"a")
                .cloned()
                .collect();
            assert_eq!(
                list(store, Scope::namespace(TASKS, "a"), at).await.unwrap(),
                scoped,
                "at {revision}"
            );
        }
    }
}
