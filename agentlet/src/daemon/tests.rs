use std::path::Path;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use panda_api::meta::{ObjectMeta, RandomIds};
use panda_api::{FailureReason, Run, RunPhase};
use panda_rpc::report::RunReport;
use tokio::task::JoinHandle;

use super::*;
use crate::boot::Boot;
use crate::outbox::Outbox;
use crate::runner::mail::{Events, FromRun, Stored, Wish, fence};
use crate::session::Session;
use crate::testing::{Answer, FakeServer};

const DEVICE: &str = "device-1";

/// A boot that was 1000 s ago when the test began.
#[derive(Debug)]
struct TestBoot(tokio::time::Instant);

impl Boot for TestBoot {
    fn boottime(&self) -> Duration {
        Duration::from_secs(1000) + self.0.elapsed()
    }
    fn boot_id(&self) -> String {
        "boot-1".into()
    }
}

/// Workers that report Preparing, wait for the grant, report Running and end when a person cancels.
#[derive(Debug)]
struct FakeRuns {
    outbox: Outbox,
    stored: Vec<Stored>,
    log: Arc<Mutex<Vec<String>>>,
}

impl FakeRuns {
    fn say(&self, what: String) {
        self.log.lock().unwrap().push(what);
    }
}

impl Runs for FakeRuns {
    fn stored(&self) -> BoxFuture<'_, std::io::Result<Vec<Stored>>> {
        Box::pin(async { Ok(self.stored.clone()) })
    }

    fn condemn(&self, run: &Run, _: &str) -> std::io::Result<()> {
        self.say(format!("{} condemned", run.metadata.uid));
        Ok(())
    }

    fn work(&self, mut wish: watch::Receiver<Wish>, events: Events) -> BoxFuture<'static, ()> {
        let (outbox, log) = (self.outbox.clone(), Arc::clone(&self.log));
        Box::pin(async move {
            let say = |what: String| log.lock().unwrap().push(what);
            let run = Arc::clone(&wish.borrow().run);
            assert_ne!(run.spec.prompt, "panic", "as the test wants it");
            let uid = run.metadata.uid.clone();
            let fence = fence(&run, DEVICE);
            let phase = |phase| RunReport {
                phase: Some(phase),
                ..RunReport::default()
            };
            let seq = outbox.report(&fence, &phase(RunPhase::Preparing)).await.unwrap();
            let seen = wish
                .wait_for(|w| {
                    w.stale.is_some() || w.gone || w.stop.is_some() || w.settled >= seq && w.grant.is_some()
                })
                .await
                .unwrap()
                .clone();
            if let Some(stale) = seen.stale {
                return say(format!("{uid} stale: {stale}"));
            }
            if let Some(grant) = seen.grant {
                let ttl = grant.deadline.as_secs() - 1000;
                say(format!(
                    "{uid} started, grant in order: {}",
                    (40..90).contains(&ttl)
                ));
            }
            outbox.report(&fence, &phase(RunPhase::Running)).await.unwrap();
            let end = wish
                .wait_for(|w| w.gone || w.stop.is_some() || w.run.spec.cancel == Some(true))
                .await
                .unwrap()
                .clone();
            if end.gone {
                return say(format!("{uid} gone"));
            }
            let terminal = if end.stop.is_some() {
                RunPhase::Failed
            } else {
                RunPhase::Cancelled
            };
            events.send((uid.clone(), FromRun::SlotFree)).await.unwrap();
            outbox.report(&fence, &phase(terminal)).await.unwrap();
            events.send((uid.clone(), FromRun::Finished)).await.unwrap();
            say(format!("{uid} ended"));
        })
    }

    fn give_up(&self, run: &Run, events: Events) -> BoxFuture<'static, ()> {
        let (outbox, fence) = (self.outbox.clone(), fence(run, DEVICE));
        Box::pin(async move {
            let failed = RunReport {
                phase: Some(RunPhase::Failed),
                ..RunReport::default()
            };
            outbox.report(&fence, &failed).await.unwrap();
            events.send((fence.run_uid, FromRun::Finished)).await.unwrap();
        })
    }

    fn forget(&self, run: &Run) -> BoxFuture<'static, ()> {
        self.say(format!("{} forgotten", run.metadata.uid));
        Box::pin(async {})
    }
}

struct Device {
    token: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
    log: Arc<Mutex<Vec<String>>>,
    outbox: Outbox,
}

impl Device {
    fn start(server: &FakeServer, path: &Path, shutdown: Shutdown, stored: Vec<Stored>) -> Self {
        let outbox = Outbox::open(path, 1 << 20).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (events, session) = mpsc::channel(64);
        let (client, _) = watch::channel(None);
        let (_, status) = watch::channel(None);
        let (agents, _) = watch::channel(Vec::new());
        let token = CancellationToken::new();
        let connection = Session {
            connector: Arc::new(server.clone()),
            ids: Arc::new(RandomIds),
            events,
            client,
            renewals: None,
            endpoints: None,
        };
        let parts = Parts {
            outbox: outbox.clone(),
            boot: Arc::new(TestBoot(tokio::time::Instant::now())),
            clock: Arc::new(panda_api::meta::SystemClock),
            runs: Arc::new(FakeRuns {
                outbox: outbox.clone(),
                stored,
                log: Arc::clone(&log),
            }),
            session,
            status,
            pressure: watch::channel(false).1,
            agents,
            running: watch::Sender::new(0),
        };
        let settings = Settings {
            device_uid: DEVICE.into(),
            max_runs: 2,
            namespaces: vec!["default".into()],
            renew_every: Some(Duration::from_millis(200)),
            shutdown,
        };
        let inner = token.clone();
        let task = tokio::spawn(async move {
            let session_token = CancellationToken::new();
            let session = tokio::spawn(connection.run(session_token.clone()));
            let result = run(settings, parts, inner).await;
            session_token.cancel();
            session.await.unwrap();
            result
        });
        Self {
            token,
            task,
            log,
            outbox,
        }
    }

    fn said(&self, what: &str) -> bool {
        self.log.lock().unwrap().iter().any(|line| line == what)
    }

    async fn until_said(&self, what: &str) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        while !self.said(what) {
            assert!(tokio::time::Instant::now() < deadline, "{what}: {:?}", self.log);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn stop(self) -> Outbox {
        self.token.cancel();
        self.task.await.unwrap().unwrap();
        self.outbox
    }
}

fn a_run(uid: &str) -> Run {
    let mut run = Run {
        metadata: ObjectMeta {
            uid: uid.into(),
            ..ObjectMeta::namespaced("default", uid)
        },
        ..Run::default()
    };
    run.spec.attempt = 1;
    run.spec.device_uid = DEVICE.into();
    run.spec.lease_epoch = Some(1);
    run.status.phase = Some(RunPhase::Pending);
    run
}

fn reported(server: &FakeServer, uid: &str, phase: RunPhase) -> impl Future<Output = ()> {
    let (server, uid) = (server.clone(), uid.to_owned());
    async move {
        let done = |s: &crate::testing::State| s.phases(&uid).contains(&phase).then_some(());
        server.until(&format!("{uid} {phase:?}"), done).await;
    }
}

#[tokio::test]
async fn run_starts_after_acknowledgement_and_grant_counted_from_the_renewal() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server
        .until("hello", |s| (!s.hellos.is_empty()).then_some(()))
        .await;
    server.upsert(a_run("r1"));
    reported(&server, "r1", RunPhase::Running).await;
    assert!(device.said("r1 started, grant in order: true"));
    server.change("r1", |run| run.spec.cancel = Some(true));
    reported(&server, "r1", RunPhase::Cancelled).await;
    server.gone("r1");
    device.until_said("r1 forgotten").await;
    assert_eq!(device.outbox.finished().await.unwrap(), vec![]);
    device.stop().await;
}

#[tokio::test]
async fn no_grant_and_no_acknowledgement_means_no_start() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    server.state().grants = false;
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server.upsert(a_run("r1"));
    reported(&server, "r1", RunPhase::Preparing).await;
    // Unanswered renewals end the session, so several renewals were tried.
    server
        .until("sessions", |s| (s.hellos.len() > 2).then_some(()))
        .await;
    assert_eq!(server.state().phases("r1"), vec![RunPhase::Preparing]);
    device.stop().await;
}

#[tokio::test]
async fn lost_acknowledgements_are_answered_by_the_same_number() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    server.state().answer = Answer::Silent;
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server.upsert(a_run("r1"));
    reported(&server, "r1", RunPhase::Preparing).await;
    server.state().answer = Answer::Ack;
    server.hang_up();
    reported(&server, "r1", RunPhase::Running).await;
    device.stop().await;
    let state = server.state();
    let first = state.arrived[0].clone();
    let repeats = state.arrived.iter().filter(|a| **a == first).count();
    assert!(repeats >= 2, "{:?}", state.arrived);
    let counted = state.reports.iter().filter(|r| r.0 == first.0).count();
    assert_eq!(counted, 1);
}

#[tokio::test]
async fn stale_report_reaches_its_worker_and_leaves_the_outbox() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    server.state().answer = Answer::Stale;
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server.upsert(a_run("r1"));
    device.until_said("r1 stale: another epoch").await;
    assert_eq!(device.outbox.pending("store-a", 0, 9).await.unwrap(), vec![]);
    device.stop().await;
}

#[tokio::test]
async fn another_store_kills_nothing_and_gets_finished_reports_again() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server.upsert(a_run("r1"));
    server.upsert(a_run("r2"));
    reported(&server, "r1", RunPhase::Running).await;
    reported(&server, "r2", RunPhase::Running).await;
    server.change("r2", |run| run.spec.cancel = Some(true));
    reported(&server, "r2", RunPhase::Cancelled).await;
    server.become_store("store-b");
    reported(&server, "r2", RunPhase::Cancelled).await;
    let hello = server.until("hello", |s| s.hellos.get(1).cloned()).await;
    assert_eq!(hello.store_uid, "store-a");
    assert_eq!(hello.live_runs.len(), 1);
    assert_eq!(hello.finished_runs.len(), 1);
    // The new store has never heard of r1: that is no reason to stop it, not even at a second session.
    server.hang_up();
    let hello = server.until("hello", |s| s.hellos.get(2).cloned()).await;
    assert_eq!(hello.store_uid, "store-b");
    assert_eq!(hello.live_runs[0].run_uid, "r1");
    assert!(!device.said("r1 gone"));
    // Once it has adopted the run, it may forget it.
    let mut adopted = a_run("r1");
    adopted.status.phase = Some(RunPhase::Running);
    server.upsert(adopted);
    server.gone("r1");
    device.until_said("r1 gone").await;
    device.stop().await;
}

#[tokio::test]
async fn missing_in_the_snapshot_of_the_same_store_is_gone() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server.upsert(a_run("r1"));
    reported(&server, "r1", RunPhase::Running).await;
    server.state().runs.clear();
    server.hang_up();
    device.until_said("r1 gone").await;
    device.until_said("r1 forgotten").await;
    device.stop().await;
}

#[tokio::test]
async fn third_run_of_two_slots_is_refused_and_a_freed_slot_is_used() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    for uid in ["r1", "r2", "r3"] {
        server.upsert(a_run(uid));
    }
    reported(&server, "r3", RunPhase::Failed).await;
    let failure = server
        .state()
        .reports
        .iter()
        .find_map(|r| r.2.failure.clone())
        .unwrap();
    assert_eq!(failure.reason, FailureReason::OutOfSlots);
    reported(&server, "r1", RunPhase::Running).await;
    server.change("r1", |run| run.spec.cancel = Some(true));
    reported(&server, "r1", RunPhase::Cancelled).await;
    server.upsert(a_run("r4"));
    reported(&server, "r4", RunPhase::Running).await;
    device.stop().await;
}

#[tokio::test]
async fn namespace_that_the_owner_does_not_serve_is_refused() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    let mut run = a_run("r1");
    run.metadata.namespace = "others".into();
    server.upsert(run);
    reported(&server, "r1", RunPhase::Failed).await;
    assert_eq!(server.state().phases("r1"), vec![RunPhase::Failed]);
    device.stop().await;
}

#[tokio::test]
async fn run_that_the_device_has_lost_is_never_started_again() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let mut run = a_run("r1");
    run.status.phase = Some(RunPhase::Running);
    server.state().runs.insert("r1".into(), run);
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    reported(&server, "r1", RunPhase::Failed).await;
    assert_eq!(server.state().phases("r1"), vec![RunPhase::Failed]);
    device.stop().await;
}

#[tokio::test]
async fn rolled_back_disk_ends_runs_under_numbers_that_the_server_takes() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let stored = Stored {
        run: Arc::new(a_run("r1")),
        store_uid: "store-a".into(),
        finished: false,
        shipped_to: None,
    };
    server.state().last_seq = 500;
    server.state().runs.insert("r1".into(), a_run("r1"));
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![stored]);
    reported(&server, "r1", RunPhase::Failed).await;
    assert!(server.state().reports.iter().all(|r| r.0 > 500));
    assert!(device.said("r1 condemned"), "written down before the numbers are");
    device.stop().await;
}

#[tokio::test]
async fn stopping_runs_waits_until_the_server_knows() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let within = Duration::from_secs(30);
    let device = Device::start(
        &server,
        &dir.path().join("o"),
        Shutdown::StopRuns { within },
        vec![],
    );
    server.upsert(a_run("r1"));
    reported(&server, "r1", RunPhase::Running).await;
    let outbox = device.stop().await;
    assert_eq!(server.state().last_phase("r1"), Some(RunPhase::Failed));
    assert_eq!(outbox.pending("store-a", 0, 9).await.unwrap(), vec![]);
}

#[tokio::test]
async fn commands_of_another_attempt_epoch_or_device_change_nothing() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    let mut run = a_run("r2");
    run.spec.attempt = 2;
    server.upsert(run.clone());
    reported(&server, "r2", RunPhase::Running).await;
    run.spec.cancel = Some(true);
    type Change = fn(&mut Run);
    let changes: [Change; 4] = [
        |run| run.spec.attempt = 1,
        |run| run.spec.lease_epoch = Some(0),
        |run| run.spec.lease_epoch = Some(2),
        |run| run.spec.device_uid = "device-2".into(),
    ];
    for change in changes {
        let mut stale = run.clone();
        change(&mut stale);
        server.upsert(stale);
    }
    // A cancel that comes late, of a run that the device does not have any more.
    let mut first = a_run("r1");
    first.spec.cancel = Some(true);
    first.status.phase = Some(RunPhase::Running);
    server.upsert(first);
    reported(&server, "r1", RunPhase::Failed).await;
    assert_eq!(server.state().last_phase("r2"), Some(RunPhase::Running));
    server.upsert(run);
    reported(&server, "r2", RunPhase::Cancelled).await;
    device.stop().await;
}

#[tokio::test]
async fn newer_attempt_of_a_task_ends_the_older() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    // The fake worker looks at what is stale before it starts only.
    server.state().grants = false;
    let mut run = a_run("r1");
    run.spec.task_ref.uid = "t".into();
    server.upsert(run.clone());
    reported(&server, "r1", RunPhase::Preparing).await;
    run.metadata.uid = "r2".into();
    run.spec.attempt = 2;
    server.upsert(run);
    device
        .until_said("r1 stale: a newer attempt was given to this device")
        .await;
    device.stop().await;
}

#[tokio::test]
async fn a_store_that_never_spoke_of_a_run_cannot_take_it_away() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server.upsert(a_run("r1"));
    server.upsert(a_run("r2"));
    reported(&server, "r1", RunPhase::Running).await;
    server.change("r1", |run| run.spec.cancel = Some(true));
    reported(&server, "r1", RunPhase::Cancelled).await;
    reported(&server, "r2", RunPhase::Running).await;
    server.become_store("store-b");
    server.state().answer = Answer::Stale;
    let outbox = device.outbox.clone();
    // r1's end, which this store calls stale, may go when it is said to be gone; what is left of r2 stays.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while outbox.terminal("store-b", "r1").await.unwrap() != Some(true) {
        assert!(tokio::time::Instant::now() < deadline, "r1 never settled");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!device.said("r1 forgotten"), "not before it was handed over");
    let fence = fence(&a_run("r2"), DEVICE);
    let seq = outbox.report(&fence, &RunReport::default()).await.unwrap();
    server
        .until("r2's report", |s| {
            s.arrived.iter().any(|a| a.0 == seq).then_some(())
        })
        .await;
    server.hang_up();
    device.until_said("r1 forgotten").await;
    assert!(!device.said("r2 gone") && !device.said("r2 stale: another epoch"));
    device.stop().await;
}

#[tokio::test]
async fn run_whose_worker_always_fails_ends_as_failed() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    let mut run = a_run("r1");
    run.spec.prompt = "panic".into();
    server.upsert(run);
    reported(&server, "r1", RunPhase::Failed).await;
    // Its slot is free again.
    for uid in ["r2", "r3"] {
        server.upsert(a_run(uid));
        reported(&server, uid, RunPhase::Running).await;
    }
    device.stop().await;
}

#[tokio::test]
async fn what_is_in_the_outbox_is_handed_over_before_a_daemon_leaves_its_runs() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server.upsert(a_run("r1"));
    reported(&server, "r1", RunPhase::Running).await;
    let fence = fence(&a_run("r1"), DEVICE);
    for _ in 0..500 {
        let report = RunReport {
            phase: Some(RunPhase::Running),
            ..RunReport::default()
        };
        device.outbox.report(&fence, &report).await.unwrap();
    }
    let outbox = device.stop().await;
    assert_eq!(outbox.pending("store-a", 0, 9).await.unwrap(), vec![]);
}

#[tokio::test]
async fn daemon_does_not_wait_for_ever_for_a_server_that_does_not_answer() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    server.state().answer = Answer::Silent;
    let device = Device::start(&server, &dir.path().join("o"), Shutdown::KeepRuns, vec![]);
    server.upsert(a_run("r1"));
    reported(&server, "r1", RunPhase::Preparing).await;
    let outbox = device.stop().await;
    assert_eq!(
        outbox.pending("store-a", 0, 9).await.unwrap().len(),
        1,
        "for the next start"
    );
}

#[tokio::test]
async fn server_that_never_acknowledges_fills_no_memory_and_gets_no_new_runs_started() {
    let (server, dir) = (FakeServer::start().await, tempfile::tempdir().unwrap());
    server.state().answer = Answer::Silent;
    let path = dir.path().join("o");
    let device = Device::start(&server, &path, Shutdown::KeepRuns, vec![]);
    let full = RunReport {
        phase: Some(RunPhase::Running),
        changed_files: Some(vec!["x".repeat(40 << 10)]),
        ..RunReport::default()
    };
    let mut taken = 0;
    let error = loop {
        match device.outbox.report(&fence(&a_run("r0"), DEVICE), &full).await {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, outbox::Error::Full), "{error}");
    server
        .until("the first report", |s| (!s.arrived.is_empty()).then_some(()))
        .await;
    let oldest = device.outbox.pending("store-a", 0, 1).await.unwrap()[0].seq;
    assert_eq!((oldest, taken > 10), (1, true), "what was said first is kept");
    for n in 0..100 {
        server.upsert(a_run(&format!("r{n}")));
    }
    // The server takes them away again, and begins to listen.
    server.state().runs.clear();
    server.state().answer = Answer::Ack;
    server.hang_up();
    server
        .until("everything that was kept", |s| {
            (s.reports.len() >= taken).then_some(())
        })
        .await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !device.outbox.pending("store-a", 0, 1).await.unwrap().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "never settled");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let started = server
        .state()
        .reports
        .iter()
        .any(|r| r.2.phase == Some(RunPhase::Preparing));
    assert!(!started);
    // With room again, runs are taken again.
    server.upsert(a_run("later"));
    reported(&server, "later", RunPhase::Running).await;
    device.stop().await;
}
