//! The registry in process.

use panda_api::meta::{ObjectMeta, RandomIds, SystemClock};
use panda_api::{ConfigMap, Run, RunPhase, Task};
use panda_store::Memory;

use super::*;

async fn registry() -> (tempfile::TempDir, Registry) {
    let dir = tempfile::tempdir().unwrap();
    let sealer = Sealer::open(&dir.path().join("key")).unwrap();
    let store = Arc::new(Memory::new("test"));
    let registry = Registry::new(store, sealer, Arc::new(SystemClock), Arc::new(RandomIds));
    registry.bootstrap().await.unwrap();
    registry.bootstrap().await.unwrap();
    (dir, registry)
}

fn map(name: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta::namespaced("default", name),
        ..ConfigMap::default()
    }
}

fn create(name: &str) -> Write {
    let kind = scheme::of::<ConfigMap>();
    Write::Create {
        kind,
        namespace: "default".to_owned(),
        object: json!({"metadata": {"name": name}}),
    }
}

#[tokio::test]
async fn a_transaction_does_all_or_nothing() {
    let (_dir, registry) = registry().await;
    registry.create_as(&map("taken")).await.unwrap();
    let before = registry.store().current_revision().await.unwrap();
    let writes = vec![create("a"), create("b"), create("taken")];
    let error = registry
        .transact(writes, &WriteOptions::default())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::AlreadyExists { name, .. } if name == "taken"));
    assert_eq!(registry.store().current_revision().await.unwrap(), before);
    assert!(
        registry
            .get_as::<ConfigMap>("default", "a")
            .await
            .unwrap()
            .is_none()
    );
    let kind = scheme::of::<ConfigMap>();
    let writes = vec![
        create("a"),
        create("b"),
        Write::Delete {
            kind,
            namespace: "default".to_owned(),
            name: "taken".to_owned(),
            preconditions: Preconditions::default(),
        },
    ];
    let done = registry.transact(writes, &WriteOptions::default()).await.unwrap();
    let effects: Vec<Effect> = done.iter().map(|written| written.effect).collect();
    assert_eq!(effects, [Effect::Created, Effect::Created, Effect::Deleted]);
    let (left, _) = registry.list_as::<ConfigMap>(Some("default")).await.unwrap();
    assert_eq!(
        left.iter()
            .map(|map| map.metadata.name.as_str())
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
}

#[tokio::test]
async fn a_check_guards_a_transaction() {
    let (_dir, registry) = registry().await;
    let guard = registry.create_as(&map("guard")).await.unwrap();
    let check = |uid: &str| Write::Check {
        kind: scheme::of::<ConfigMap>(),
        namespace: "default".to_owned(),
        name: "guard".to_owned(),
        preconditions: Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        },
    };
    let options = WriteOptions::default();
    let error = registry
        .transact(vec![create("a"), check("other")], &options)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Conflict { .. }));
    registry
        .transact(vec![create("a"), check(&guard.metadata.uid)], &options)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_race_are_all_made() {
    let (_dir, registry) = registry().await;
    registry.create_as(&map("counter")).await.unwrap();
    let add = |registry: Registry| async move {
        for _ in 0..20 {
            let change = |map: &mut ConfigMap| {
                let next = map.data.get("n").map_or(0, |n| n.parse::<u32>().unwrap()) + 1;
                map.data.insert("n".to_owned(), next.to_string());
                true
            };
            registry
                .modify_as::<ConfigMap>("default", "counter", Part::Spec, change)
                .await
                .unwrap();
        }
    };
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(add(registry.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    let counter = registry
        .get_as::<ConfigMap>("default", "counter")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(counter.data["n"], "80");
    assert_eq!(counter.metadata.generation, 81);
}

#[tokio::test]
async fn services_write_spec_and_status_at_once_and_clients_do_not() {
    let (_dir, registry) = registry().await;
    let run = Run {
        metadata: ObjectMeta::namespaced("default", "r"),
        spec: panda_api::RunSpec {
            prompt: "p".to_owned(),
            attempt: 1,
            task_ref: panda_api::TaskRef {
                name: "t".to_owned(),
                uid: "u".to_owned(),
                generation: 1,
            },
            agent: panda_api::AgentChoice {
                name: "a".to_owned(),
                model: String::new(),
            },
            ..Default::default()
        },
        ..Run::default()
    };
    registry.create_as(&run).await.unwrap();
    let bind = |run: &mut Run| {
        run.spec.device_name = "pi".to_owned();
        run.spec.lease_epoch = Some(1);
        run.status.phase = Some(RunPhase::Preparing);
        true
    };
    let error = registry
        .modify_as::<Run>("default", "r", Part::Spec, bind)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let bound = registry
        .modify_as::<Run>("default", "r", Part::All, bind)
        .await
        .unwrap();
    assert_eq!(
        (bound.spec.device_name.as_str(), bound.status.phase),
        ("pi", Some(RunPhase::Preparing))
    );
    assert_eq!(bound.metadata.generation, 2);
    let same = registry
        .modify_as::<Run>("default", "r", Part::All, bind)
        .await
        .unwrap();
    assert_eq!(same.metadata.resource_version, bound.metadata.resource_version);
}

#[tokio::test]
async fn a_generated_name_is_tried_again_and_nothing_is_made_in_a_namespace_that_goes() {
    let (_dir, registry) = registry().await;
    let kind = scheme::of::<ConfigMap>();
    let object = json!({"metadata": {"generateName": "g-"}});
    let made = registry
        .create(kind, "default", object.clone(), &WriteOptions::default())
        .await
        .unwrap();
    assert!(made.object.key.name.starts_with("g-"));
    let namespaces = scheme::of::<Namespace>();
    registry
        .create(
            namespaces,
            "",
            json!({"metadata": {"name": "web"}}),
            &WriteOptions::default(),
        )
        .await
        .unwrap();
    registry
        .delete(
            namespaces,
            "",
            "web",
            Preconditions::default(),
            &WriteOptions::default(),
        )
        .await
        .unwrap();
    let error = registry
        .create(kind, "web", object, &WriteOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.status().code, 403);
    let missing = registry.get_as::<Task>("web", "t").await.unwrap();
    assert!(missing.is_none());
}
