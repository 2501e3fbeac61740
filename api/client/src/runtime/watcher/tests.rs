//! The watcher against the fake server, in virtual time: B13's kind.

use std::pin::Pin;

use panda_api::meta::{ObjectMeta, Reason, Status};
use panda_api::{ConfigMap, Task};

use super::*;
use crate::fake::{self, Effect, Fault, Server};

type Events = Pin<Box<dyn Stream<Item = Result<Event<Task>, Error>> + Send>>;

fn task(name: &str) -> Task {
    let mut task = Task {
        metadata: ObjectMeta::namespaced("web", name),
        ..Task::default()
    };
    task.spec.prompt = "x".into();
    task
}

fn watch(server: &Server) -> Events {
    let config = Config {
        page_size: 2,
        ..Config::default()
    };
    Box::pin(watcher(Api::all(server.client()), config))
}

fn name(event: &Event<Task>) -> String {
    match event {
        Event::Init => "init".into(),
        Event::InitDone => "done".into(),
        Event::InitApply(t) => format!("list {}", t.metadata.name),
        Event::Apply(t) => format!("apply {}", t.metadata.name),
        Event::Delete(t) => format!("delete {}", t.metadata.name),
        Event::Undecodable(bad) => format!("bad {}", bad.metadata.name),
    }
}

/// The next `n` events; errors are left out.
async fn take(events: &mut Events, n: usize) -> Vec<String> {
    let mut names = Vec::new();
    while names.len() < n {
        if let Ok(event) = events.next().await.expect("a watcher never ends") {
            names.push(name(&event));
        }
    }
    names
}

fn count(server: &Server, verb: &str) -> usize {
    server
        .seen()
        .iter()
        .filter(|s| s.verb == verb && s.resource == "tasks")
        .count()
}

/// Lets virtual time pass while the watcher is being polled; nothing may come of it.
async fn idle(events: &mut Events, time: Duration) {
    let next = tokio::time::timeout(time, events.next()).await;
    assert!(next.is_err(), "unexpected {next:?}");
}

fn noise(server: &Server, events: usize) {
    let map = ConfigMap {
        metadata: ObjectMeta::namespaced("elsewhere", "noise"),
        ..ConfigMap::default()
    };
    drop(server.create(&map));
    for i in 0..events {
        let write = |m: &mut ConfigMap| drop(m.data.insert("n".into(), i.to_string()));
        server.update("elsewhere", "noise", write).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn lists_in_pages_then_follows() {
    let server = Server::default();
    for n in ["a", "b", "c"] {
        server.create(&task(n)).unwrap();
    }
    let mut events = watch(&server);
    assert_eq!(
        take(&mut events, 5).await,
        ["init", "list a", "list b", "list c", "done"]
    );
    server.create(&task("d")).unwrap();
    server
        .update("web", "a", |t: &mut Task| t.status.attempts = 1)
        .unwrap();
    server.delete::<Task>("web", "b").unwrap();
    assert_eq!(take(&mut events, 3).await, ["apply d", "apply a", "delete b"]);
    assert_eq!(count(&server, "list"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_cut_stream_goes_on_where_it_was() {
    let server = Server::default();
    let mut events = watch(&server);
    take(&mut events, 2).await;
    server.create(&task("a")).unwrap();
    take(&mut events, 1).await;
    server.cut_watches();
    server.create(&task("b")).unwrap();
    server.delete::<Task>("web", "a").unwrap();
    assert_eq!(take(&mut events, 2).await, ["apply b", "delete a"]);
    assert_eq!(count(&server, "list"), 1);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_carry_a_quiet_watch_over_a_compaction() {
    let server = Server::default();
    let mut events = watch(&server);
    take(&mut events, 2).await;
    noise(&server, 500);
    idle(&mut events, Duration::from_secs(61)).await;
    server.compact();
    server.cut_watches();
    server.create(&task("a")).unwrap();
    assert_eq!(take(&mut events, 1).await, ["apply a"]);
    assert_eq!(count(&server, "list"), 1);
}

async fn too_old(gone_as_status: bool) {
    let server = Server::new(fake::Config {
        gone_as_status,
        ..fake::Config::default()
    });
    server.create(&task("a")).unwrap();
    let mut events = watch(&server);
    take(&mut events, 3).await;
    idle(&mut events, Duration::from_millis(1)).await;
    // While the client is cut off, everything it could go on from is forgotten.
    server.cut_watches();
    server.delete::<Task>("web", "a").unwrap();
    server.create(&task("b")).unwrap();
    noise(&server, 500);
    server.compact();
    assert_eq!(take(&mut events, 3).await, ["init", "list b", "done"]);
    server.create(&task("c")).unwrap();
    assert_eq!(take(&mut events, 1).await, ["apply c"]);
    assert_eq!(count(&server, "list"), 2, "lists again once");
    assert_eq!(count(&server, "watch"), 3, "one refusal is enough");
}

#[tokio::test(start_paused = true)]
async fn a_version_too_old_means_one_new_list() {
    too_old(false).await;
    too_old(true).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_lost_between_pages_is_listed_anew() {
    let server = Server::default();
    for n in ["a", "b", "c"] {
        server.create(&task(n)).unwrap();
    }
    let mut events = watch(&server);
    assert_eq!(take(&mut events, 3).await, ["init", "list a", "list b"]);
    server.compact();
    assert_eq!(
        take(&mut events, 5).await,
        ["init", "list a", "list b", "list c", "done"]
    );
}

#[tokio::test(start_paused = true)]
async fn refusals_are_waited_out_with_growing_delays() {
    let server = Server::default();
    let broken = Effect::Refuse(Box::new(Status::failure(Reason::InternalError, "no")));
    server.inject(Fault::on("list", "tasks", broken).times(6));
    let start = Instant::now();
    let mut events = watch(&server);
    let mut errors = 0;
    while let Some(Err(_)) = events.next().await {
        errors += 1;
    }
    assert_eq!(errors, 6);
    let total = start.elapsed();
    assert!(
        total > Duration::from_secs(10) && total < Duration::from_secs(90),
        "virtual time: {total:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_always_refused_ends_in_a_new_list_not_in_a_loop() {
    let server = Server::default();
    let mut events = watch(&server);
    take(&mut events, 2).await;
    idle(&mut events, Duration::from_millis(1)).await;
    let broken = Effect::Refuse(Box::new(Status::failure(Reason::InternalError, "no")));
    server.inject(Fault::on("watch", "tasks", broken).times(5));
    server.cut_watches();
    server.create(&task("a")).unwrap();
    assert_eq!(take(&mut events, 3).await, ["init", "list a", "done"]);
    assert_eq!(count(&server, "list"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_with_older_versions_is_listed_again() {
    let server = Server::default();
    server.create(&task("a")).unwrap();
    let mut events = watch(&server);
    take(&mut events, 3).await;
    idle(&mut events, Duration::from_millis(1)).await;
    let future = Effect::Refuse(Box::new(Status::failure(
        Reason::Timeout,
        "Too large resource version",
    )));
    server.inject(Fault::on("watch", "tasks", future).times(5));
    server.cut_watches();
    assert_eq!(take(&mut events, 3).await, ["init", "list a", "done"]);
}
