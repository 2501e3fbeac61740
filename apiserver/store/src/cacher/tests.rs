use futures::future::BoxFuture;
use std::sync::atomic::AtomicBool;
use tokio_util::sync::DropGuard;

use super::*;
use crate::conformance::{TASKS, create, key, list, next, refusal, take, watch};
use crate::{Memory, Op, sqlite};

const SMALL: RingLimits = RingLimits {
    events_per_resource: 4,
    bytes: 1 << 20,
};

fn cached<S: Store>(inner: &Arc<S>, ring: RingLimits) -> (Cacher<S>, DropGuard) {
    with_patience(inner, ring, Duration::from_secs(20))
}

fn with_patience<S: Store>(inner: &Arc<S>, ring: RingLimits, patience: Duration) -> (Cacher<S>, DropGuard) {
    let config = Config { ring, patience };
    let (cacher, feed) = Cacher::build(Arc::clone(inner), config);
    let token = CancellationToken::new();
    tokio::spawn(feed.run(token.clone()));
    (cacher, token.drop_guard())
}

async fn creates(store: &dyn Store, namespace: &str, count: u64) {
    for n in 0..count {
        create(store, &key(namespace, &format!("n{n:03}")), n).await;
    }
}

#[tokio::test]
async fn a_slow_watcher_is_cut_and_nobody_else() {
    let inner = Arc::new(Memory::new("uid"));
    let (cacher, _guard) = cached(&inner, SMALL);
    cacher.ready().await.unwrap();
    let scope = || Scope::namespace(TASKS, "busy");
    let mut slow = watch(&cacher, scope(), Revision::ZERO).await;
    let mut fast = watch(&cacher, scope(), Revision::ZERO).await;
    let mut idle = watch(&cacher, Scope::namespace(TASKS, "idle"), Revision::ZERO).await;
    assert!(slow.try_next().is_none() && idle.try_next().is_none());
    for n in 0..40 {
        create(&cacher, &key("busy", &format!("n{n}")), n).await;
        assert_eq!(next(&mut fast).await.revision, Revision(n + 1));
    }
    let cut = slow.next().await;
    assert!(
        matches!(&cut, Some(Err(error @ Error::SlowWatcher)) if error.is_retryable()),
        "{cut:?}"
    );
    assert!(slow.next().await.is_none());
    // The ring has moved on by far more than it holds, but nothing that concerns this one was lost.
    assert_eq!(idle.progress(), Revision(40));
    create(&cacher, &key("idle", "one"), 1).await;
    assert_eq!(next(&mut idle).await.revision, Revision(41));
}

#[tokio::test]
async fn watches_below_the_ring_are_served_from_the_history() {
    let inner = Arc::new(Memory::new("uid"));
    creates(&*inner, "default", 30).await;
    let (cacher, _guard) = cached(&inner, SMALL);
    let mut watch = watch(&cacher, Scope::resource(TASKS), Revision(2)).await;
    create(&cacher, &key("default", "late"), 1).await;
    let seen: Vec<u64> = take(&mut watch, 29)
        .await
        .iter()
        .map(|event| event.revision.0)
        .collect();
    assert_eq!(seen, (3..=31).collect::<Vec<u64>>());
    assert_eq!(
        list(&cacher, Scope::all(), Some(Revision(5)))
            .await
            .unwrap()
            .len(),
        5
    );
    inner.compact(Revision(10)).await.unwrap();
    let refused = refusal(&cacher, Scope::all(), Revision(2)).await;
    assert!(
        matches!(refused, Error::Compacted { oldest: Revision(9) }),
        "{refused:?}"
    );
}

// One thread, and commits in memory that do not wait: the feed cannot run until the test lets it.
#[tokio::test]
async fn a_cut_feed_goes_on_where_it_stopped() {
    let inner = Arc::new(Memory::with_ring("uid", SMALL));
    let (cacher, _guard) = cached(&inner, RingLimits::default());
    create(&*inner, &key("default", "first"), 1).await;
    let mut watch = watch(&cacher, Scope::all(), Revision::ZERO).await;
    next(&mut watch).await;
    creates(&*inner, "default", 50).await;
    assert_eq!(list(&cacher, Scope::all(), None).await.unwrap().len(), 51);
    let seen: Vec<u64> = take(&mut watch, 50)
        .await
        .iter()
        .map(|event| event.revision.0)
        .collect();
    assert_eq!(seen, (2..=51).collect::<Vec<u64>>());
}

#[tokio::test]
async fn a_feed_that_lost_history_loads_anew_and_ends_its_watchers() {
    let inner = Arc::new(Memory::with_ring("uid", SMALL));
    let (cacher, _guard) = cached(&inner, RingLimits::default());
    create(&*inner, &key("default", "first"), 1).await;
    let mut watch = watch(&cacher, Scope::all(), Revision::ZERO).await;
    next(&mut watch).await;
    creates(&*inner, "default", 50).await;
    inner.compact(Revision(51)).await.unwrap();
    assert_eq!(list(&cacher, Scope::all(), None).await.unwrap().len(), 51);
    let ended = watch.next().await;
    assert!(matches!(ended, Some(Err(Error::Compacted { .. }))), "{ended:?}");
}

/// A memory store that does not answer while it is switched off.
struct Switched(Memory, AtomicBool);

impl Store for Switched {
    fn store_uid(&self) -> Arc<str> {
        self.0.store_uid()
    }
    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, Error>> {
        self.0.commit(txn)
    }
    fn get(&self, key: Key) -> BoxFuture<'_, Result<Option<Arc<Entry>>, Error>> {
        self.0.get(key)
    }
    fn list(&self, request: ListRequest) -> BoxFuture<'_, Result<Page, Error>> {
        if self.1.load(Ordering::Relaxed) {
            return futures::future::ready(Err(Error::DiskFull)).boxed();
        }
        self.0.list(request)
    }
    fn watch(&self, request: WatchRequest) -> BoxFuture<'_, Result<Watch, Error>> {
        self.0.watch(request)
    }
    fn history(&self, request: HistoryRequest) -> BoxFuture<'_, Result<Batch, Error>> {
        self.0.history(request)
    }
    fn current_revision(&self) -> BoxFuture<'_, Result<Revision, Error>> {
        self.0.current_revision()
    }
    fn compact(&self, below: Revision) -> BoxFuture<'_, Result<Revision, Error>> {
        self.0.compact(below)
    }
}

#[tokio::test]
async fn reads_wait_for_the_first_load_with_patience() {
    let inner = Arc::new(Switched(Memory::new("uid"), AtomicBool::new(true)));
    creates(&*inner, "default", 3).await;
    let (cacher, guard) = with_patience(&inner, SMALL, Duration::from_millis(20));
    assert!(!cacher.is_ready());
    let answer = cacher.get(key("default", "n001")).await;
    assert!(
        matches!(&answer, Err(error @ Error::NotReady) if error.is_retryable()),
        "{answer:?}"
    );
    inner.1.store(false, Ordering::Relaxed);
    cacher.ready().await.unwrap();
    assert!(cacher.is_ready());
    assert!(cacher.get(key("default", "n001")).await.unwrap().is_some());
    let mut watch = watch(&cacher, Scope::all(), Revision(3)).await;
    drop(guard);
    let ended = watch.next().await;
    assert!(matches!(ended, Some(Err(Error::Closed))), "{ended:?}");
    let answer = cacher.get(key("default", "n001")).await;
    assert!(matches!(answer, Err(Error::Closed)), "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_of_others_are_seen_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Arc::new(sqlite::Sqlite::open(&sqlite::Config::new(dir.path()), "uid").unwrap());
    let (cacher, _guard) = cached(&inner, SMALL);
    for n in 0..200 {
        let key = key("default", &format!("n{n}"));
        let committed = inner
            .commit(Op::create(key.clone(), crate::conformance::body(n)).into())
            .await
            .unwrap();
        assert_eq!(cacher.get(key).await.unwrap(), committed.entries[0]);
    }
}
