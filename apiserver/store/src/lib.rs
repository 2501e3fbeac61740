//! Storage of the control plane: one ordered log of object versions, and the bytes that do not belong in it.
//!
//! The crate knows keys, revisions and opaque JSON bytes. It must not depend on the API server, on HTTP or on
//! any kind: a body arrives serialised, with a gap into which the store writes the revision, and leaves as
//! shared [`bytes::Bytes`].
//!
//! Contract of every [`Store`]:
//!
//! 1. One monotonic [`Revision`] a store. Every put and every delete takes its own, consecutive.
//! 2. A [`Txn`] is all or nothing. When `commit` returns `Ok` it is durable; when it returns `Err` nothing of
//!    it is visible.
//! 3. A read that begins after a commit returned sees that commit.
//! 4. A list is a snapshot of one revision, and can be continued at that revision until it is compacted.
//! 5. A watch from a revision yields every later change of its scope, once, in revision order, the same for
//!    every watcher; what has been compacted is refused with [`Error::Compacted`], never skipped.
//! 6. A slow watcher is cut with [`Error::SlowWatcher`]; it never slows a writer or another watcher.
//!
//! Module map: `key`, `txn`, `store` (the trait and its data), `watch`, `error`; backends `memory` and
//! `sqlite`; `cacher` (watch cache over any store); `compactor` (automatic compaction); `blob` (blobs and
//! append-only streams); `conformance` (the one test suite for all of them). `hub` is the fan-out that all
//! share, `snapshot` the ordered map with reads at a revision, `change` the rules of one change.

pub mod blob;
pub mod cacher;
mod change;
pub mod compactor;
pub mod conformance;
mod error;
mod hub;
mod key;
pub mod memory;
mod snapshot;
pub mod sqlite;
mod store;
mod txn;
mod watch;

pub use cacher::Cacher;
pub use error::Error;
pub use hub::RingLimits;
pub use key::{Key, Revision, Scope};
pub use memory::Memory;
pub use sqlite::Sqlite;
pub use store::{
    Batch, BoxFuture, Entry, Event, EventKind, HistoryRequest, ListRequest, Page, Store, WatchRequest,
    guaranteed_update,
};
pub use txn::{Body, Change, Committed, Expect, Op, Txn};
pub use watch::Watch;
