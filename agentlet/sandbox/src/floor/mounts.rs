//! A private mount namespace with empty folders over the hidden paths.
//!
//! Root makes it directly. An ordinary user needs a user namespace for it, which makes files of other users look like
//! `nobody`'s (ssh then refuses its own configuration), so there it is tried only when Landlock is not to be had.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind, mount_change,
    mount_remount, move_mount, open_tree,
};
use rustix::process::{getegid, geteuid};

use super::hide::Hiding;
use crate::raw;
use crate::spec::{FloorError, FloorSpec, Layer, Report, Strength};

/// Covers the hidden paths where this can be done; says whether all of them are covered.
///
/// Not being able to is no error: Landlock may hide them, and enforcing that one fails when neither does.
pub(super) fn cover(spec: &FloorSpec, hiding: &Hiding, report: &mut Report) -> Result<bool, FloorError> {
    let root = geteuid().is_root();
    let mut skip = |reason: &str| report.add(Layer::MountNamespace, Strength::None, reason);
    if spec.without.contains(&Layer::MountNamespace) {
        skip("switched off");
        return Ok(false);
    }
    if hiding.hidden.is_empty() {
        skip("nothing to hide");
        return Ok(false);
    }
    if !root && !spec.without.contains(&Layer::Landlock) && landlock_is_available() {
        skip(
            "not needed: Landlock hides; a user namespace would make files of other users look like nobody's",
        );
        return Ok(false);
    }
    if let Err(e) = enter(root) {
        skip(&format!("{e}; root, or user namespaces, are needed"));
        return Ok(false);
    }
    // From here on a half-made namespace must not be used.
    let missing = make(hiding).map_err(|e| FloorError::Layer {
        layer: Layer::MountNamespace,
        because: e.to_string(),
    })?;
    match missing {
        None => report.add(Layer::MountNamespace, Strength::Hard, ""),
        Some(path) => report.add(
            Layer::MountNamespace,
            Strength::Soft,
            format!(
                "{} does not exist yet, so nothing can lie over it",
                path.display()
            ),
        ),
    }
    Ok(true)
}

fn landlock_is_available() -> bool {
    use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V1))
        .and_then(Ruleset::create)
        .is_ok()
}

fn enter(root: bool) -> io::Result<()> {
    if !root {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        raw::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS)?;
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    } else {
        raw::unshare(libc::CLONE_NEWNS)?;
    }
    // Mounts that the host makes later still arrive; ours do not leave.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    Ok(mount_change("/", flags)?)
}

/// Covers each hidden path; returns one that does not exist, if any.
fn make(hiding: &Hiding) -> io::Result<Option<PathBuf>> {
    let mut missing = None;
    for hidden in &hiding.hidden {
        let Ok(meta) = std::fs::symlink_metadata(hidden) else {
            missing = Some(hidden.clone());
            continue;
        };
        if !meta.is_dir() {
            mount_bind("/dev/null", hidden)?;
            continue;
        }
        let visible: Vec<_> = hiding.visible.iter().filter(|p| p.starts_with(hidden)).collect();
        let trees = visible
            .iter()
            .map(|p| {
                let flags = OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_RECURSIVE;
                open_tree(CWD, p.as_path(), flags)
            })
            .collect::<Result<Vec<OwnedFd>, _>>()?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount(
            "tmpfs",
            hidden,
            "tmpfs",
            flags,
            Some(c"size=1m,nr_inodes=4096,mode=0755"),
        )?;
        for (path, tree) in visible.into_iter().zip(trees) {
            DirBuilder::new().recursive(true).mode(0o755).create(path)?;
            move_mount(
                &tree,
                "",
                CWD,
                path.as_path(),
                MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
            )?;
        }
        mount_remount(hidden, flags | MountFlags::RDONLY | MountFlags::BIND, "")?;
    }
    Ok(missing)
}
