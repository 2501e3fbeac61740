//! Watchdogs, freezing, grants.

use std::time::Duration;

use panda_agentlet::supervisor::{DisconnectRule, Record};
use panda_api::{DisconnectPolicy, FailureReason};

use super::harness::*;

const SHORT: Duration = Duration::from_secs(1);

#[tokio::test]
async fn an_agent_that_waits_for_a_terminal_has_no_first_output() {
    let place = Place::new();
    let mut spec = place.spec(&["--ask", "Trust this folder? [y/N]"]);
    spec.limits.first_output = SHORT;
    let outcome = place.start(&spec).outcome().await;
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::NoFirstOutput);
    assert!(
        failure.message.contains("wrote nothing at all"),
        "{}",
        failure.message
    );
    assert!(
        failure.message.contains("stdin: Prompt"),
        "a hint: {}",
        failure.message
    );
    assert_eq!(place.left(), Vec::<i32>::new());
}

#[tokio::test]
async fn an_agent_that_reads_to_the_end_of_its_input_finds_it() {
    let place = Place::new();
    let (job, outcome) = place.run(&["--read-stdin-to-eof"]).await;
    assert_eq!(outcome.failure, None);
    assert!(job.stdout().contains("stdin 0 bytes"), "{}", job.stdout());

    let place = Place::new();
    let mut spec = place.spec(&["--read-stdin-to-eof"]);
    let prompt = "do it\n".repeat(40_000);
    spec.driver.stdin = Some(prompt.clone());
    let job = place.start(&spec);
    assert_eq!(job.outcome().await.failure, None);
    assert!(job.stdout().starts_with(&format!("stdin {} bytes", prompt.len())));
}

#[tokio::test]
async fn an_agent_that_does_not_read_its_input_is_not_held_up_by_it() {
    let place = Place::new();
    let mut spec = place.spec(&["--say", "done"]);
    spec.driver.stdin = Some("x".repeat(1 << 20));
    assert_eq!(place.start(&spec).outcome().await.failure, None);
}

#[tokio::test]
async fn silence_is_a_stall_and_its_last_words_are_told() {
    let place = Place::new();
    let mut spec = place.spec(&["--say", "thinking hard", "--hang"]);
    spec.limits.silence = SHORT;
    let job = place.start(&spec);
    let failure = job.outcome().await.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::Stalled);
    assert!(failure.message.contains("thinking hard"), "{}", failure.message);
    assert!(job.entries().iter().any(|e| e.record == Record::FirstOutput));
}

#[tokio::test]
async fn a_silent_agent_that_uses_the_processor_is_left_alone() {
    let place = Place::new();
    let mut spec = place.spec(&["--burn", "3s", "--say", "built"]);
    spec.limits.silence = SHORT;
    spec.limits.first_output = SHORT;
    assert_eq!(place.start(&spec).outcome().await.failure, None);
}

#[tokio::test]
async fn working_time_runs_out() {
    let place = Place::new();
    let mut spec = place.spec(&["--say", "busy", "--hang"]);
    spec.limits.attempt = SHORT;
    let outcome = place.start(&spec).outcome().await;
    assert_eq!(outcome.failure.unwrap().reason, FailureReason::TimedOut);
}

#[tokio::test]
async fn a_paused_tree_stands_still_its_time_does_not_count_and_it_goes_on() {
    let place = Place::new();
    let journal = place.work().join("j").to_str().unwrap().to_owned();
    let mut spec = place.spec(&[
        "--say",
        "up",
        "--sleep",
        "500ms",
        "--journal",
        &journal,
        "--say",
        "after",
    ]);
    spec.limits.attempt = Duration::from_secs(20);
    let job = place.start(&spec);
    job.says("up").await;
    assert!(job.handle.pause().await.unwrap().frozen);
    job.record(|r| matches!(r, Record::Paused { .. }).then_some(()))
        .await;
    // A twin that starts only now gets through what this one has left: were it not frozen, it would be through, too.
    let other = Place::new();
    let twin = other.start(&other.spec(&["--sleep", "1s", "--succeed"]));
    assert_eq!(twin.outcome().await.failure, None);
    assert!(!place.work().join("j").exists());
    assert!(!job.handle.resume().await.unwrap().frozen);
    let outcome = job.outcome().await;
    assert_eq!(outcome.failure, None);
    assert!(place.work().join("j").exists());
    assert!(job.entries().iter().any(|e| e.record == Record::Resumed));
}

#[tokio::test]
async fn a_paused_tree_can_be_stopped() {
    let place = Place::new();
    let job = place.start(&place.spec(&["--say", "up", "--hang"]));
    job.says("up").await;
    job.handle.pause().await.unwrap();
    job.handle.stop(FailureReason::Cancelled, "enough").await.unwrap();
    assert_eq!(
        job.outcome().await.failure.unwrap().reason,
        FailureReason::Cancelled
    );
    assert_eq!(place.left(), Vec::<i32>::new());
}

/// A grant that lets a run start on a busy machine and ends while it is still watched.
const BRIEF: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_grant_that_is_not_renewed_ends_the_run_and_one_that_is_does_not() {
    let place = Place::new();
    let mut spec = place.spec(&["--say", "up", "--hang"]);
    spec.on_disconnect = DisconnectRule {
        policy: DisconnectPolicy::Continue,
        after: SHORT,
    };
    let job = place.start_with(&spec, Some(&grant(BRIEF)));
    job.says("up").await;
    let renewed = grant(HOUR);
    job.handle.grant(renewed.clone()).await.unwrap();
    // One that came back from an older life of the agentlet cuts nothing short.
    job.handle.grant(grant(Duration::ZERO)).await.unwrap();
    assert_eq!(job.folder.grant().unwrap(), Some(renewed));
    // A twin whose grant is as short as the first one was, and later, and not renewed, shows that its end has passed.
    let other = Place::new();
    let mut spec = other.spec(&["--hang"]);
    spec.on_disconnect = DisconnectRule {
        policy: DisconnectPolicy::Continue,
        after: SHORT,
    };
    let twin = other.start_with(&spec, Some(&grant(BRIEF)));
    let ended = twin.outcome().await.failure.unwrap();
    assert_eq!(ended.reason, FailureReason::DeviceLost);
    assert_eq!(other.left(), Vec::<i32>::new());
    assert!(!job.handle.status().await.unwrap().ending);
}

#[tokio::test]
async fn policy_pause_freezes_until_a_grant_comes_back_and_kills_when_none_does() {
    let place = Place::new();
    let mut spec = place.spec(&["--say", "up", "--hang"]);
    spec.on_disconnect = DisconnectRule {
        policy: DisconnectPolicy::Pause,
        after: HOUR,
    };
    let job = place.start_with(&spec, Some(&grant(BRIEF)));
    job.record(|r| matches!(r, Record::Paused { .. }).then_some(()))
        .await;
    assert!(job.handle.status().await.unwrap().frozen);
    assert!(!job.handle.grant(grant(HOUR)).await.unwrap().frozen);
    job.record(|r| (r == Record::Resumed).then_some(())).await;
    job.handle.stop(FailureReason::Cancelled, "enough").await.unwrap();
    job.outcome().await;

    spec.on_disconnect.after = SHORT;
    spec.fence.attempt = 2;
    let job = place.start_with(&spec, Some(&grant(BRIEF)));
    assert_eq!(
        job.outcome().await.failure.unwrap().reason,
        FailureReason::DeviceLost
    );
    assert!(
        job.entries()
            .iter()
            .any(|e| matches!(e.record, Record::Paused { .. }))
    );
    assert_eq!(place.left(), Vec::<i32>::new());
}

#[tokio::test]
async fn at_the_end_of_the_grant_the_control_plane_is_not_kept_waiting() {
    let place = Place::new();
    let mut spec = place.spec(&["--ignore-term", "0ms", "--say", "up", "--hang"]);
    spec.on_disconnect.policy = DisconnectPolicy::Stop;
    spec.stop.grace = HOUR;
    spec.grant_grace = SHORT;
    let job = place.start_with(&spec, Some(&grant(BRIEF)));
    let outcome = job.outcome().await;
    assert_eq!(outcome.failure.unwrap().reason, FailureReason::DeviceLost);
    assert!(outcome.killed);
}

#[tokio::test]
async fn nothing_starts_without_a_grant() {
    let place = Place::new();
    let job = place.start_with(&place.spec(&["--say", "I ran"]), None);
    let failure = job.outcome().await.failure.unwrap();
    assert_eq!(failure.reason, FailureReason::DeviceLost, "{failure:?}");
    assert_eq!(job.stdout(), "");
    for policy in [DisconnectPolicy::Pause, DisconnectPolicy::Continue] {
        let place = Place::new();
        let mut spec = place.spec(&["--say", "I ran"]);
        spec.on_disconnect = DisconnectRule { policy, after: HOUR };
        let job = place.start_with(&spec, Some(&grant(Duration::ZERO)));
        assert_eq!(
            job.outcome().await.failure.unwrap().reason,
            FailureReason::DeviceLost
        );
        assert_eq!(job.stdout(), "");
    }
}

#[tokio::test]
async fn nothing_starts_under_a_grant_that_has_ended_or_is_of_another_boot() {
    let place = Place::new();
    let mut spec = place.spec(&["--say", "I ran"]);
    spec.on_disconnect.policy = DisconnectPolicy::Stop;
    let job = place.start_with(&spec, Some(&grant(Duration::ZERO)));
    assert_eq!(
        job.outcome().await.failure.unwrap().reason,
        FailureReason::DeviceLost
    );
    assert_eq!(job.stdout(), "");
    spec.fence.attempt = 2;
    let mut other = grant(HOUR);
    other.boot_id = "another".into();
    let job = place.start_with(&spec, Some(&other));
    assert_eq!(
        job.outcome().await.failure.unwrap().reason,
        FailureReason::DeviceRestarted
    );
    assert_eq!(job.stdout(), "");
}
