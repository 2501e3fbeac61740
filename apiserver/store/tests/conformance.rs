//! Every store, and the watch cache over each, against the one suite.

#![expect(clippy::unwrap_used, reason = "fixtures of tests")]

use std::sync::Arc;

use panda_store::cacher::{self, Cacher};
use panda_store::conformance::Fixture;
use panda_store::sqlite::{Config, Sqlite};
use panda_store::{Memory, Store};
use tokio_util::sync::{CancellationToken, DropGuard};

fn over<S: Store>(inner: S, mut guards: Vec<Box<dyn std::any::Any + Send>>) -> Fixture {
    let (store, feed) = Cacher::build(Arc::new(inner), cacher::Config::default());
    let token = CancellationToken::new();
    let guard: DropGuard = token.clone().drop_guard();
    tokio::spawn(feed.run(token));
    guards.push(Box::new(guard));
    Fixture {
        store: Arc::new(store),
        guards,
    }
}

fn sqlite() -> (Sqlite, Vec<Box<dyn std::any::Any + Send>>) {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&Config::new(dir.path().join("data")), "uid").unwrap();
    (store, vec![Box::new(dir)])
}

mod memory {
    use super::*;

    async fn fixture() -> Fixture {
        Fixture {
            store: Arc::new(Memory::new("uid")),
            guards: Vec::new(),
        }
    }

    panda_store::store_conformance!(fixture);
}

mod durable {
    use super::*;

    async fn fixture() -> Fixture {
        let (store, guards) = sqlite();
        Fixture {
            store: Arc::new(store),
            guards,
        }
    }

    panda_store::store_conformance!(fixture);
}

mod cached_memory {
    use super::*;

    async fn fixture() -> Fixture {
        over(Memory::new("uid"), Vec::new())
    }

    panda_store::store_conformance!(fixture);
}

mod cached_durable {
    use super::*;

    async fn fixture() -> Fixture {
        let (store, guards) = sqlite();
        over(store, guards)
    }

    panda_store::store_conformance!(fixture);
}
