//! The commands of README.md and of the examples' READMEs, run as they stand there.
//!
//! Every fenced `sh` block is run by `sh -eu`, block after block of a file in one shell, from the workspace's root, by
//! a person with a HOME of their own. The rule for what is left out: a line that starts `cargo` or `./e2e/` builds
//! (this binary is what it builds), a line that starts `pandactl up` starts a cluster (the test has one; the demo is
//! run by a test of its own), and a `-w` or `--watch` has no end of its own, so it is stopped after a while.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, ensure};
use panda_e2e::cluster::{Cluster, tool};

use crate::support::{apply, example_repository, root};

/// Seconds after which a watch is stopped; the README's reader presses Ctrl-C.
const WATCHED: u32 = 3;
/// The example that brings its own processes.
const TWO_DEVICES: &str = "two-devices/README.md";

/// The `sh` blocks of a Markdown text, each line of which is to be run.
fn script(markdown: &str) -> String {
    let mut out = String::new();
    let (mut inside, mut leaving_out) = (false, false);
    for line in markdown.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
            continue;
        }
        if !inside {
            continue;
        }
        let continued = line.ends_with('\\');
        let builds = ["cargo ", "./e2e/", "pandactl up"]
            .iter()
            .any(|start| line.starts_with(start));
        if leaving_out || builds {
            leaving_out = continued;
            continue;
        }
        let command = line.split(" # ").next().unwrap_or(line).trim_end();
        let watches = command.ends_with(" -w") || command.ends_with(" --watch");
        if watches {
            out.push_str(&format!("timeout {WATCHED} {command} || [ $? -eq 124 ]\n"));
        } else {
            out.push_str(command);
            out.push('\n');
        }
    }
    out
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Runs the script of a document; it must succeed.
fn run(cluster: &Cluster, document: &Path, programs: &[&Path]) -> anyhow::Result<String> {
    let script = script(&read(document)?);
    ensure!(!script.is_empty(), "{} says nothing to run", document.display());
    let mut command: Command = cluster.command("sh");
    let own = command
        .get_envs()
        .find(|(name, _)| *name == "PATH")
        .and_then(|(_, value)| value)
        .context("the cluster sets PATH")?
        .to_owned();
    let bin = cluster.pandactl_path()?;
    let folders = bin.parent().into_iter().chain(programs.iter().copied());
    let path = std::env::join_paths(folders.map(PathBuf::from).chain(std::env::split_paths(&own)))?;
    let output: Output = command
        .args(["-eu", "-c", &script])
        .env("PATH", path)
        .env("GIT_AUTHOR_NAME", "Reader")
        .env("GIT_AUTHOR_EMAIL", "reader@example.invalid")
        .env("GIT_COMMITTER_NAME", "Reader")
        .env("GIT_COMMITTER_EMAIL", "reader@example.invalid")
        .current_dir(root())
        .output()?;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        output.status.success(),
        "{} is not true any more ({}):\n{script}\n--- said\n{out}\n--- and\n{err}\n{}",
        document.display(),
        output.status,
        cluster.log()
    );
    Ok(out.into_owned())
}

#[tokio::test]
async fn the_readme_works_as_written() -> anyhow::Result<()> {
    let Some(kubectl) = tool("kubectl") else {
        return Ok(());
    };
    let cluster = Cluster::start(&[]).await?;
    // The reader's project, and in the place of their agent CLI a program that needs no model.
    let project = example_repository(&cluster, "src/my-project")?;
    std::fs::write(project.join("Makefile"), "test:\n\tsh tests/run.sh\n")?;
    crate::support::git(&project, &["add", "--all"])?;
    crate::support::git(
        &project,
        &[
            "-c",
            "user.name=Reader",
            "-c",
            "user.email=reader@example.invalid",
            "commit",
            "--quiet",
            "--message",
            "make",
        ],
    )?;
    cluster.ok(&["delete", "agent", "claude-code"])?;
    let agent = read(&root().join("examples/first-task/agent.yaml"))?;
    let agent = agent.replace("name: patcher", "name: claude-code");
    apply(&cluster, "agent.yaml", &agent)?;

    let folder = kubectl.parent().context("kubectl lies in a folder")?;
    let said = run(&cluster, &root().join("README.md"), &[folder])?;
    for words in [
        "claude-code",
        "passed",
        "+    return (year % 4",
        "nothing is committed",
    ] {
        ensure!(said.contains(words), "no {words:?} in\n{said}");
    }
    let mended = read(&project.join("src/leap.c"))?;
    ensure!(mended.contains("year % 400"), "not taken over:\n{mended}");
    Ok(())
}

#[tokio::test]
async fn the_examples_work_as_written() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let mut documents = Vec::new();
    for entry in std::fs::read_dir(root().join("examples"))? {
        documents.push(entry?.path().join("README.md"));
    }
    // It starts a control plane of its own.
    documents.retain(|document| !document.ends_with(TWO_DEVICES));
    documents.sort();
    ensure!(documents.len() >= 3, "{documents:?}");
    for document in &documents {
        let said = run(&cluster, document, &[])?;
        if document.ends_with("secrets/README.md") {
            ensure!(said.contains("the token is [masked]"), "{said}");
            ensure!(!said.contains("ghp_R7kTq2WmZx9LpV4c"), "{said}");
        }
    }
    let tasks = cluster.ok(&["get", "tasks", "--no-headers"])?;
    let rows = tasks.lines().count();
    ensure!(rows >= 8, "{tasks}");
    cluster.ok(&[
        "wait",
        "task",
        "--all",
        "--for=condition=Complete",
        "--timeout=60s",
    ])?;
    Ok(())
}

#[test]
fn the_example_of_two_devices_works_as_written_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let dir = tempfile::Builder::new().prefix("panda-e2e-").tempdir()?;
    // Agents of a root device run as another user.
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let script = script(&read(&root().join("examples").join(TWO_DEVICES))?);
    ensure!(script.contains(":7643"), "the port is another one: {script}");
    let script = script.replace(":7643", &format!(":{free}"));
    let said = std::fs::File::create(dir.path().join("said"))?;
    let bin = panda_e2e::cluster::target()?;
    #[expect(
        clippy::disallowed_methods,
        reason = "the PATH of the test is the PATH of the devices"
    )]
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&old)))?;
    let status = Command::new("sh")
        .args(["-eu", "-c", &script])
        .env_clear()
        .env("PATH", path)
        .env("HOME", dir.path())
        .env("TMPDIR", dir.path())
        .current_dir(root())
        .stdin(std::process::Stdio::null())
        .stdout(said.try_clone()?)
        .stderr(said)
        .status();
    // Whatever became of it, its processes name the folder in their arguments.
    let own: Vec<_> = panda_e2e::processes::naming(dir.path());
    let ended = panda_e2e::processes::kill_naming(dir.path(), std::time::Duration::from_secs(10));
    let said = read(&dir.path().join("said"))?;
    ensure!(
        status?.success(),
        "it is not true any more:\n{script}\n--- said\n{said}"
    );
    ensure!(own.is_empty() && ended, "left: {own:?}\n{said}");
    for words in [
        "in-the-study  Succeeded  desk",
        "in-the-attic  Succeeded  attic",
        "device.panda.dev/attic drained",
        "task.panda.dev/moved condition met\ndesk\n",
        "device attic removed",
    ] {
        ensure!(said.contains(words), "no {words:?} in\n{said}");
    }
    Ok(())
}

#[tokio::test]
async fn the_demo_shows_a_verified_change_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;
    let temporary = cluster.dir().join("tmp");
    std::fs::create_dir(&temporary)?;
    let output = cluster
        .command(cluster.pandactl_path()?)
        .args(["up", "--demo"])
        .env("TMPDIR", &temporary)
        .output()?;
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{out}\n{err}");
    for words in [
        "FAIL 1900",
        "first-task  Succeeded",
        "passed  tests",
        "pandactl create task mine",
    ] {
        ensure!(out.contains(words), "no {words:?} in\n{out}\n{err}");
    }
    ensure!(!out.contains("Some("), "not for people: {out}");
    let left: Vec<_> = std::fs::read_dir(&temporary)?.collect();
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn only_lines_that_build_or_start_a_cluster_are_left_out() {
    let text = "```yaml\nnot: this\n```\n```sh\ncargo build && x\npandactl up   # here\npandactl get tasks -w\n\
                pandactl create task a \\\n    --prompt 'x' # why\n./e2e/test\n```\nprose\n";
    assert_eq!(
        script(text),
        "timeout 3 pandactl get tasks -w || [ $? -eq 124 ]\npandactl create task a \\\n    --prompt 'x'\n"
    );
}
