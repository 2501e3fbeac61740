//! Whether the work may and can be done there: sandbox, repository, disk.

use std::path::{Component, Path};

use panda_api::{Device, RefusalReason, Run, SandboxProfile};

use super::{Candidate, condition};

type Verdict = Result<(), (RefusalReason, String)>;

/// The profile that the Run would get on the device.
pub(in crate::scheduler) fn profile(run: &Run, device: &Device) -> SandboxProfile {
    run.spec
        .sandbox
        .as_ref()
        .and_then(|s| s.profile)
        .or_else(|| device.status.sandbox.as_ref().and_then(|s| s.default))
        .unwrap_or(SandboxProfile::Off)
}

/// The device can enforce the profile, and its owner accepts one as weak.
pub(super) fn sandboxed(c: &Candidate<'_>) -> Verdict {
    let profile = profile(c.run, c.device);
    let offered: &[SandboxProfile] = c.device.status.sandbox.as_ref().map_or(&[], |s| &s.profiles);
    // To run without walls nothing need be enforced.
    if profile != SandboxProfile::Off && !offered.contains(&profile) {
        return Err((
            RefusalReason::SandboxUnavailable,
            format!("it cannot enforce sandbox profile {profile:?}"),
        ));
    }
    let least = c.device.status.owner.as_ref().map(|owner| owner.min_sandbox);
    match least {
        Some(least) if strength(profile) < strength(least) => Err((
            RefusalReason::SandboxUnavailable,
            format!("its owner accepts no profile weaker than {least:?}, and this is {profile:?}"),
        )),
        _ => Ok(()),
    }
}

const fn strength(profile: SandboxProfile) -> u8 {
    match profile {
        SandboxProfile::Off => 0,
        SandboxProfile::Standard => 1,
        SandboxProfile::Strict => 2,
    }
}

/// A repository named by path lies under one of the roots that the device's owner allows. The device checks again,
/// links followed; here names are all there is.
pub(super) fn rooted(c: &Candidate<'_>) -> Verdict {
    let path = c
        .run
        .spec
        .workspace
        .as_ref()
        .and_then(|w| w.git.as_ref())
        .map(|git| git.path.as_str())
        .filter(|path| !path.is_empty());
    let Some(path) = path else { return Ok(()) };
    let roots = c
        .device
        .status
        .owner
        .as_ref()
        .map_or(&[][..], |o| &o.workspace_roots);
    if roots.iter().any(|root| lies_under(path, root)) {
        Ok(())
    } else {
        Err((
            RefusalReason::WorkspaceRootDenied,
            format!(
                "{path:?} lies under none of its workspaceRoots ({})",
                roots.join(", ")
            ),
        ))
    }
}

fn lies_under(path: &str, root: &str) -> bool {
    let (path, root) = (Path::new(path), Path::new(root));
    let climbs = path.components().any(|part| part == Component::ParentDir);
    path.is_absolute() && root.is_absolute() && !climbs && path.starts_with(root)
}

/// The device has disk to spare.
pub(super) fn disk_free(c: &Candidate<'_>) -> Verdict {
    if condition(c.device, "DiskPressure") == Some(true) {
        Err((RefusalReason::DiskPressure, "its disk is nearly full".into()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::lies_under;

    #[test]
    fn roots_are_compared_by_components() {
        assert!(lies_under("/home/u/web", "/home/u"));
        assert!(lies_under("/home/u", "/home/u/"));
        assert!(!lies_under("/home/user2/web", "/home/u"));
        assert!(!lies_under("/home/u/../root", "/home/u"));
        assert!(!lies_under("home/u/web", "/home/u"));
        assert!(!lies_under("/home/u/web", ""));
    }
}
