//! Every rule is broken once, on purpose.

use serde_json::{Value, json};

use super::*;

/// A history that is written line by line.
#[derive(Default)]
struct Story(Vec<Change>);

impl Story {
    fn says(mut self, resource: &'static str, object: Value) -> Self {
        let revision = self.0.len() as u64 + 1;
        self.0.push(Change {
            resource,
            kind: "MODIFIED".into(),
            revision,
            object,
        });
        self
    }

    fn task(self, phase: &str, accepted: &str, tokens: u64) -> Self {
        self.says(
            "tasks",
            json!({
                "metadata": {"namespace": "n", "name": "t", "uid": "t-uid"},
                "spec": {"rerun": 0},
                "status": {"phase": phase, "acceptedRun": accepted, "usage": {"inputTokens": tokens}},
            }),
        )
    }

    fn run(self, attempt: u32, phase: &str, tokens: u64) -> Self {
        self.says("runs", run(attempt, phase, tokens))
    }

    fn lease(self, attempt: u32, epoch: u32, holder: &str) -> Self {
        let name = format!("r{attempt}");
        self.says(
            "leases",
            json!({
                "metadata": {"namespace": "n", "name": name, "uid": format!("l{attempt}")},
                "spec": {"leaseTransitions": epoch, "holderIdentity": holder},
            }),
        )
    }

    fn without_fault(self) {
        assert_eq!(check(&self.0), Vec::<String>::new());
    }

    fn breaks(self, what: &str) {
        let violations = check(&self.0);
        assert!(
            violations.iter().any(|v| v.contains(what)),
            "{what:?} not in {violations:#?}"
        );
    }
}

fn run(attempt: u32, phase: &str, tokens: u64) -> Value {
    json!({
        "metadata": {"namespace": "n", "name": format!("r{attempt}"), "uid": format!("r{attempt}-uid")},
        "spec": {"attempt": attempt, "taskRef": {"uid": "t-uid"}, "deviceUID": "d", "leaseEpoch": 1},
        "status": {"phase": phase, "usage": {"inputTokens": tokens}},
    })
}

fn lost_then_done() -> Story {
    Story::default()
        .task("Running", "", 0)
        .run(1, "Running", 0)
        .lease(1, 1, "d")
        .lease(1, 2, "")
        .run(1, "Lost", 0)
        .run(2, "Pending", 0)
        .lease(2, 1, "e")
        .run(2, "Succeeded", 7)
        .lease(2, 1, "e")
        .lease(2, 2, "")
        .task("Succeeded", "r2", 7)
}

#[test]
fn a_lost_run_and_its_successor_are_fine() {
    lost_then_done().without_fault();
}

#[test]
fn ends_that_change_are_found() {
    lost_then_done()
        .run(1, "Succeeded", 0)
        .breaks("Lost became Succeeded");
    lost_then_done()
        .task("Failed", "r2", 7)
        .breaks("Succeeded became Failed");
}

#[test]
fn a_second_acceptance_is_found() {
    lost_then_done()
        .task("Succeeded", "r1", 7)
        .breaks("accepted r1 after r2");
    Story::default()
        .run(1, "Failed", 0)
        .task("Succeeded", "r1", 0)
        .breaks("a run that is Failed");
    Story::default()
        .task("Succeeded", "r9", 0)
        .breaks("a run that is not its own");
    Story::default()
        .task("Succeeded", "", 0)
        .breaks("without an accepted run");
}

#[test]
fn a_late_result_may_be_accepted() {
    let mut late = run(1, "Lost", 0);
    late["status"]["lateResult"] = json!({"phase": "Succeeded"});
    Story::default()
        .task("Running", "", 0)
        .run(1, "Running", 0)
        .run(1, "Lost", 0)
        .says("runs", late)
        .task("Succeeded", "r1", 0)
        .without_fault();
}

#[test]
fn two_live_attempts_and_steps_back_are_found() {
    Story::default()
        .run(1, "Running", 0)
        .run(2, "Pending", 0)
        .breaks("made while r1 is Running");
    Story::default()
        .run(2, "Failed", 0)
        .run(1, "Pending", 0)
        .breaks("which is no earlier attempt");
    Story::default()
        .lease(1, 2, "")
        .lease(1, 1, "")
        .breaks("epoch 2 became 1");
    Story::default()
        .lease(1, 1, "d")
        .lease(1, 1, "e")
        .breaks("under one epoch");
    let mut moved = run(1, "Running", 0);
    moved["spec"]["deviceUID"] = json!("e");
    moved["spec"]["leaseEpoch"] = json!(2);
    let story = || Story::default().run(1, "Running", 0).says("runs", moved.clone());
    story().breaks("/spec/deviceUID changed");
    story().breaks("epoch 1 became 2");
}

#[test]
fn losing_a_run_that_still_holds_its_lease_is_found() {
    Story::default()
        .run(1, "Running", 0)
        .lease(1, 1, "d")
        .run(1, "Lost", 0)
        .breaks("lost while its Lease says");
}

#[test]
fn usage_that_is_booked_twice_or_never_is_found() {
    lost_then_done()
        .task("Succeeded", "r2", 14)
        .breaks("booked 14 inputTokens, its runs used 7");
    lost_then_done()
        .task("Succeeded", "r2", 0)
        .breaks("inputTokens went from 7 to 0");
}

#[test]
fn what_a_lost_run_used_counts_too() {
    let mut late = run(1, "Lost", 0);
    late["status"]["lateResult"] = json!({"phase": "Failed", "usage": {"inputTokens": 5}});
    let story = |booked: u64| {
        lost_then_done()
            .says("runs", late.clone())
            .task("Succeeded", "r2", booked)
    };
    story(12).without_fault();
    story(7).breaks("booked 7 inputTokens, its runs used 12");
}

#[test]
fn what_is_left_behind_is_found() {
    Story::default().task("Running", "", 0).breaks("has not ended");
    Story::default()
        .run(1, "Verifying", 0)
        .breaks("is left in \"Verifying\"");
    let mut story = lost_then_done();
    let mut gone = story
        .0
        .iter()
        .rfind(|change| change.resource == "runs")
        .unwrap()
        .clone();
    gone.kind = "DELETED".into();
    story.0.push(gone);
    story.breaks("the Lease n/r2 is left, and its run is gone");
}

#[test]
fn an_older_report_after_a_newer_one_is_found() {
    let with = |seq: u64| {
        let mut run = run(1, "Running", 0);
        run["status"]["outboxSeq"] = json!(seq);
        run
    };
    Story::default()
        .says("runs", with(5))
        .says("runs", with(4))
        .breaks("an older report");
}
