//! A disk that runs full.
//!
//! Below a limit nothing that adds to it is taken any more: no new objects, no bindings, no logs. What ends things goes on in
//! the space that is left: reports and results of devices, renewals, updates (`cancel` is one) and deletions. Reads are served
//! always. It passes by itself once there is room.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use panda_api::meta::{Reason, StatusDetails};
use prometheus_client::metrics::gauge::Gauge;
use tokio_util::sync::CancellationToken;

use crate::metrics::SharedRegistry;
use crate::request::{RequestInfo, Target, Verb};
use crate::respond::Failure;

/// How often it is looked.
const PERIOD: Duration = Duration::from_secs(1);
/// Seconds after which who is refused may try again.
const RETRY_AFTER: u32 = 10;
/// The limit is never more than this part of the file system: small disks are used, too.
const PART: u64 = 10;

/// Size and free space of a file system, in bytes.
#[derive(Clone, Copy, Debug)]
struct Space {
    total: u64,
    free: u64,
}

/// Whether the data folder's disk is nearly full.
#[derive(Debug)]
pub struct Pressure {
    dir: PathBuf,
    limit: u64,
    low: AtomicBool,
    free: AtomicU64,
    gauge: Gauge,
}

impl Pressure {
    /// Watches the disk of `dir`, where fewer than `limit` bytes are too few.
    pub(crate) fn new(dir: PathBuf, limit: u64, metrics: &SharedRegistry) -> Self {
        let gauge = Gauge::default();
        let mut metrics = metrics.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        metrics.register(
            "panda_apiserver_disk_pressure",
            "1 while the data folder's disk is nearly full and nothing new is taken",
            gauge.clone(),
        );
        Self {
            dir,
            limit,
            low: AtomicBool::new(false),
            free: AtomicU64::new(u64::MAX),
            gauge,
        }
    }

    /// Looks at the disk until cancelled.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut period = tokio::time::interval(PERIOD);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(period.tick()).await.is_some() {
            if let Ok(fs) = rustix::fs::statvfs(&self.dir) {
                self.see(Space {
                    total: fs.f_blocks.saturating_mul(fs.f_frsize),
                    free: fs.f_bavail.saturating_mul(fs.f_frsize),
                });
            }
        }
    }

    /// Decides anew. There is a gap between on and off, so that it does not flap.
    fn see(&self, space: Space) {
        let limit = self.limit.min(space.total / PART);
        let was = self.low.load(Ordering::Relaxed);
        let is = space.free
            < if was {
                limit.saturating_add(limit / 4)
            } else {
                limit
            };
        self.free.store(space.free, Ordering::Relaxed);
        self.low.store(is, Ordering::Relaxed);
        if is == was {
            return;
        }
        self.gauge.set(i64::from(is));
        let dir = self.dir.display();
        if is {
            tracing::error!(%dir, space.free, limit, "DiskPressure: the disk is nearly full, nothing new is taken");
        } else {
            tracing::info!(%dir, space.free, "the disk has room again");
        }
    }

    /// Why nothing new is taken now, for people; none while there is room.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.low.load(Ordering::Relaxed).then(|| {
            format!(
                "DiskPressure: the server's disk is nearly full ({} MiB free at {}), so nothing new is taken; free some space \
                 there, and try again",
                self.free.load(Ordering::Relaxed) >> 20,
                self.dir.display()
            )
        })
    }
}

/// Refuses what would add to a disk that is nearly full.
pub(crate) async fn refuse(State(pressure): State<Arc<Pressure>>, request: Request, next: Next) -> Response {
    let info = request.extensions().get::<Arc<RequestInfo>>();
    match pressure.refusal() {
        Some(why) if info.is_some_and(|info| adds(info)) => {
            let mut status = Failure::new(Reason::ServiceUnavailable, why).status().clone();
            status.details = Some(StatusDetails {
                retry_after_seconds: RETRY_AFTER,
                ..StatusDetails::default()
            });
            Failure::from(status).into_response()
        }
        _ => next.run(request).await,
    }
}

/// Whether a request puts something new into the store that nothing needs to end.
fn adds(info: &RequestInfo) -> bool {
    let Some(target) = info.target.as_ref().filter(|_| info.verb == Verb::Create) else {
        return false;
    };
    !is_needed(target)
}

/// Questions, certificates of devices, and leadership; tokens are not stored.
fn is_needed(target: &Target) -> bool {
    matches!(
        target.group.as_str(),
        "authorization.k8s.io" | "authentication.k8s.io" | "certificates.k8s.io" | "coordination.k8s.io"
    ) || target.subresource.as_deref() == Some("token")
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn it_comes_below_the_limit_and_goes_only_with_some_room() {
        let pressure = Pressure::new("/data".into(), 64 << 20, &SharedRegistry::default());
        let after = |total: u64, free: u64| {
            pressure.see(Space {
                total: total << 20,
                free: free << 20,
            });
            pressure.refusal().is_some()
        };
        assert!(!after(10_000, 65));
        assert!(after(10_000, 63));
        assert!(after(10_000, 79));
        let why = pressure.refusal().unwrap();
        assert!(why.contains("79 MiB free at /data"), "{why}");
        assert!(!after(10_000, 80));
        assert!(!after(10_000, 70));
        // A tenth of a small disk.
        assert!(!after(48, 5));
        assert!(after(48, 4));
    }

    #[test]
    fn only_what_adds_is_refused() {
        let adds =
            |method: Method, path: &str| adds(&RequestInfo::new(&method, &path.parse().unwrap(), false));
        let tasks = "/apis/panda.dev/v1alpha1/namespaces/a/tasks";
        assert!(adds(Method::POST, tasks));
        assert!(adds(
            Method::POST,
            "/apis/panda.dev/v1alpha1/namespaces/a/runs/r/binding"
        ));
        for method in [Method::PUT, Method::PATCH, Method::DELETE, Method::GET] {
            assert!(!adds(method, &format!("{tasks}/t")));
        }
        for path in [
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "/apis/certificates.k8s.io/v1/certificatesigningrequests",
            "/apis/coordination.k8s.io/v1/namespaces/panda-system/leases",
            "/api/v1/namespaces/a/serviceaccounts/x/token",
            "/panda.agentlet.v1.Agentlet/Session",
        ] {
            assert!(!adds(Method::POST, path), "{path}");
        }
    }
}
