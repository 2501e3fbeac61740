//! Landlock: everything is allowed but the hidden paths.
//!
//! Landlock can only allow, so a path is hidden by allowing all its siblings, all siblings of its parent, and so on up
//! to the root. Folders above a hidden path get nothing themselves: there the program makes and lists nothing new.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, LandlockStatus, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{Mode, OFlags};

use super::readable_identity;
use crate::spec::{FloorError, FloorSpec, Layer, Report, Strength};

/// The newest interface that this module has been thought through for; older kernels enforce less of it.
const ABI: ABI = ABI::V6;

/// Most rules; more siblings than this mean that a hidden path lies in a folder that is not made for it.
const MAX_RULES: usize = 200_000;

/// What is hidden, resolved, with what was there before any layer.
pub(super) struct Hiding {
    /// Hidden paths with their links followed; the last parts need not exist.
    pub(super) hidden: BTreeSet<PathBuf>,
    /// Paths beneath them that stay visible.
    pub(super) visible: BTreeSet<PathBuf>,
    /// Device and inode of the hidden paths that exist.
    identities: Vec<(PathBuf, (u64, u64))>,
}

impl Hiding {
    pub(super) fn new(hidden: &[PathBuf], visible: &[PathBuf]) -> Result<Self, FloorError> {
        let mut this = Self {
            hidden: hidden.iter().map(|p| resolve(p)).collect::<Result<_, _>>()?,
            visible: visible.iter().map(|p| resolve(p)).collect::<Result<_, _>>()?,
            identities: Vec::new(),
        };
        let all = this.hidden.clone();
        // One that lies in another is hidden with it.
        this.hidden
            .retain(|p| !p.ancestors().skip(1).any(|a| all.contains(a)));
        this.visible
            .retain(|p| p.ancestors().any(|a| this.hidden.contains(a)));
        for path in &this.hidden {
            if path.parent().is_none() || this.visible.contains(path) {
                return Err(FloorError::Invalid {
                    because: format!("{} cannot be hidden", path.display()),
                });
            }
            if let Ok(meta) = std::fs::metadata(path) {
                this.identities.push((path.clone(), (meta.dev(), meta.ino())));
            }
        }
        Ok(this)
    }

    /// Tries to read every hidden path, as the program would.
    pub(super) fn verify(&self) -> Result<(), FloorError> {
        for (path, identity) in &self.identities {
            if readable_identity(path) == Some(*identity) {
                return Err(FloorError::CannotHide {
                    path: path.clone(),
                    because: "it can still be opened".into(),
                });
            }
        }
        Ok(())
    }

    fn is_hidden_object(&self, identity: (u64, u64)) -> bool {
        self.identities.iter().any(|(_, i)| *i == identity)
    }
}

/// Follows links of the part that exists and keeps the rest.
fn resolve(path: &Path) -> Result<PathBuf, FloorError> {
    let invalid = |because: String| FloorError::Invalid { because };
    if path.components().any(|c| c == Component::ParentDir) {
        return Err(invalid(format!("{} has '..' in it", path.display())));
    }
    for existing in path.ancestors() {
        match existing.canonicalize() {
            Ok(real) => {
                let rest = path.strip_prefix(existing).unwrap_or(Path::new(""));
                return Ok(if rest.as_os_str().is_empty() {
                    real
                } else {
                    real.join(rest)
                });
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(invalid(format!("{}: {e}", path.display()))),
        }
    }
    Err(invalid(format!("{} is not absolute", path.display())))
}

/// A ruleset, made while the helper may still open everything.
pub(super) struct Landlock {
    ruleset: Option<RulesetCreated>,
    hides: bool,
    /// Whether the mounts already hide everything.
    covered: bool,
    because: String,
    first_hidden: Option<PathBuf>,
}

impl Landlock {
    pub(super) fn prepare(
        spec: &FloorSpec,
        hiding: &Hiding,
        covered: bool,
        report: &mut Report,
    ) -> Result<Self, FloorError> {
        let mut this = Self {
            ruleset: None,
            hides: !hiding.hidden.is_empty(),
            covered,
            because: String::new(),
            first_hidden: hiding.hidden.first().cloned(),
        };
        if spec.without.contains(&Layer::Landlock) {
            this.because = "switched off".into();
            return Ok(this);
        }
        let signals = !spec.without.contains(&Layer::SignalScope);
        if !signals {
            report.add(Layer::SignalScope, Strength::None, "switched off");
        }
        match ruleset(hiding, signals, covered) {
            Ok(ruleset) => this.ruleset = Some(ruleset),
            Err(e) => this.because = e.to_string(),
        }
        Ok(this)
    }

    pub(super) fn enforce(self, report: &mut Report) -> Result<(), FloorError> {
        let mut because = self.because;
        let mut abi = None;
        if let Some(ruleset) = self.ruleset {
            match ruleset.restrict_self() {
                Ok(status) if status.ruleset != RulesetStatus::NotEnforced => {
                    if let LandlockStatus::Available { effective_abi, .. } = status.landlock {
                        abi = Some(effective_abi);
                    }
                }
                Ok(_) => because = "the kernel has no Landlock, or it is not enabled (lsm=landlock)".into(),
                Err(e) => because = e.to_string(),
            }
        }
        match abi {
            Some(abi) if abi >= ABI::V3 => report.add(Layer::Landlock, Strength::Hard, ""),
            Some(_) => report.add(
                Layer::Landlock,
                Strength::Soft,
                "this kernel's Landlock does not cover truncation; 6.2 or later does",
            ),
            None => report.add(Layer::Landlock, Strength::None, because.clone()),
        }
        let scoped = abi.is_some_and(|abi| abi >= ABI::V6);
        if report.layers.iter().all(|l| l.layer != Layer::SignalScope) {
            if scoped {
                report.add(Layer::SignalScope, Strength::Hard, "");
            } else {
                report.add(
                    Layer::SignalScope,
                    Strength::None,
                    "needs Landlock of Linux 6.12 or later",
                );
            }
        }
        match self.first_hidden {
            Some(path) if self.hides && abi.is_none() && !self.covered => {
                let mounts = report
                    .layers
                    .iter()
                    .find(|l| l.layer == Layer::MountNamespace)
                    .map_or("", |l| l.reason.as_str());
                Err(FloorError::CannotHide {
                    path,
                    because: format!("Landlock: {because}; mount namespace: {mounts}"),
                })
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Ruleset(#[from] RulesetError),
    #[error("the folders around the hidden paths have more than {MAX_RULES} entries")]
    TooMany,
}

fn ruleset(hiding: &Hiding, signals: bool, covered: bool) -> Result<RulesetCreated, Error> {
    let all = AccessFs::from_all(ABI);
    let files = AccessFs::from_file(ABI);
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?;
    if signals {
        ruleset = ruleset.scope(Scope::Signal)?;
    }
    let mut created = ruleset.create()?;
    let mut rules = 0_usize;
    let mut allow = |fd: OwnedFd, directory: bool, created: RulesetCreated| {
        rules += 1;
        if rules > MAX_RULES {
            return Err(Error::TooMany);
        }
        let access = if directory { all } else { files };
        Ok(created.add_rule(PathBeneath::new(fd, access))?)
    };

    if hiding.hidden.is_empty() {
        if let Some((fd, directory, _)) = open(Path::new("/")) {
            created = allow(fd, directory, created)?;
        }
        return Ok(created);
    }
    let above: BTreeSet<&Path> = hiding.hidden.iter().flat_map(|p| p.ancestors().skip(1)).collect();
    for directory in &above {
        // A folder that may be entered and not listed has no siblings that could be named.
        let Ok(entries) = std::fs::read_dir(directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if hiding.hidden.contains(&path) || above.contains(path.as_path()) {
                continue;
            }
            // Links are not followed: what they lead to has its own rule, or none.
            let Some((fd, is_directory, identity)) = open(&path) else {
                continue;
            };
            if !hiding.is_hidden_object(identity) {
                created = allow(fd, is_directory, created)?;
            }
        }
    }
    for path in &hiding.visible {
        if let Some((fd, is_directory, _)) = open(path) {
            created = allow(fd, is_directory, created)?;
        }
    }
    if covered && let Some((fd, ..)) = open(Path::new("/")) {
        // Empty folders lie over what is hidden: listing gives nothing away then, and `ls /` works.
        created = created.add_rule(PathBeneath::new(fd, AccessFs::ReadDir))?;
    }
    Ok(created)
}

/// Opens without following a link, without reading.
fn open(path: &Path) -> Option<(OwnedFd, bool, (u64, u64))> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    let kind = rustix::fs::FileType::from_raw_mode(stat.st_mode);
    (!kind.is_symlink()).then_some((fd, kind.is_dir(), (stat.st_dev, stat.st_ino)))
}
