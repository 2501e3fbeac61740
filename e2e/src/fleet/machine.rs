//! What only root may give a fleet: small disks, and networks that are really apart. All of it goes with the fleet, or
//! with the next one when a test was killed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::ensure;

/// Names of everything that is made begin so; the id of the test's process follows.
const PREFIX: &str = "pfleet";

fn run(argv: &[&str]) -> anyhow::Result<()> {
    let output = Command::new(argv[0]).args(&argv[1..]).output()?;
    ensure!(
        output.status.success(),
        "{argv:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// Whether this process may do such things; if not, says what is skipped.
#[must_use]
pub fn is_root(for_what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {for_what} needs root");
    }
    root
}

/// A file system of a few megabytes.
#[derive(Debug)]
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts one at `path`, which is made.
    ///
    /// # Errors
    /// When that is not allowed.
    pub fn mount(path: &Path, megabytes: u32) -> anyhow::Result<Self> {
        std::fs::create_dir_all(path)?;
        let size = format!("size={megabytes}m,mode=0755");
        run(&[
            "mount",
            "-t",
            "tmpfs",
            "-o",
            &size,
            PREFIX,
            &path.display().to_string(),
        ])?;
        Ok(Self(path.to_owned()))
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Takes the last byte of it.
    ///
    /// # Errors
    /// When the ballast cannot be made at all.
    pub fn fill(&self) -> anyhow::Result<()> {
        let mut file = std::fs::File::create(self.ballast())?;
        for size in [1 << 20, 1 << 12, 1] {
            let block = vec![0_u8; size];
            while file.write_all(&block).is_ok() {}
        }
        Ok(())
    }

    /// Gives the space back.
    pub fn free(&self) {
        let _: Result<(), _> = std::fs::remove_file(self.ballast());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _: Result<(), _> = run(&["umount", "--lazy", &self.0.display().to_string()]);
    }
}

/// A network namespace with one cable to ours.
#[derive(Debug)]
pub struct Network {
    name: String,
    cable: String,
    gateway: String,
}

impl Network {
    /// Makes number `n` of this process. Addresses are of 10.213.0.0/16, four for each.
    ///
    /// # Errors
    /// When that is not allowed, or the addresses are taken.
    pub fn make(n: u8) -> anyhow::Result<Self> {
        let pid = std::process::id();
        let (name, cable) = (format!("{PREFIX}-{pid}-{n}"), format!("pf{pid}x{n}"));
        let subnet = (pid % 64 * 256 + u32::from(n)) * 4;
        let address = |host: u32| {
            let at = subnet + host;
            format!("10.213.{}.{}", at / 256, at % 256)
        };
        let network = Self {
            name,
            cable,
            gateway: address(1),
        };
        let (name, cable) = (network.name.as_str(), network.cable.as_str());
        run(&["ip", "netns", "add", name])?;
        run(&[
            "ip", "link", "add", cable, "type", "veth", "peer", "name", "up0", "netns", name,
        ])?;
        run(&[
            "ip",
            "address",
            "add",
            &format!("{}/30", network.gateway),
            "dev",
            cable,
        ])?;
        run(&["ip", "link", "set", cable, "up"])?;
        let inside = |rest: &[&str]| run(&[&["ip", "-netns", name], rest].concat());
        inside(&["link", "set", "lo", "up"])?;
        inside(&["address", "add", &format!("{}/30", address(2)), "dev", "up0"])?;
        inside(&["link", "set", "up0", "up"])?;
        Ok(network)
    }

    /// The address under which it sees us.
    #[must_use]
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// What a command line begins with that is to run inside.
    #[must_use]
    pub fn enter(&self) -> Vec<String> {
        vec![
            "nsenter".into(),
            format!("--net=/run/netns/{}", self.name),
            "--".into(),
        ]
    }

    /// Pulls the cable, or plugs it in.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn plug(&self, plugged: bool) -> anyhow::Result<()> {
        run(&[
            "ip",
            "link",
            "set",
            &self.cable,
            if plugged { "up" } else { "down" },
        ])
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The cable goes with it.
        let _: Result<(), _> = run(&["ip", "netns", "delete", &self.name]);
    }
}

/// Removes what killed tests left: mounts below folders of processes that are gone, and their networks.
pub fn sweep() {
    let gone = |pid: &str| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists();
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().display().to_string();
        let of = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').nth(1));
        if of.is_some_and(gone) {
            let _: Result<(), _> = run(&["ip", "netns", "delete", &name]);
        }
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    for line in mounts.lines() {
        let mut fields = line.split(' ');
        let (source, path) = (fields.next(), fields.next().unwrap_or_default());
        let of = path.split('/').find_map(|part| part.strip_prefix("panda-fleet-"));
        let of = of.and_then(|rest| rest.split('-').next());
        if source == Some(PREFIX) && of.is_some_and(gone) {
            let _: Result<(), _> = run(&["umount", "--lazy", path]);
        }
    }
}
