//! The platform's own checks of a result: each its own supervised job, on a fresh extraction.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use panda_api::logline;
use panda_api::{FailureClass, FailureReason, NetworkMode, VerifyDevice, VerifyResult, VerifySpec};
use tracing::Instrument;
use tracing::field::Empty;

use super::job::{Kind, chain};
use super::record::Stage;
use super::worker::{Halt, Worker, failed, trouble};
use crate::artifact::Snapshot;
use crate::blobship::{BlobFile, digest};
use crate::driver::DriverConfig;
use crate::supervisor::log::{Caps, Chunk, LogReader, Stream};
use crate::supervisor::{JobSpec, Limits, Outcome, Program, RunFolder, SecretUse};
use crate::verify::Extraction;

/// How long a check may take that does not say.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Watchdogs of silence mean nothing for checks: they end before.
const NO_SILENCE: Duration = Duration::from_secs(1);
/// How much of a check's output stands in the status.
const TAIL: usize = 2000;
/// How much output of one check is kept.
const CAPS: Caps = Caps {
    head: 1 << 20,
    tail: 7 << 20,
    segment: 1 << 20,
};

impl Worker {
    /// Runs the checks that have no result yet.
    pub(super) async fn verify(&mut self) -> Result<(), Halt> {
        let checks = self.record.run.spec.verify.clone();
        if self.record.ending.is_some() {
            for index in 0..checks.len() {
                self.put_down(&RunFolder::at(&self.folder.check(index))).await?;
            }
            return self.advance(Stage::Handing);
        }
        let key = super::key(&self.record.run);
        let taken = self.env.workspaces.taken(&key, self.uid()).await;
        let Some(snapshot) = taken.map_err(|e| trouble(&e))? else {
            let message = "the snapshot that the checks need is gone";
            return Err(Halt::End(failed(FailureReason::WorkspaceFailed, message)));
        };
        for (index, check) in checks.iter().enumerate() {
            let done = self.record.facts.verify.as_ref().map_or(0, Vec::len);
            if index < done {
                continue;
            }
            let span = tracing::info_span!("check", name = check.name, passed = Empty);
            let checked = self.check(index, check, &snapshot).instrument(span.clone());
            let result = checked.await?;
            span.record("passed", result.passed);
            if self.record.ending.is_some() {
                break;
            }
            let word = if result.passed { "passed" } else { "failed" };
            let line = format!("check {}: {word} {}", check.name, result.message);
            self.logs.say(line.trim_end());
            self.record.facts.verify.get_or_insert_default().push(result);
            self.save()?;
            self.sweep().await;
        }
        self.sweep().await;
        if !checks.is_empty() {
            self.record.ended = Some(self.now());
        }
        let results = self.record.facts.verify.as_deref().unwrap_or_default();
        let bad: Vec<&str> = results
            .iter()
            .filter(|r| !r.passed)
            .map(|r| r.name.as_str())
            .collect();
        if !bad.is_empty() {
            let message = format!("checks failed: {}", bad.join(", "));
            self.record
                .ending
                .get_or_insert(failed(FailureReason::VerifyFailed, message));
        }
        self.advance(Stage::Handing)
    }

    /// Removes what checks left on the disk.
    pub(super) async fn sweep(&self) {
        let key = super::key(&self.record.run);
        if let Err(error) = self.env.workspaces.remove_extractions(&key, self.uid()).await {
            tracing::warn!(run = self.uid(), %error, "folder of a check could not be removed");
        }
    }

    async fn check(
        &mut self,
        index: usize,
        check: &VerifySpec,
        snapshot: &Snapshot,
    ) -> Result<VerifyResult, Halt> {
        if let Some(why) = unsupported(check) {
            let reason = FailureReason::SandboxUnavailable;
            return Err(Halt::End(failed(reason, format!("check {}: {why}", check.name))));
        }
        let job = RunFolder::at(&self.folder.check(index));
        if !job.spec_path().exists() {
            let key = super::key(&self.record.run);
            let extraction = self
                .env
                .workspaces
                .extract(&key, snapshot, &check.name, &check.restore);
            let extraction = match self.guarded(extraction).await? {
                Ok(extraction) => extraction,
                Err(error) if error.is_retryable() => {
                    return Err(trouble(&error));
                }
                Err(error) => return Err(Halt::End(failed(error.reason(), chain(&error)))),
            };
            let spec = self.check_spec(check, &extraction);
            self.make_job(&job, &spec)?;
        }
        let outcome = self.attend(&job, Kind::Check).await?;
        self.result_of(index, check, &job, outcome)
    }

    /// Makes a job's folder; one that is not complete is from before a crash.
    pub(super) fn make_job(&self, job: &RunFolder, spec: &JobSpec) -> Result<(), Halt> {
        match fs::remove_dir_all(job.path()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e.into()),
            _ => {}
        }
        RunFolder::create(job.path(), spec, self.grant.as_ref(), self.env.ids.as_ref())
            .map_err(|e| trouble(&e))?;
        Ok(())
    }

    fn check_spec(&self, check: &VerifySpec, extraction: &Extraction) -> JobSpec {
        let timeout = check
            .timeout
            .as_ref()
            .map_or(TIMEOUT, panda_api::meta::Duration::get);
        let tmp = extraction.tmp();
        let mut env = self.base_env(&extraction.home(), &tmp);
        // Values in clear only: a check has no secrets.
        for var in &self.record.run.spec.env {
            if let Some(value) = &var.value {
                env.push((var.name.clone(), value.clone()));
            }
        }
        JobSpec {
            program: Program {
                argv: check.command.clone(),
                env,
                cwd: extraction.tree(),
                home: extraction.home(),
                user: self.env.user,
                user_is_exclusive: false,
                hidden: self.env.config.all_hidden(),
                visible: vec![extraction.tree(), extraction.home(), tmp],
            },
            driver: DriverConfig::default(),
            limits: Limits {
                first_output: timeout + NO_SILENCE,
                silence: timeout + NO_SILENCE,
                attempt: timeout,
                repeat: 0,
            },
            log: CAPS,
            // No values, but the agent may have left some where a check prints them.
            secrets: self.has_secrets().then(SecretUse::default),
            ..self.base_spec()
        }
    }

    fn result_of(
        &mut self,
        index: usize,
        check: &VerifySpec,
        job: &RunFolder,
        outcome: Outcome,
    ) -> Result<VerifyResult, Halt> {
        if let Some(failure) = &outcome.failure {
            let message = format!("check {}: {}", check.name, failure.message);
            match failure.reason {
                FailureReason::Crashed => {
                    return Err(Halt::End(failed(FailureReason::Internal, message)));
                }
                reason if reason.class() == FailureClass::Device => {
                    return Err(Halt::End(failed(reason, message)));
                }
                _ => {}
            }
        }
        let path = self.folder.check_log(index);
        let tail = plain_log(job, &path)?;
        let blob = digest(&path)?;
        self.record.blobs.push(BlobFile {
            path,
            blob: blob.clone(),
        });
        Ok(VerifyResult {
            name: check.name.clone(),
            passed: outcome.failure.is_none(),
            exit_code: outcome.exit.and_then(|exit| exit.code),
            duration: Some(outcome.worked.into()),
            log: Some(blob),
            tail,
            where_: self.env.config.device_name.clone(),
            // Under profile Off nothing keeps the agent's work from influencing what runs after it.
            trusted: false,
            message: outcome.failure.map(|failure| failure.message).unwrap_or_default(),
        })
    }
}

/// Why a check cannot be run here.
fn unsupported(check: &VerifySpec) -> Option<&'static str> {
    if !check.agent.is_empty() {
        return Some("reviewing agents are not implemented yet");
    }
    if check.device == Some(VerifyDevice::Other) {
        return Some("checks on another device are not implemented yet");
    }
    match check.network {
        None | Some(NetworkMode::Host) => None,
        Some(NetworkMode::None | NetworkMode::ModelOnly | NetworkMode::Allow) => {
            Some("profile Off cannot limit the network; use network: Host, or leave it out")
        }
    }
}

/// Writes a job's output as it came to `path`; the end of it, as text.
fn plain_log(job: &RunFolder, path: &Path) -> io::Result<String> {
    let reader = LogReader::new(&job.logs(), Stream::Log);
    let mut out = BufWriter::new(File::create(path)?);
    let mut tail = Vec::new();
    let (mut offset, mut line, mut torn) = (0, Vec::new(), false);
    let mut put = |bytes: &[u8]| {
        tail.extend_from_slice(bytes);
        let excess = tail.len().saturating_sub(TAIL * 2);
        tail.drain(..excess);
        out.write_all(bytes)
    };
    loop {
        match reader.read(offset, 64 << 10)? {
            Chunk::Data(bytes) => {
                offset += bytes.len() as u64;
                for piece in bytes.split_inclusive(|b| *b == b'\n') {
                    line.extend_from_slice(piece);
                    if !piece.ends_with(b"\n") {
                        continue;
                    }
                    // What follows a gap begins in the middle of a record.
                    if let Some(record) = logline::parse(&line).filter(|_| !torn) {
                        put(record.bytes)?;
                        if !record.partial {
                            put(b"\n")?;
                        }
                    }
                    line.clear();
                    torn = false;
                }
            }
            Chunk::Gap { to } => {
                put(format!("\n[{} bytes are not kept]\n", to - offset).as_bytes())?;
                offset = to;
                torn = true;
                line.clear();
            }
            Chunk::End => break,
        }
    }
    out.flush()?;
    drop(out);
    let text = String::from_utf8_lossy(&tail);
    let skip = text.chars().count().saturating_sub(TAIL);
    Ok(text.chars().skip(skip).collect())
}
