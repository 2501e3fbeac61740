//! What an agentlet that starts finds in a run folder.

use panda_api::meta::SystemClock;
use panda_api::{Failure, FailureReason, Usage};
use panda_sandbox::Report;

use super::{Adopted, Error, Handle};
use crate::driver::is_retryable;
use crate::process::ProcessTree;
use crate::supervisor::folder::{Error as FolderError, RunFolder};
use crate::supervisor::grant::{boot_id, boottime};
use crate::supervisor::job::membership;
use crate::supervisor::journal::{Entry, Outcome, Reader, Record, Writer};
use crate::supervisor::secrets;
use crate::supervisor::starts::{StartEvent, StartLine, StartsJournal};

pub(super) async fn adopt(folder: &RunFolder) -> Result<Adopted, Error> {
    let _lock = match folder.lock() {
        Ok(lock) => lock,
        Err(FolderError::Locked { .. }) => {
            return Ok(Adopted::Running(Handle {
                folder: folder.clone(),
                started: None,
            }));
        }
        Err(e) => return Err(e.into()),
    };
    // Nobody supervises, and nobody can begin to while this lock is held.
    let entries = Reader::open(&folder.journal()).read()?;
    let known = Known::from(&entries);
    if let Some(outcome) = known.ended {
        return Ok(Adopted::Ended(Box::new(outcome)));
    }
    if !known.started {
        return Ok(Adopted::NeverStarted);
    }
    let this_boot = boot_id()?;
    // Also behind a spec that cannot be read nothing may be left: group, session and descent are known without it.
    let spec = folder.spec().ok();
    let named = spec.as_ref().and_then(|spec| spec.secrets.as_ref());
    if let Some(folder) = named.and_then(|named| named.folder.as_deref()) {
        secrets::remove(folder)?;
    }
    let same_boot = spec.as_ref().is_none_or(|spec| spec.boot_id == this_boot);
    let (reason, message) = if same_boot {
        let membership = spec.as_ref().map(membership).unwrap_or_default();
        let mut tree = ProcessTree::left_behind(membership, known.cgroup.as_deref(), known.main);
        tree.kill().await;
        (
            FailureReason::Crashed,
            "the supervisor of this run ended unexpectedly; what was left of it has been killed",
        )
    } else {
        // Pids of another boot name nothing.
        (
            FailureReason::DeviceRestarted,
            "the device was restarted while this run was at work",
        )
    };
    if let (Some(main), Some(spec)) = (known.main, &spec)
        && let Some(path) = &spec.starts
    {
        let line = StartLine::new(StartEvent::End, &spec.fence, main, &this_boot, boottime());
        StartsJournal::open(path)?.append(&line)?;
    }
    let outcome = Outcome {
        failure: Some(Failure {
            reason,
            message: message.into(),
            retryable: is_retryable(reason),
            ..Failure::default()
        }),
        session_id: known.session,
        usage: known.usage,
        sandbox: known.sandbox,
        killed: true,
        ..Outcome::default()
    };
    Writer::open(&folder.journal())?.append(
        &SystemClock,
        Record::Ended {
            outcome: Box::new(outcome.clone()),
        },
    )?;
    Ok(Adopted::Crashed(Box::new(outcome)))
}

/// What the journal of a run says in all.
#[derive(Default)]
struct Known {
    started: bool,
    cgroup: Option<std::path::PathBuf>,
    main: Option<(i32, u64)>,
    sandbox: Report,
    session: String,
    usage: Usage,
    ended: Option<Outcome>,
}

impl Known {
    fn from(entries: &[Entry]) -> Self {
        let mut known = Self::default();
        for entry in entries {
            match &entry.record {
                Record::Started { cgroup } => {
                    known.started = true;
                    known.cgroup.clone_from(cgroup);
                }
                Record::Spawned {
                    pid,
                    starttime,
                    sandbox,
                    ..
                } => {
                    known.main = Some((*pid, *starttime));
                    known.sandbox = sandbox.clone();
                }
                Record::Session { id } => known.session.clone_from(id),
                Record::Usage { usage } => known.usage = usage.clone(),
                Record::Ended { outcome } => known.ended = Some((**outcome).clone()),
                Record::FirstOutput
                | Record::Event { .. }
                | Record::Paused { .. }
                | Record::Resumed
                | Record::StopRequested { .. }
                | Record::Exited { .. } => {}
            }
        }
        known
    }
}
