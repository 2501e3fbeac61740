//! Objects of all kinds, and who depends on whom.

use std::collections::BTreeSet;
use std::sync::Arc;

use panda_api::meta::OwnerReference;
use panda_client::resource::Object;
use panda_client::runtime::controller::{Config, Controller};
use panda_client::runtime::{InformerHandle, ObjectRef, Outcome, Store};
use tokio_util::sync::CancellationToken;

use super::{Dependent, View, circular, plan};
use crate::framework::execute::Error;
use crate::framework::{Kind, Runner, Target};

/// A cache, of whatever kind.
trait Source: Send + Sync {
    fn kind(&self) -> Kind;
    fn get(&self, key: &ObjectRef) -> Option<Dependent>;
    fn owned_by(&self, uid: &str) -> Vec<ObjectRef>;
}

struct Cache<K> {
    kind: Kind,
    store: Store<K>,
}

impl<K: Object> Source for Cache<K> {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn get(&self, key: &ObjectRef) -> Option<Dependent> {
        let object = self.store.get(key)?;
        Some(Dependent {
            target: target(self.kind, key),
            metadata: object.meta().clone(),
        })
    }

    fn owned_by(&self, uid: &str) -> Vec<ObjectRef> {
        let owned = self.store.owned_by(uid);
        owned.iter().map(|object| ObjectRef::of(object.meta())).collect()
    }
}

type Watch = Box<dyn FnOnce(Controller, Arc<Sources>) -> Controller + Send>;

/// The collector in the making: every cache that it looks at is added.
pub(crate) struct Collector {
    sources: Vec<Box<dyn Source>>,
    watches: Vec<Watch>,
}

/// The caches of all kinds.
struct Sources(Vec<Box<dyn Source>>);

impl Collector {
    pub(crate) fn new() -> Self {
        Self {
            sources: Vec::new(),
            watches: Vec::new(),
        }
    }

    /// Looks at objects of `kind`.
    #[must_use]
    pub(crate) fn add<K: Object>(mut self, kind: Kind, informer: &InformerHandle<K>) -> Self {
        self.sources.push(Box::new(Cache {
            kind,
            store: informer.store().clone(),
        }));
        let informer = informer.clone();
        self.watches.push(Box::new(move |controller, sources| {
            controller.watches(&informer, move |object: &K| sources.concerned(kind, object))
        }));
        self
    }

    /// Collects until the token is cancelled.
    pub(crate) async fn run(self, runner: Runner, config: Config, token: CancellationToken) {
        let sources = Arc::new(Sources(self.sources));
        let mut controller = Controller::new("gc", config);
        for watch in self.watches {
            controller = watch(controller, Arc::clone(&sources));
        }
        controller
            .run(
                move |request| {
                    let (sources, runner) = (Arc::clone(&sources), runner.clone());
                    async move { reconcile(&request.key, &sources, &runner).await }
                },
                token,
            )
            .await;
    }
}

impl Sources {
    /// Keys to look at after a change: the object, if it has owners or dependents to see to, and owners that wait for
    /// such a change; what it owned, if it is gone or waits for it.
    fn concerned<K: Object>(&self, kind: Kind, object: &K) -> Vec<ObjectRef> {
        let meta = object.meta();
        let mut keys = Vec::new();
        if !meta.owner_references.is_empty() || meta.deletion_timestamp.is_some() {
            keys.push(key(kind, &ObjectRef::of(meta)));
        }
        let here = self.find(kind, &ObjectRef::of(meta));
        let changed = Dependent {
            target: target(kind, &ObjectRef::of(meta)),
            metadata: meta.clone(),
        };
        for reference in &meta.owner_references {
            let owner = self.owner(&changed, reference);
            if let Some(owner) = owner.filter(Dependent::concerns_dependents) {
                let owner = &owner.target;
                keys.push(key(owner.kind, &ObjectRef::new(&owner.namespace, &owner.name)));
            }
        }
        let concerned = |here: &Dependent| here.metadata.uid != meta.uid || here.concerns_dependents();
        if here.as_ref().is_none_or(concerned) {
            for source in &self.0 {
                let owned = source.owned_by(&meta.uid);
                keys.extend(owned.iter().map(|dependent| key(source.kind(), dependent)));
            }
        }
        keys
    }

    /// The object that a reference means, if it exists.
    fn owner(&self, dependent: &Dependent, reference: &OwnerReference) -> Option<Dependent> {
        let target = dependent.resolve(reference)?;
        self.find(target.kind, &ObjectRef::new(&target.namespace, &target.name))
            .filter(|owner| owner.metadata.uid == reference.uid)
    }

    fn dependents(&self, uid: &str) -> Vec<Dependent> {
        let of = |source: &dyn Source| -> Vec<Dependent> {
            let keys = source.owned_by(uid);
            keys.iter().filter_map(|key| source.get(key)).collect()
        };
        self.0.iter().flat_map(|source| of(&**source)).collect()
    }

    fn find(&self, kind: Kind, key: &ObjectRef) -> Option<Dependent> {
        self.0.iter().find(|source| source.kind() == kind)?.get(key)
    }
}

/// A key for objects of all kinds: no name has a slash.
fn key(kind: Kind, object: &ObjectRef) -> ObjectRef {
    let name = format!("{}.{}/{}", kind.plural, kind.group, object.name());
    ObjectRef::new(object.namespace(), &name)
}

fn parse(key: &ObjectRef, sources: &Sources) -> Option<Dependent> {
    let (kind, name) = key.name().split_once('/')?;
    let (plural, group) = kind.split_once('.')?;
    let source = sources
        .0
        .iter()
        .find(|source| source.kind().plural == plural && source.kind().group == group)?;
    source.get(&ObjectRef::new(key.namespace(), name))
}

async fn reconcile(key: &ObjectRef, sources: &Sources, runner: &Runner) -> Result<Outcome, Error> {
    let Some(object) = parse(key, sources) else {
        return Ok(Outcome::Done);
    };
    let references = object.metadata.owner_references.iter();
    let owners = references
        .filter_map(|reference| sources.owner(&object, reference))
        .map(|owner| (owner.metadata.uid.clone(), owner.is_waiting()))
        .collect();
    let uid = &object.metadata.uid;
    let dependents = sources.dependents(uid);
    let circular = if object.is_waiting() {
        circular(uid, &dependents, &|uid| sources.dependents(uid))
    } else {
        BTreeSet::new()
    };
    let view = View {
        owners,
        dependents,
        circular,
    };
    runner.run(&plan(&view, &object), None).await
}

fn target(kind: Kind, key: &ObjectRef) -> Target {
    Target {
        kind,
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
    }
}
