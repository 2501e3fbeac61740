//! Conversations in ACP with a real process.

use panda_agentlet::driver::{AcpConfig, Consent, DriverConfig};
use panda_agentlet::supervisor::{JobSpec, Outcome, Record};
use panda_api::{DriverKind, FailureReason};

use super::harness::*;

fn spec(place: &Place, args: &[&str]) -> JobSpec {
    let args: Vec<&str> = std::iter::once("--acp").chain(args.iter().copied()).collect();
    let mut spec = place.spec(&args);
    spec.driver = DriverConfig {
        kind: DriverKind::Acp,
        acp: Some(AcpConfig {
            prompt: "Mend it".into(),
            cwd: place.work(),
            mode: "ask".into(),
            consent: Consent::Edits,
            ..AcpConfig::default()
        }),
        ..DriverConfig::default()
    };
    spec
}

async fn run(place: &Place, args: &[&str]) -> (Job, Outcome) {
    let job = place.start(&spec(place, args));
    let outcome = job.outcome().await;
    assert_eq!(place.left(), Vec::<i32>::new());
    (job, outcome)
}

fn reason(outcome: &Outcome) -> Option<FailureReason> {
    outcome.failure.as_ref().map(|f| f.reason)
}

#[tokio::test]
async fn a_turn_is_asked_for_answered_and_ended() {
    let place = Place::new();
    let args = [
        "--acp-call",
        "make",
        "--acp-say",
        "All done.",
        "--acp-end",
        "end_turn",
    ];
    let (job, outcome) = run(&place, &args).await;
    assert_eq!(outcome.failure, None, "{outcome:?}");
    assert_eq!(
        (outcome.summary.as_str(), outcome.session_id.as_str()),
        ("All done.", "s1")
    );
    assert_eq!((outcome.usage.input_tokens, outcome.usage.output_tokens), (10, 2));
    let session = Record::Session { id: "s1".into() };
    assert!(job.entries().iter().any(|e| e.record == session));
}

#[tokio::test]
async fn an_agent_that_stays_after_its_turn_is_ended_and_has_succeeded() {
    let place = Place::new();
    let (_, outcome) = run(&place, &["--acp-say", "Done.", "--acp-end", "end_turn", "--hang"]).await;
    assert_eq!(outcome.failure, None, "{outcome:?}");
    assert_eq!(outcome.exit.unwrap().signal, Some(15));
}

#[tokio::test]
async fn what_the_level_does_not_allow_is_refused_and_told() {
    let place = Place::new();
    let args = [
        "--acp-ask",
        "rm -rf .",
        "--acp-say",
        "No luck.",
        "--acp-end",
        "end_turn",
    ];
    let (job, outcome) = run(&place, &args).await;
    assert_eq!(outcome.failure, None, "{outcome:?}");
    let told = job.entries().into_iter().any(|entry| match entry.record {
        Record::Event { reason, message } => reason == "PermissionRefused" && message.contains("rm -rf ."),
        _ => false,
    });
    assert!(told, "{:?}", job.entries());
}

#[tokio::test]
async fn a_turn_that_is_stopped_is_cancelled_before_any_signal() {
    let place = Place::new();
    let mut spec = spec(
        &place,
        &[
            "--acp-say",
            "Working.",
            "--acp-wait-for-cancel",
            "--acp-end",
            "cancelled",
        ],
    );
    spec.stop.grace = PATIENCE;
    let job = place.start(&spec);
    job.says("Working.").await;
    job.handle.stop(FailureReason::Cancelled, "enough").await.unwrap();
    let outcome = job.outcome().await;
    assert_eq!(reason(&outcome), Some(FailureReason::Cancelled));
    assert_eq!(outcome.exit.unwrap().code, Some(0), "it ended its turn by itself");
    assert_eq!(outcome.session_id, "s1", "so that it can be resumed");
}

#[tokio::test]
async fn going_round_in_circles_ends_the_run() {
    let place = Place::new();
    let calls: Vec<&str> = (0..5).flat_map(|_| ["--acp-call", "make test"]).collect();
    let args: Vec<&str> = calls.into_iter().chain(["--hang"]).collect();
    let mut spec = spec(&place, &args);
    spec.limits.repeat = 5;
    let outcome = place.start(&spec).outcome().await;
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::LoopDetected);
    assert!(failure.message.contains("make test"), "{}", failure.message);
    assert_eq!(place.left(), Vec::<i32>::new());
}

#[tokio::test]
async fn an_agent_that_asks_and_does_not_listen_is_ended() {
    let place = Place::new();
    let (_, outcome) = run(&place, &["--acp-flood", "200000", "--hang"]).await;
    assert_eq!(
        reason(&outcome),
        Some(FailureReason::ProtocolError),
        "{outcome:?}"
    );
}
