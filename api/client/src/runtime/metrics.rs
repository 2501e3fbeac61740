//! What the runtime counts, for whoever keeps the numbers.

use std::time::Duration;

/// How a reconcile ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Result {
    /// Nothing more to do.
    Done,
    /// Again at a later time of its own choice.
    Requeued,
    /// Again after back-off.
    Retried,
    /// It failed; again after back-off.
    Failed,
    /// It panicked; again after back-off.
    Panicked,
}

/// Hooks that are called where things happen. They must return at once.
pub trait Metrics: Send + Sync + 'static {
    /// A cache of `kind` was filled from a list.
    fn listed(&self, kind: &str) {
        let _ = kind;
    }

    /// A list or watch of `kind` failed.
    fn watch_failed(&self, kind: &str) {
        let _ = kind;
    }

    /// An object of `kind` could not be read.
    fn undecodable(&self, kind: &str) {
        let _ = kind;
    }

    /// A reconcile ended.
    fn reconciled(&self, controller: &str, result: Result, took: Duration) {
        let _ = (controller, result, took);
    }

    /// How many keys wait, and how many are being worked on.
    fn queue(&self, controller: &str, waiting: usize, in_work: usize) {
        let _ = (controller, waiting, in_work);
    }
}

/// Counts nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMetrics;

impl Metrics for NoMetrics {}
