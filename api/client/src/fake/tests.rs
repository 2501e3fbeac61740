//! The fake behaves as the real server's rules say.

use futures::StreamExt;
use panda_api::meta::ObjectMeta;
use panda_api::{Device, Secret, Task};

use super::*;
use crate::api::{Api, Deletion, DynamicApi};
use crate::discovery::Discovery;
use crate::params::{DeleteParams, ListParams, Preconditions, WatchParams, WriteParams};
use crate::resource::{ApiResource, PartialObject};
use crate::watch::WatchEvent;

fn task(name: &str) -> Task {
    let mut task = Task {
        metadata: ObjectMeta::namespaced("web", name),
        ..Task::default()
    };
    task.spec.prompt = "do it".into();
    task
}

fn tasks(server: &Server) -> Api<Task> {
    Api::namespaced(server.client(), "web")
}

fn write() -> WriteParams {
    WriteParams::default()
}

#[tokio::test]
async fn versions_and_generations_follow_the_rules() {
    let server = Server::default();
    let api = tasks(&server);
    let created = api.create(&task("a"), &write()).await.unwrap();
    assert_eq!(created.metadata.generation, 1);
    assert!(!created.metadata.uid.is_empty() && created.metadata.creation_timestamp.is_some());

    let same = api.replace("a", &created, &write()).await.unwrap();
    assert_eq!(same.metadata.resource_version, created.metadata.resource_version);

    let patch = serde_json::json!({"metadata": {"labels": {"x": "y"}}});
    let labelled = api.patch_merge("a", &patch, &write()).await.unwrap();
    assert_eq!(labelled.metadata.generation, 1);
    assert_ne!(
        labelled.metadata.resource_version,
        created.metadata.resource_version
    );

    let stale = api.replace("a", &created, &write()).await.unwrap_err();
    assert!(stale.is_conflict(), "{stale}");

    let mut changed = labelled.clone();
    changed.spec.prompt = "something else".into();
    changed.status.attempts = 7;
    let changed = api.replace("a", &changed, &write()).await.unwrap();
    assert_eq!((changed.metadata.generation, changed.status.attempts), (2, 0));

    let mut reported = changed.clone();
    reported.status.attempts = 3;
    reported.spec.prompt = "not through here".into();
    let reported = api.replace_status("a", &reported, &write()).await.unwrap();
    assert_eq!((reported.metadata.generation, reported.status.attempts), (2, 3));
    assert_eq!(reported.spec.prompt, "something else");
}

#[tokio::test]
async fn refusals_have_the_servers_reasons() {
    let server = Server::default();
    let api = tasks(&server);
    api.create(&task("a"), &write()).await.unwrap();
    assert!(
        api.create(&task("a"), &write())
            .await
            .unwrap_err()
            .is_already_exists()
    );
    assert!(api.get("b").await.unwrap_err().is_not_found());
    assert!(api.get_opt("b").await.unwrap().is_none());
    let invalid = api.create(&task("Not_A_Name"), &write()).await.unwrap_err();
    let causes = &invalid.status().unwrap().details.as_ref().unwrap().causes;
    assert!(causes.iter().any(|c| c.field == "metadata.name"), "{causes:?}");
    assert!(
        Api::<Task>::all(server.client()).get("a").await.is_err(),
        "a name needs a namespace"
    );
}

#[tokio::test]
async fn dry_run_stores_nothing() {
    let server = Server::default();
    let params = WriteParams {
        dry_run: true,
        ..write()
    };
    tasks(&server).create(&task("a"), &params).await.unwrap();
    assert!(server.list::<Task>().is_empty());
    assert_eq!(server.revision(), 1);
}

#[tokio::test]
async fn deletion_waits_for_finalizers_and_preconditions() {
    let server = Server::default();
    let api = tasks(&server);
    let mut held = task("held");
    held.metadata.finalizers = vec!["panda.dev/hold".into()];
    let held = api.create(&held, &write()).await.unwrap();
    let wrong = DeleteParams::uid("another");
    assert!(api.delete("held", &wrong).await.unwrap_err().is_conflict());
    let stale = DeleteParams {
        preconditions: Some(Preconditions {
            uid: None,
            resource_version: Some("0".into()),
        }),
        ..DeleteParams::default()
    };
    assert!(api.delete("held", &stale).await.unwrap_err().is_conflict());

    let Deletion::Pending(pending) = api
        .delete("held", &DeleteParams::uid(held.metadata.uid))
        .await
        .unwrap()
    else {
        panic!("a finalizer holds it");
    };
    assert!(pending.metadata.deletion_timestamp.is_some());
    assert_eq!(pending.metadata.generation, 2);
    let patch = serde_json::json!({"metadata": {"finalizers": null}});
    api.patch_merge("held", &patch, &write()).await.unwrap();
    assert!(api.get_opt("held").await.unwrap().is_none());

    api.create(&task("free"), &write()).await.unwrap();
    assert_eq!(
        api.delete("free", &DeleteParams::default()).await.unwrap(),
        Deletion::Done
    );
}

#[tokio::test]
async fn a_paged_list_is_one_snapshot() {
    let server = Server::default();
    for i in 0..7 {
        server.create(&task(&format!("t{i}"))).unwrap();
    }
    let api = tasks(&server);
    let params = ListParams {
        limit: Some(3),
        ..ListParams::default()
    };
    let first = api.list(&params).await.unwrap();
    server.create(&task("t00")).unwrap();
    let next = ListParams {
        continue_token: Some(first.metadata.continue_.clone()),
        ..params.clone()
    };
    let second = api.list(&next).await.unwrap();
    let names: Vec<_> = second.items.iter().map(|t| t.metadata.name.as_str()).collect();
    assert_eq!(names, ["t3", "t4", "t5"]);
    assert_eq!(second.metadata.resource_version, first.metadata.resource_version);
    assert_eq!(api.list_all(&params).await.unwrap().items.len(), 8);
    server.compact();
    assert!(api.list(&next).await.unwrap_err().is_gone());
}

#[tokio::test]
async fn a_watch_with_a_selector_sees_objects_come_and_go() {
    let server = Server::default();
    let api = tasks(&server);
    let params = WatchParams {
        label_selector: Some("team=a".into()),
        ..WatchParams::default()
    };
    let mut events = api.watch(&params).await.unwrap();
    let relabel =
        |team: &'static str| move |t: &mut Task| drop(t.metadata.labels.insert("team".into(), team.into()));
    server.create(&task("x")).unwrap();
    server.update("web", "x", relabel("a")).unwrap();
    server
        .update("web", "x", |t: &mut Task| t.status.attempts = 1)
        .unwrap();
    server.update("web", "x", relabel("b")).unwrap();
    server.update("web", "x", relabel("a")).unwrap();
    server.delete::<Task>("web", "x").unwrap();
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(match events.next().await.unwrap().unwrap() {
            WatchEvent::Added(_) => "added",
            WatchEvent::Modified(_) => "modified",
            WatchEvent::Deleted(_) => "deleted",
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(seen, ["added", "modified", "deleted", "added", "deleted"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_reply_leaves_the_object_behind() {
    let server = Server::default();
    let api = tasks(&server);
    server.inject(Fault::on("create", "tasks", Effect::LoseReply));
    let error = api.create(&task("a"), &write()).await.unwrap_err();
    assert!(error.may_have_happened());
    server.inject(Fault::on("create", "tasks", Effect::LoseRequest));
    assert!(api.create(&task("b"), &write()).await.is_err());
    server.inject(Fault::on("create", "tasks", Effect::Hang));
    assert!(matches!(
        api.create(&task("c"), &write()).await,
        Err(crate::Error::Timeout { .. })
    ));
    let names: Vec<_> = server
        .list::<Task>()
        .into_iter()
        .map(|t| t.metadata.name)
        .collect();
    assert_eq!(names, ["a", "c"]);
    assert_eq!(server.seen().iter().filter(|s| s.verb == "create").count(), 3);
}

#[tokio::test(start_paused = true)]
async fn watches_see_changes_after_the_lag_and_reads_at_once() {
    let server = Server::default();
    server.set_watch_lag(Duration::from_secs(5));
    let api = tasks(&server);
    let mut events = api.watch(&WatchParams::default()).await.unwrap();
    let start = tokio::time::Instant::now();
    server.create(&task("a")).unwrap();
    assert!(api.get_opt("a").await.unwrap().is_some());
    events.next().await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn a_post_handler_answers_for_its_subresource() {
    let server = Server::default();
    server.create(&task("a")).unwrap();
    server.on_post("tasks", "poke", |object, body| {
        object["metadata"]["annotations"] = body.clone();
        Ok(body.clone())
    });
    let body = serde_json::json!({"by": "me"});
    let api = tasks(&server);
    assert_eq!(api.post_subresource("a", "poke", &body).await.unwrap(), body);
    assert_eq!(
        server.get::<Task>("web", "a").unwrap().metadata.annotations["by"],
        "me"
    );
    assert!(
        api.post_subresource("a", "prod", &body)
            .await
            .unwrap_err()
            .is_not_found()
    );
}

#[tokio::test]
async fn discovery_and_dynamic_access_work_for_every_kind() {
    let server = Server::default();
    server.create(&task("a")).unwrap();
    let discovery = Discovery::fetch(&server.client()).await.unwrap();
    assert!(!discovery.resolve("dev").unwrap().namespaced);
    assert_eq!(discovery.resolve("secret").unwrap().kind, Secret::default().kind);
    let resource = discovery.resolve("tk").unwrap().clone();
    assert_eq!(resource.subresources, ["status"]);
    let api = DynamicApi::dynamic(server.client(), resource, Some("web"));
    assert_eq!(api.get("a").await.unwrap()["spec"]["prompt"], "do it");
    let devices = DynamicApi::dynamic(server.client(), ApiResource::of::<Device>(), Some("ignored"));
    assert!(
        devices
            .list(&ListParams::default())
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let metadata = Api::<PartialObject>::metadata(server.client(), ApiResource::of::<Task>());
    assert_eq!(
        metadata.list_all(&ListParams::default()).await.unwrap().items[0].kind,
        "Task"
    );
}
