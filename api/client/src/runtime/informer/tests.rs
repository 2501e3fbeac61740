//! The informer's contract, over random histories with cuts, compaction, lag and refusals.

use std::collections::BTreeMap;

use panda_api::Task;
use panda_api::meta::{ObjectMeta, Reason, Status};
use proptest::prelude::*;
use tokio::task::JoinSet;

use super::*;
use crate::backoff::Backoff;
use crate::fake::{self, Effect, Fault, Server};
use crate::runtime::ObjectRef;

fn task(name: u8) -> Task {
    let mut task = Task {
        metadata: ObjectMeta::namespaced("web", format!("t{name}")),
        ..Task::default()
    };
    task.spec.prompt = "x".into();
    task
}

#[derive(Clone, Debug)]
enum Op {
    Create(u8),
    Update(u8),
    Delete(u8),
    Cut,
    Compact,
    Lag(u64),
    Refuse(&'static str, Loss),
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
enum Loss {
    Internal,
    Unreachable,
    Reply,
}

fn op() -> impl Strategy<Value = Op> {
    let name = 0..4u8;
    let loss = prop_oneof![Just(Loss::Internal), Just(Loss::Unreachable), Just(Loss::Reply)];
    prop_oneof![
        5 => name.clone().prop_map(Op::Create),
        5 => name.clone().prop_map(Op::Update),
        4 => name.prop_map(Op::Delete),
        2 => Just(Op::Cut),
        2 => Just(Op::Compact),
        1 => prop_oneof![Just(0), 1..5000u64].prop_map(Op::Lag),
        1 => (prop_oneof![Just("list"), Just("watch")], loss).prop_map(|(v, l)| Op::Refuse(v, l)),
        6 => (0..3000u64).prop_map(Op::Pass),
    ]
}

fn apply(server: &Server, op: &Op) {
    // Refusals (the object exists, or does not) are part of the history.
    match op {
        Op::Create(n) => drop(server.create(&task(*n))),
        Op::Update(n) => drop(server.update("web", &format!("t{n}"), |t: &mut Task| t.status.attempts += 1)),
        Op::Delete(n) => drop(server.delete::<Task>("web", &format!("t{n}"))),
        Op::Cut => server.cut_watches(),
        Op::Compact => server.compact(),
        Op::Lag(ms) => server.set_watch_lag(Duration::from_millis(*ms)),
        Op::Refuse(verb, loss) => {
            let effect = match loss {
                Loss::Internal => Effect::Refuse(Box::new(Status::failure(Reason::InternalError, "no"))),
                Loss::Unreachable => Effect::Unreachable,
                Loss::Reply => Effect::LoseReply,
            };
            server.inject(Fault::on(verb, "tasks", effect).times(2));
        }
        Op::Pass(_) => {}
    }
}

/// What handlers were told: the change's name, and the versions before and after.
type Told = Arc<Mutex<Vec<(&'static str, ObjectRef, String, u64)>>>;

fn version(task: &Task) -> u64 {
    task.metadata.resource_version.parse().unwrap()
}

fn listen(handle: &InformerHandle<Task>) -> Told {
    let told = Told::default();
    let ears = Arc::clone(&told);
    handle.on_change(move |change| {
        let object = change.object();
        let what = match change {
            Change::Added(_) => "added",
            Change::Updated { .. } => "updated",
            Change::Deleted(_) => "deleted",
        };
        let meta = &object.metadata;
        let entry = (what, ObjectRef::of(meta), meta.uid.clone(), version(object));
        ears.lock().unwrap().push(entry);
    });
    told
}

async fn history(ops: Vec<Op>, gone_as_status: bool, late: usize) -> Result<(), TestCaseError> {
    let server = Server::new(fake::Config {
        gone_as_status,
        ..fake::Config::default()
    });
    let config = Config {
        watcher: watcher::Config {
            page_size: 2,
            watch_timeout: Duration::from_secs(20),
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(2)),
            ..watcher::Config::default()
        },
        ..Config::default()
    };
    let informer = Informer::new(Api::<Task>::all(server.client()), config);
    let handle = informer.handle();
    let first = listen(&handle);
    let mut second = None;
    let token = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(informer.run(token.clone()));
    for (index, op) in ops.iter().enumerate() {
        if index == late {
            second = Some(listen(&handle));
        }
        apply(&server, op);
        match op {
            Op::Pass(ms) => tokio::time::sleep(Duration::from_millis(*ms)).await,
            _ => tokio::task::yield_now().await,
        }
    }
    server.set_watch_lag(Duration::ZERO);
    // Convergence, in virtual time: everything pending is due long before.
    let wanted = |s: &Server| s.list::<Task>();
    for _ in 0..600 {
        let cached: Vec<Task> = handle.store().list().iter().map(|t| (**t).clone()).collect();
        if handle.store().is_synced() && cached == wanted(&server) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let cached: Vec<Task> = handle.store().list().iter().map(|t| (**t).clone()).collect();
    prop_assert_eq!(&cached, &wanted(&server));

    let mut truth: BTreeMap<(ObjectRef, String), Vec<u64>> = BTreeMap::new();
    for (_, t) in server.history::<Task>() {
        let key = (ObjectRef::of(&t.metadata), t.metadata.uid.clone());
        truth.entry(key).or_default().push(version(&t));
    }
    for told in [Some(first), second].into_iter().flatten() {
        check(&told.lock().unwrap(), &truth, &cached)?;
    }
    token.cancel();
    tasks.join_all().await;
    Ok(())
}

fn check(
    told: &[(&'static str, ObjectRef, String, u64)],
    truth: &BTreeMap<(ObjectRef, String), Vec<u64>>,
    cached: &[Task],
) -> Result<(), TestCaseError> {
    let mut known: BTreeMap<ObjectRef, (String, u64)> = BTreeMap::new();
    for (what, key, uid, version) in told {
        let states = truth.get(&(key.clone(), uid.clone()));
        prop_assert!(
            states.is_some_and(|s| s.contains(version)),
            "{key} never was {uid} at {version}"
        );
        match (*what, known.get(key)) {
            ("added", None) => {}
            ("updated", Some((old_uid, old))) => {
                prop_assert!(
                    old_uid == uid && old < version,
                    "{key} went from {old} to {version}"
                );
            }
            ("deleted", Some((old_uid, old))) => {
                prop_assert!(
                    old_uid == uid && old <= version,
                    "{key} was {old}, deleted at {version}"
                );
            }
            (what, before) => prop_assert!(false, "{key} {what} after {before:?}"),
        }
        if *what == "deleted" {
            known.remove(key);
        } else {
            known.insert(key.clone(), (uid.clone(), *version));
        }
    }
    let finally: Vec<_> = known.into_iter().collect();
    let wanted: Vec<_> = cached
        .iter()
        .map(|t| (ObjectRef::of(&t.metadata), (t.metadata.uid.clone(), version(t))))
        .collect();
    prop_assert_eq!(finally, wanted);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn keeps_its_contract_over_any_history(
        ops in prop::collection::vec(op(), 1..60),
        gone_as_status in any::<bool>(),
        late in 0..60usize,
    ) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(history(ops, gone_as_status, late))?;
    }
}

#[tokio::test(start_paused = true)]
async fn resync_reports_every_object_again() {
    let server = Server::default();
    server.create(&task(1)).unwrap();
    let config = Config {
        resync: Some(Duration::from_secs(10)),
        ..Config::default()
    };
    let informer = Informer::new(Api::<Task>::all(server.client()), config);
    let told = listen(&informer.handle());
    let mut tasks = JoinSet::new();
    tasks.spawn(informer.run(CancellationToken::new()));
    tokio::time::sleep(Duration::from_secs(35)).await;
    let told: Vec<_> = told.lock().unwrap().iter().map(|t| t.0).collect();
    assert!(
        told.len() >= 4 && told[0] == "added" && told[1..].iter().all(|t| *t == "updated"),
        "{told:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_does_not_stop_the_others() {
    let server = Server::default();
    let informer = Informer::new(Api::<Task>::all(server.client()), Config::default());
    let handle = informer.handle();
    handle.on_change(|_| panic!("expected by the test"));
    let told = listen(&handle);
    let mut tasks = JoinSet::new();
    tasks.spawn(informer.run(CancellationToken::new()));
    assert!(handle.store().wait_synced().await);
    server.create(&task(1)).unwrap();
    server.create(&task(2)).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(told.lock().unwrap().len(), 2);
}
