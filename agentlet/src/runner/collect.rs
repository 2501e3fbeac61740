//! What came out of the agent's work: snapshot, patch, declared outputs.

use std::fs::File;
use std::io;

use panda_api::{Artifact, FailureReason, RunPhase};
use panda_rpc::report::RunReport;

use super::finish::{AFTER_FAILURE, MARGIN};
use super::job::chain;
use super::record::{Ending, Stage};
use super::residue;
use super::worker::{Halt, MAX_PATHS, Worker, failed, trouble};
use crate::artifact::{self, Blob, Globs, Snapshot, Stamp, violations};
use crate::blobship::BlobFile;
use crate::workspace::{self, Workspace};

impl Worker {
    /// Takes what there is. After a failure as much as can be had, after a success everything.
    pub(super) async fn collect(&mut self) -> Result<(), Halt> {
        self.record.blobs.clear();
        let workspace = self.reopen().await?;
        let known = self.values_for_collecting(workspace.is_some()).await?;
        let taken = match &workspace {
            Some(workspace) if known => self.take(workspace).await,
            _ => Ok(()),
        };
        if let Some(workspace) = workspace.filter(|_| known) {
            self.look_for_values(&workspace).await?;
        }
        if let Err(error) = taken {
            let full = error.reason() == FailureReason::DiskFull;
            if full && self.env.reserve.release() {
                return Err(trouble(&error));
            }
            if error.is_retryable() && !full && self.record.ending.is_none() {
                return Err(trouble(&error));
            }
            let why = chain(&error);
            self.logs.say(&format!("the result could not be taken: {why}"));
            self.record.ending.get_or_insert(failed(error.reason(), why));
        }
        let succeeded = self.record.ending.is_none();
        if !succeeded {
            return self.advance(Stage::Handing);
        }
        if self.record.run.spec.verify.is_empty() {
            return self.advance(Stage::Handing);
        }
        let facts = &self.record.facts;
        let report = RunReport {
            phase: Some(RunPhase::Verifying),
            ..facts.clone()
        };
        self.report(report).await;
        self.advance(Stage::Verifying)
    }

    /// Whether everything that is taken can be looked through for values of Secrets. What cannot be is not taken.
    async fn values_for_collecting(&mut self, lent: bool) -> Result<bool, Halt> {
        if !lent || !self.has_secrets() {
            return Ok(true);
        }
        // After a failure nobody waits long for what it left.
        let patience = match (&self.record.ending, self.kill_deadline()) {
            (None, Some(deadline)) => deadline
                .saturating_sub(self.env.boot.boottime())
                .saturating_sub(MARGIN),
            _ => AFTER_FAILURE,
        };
        let why = match tokio::time::timeout(patience, self.load_secrets()).await {
            Ok(Ok(())) => return Ok(true),
            Ok(Err(Halt::End(ending))) => ending,
            Ok(Err(halt)) => return Err(halt),
            Err(_) => failed(
                FailureReason::DeviceLost,
                "the control plane was out of reach, and without the values of Secrets the result cannot be looked through for them",
            ),
        };
        self.logs
            .say(&format!("the result is not taken: {}", why.failure.message));
        self.record.ending.get_or_insert(why);
        Ok(false)
    }

    /// A result with a value of a Secret in it is none: it is removed here and never sent. A workspace with one is not
    /// kept; the next attempt begins afresh.
    async fn look_for_values(&mut self, workspace: &Workspace) -> Result<(), Halt> {
        let mask = self.mask();
        if mask.is_empty() {
            self.record.tainted = false;
            return Ok(());
        }
        let folders = [workspace.tree(), workspace.home(), workspace.tmp()];
        let snapshot = self.snapshot().await?;
        let (tree, blobs) = (workspace.tree(), self.record.blobs.clone());
        let looked = tokio::task::spawn_blocking(move || {
            let mut bad = Vec::new();
            for change in snapshot.iter().flat_map(|s| &s.changes) {
                if mask.finds(change.path.as_bytes())? || residue::in_file(&tree, &change.path, &mask)? {
                    bad.push(mask.text(&change.path).into_owned());
                }
            }
            for blob in &blobs {
                if bad.is_empty() && mask.finds(File::open(&blob.path)?)? {
                    bad.push("a declared output or the patch".into());
                }
            }
            let mut tainted = false;
            for folder in &folders {
                // What cannot be read through is not kept either.
                tainted = tainted || residue::holds(folder, &mask).unwrap_or(true);
            }
            io::Result::Ok((bad, tainted))
        });
        let (bad, tainted) = looked.await.map_err(io::Error::other)??;
        self.record.tainted = tainted;
        if tainted {
            self.logs.say(
                "a value of a Secret was left in the workspace or HOME, which are removed after this attempt",
            );
        }
        if bad.is_empty() {
            return Ok(());
        }
        self.record.blobs.clear();
        let result = self.record.facts.result.get_or_insert_default();
        (result.patch, result.bundle) = (None, None);
        result.commit.clear();
        result.artifacts.clear();
        let key = super::key(&self.record.run);
        let forgotten = self.env.workspaces.forget(&key, self.uid()).await;
        forgotten.map_err(|e| trouble(&e))?;
        let some: Vec<&str> = bad.iter().take(10).map(String::as_str).collect();
        let message = format!(
            "the result holds the value of a Secret and was withheld: {}; a value belongs into the environment alone",
            some.join(", ")
        );
        self.logs.say(&message);
        self.record
            .ending
            .get_or_insert(failed(FailureReason::SecretInResult, message));
        Ok(())
    }

    /// The workspace that is lent to this run, if one is.
    pub(super) async fn reopen(&self) -> Result<Option<Workspace>, Halt> {
        let key = super::key(&self.record.run);
        match self.env.workspaces.reopen(&key, self.uid()).await {
            Ok(workspace) => Ok(Some(workspace)),
            Err(workspace::Error::NotLent { .. }) => Ok(None),
            Err(error) => Err(trouble(&error)),
        }
    }

    async fn take(&mut self, workspace: &Workspace) -> Result<(), artifact::Error> {
        let empty = self.empty();
        let run = &self.record.run;
        let stamp = Stamp {
            message: format!(
                "{}\n\nTask: {}/{}\nRun: {}\n",
                run.spec.task_ref.name, run.metadata.namespace, run.spec.task_ref.name, run.metadata.name
            ),
            seconds: self.record.accepted.as_second(),
        };
        let snapshot = self.env.workspaces.snapshot(workspace, &empty, &stamp).await?;
        self.note(&snapshot);
        if self.record.ending.is_some() {
            return Ok(());
        }
        let spec = self.record.run.spec.clone();
        let writes = spec
            .workspace
            .map(|workspace| workspace.writes)
            .unwrap_or_default();
        let outside = violations(&snapshot, &Globs::new(&writes)?);
        if !outside.is_empty() {
            self.record.ending = Some(out_of_scope(&outside, &writes));
        }
        for output in &spec.outputs {
            let taken = self.env.workspaces.output(workspace, &empty, output).await?;
            let artifact = Artifact {
                name: taken.name,
                path: taken.path,
                digest: taken.blob.digest.clone(),
                size: taken.blob.size,
            };
            self.keep(&taken.blob);
            self.record
                .facts
                .result
                .get_or_insert_default()
                .artifacts
                .push(artifact);
        }
        Ok(())
    }

    /// Notes what a snapshot says.
    fn note(&mut self, snapshot: &Snapshot) {
        let mask = self.mask();
        let facts = &mut self.record.facts;
        let paths = snapshot
            .changes
            .iter()
            .take(MAX_PATHS)
            .map(|change| mask.text(&change.path).into_owned());
        facts.changed_files = Some(paths.collect());
        facts.diffstat = Some(snapshot.diffstat.clone());
        let result = facts.result.get_or_insert_default();
        result.artifacts.clear();
        if let Some(git) = snapshot.git() {
            result.base_commit.clone_from(&git.base);
            result.commit.clone_from(&git.commit);
            result.patch = Some(git.patch.to_ref());
            result.bundle = git.bundle.as_ref().map(Blob::to_ref);
            let (patch, bundle) = (git.patch.clone(), git.bundle.clone());
            self.keep(&patch);
            if let Some(bundle) = bundle {
                self.keep(&bundle);
            }
        }
        for skipped in &snapshot.skipped {
            self.logs.say(&format!(
                "left out of the result: {}: {}",
                skipped.path, skipped.why
            ));
        }
    }

    /// Marks a file for the blob store.
    pub(super) fn keep(&mut self, blob: &Blob) {
        self.record.blobs.push(BlobFile {
            path: blob.path.clone(),
            blob: blob.to_ref(),
        });
    }
}

fn out_of_scope(outside: &[String], writes: &[String]) -> Ending {
    let some: Vec<&str> = outside.iter().take(10).map(String::as_str).collect();
    let more = outside.len().saturating_sub(some.len());
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    failed(
        FailureReason::ScopeViolation,
        format!(
            "changed outside of workspace.writes ({}): {}{more}",
            writes.join(", "),
            some.join(", ")
        ),
    )
}
