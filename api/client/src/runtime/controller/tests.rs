//! Controllers on the fake server, in virtual time.

use std::collections::BTreeMap;
use std::sync::Mutex;

use panda_api::meta::ObjectMeta;
use panda_api::{ConfigMap, Task};

use super::*;
use crate::api::Api;
use crate::fake::Server;
use crate::runtime::informer::{self, Informer};

#[derive(Debug, thiserror::Error)]
#[error("expected by the test")]
struct Expected;

fn task(name: &str) -> Task {
    let mut task = Task {
        metadata: ObjectMeta::namespaced("web", name),
        ..Task::default()
    };
    task.spec.prompt = "x".into();
    task
}

/// Tasks and config maps, informed; ends with its owner.
struct Bench {
    server: Server,
    tasks: InformerHandle<Task>,
    maps: InformerHandle<ConfigMap>,
    token: CancellationToken,
    running: JoinSet<()>,
}

fn bench() -> Bench {
    let server = Server::default();
    let token = CancellationToken::new();
    let mut running = JoinSet::new();
    let tasks = Informer::new(Api::<Task>::all(server.client()), informer::Config::default());
    let maps = Informer::new(
        Api::<ConfigMap>::all(server.client()),
        informer::Config::default(),
    );
    let (task_handle, map_handle) = (tasks.handle(), maps.handle());
    running.spawn(tasks.run(token.clone()));
    running.spawn(maps.run(token.clone()));
    Bench {
        server,
        tasks: task_handle,
        maps: map_handle,
        token,
        running,
    }
}

/// The keys reconciled, with the failures before each and the virtual second.
type Log = Arc<Mutex<Vec<(String, u32, u64)>>>;

#[derive(Default)]
struct Counts(Mutex<BTreeMap<metrics::Result, u32>>);

impl Metrics for Counts {
    fn reconciled(&self, _: &str, result: metrics::Result, _: Duration) {
        *self.0.lock().unwrap().entry(result).or_default() += 1;
    }
}

#[tokio::test(start_paused = true)]
async fn changes_of_a_child_reconcile_its_owner_once_caches_are_full() {
    let mut bench = bench();
    let owner = bench.server.create(&task("a")).unwrap();
    bench.server.create(&task("b")).unwrap();
    let log = Log::default();
    let (seen, tasks, maps) = (Arc::clone(&log), bench.tasks.clone(), bench.maps.clone());
    let controller = Controller::new("test", Config::default())
        .reconciles(&bench.tasks)
        .owns::<Task, ConfigMap>(&bench.maps);
    bench.running.spawn(controller.run(
        move |request| {
            assert!(tasks.store().is_synced() && maps.store().is_synced());
            seen.lock()
                .unwrap()
                .push((request.key.to_string(), request.failures, 0));
            async { Ok::<_, Expected>(Outcome::Done) }
        },
        bench.token.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let child = ConfigMap {
        metadata: ObjectMeta {
            owner_references: vec![owner.controller_reference()],
            ..ObjectMeta::namespaced("web", "child")
        },
        ..ConfigMap::default()
    };
    bench.server.create(&child).unwrap();
    let stranger = ConfigMap {
        metadata: ObjectMeta::namespaced("web", "stranger"),
        ..ConfigMap::default()
    };
    bench.server.create(&stranger).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    bench.server.delete::<ConfigMap>("web", "child").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let keys: Vec<_> = log.lock().unwrap().iter().map(|e| e.0.clone()).collect();
    assert_eq!(keys, ["web/a", "web/b", "web/a", "web/a"]);
}

#[tokio::test(start_paused = true)]
async fn failures_and_panics_are_repeated_with_back_off_and_counted() {
    let mut bench = bench();
    bench.server.create(&task("a")).unwrap();
    let log = Log::default();
    let counts = Arc::new(Counts::default());
    let config = Config {
        backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
        metrics: Arc::clone(&counts) as Arc<dyn Metrics>,
        ..Config::default()
    };
    let controller = Controller::new("test", config).reconciles(&bench.tasks);
    let (seen, start) = (Arc::clone(&log), Instant::now());
    bench.running.spawn(controller.run(
        move |request| {
            let failures = request.failures;
            let at = start.elapsed().as_secs();
            seen.lock().unwrap().push((request.key.to_string(), failures, at));
            async move {
                match failures {
                    0 => panic!("expected by the test"),
                    1 | 2 => Err(Expected),
                    3 => Ok(Outcome::Again),
                    _ => Ok(Outcome::After(Duration::from_secs(1000))),
                }
            }
        },
        bench.token.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(900)).await;
    let failures: Vec<u32> = log.lock().unwrap().iter().map(|e| e.1).collect();
    assert_eq!(failures, [0, 1, 2, 3, 4]);
    let last = log.lock().unwrap()[4].2;
    assert!(
        (7..=15).contains(&last),
        "1 + 2 + 4 + 8 seconds, each at least half: {last}"
    );
    let expected = [
        (metrics::Result::Requeued, 1),
        (metrics::Result::Retried, 1),
        (metrics::Result::Failed, 2),
        (metrics::Result::Panicked, 1),
    ];
    assert_eq!(*counts.0.lock().unwrap(), BTreeMap::from(expected));
    tokio::time::sleep(Duration::from_secs(200)).await;
    let entry = log.lock().unwrap()[5].clone();
    assert_eq!(
        (entry.1, entry.2 - last),
        (0, 1000),
        "success forgets the failures"
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_is_never_reconciled_twice_at_a_time() {
    let mut bench = bench();
    let busy = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let most = Arc::new(Mutex::new((0, 0)));
    let config = Config {
        workers: 4,
        ..Config::default()
    };
    let controller = Controller::new("test", config).reconciles(&bench.tasks);
    let (at_work, peak) = (Arc::clone(&busy), Arc::clone(&most));
    bench.running.spawn(controller.run(
        move |request| {
            let (at_work, peak) = (Arc::clone(&at_work), Arc::clone(&peak));
            async move {
                let key = request.key.to_string();
                {
                    let mut busy = at_work.lock().unwrap();
                    let mine = busy.entry(key.clone()).or_default();
                    *mine += 1;
                    let mine = *mine;
                    let all: u32 = busy.values().sum();
                    let mut peak = peak.lock().unwrap();
                    *peak = (peak.0.max(mine), peak.1.max(all));
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
                *at_work.lock().unwrap().entry(key).or_default() -= 1;
                Ok::<_, Expected>(Outcome::Done)
            }
        },
        bench.token.clone(),
    ));
    for n in ["a", "b", "c"] {
        bench.server.create(&task(n)).unwrap();
    }
    for i in 0..100 {
        let name = ["a", "b", "c"][i % 3];
        bench
            .server
            .update("web", name, |t: &mut Task| t.status.attempts += 1)
            .unwrap();
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    assert_eq!(*most.lock().unwrap(), (1, 3));
}

#[tokio::test(start_paused = true)]
async fn cancellation_lets_a_reconcile_end_and_drops_one_that_does_not() {
    let mut bench = bench();
    bench.server.create(&task("ends")).unwrap();
    bench.server.create(&task("hangs")).unwrap();
    let ended = Arc::new(AtomicU64::new(0));
    let controller = Controller::new("test", Config::default()).reconciles(&bench.tasks);
    let counter = Arc::clone(&ended);
    let run = controller.run(
        move |request| {
            let counter = Arc::clone(&counter);
            async move {
                let wait = if request.key.name() == "hangs" { 10_000 } else { 5 };
                tokio::time::sleep(Duration::from_secs(wait)).await;
                counter.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Expected>(Outcome::Done)
            }
        },
        bench.token.clone(),
    );
    let start = Instant::now();
    let token = bench.token.clone();
    bench.running.spawn(async move {
        tokio::time::sleep(Duration::from_secs(2)).await;
        token.cancel();
    });
    run.await;
    assert_eq!(ended.load(Ordering::Relaxed), 1);
    assert_eq!(start.elapsed(), Duration::from_secs(12));
    bench.running.join_all().await;
}
