//! `coordination.k8s.io/v1`: Lease, whose `leaseTransitions` is the fencing epoch.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::MicroTime;
use crate::resource;

resource! {
    /// Who holds something, and until when it must be renewed.
    ///
    /// Each Device has one in `panda-system` (its heartbeat); each bound Run has one in its own namespace.
    Lease, "coordination.k8s.io", "v1", "leases", namespaced: true {
        /// The lease.
        #[serde(default)]
        spec: LeaseSpec,
    }
}

/// The lease of a [`Lease`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LeaseSpec {
    /// Who holds it: the device uid for Runs and Devices; empty once it was taken away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder_identity: Option<String>,
    /// Seconds without renewal after which others may take it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_duration_seconds: Option<i32>,
    /// When the holder got it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acquire_time: Option<MicroTime>,
    /// When the holder last renewed it; for people, decisions use the observer's monotonic clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_time: Option<MicroTime>,
    /// The fencing epoch: 1 at binding, one more each time the lease is taken away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_transitions: Option<i32>,
}
