//! The kubectl that people have, unmodified.

#[path = "kubectl/access.rs"]
mod access;
#[path = "kubectl/change.rs"]
mod change;
#[path = "kubectl/delete.rs"]
mod delete;
#[path = "kubectl/read.rs"]
mod read;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use panda_e2e::cluster::{Cluster, PATIENCE, tool};

use crate::support::{apply, ended, fake_agent};

const TASK: &str = "{apiVersion: panda.dev/v1alpha1, kind: Task, metadata: {name: hello, labels: {team: a}}, \
                    spec: {prompt: Say hello., agents: [{name: hello}]}}";

fn run(mut command: Command) -> anyhow::Result<String> {
    let output = command.output()?;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(
        output.status.success(),
        "{command:?} failed ({}):\n{out}\n{err}",
        output.status
    );
    Ok(out.into_owned())
}

/// A cluster, and kubectl to speak to it.
struct Kubectl {
    cluster: Cluster,
    program: PathBuf,
}

impl Kubectl {
    /// None where kubectl is not installed.
    async fn start() -> anyhow::Result<Option<Self>> {
        let Some(program) = tool("kubectl") else {
            return Ok(None);
        };
        let cluster = Cluster::start(&[]).await?;
        apply(&cluster, "agent.json", &fake_agent("hello", &["--succeed"]))?;
        Ok(Some(Self { cluster, program }))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.cluster.command(&self.program);
        command.args(args);
        command
    }

    /// The standard output of a kubectl that must succeed.
    fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        run(self.command(args))
    }

    /// What a kubectl that must fail says, on either stream.
    fn fails(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.command(args).output()?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        ensure!(!output.status.success(), "kubectl {args:?} succeeded:\n{said}");
        Ok(said)
    }

    /// A manifest in a file.
    fn file(&self, name: &str, content: &str) -> anyhow::Result<String> {
        let path = self.cluster.dir().join(name);
        std::fs::write(&path, content)?;
        Ok(path.to_str().context("UTF-8")?.to_owned())
    }

    /// A task that has ended, made by `kubectl apply`.
    async fn ended_task(&self, name: &str) -> anyhow::Result<()> {
        let file = self.file(&format!("{name}.yaml"), &manifest(name, "Say hello."))?;
        self.ok(&["apply", "-f", &file])?;
        ended(&self.cluster, name).await?;
        Ok(())
    }
}

/// A task with a label that tells it from others.
fn manifest(name: &str, prompt: &str) -> String {
    format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata:\n  name: {name}\n  labels:\n    team: {name}\n\
         spec:\n  prompt: {prompt}\n  agents:\n  - name: hello\n"
    )
}

/// Requires that a text holds words.
fn says(text: &str, words: &[&str]) -> anyhow::Result<()> {
    for word in words {
        ensure!(text.contains(word), "no {word:?} in:\n{text}");
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_reads_watches_describes_and_deletes() -> anyhow::Result<()> {
    let Some(kubectl) = tool("kubectl") else {
        return Ok(());
    };
    let cluster = Cluster::start(&[]).await?;
    let kubectl = |args: &[&str]| {
        let mut command = cluster.command(&kubectl);
        command.args(args);
        command
    };
    let resources = run(kubectl(&["api-resources"]))?;
    for (name, kind) in [
        ("tasks", "Task"),
        ("runs", "Run"),
        ("agents", "Agent"),
        ("devices", "Device"),
        ("leases", "Lease"),
    ] {
        ensure!(
            resources
                .lines()
                .any(|l| l.starts_with(name) && l.ends_with(kind)),
            "no {name} in\n{resources}"
        );
    }

    let mut watch = kubectl(&["get", "tasks", "--watch"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(watch.stdout.take().context("piped")?).lines();
    apply(&cluster, "agent.json", &fake_agent("hello", &["--succeed"]))?;
    apply(&cluster, "task.yaml", TASK)?;
    let task = ended(&cluster, "hello").await?;
    let seen = tokio::time::timeout(
        PATIENCE,
        tokio::task::spawn_blocking(move || {
            let mut seen = String::new();
            for line in lines.by_ref() {
                let Ok(line) = line else { break };
                seen.push_str(&line);
                seen.push('\n');
                if line.starts_with("hello") && line.contains("Succeeded") {
                    break;
                }
            }
            seen
        }),
    )
    .await;
    watch.kill()?;
    watch.wait()?;
    let seen = seen.context("the watch said nothing of the end")??;
    watch.kill()?;
    watch.wait()?;
    ensure!(
        seen.contains("Succeeded"),
        "get -w never said that it succeeded:\n{seen}"
    );

    let table = run(kubectl(&["get", "tasks", "-l", "team=a"]))?;
    ensure!(table.starts_with("NAME"), "{table}");
    ensure!(
        table
            .lines()
            .nth(1)
            .is_some_and(|l| l.starts_with("hello") && l.contains("Succeeded")),
        "{table}"
    );
    let yaml = run(kubectl(&["get", "task", "hello", "-o", "yaml"]))?;
    ensure!(yaml.contains(&format!("uid: {}", task.metadata.uid)), "{yaml}");
    let described = run(kubectl(&["describe", "task", "hello"]))?;
    ensure!(
        described.contains("Name:") && described.contains("Succeeded"),
        "{described}"
    );
    let deleted = run(kubectl(&["delete", "task", "hello"]))?;
    ensure!(deleted.contains("deleted"), "{deleted}");
    let gone = kubectl(&["get", "task", "hello"]).output()?;
    ensure!(
        String::from_utf8_lossy(&gone.stderr).contains("NotFound"),
        "{gone:?}"
    );
    Ok(())
}

/// `config` with a token instead of the certificate.
fn with_token(config: &str, token: &str) -> String {
    let lines = config.lines().filter(|line| !line.contains("client-certificate"));
    let lines = lines.map(|line| match line.split_once("client-key") {
        Some((indent, _)) => format!("{indent}token: {token}"),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn kubectl_and_pandactl_make_accounts_and_roles_and_say_who_may_do_what() -> anyhow::Result<()> {
    let Some(kubectl) = tool("kubectl") else {
        return Ok(());
    };
    let cluster = Cluster::start(&[]).await?;
    let kubectl = |args: &[&str]| {
        let mut command = cluster.command(&kubectl);
        command.args(args);
        command
    };
    let me = run(kubectl(&["auth", "whoami"]))?;
    ensure!(
        me.contains("panda:admin") && me.contains("system:masters"),
        "{me}"
    );
    let me = cluster.ok(&["auth", "whoami"])?;
    ensure!(
        me.contains("panda:admin") && me.contains("system:masters"),
        "{me}"
    );
    ensure!(run(kubectl(&["auth", "can-i", "create", "tasks"]))?.trim() == "yes");
    let all = run(kubectl(&["auth", "can-i", "--list"]))?;
    ensure!(all.contains("*.*"), "{all}");

    run(kubectl(&["create", "namespace", "web"]))?;
    run(kubectl(&["create", "serviceaccount", "bot", "-n", "web"]))?;
    run(kubectl(&[
        "create",
        "role",
        "reader",
        "--verb=get,list",
        "--resource=tasks.panda.dev",
        "-n",
        "web",
    ]))?;
    run(kubectl(&[
        "create",
        "rolebinding",
        "bot",
        "--role=reader",
        "--serviceaccount=web:bot",
        "-n",
        "web",
    ]))?;
    run(kubectl(&[
        "create",
        "clusterrolebinding",
        "vi",
        "--clusterrole=view",
        "--user=vi",
    ]))?;
    let config = std::fs::read_to_string(cluster.config())?;
    for token in [
        run(kubectl(&[
            "create",
            "token",
            "bot",
            "-n",
            "web",
            "--duration=10m",
        ]))?,
        cluster.ok(&["create", "token", "bot", "-n", "web", "--duration", "10m"])?,
    ] {
        let path = cluster.dir().join("bot.config");
        std::fs::write(&path, with_token(&config, token.trim()))?;
        let file = path.to_str().context("text")?;
        let as_bot = |args: &[&str]| {
            let mut command = kubectl(args);
            command.args(["-n", "web", "--kubeconfig", file]);
            command
        };
        let me = run(as_bot(&["auth", "whoami"]))?;
        ensure!(me.contains("system:serviceaccount:web:bot"), "{me}");
        // A binding is in force a moment after it was written.
        let deadline = std::time::Instant::now() + PATIENCE;
        while !as_bot(&["auth", "can-i", "list", "tasks"])
            .output()?
            .status
            .success()
        {
            ensure!(
                std::time::Instant::now() < deadline,
                "the role never came into force"
            );
        }
        let no = as_bot(&["auth", "can-i", "list", "secrets"]).output()?;
        ensure!(no.status.code() == Some(1) && no.stdout == b"no\n", "{no:?}");
        let list = run(as_bot(&["auth", "can-i", "--list"]))?;
        ensure!(list.contains("tasks.panda.dev"), "{list}");
        run(as_bot(&["get", "tasks"]))?;
        let refused = as_bot(&["get", "secrets"]).output()?;
        ensure!(
            String::from_utf8_lossy(&refused.stderr).contains("Forbidden"),
            "{refused:?}"
        );

        let ours = |args: &[&str]| -> anyhow::Result<std::process::Output> {
            let mut all = args.to_vec();
            all.extend(["-n", "web", "--kubeconfig", file]);
            cluster.pandactl(&all)
        };
        let yes = ours(&["auth", "can-i", "get", "task/x"])?;
        ensure!(yes.status.success() && yes.stdout == b"yes\n", "{yes:?}");
        let no = ours(&["auth", "can-i", "get", "task/x", "--subresource", "log"])?;
        ensure!(no.status.code() == Some(1) && no.stdout == b"no\n", "{no:?}");
        let list = ours(&["auth", "can-i", "--list"])?;
        ensure!(
            String::from_utf8_lossy(&list.stdout).contains("tasks.panda.dev"),
            "{list:?}"
        );
    }
    run(kubectl(&["get", "tasks", "-A", "--as", "vi"]))?;
    let refused = kubectl(&["get", "secrets", "-A", "--as", "vi"]).output()?;
    ensure!(!refused.status.success(), "{refused:?}");
    // A namespace goes with its accounts and roles.
    run(kubectl(&["delete", "namespace", "web", "--timeout=30s"]))?;
    let manifests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/rbac");
    let folder = manifests.to_str().context("text")?;
    cluster.ok(&["apply", "-f", folder])?;
    let again = cluster.ok(&["apply", "-f", folder])?;
    ensure!(again.lines().all(|line| line.contains("unchanged")), "{again}");
    cluster.ok(&["create", "serviceaccount", "extra", "-n", "web"])?;
    Ok(())
}
