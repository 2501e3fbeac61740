//! Drives the crate `kube`; see ../../README.md. `follow` keeps a cache instead, as `follow.py` and `follow.mjs` do.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::core::PartialObjectMeta;
use kube::discovery::Discovery;
use kube::runtime::controller::Action;
use kube::runtime::finalizer::{Event, finalizer};
use kube::runtime::{Controller, WatchStreamExt, reflector, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Setting {
    client: Client,
    kind: ApiResource,
    namespace: String,
}

impl Setting {
    fn agents(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &self.kind)
    }

    fn agent(&self, name: &str, label: &str) -> DynamicObject {
        let mut object = DynamicObject::new(name, &self.kind).data(
            json!({"spec": {"displayName": "one", "drivers": [{"kind": "Exec", "command": ["true"]}]}}),
        );
        object.metadata.labels = Some(BTreeMap::from([("w".to_owned(), label.to_owned())]));
        object
    }

    async fn make(&self, name: &str, label: &str) -> Result<DynamicObject> {
        Ok(self
            .agents()
            .create(&PostParams::default(), &self.agent(name, label))
            .await?)
    }
}

fn ensure(what: bool, why: impl Into<String>) -> Result {
    if what { Ok(()) } else { Err(why.into().into()) }
}

async fn discovery_finds_the_kind(on: Setting) -> Result {
    let gvk = GroupVersionKind::gvk("panda.dev", "v1alpha1", "Agent");
    for found in [
        Discovery::new(on.client.clone()).run().await?,
        Discovery::new(on.client.clone()).run_aggregated().await?,
    ] {
        let (resource, _) = found.resolve_gvk(&gvk).ok_or("the kind is not found")?;
        ensure(resource.plural == "agents", resource.plural)?;
    }
    Ok(())
}

async fn objects_are_made_patched_and_deleted(on: Setting) -> Result {
    let agents = on.agents();
    let made = on.make("rs-a", "crud").await?;
    let twice = on.make("rs-a", "crud").await;
    ensure(
        twice.is_err_and(|error| error.to_string().contains("already exists")),
        "made twice",
    )?;
    let change = Patch::Merge(json!({"spec": {"displayName": "two"}}));
    let patched = agents.patch("rs-a", &PatchParams::default(), &change).await?;
    ensure(patched.data["spec"]["displayName"] == "two", "patched")?;
    let one = agents.get_metadata("rs-a").await?;
    ensure(one.metadata.uid == made.metadata.uid, "metadata alone")?;
    let list = agents
        .list_metadata(&ListParams::default().labels("w=crud").limit(1))
        .await?;
    ensure(list.items.len() == 1, "list of metadata")?;
    let gone = agents.delete("rs-a", &DeleteParams::default()).await?;
    let status = gone.right().ok_or("a deletion answers a Status")?;
    ensure(status.is_success(), "deleted")?;
    ensure(agents.get_opt("rs-a").await?.is_none(), "still there")
}

async fn watched(on: Setting, config: watcher::Config, label: &str) -> Result {
    let (first, late) = (format!("rs-{label}-first"), format!("rs-{label}-late"));
    on.make(&first, label).await?;
    let mut events = watcher(on.agents(), config.labels(&format!("w={label}"))).boxed();
    let mut seen = Vec::new();
    while let Some(event) = events.try_next().await? {
        match event {
            watcher::Event::Init => {}
            watcher::Event::InitApply(object) => seen.push(format!("init {}", object.name_any())),
            watcher::Event::InitDone => {
                on.make(&late, label).await?;
            }
            watcher::Event::Apply(object) => {
                seen.push(format!("apply {}", object.name_any()));
                on.agents().delete(&late, &DeleteParams::default()).await?;
            }
            watcher::Event::Delete(object) => {
                seen.push(format!("delete {}", object.name_any()));
                break;
            }
        }
    }
    let want = [
        format!("init {first}"),
        format!("apply {late}"),
        format!("delete {late}"),
    ];
    ensure(seen == want, format!("{seen:?}"))
}

async fn a_watcher_lists_and_watches(on: Setting) -> Result {
    watched(on, watcher::Config::default(), "listed").await
}

async fn a_watcher_streams_its_list(on: Setting) -> Result {
    watched(on, watcher::Config::default().streaming_lists(), "streamed").await
}

async fn metadata_alone_is_watched(on: Setting) -> Result {
    on.make("rs-meta", "meta").await?;
    let config = watcher::Config::default().labels("w=meta");
    // No object in this form is ever asked for as a whole.
    let agents =
        Api::<PartialObjectMeta<DynamicObject>>::namespaced_with(on.client.clone(), &on.namespace, &on.kind);
    let mut objects = watcher(agents, config).applied_objects().boxed();
    let object = objects.try_next().await?.ok_or("the stream ended")?;
    ensure(object.name_any() == "rs-meta", object.name_any())
}

/// Labels its objects and cleans up behind them.
async fn a_controller_with_a_finalizer_runs(on: Setting) -> Result {
    let agents = on.agents();
    let reconcile = |object: Arc<DynamicObject>, on: Arc<Setting>| async move {
        let agents = on.agents();
        finalizer(&agents, "example.com/cleanup", object, |event| async {
            if let Event::Apply(object) = event {
                let change = Patch::Merge(json!({"metadata": {"labels": {"seen": "yes"}}}));
                on.agents()
                    .patch(&object.name_any(), &PatchParams::default(), &change)
                    .await?;
            }
            Ok::<_, kube::Error>(Action::await_change())
        })
        .await
    };
    let config = watcher::Config::default().labels("w=controlled");
    let controller = Controller::new_with(agents.clone(), config, on.kind.clone())
        .run(
            reconcile,
            |_, _, _| Action::requeue(Duration::from_millis(100)),
            Arc::new(on.clone()),
        )
        .for_each(|_| async {});
    let running = tokio::spawn(controller);
    on.make("rs-controlled", "controlled").await?;
    loop {
        let object = agents.get("rs-controlled").await?;
        if object.labels().get("seen").is_some() && !object.finalizers().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let held = agents.delete("rs-controlled", &DeleteParams::default()).await?;
    ensure(held.left().is_some(), "a finalizer holds the object")?;
    while agents.get_opt("rs-controlled").await?.is_some() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.abort();
    Ok(())
}

async fn events_of_the_newer_group_are_published(on: Setting) -> Result {
    use k8s_openapi::api::events::v1::Event as Published;
    use kube::runtime::events::{Event, EventType, Recorder, Reporter};
    let object = on.make("rs-events", "events").await?;
    let recorder = Recorder::new(on.client.clone(), Reporter::from("panda-client-rs"));
    let event = Event {
        type_: EventType::Normal,
        reason: "Seen".to_owned(),
        note: Some("It was seen.".to_owned()),
        action: "Looking".to_owned(),
        secondary: None,
    };
    let reference = kube::Resource::object_ref(&object, &on.kind);
    recorder.publish(&event, &reference).await?;
    // The second time it is a patch that makes a series.
    recorder.publish(&event, &reference).await?;
    let events: Api<Published> = Api::namespaced(on.client.clone(), &on.namespace);
    let all = events
        .list(&ListParams::default().fields("regarding.name=rs-events"))
        .await?;
    let note = all.items.first().and_then(|event| event.note.clone());
    ensure(note.as_deref() == Some("It was seen."), format!("{note:?}"))
}

/// Keeps a cache of the objects with the label `follow` until one is called `stop`, and prints it.
async fn follow(on: Setting) -> Result {
    let writer = reflector::store::Writer::<DynamicObject>::new(on.kind.clone());
    let reader = writer.as_reader();
    let config = watcher::Config::default().labels("w=follow");
    let stream = watcher(on.agents(), config).default_backoff().reflect(writer);
    let running = tokio::spawn(stream.for_each(|_| async {}));
    reader.wait_until_ready().await?;
    println!("ready");
    while !reader.state().iter().any(|object| object.name_any() == "stop") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    running.abort();
    let lines: BTreeMap<String, String> = reader
        .state()
        .iter()
        .map(|object| (object.name_any(), object.resource_version().unwrap_or_default()))
        .collect();
    for (name, version) in lines {
        println!("cache {name} {version}");
    }
    Ok(())
}

async fn case<F: Future<Output = Result>>(name: &str, on: &Setting, run: impl FnOnce(Setting) -> F) -> bool {
    let outcome = match tokio::time::timeout(PATIENCE, run(on.clone())).await {
        Ok(outcome) => outcome,
        Err(_) => Err("not in time".into()),
    };
    match outcome {
        Ok(()) => println!("ok {name}"),
        Err(error) => println!("FAIL {name}: {error}"),
    }
    true
}

macro_rules! cases {
    ($on:expr, $($name:ident),* $(,)?) => { $( case(stringify!($name), $on, $name).await; )* };
}

#[tokio::main]
async fn main() -> Result {
    let gvk = GroupVersionKind::gvk("panda.dev", "v1alpha1", "Agent");
    let on = Setting {
        client: Client::try_default().await?,
        kind: ApiResource::from_gvk_with_plural(&gvk, "agents"),
        namespace: std::env::var("PANDA_NAMESPACE")?,
    };
    if std::env::args().nth(1).as_deref() == Some("follow") {
        return follow(on).await;
    }
    cases!(
        &on,
        discovery_finds_the_kind,
        objects_are_made_patched_and_deleted,
        a_watcher_lists_and_watches,
        a_watcher_streams_its_list,
        metadata_alone_is_watched,
        a_controller_with_a_finalizer_runs,
        events_of_the_newer_group_are_published,
    );
    Ok(())
}
