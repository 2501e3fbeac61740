//! The floor that every agent stands on, whatever its profile.

use std::ffi::OsString;

use panda_api::FailureReason;
use panda_sandbox::{FloorError, FloorSpec, LaunchError, Launcher, Layer, Stdin, Strength, probe};

use super::harness::*;

fn helper() -> Launcher {
    Launcher::new(vec![
        OsString::from(env!("CARGO_BIN_EXE_agentlet-run")),
        "exec-floor".into(),
    ])
}

fn floor(place: &Place, without: &[Layer]) -> FloorSpec {
    FloorSpec {
        argv: vec!["/bin/true".into()],
        cwd: "/".into(),
        user: place.user,
        hidden: vec![place.secret()],
        without: without.to_vec(),
        ..FloorSpec::default()
    }
}

#[tokio::test]
async fn hidden_paths_cannot_be_read_listed_or_written() {
    let place = Place::new();
    let key = place.secret().join("key").to_str().unwrap().to_owned();
    let planted = place.secret().join("planted").to_str().unwrap().to_owned();
    let mut spec = place.spec(&[
        "--read",
        &key,
        "--write",
        &planted,
        "x",
        "--write",
        "mine",
        "ok",
        "--read",
        "/etc/hostname",
    ]);
    // One that does not exist is hidden all the same.
    let later = place.work().join("later");
    spec.program.hidden.push(later.join("deep"));
    let job = place.start(&spec);
    let outcome = job.outcome().await;
    let said = job.stdout();
    assert_eq!(outcome.failure, None, "{said}");
    assert!(said.contains(&format!("cannot read {key}")), "{said}");
    assert!(said.contains(&format!("not wrote {planted}")), "{said}");
    assert!(said.contains("read /etc/hostname:"), "{said}");
    assert!(!place.secret().join("planted").exists());
}

#[tokio::test]
async fn a_workspace_beneath_a_hidden_folder_stays_in_sight() {
    let place = Place::new();
    let inner = place.secret().join("inner");
    std::fs::create_dir(&inner).unwrap();
    if let Some(user) = place.user {
        std::os::unix::fs::chown(&inner, Some(user.uid), Some(user.gid)).unwrap();
    }
    let key = place.secret().join("key").to_str().unwrap().to_owned();
    let mut spec = place.spec(&["--write", "here", "ok", "--read", "here", "--read", &key]);
    spec.program.cwd = inner.clone();
    spec.program.visible = vec![inner.clone()];
    let job = place.start(&spec);
    assert_eq!(job.outcome().await.failure, None);
    let said = job.stdout();
    assert!(
        said.contains("read here: ok") && said.contains("cannot read /"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(inner.join("here")).unwrap(), "ok");
}

#[tokio::test]
async fn the_agent_has_only_its_own_environment_user_and_descriptors_and_no_way_to_more() {
    let place = Place::new();
    let (job, outcome) = place.run(&["--print-env", "--status", "--open-tty"]).await;
    assert_eq!(outcome.failure, None);
    let said = job.stdout();
    let env: Vec<_> = said.lines().filter(|l| l.contains('=')).collect();
    let names: Vec<_> = env.iter().map(|l| l.split('=').next().unwrap()).collect();
    assert_eq!(names, ["GREETING", "HOME", "PANDA_RUN", "PATH"], "{said}");
    assert!(said.contains("NoNewPrivs: 1"), "{said}");
    assert!(said.contains("fds 0 1 2\n"), "{said}");
    assert!(said.contains("leads its session true"), "{said}");
    assert!(said.contains("not opened /dev/tty"), "{said}");
    assert!(said.contains("CapEff: 0000000000000000"), "{said}");
    assert!(!said.contains("SigIgn: 0000000000000002"), "{said}");
    assert!(said.contains("CapAmb: 0000000000000000"), "{said}");
    if let Some(user) = place.user {
        // Without root there is no right to give anything up, and nothing that could be had.
        assert!(said.contains("CapBnd: 0000000000000000"), "{said}");
        let uid = user.uid;
        assert!(said.contains(&format!("Uid: {uid} {uid} {uid} {uid}")), "{said}");
        assert!(said.contains(&format!("Gid: {uid} {uid} {uid} {uid}")), "{said}");
        assert!(said.contains("Groups:\n"), "{said}");
    }
}

#[tokio::test]
async fn what_cannot_be_hidden_is_not_run() {
    let place = Place::new();
    let made = helper().prepare(
        &floor(&place, &[Layer::Landlock, Layer::MountNamespace]),
        Stdin::Null,
    );
    assert!(
        matches!(made, Err(LaunchError::Floor(FloorError::CannotHide { .. }))),
        "{made:?}"
    );
    // The same through a whole run: the reason is a typed one.
    let mut spec = place.spec(&["--say", "I ran"]);
    spec.program.hidden = vec!["/".into()];
    let job = place.start(&spec);
    assert!(job.outcome().await.failure.is_some());
    assert_eq!(job.stdout(), "");
}

#[tokio::test]
async fn either_way_of_hiding_is_enough_and_says_so() {
    let place = Place::new();
    for (without, with) in [
        (Layer::MountNamespace, Layer::Landlock),
        (Layer::Landlock, Layer::MountNamespace),
    ] {
        let report = match helper().prepare(&floor(&place, &[without]), Stdin::Null) {
            Ok(prepared) => prepared.report().clone(),
            Err(e) => {
                println!("skipped: this machine has no {with}: {e}");
                continue;
            }
        };
        assert_eq!(report.strength(with), Strength::Hard, "{report:?}");
        assert_eq!(report.strength(without), Strength::None);
        assert!(report.holds());
    }
    let report = probe(&helper(), place.user, &place.secret()).unwrap();
    assert!(report.holds(), "{report:?}");
    assert_eq!(report.strength(Layer::User) == Strength::Hard, is_root());
}

#[tokio::test]
async fn root_does_not_run_agents_as_root() {
    let place = Place::new();
    let mut spec = place.spec(&["--say", "I ran"]);
    spec.program.user = None;
    spec.program.user_is_exclusive = false;
    let job = place.start(&spec);
    let outcome = job.outcome().await;
    if is_root() {
        assert_eq!(outcome.failure.unwrap().reason, FailureReason::SandboxUnavailable);
        assert_eq!(job.stdout(), "");
    } else {
        assert_eq!(outcome.failure, None);
    }
}

#[tokio::test]
async fn an_agent_cannot_command_its_supervisor() {
    let place = Place::new();
    // The socket's folder is hidden, and who finds the socket all the same does not know the word.
    let job = place.start(&place.spec(&["--say", "up", "--hang"]));
    job.says("up").await;
    let socket = job.folder.path().join("ctl.sock");
    let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
    std::io::Write::write_all(
        &mut stream,
        b"{\"key\":\"guess\",\"ask\":{\"do\":{\"command\":\"pause\"}}}\n",
    )
    .unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    assert!(answer.contains("wrong key"), "{answer}");
    assert!(!job.handle.status().await.unwrap().frozen);
    job.handle.stop(FailureReason::Cancelled, "enough").await.unwrap();
    job.outcome().await;
}
