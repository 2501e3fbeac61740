//! Current objects in key order, with reads at an earlier revision reconstructed from the events since.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::{Entry, Event, EventKind, Key, ListRequest, Page, Revision, Scope};

#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    entries: BTreeMap<Key, Arc<Entry>>,
    pub(crate) revision: Revision,
}

impl Snapshot {
    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.entries.get(key)
    }

    /// Loads an entry that is known to be current.
    pub(crate) fn load(&mut self, entry: Arc<Entry>) {
        self.entries.insert(entry.key.clone(), entry);
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        match event.kind {
            EventKind::Created | EventKind::Updated => {
                self.entries.insert(event.key.clone(), event.after());
            }
            EventKind::Deleted => {
                self.entries.remove(&event.key);
            }
        }
        self.revision = self.revision.max(event.revision);
    }

    /// A page of the newest state.
    pub(crate) fn page(&self, request: &ListRequest) -> Page {
        let mut rest = self.range(&request.scope, request.start_after.as_ref());
        let limit = limit(request);
        let items: Vec<Arc<Entry>> = rest
            .by_ref()
            .take(limit)
            .map(|(_, entry)| Arc::clone(entry))
            .collect();
        let remaining = if items.len() < limit {
            0
        } else {
            rest.count() as u64
        };
        Page {
            items,
            revision: self.revision,
            remaining,
            more: remaining > 0,
        }
    }

    /// A page of the state at `at`, given every event of the scope after it, oldest first.
    pub(crate) fn page_at(&self, request: &ListRequest, at: Revision, since: &[Arc<Event>]) -> Page {
        let mut earlier: BTreeMap<&Key, Option<Arc<Entry>>> = BTreeMap::new();
        for event in since {
            // The first event after `at` knows the state at `at`.
            earlier.entry(&event.key).or_insert_with(|| event.before());
        }
        let after = request.start_after.as_ref();
        let current = self
            .range(&request.scope, after)
            .filter(|(key, _)| !earlier.contains_key(*key));
        let mut current = current.map(|(_, entry)| entry).peekable();
        let changed = earlier
            .iter()
            .filter(|(key, _)| after.is_none_or(|after| **key > after));
        let mut changed = changed.filter_map(|(_, entry)| entry.as_ref()).peekable();
        let limit = limit(request);
        let mut items = Vec::new();
        while items.len() < limit {
            let next = match (current.peek(), changed.peek()) {
                (Some(a), Some(b)) if a.key < b.key => current.next(),
                (_, Some(_)) => changed.next(),
                (_, None) => current.next(),
            };
            let Some(entry) = next else { break };
            items.push(Arc::clone(entry));
        }
        let remaining = (current.count() + changed.count()) as u64;
        Page {
            items,
            revision: at,
            remaining,
            more: remaining > 0,
        }
    }

    fn range<'a>(
        &'a self,
        scope: &'a Scope,
        after: Option<&Key>,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Entry>)> {
        let first = first_key(scope);
        let start = match after {
            Some(after) if *after > first => after.clone(),
            _ => first,
        };
        let bounds = (Bound::Excluded(start), Bound::Unbounded);
        self.entries
            .range(bounds)
            .take_while(|(key, _)| scope.contains(key))
    }
}

/// Before every key of a scope, and equal to none: names are not empty.
pub(crate) fn first_key(scope: &Scope) -> Key {
    let namespace = scope.resource.as_ref().and(scope.namespace.clone());
    Key::new(
        scope.resource.clone().unwrap_or_default(),
        namespace.unwrap_or_default(),
        "",
    )
}

pub(crate) fn limit(request: &ListRequest) -> usize {
    request.limit.filter(|limit| *limit > 0).unwrap_or(usize::MAX)
}
