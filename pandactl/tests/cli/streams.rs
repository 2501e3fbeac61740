//! Case B39: pipes, full disks, colours, widths.

use std::process::Stdio;

use panda_api::Task;
use panda_api::meta::ObjectMeta;
use tokio::process::Command;

use crate::harness::{Cluster, PATIENCE, finish};

async fn tasks(cluster: &Cluster, count: usize) {
    for number in 0..count {
        let mut task = Task {
            metadata: ObjectMeta::namespaced("default", format!("task-{number:05}")),
            ..Task::default()
        };
        task.spec.prompt = "p".into();
        cluster.registry.create_as(&task).await.unwrap();
    }
}

/// A shell that runs the program as `$P`.
fn shell(cluster: &Cluster, script: &str) -> Command {
    let program = cluster.command(&[]);
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .env_clear()
        .current_dir(cluster.dir.path())
        .kill_on_drop(true);
    for (key, value) in program.as_std().get_envs() {
        if let Some(value) = value {
            command.env(key, value);
        }
    }
    command.env("P", program.as_std().get_program());
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_early_ends_the_program_quietly() {
    let cluster = Cluster::start().await;
    tasks(&cluster, 10_000).await;
    for (args, head) in [
        ("get tasks", "NAME"),
        ("get tasks -o json", "{"),
        ("get tasks -o yaml", "apiVersion"),
    ] {
        let script = format!("{{ $P {args}; echo code=$? >&2; }} | head -1");
        let done = finish(shell(&cluster, &script), b"").await;
        assert!(done.out().starts_with(head), "{}", done.out());
        assert!(
            matches!(done.err().as_str(), "code=0\n" | "code=141\n"),
            "{args}: {}",
            done.err()
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_whose_reader_is_gone_ends_by_itself() {
    let cluster = Cluster::start().await;
    tasks(&cluster, 1).await;
    let done = finish(
        shell(&cluster, "{ $P get tasks -w; echo code=$? >&2; } | true"),
        b"",
    )
    .await;
    assert!(
        matches!(done.err().as_str(), "code=0\n" | "code=141\n"),
        "{}",
        done.err()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_a_failure_and_a_closed_output_is_none() {
    let cluster = Cluster::start().await;
    tasks(&cluster, 1).await;
    for args in [
        "get tasks",
        "get tasks -o json",
        "version",
        "--help",
        "api-resources",
    ] {
        let full = finish(shell(&cluster, &format!("$P {args} > /dev/full")), b"").await;
        assert_eq!(full.code(), 1, "{args}");
        assert!(
            full.err().contains("error:") && !full.err().contains("panicked"),
            "{args}: {}",
            full.err()
        );
        let closed = finish(shell(&cluster, &format!("$P {args} >&-")), b"").await;
        assert!(!closed.err().contains("panicked"), "{args}: {}", closed.err());
        let deaf = finish(shell(&cluster, &format!("$P {args} 2>&-")), b"").await;
        assert_eq!(deaf.code(), 0, "{args}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn colours_come_only_where_they_are_wanted() {
    let cluster = Cluster::start().await;
    tasks(&cluster, 1).await;
    let colored = |text: &str| text.contains('\u{1b}');
    for (vars, args, wanted) in [
        ("", "get tasks", false),
        ("TERM=dumb", "get tasks", false),
        ("NO_COLOR=1", "get tasks --color=always", true),
        ("", "get tasks --color=always", true),
        ("CLICOLOR_FORCE=1", "get tasks", true),
        ("CLICOLOR_FORCE=1 NO_COLOR=1", "get tasks", false),
        ("CLICOLOR_FORCE=1 NO_COLOR=", "get tasks", true),
        ("CLICOLOR_FORCE=1", "get tasks --color=never", false),
        ("CLICOLOR_FORCE=1", "get tasks -o json --color=always", false),
        ("CLICOLOR_FORCE=1", "get tasks -o yaml --color=always", false),
        ("CLICOLOR_FORCE=1", "get tasks -o name --color=always", false),
        (
            "CLICOLOR_FORCE=1",
            "get tasks -o jsonpath={.items[0].metadata.name} --color=always",
            false,
        ),
    ] {
        let done = finish(shell(&cluster, &format!("{vars} $P {args} 2>&1 | cat")), b"").await;
        assert_eq!(colored(&done.out()), wanted, "{vars} {args}: {:?}", done.out());
    }
    let done = finish(shell(&cluster, "$P get tasks nothing 2>&1 | cat"), b"").await;
    assert!(!colored(&done.out()), "{}", done.out());
}

/// Runs a command on a terminal of that width, with `script` of util-linux.
async fn on_a_terminal(cluster: &Cluster, columns: usize, command: &str) -> Option<String> {
    let inner = format!("stty cols {columns} rows 24 2>/dev/null; {command}");
    let mut script = shell(cluster, "exec script -qec \"$INNER\" /dev/null");
    script
        .env("INNER", inner)
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let output = tokio::time::timeout(PATIENCE, script.output())
        .await
        .unwrap()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).replace('\r', ""))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_narrow_terminal_gets_narrow_lines_in_colour() {
    let cluster = Cluster::start().await;
    tasks(&cluster, 2).await;
    let sgr = regex::Regex::new("\u{1b}\\[[0-9;]*m").unwrap();
    for columns in [20, 40, 80] {
        let Some(text) = on_a_terminal(&cluster, columns, "$P get tasks").await else {
            eprintln!("skipped: `script` is not installed");
            return;
        };
        assert!(text.contains('\u{1b}') && text.lines().count() == 3, "{text:?}");
        for line in text.lines() {
            let plain = sgr.replace_all(line, "");
            assert!(plain.chars().count() <= columns, "{columns}: {plain:?}");
        }
    }
}
