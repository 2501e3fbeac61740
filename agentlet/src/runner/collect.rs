//! What came out of the agent's work: snapshot, patch, declared outputs.

use std::io;

use panda_api::{Artifact, FailureReason, RunPhase};
use panda_rpc::report::RunReport;

use super::job::chain;
use super::record::{Ending, Stage};
use super::worker::{Halt, MAX_PATHS, Worker, failed};
use crate::artifact::{self, Blob, Globs, Snapshot, Stamp, violations};
use crate::blobship::BlobFile;
use crate::workspace::{self, Workspace};

impl Worker {
    /// Takes what there is. After a failure as much as can be had, after a success everything.
    pub(super) async fn collect(&mut self) -> Result<(), Halt> {
        self.record.blobs.clear();
        let taken = match self.reopen().await? {
            None => Ok(()),
            Some(workspace) => self.take(&workspace).await,
        };
        if let Err(error) = taken {
            let full = error.reason() == FailureReason::DiskFull;
            if error.is_retryable() && !full && self.record.ending.is_none() {
                return Err(Halt::Trouble(io::Error::other(chain(&error))));
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

    /// The workspace that is lent to this run, if one is.
    pub(super) async fn reopen(&self) -> Result<Option<Workspace>, Halt> {
        let key = super::key(&self.record.run);
        match self.env.workspaces.reopen(&key, self.uid()).await {
            Ok(workspace) => Ok(Some(workspace)),
            Err(workspace::Error::NotLent { .. }) => Ok(None),
            Err(error) => Err(Halt::Trouble(io::Error::other(chain(&error)))),
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
        let facts = &mut self.record.facts;
        let paths = snapshot
            .changes
            .iter()
            .take(MAX_PATHS)
            .map(|change| change.path.clone());
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
