//! From any state, with stale views, lost answers and a crash after any write, a Task ends; then nothing is planned.

use std::collections::BTreeMap;
use std::time::Duration;

use panda_api::{FailureReason, Run, RunPhase, Task, TaskPhase, VerifySpec};
use proptest::prelude::*;

use super::model::{Model, NAME, NS, agent, failure, task};
use crate::framework::Target;
use crate::task::view::is_terminal;
use crate::testing::Faults;

/// One step of the world.
#[derive(Clone, Debug)]
enum Step {
    Reconcile {
        task: u64,
        runs: u64,
        agents: u64,
        crash: Option<u32>,
        lose: Option<u32>,
    },
    Bind,
    Phase(RunPhase),
    Finish,
    Fail(FailureReason),
    Published,
    PublishFailed,
    Cancel,
    Suspend(bool),
    Rerun,
    Prompt,
    DeleteRun,
    DropAgent,
    AddAgent,
    LoseStatus,
    Advance(u64),
    /// Our clock is set, forwards or back.
    Jump(i64),
    /// The device of a Lost Run says that it holds a result.
    Announce,
    /// It hands over what it has; with or without a result.
    Return(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let lag = || prop_oneof![3 => Just(0u64), 2 => 0u64..8];
    let fault = || prop_oneof![3 => Just(None), 1 => (0u32..3).prop_map(Some)];
    prop_oneof![
        10 => (lag(), lag(), lag(), fault(), fault())
            .prop_map(|(task, runs, agents, crash, lose)| Step::Reconcile { task, runs, agents, crash, lose }),
        4 => Just(Step::Bind),
        1 => prop_oneof![Just(RunPhase::Running), Just(RunPhase::Verifying), Just(RunPhase::Paused)]
            .prop_map(Step::Phase),
        1 => Just(Step::Phase(RunPhase::Cancelled)),
        1 => Just(Step::Phase(RunPhase::Lost)),
        2 => Just(Step::Finish),
        4 => proptest::sample::select(vec![
            FailureReason::DeviceLost,
            FailureReason::RateLimited,
            FailureReason::AgentNotFound,
            FailureReason::Crashed,
            FailureReason::VerifyFailed,
            FailureReason::ScopeViolation,
        ])
        .prop_map(Step::Fail),
        1 => Just(Step::Published),
        1 => Just(Step::PublishFailed),
        1 => Just(Step::Cancel),
        1 => any::<bool>().prop_map(Step::Suspend),
        1 => Just(Step::Rerun),
        1 => Just(Step::Prompt),
        1 => Just(Step::DeleteRun),
        1 => Just(Step::DropAgent),
        1 => Just(Step::AddAgent),
        1 => Just(Step::LoseStatus),
        3 => (1u64..40).prop_map(Step::Advance),
        1 => (-3600i64..3600).prop_map(Step::Jump),
        1 => Just(Step::Announce),
        2 => any::<bool>().prop_map(Step::Return),
    ]
}

fn on_return() -> impl Strategy<Value = panda_api::ReturnPolicy> {
    use panda_api::ReturnPolicy::{KeepFirst, KeepNew, KeepOld};
    proptest::sample::select(vec![KeepFirst, KeepOld, KeepNew])
}

/// What must hold at every version of the world.
#[derive(Debug, Default)]
struct Judge {
    seen: u64,
    task: Option<Task>,
    live: BTreeMap<String, Run>,
    attempts: u32,
    accepted: BTreeMap<i64, String>,
}

impl Judge {
    fn look(&mut self, model: &Model) {
        for change in model.world.changes(self.seen) {
            self.seen = change.revision;
            let Some(object) = change.object else { continue };
            match change.plural {
                "tasks" => self.task_changed(serde_json::from_value(object).unwrap()),
                "runs" => self.run_changed(serde_json::from_value(object).unwrap(), model),
                _ => {}
            }
        }
        let now: Vec<_> = model.runs().into_iter().map(|run| run.metadata.name).collect();
        self.live.retain(|name, _| now.contains(name));
        assert!(self.live.len() <= 1, "two attempts are live: {:#?}", self.live);
        self.accepted_may_count(model);
    }

    /// A Lost Run counts only by what came late of it, and never with `KeepNew`; or it was lost as it published.
    fn accepted_may_count(&self, model: &Model) {
        let task = model.task();
        let accepted = model.runs().into_iter().find(|run| {
            run.metadata.name == task.status.accepted_run && run.status.phase == Some(RunPhase::Lost)
        });
        let Some(run) = accepted.filter(|run| !crate::task::result::publishes(run.spec.workspace.as_ref()))
        else {
            return;
        };
        let late = run
            .status
            .late_result
            .as_ref()
            .expect("accepted without a result");
        assert_eq!(late.phase, Some(RunPhase::Succeeded), "{run:#?}");
        let rule = run.on_disconnect();
        assert_ne!(rule.on_return, panda_api::ReturnPolicy::KeepNew, "{run:#?}");
    }

    fn task_changed(&mut self, task: Task) {
        let status = &task.status;
        if status.phase.is_none() {
            // Created, or its status was lost: what is counted from is gone.
            self.attempts = self.attempts.min(status.attempts);
            self.accepted.clear();
        }
        assert!(
            status.attempts >= self.attempts,
            "attempts went down: {status:#?}"
        );
        self.attempts = status.attempts;
        if let Some(old) = &self.task
            && old.status.rerun == status.rerun
            && status.phase.is_some()
        {
            let (new, old) = (&status.retries, &old.status.retries);
            assert!(
                new.agent >= old.agent
                    && new.device >= old.device
                    && new.provider >= old.provider
                    && new.rounds >= old.rounds
                    && new.publication >= old.publication,
                "counters went down: {new:?} after {old:?}"
            );
        }
        if !status.accepted_run.is_empty() {
            let rerun = status.rerun.unwrap_or_default();
            let first = self
                .accepted
                .entry(rerun)
                .or_insert_with(|| status.accepted_run.clone());
            assert_eq!(*first, status.accepted_run, "accepted twice in rerun {rerun}");
        }
        self.task = Some(task);
    }

    fn run_changed(&mut self, run: Run, model: &Model) {
        let name = run.metadata.name.clone();
        if is_terminal(&run) {
            self.live.remove(&name);
        } else if self.live.insert(name, run.clone()).is_none() {
            self.created(&run, model);
        }
    }

    fn created(&self, run: &Run, model: &Model) {
        let task = self.task.as_ref().unwrap();
        assert_ne!(task.spec.cancel, Some(true), "made after cancel: {run:#?}");
        assert_ne!(task.spec.suspend, Some(true), "made while suspended: {run:#?}");
        assert_eq!(run.spec.rerun, task.spec.rerun.unwrap_or_default());
        assert_eq!(
            run.spec.attempt, task.status.attempts,
            "not the attempt that was written down"
        );
        if let (Some(deadline), Some(start)) = (&task.spec.deadline, task.status.start_time) {
            let needed = run.spec.attempt_timeout.as_ref().unwrap().get() + Duration::from_secs(10);
            let end = start.0 + deadline.get();
            assert!(model.world.now() + needed <= end, "cannot fit: {run:#?}");
        }
    }
}

fn apply(model: &Model, step: &Step, judge: &mut Judge) {
    let live = model.live();
    let bound = live.as_ref().filter(|run| !run.spec.device_name.is_empty());
    match step {
        Step::Reconcile {
            task,
            runs,
            agents,
            crash,
            lose,
        } => {
            let now = model.world.revision();
            let at = |lag: &u64| now.saturating_sub(*lag);
            if let Some(plan) = model.plan_at(at(task), at(runs), at(agents)) {
                let faults = Faults {
                    crash_after: *crash,
                    lose_answer: *lose,
                };
                model.outcome(&plan, faults);
            }
        }
        Step::Bind => {
            if let Some(run) = live.filter(|run| run.spec.device_name.is_empty()) {
                model.bind(&run);
            }
        }
        Step::Phase(RunPhase::Cancelled) => {
            if let Some(run) = bound.filter(|run| run.spec.cancel == Some(true)) {
                model.set_phase(run, RunPhase::Cancelled);
            }
        }
        Step::Phase(phase) => {
            if let Some(run) = bound {
                model.set_phase(run, *phase);
            }
        }
        Step::Finish => {
            if let Some(run) = bound.filter(|run| run.status.phase != Some(RunPhase::Publishing)) {
                model.finish(run);
            }
        }
        Step::Fail(reason) => {
            if let Some(run) = bound {
                model.fail(run, failure(*reason));
            }
        }
        Step::Published | Step::PublishFailed => {
            if let Some(run) = bound.filter(|run| run.spec.publish.is_some()) {
                let state = if matches!(step, Step::Published) {
                    "Published"
                } else {
                    "Failed"
                };
                model.publish(run, state);
            }
        }
        Step::Cancel => model.edit(|task| task.spec.cancel = Some(true)),
        Step::Suspend(on) => model.edit(|task| task.spec.suspend = Some(*on)),
        Step::Rerun => model.edit(|task| task.spec.rerun = Some(task.spec.rerun.unwrap_or_default() + 1)),
        Step::Prompt => model.edit(|task| task.spec.prompt.push('!')),
        Step::DeleteRun => {
            if let Some(run) = model.runs().first() {
                model.world.remove(&Target::of(run));
            }
        }
        Step::DropAgent => model.world.remove(&Target::new::<panda_api::Agent>(NS, "a")),
        Step::AddAgent => drop(model.world.put(&agent("a"))),
        Step::LoseStatus => {
            // Only what restoring an old backup can do: Runs that the status speaks of are there.
            if live.is_none() && model.runs().len() as u32 == model.status().attempts {
                let mut task = model.task();
                task.status = panda_api::TaskStatus::default();
                model.world.put(&task);
            }
        }
        Step::Advance(secs) => model.secs(*secs),
        Step::Jump(secs) => model
            .world
            .set_now(model.world.now() + jiff::SignedDuration::from_secs(*secs)),
        Step::Announce | Step::Return(_) => come_back(model, step),
    }
    judge.look(model);
}

/// The device of some Lost Run speaks again.
fn come_back(model: &Model, step: &Step) {
    let quiet = |run: &Run| {
        let late = run.status.late_result.as_ref();
        run.status.phase == Some(RunPhase::Lost) && late.is_none_or(|late| late.phase.is_none())
    };
    let Some(mut run) = model.runs().into_iter().find(quiet) else {
        return;
    };
    let late = run.status.late_result.get_or_insert_default();
    if let Step::Return(complete) = step {
        late.phase = Some(if *complete {
            RunPhase::Succeeded
        } else {
            RunPhase::Failed
        });
        late.result = complete.then(panda_api::TaskResult::default);
        late.verify = run
            .spec
            .verify
            .iter()
            .map(|check| panda_api::VerifyResult {
                name: check.name.clone(),
                passed: *complete,
                ..Default::default()
            })
            .collect();
        late.usage = Some(panda_api::Usage {
            turns: 1,
            ..Default::default()
        });
    } else {
        late.announced_time = Some(panda_api::meta::Time(model.world.now()));
    }
    model.world.put(&run);
}

/// Lets everything work: up-to-date views, no faults, a device that does what is asked.
fn settle(model: &Model, judge: &mut Judge) {
    model.world.put(&agent("a"));
    model.edit(|task| task.spec.suspend = Some(false));
    for _ in 0..200 {
        let plan = model.plan();
        if !plan.is_idle() {
            model.outcome(&plan, Faults::default());
        } else if let Some(run) = model.live() {
            if run.spec.device_name.is_empty() {
                model.bind(&run);
            } else if run.spec.cancel == Some(true) {
                model.set_phase(&run, RunPhase::Cancelled);
            } else if run.spec.publish.is_some() {
                let answered = run.status.publish.as_ref().map(|p| p.try_number);
                if answered == run.spec.publish.as_ref().map(|p| p.try_number) {
                    model.world.advance(plan.requeue.unwrap_or_default());
                } else {
                    model.publish(&run, "Published");
                }
            } else {
                model.finish(&run);
            }
        } else if let Some(wait) = plan.requeue {
            model.world.advance(wait);
        } else {
            return;
        }
        judge.look(model);
    }
    panic!("does not settle: {:#?}\n{:#?}", model.task(), model.runs());
}

fn check(wanted: &Task, steps: &[Step]) {
    let model = Model::new(wanted);
    let mut judge = Judge::default();
    judge.look(&model);
    for step in steps {
        apply(&model, step, &mut judge);
    }
    settle(&model, &mut judge);
    let phase = model.status().phase.unwrap();
    assert!(
        phase.is_terminal() || phase == TaskPhase::Review,
        "{:#?}",
        model.task()
    );
    assert!(model.plan().is_idle() && model.live().is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_task_converges(steps in proptest::collection::vec(step(), 0..60), on_return in on_return()) {
        let mut wanted = task(NAME);
        wanted.spec.device = Some(panda_api::DeviceRequest {
            on_disconnect: Some(panda_api::OnDisconnect { on_return, ..Default::default() }),
            ..Default::default()
        });
        check(&wanted, &steps);
    }

    #[test]
    fn a_task_that_publishes_converges(steps in proptest::collection::vec(step(), 0..60)) {
        let mut wanted = task(NAME);
        wanted.spec.workspace = Some(panda_api::WorkspaceSpec {
            git: Some(panda_api::GitSpec { path: "/r".into(), ..Default::default() }),
            result: Some(panda_api::ResultSpec { push: panda_api::Push::OnSuccess, ..Default::default() }),
            ..Default::default()
        });
        check(&wanted, &steps);
    }

    #[test]
    fn a_task_with_a_deadline_converges(steps in proptest::collection::vec(step(), 0..60)) {
        let mut wanted = task(NAME);
        wanted.spec.attempt_timeout = Some(panda_api::meta::Duration::from_secs(20));
        wanted.spec.deadline = Some(panda_api::meta::Duration::from_secs(120));
        wanted.spec.verify = vec![VerifySpec {
            name: "tests".into(),
            timeout: Some(panda_api::meta::Duration::from_secs(5)),
            ..VerifySpec::default()
        }];
        check(&wanted, &steps);
    }
}
