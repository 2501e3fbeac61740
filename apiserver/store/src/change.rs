//! The rules of one change, the same for every backend.

use std::sync::Arc;

use crate::{Change, Entry, Error, Event, EventKind, Op, Revision};

/// The event that a verified operation causes at `revision`; none for a check.
pub(crate) fn event(op: &Op, current: Option<&Arc<Entry>>, revision: Revision) -> Option<Arc<Event>> {
    let prev = current.map(|entry| entry.value.clone());
    let (kind, value) = match &op.change {
        Change::Check => return None,
        Change::Put(body) if prev.is_some() => (EventKind::Updated, body.finish(revision)),
        Change::Put(body) => (EventKind::Created, body.finish(revision)),
        Change::Delete(Some(body)) => (EventKind::Deleted, body.finish(revision)),
        Change::Delete(None) => (EventKind::Deleted, prev.clone().unwrap_or_default()),
    };
    Some(Arc::new(Event {
        revision,
        key: op.key.clone(),
        kind,
        value,
        prev,
        prev_revision: current.map_or(Revision::ZERO, |entry| entry.revision),
        create_revision: current.map_or(revision, |entry| entry.create_revision),
    }))
}

/// Refuses a revision outside of the kept history.
pub(crate) fn check_revision(asked: Revision, oldest: Revision, current: Revision) -> Result<(), Error> {
    if asked < oldest {
        return Err(Error::Compacted { oldest });
    }
    if asked > current {
        return Err(Error::FutureRevision {
            requested: asked,
            current,
        });
    }
    Ok(())
}
