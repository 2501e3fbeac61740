//! All controllers against an API server in memory, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use panda_api::meta::{Clock, Condition, ObjectMeta, Reason, Status, Time};
use panda_api::{
    Agent, AgentChoice, Device, DeviceAgent, DriverKind, DriverSpec, Lease, RefusalReason, Run, RunPhase,
    Task, TaskPhase,
};
use panda_client::Options;
use panda_client::fake::{self, CountingIds, Effect, Fault, Server};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Config, Manager};

/// Time that goes as tokio's does.
#[derive(Clone, Copy, Debug)]
struct VirtualClock(Instant);

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let start: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        start + self.0.elapsed()
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

struct Cluster {
    server: Server,
    clock: VirtualClock,
    ids: Arc<CountingIds>,
}

impl Cluster {
    fn new() -> Self {
        let clock = VirtualClock(Instant::now());
        let server = Server::new(fake::Config {
            clock: Arc::new(clock),
            ..fake::Config::default()
        });
        server.on_post("runs", "binding", bind);
        let mut agent = Agent {
            metadata: ObjectMeta::namespaced("web", "a"),
            ..Agent::default()
        };
        agent.spec.drivers = vec![DriverSpec {
            kind: DriverKind::Exec,
            command: vec!["true".into()],
            ..DriverSpec::default()
        }];
        server.create(&agent).unwrap();
        Self {
            server,
            clock,
            ids: Arc::default(),
        }
    }

    /// Starts the controllers; whoever drops what is returned kills them.
    fn start(&self) -> Running {
        let options = Options {
            request_timeout: Duration::from_secs(2),
            retries: 0,
            ..Options::default()
        };
        let manager = Manager::build(
            self.server.client_with(options),
            Arc::new(self.clock),
            Arc::clone(&self.ids) as _,
            Config::default(),
        );
        Running(tokio::spawn(manager.run(CancellationToken::new())))
    }

    /// A device joins, with its first heartbeat.
    fn join(&self, slots: u32) {
        let device = Device {
            metadata: ObjectMeta::named("pi"),
            ..Device::default()
        };
        self.server.create(&device).unwrap();
        self.server
            .update::<Device>("", "pi", |device| {
                device.status.max_runs = Some(slots);
                device.status.agents = vec![DeviceAgent {
                    namespace: "web".into(),
                    name: "a".into(),
                    driver: Some(DriverKind::Exec),
                    ..DeviceAgent::default()
                }];
            })
            .unwrap();
        let mut lease = Lease {
            metadata: ObjectMeta::namespaced("panda-system", "pi"),
            ..Lease::default()
        };
        let uid = self.server.get::<Device>("", "pi").unwrap().metadata.uid;
        lease.spec.holder_identity = Some(uid);
        lease.spec.lease_duration_seconds = Some(40);
        self.server.create(&lease).unwrap();
    }

    fn task(&self, name: &str) {
        let mut task = Task {
            metadata: ObjectMeta::namespaced("web", name),
            ..Task::default()
        };
        task.spec.prompt = "mend it".into();
        task.spec.agents = vec![AgentChoice {
            name: "a".into(),
            ..AgentChoice::default()
        }];
        self.server.create(&task).unwrap();
    }

    /// What the device does: renews, and finishes what is bound to it.
    fn device_step(&self) {
        self.renew();
        for run in self.server.list::<Run>() {
            let live = !run.status.phase.is_some_and(RunPhase::is_terminal);
            if live && !run.spec.device_name.is_empty() {
                self.finish(&run, RunPhase::Succeeded);
            }
        }
    }

    fn renew(&self) {
        let now = self.clock.now();
        let renewed = self.server.update::<Lease>("panda-system", "pi", |lease| {
            lease.spec.renew_time = Some(panda_api::meta::MicroTime(now));
        });
        // There may be no device yet.
        drop(renewed);
    }

    fn finish(&self, run: &Run, phase: RunPhase) {
        self.server
            .update::<Run>(&run.metadata.namespace, &run.metadata.name, |run| {
                run.status.phase = Some(phase);
            })
            .unwrap();
    }

    fn runs(&self) -> Vec<Run> {
        self.server.list::<Run>()
    }

    fn phases(&self) -> BTreeSet<String> {
        let tasks = self.server.list::<Task>();
        tasks
            .iter()
            .map(|task| format!("{:?}", task.status.phase))
            .collect()
    }

    /// Waits, in virtual time, until `reached` holds.
    async fn until(&self, what: &str, mut reached: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + Duration::from_secs(900);
        while !reached(self) {
            assert!(Instant::now() < end, "{what}: {:#?}", self.server.list::<Task>());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// What the server does at a binding.
fn bind(run: &mut Value, body: &Value) -> Result<Value, Box<Status>> {
    if run["spec"]["deviceName"].is_string()
        || run["spec"]["cancel"] == true
        || run["status"]["phase"] == "Cancelled"
    {
        return Err(Box::new(Status::failure(Reason::Conflict, "bound or ended")));
    }
    run["spec"]["deviceName"] = body["deviceName"].clone();
    run["spec"]["deviceUid"] = json!("uid");
    run["spec"]["leaseEpoch"] = json!(1);
    Ok(json!({"kind": "Status", "status": "Success"}))
}

/// Controllers that run; dropping them is a crash.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_waits_for_a_device_with_a_reason_and_then_succeeds() {
    let cluster = Cluster::new();
    let _controllers = cluster.start();
    cluster.task("t");
    cluster
        .until("a reason", |c| {
            let task = c.server.get::<Task>("web", "t").unwrap();
            task.status
                .unschedulable
                .first()
                .is_some_and(|r| r.reason == RefusalReason::DeviceNotReady)
        })
        .await;
    cluster.join(2);
    cluster
        .until("success", |c| {
            c.device_step();
            c.phases() == BTreeSet::from(["Some(Succeeded)".into()])
        })
        .await;
    let task = cluster.server.get::<Task>("web", "t").unwrap();
    assert_eq!(task.status.accepted_run, cluster.runs()[0].metadata.name);
    assert!(task.status.unschedulable.is_empty());
}

// B11.
#[tokio::test(start_paused = true)]
async fn delayed_watches_restarts_and_lost_answers_make_one_run_a_task() {
    let cluster = Cluster::new();
    cluster.server.set_watch_lag(Duration::from_secs(5));
    cluster
        .server
        .inject(Fault::on("create", "runs", Effect::LoseReply).after(7));
    cluster
        .server
        .inject(Fault::on("create", "runs", Effect::Hang).after(20));
    cluster
        .server
        .inject(Fault::on("update", "tasks/status", Effect::LoseReply).after(11));
    for i in 0..50 {
        cluster.task(&format!("t{i}"));
    }
    cluster.join(50);
    // Killed and started again after each create, while that is all there is to do.
    let mut controllers = cluster.start();
    let mut made = 0;
    while made < 50 {
        cluster
            .until("another run", |c| {
                c.renew();
                c.runs().len() > made
            })
            .await;
        made = cluster.runs().len();
        drop(controllers);
        controllers = cluster.start();
    }
    cluster
        .until("success", |c| {
            c.device_step();
            c.phases() == BTreeSet::from(["Some(Succeeded)".into()])
        })
        .await;
    let mut per_task: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let mut uids = BTreeSet::new();
    for (_, run) in cluster.server.history::<Run>() {
        if uids.insert(run.metadata.uid) {
            per_task
                .entry(run.spec.task_ref.name)
                .or_default()
                .push(run.spec.attempt);
        }
    }
    assert_eq!(per_task.len(), 50);
    assert!(per_task.values().all(|attempts| *attempts == [1]), "{per_task:?}");
    drop(controllers);
}

#[tokio::test(start_paused = true)]
async fn runs_go_with_their_task_through_cut_and_compacted_watches() {
    let cluster = Cluster::new();
    let _controllers = cluster.start();
    cluster.task("t");
    cluster.task("kept");
    cluster.until("both runs", |c| c.runs().len() == 2).await;
    cluster.server.compact();
    cluster.server.cut_watches();
    cluster.server.delete::<Task>("web", "t").unwrap();
    cluster.until("one run less", |c| c.runs().len() == 1).await;
    assert_eq!(cluster.runs()[0].spec.task_ref.name, "kept");
}

#[tokio::test(start_paused = true)]
async fn a_device_that_falls_silent_is_no_longer_ready() {
    let cluster = Cluster::new();
    let _controllers = cluster.start();
    cluster.join(1);
    let ready = |c: &Cluster| -> Option<Condition> {
        let device = c.server.get::<Device>("", "pi").unwrap();
        device
            .status
            .conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready")
    };
    cluster
        .until("ready", |c| ready(c).is_some_and(|r| r.status == "True"))
        .await;
    let since: Time = ready(&cluster).unwrap().last_transition_time;
    cluster
        .until("unknown", |c| ready(c).is_some_and(|r| r.status == "Unknown"))
        .await;
    let silent = ready(&cluster)
        .unwrap()
        .last_transition_time
        .0
        .duration_since(since.0);
    assert!((39..=42).contains(&silent.as_secs()), "{silent:?}");
    cluster.renew();
    cluster
        .until("ready again", |c| ready(c).is_some_and(|r| r.status == "True"))
        .await;
}

// B17: two hundred tasks fail together.
#[tokio::test(start_paused = true)]
async fn tasks_that_fail_together_return_one_by_one_even_after_a_restart() {
    let cluster = Cluster::new();
    cluster.join(400);
    for i in 0..200 {
        cluster.task(&format!("t{i}"));
    }
    let controllers = cluster.start();
    cluster
        .until("all bound", |c| {
            c.runs()
                .iter()
                .filter(|run| !run.spec.device_name.is_empty())
                .count()
                == 200
        })
        .await;
    drop(controllers);
    for run in cluster.runs() {
        cluster.finish(&run, RunPhase::Lost);
    }
    let controllers = cluster.start();
    cluster
        .until("counted", |c| {
            c.server
                .list::<Task>()
                .iter()
                .all(|task| task.status.retries.device == 1)
        })
        .await;
    drop(controllers);
    let _controllers = cluster.start();
    cluster.until("all returned", |c| c.runs().len() == 400).await;
    let tasks = cluster.server.list::<Task>();
    assert!(
        tasks
            .iter()
            .all(|task| task.status.phase != Some(TaskPhase::Failed))
    );
    let planned: BTreeSet<_> = cluster
        .server
        .history::<Task>()
        .into_iter()
        .filter_map(|(_, task)| Some((task.metadata.name, task.status.next_attempt_time?)))
        .collect();
    let times: BTreeSet<_> = planned.iter().map(|(_, time)| time).collect();
    assert!(
        times.len() > 190,
        "{} times for {} tasks",
        times.len(),
        planned.len()
    );
}
