//! Run folders that can be made nothing of: a damaged record, or one at which every worker fails.
//!
//! What runs in them is ended before anything else, since the server will be told that the device no longer has the
//! run, and may start another attempt.

use std::fs;
use std::io;
use std::path::Path;

use panda_api::{FailureReason, Retain, Run};
use panda_rpc::report::RunReport;
use tokio::time::timeout;

use super::Env;
use super::job::chain;
use super::mail::fence;
use super::worker::{RETRY, failed};
use crate::supervisor::{Adopted, Handle, RunFolder};
use crate::workspace::{self, TreeEmpty};

/// Why a run is given up.
const NO_WORKER: &str = "the agentlet failed again and again at work on this run; its log says where";

/// Ends what is left of the run in folder `name`, and keeps the folder apart for a person to look at.
pub(super) async fn put_away(data_dir: &Path, name: &str, why: &str) -> io::Result<()> {
    let path = data_dir.join("runs").join(name);
    let mut jobs = 0;
    for entry in fs::read_dir(&path)? {
        let job = RunFolder::at(&entry?.path());
        if job.journal().exists() || job.spec_path().exists() {
            jobs += 1;
            end(&job).await?;
        }
    }
    if jobs == 0 {
        // Cut off before anything was begun.
        tracing::warn!(
            run = name,
            why,
            "folder of a run is removed: nothing was begun in it"
        );
        return fs::remove_dir_all(&path);
    }
    let kept = data_dir.join("damaged").join(name);
    match fs::remove_dir_all(&kept) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    fs::create_dir_all(data_dir.join("damaged"))?;
    fs::rename(&path, &kept)?;
    tracing::error!(
        run = name,
        why,
        kept = %kept.display(),
        "folder of a run cannot be read and was moved aside: the run is over on this device"
    );
    Ok(())
}

/// Ends a run that no worker can see to its end, whatever is wrong with it.
pub(super) async fn give_up(env: &Env, run: &Run) {
    let uid = &run.metadata.uid;
    let mut pause = RETRY.0;
    while let Err(error) = try_to_give_up(env, run).await {
        tracing::warn!(run = uid, %error, "run that no worker can end does not end yet");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY.1);
    }
}

async fn try_to_give_up(env: &Env, run: &Run) -> io::Result<()> {
    let uid = &run.metadata.uid;
    let told = env.outbox.terminal("", uid).await.map_err(io::Error::other)?;
    if told.is_some() {
        return Ok(());
    }
    match put_away(&env.config.data_dir, uid, NO_WORKER).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let key = super::key(run);
    match env.workspaces.reopen(&key, uid).await {
        Ok(workspace) => {
            let empty = TreeEmpty::proved(uid);
            let released = env
                .workspaces
                .release(workspace, &empty, Retain::default(), false);
            released.await.map_err(io::Error::other)?;
        }
        Err(workspace::Error::NotLent { .. }) => {}
        Err(error) => return Err(io::Error::other(error)),
    }
    let ending = failed(FailureReason::Internal, NO_WORKER);
    let report = RunReport {
        phase: Some(ending.phase),
        failure: Some(ending.failure),
        ..RunReport::default()
    };
    let fence = fence(run, &env.config.device_uid);
    let reported = env.outbox.report(&fence, &report).await;
    reported.map(drop).map_err(io::Error::other)
}

async fn end(job: &RunFolder) -> io::Result<()> {
    // Frozen or not, it has to go; a second look kills what it left.
    for _ in 0..2 {
        let adopted = Handle::adopt(job).await;
        match adopted.map_err(|e| io::Error::other(chain(&e)))? {
            Adopted::NeverStarted => return job.forbid().map_err(io::Error::other),
            Adopted::Ended(_) | Adopted::Crashed(_) => return Ok(()),
            Adopted::Running(handle) => {
                let mut tail = handle.tail(1);
                let stopped = handle.stop(FailureReason::DeviceRestarted, "the run's record is lost");
                if stopped.await.is_ok() {
                    let ended = async { while let Ok(Some(_)) = tail.next().await {} };
                    if timeout(handle.patience(), ended).await.is_ok() {
                        continue;
                    }
                }
                // One that has just ended needs no more.
                drop(handle.overrule().await);
            }
        }
    }
    match Handle::adopt(job).await {
        Ok(Adopted::Running(_)) => Err(io::Error::other(format!(
            "the supervisor in {} does not end",
            job.path().display()
        ))),
        Ok(_) => Ok(()),
        Err(e) => Err(io::Error::other(chain(&e))),
    }
}
