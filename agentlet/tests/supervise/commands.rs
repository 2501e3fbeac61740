//! Single commands on the floor: checks, probes.

use std::ffi::OsString;
use std::time::Duration;

use panda_agentlet::process::{Finished, Request, RunError, StopPolicy, run, run_sandbox};
use panda_sandbox::{FloorError, FloorSpec, LaunchError, Launcher};
use tokio_util::sync::CancellationToken;

use super::harness::*;

fn request(place: &Place, args: &[&str]) -> Request {
    let mut argv = vec![place.agent().to_str().unwrap().to_owned()];
    argv.extend(args.iter().map(|a| (*a).to_owned()));
    Request {
        floor: FloorSpec {
            argv,
            cwd: place.work(),
            user: place.user,
            hidden: vec![place.secret()],
            ..FloorSpec::default()
        },
        stdin: Vec::new(),
        timeout: PATIENCE,
        stop: StopPolicy {
            grace: Duration::from_millis(200),
            ..StopPolicy::default()
        },
        max_output: 1000,
        name: place.uid.clone(),
    }
}

async fn finished(request: Request) -> Result<Finished, RunError> {
    let helper = OsString::from(env!("CARGO_BIN_EXE_agentlet-run"));
    let launcher = Launcher::new(vec![helper, "exec-floor".into()]);
    run(&launcher, request, &CancellationToken::new()).await
}

#[tokio::test]
async fn a_command_gives_its_exit_code_and_both_outputs() {
    let place = Place::new();
    let mut wanted = request(&place, &["--read-stdin-to-eof", "--err", "oops", "--fail", "3"]);
    wanted.stdin = b"words".to_vec();
    let done = finished(wanted).await.unwrap();
    assert_eq!(done.exit.code, Some(3));
    assert_eq!(done.stdout, b"stdin 5 bytes: words\n");
    assert_eq!(done.stderr, b"oops\n");
    assert_eq!((done.cut_short, done.dropped), (false, 0));
    let report = run_sandbox(&done.report);
    assert_eq!(report.floor, "Full");
    assert!(
        report
            .layers
            .iter()
            .any(|l| l.name == "noNewPrivileges" && l.strength == "hard")
    );
}

#[tokio::test]
async fn much_output_is_cut_in_the_middle() {
    let place = Place::new();
    let done = finished(request(
        &place,
        &["--say", "first", "--flood", "500000", "--say", "last"],
    ))
    .await
    .unwrap();
    assert_eq!(done.stdout.len(), 1000);
    assert_eq!(done.dropped, 500_011 - 1000);
    assert!(done.stdout.starts_with(b"first\n") && done.stdout.ends_with(b"last\n"));
}

#[tokio::test]
async fn a_command_that_takes_too_long_ends_with_all_that_it_started() {
    let place = Place::new();
    let mut wanted = request(&place, &["--fork", "2", "--orphan", "1h", "--hang"]);
    wanted.timeout = Duration::from_secs(1);
    let done = finished(wanted).await.unwrap();
    assert!(done.cut_short);
    assert!(done.exit.signal.is_some(), "{:?}", done.exit);
    assert_eq!(place.left(), Vec::<i32>::new());
}

#[tokio::test]
async fn a_command_that_leaves_something_behind_leaves_nothing_behind() {
    let place = Place::new();
    let done = finished(request(&place, &["--orphan", "1h"])).await.unwrap();
    assert!(done.exit.success() && !done.cut_short);
    assert_eq!(place.left(), Vec::<i32>::new());
}

#[tokio::test]
async fn a_command_that_is_not_there_is_told() {
    let place = Place::new();
    let mut wanted = request(&place, &[]);
    wanted.floor.argv[0] = "/no/such/program".into();
    let error = finished(wanted).await.unwrap_err();
    assert!(!error.is_retryable());
    let RunError::Launch(LaunchError::Floor(FloorError::ProgramNotFound { .. })) = error else {
        panic!("{error}");
    };
}
