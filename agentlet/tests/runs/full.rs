//! The device's disk runs full: a file system of its own, which root alone can mount.

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::Command;

use panda_api::logline::Origin;
use panda_api::{DeviceStatus, FailureClass, FailureReason, Push, Run};

use crate::git::{git, on_repository};
use crate::harness::*;
use crate::testing::State;

/// A small file system beneath a device's folder, for both its state and its workspaces.
struct Small(PathBuf);

impl Small {
    fn mount(device: &Device) -> Self {
        let at = device.path().to_owned();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=48m,mode=755", "panda-test"])
            .arg(&at)
            .status()
            .unwrap();
        assert!(mounted.success());
        fs::copy(env!("CARGO_BIN_EXE_fakeagent"), at.join("fakeagent")).unwrap();
        Self(at)
    }

    /// Takes the last byte.
    fn fill(&self) {
        self.fill_but(0);
    }

    /// Takes all but so many bytes.
    fn fill_but(&self, left: u64) {
        let file = fs::File::create(self.0.join("filler")).unwrap();
        let mut size = 0;
        for step in [1 << 20, 64 << 10, 4 << 10] {
            while self.room() >= left + step
                && rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), size, step).is_ok()
            {
                size += step;
            }
        }
    }

    fn room(&self) -> u64 {
        let fs = rustix::fs::statvfs(&self.0).unwrap();
        fs.f_bavail * fs.f_frsize
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Lazily: what still runs on it ends with the device.
        drop(Command::new("umount").arg("-l").arg(&self.0).status());
    }
}

/// A device on a small disk; none where nobody may mount one.
async fn on_small_disk() -> Option<(Device, Small)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may mount a file system");
        return None;
    }
    let mut device = Device::off().await;
    let small = Small::mount(&device);
    device.start().await;
    Some((device, small))
}

/// Holds an agent back until the disk is as the test wants it.
struct Gate(PathBuf);

impl Gate {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("panda-{name}-{}", std::process::id())))
    }

    /// Gives the run a script that does `before`, says that it is up, waits for the gate, and does `after`.
    async fn hold(&self, device: &Device, mut run: Run, before: &str, after: &str) -> String {
        let gate = self.0.display();
        let script = format!("{before} echo up; while ! test -e {gate}; do sleep 0.05; done; {after}");
        let command = vec!["/bin/sh".into(), "-c".into(), script];
        run.spec.agent_spec.as_mut().unwrap().drivers[0].command = command;
        let uid = device.give(run);
        device.says(&uid, Origin::Stdout, "up").await;
        uid
    }

    fn open(&self) {
        fs::write(&self.0, "").unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// Bytes that nothing makes smaller.
fn noise(bytes: u64) -> Vec<u8> {
    let mut noise = Vec::new();
    let mut source = fs::File::open("/dev/urandom").unwrap().take(bytes);
    source.read_to_end(&mut noise).unwrap();
    noise
}

fn pressure(state: &State) -> Option<bool> {
    let status: DeviceStatus = serde_json::from_slice(&state.statuses.last()?.status).unwrap();
    let condition = status.conditions.iter().find(|c| c.type_ == "DiskPressure")?;
    Some(condition.status == "True")
}

#[tokio::test]
async fn running_results_land_new_runs_wait_and_all_is_well_without_a_restart() {
    let Some((device, small)) = on_small_disk().await else {
        return;
    };
    let gate = Gate::new("go");
    let uid = gate.hold(&device, device.a_run(&[]), "", "echo over").await;
    small.fill();
    let is = |wanted| move |s: &State| (pressure(s) == Some(wanted)).then_some(());
    device.server.until("DiskPressure", is(true)).await;
    gate.open();
    let end = device.end_of(&uid).await;
    assert_eq!(end.failure, None, "space was held back for it");
    let refused = device.give(device.a_run(&["--say", "x"]));
    let failure = device.fails(&refused, FailureReason::DiskFull).await;
    assert_eq!(failure.reason.class(), FailureClass::Device);
    assert_eq!(device.starts(&refused), 0);
    small.free();
    device.server.until("no DiskPressure", is(false)).await;
    let next = device.give(device.a_run(&["--say", "fine"]));
    device.succeeds(&next).await;
}

#[tokio::test]
async fn what_an_agent_fills_the_disk_with_is_no_fault_of_the_run_after_it() {
    let Some((device, small)) = on_small_disk().await else {
        return;
    };
    let gate = Gate::new("went");
    let after = "cat /dev/zero > zeros; exit 0";
    let uid = gate.hold(&device, device.a_run(&[]), "", after).await;
    small.fill();
    gate.open();
    // Whatever came of it, it is said, while the disk is full.
    let end = device.end_of(&uid).await;
    if let Some(failure) = end.failure {
        assert_eq!(failure.reason, FailureReason::DiskFull, "{failure:?}");
    }
    assert_eq!(device.starts(&uid), 1);
}

#[tokio::test]
async fn repository_that_does_not_fit_on_the_disk_is_a_failure_of_the_device() {
    let Some((device, small)) = on_small_disk().await else {
        return;
    };
    let (repo, run) = on_repository(&device, Push::Never);
    fs::write(repo.join("large"), noise(8 << 20)).unwrap();
    git(&repo, &["add", "."]);
    git(&repo, &["commit", "-q", "-m", "large"]);
    // Enough for a run to be taken, and too little for it with all that is held back.
    small.fill_but(3 << 20);
    let uid = device.give(run);
    let failure = device.fails(&uid, FailureReason::DiskFull).await;
    assert_eq!(failure.reason.class(), FailureClass::Device);
    assert_eq!(device.starts(&uid), 0);
    small.free();
    let next = device.give(device.a_run(&["--say", "fine"]));
    device.succeeds(&next).await;
}

#[tokio::test]
async fn result_that_does_not_fit_on_the_disk_is_a_failure_of_the_device() {
    let Some((device, small)) = on_small_disk().await else {
        return;
    };
    let (_, run) = on_repository(&device, Push::Never);
    let gate = Gate::new("gone");
    let before = "head -c 8388608 /dev/urandom > large;";
    let uid = gate.hold(&device, run, before, "echo over").await;
    small.fill();
    gate.open();
    let failure = device.fails(&uid, FailureReason::DiskFull).await;
    assert_eq!(failure.reason.class(), FailureClass::Device);
    assert_eq!(device.starts(&uid), 1);
}
