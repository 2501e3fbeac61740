//! What the device says about itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::{Clock, Condition, Time, set_condition};
use panda_api::{
    DeviceAgent, DeviceInfo, DeviceSandbox, DeviceStatus, ResourceRequest, SandboxLayer, SandboxProfile,
};
use panda_rpc::v1::DeviceStatusUpdate;
use panda_sandbox::Report;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::boot::Boot;
use crate::config::Config;

/// How often the disk is looked at.
const LOOK: Duration = Duration::from_secs(30);
/// Free disk below which the device takes no more work, in bytes and in percent.
const PRESSURE: (u64, u64) = (512 << 20, 3);
/// Free disk above which it does again.
const RELIEF: (u64, u64) = (1 << 30, 5);
const MIB: u64 = 1 << 20;

/// Keeps the device's status.
#[derive(Debug)]
pub(crate) struct StatusKeeper {
    pub(crate) config: Arc<Config>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) boot: Arc<dyn Boot>,
    /// What a probe of the floor enforced; the error's text when it could not.
    pub(crate) floor: Result<Report, String>,
    pub(crate) conditions: Vec<Condition>,
}

impl StatusKeeper {
    /// Publishes the status whenever it changes, until `token` is cancelled.
    pub(crate) async fn run(
        mut self,
        mut agents: watch::Receiver<Vec<DeviceAgent>>,
        mut running: watch::Receiver<u32>,
        out: watch::Sender<Option<DeviceStatusUpdate>>,
        token: CancellationToken,
    ) {
        loop {
            let found = agents.borrow_and_update().clone();
            let mut status = self.collect(found);
            status.running = Some(*running.borrow_and_update());
            match serde_json::to_vec(&status) {
                Ok(status) => {
                    let update = DeviceStatusUpdate {
                        status,
                        labels: self.labels().into_iter().collect(),
                    };
                    out.send_if_modified(|old| {
                        let changed = old.as_ref() != Some(&update);
                        *old = Some(update);
                        changed
                    });
                }
                Err(error) => tracing::error!(%error, "status of the device cannot be written"),
            }
            tokio::select! {
                changed = agents.changed() => if changed.is_err() { return },
                changed = running.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LOOK) => {}
                () = token.cancelled() => return,
            }
        }
    }

    /// The status as it is now.
    pub(crate) fn collect(&mut self, agents: Vec<DeviceAgent>) -> DeviceStatus {
        let disk = disk(&self.config.work_dir);
        self.conditions(disk);
        let capacity = ResourceRequest {
            cpu: Some(processors().to_string()),
            memory: memory().map(|bytes| format!("{}Mi", bytes / MIB)),
            disk: disk.map(|d| format!("{}Mi", d.total / MIB)),
            gpu_memory: None,
        };
        // Free disk wobbles; in steps of 256 MiB it makes no needless updates.
        let free = disk.map(|d| format!("{}Mi", d.free / MIB / 256 * 256));
        DeviceStatus {
            allocatable: Some(ResourceRequest {
                disk: free,
                ..capacity.clone()
            }),
            capacity: Some(capacity),
            max_runs: Some(self.config.max_runs),
            info: Some(self.info()),
            agents,
            owner: Some(self.config.owner.clone()),
            sandbox: Some(self.sandbox()),
            conditions: self.conditions.clone(),
            ..DeviceStatus::default()
        }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.config.labels.clone();
        labels.insert("kubernetes.io/os".into(), os().into());
        labels.insert("kubernetes.io/arch".into(), arch().into());
        labels.insert("panda.dev/device-class".into(), class().into());
        labels
    }

    fn info(&self) -> DeviceInfo {
        let uname = rustix::system::uname();
        DeviceInfo {
            os: os().into(),
            arch: arch().into(),
            kernel: uname.release().to_string_lossy().into_owned(),
            hostname: uname.nodename().to_string_lossy().into_owned(),
            agentlet_version: env!("CARGO_PKG_VERSION").into(),
            device_class: class().into(),
            boot_id: self.boot.boot_id(),
        }
    }

    fn sandbox(&self) -> DeviceSandbox {
        let (floor, layers) = match &self.floor {
            Ok(report) => (if report.holds() { "Full" } else { "None" }, layers(report)),
            Err(why) => {
                let layer = SandboxLayer {
                    name: "floor".into(),
                    strength: "none".into(),
                    reason: why.clone(),
                };
                ("None", vec![layer])
            }
        };
        DeviceSandbox {
            default: Some(SandboxProfile::Off),
            profiles: vec![SandboxProfile::Off],
            floor: floor.into(),
            layers,
        }
    }

    fn conditions(&mut self, disk: Option<Disk>) {
        let was = self
            .conditions
            .iter()
            .any(|c| c.type_ == "DiskPressure" && c.status == "True");
        let condition = |status: &str, reason: &str, message: String| Condition {
            type_: "DiskPressure".into(),
            status: status.into(),
            observed_generation: None,
            last_transition_time: Time::from(self.clock.now()),
            reason: reason.into(),
            message,
        };
        let new = match disk {
            None => condition(
                "Unknown",
                "DiskUnknown",
                "the disk of the work folder cannot be read".into(),
            ),
            Some(disk) => {
                let (bytes, percent) = if was { RELIEF } else { PRESSURE };
                if disk.free < bytes.min(disk.total / 100 * percent) {
                    let dir = self.config.work_dir.display();
                    let message = format!("only {} MiB are free under {dir}", disk.free / MIB / 64 * 64);
                    condition("True", "DiskLow", message)
                } else {
                    condition("False", "EnoughDisk", "there is room for work".into())
                }
            }
        };
        set_condition(&mut self.conditions, new);
    }
}

/// A floor's layers, as the API shows them.
pub(crate) fn layers(report: &Report) -> Vec<SandboxLayer> {
    let layer = |layer: &panda_sandbox::LayerReport| SandboxLayer {
        name: layer.layer.name().into(),
        strength: layer.strength.name().into(),
        reason: layer.reason.clone(),
    };
    report.layers.iter().map(layer).collect()
}

#[derive(Clone, Copy, Debug)]
struct Disk {
    total: u64,
    free: u64,
}

fn disk(path: &Path) -> Option<Disk> {
    let fs = rustix::fs::statvfs(path).ok()?;
    Some(Disk {
        total: fs.f_blocks.saturating_mul(fs.f_frsize),
        free: fs.f_bavail.saturating_mul(fs.f_frsize),
    })
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn memory() -> Option<u64> {
    let info = rustix::system::sysinfo();
    let total: u64 = info.totalram;
    (total > 0).then(|| total.saturating_mul(u64::from(info.mem_unit)))
}

fn os() -> &'static str {
    match std::env::consts::OS {
        "macos" => "darwin",
        os => os,
    }
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        arch => arch,
    }
}

fn class() -> &'static str {
    match (processors(), memory().unwrap_or(0) / MIB) {
        (..2, _) | (_, ..1024) => "Micro",
        (..8, _) | (_, ..15_000) => "Standard",
        _ => "Full",
    }
}

#[cfg(test)]
mod tests {
    use panda_api::meta::SystemClock;

    use super::*;
    use crate::boot::SystemBoot;

    fn keeper(dir: &Path) -> StatusKeeper {
        StatusKeeper {
            config: Arc::new(Config {
                work_dir: dir.into(),
                ..Config::new("d", "u", dir.into())
            }),
            clock: Arc::new(SystemClock),
            boot: Arc::new(SystemBoot::read().unwrap()),
            floor: Err("no".into()),
            conditions: Vec::new(),
        }
    }

    #[test]
    fn says_what_the_device_has_and_what_its_owner_allows() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(dir.path());
        let status = keeper.collect(Vec::new());
        let capacity = status.capacity.unwrap();
        assert!(capacity.cpu.unwrap().parse::<u32>().unwrap() >= 1);
        assert!(capacity.memory.unwrap().ends_with("Mi"));
        assert_eq!(status.max_runs, Some(4));
        assert_eq!(status.owner.unwrap().namespaces, ["*"]);
        assert_eq!(status.sandbox.unwrap().floor, "None");
        assert!(keeper.labels().contains_key("kubernetes.io/arch"));
    }

    #[test]
    fn pressure_has_a_gap_between_on_and_off() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(dir.path());
        let total = 100 << 30;
        let mut at = |mib: u64| {
            keeper.conditions(Some(Disk {
                total,
                free: mib << 20,
            }));
            keeper.conditions[0].status.clone()
        };
        assert_eq!(at(2000), "False");
        assert_eq!(at(800), "False");
        assert_eq!(at(500), "True");
        assert_eq!(at(800), "True");
        assert_eq!(at(1100), "False");
    }
}
