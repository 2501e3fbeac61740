//! The supervisor with real processes: as root, with a user made up for each test, and as an ordinary user.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod acp;
mod adopt;
mod bytes;
mod commands;
mod ends;
mod floor;
mod harness;
mod watchdogs;

use harness::*;
use panda_agentlet::driver::{DriverConfig, dialect};
use panda_agentlet::supervisor::Record;
use panda_agentlet::supervisor::log::Stream;
use panda_api::{DriverKind, FailureReason};

#[tokio::test]
async fn a_run_that_succeeds_is_journalled_from_start_to_end() {
    let place = Place::new();
    let (job, outcome) = place.run(&["--say", "working", "--say", "done"]).await;
    assert_eq!(outcome.failure, None, "{outcome:?}");
    assert_eq!(outcome.exit.unwrap().code, Some(0));
    assert_eq!(outcome.summary, "working\ndone");
    assert!(outcome.sandbox.holds(), "{:?}", outcome.sandbox);
    assert_eq!(job.stdout(), "working\ndone\n");
    let entries = job.entries();
    let numbers: Vec<_> = entries.iter().map(|e| e.seq).collect();
    assert_eq!(numbers, (1..=entries.len() as u64).collect::<Vec<_>>());
    assert!(matches!(entries.first().unwrap().record, Record::Started { .. }));
    assert!(matches!(entries.last().unwrap().record, Record::Ended { .. }));
    assert_eq!(place.left(), Vec::<i32>::new());
}

#[tokio::test]
async fn an_exit_code_is_a_failure_with_the_last_words() {
    let place = Place::new();
    let (_, outcome) = place.run(&["--err", "no such branch", "--fail", "7"]).await;
    let failure = outcome.failure.unwrap();
    assert_eq!(
        (failure.reason, failure.exit_code),
        (FailureReason::AgentError, Some(7))
    );
    assert!(failure.message.contains("no such branch"), "{}", failure.message);
}

#[tokio::test]
async fn a_claim_is_not_looked_at_here() {
    let place = Place::new();
    let (_, outcome) = place.run(&["--lie"]).await;
    assert_eq!(outcome.failure, None, "verification is somebody else's part");
    assert_eq!(std::fs::read_dir(place.work()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_told_apart() {
    let place = Place::new();
    let mut spec = place.spec(&[]);
    spec.program.argv = vec!["no-such-agent".into()];
    let outcome = place.start(&spec).outcome().await;
    assert_eq!(outcome.failure.unwrap().reason, FailureReason::AgentNotFound);
}

#[tokio::test]
async fn commands_before_the_run_come_first_and_their_failure_ends_it() {
    let place = Place::new();
    let agent = place.agent().to_str().unwrap().to_owned();
    let mut spec = place.spec(&["--read", "../home/made"]);
    spec.pre_run = vec![vec![
        agent.clone(),
        "--write".into(),
        "made".into(),
        "before".into(),
    ]];
    let job = place.start(&spec);
    assert_eq!(job.outcome().await.failure, None);
    assert!(
        job.stdout().contains("read ../home/made: before"),
        "{}",
        job.stdout()
    );
    spec.pre_run.push(vec![
        agent,
        "--err".into(),
        "cannot log in".into(),
        "--fail".into(),
        "3".into(),
    ]);
    spec.fence.attempt = 2;
    let job = place.start(&spec);
    let failure = job.outcome().await.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::AgentError);
    assert!(failure.message.contains("cannot log in"), "{}", failure.message);
    let agents = job
        .entries()
        .into_iter()
        .filter(|e| matches!(e.record, Record::Spawned { agent: true, .. }));
    assert_eq!(agents.count(), 0);
}

#[tokio::test]
async fn an_agent_that_speaks_in_events_is_understood() {
    let place = Place::new();
    let builtin = dialect("grok").unwrap();
    let mut spec = place.spec(&[
        "--say",
        r#"{"type":"tool_call","toolName":"write"}"#,
        "--say",
        "not an event",
        "--say",
        r#"{"type":"text","data":"All done."}"#,
        "--say",
        r#"{"type":"end","stopReason":"end_turn","sessionId":"s1","usage":{"input_tokens":10,"output_tokens":2}}"#,
    ]);
    spec.driver = DriverConfig {
        kind: DriverKind::Jsonl,
        dialect: Some(builtin.dialect),
        usage: Some(builtin.usage),
        ..DriverConfig::default()
    };
    let job = place.start(&spec);
    let outcome = job.outcome().await;
    assert_eq!(outcome.failure, None);
    assert_eq!(
        (outcome.summary.as_str(), outcome.session_id.as_str()),
        ("All done.", "s1")
    );
    assert_eq!(outcome.usage.input_tokens, 10);
    let events = String::from_utf8(job.log(Stream::Events)).unwrap();
    let kinds: Vec<_> = events
        .lines()
        .map(|l| {
            serde_json::from_str::<serde_json::Value>(l).unwrap()["event"]["type"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(kinds, ["toolCall", "raw", "text", "session", "usage", "end"]);
    assert!(
        job.entries()
            .iter()
            .any(|e| e.record == Record::Session { id: "s1".into() })
    );
}
