//! What is left of runs when the device's own files are lost, torn or of the past.

use std::fs;

use panda_api::logline::Origin;
use panda_api::{FailureReason, RunPhase};

use crate::harness::*;

#[tokio::test]
async fn a_damaged_outbox_loses_no_result_and_leaves_no_process() {
    let mut device = Device::new().await;
    let live = device.give(device.a_run(&["--write", "half.txt", "x", "--say", "up", "--hang"]));
    device.says(&live, Origin::Stdout, "up").await;
    let over = device.give(device.a_run(&["--say", "done"]));
    let end = device.succeeds(&over).await;
    device.kill().await;
    let wal = device.data().join("outbox.db-wal");
    until("the outbox is closed", || !wal.exists()).await;
    fs::write(device.data().join("outbox.db"), "nonsense ".repeat(2000)).unwrap();
    let heard = device.server.state().last_seq;
    device.start().await;
    device.fails(&live, FailureReason::DeviceRestarted).await;
    assert_eq!(device.end_of(&live).await.changed_files.unwrap(), ["half.txt"]);
    until("nothing is left", || device.processes().is_empty()).await;
    let again = |s: &crate::testing::State| {
        let last = s.reports.iter().rfind(|r| r.1 == over).unwrap();
        (last.0 > heard).then(|| last.2.clone())
    };
    let again = device.server.until("the end once more", again).await;
    assert_eq!(
        (again.phase, again.completion_time),
        (end.phase, end.completion_time)
    );
    assert!(device.data().join("outbox.db.damaged-1").exists());
}

#[tokio::test]
async fn a_run_whose_record_cannot_be_read_is_ended_before_the_server_hears_of_it() {
    let mut device = Device::new().await;
    let uid = device.give(device.a_run(&["--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.kill().await;
    let record = device.data().join("runs").join(&uid).join("run.json");
    // As a newer version may have written it.
    let text = fs::read_to_string(&record).unwrap();
    fs::write(
        &record,
        text.replace("\"stage\":\"working\"", "\"stage\":\"dreaming\""),
    )
    .unwrap();
    device.start().await;
    device.fails(&uid, FailureReason::DeviceRestarted).await;
    assert_eq!(device.processes(), Vec::<String>::new());
    assert!(device.data().join("damaged").join(&uid).exists());
    // The device is as good as before.
    let next = device.give(device.a_run(&["--say", "fine"]));
    device.succeeds(&next).await;
}

#[tokio::test]
async fn a_loss_of_power_leaves_partial_results_and_no_doubt() {
    let mut device = Device::new().await;
    let uid = device.give(device.a_run(&["--write", "half.txt", "x", "--say", "up", "--hang"]));
    device.says(&uid, Origin::Stdout, "up").await;
    device.kill().await;
    device.signal_supervisor(&uid, rustix::process::Signal::KILL);
    until("nothing is left", || device.processes().is_empty()).await;
    // What is not made durable may be empty, what was being written may be torn.
    let folder = device.data().join("runs").join(&uid);
    fs::write(folder.join("grant.json"), "").unwrap();
    fs::write(folder.join("agent/grant.json"), "").unwrap();
    let journal = folder.join("agent/journal.jsonl");
    let mut torn = fs::read(&journal).unwrap();
    torn.extend_from_slice(b"{\"seq\":9,\"at\":\"20");
    fs::write(&journal, torn).unwrap();
    device.reboot_as("another-boot");
    device.start().await;
    device.fails(&uid, FailureReason::DeviceRestarted).await;
    assert_eq!(device.end_of(&uid).await.changed_files.unwrap(), ["half.txt"]);
    assert_eq!(device.starts(&uid), 1);
    let hello = device.server.state().hellos.last().cloned().unwrap();
    assert_eq!(hello.boot_id, "another-boot");
}

#[tokio::test]
async fn two_agentlets_of_one_host_leave_each_other_alone() {
    let (mut one, other) = (Device::new().await, Device::new().await);
    let theirs = other.give(other.a_run(&["--say", "up", "--hang"]));
    other.says(&theirs, Origin::Stdout, "up").await;
    let mine = one.give(one.a_run(&["--fork", "2", "--say", "up", "--hang"]));
    one.says(&mine, Origin::Stdout, "up").await;
    one.kill().await;
    one.signal_supervisor(&mine, rustix::process::Signal::KILL);
    one.start().await;
    one.fails(&mine, FailureReason::Crashed).await;
    assert_eq!(one.processes(), Vec::<String>::new());
    assert_eq!(other.processes().len(), 1);
    other.server.change(&theirs, |run| run.spec.cancel = Some(true));
    assert_eq!(other.end_of(&theirs).await.phase, Some(RunPhase::Cancelled));
}
