//! What outlives what.

use std::fs;
use std::process::{Command, Stdio};

use panda_agentlet::process::{Cgroup, stat};
use panda_agentlet::supervisor::{Adopted, Handle, Record, StartEvent, StartLine};
use panda_api::FailureReason;
use rustix::process::{Pid, Signal, kill_process};

use super::harness::*;

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

fn starts(place: &Place) -> Vec<StartLine> {
    let text = fs::read_to_string(place.starts()).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

#[tokio::test]
async fn a_killed_supervisor_is_a_crash_and_nothing_is_left() {
    let place = Place::new();
    let job = place.start(&place.spec(&["--fork", "2", "--orphan", "1h", "--say", "up", "--hang"]));
    job.says("ignoring TERM").await;
    job.says("up").await;
    let supervisor = job.handle.status().await.unwrap().supervisor;
    kill(i32::try_from(supervisor).unwrap());
    until("the supervisor is gone", || {
        stat(i32::try_from(supervisor).unwrap()).is_none_or(|p| !p.is_alive())
    })
    .await;
    let Adopted::Crashed(outcome) = Handle::adopt(&job.folder).await.unwrap() else {
        panic!("not a crash");
    };
    assert_eq!(outcome.failure.unwrap().reason, FailureReason::Crashed);
    assert_eq!(place.left(), Vec::<i32>::new());
    let group = job.entries().into_iter().find_map(|e| match e.record {
        Record::Started { cgroup } => cgroup,
        _ => None,
    });
    assert!(
        group.is_none_or(|g| Cgroup::open(&g).is_none()),
        "its control group is gone too"
    );
    // Adopted again, it is an end like any other; and it never starts again.
    assert!(matches!(
        Handle::adopt(&job.folder).await.unwrap(),
        Adopted::Ended(_)
    ));
    assert_eq!(supervise_again(&job), Some(3));
    let events: Vec<_> = starts(&place).iter().map(|l| l.event).collect();
    assert_eq!(events, [StartEvent::Start, StartEvent::End]);
}

fn supervise_again(job: &Job) -> Option<i32> {
    let words = supervise();
    Command::new(&words[0])
        .arg(&words[1])
        .arg(job.folder.path())
        .stdin(Stdio::null())
        .status()
        .unwrap()
        .code()
}

#[tokio::test]
async fn a_second_supervisor_finds_nothing_to_do() {
    let place = Place::new();
    let journal = place.work().join("j").to_str().unwrap().to_owned();
    let job = place.start(&place.spec(&["--journal", &journal, "--say", "up", "--sleep", "1s"]));
    job.says("up").await;
    assert_eq!(supervise_again(&job), Some(3), "while the first is at work");
    assert_eq!(job.outcome().await.failure, None);
    assert_eq!(supervise_again(&job), Some(3), "after it");
    let started = fs::read_to_string(&journal).unwrap();
    assert_eq!(started.lines().count(), 2, "one start, one end: {started}");
}

#[tokio::test]
async fn a_job_that_was_never_started_can_be_given_up_for_good() {
    let place = Place::new();
    let folder = place.folder(&place.spec(&["--say", "I ran"]), Some(&grant(HOUR)));
    assert!(matches!(
        Handle::adopt(&folder).await.unwrap(),
        Adopted::NeverStarted
    ));
    folder.forbid().unwrap();
    let handle = Handle::spawn(&supervise(), &folder).unwrap();
    let job = Job { folder, handle };
    assert_eq!(job.handle.tail(0).next().await.unwrap(), None);
    assert_eq!(job.stdout(), "");
}

#[tokio::test]
async fn a_supervisor_outlives_whoever_started_it_and_is_adopted() {
    let place = Place::new();
    let folder = place.folder(&place.spec(&["--say", "up", "--hang"]), Some(&grant(HOUR)));
    // A shell in the agentlet's place: it starts the supervisor, and is killed with its whole group.
    let words = supervise();
    let mut shell = Command::new("/bin/sh")
        .args(["-c", "\"$0\" supervise \"$1\" & wait"])
        .arg(&words[0])
        .arg(folder.path())
        .stdin(Stdio::null())
        .process_group_of_its_own()
        .spawn()
        .unwrap();
    let Adopted::Running(handle) = adopted(&folder).await else {
        panic!("not running");
    };
    let job = Job { folder, handle };
    job.says("up").await;
    let group = Pid::from_raw(i32::try_from(shell.id()).unwrap()).unwrap();
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    shell.wait().unwrap();
    // A service manager that stops the agentlet may also ask the supervisor to go: it does not.
    let supervisor = i32::try_from(job.handle.status().await.unwrap().supervisor).unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::TERM).unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::HUP).unwrap();
    assert!(!job.handle.status().await.unwrap().ending);
    job.handle.stop(FailureReason::Cancelled, "enough").await.unwrap();
    assert_eq!(
        job.outcome().await.failure.unwrap().reason,
        FailureReason::Cancelled
    );
    assert_eq!(place.left(), Vec::<i32>::new());
}

/// Waits for a supervisor that somebody else starts.
async fn adopted(folder: &panda_agentlet::supervisor::RunFolder) -> Adopted {
    until("the journal exists", || folder.journal().exists()).await;
    Handle::adopt(folder).await.unwrap()
}

trait OwnGroup {
    fn process_group_of_its_own(&mut self) -> &mut Self;
}

impl OwnGroup for Command {
    fn process_group_of_its_own(&mut self) -> &mut Self {
        std::os::unix::process::CommandExt::process_group(self, 0)
    }
}

#[tokio::test]
async fn starts_and_ends_are_written_for_an_outside_checker() {
    let place = Place::new();
    let mut spec = place.spec(&["--say", "done"]);
    for attempt in 1..=3 {
        spec.fence.attempt = attempt;
        place.start(&spec).outcome().await;
    }
    let lines = starts(&place);
    assert_eq!(lines.len(), 6);
    for (n, pair) in lines.chunks(2).enumerate() {
        let [start, end] = pair else { unreachable!() };
        assert_eq!((start.event, end.event), (StartEvent::Start, StartEvent::End));
        assert_eq!(start.attempt as usize, n + 1);
        assert_eq!((start.pid, start.starttime), (end.pid, end.starttime));
        assert!(start.boottime <= end.boottime);
    }
}

#[tokio::test]
async fn the_supervisor_shows_its_memory_and_files_to_nobody() {
    let place = Place::new();
    let job = place.start(&place.spec(&["--say", "up", "--hang"]));
    job.says("up").await;
    let supervisor = job.handle.status().await.unwrap().supervisor;
    let owner =
        std::os::unix::fs::MetadataExt::uid(&fs::metadata(format!("/proc/{supervisor}/environ")).unwrap());
    assert_eq!(owner, 0, "an undumpable process belongs to root in /proc");
    job.handle.stop(FailureReason::Cancelled, "enough").await.unwrap();
    job.outcome().await;
}
