//! The floor with real processes; what holds in whole runs is tested in `panda-agentlet`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use panda_sandbox::{FloorError, FloorSpec, LaunchError, Launcher, Stdin, User};

fn launcher() -> Launcher {
    Launcher::new(vec![env!("CARGO_BIN_EXE_exec-floor").into()])
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A folder that everybody may use.
fn place() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o777)).unwrap();
    dir
}

fn shell(script: &str, cwd: &Path) -> FloorSpec {
    FloorSpec {
        argv: ["sh", "-c", script].map(str::to_owned).into(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        cwd: cwd.into(),
        user: is_root().then_some(User {
            uid: 61_234,
            gid: 61_234,
        }),
        ..FloorSpec::default()
    }
}

/// Runs to the end; both outputs.
fn run(spec: &FloorSpec) -> Result<String, LaunchError> {
    let started = launcher().prepare(spec, Stdin::Null)?.go()?;
    let mut said = String::new();
    fs::File::from(started.stdout).read_to_string(&mut said).unwrap();
    fs::File::from(started.stderr).read_to_string(&mut said).unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(started.pid).unwrap());
    rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).unwrap();
    Ok(said)
}

fn reason(spec: &FloorSpec) -> FloorError {
    match run(spec) {
        Err(LaunchError::Floor(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_link_to_a_hidden_folder_leads_nowhere_and_so_does_hiding_by_way_of_one() {
    let dir = place();
    let (secret, link) = (dir.path().join("secret"), dir.path().join("link"));
    fs::create_dir(&secret).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o777)).unwrap();
    fs::write(secret.join("key"), "words").unwrap();
    symlink(&secret, &link).unwrap();
    for hidden in [&secret, &link] {
        let mut spec = shell("cat secret/key; cat link/key; ls secret; echo end", dir.path());
        spec.hidden = vec![hidden.clone()];
        let said = run(&spec).unwrap();
        assert!(!said.contains("words") && !said.contains("\nkey\n"), "{said}");
        assert!(said.contains("end"), "{said}");
    }
}

#[test]
fn a_hidden_file_is_hidden_and_its_siblings_are_not() {
    let dir = place();
    fs::write(dir.path().join("key"), "words").unwrap();
    fs::write(dir.path().join("open"), "sesame").unwrap();
    let mut spec = shell("cat key; cat open", dir.path());
    spec.hidden = vec![dir.path().join("key")];
    let said = run(&spec).unwrap();
    assert!(!said.contains("words") && said.contains("sesame"), "{said}");
}

#[test]
fn a_path_that_does_not_exist_yet_cannot_be_made() {
    let dir = place();
    let mut spec = shell("mkdir later && echo made; test -e later || echo none", dir.path());
    spec.hidden = vec![dir.path().join("later")];
    match run(&spec) {
        Ok(said) => assert!(!said.contains("made") && said.contains("none"), "{said}"),
        Err(e) => println!("skipped: this machine cannot hide what does not exist: {e}"),
    }
}

#[test]
fn requests_that_make_no_sense_are_refused_with_a_reason() {
    let dir = place();
    let invalid = |change: fn(&mut FloorSpec)| {
        let mut spec = shell("true", dir.path());
        change(&mut spec);
        reason(&spec)
    };
    let cases: [fn(&mut FloorSpec); 8] = [
        |s| s.argv.clear(),
        |s| s.argv.push("a\0b".into()),
        |s| s.env.push(("A=B".into(), String::new())),
        |s| s.env.push((String::new(), String::new())),
        |s| s.cwd = "relative".into(),
        |s| s.hidden.push("relative".into()),
        |s| s.hidden.push("/a/../b".into()),
        |s| s.hidden.push("/".into()),
    ];
    for case in cases {
        let reason = invalid(case);
        assert!(matches!(reason, FloorError::Invalid { .. }), "{reason:?}");
    }
    let reason = invalid(|s| s.cwd = "/no/such/place".into());
    assert!(
        matches!(reason, FloorError::WorkingDirectory { .. }),
        "{reason:?}"
    );
    let reason = invalid(|s| s.argv[0] = "no-such-program".into());
    assert!(matches!(reason, FloorError::ProgramNotFound { .. }), "{reason:?}");
    let reason = invalid(|s| s.cgroup = Some("/no/such/group".into()));
    assert!(matches!(reason, FloorError::Layer { .. }), "{reason:?}");
    if is_root() {
        assert_eq!(invalid(|s| s.user = None), FloorError::RootWithoutUser);
        let reason = invalid(|s| s.user = Some(User { uid: 0, gid: 1 }));
        assert!(matches!(reason, FloorError::Invalid { .. }), "{reason:?}");
    }
}

#[test]
fn a_program_that_cannot_be_run_is_told() {
    let dir = place();
    let path = dir.path().join("rubbish");
    fs::write(&path, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    let mut spec = shell("", dir.path());
    spec.argv = vec![path.to_str().unwrap().into()];
    assert!(matches!(reason(&spec), FloorError::Exec { .. }));
}

#[test]
fn what_is_prepared_and_dropped_never_runs() {
    let dir = place();
    let prepared = launcher()
        .prepare(&shell("touch ran", dir.path()), Stdin::Null)
        .unwrap();
    let pid = prepared.pid();
    drop(prepared);
    assert!(!dir.path().join("ran").exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "and is waited for");
}

#[test]
fn standard_input_is_what_was_given() {
    let dir = place();
    let (read, write) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut &write, b"words").unwrap();
    drop(write);
    let prepared = launcher()
        .prepare(&shell("cat", dir.path()), Stdin::From(read.into()))
        .unwrap();
    let started = prepared.go().unwrap();
    let mut said = String::new();
    fs::File::from(started.stdout).read_to_string(&mut said).unwrap();
    assert_eq!(said, "words");
}

#[test]
fn a_program_that_makes_no_floor_is_found_out() {
    let launcher = Launcher::new(vec!["/bin/true".into()]);
    let made = launcher.prepare(&shell("true", Path::new("/")), Stdin::Null);
    assert!(matches!(made, Err(LaunchError::Helper { .. })), "{made:?}");
}

#[test]
fn the_helper_started_by_hand_says_so() {
    let out = Command::new(env!("CARGO_BIN_EXE_exec-floor"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("started by the agentlet"));
}
