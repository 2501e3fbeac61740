//! What is written, and what is not.

use panda_api::Task;
use uuid::Uuid;

use super::*;
use crate::fake::{CountingIds, Effect, Fault, Server, StoppedClock};

#[derive(Debug)]
struct FixedIds;

impl IdSource for FixedIds {
    fn uuid(&self) -> Uuid {
        Uuid::from_u128(7)
    }
}

fn report(name: &str, message: &str) -> Report {
    let task = Task {
        metadata: ObjectMeta::namespaced("web", name),
        ..Task::default()
    };
    Report {
        about: reference(&task),
        severity: Severity::Normal,
        reason: "Scheduled".into(),
        message: message.into(),
    }
}

fn at(seconds: u64) -> (Duration, Timestamp) {
    (Duration::from_secs(seconds), Timestamp::UNIX_EPOCH)
}

#[test]
fn the_same_report_is_counted_and_another_is_new() {
    let mut a = Aggregator::new("scheduler", Limits::default());
    let Decision::Create(first) = a.observe(report("t", "on pi"), at(0), &FixedIds) else {
        panic!("the first report is written");
    };
    assert_eq!(first.metadata.namespace, "web");
    assert_eq!(first.involved_object.kind, "Task");
    let Decision::Count(second) = a.observe(report("t", "on pi"), at(10), &FixedIds) else {
        panic!("the second report is counted");
    };
    assert_eq!(
        (second.count, &second.metadata.name),
        (Some(2), &first.metadata.name)
    );
    assert!(matches!(
        a.observe(report("t", "on mac"), at(11), &FixedIds),
        Decision::Create(_)
    ));
    assert!(matches!(
        a.observe(report("t", "on pi"), at(1000), &FixedIds),
        Decision::Create(_)
    ));
}

#[test]
fn one_object_cannot_flood_and_does_not_silence_others() {
    let mut a = Aggregator::new("c", Limits::default());
    let written = (0..100)
        .filter(|i| a.observe(report("loud", &i.to_string()), at(1), &FixedIds) != Decision::Drop)
        .count();
    assert_eq!(written, 25);
    assert!(matches!(
        a.observe(report("quiet", "x"), at(1), &FixedIds),
        Decision::Create(_)
    ));
    assert!(matches!(
        a.observe(report("loud", "later"), at(70), &FixedIds),
        Decision::Create(_)
    ));
}

#[test]
fn memory_is_bounded() {
    let limits = Limits {
        remembered: 10,
        ..Limits::default()
    };
    let mut a = Aggregator::new("c", limits);
    for i in 0..1000 {
        a.observe(report(&format!("t{i}"), "x"), at(i), &FixedIds);
    }
    assert!(
        a.events.len() <= 10 && a.budgets.len() <= 11,
        "{} {}",
        a.events.len(),
        a.budgets.len()
    );
}

fn recorder(server: &Server) -> (Recorder, RecorderWorker) {
    Recorder::new(
        server.client(),
        "scheduler",
        Limits::default(),
        Arc::new(StoppedClock),
        Arc::new(CountingIds::default()),
    )
}

#[tokio::test(start_paused = true)]
async fn reports_become_events_with_a_count() {
    let server = Server::default();
    let (recorder, worker) = recorder(&server);
    for _ in 0..3 {
        let Report { about, message, .. } = report("t", "on pi");
        recorder.record(about, Severity::Warning, "Scheduled", &message);
    }
    drop(recorder);
    worker.run(CancellationToken::new()).await;
    let events = server.list::<Event>();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].count, events[0].type_.as_str()), (Some(3), "Warning"));
    assert_eq!(events[0].source.component, "scheduler");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_expired_is_written_anew() {
    let server = Server::default();
    let (recorder, worker) = recorder(&server);
    let token = CancellationToken::new();
    let worker = tokio::spawn(worker.run(token.clone()));
    let record = || recorder.record(report("t", "").about, Severity::Normal, "Scheduled", "on pi");
    record();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let name = server.list::<Event>()[0].metadata.name.clone();
    server.delete::<Event>("web", &name).unwrap();
    record();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.list::<Event>()[0].count, Some(2));
    token.cancel();
    worker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_was_reported_before_cancellation_is_written_and_a_dead_server_does_not_hold_it_up() {
    let server = Server::default();
    let (recorder, worker) = recorder(&server);
    let token = CancellationToken::new();
    token.cancel();
    recorder.record(report("t", "").about, Severity::Normal, "Stopped", "bye");
    worker.run(token.clone()).await;
    assert_eq!(server.list::<Event>().len(), 1);

    let (recorder, worker) = self::recorder(&server);
    server.inject(Fault::on("create", "events", Effect::Hang));
    recorder.record(report("u", "").about, Severity::Normal, "Stopped", "bye");
    let start = tokio::time::Instant::now();
    worker.run(token).await;
    assert_eq!(start.elapsed(), GRACE);
}
