//! Random operations against a model simple enough to be believed.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{TASKS, body, json, key, list, take, watch};
use crate::{Change, Error, EventKind, Expect, Key, ListRequest, Op, Revision, Scope, Store, Txn};

/// One operation of a random transaction.
#[derive(Clone, Copy, Debug)]
pub struct ModelOp {
    /// Which of a few keys.
    pub key: u8,
    /// What must hold.
    pub expect: ModelExpect,
    /// What happens.
    pub change: ModelChange,
    /// Makes the body.
    pub payload: u64,
}

/// A precondition, relative to the model's state.
#[derive(Clone, Copy, Debug)]
pub enum ModelExpect {
    /// [`Expect::Absent`].
    Absent,
    /// [`Expect::Any`].
    Any,
    /// The revision that the model knows, or some revision when it knows none.
    Current,
    /// A revision that is not the current one.
    Stale,
}

/// A change.
#[derive(Clone, Copy, Debug)]
pub enum ModelChange {
    /// [`Change::Put`].
    Put,
    /// [`Change::Delete`].
    Delete,
    /// [`Change::Check`].
    Check,
}

/// A step of a random history.
#[derive(Clone, Debug)]
pub enum ModelStep {
    /// A transaction.
    Commit(Vec<ModelOp>),
    /// A compaction below a share (of 255) of the newest revision.
    Compact(u8),
}

type State = BTreeMap<Key, (Revision, Vec<u8>)>;

fn op(model: &State, step: ModelOp) -> Op {
    let key = key(
        if step.key.is_multiple_of(2) { "a" } else { "b" },
        &format!("n{}", step.key % 6),
    );
    let known = model.get(&key).map(|(revision, _)| *revision);
    let expect = match step.expect {
        ModelExpect::Absent => Expect::Absent,
        ModelExpect::Any => Expect::Any,
        ModelExpect::Current => Expect::Revision(known.unwrap_or(Revision(1))),
        ModelExpect::Stale => Expect::Revision(known.map_or(Revision(7), Revision::next)),
    };
    let change = match step.change {
        ModelChange::Put => Change::Put(body(step.payload)),
        ModelChange::Delete => Change::Delete(Some(body(step.payload))),
        ModelChange::Check => Change::Check,
    };
    Op { key, expect, change }
}

/// Applies every step to the store and to a map, and compares every answer, every state and the whole watch.
pub async fn follows_the_model(store: &Arc<dyn Store>, steps: &[ModelStep]) {
    let mut model = State::new();
    let mut revision = store.current_revision().await.unwrap();
    let (start, mut oldest) = (revision, Revision::ZERO);
    let mut states = vec![model.clone()];
    let mut expected = Vec::new();
    let mut live = watch(store, Scope::all(), start).await;
    for step in steps {
        let steps = match step {
            ModelStep::Compact(share) => {
                let below = Revision(revision.0 * u64::from(*share) / 255);
                oldest = oldest.max(Revision(below.0.saturating_sub(1)));
                assert_eq!(store.compact(below).await.unwrap(), oldest);
                continue;
            }
            ModelStep::Commit(steps) => steps,
        };
        let mut ops: Vec<Op> = Vec::new();
        for step in steps {
            let op = op(&model, *step);
            let impossible = op.expect == Expect::Absent && matches!(op.change, Change::Delete(_));
            if !impossible && ops.iter().all(|other| other.key != op.key) {
                ops.push(op);
            }
        }
        let failing = ops.iter().position(|op| {
            let known = model.get(&op.key).map(|(revision, _)| *revision);
            match op.expect {
                Expect::Absent => known.is_some(),
                Expect::Any => known.is_none(),
                Expect::Revision(wanted) => known != Some(wanted),
            }
        });
        let answer = store.commit(Txn::new(ops.clone())).await;
        if let Some(failing) = failing {
            let index = match &answer {
                Err(Error::Exists { index, .. } | Error::Conflict { index, .. }) => *index,
                other => panic!("expected operation {failing} to fail: {other:?}"),
            };
            assert_eq!(index, failing);
        } else {
            for op in &ops {
                let (kind, made) = match &op.change {
                    Change::Check => continue,
                    Change::Put(made) if model.contains_key(&op.key) => (EventKind::Updated, made),
                    Change::Put(made) => (EventKind::Created, made),
                    Change::Delete(made) => (EventKind::Deleted, made.as_ref().unwrap()),
                };
                revision = revision.next();
                let value = made.finish(revision).to_vec();
                expected.push((revision, op.key.clone(), kind, value.clone()));
                match kind {
                    EventKind::Deleted => model.remove(&op.key),
                    _ => model.insert(op.key.clone(), (revision, value)),
                };
                states.push(model.clone());
            }
            assert_eq!(answer.unwrap().revision, revision);
        }
        assert_eq!(store.current_revision().await.unwrap(), revision);
        compare(&**store, &model, None).await;
    }
    for at in oldest.0.max(start.0)..=revision.0 {
        let state = &states[usize::try_from(at - start.0).unwrap()];
        compare(&**store, state, Some(Revision(at))).await;
    }
    let seen = take(&mut live, expected.len()).await;
    let seen: Vec<_> = seen
        .iter()
        .map(|e| (e.revision, e.key.clone(), e.kind, e.value.to_vec()))
        .collect();
    assert_eq!(seen, expected);
}

/// Whole and in pages, the store shows the model's state.
async fn compare(store: &dyn Store, model: &State, at: Option<Revision>) {
    let expected: Vec<(Key, Revision, Vec<u8>)> = model
        .iter()
        .map(|(key, (revision, value))| (key.clone(), *revision, value.clone()))
        .collect();
    let plain = |entry: &crate::Entry| (entry.key.clone(), entry.revision, entry.value.to_vec());
    let whole = list(store, Scope::resource(TASKS), at).await.unwrap();
    assert_eq!(
        whole.iter().map(|entry| plain(entry)).collect::<Vec<_>>(),
        expected
    );
    let mut request = ListRequest {
        scope: Scope::all(),
        limit: Some(2),
        start_after: None,
        at,
    };
    let mut paged = Vec::new();
    loop {
        let page = store.list(request.clone()).await.unwrap();
        paged.extend(page.items.iter().map(|entry| plain(entry)));
        assert_eq!(page.remaining, (expected.len() - paged.len()) as u64);
        assert_eq!(page.more, page.remaining > 0);
        if !page.more {
            break;
        }
        request.at = Some(page.revision);
        request.start_after = page.items.last().map(|entry| entry.key.clone());
    }
    assert_eq!(paged, expected);
    assert!(
        paged
            .iter()
            .all(|(_, revision, value)| *value == json(super::payload(value), *revision))
    );
}
