//! The agent's job, and what is reported of it while it runs.

use panda_api::{FailureReason, RunPhase, SandboxProfile, SandboxReport};
use panda_rpc::report::RunReport;
use panda_sandbox::Report;

use super::job::Kind;
use super::record::{Ending, Stage};
use super::worker::{Halt, Worker, failed, phase};
use crate::device_status::layers;
use crate::disk;
use crate::supervisor::{Entry, Outcome, Record, RunFolder};

/// Longest summary in a result.
const MAX_SUMMARY: usize = 2000;

impl Worker {
    /// Sees the agent to its end and decides what that means.
    pub(super) async fn work(&mut self) -> Result<(), Halt> {
        self.ship_logs();
        let job = RunFolder::at(&self.folder.agent());
        let outcome = self.attend(&job, Kind::Agent).await;
        let outcome = match outcome {
            Ok(outcome) => Some(outcome),
            // The job was never started, and never will be.
            Err(Halt::End(ending)) => {
                self.record.ending.get_or_insert(ending);
                None
            }
            Err(halt) => return Err(halt),
        };
        self.logs.agent_ended();
        if let Some(outcome) = outcome {
            self.judge(outcome);
        }
        self.advance(Stage::Collecting)
    }

    fn judge(&mut self, outcome: Outcome) {
        let facts = &mut self.record.facts;
        if !outcome.session_id.is_empty() {
            facts.session_id = Some(outcome.session_id);
        }
        facts.usage = Some(outcome.usage);
        facts.processes = Some(outcome.processes);
        facts.sandbox = Some(sandbox(&outcome.sandbox));
        let result = facts.result.get_or_insert_default();
        result.summary = cut(outcome.summary.lines().last().unwrap_or_default(), MAX_SUMMARY);
        result.answer = outcome.summary;
        if let Some(mut failure) = outcome.failure {
            // A supervisor that cannot write its journal ends its run.
            if failure.reason == FailureReason::Crashed && disk::is_full_at(&self.env.config.data_dir) {
                failure = failed(FailureReason::DiskFull, failure.message).failure;
            }
            let said = format!("the agent ended: {}", failure.message);
            self.logs.say(&said);
            // Told to stop by an agentlet that was killed before it wrote down why.
            let phase = match failure.reason {
                FailureReason::Cancelled => RunPhase::Cancelled,
                _ => RunPhase::Failed,
            };
            self.record.ending.get_or_insert(Ending { phase, failure });
        }
    }

    /// One entry of the agent's journal.
    pub(super) async fn on_agent(&mut self, entry: Entry) -> Result<(), Halt> {
        let news = entry.seq > self.record.journal;
        let report = match entry.record {
            Record::Spawned {
                agent: true,
                sandbox: report,
                ..
            } => {
                let facts = &mut self.record.facts;
                facts.start_time = Some(entry.at);
                facts.sandbox = Some(sandbox(&report));
                Some(RunReport {
                    start_time: facts.start_time,
                    sandbox: facts.sandbox.clone(),
                    ..phase(RunPhase::Running)
                })
            }
            Record::Session { id } => {
                self.record.facts.session_id = Some(id);
                None
            }
            Record::Usage { usage } => {
                self.record.facts.usage = Some(usage);
                None
            }
            Record::Event { reason, message } => Some(RunReport {
                event: Some((reason, message)),
                ..RunReport::default()
            }),
            Record::Ended { .. } => {
                self.record.ended = Some(entry.at);
                None
            }
            Record::Paused { .. } => Some(phase(RunPhase::Paused)),
            Record::Resumed => Some(phase(RunPhase::Running)),
            _ => None,
        };
        if let Some(report) = report.filter(|_| news) {
            self.report(report).await;
            self.record.journal = entry.seq;
            self.save()?;
        }
        Ok(())
    }

    /// Says how far the agent is, if there is anything to say.
    pub(super) async fn report_progress(&mut self) {
        let logs = self.logs.status(false);
        let facts = &self.record.facts;
        let report = RunReport {
            session_id: facts.session_id.clone(),
            usage: facts.usage.clone(),
            logs: Some(logs),
            ..RunReport::default()
        };
        if self.record.facts.logs != report.logs || self.told != report {
            self.record.facts.logs.clone_from(&report.logs);
            self.told = report.clone();
            self.report(report).await;
        }
    }
}

/// What the floor enforced, as a run's status says it. Nothing but the floor is built yet.
fn sandbox(report: &Report) -> SandboxReport {
    SandboxReport {
        profile: Some(SandboxProfile::Off),
        floor: if report.holds() { "Full" } else { "None" }.into(),
        layers: layers(report),
    }
}

fn cut(text: &str, max: usize) -> String {
    text.chars().take(max).collect()
}
