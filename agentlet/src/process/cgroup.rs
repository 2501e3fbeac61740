//! Control groups of version 2, as far as a tree of processes needs them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A control group that holds one tree. Never used again after its tree was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// The calling process's own group of version 2, when groups can be made beneath it.
    ///
    /// Works on version 2 alone and on hybrid hosts, where it hangs below `unified`.
    #[must_use]
    pub fn own() -> Option<PathBuf> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let path = locate(&own, &mounts)?;
        // Whether it can be written is not a matter of mode bits alone (read-only mounts, delegation).
        rustix::fs::access(&path, rustix::fs::Access::WRITE_OK).ok()?;
        rustix::fs::access(path.join("cgroup.procs"), rustix::fs::Access::WRITE_OK).ok()?;
        Some(path)
    }

    /// Makes a fresh group.
    ///
    /// # Errors
    ///
    /// When it exists already, or may not be made.
    pub fn create(parent: &Path, name: &str) -> io::Result<Self> {
        let path = parent.join(name);
        fs::create_dir(&path)?;
        Ok(Self { path })
    }

    /// A group made earlier, when it is still there.
    #[must_use]
    pub fn open(path: &Path) -> Option<Self> {
        path.join("cgroup.procs")
            .exists()
            .then(|| Self { path: path.into() })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything alive in it and below it.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let mut found = Vec::new();
        let mut open = vec![self.path.clone()];
        while let Some(group) = open.pop() {
            if let Ok(text) = fs::read_to_string(group.join("cgroup.procs")) {
                found.extend(text.lines().filter_map(|l| l.parse::<i32>().ok()));
            }
            open.extend(children(&group));
        }
        found
    }

    /// Kills everything in it at once. Linux 5.14 or later.
    ///
    /// # Errors
    ///
    /// When the kernel cannot.
    pub fn kill(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.kill"), "1")
    }

    /// Freezes or thaws everything in it; returns before all of it stands still.
    ///
    /// # Errors
    ///
    /// When the kernel cannot.
    pub fn freeze(&self, frozen: bool) -> io::Result<()> {
        fs::write(self.path.join("cgroup.freeze"), if frozen { "1" } else { "0" })
    }

    /// Processor time used by everything that ever was in it.
    #[must_use]
    pub fn cpu(&self) -> Option<Duration> {
        self.value("cpu.stat", "usage_usec").map(Duration::from_micros)
    }

    /// Processes killed because memory ran out, where the memory controller is on.
    #[must_use]
    pub fn oom_kills(&self) -> Option<u64> {
        self.value("memory.events", "oom_kill")
    }

    /// Most processes at one time, where the pids controller is on.
    #[must_use]
    pub fn peak(&self) -> Option<u32> {
        fs::read_to_string(self.path.join("pids.peak"))
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// Removes it with what is below it; it must be empty.
    ///
    /// # Errors
    ///
    /// When it is not.
    pub fn remove(&self) -> io::Result<()> {
        remove(&self.path)
    }

    fn value(&self, file: &str, key: &str) -> Option<u64> {
        fs::read_to_string(self.path.join(file))
            .ok()?
            .lines()
            .find_map(|l| l.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
    }
}

fn children(group: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(group) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()))
        .map(|e| e.path())
        .collect()
}

fn remove(group: &Path) -> io::Result<()> {
    for child in children(group) {
        remove(&child)?;
    }
    fs::remove_dir(group)
}

/// Joins `/proc/self/cgroup` and `/proc/self/mountinfo`: where the own group of version 2 is mounted.
fn locate(own: &str, mounts: &str) -> Option<PathBuf> {
    let group = own.lines().find_map(|l| l.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        if right.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = left.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // In a container the mount may show only a part of the hierarchy.
        let below = Path::new(group).strip_prefix(root).ok()?;
        Some(Path::new(point).join(below))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
25 20 0:22 / /sys/fs/cgroup rw,relatime shared:5 - tmpfs tmpfs rw,mode=755
26 25 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
35 25 0:32 / /sys/fs/cgroup/unified rw,relatime shared:6 - cgroup2 cgroup2 rw
";

    #[test]
    fn finds_the_own_group_on_a_hybrid_host() {
        let own = "4:memory:/a/b\n0::/user.slice/x\n";
        assert_eq!(
            locate(own, HYBRID),
            Some("/sys/fs/cgroup/unified/user.slice/x".into())
        );
        assert_eq!(locate("0::/\n", HYBRID), Some("/sys/fs/cgroup/unified/".into()));
    }

    #[test]
    fn finds_it_where_a_part_of_the_hierarchy_is_mounted() {
        let mounts = "35 25 0:32 /system.slice /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let own = "0::/system.slice/panda.service\n";
        assert_eq!(locate(own, mounts), Some("/sys/fs/cgroup/panda.service".into()));
        assert_eq!(locate("0::/other\n", mounts), None);
    }

    #[test]
    fn a_host_of_version_1_alone_has_none() {
        assert_eq!(locate("4:memory:/a\n", HYBRID), None);
        assert_eq!(
            locate(
                "0::/\n",
                "26 25 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            ),
            None
        );
    }
}
