//! The cache of one kind: one writer, many readers.
//!
//! 1. Only the [`Writer`] changes a store. Readers ([`Store`], cheap to clone) see each change whole.
//! 2. While a list comes in, readers see what was known before; at its end the contents are swapped at once, and what
//!    the list does not hold counts as deleted.
//! 3. An object that cannot be read keeps its last readable state, if it has one, until it is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::watch;

use super::ObjectRef;
use super::watcher::Event;
use crate::resource::Object;

/// Values under which an object can be found.
pub type IndexFn<K> = Arc<dyn Fn(&K) -> Vec<String> + Send + Sync>;

/// What a change did to the cache.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<K> {
    /// The object is new, or a new one of an old name.
    Added(Arc<K>),
    /// The object changed, or may have.
    Updated {
        /// What was known before.
        old: Arc<K>,
        /// What is known now.
        new: Arc<K>,
    },
    /// The object is gone. The last state known, which need not be its last state.
    Deleted(Arc<K>),
}

impl<K> Change<K> {
    /// The state after the change; of a deleted object the last one known.
    pub const fn object(&self) -> &Arc<K> {
        match self {
            Self::Added(k) | Self::Deleted(k) | Self::Updated { new: k, .. } => k,
        }
    }
}

/// An index: the objects under each value.
struct Index<K> {
    name: &'static str,
    of: IndexFn<K>,
    keys: BTreeMap<String, BTreeSet<ObjectRef>>,
}

struct State<K> {
    objects: BTreeMap<ObjectRef, Arc<K>>,
    indexes: Vec<Index<K>>,
}

impl<K> State<K> {
    fn insert(&mut self, key: ObjectRef, object: Arc<K>) -> Option<Arc<K>> {
        let old = self.remove(&key);
        for index in &mut self.indexes {
            for value in (index.of)(&object) {
                index.keys.entry(value).or_default().insert(key.clone());
            }
        }
        self.objects.insert(key, object);
        old
    }

    fn remove(&mut self, key: &ObjectRef) -> Option<Arc<K>> {
        let old = self.objects.remove(key)?;
        for index in &mut self.indexes {
            for value in (index.of)(&old) {
                if let Some(keys) = index.keys.get_mut(&value) {
                    keys.remove(key);
                    if keys.is_empty() {
                        index.keys.remove(&value);
                    }
                }
            }
        }
        Some(old)
    }
}

/// Reads a cache.
pub struct Store<K> {
    state: Arc<RwLock<State<K>>>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            synced: self.synced.clone(),
        }
    }
}

impl<K> fmt::Debug for Store<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("len", &self.read().objects.len())
            .finish()
    }
}

impl<K> Store<K> {
    fn read(&self) -> RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object of that name.
    #[must_use]
    pub fn get(&self, key: &ObjectRef) -> Option<Arc<K>> {
        self.read().objects.get(key).cloned()
    }

    /// All objects, by namespace and name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<K>> {
        self.read().objects.values().cloned().collect()
    }

    /// How many objects there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.read().objects.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The objects that the object with this uid owns, by namespace and name.
    #[must_use]
    pub fn owned_by(&self, uid: &str) -> Vec<Arc<K>> {
        self.by_index(OWNER, uid)
    }

    /// The objects under `value` of the index called `index`; none if there is no such index.
    #[must_use]
    pub fn by_index(&self, index: &str, value: &str) -> Vec<Arc<K>> {
        let state = self.read();
        state
            .indexes
            .iter()
            .find(|i| i.name == index)
            .and_then(|i| i.keys.get(value))
            .into_iter()
            .flatten()
            .filter_map(|key| state.objects.get(key).cloned())
            .collect()
    }

    /// Whether the first list is complete.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits for the first list. False: the writer is gone, it will never come.
    pub async fn wait_synced(&self) -> bool {
        self.synced.clone().wait_for(|synced| *synced).await.is_ok()
    }
}

/// Name of the index that every store has: the uids of an object's owners.
const OWNER: &str = "owner";

/// Changes a cache.
pub struct Writer<K> {
    state: Arc<RwLock<State<K>>>,
    synced: watch::Sender<bool>,
    incoming: Option<Incoming<K>>,
}

/// A list that is coming in.
struct Incoming<K> {
    objects: BTreeMap<ObjectRef, Arc<K>>,
    /// Keys of objects that could not be read.
    unreadable: BTreeSet<ObjectRef>,
}

impl<K> fmt::Debug for Writer<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}

/// An empty cache: its writer and a reader. It is indexed by owner, and by `indexes`.
#[must_use]
pub fn store<K: Object>(indexes: Vec<(&'static str, IndexFn<K>)>) -> (Writer<K>, Store<K>) {
    let owners: IndexFn<K> =
        Arc::new(|k: &K| k.meta().owner_references.iter().map(|o| o.uid.clone()).collect());
    let indexes = std::iter::once((OWNER, owners))
        .chain(indexes)
        .map(|(name, of)| Index {
            name,
            of,
            keys: BTreeMap::new(),
        })
        .collect();
    let state = Arc::new(RwLock::new(State {
        objects: BTreeMap::new(),
        indexes,
    }));
    let (send, receive) = watch::channel(false);
    (
        Writer {
            state: Arc::clone(&state),
            synced: send,
            incoming: None,
        },
        Store {
            state,
            synced: receive,
        },
    )
}

impl<K: Object> Writer<K> {
    fn write(&self) -> RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies an event and says what it changed, in an order that keeps that of each object.
    pub fn apply(&mut self, event: Event<K>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.incoming = Some(Incoming {
                    objects: BTreeMap::new(),
                    unreadable: BTreeSet::new(),
                });
                Vec::new()
            }
            Event::InitApply(object) => {
                if let Some(incoming) = &mut self.incoming {
                    incoming
                        .objects
                        .insert(ObjectRef::of(object.meta()), Arc::new(object));
                }
                Vec::new()
            }
            Event::InitDone => {
                let changes = self.swap();
                self.synced.send_replace(true);
                changes
            }
            Event::Apply(object) => {
                let (key, new) = (ObjectRef::of(object.meta()), Arc::new(object));
                let old = self.write().insert(key, Arc::clone(&new));
                difference(old, new)
            }
            Event::Delete(object) => {
                let old = self.write().remove(&ObjectRef::of(object.meta()));
                // The event holds the last state; handlers get it even if the cache had an older one.
                old.map(|_| Change::Deleted(Arc::new(object)))
                    .into_iter()
                    .collect()
            }
            Event::Undecodable(bad) => {
                let key = ObjectRef::of(&bad.metadata);
                if bad.deleted {
                    let old = self.write().remove(&key);
                    return old.map(Change::Deleted).into_iter().collect();
                }
                if let Some(incoming) = &mut self.incoming {
                    incoming.unreadable.insert(key);
                }
                Vec::new()
            }
        }
    }

    fn swap(&mut self) -> Vec<Change<K>> {
        let Some(Incoming {
            objects: mut fresh,
            unreadable,
        }) = self.incoming.take()
        else {
            return Vec::new();
        };
        let mut state = self.write();
        for key in unreadable {
            if let Some(known) = state.objects.get(&key) {
                fresh.entry(key).or_insert_with(|| Arc::clone(known));
            }
        }
        let mut changes = Vec::new();
        let gone: Vec<ObjectRef> = state
            .objects
            .keys()
            .filter(|key| !fresh.contains_key(*key))
            .cloned()
            .collect();
        for key in gone {
            changes.extend(state.remove(&key).map(Change::Deleted));
        }
        for (key, new) in fresh {
            let same = state
                .objects
                .get(&key)
                .is_some_and(|old| same_version(old.as_ref(), new.as_ref()));
            if !same {
                let old = state.insert(key, Arc::clone(&new));
                changes.extend(difference(old, new));
            }
        }
        changes
    }
}

fn same_version<K: Object>(a: &K, b: &K) -> bool {
    let (a, b) = (a.meta(), b.meta());
    a.uid == b.uid && a.resource_version == b.resource_version
}

/// An object of the same name but another uid is another object: the old one was deleted in between.
fn difference<K: Object>(old: Option<Arc<K>>, new: Arc<K>) -> Vec<Change<K>> {
    match old {
        None => vec![Change::Added(new)],
        Some(old) if old.meta().uid != new.meta().uid => vec![Change::Deleted(old), Change::Added(new)],
        Some(old) => vec![Change::Updated { old, new }],
    }
}

#[cfg(test)]
mod tests {
    use panda_api::meta::{ObjectMeta, OwnerReference};

    use super::*;
    use crate::resource::PartialObject;
    use crate::watch::Undecodable;

    fn object(name: &str, uid: &str, version: &str) -> PartialObject {
        PartialObject {
            metadata: ObjectMeta {
                name: name.into(),
                uid: uid.into(),
                resource_version: version.into(),
                owner_references: vec![OwnerReference {
                    uid: format!("owner-of-{uid}"),
                    ..OwnerReference::default()
                }],
                ..ObjectMeta::default()
            },
            ..PartialObject::default()
        }
    }

    fn names(store: &Store<PartialObject>) -> Vec<String> {
        store
            .list()
            .iter()
            .map(|o| format!("{}@{}", o.metadata.name, o.metadata.resource_version))
            .collect()
    }

    #[test]
    fn readers_see_the_old_contents_until_the_list_is_complete() {
        let (mut writer, reader) = store(Vec::new());
        writer.apply(Event::Init);
        writer.apply(Event::InitApply(object("a", "1", "1")));
        writer.apply(Event::InitApply(object("b", "2", "2")));
        assert!(reader.is_empty() && !reader.is_synced());
        writer.apply(Event::InitDone);
        assert_eq!(names(&reader), ["a@1", "b@2"]);
        assert!(reader.is_synced());

        writer.apply(Event::Init);
        writer.apply(Event::InitApply(object("b", "2", "5")));
        writer.apply(Event::InitApply(object("c", "3", "4")));
        assert_eq!(names(&reader), ["a@1", "b@2"]);
        let changes = writer.apply(Event::InitDone);
        assert_eq!(names(&reader), ["b@5", "c@4"]);
        assert_eq!(changes.len(), 3);
        assert!(matches!(&changes[0], Change::Deleted(o) if o.metadata.name == "a"));
    }

    #[test]
    fn a_list_that_starts_over_forgets_its_first_half() {
        let (mut writer, reader) = store(Vec::new());
        writer.apply(Event::Init);
        writer.apply(Event::InitApply(object("half", "1", "1")));
        writer.apply(Event::Init);
        writer.apply(Event::InitApply(object("whole", "2", "2")));
        writer.apply(Event::InitDone);
        assert_eq!(names(&reader), ["whole@2"]);
    }

    #[test]
    fn a_new_object_of_an_old_name_is_a_deletion_and_a_creation() {
        let (mut writer, reader) = store(Vec::new());
        writer.apply(Event::Apply(object("a", "1", "1")));
        let changes = writer.apply(Event::Apply(object("a", "2", "3")));
        assert!(matches!(&changes[..], [Change::Deleted(old), Change::Added(new)]
            if old.metadata.uid == "1" && new.metadata.uid == "2"));
        assert!(reader.owned_by("owner-of-1").is_empty());
        assert_eq!(reader.owned_by("owner-of-2").len(), 1);
    }

    #[test]
    fn an_unreadable_object_keeps_its_last_readable_state_until_deleted() {
        let (mut writer, reader) = store(Vec::new());
        let bad = |deleted| {
            Event::Undecodable(Undecodable {
                kind: "Task".into(),
                metadata: Box::new(ObjectMeta::named("a")),
                problem: "no".into(),
                deleted,
            })
        };
        writer.apply(Event::Apply(object("a", "1", "1")));
        assert!(writer.apply(bad(false)).is_empty());
        writer.apply(Event::Init);
        writer.apply(bad(false));
        assert!(writer.apply(Event::InitDone).is_empty());
        assert_eq!(names(&reader), ["a@1"]);
        assert!(matches!(&writer.apply(bad(true))[..], [Change::Deleted(_)]));
        assert!(reader.is_empty());
    }

    #[test]
    fn an_own_index_finds_and_forgets() {
        let by_version: IndexFn<PartialObject> = Arc::new(|o| vec![o.metadata.resource_version.clone()]);
        let (mut writer, reader) = store(vec![("version", by_version)]);
        writer.apply(Event::Apply(object("a", "1", "7")));
        assert_eq!(reader.by_index("version", "7").len(), 1);
        writer.apply(Event::Apply(object("a", "1", "8")));
        assert!(reader.by_index("version", "7").is_empty());
        writer.apply(Event::Delete(object("a", "1", "9")));
        assert!(reader.by_index("version", "8").is_empty());
        assert!(reader.by_index("nonsense", "8").is_empty());
    }
}
