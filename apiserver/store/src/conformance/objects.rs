//! Transactions.

use std::sync::Arc;

use futures::future::join_all;

use super::{body, create, delete, json, key, list, next, payload, update, watch};
use crate::{
    Body, Change, Error, EventKind, Expect, Key, Op, Revision, Scope, Store, Txn, guaranteed_update,
};

/// The life of one object.
pub async fn creates_reads_updates_and_deletes(store: &Arc<dyn Store>) {
    let key = key("default", "one");
    assert_eq!(store.get(key.clone()).await.unwrap(), None);
    let created = create(store, &key, 1).await;
    assert_eq!(created.value, json(1, created.revision));
    assert_eq!(created.create_revision, created.revision);
    assert_eq!(store.get(key.clone()).await.unwrap(), Some(Arc::clone(&created)));

    let updated = update(store, &created, 2).await;
    assert!(updated.revision > created.revision);
    assert_eq!(updated.create_revision, created.revision);
    assert_eq!(updated.value, json(2, updated.revision));
    assert_eq!(store.get(key.clone()).await.unwrap(), Some(Arc::clone(&updated)));

    let deleted = delete(store, &updated).await;
    assert!(deleted.revision > updated.revision);
    assert_eq!(store.get(key.clone()).await.unwrap(), None);

    let again = create(store, &key, 3).await;
    assert!(again.revision > deleted.revision);
    assert_eq!(again.create_revision, again.revision);
}

/// Each precondition, failing, changes nothing and says what is there.
pub async fn refuses_failed_preconditions(store: &Arc<dyn Store>) {
    let key = key("default", "one");
    let missing = Op {
        key: key.clone(),
        expect: Expect::Any,
        change: Change::Put(body(1)),
    };
    let answer = store.commit(missing.into()).await;
    assert!(
        matches!(
            answer,
            Err(Error::Conflict {
                index: 0,
                current: None
            })
        ),
        "{answer:?}"
    );
    let answer = store
        .commit(Op::update(key.clone(), Revision(1), body(1)).into())
        .await;
    assert!(
        matches!(
            answer,
            Err(Error::Conflict {
                index: 0,
                current: None
            })
        ),
        "{answer:?}"
    );

    let first = create(store, &key, 1).await;
    let answer = store.commit(Op::create(key.clone(), body(2)).into()).await;
    assert!(
        matches!(&answer, Err(Error::Exists { index: 0, current }) if *current == first),
        "{answer:?}"
    );

    let second = update(store, &first, 2).await;
    for stale in [
        Op::update(key.clone(), first.revision, body(3)),
        Op::delete(key.clone(), first.revision, None),
        Op::check(key.clone(), Expect::Revision(first.revision)),
    ] {
        let answer = store.commit(stale.into()).await;
        let current = matches!(&answer, Err(Error::Conflict { index: 0, current: Some(current) }) if *current == second);
        assert!(current, "{answer:?}");
    }
    assert_eq!(store.current_revision().await.unwrap(), second.revision);

    let unconditional = Op {
        key: key.clone(),
        expect: Expect::Any,
        change: Change::Put(body(4)),
    };
    store.commit(unconditional.into()).await.unwrap();
    assert_eq!(payload(&store.get(key).await.unwrap().unwrap().value), 4);
}

/// One failed precondition undoes the whole transaction, a good one does all of it.
pub async fn transactions_are_all_or_nothing(store: &Arc<dyn Store>) {
    let (run, lease) = (
        key("default", "run"),
        Key::new("coordination.k8s.io/leases", "default", "run"),
    );
    let run_entry = create(store, &run, 1).await;
    let failing = Txn::new(vec![
        Op::update(run.clone(), run_entry.revision, body(2)),
        Op::create(lease.clone(), body(3)),
        Op::check(key("default", "other"), Expect::Any),
    ]);
    let answer = store.commit(failing).await;
    assert!(
        matches!(
            answer,
            Err(Error::Conflict {
                index: 2,
                current: None
            })
        ),
        "{answer:?}"
    );
    assert_eq!(
        store.get(run.clone()).await.unwrap(),
        Some(Arc::clone(&run_entry))
    );
    assert_eq!(store.get(lease.clone()).await.unwrap(), None);
    assert_eq!(store.current_revision().await.unwrap(), run_entry.revision);

    let good = Txn::new(vec![
        Op::update(run.clone(), run_entry.revision, body(2)),
        Op::check(key("default", "other"), Expect::Absent),
        Op::create(lease.clone(), body(3)),
    ]);
    let committed = store.commit(good).await.unwrap();
    let [Some(run_after), None, Some(lease_after)] = &committed.entries[..] else {
        panic!("unexpected entries {:?}", committed.entries)
    };
    assert_eq!(run_after.revision, run_entry.revision.next());
    assert_eq!(lease_after.revision, committed.revision);
    assert_eq!(lease_after.revision, run_after.revision.next());
    assert_eq!(store.get(lease).await.unwrap().as_ref(), Some(lease_after));

    let check = Op::check(run, Expect::Revision(run_after.revision));
    let checked = store.commit(check.into()).await.unwrap();
    assert_eq!(
        (checked.revision, checked.entries),
        (committed.revision, vec![None])
    );
}

/// What can never succeed is refused before it reaches the log.
pub async fn refuses_malformed_transactions(store: &Arc<dyn Store>) {
    let good = key("default", "one");
    let nameless = Op::create(Key::new("panda.dev/tasks", "default", ""), body(1));
    let no_resource = Op::create(Key::new("", "default", "one"), body(1));
    let beyond = Op::create(good.clone(), Body::new(b"{}".to_vec(), 3));
    let absent_delete = Op {
        key: good.clone(),
        expect: Expect::Absent,
        change: Change::Delete(None),
    };
    let long = Op::create(key("default", &"x".repeat(10_000)), body(1));
    for op in [nameless, no_resource, beyond, absent_delete, long] {
        let answer = store.commit(op.into()).await;
        assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
    }
    let twice = Txn::new(vec![
        Op::create(good.clone(), body(1)),
        Op::create(good.clone(), body(2)),
    ]);
    let answer = store.commit(twice).await;
    assert!(matches!(answer, Err(Error::Invalid { .. })), "{answer:?}");
    let many = (0..5000)
        .map(|n| Op::create(key("default", &format!("n{n}")), body(n)))
        .collect();
    let answer = store.commit(Txn::new(many)).await;
    assert!(matches!(answer, Err(Error::TooLarge { .. })), "{answer:?}");
    assert_eq!(store.current_revision().await.unwrap(), Revision::ZERO);
    create(store, &good, 1).await;
}

/// Revisions are consecutive and nobody shares one.
pub async fn every_change_has_its_own_revision(store: &Arc<dyn Store>) {
    let writers = (0..8).map(|writer| {
        let store = Arc::clone(store);
        async move {
            let mut revisions = Vec::new();
            for n in 0..25 {
                revisions.push(
                    create(&store, &key("default", &format!("w{writer}-{n}")), n)
                        .await
                        .revision
                        .0,
                );
            }
            assert!(revisions.is_sorted());
            revisions
        }
    });
    let mut revisions = join_all(writers).await.concat();
    revisions.sort_unstable();
    assert_eq!(revisions, (1..=200).collect::<Vec<u64>>());
}

/// The event of a delete shows the given last state, or the stored one, at the delete's own revision.
pub async fn deletes_carry_the_last_state(store: &Arc<dyn Store>) {
    let start = store.current_revision().await.unwrap();
    let mut watch = watch(store, Scope::all(), start).await;
    let given = create(store, &key("default", "given"), 1).await;
    let committed = store
        .commit(Op::delete(given.key.clone(), given.revision, Some(body(9))).into())
        .await
        .unwrap();
    let last = committed.entries[0].clone().unwrap();
    assert_eq!(last.value, json(9, committed.revision));
    next(&mut watch).await;
    let event = next(&mut watch).await;
    assert_eq!(
        (event.kind, event.revision),
        (EventKind::Deleted, committed.revision)
    );
    assert_eq!(event.value, json(9, committed.revision));
    assert_eq!(event.prev, Some(given.value.clone()));
    assert_eq!(event.create_revision, given.create_revision);

    let stored = create(store, &key("default", "stored"), 2).await;
    delete(store, &stored).await;
    next(&mut watch).await;
    let event = next(&mut watch).await;
    assert_eq!((event.kind, &event.value), (EventKind::Deleted, &stored.value));
}

/// Read, change, write, from many sides: the sum is right.
pub async fn concurrent_writers_lose_nothing(store: &Arc<dyn Store>) {
    let counter = key("default", "counter");
    create(store, &counter, 0).await;
    let writers = (0..4).map(|_| {
        let (store, counter) = (Arc::clone(store), counter.clone());
        tokio::spawn(async move {
            let mut done = 0;
            while done < 25 {
                let raise = |entry: &crate::Entry| Ok(Some(body(payload(&entry.value) + 1)));
                match guaranteed_update::<_, _, Error>(&*store, &counter, raise).await {
                    Ok(_) => done += 1,
                    Err(Error::Conflict { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        })
    });
    for writer in join_all(writers).await {
        writer.unwrap();
    }
    assert_eq!(payload(&store.get(counter).await.unwrap().unwrap().value), 100);
}

/// Of many creations of one key one succeeds.
pub async fn concurrent_creators_have_one_winner(store: &Arc<dyn Store>) {
    let creators = (0..16).map(|n| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            store
                .commit(Op::create(key("default", "one"), body(n)).into())
                .await
        })
    });
    let outcomes: Vec<_> = join_all(creators).await.into_iter().map(Result::unwrap).collect();
    let winners: Vec<_> = outcomes
        .iter()
        .filter_map(|outcome| outcome.as_ref().ok())
        .collect();
    assert_eq!(winners.len(), 1);
    let winner = winners[0].entries[0].clone().unwrap();
    for outcome in &outcomes {
        if let Err(error) = outcome {
            assert!(
                matches!(error, Error::Exists { current, .. } if *current == winner),
                "{error:?}"
            );
        }
    }
    assert_eq!(list(store.as_ref(), Scope::all(), None).await.unwrap(), [winner]);
}

/// A read that begins after a commit returned sees it, whichever read.
pub async fn reads_follow_commits(store: &Arc<dyn Store>) {
    for n in 0..50 {
        let entry = create(store, &key("default", &format!("n{n:02}")), n).await;
        assert_eq!(store.get(entry.key.clone()).await.unwrap().as_ref(), Some(&entry));
        assert_eq!(store.current_revision().await.unwrap(), entry.revision);
        let listed = list(store, Scope::resource(super::TASKS), None).await.unwrap();
        assert_eq!(listed.last(), Some(&entry));
    }
}

/// Nothing to update is an error; deciding not to is not.
pub async fn guaranteed_update_reports_what_is_missing(store: &Arc<dyn Store>) {
    let key = key("default", "one");
    let answer = guaranteed_update::<_, _, Error>(&**store, &key, |_| Ok(Some(body(1)))).await;
    assert!(
        matches!(&answer, Err(Error::NotFound { key: missing }) if *missing == key),
        "{answer:?}"
    );
    let entry = create(store, &key, 1).await;
    let same = guaranteed_update::<_, _, Error>(&**store, &key, |_| Ok(None))
        .await
        .unwrap();
    assert_eq!(same, entry);
    assert_eq!(store.current_revision().await.unwrap(), entry.revision);
}
