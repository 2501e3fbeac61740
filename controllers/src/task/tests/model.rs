//! One Task, its agents, a scheduler and a device, as small as they can be.

use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::ObjectMeta;
use panda_api::{
    Agent, AgentChoice, DriverKind, DriverSpec, Failure, FailureReason, PublishStatus, Run, RunPhase, Task,
    TaskResult, TaskStatus, VerifyResult,
};

use crate::framework::execute::Outcome;
use crate::framework::{Plan, Target};
use crate::task::view::is_terminal;
use crate::task::{Announced, View, plan, run_name};
use crate::testing::{Faults, World};

pub(super) const NS: &str = "web";
pub(super) const NAME: &str = "fix-login";

/// A world with one Task in it.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) world: World,
    announced: std::cell::RefCell<Announced>,
    /// Names of the Secrets that the view shows; none: it shows nothing of them.
    pub(super) secrets: std::cell::RefCell<Option<std::collections::BTreeSet<String>>>,
}

pub(super) fn agent(name: &str) -> Agent {
    let mut agent = Agent {
        metadata: ObjectMeta::namespaced(NS, name),
        ..Agent::default()
    };
    agent.spec.capabilities = vec!["code.edit".into()];
    agent.spec.drivers = vec![DriverSpec {
        kind: DriverKind::Exec,
        ..DriverSpec::default()
    }];
    agent
}

pub(super) fn task(name: &str) -> Task {
    let mut task = Task {
        metadata: ObjectMeta::namespaced(NS, name),
        ..Task::default()
    };
    task.spec.prompt = "mend it".into();
    task.spec.agents = vec![AgentChoice {
        name: "a".into(),
        ..AgentChoice::default()
    }];
    task
}

pub(super) fn start() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

pub(super) fn failure(reason: FailureReason) -> Failure {
    Failure {
        reason,
        message: "it broke".into(),
        ..Failure::default()
    }
}

impl Model {
    pub(super) fn new(task: &Task) -> Self {
        Self::seeded(task, 0)
    }

    pub(super) fn seeded(task: &Task, seed: u32) -> Self {
        let world = World::seeded(seed);
        world.set_now(start());
        world.put(&agent("a"));
        world.put(&agent("b"));
        world.put(task);
        Self {
            world,
            announced: std::cell::RefCell::default(),
            secrets: std::cell::RefCell::default(),
        }
    }

    pub(super) fn task(&self) -> Task {
        self.world.get(NS, NAME).unwrap()
    }

    pub(super) fn status(&self) -> TaskStatus {
        self.task().status
    }

    pub(super) fn runs(&self) -> Vec<Run> {
        self.world
            .list::<Run>()
            .iter()
            .map(|run| (**run).clone())
            .collect()
    }

    pub(super) fn live(&self) -> Option<Run> {
        self.runs().into_iter().find(|run| !is_terminal(run))
    }

    /// The plan from what the caches showed at the given versions.
    pub(super) fn plan_at(&self, task: u64, runs: u64, agents: u64) -> Option<Plan> {
        let tasks = self.world.list_at::<Task>(task);
        let task = tasks.iter().find(|task| task.metadata.name == NAME)?;
        let runs = self.world.list_at::<Run>(runs);
        let seen = runs.iter().map(|run| &**run);
        let announced = self.announced.borrow_mut().observe(seen, self.world.monotonic());
        let view = View {
            announced,
            runs: runs
                .into_iter()
                .map(|run| (run.metadata.name.clone(), run))
                .collect(),
            agents: self
                .world
                .list_at::<Agent>(agents)
                .into_iter()
                .map(|agent| (agent.metadata.name.clone(), agent))
                .collect(),
            secrets: self.secrets.borrow().clone(),
        };
        Some(plan(&view, task, self.world.now()))
    }

    pub(super) fn plan(&self) -> Plan {
        let now = self.world.revision();
        self.plan_at(now, now, now).unwrap()
    }

    /// Plans and acts until there is nothing to do; returns the last plan.
    pub(super) fn reconcile(&self) -> Plan {
        for _ in 0..20 {
            let plan = self.plan();
            if plan.is_idle() {
                return plan;
            }
            assert_ne!(self.world.execute(&plan, Faults::default()), None);
        }
        panic!("plans without end: {:#?}", self.plan());
    }

    pub(super) fn edit(&self, change: impl FnOnce(&mut Task)) {
        let mut task = self.task();
        let (rerun, cancel) = (task.spec.rerun.unwrap_or_default(), task.spec.cancel);
        change(&mut task);
        // What admission does.
        if task.spec.rerun.unwrap_or_default() > rerun {
            task.spec.cancel = None;
        } else if cancel == Some(true) {
            task.spec.cancel = cancel;
        }
        self.world.put(&task);
    }

    pub(super) fn edit_run(&self, run: &Run, change: impl FnOnce(&mut Run)) {
        let mut run: Run = self.world.get(NS, &run.metadata.name).unwrap();
        assert!(!is_terminal(&run), "a terminal Run never changes: {run:#?}");
        change(&mut run);
        self.world.put(&run);
    }

    pub(super) fn bind(&self, run: &Run) {
        self.edit_run(run, |run| {
            run.spec.device_name = "d".into();
            run.spec.lease_epoch = Some(1);
            run.status.phase = Some(RunPhase::Preparing);
        });
    }

    pub(super) fn set_phase(&self, run: &Run, phase: RunPhase) {
        self.edit_run(run, |run| run.status.phase = Some(phase));
    }

    pub(super) fn fail(&self, run: &Run, failure: Failure) {
        self.edit_run(run, |run| {
            run.status.phase = Some(RunPhase::Failed);
            run.status.failure = Some(failure);
        });
    }

    /// The device finished the work and the checks; with `push: OnSuccess` it waits to publish.
    pub(super) fn finish(&self, run: &Run) {
        self.edit_run(run, |run| {
            let publishes = crate::task::result::publishes(run.spec.workspace.as_ref());
            run.status.phase = Some(if publishes {
                RunPhase::Publishing
            } else {
                RunPhase::Succeeded
            });
            run.status.verify = run
                .spec
                .verify
                .iter()
                .map(|check| VerifyResult {
                    name: check.name.clone(),
                    passed: true,
                    ..VerifyResult::default()
                })
                .collect();
            run.status.result = Some(TaskResult {
                summary: format!("by {}", run.metadata.name),
                ..TaskResult::default()
            });
        });
    }

    pub(super) fn publish(&self, run: &Run, state: &str) {
        self.edit_run(run, |run| {
            let try_number = run.spec.publish.as_ref().map_or(0, |p| p.try_number);
            run.status.publish = Some(PublishStatus {
                state: state.into(),
                commit: "c0ffee".into(),
                try_number,
                ..PublishStatus::default()
            });
            if state == "Published" {
                run.status.phase = Some(RunPhase::Succeeded);
            }
        });
    }

    /// Runs the next attempt up to its end by `end`.
    pub(super) fn attempt(&self, end: impl FnOnce(&Self, &Run)) {
        self.reconcile();
        let run = self.live().expect("an attempt");
        self.bind(&run);
        self.reconcile();
        end(self, &run);
        self.reconcile();
    }

    /// Waits until the next attempt may start.
    pub(super) fn wait(&self) {
        if let Some(time) = self.status().next_attempt_time {
            assert!(time.0 > self.world.now());
            self.world.set_now(time.0);
        }
    }

    pub(super) fn secs(&self, secs: u64) {
        self.world.advance(Duration::from_secs(secs));
    }

    pub(super) fn outcome(&self, plan: &Plan, faults: Faults) -> Option<Outcome> {
        self.world.execute(plan, faults)
    }

    pub(super) fn run_target(&self, attempt: u32) -> Target {
        Target::new::<Run>(NS, &run_name(NAME, &self.task().metadata.uid, attempt))
    }
}
