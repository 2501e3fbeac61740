//! What a device reports about a Run that was taken away from it. Pure: the caller reads and commits.
//!
//! The Run stays Lost; what comes late is collected in `status.lateResult`, where the Task may accept it. Only the last
//! report is told as taken: any other one is stale, so that a device on which something still works ends it.

use panda_api::meta::Time;
use panda_api::{LateResult, Run, RunPhase, RunStatus};
use panda_rpc::report::RunReport;

use super::accept::Stale;

/// What a late report leads to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Late {
    /// The status of the Run with it.
    pub(crate) status: RunStatus,
    /// Whether it was the last one.
    pub(crate) last: bool,
}

/// The status of a Lost `run` after `report` of its own device.
pub(crate) fn apply(run: &Run, report: &RunReport, now: Time) -> Result<Late, Stale> {
    let mut late = run.status.late_result.clone().unwrap_or_default();
    if late.phase.is_some_and(RunPhase::is_terminal) {
        return Err(Stale::AlreadyEnded);
    }
    // Reports before the loss said part of it; those are in the status.
    if untouched(&late) {
        late.verify.clone_from(&run.status.verify);
        late.result.clone_from(&run.status.result);
        late.changed_files.clone_from(&run.status.changed_files);
        late.diffstat.clone_from(&run.status.diffstat);
        late.publish.clone_from(&run.status.publish);
    }
    let report = report.clone();
    macro_rules! take {
        ($($field:ident),*) => { $( if let Some(value) = report.$field { late.$field = value; } )* };
        (optional $($field:ident),*) => { $( if report.$field.is_some() { late.$field = report.$field; } )* };
    }
    take!(verify, changed_files, diffstat);
    take!(optional result, failure, usage, publish);
    let last = report
        .phase
        .is_some_and(|phase| phase.is_terminal() || phase == RunPhase::Publishing);
    if last {
        late.phase = report.phase;
    }
    late.arrival_time = Some(now);
    let mut status = run.status.clone();
    status.late_result = Some(late);
    Ok(Late { status, last })
}

fn untouched(late: &LateResult) -> bool {
    late.arrival_time.is_none()
}

/// The status of a Lost `run` once its device has said that it holds a finished result; none when that is no news.
pub(crate) fn announce(run: &Run, now: Time) -> Option<RunStatus> {
    let late = run.status.late_result.as_ref();
    let news = run.status.phase == Some(RunPhase::Lost)
        && late.is_none_or(|late| late.phase.is_none() && late.announced_time.is_none());
    news.then(|| {
        let mut status = run.status.clone();
        status.late_result.get_or_insert_default().announced_time = Some(now);
        status
    })
}

#[cfg(test)]
mod tests {
    use panda_api::{TaskResult, Usage, VerifyResult};

    use super::*;

    fn now() -> Time {
        "2026-01-02T03:04:05Z"
            .parse::<jiff::Timestamp>()
            .map(Time)
            .unwrap()
    }

    fn lost() -> Run {
        let mut run = Run::default();
        run.status.phase = Some(RunPhase::Lost);
        run.status.usage.input_tokens = 10;
        run.status.verify = vec![VerifyResult {
            name: "tests".into(),
            passed: true,
            ..VerifyResult::default()
        }];
        run
    }

    #[test]
    fn the_last_report_completes_what_came_before_and_the_run_stays_lost() {
        let mut run = lost();
        let part = RunReport {
            phase: Some(RunPhase::Verifying),
            usage: Some(Usage {
                input_tokens: 30,
                ..Usage::default()
            }),
            ..RunReport::default()
        };
        let late = apply(&run, &part, now()).unwrap();
        assert!(!late.last);
        run.status = late.status;
        let end = RunReport {
            phase: Some(RunPhase::Succeeded),
            result: Some(TaskResult::default()),
            ..RunReport::default()
        };
        let late = apply(&run, &end, now()).unwrap();
        assert!(late.last);
        run.status = late.status;
        assert_eq!(run.status.phase, Some(RunPhase::Lost));
        assert_eq!(run.status.usage.input_tokens, 10, "what was known stays");
        let result = run.status.late_result.as_deref().unwrap();
        assert_eq!(result.phase, Some(RunPhase::Succeeded));
        assert_eq!(result.verify.len(), 1);
        assert_eq!(result.usage.as_ref().unwrap().input_tokens, 30);
        assert_eq!(apply(&run, &end, now()), Err(Stale::AlreadyEnded));
    }

    #[test]
    fn a_result_that_waits_for_publication_may_still_end() {
        let mut run = lost();
        for phase in [RunPhase::Publishing, RunPhase::Failed] {
            let report = RunReport {
                phase: Some(phase),
                ..RunReport::default()
            };
            run.status = apply(&run, &report, now()).unwrap().status;
        }
        assert_eq!(run.status.late_result.unwrap().phase, Some(RunPhase::Failed));
    }

    #[test]
    fn a_result_is_announced_once_and_only_of_a_lost_run() {
        let mut run = lost();
        run.status = announce(&run, now()).unwrap();
        assert_eq!(announce(&run, now()), None);
        let end = RunReport {
            phase: Some(RunPhase::Succeeded),
            ..RunReport::default()
        };
        run.status = apply(&run, &end, now()).unwrap().status;
        assert_eq!(announce(&run, now()), None);
        let mut live = lost();
        live.status.phase = Some(RunPhase::Running);
        assert_eq!(announce(&live, now()), None);
    }
}
