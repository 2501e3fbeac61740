//! What the device says about itself.

use std::collections::BTreeMap;
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
use crate::credentials::Credentials;
use crate::disk::{Reserve, Space, space};

/// How often the disk is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// Share of the disk below which the device takes no more work, whatever is configured, and above which it does again.
const PERCENT: (u64, u64) = (3, 5);
/// Available memory below which, and above which again, in percent.
const MEMORY: (u64, u64) = (4, 8);
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
    /// The device's certificate, where it renews it itself.
    pub(crate) certificate: Option<watch::Receiver<Arc<Credentials>>>,
    /// True while no new runs are taken.
    pub(crate) pressure: watch::Sender<bool>,
    pub(crate) reserve: Arc<Reserve>,
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
        let disk = space(&self.config.work_dir);
        self.conditions(disk, space(&self.config.data_dir));
        self.memory_pressure(available_memory());
        if let Some(certificate) = &self.certificate {
            let new = self.expiring(&certificate.borrow());
            set_condition(&mut self.conditions, new);
        }
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

    fn is(&self, type_: &str) -> bool {
        let is = |c: &Condition| c.type_ == type_ && c.status == "True";
        self.conditions.iter().any(is)
    }

    fn set(&mut self, type_: &str, status: &str, reason: &str, message: String) {
        let new = Condition {
            type_: type_.into(),
            status: status.into(),
            observed_generation: None,
            last_transition_time: Time::from(self.clock.now()),
            reason: reason.into(),
            message,
        };
        set_condition(&mut self.conditions, new);
    }

    /// Renewal begins at two thirds of a certificate's life; half of the rest without success is worth a person's look.
    fn expiring(&self, certificate: &Credentials) -> Condition {
        let now = self.clock.now();
        let late = (certificate.renew_at() + certificate.not_after) / 2;
        let is = now.as_second() >= late;
        let until = jiff::Timestamp::from_second(certificate.not_after).unwrap_or(jiff::Timestamp::MAX);
        Condition {
            type_: "CertificateExpiring".into(),
            status: if is { "True" } else { "False" }.into(),
            observed_generation: None,
            last_transition_time: Time::from(now),
            reason: if is { "NotRenewed" } else { "Good" }.into(),
            message: format!("the certificate is good until {until}"),
        }
    }

    /// Looks at the disks of workspaces and of our own state, which may be one.
    fn conditions(&mut self, work: Option<Space>, state: Option<Space>) {
        const TYPE: &str = "DiskPressure";
        let was = self.is(TYPE);
        let limit = self.config.disk_pressure_bytes;
        let (bytes, percent) = if was {
            (limit * 2, PERCENT.1)
        } else {
            (limit, PERCENT.0)
        };
        let low = |space: &Space| space.free < bytes.min(space.total / 100 * percent);
        // What was held back and given free is not for new runs.
        let state = state.map(|space| Space {
            free: space.free.saturating_sub(self.reserve.missing()),
            ..space
        });
        let dirs = [(work, &self.config.work_dir), (state, &self.config.data_dir)];
        let short = dirs
            .iter()
            .find_map(|(space, dir)| Some((space.filter(low)?, dir)));
        if let Some((space, dir)) = short {
            let free = space.free / MIB / 64 * 64;
            let message = format!("less than {} MiB are free under {}", free + 64, dir.display());
            self.set(TYPE, "True", "DiskLow", message);
        } else if work.is_none() || state.is_none() {
            self.set(TYPE, "Unknown", "DiskUnknown", "the disk cannot be read".into());
        } else {
            self.set(TYPE, "False", "EnoughDisk", "there is room for work".into());
        }
        let is = self.is(TYPE);
        self.pressure
            .send_if_modified(|old| std::mem::replace(old, is) != is);
        if !is {
            self.reserve.fill();
        }
    }

    fn memory_pressure(&mut self, available: Option<u64>) {
        const TYPE: &str = "MemoryPressure";
        let (Some(available), Some(total)) = (available, memory()) else {
            return self.set(TYPE, "Unknown", "MemoryUnknown", "the kernel does not say".into());
        };
        let percent = if self.is(TYPE) { MEMORY.1 } else { MEMORY.0 };
        if available < total / 100 * percent {
            let message = format!("less than {percent} % of the memory are available");
            self.set(TYPE, "True", "MemoryLow", message);
        } else {
            self.set(TYPE, "False", "EnoughMemory", "there is memory for work".into());
        }
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

/// What the kernel could give to new processes, in bytes.
fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
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
    use std::path::Path;

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
            certificate: None,
            conditions: Vec::new(),
            pressure: watch::Sender::new(false),
            reserve: Arc::new(Reserve::new(dir.join("reserve"), 4096)),
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
    fn memory_that_runs_short_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(dir.path());
        let total = memory().unwrap();
        for (available, short) in [
            (total, false),
            (total / 50, true),
            (total / 20, true),
            (total / 2, false),
        ] {
            keeper.memory_pressure(Some(available));
            assert_eq!(keeper.is("MemoryPressure"), short, "{available}");
        }
        assert!(available_memory().is_some_and(|available| available <= total));
    }

    #[test]
    fn pressure_has_a_gap_between_on_and_off() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = keeper(dir.path());
        let total = 100 << 30;
        let mut at = |mib: u64| {
            let roomy = Some(Space { total, free: total });
            let free = mib << 20;
            keeper.conditions(roomy, Some(Space { total, free }));
            assert_eq!(*keeper.pressure.borrow(), keeper.is("DiskPressure"));
            keeper.conditions[0].status.clone()
        };
        assert_eq!(at(2000), "False");
        assert_eq!(at(800), "False");
        assert_eq!(at(500), "True");
        assert_eq!(at(800), "True");
        assert_eq!(at(1100), "False");
    }
}
