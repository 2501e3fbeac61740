//! Random histories: every store, and the watch cache over each, behaves like a map and a list.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::future::Future;
use std::sync::Arc;

use panda_store::cacher::{self, Cacher};
use panda_store::conformance::{ModelChange, ModelExpect, ModelOp, ModelStep, follows_the_model};
use panda_store::sqlite::{Config, Sqlite};
use panda_store::{Memory, Store};
use proptest::prelude::*;
use tokio_util::sync::CancellationToken;

fn operation() -> impl Strategy<Value = ModelOp> {
    let expect = prop_oneof![
        3 => Just(ModelExpect::Absent),
        2 => Just(ModelExpect::Any),
        5 => Just(ModelExpect::Current),
        1 => Just(ModelExpect::Stale),
    ];
    let change = prop_oneof![
        6 => Just(ModelChange::Put),
        3 => Just(ModelChange::Delete),
        1 => Just(ModelChange::Check),
    ];
    (0_u8..12, expect, change, 0_u64..1000).prop_map(|(key, expect, change, payload)| ModelOp {
        key,
        expect,
        change,
        payload,
    })
}

fn steps() -> impl Strategy<Value = Vec<ModelStep>> {
    let step = prop_oneof![
        12 => proptest::collection::vec(operation(), 1..4).prop_map(ModelStep::Commit),
        1 => any::<u8>().prop_map(ModelStep::Compact),
    ];
    proptest::collection::vec(step, 1..40)
}

fn run(work: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(work);
}

async fn cached(inner: impl Store, steps: &[ModelStep]) {
    let (store, feed) = Cacher::build(Arc::new(inner), cacher::Config::default());
    let token = CancellationToken::new();
    let feed = tokio::spawn(feed.run(token.clone()));
    follows_the_model(&(Arc::new(store) as Arc<dyn Store>), steps).await;
    token.cancel();
    feed.await.unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn memory_follows_the_model(steps in steps()) {
        run(async { follows_the_model(&(Arc::new(Memory::new("uid")) as Arc<dyn Store>), &steps).await });
    }

    #[test]
    fn the_watch_cache_follows_the_model(steps in steps()) {
        run(cached(Memory::new("uid"), &steps));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sqlite_follows_the_model(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&Config::new(dir.path()), "uid").unwrap();
        run(async { follows_the_model(&(Arc::new(store) as Arc<dyn Store>), &steps).await });
    }

    #[test]
    fn the_watch_cache_over_sqlite_follows_the_model(steps in steps()) {
        let dir = tempfile::tempdir().unwrap();
        let store = Sqlite::open(&Config::new(dir.path()), "uid").unwrap();
        run(cached(store, &steps));
    }
}
