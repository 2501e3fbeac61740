//! Three ages of kubectl: 1.20 and 1.27 read OpenAPI v2 as protobuf, 1.37 reads v3 and sends protobuf itself.

use std::process::Output;

use anyhow::{Context, ensure};
use panda_e2e::cluster::{tool, tool_file};

use crate::server::Server;

struct Kubectl<'a> {
    server: &'a Server,
    program: std::path::PathBuf,
    minor: u32,
}

impl Kubectl<'_> {
    fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        let mut command = self.server.command(&self.program);
        // What one version has kept of discovery is not another's.
        let cache = self.server.dir().join(format!("cache-{}", self.minor));
        Ok(command.arg("--cache-dir").arg(cache).args(args).output()?)
    }

    /// The standard output of a kubectl that must succeed.
    fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.run(args)?;
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(
            output.status.success(),
            "1.{} {args:?}:\n{out}\n{err}",
            self.minor
        );
        Ok(out.into_owned())
    }

    /// What a kubectl that must fail says.
    fn fails(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.run(args)?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(
            !output.status.success(),
            "1.{} {args:?} succeeded:\n{said}",
            self.minor
        );
        Ok(said)
    }

    fn file(&self, name: &str, content: &str) -> anyhow::Result<String> {
        let path = self.server.dir().join(name);
        std::fs::write(&path, content)?;
        Ok(path.to_str().context("UTF-8")?.to_owned())
    }
}

fn says(text: &str, words: &[&str]) -> anyhow::Result<()> {
    for word in words {
        ensure!(text.contains(word), "no {word:?} in:\n{text}");
    }
    Ok(())
}

fn agent(name: &str, text: &str) -> String {
    format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Agent\nmetadata:\n  name: {name}\nspec:\n  displayName: {text}\n  \
         drivers:\n  - {{kind: Exec, command: [\"true\"]}}\n"
    )
}

#[tokio::test]
async fn three_ages_of_kubectl_do_the_same_work() -> anyhow::Result<()> {
    let programs = [
        (20, tool_file("clients/kubectl/kubectl-1.20")),
        (27, tool_file("clients/kubectl/kubectl-1.27")),
        (37, tool("kubectl")),
    ];
    for (minor, program) in programs {
        let Some(program) = program else { continue };
        let server = Server::start("10m").await?;
        work(&Kubectl {
            server: &server,
            program,
            minor,
        })?;
    }
    Ok(())
}

fn work(kubectl: &Kubectl<'_>) -> anyhow::Result<()> {
    let version = kubectl.ok(&["version", "-o", "json"])?;
    says(
        &version,
        &["serverVersion", &format!("\"minor\": \"{}", kubectl.minor)],
    )?;
    says(
        &kubectl.ok(&["api-versions"])?,
        &["panda.dev/v1alpha1", "events.k8s.io/v1"],
    )?;
    says(
        &kubectl.ok(&["api-resources", "-o", "wide"])?,
        &["agents", "deletecollection", "selfsubjectaccessreviews"],
    )?;

    // Everything here first reads OpenAPI, in the form that this kubectl knows.
    let file = kubectl.file("agent.yaml", &agent("a", "one"))?;
    says(
        &kubectl.ok(&["create", "-f", &file])?,
        &["agent.panda.dev/a created"],
    )?;
    says(&kubectl.fails(&["create", "-f", &file])?, &["AlreadyExists"])?;
    says(&kubectl.ok(&["apply", "-f", &file])?, &["configured"])?;
    says(&kubectl.ok(&["apply", "-f", &file])?, &["unchanged"])?;
    let file = kubectl.file("agent.yaml", &agent("a", "two"))?;
    says(
        &kubectl.ok(&["apply", "-f", &file, "--dry-run=server"])?,
        &["server dry run"],
    )?;
    says(
        &kubectl.ok(&["get", "agent", "a", "-o", "jsonpath={.spec.displayName}"])?,
        &["one"],
    )?;
    // It differs, and says so with its exit code.
    says(
        &kubectl.fails(&["diff", "-f", &file])?,
        &["-  displayName: one", "+  displayName: two"],
    )?;
    kubectl.ok(&["replace", "-f", &file])?;
    says(
        &kubectl.ok(&["get", "ag", "a", "-o", "jsonpath={.spec.displayName}"])?,
        &["two"],
    )?;
    let list = kubectl.file(
        "list.json",
        &format!(
            r#"{{"apiVersion":"v1","kind":"List","items":[{}]}}"#,
            r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"listed"},"data":{"k":"v"}}"#
        ),
    )?;
    says(
        &kubectl.ok(&["create", "-f", &list])?,
        &["configmap/listed created"],
    )?;
    let typo = kubectl.file(
        "typo.yaml",
        &agent("typo", "x").replace("displayName", "displyName"),
    )?;
    says(&kubectl.fails(&["create", "-f", &typo])?, &["displyName"])?;

    says(&kubectl.ok(&["get", "agents", "-o", "wide"])?, &["NAME", "a "])?;
    says(&kubectl.ok(&["get", "panda", "--show-labels"])?, &["LABELS"])?;
    says(
        &kubectl.ok(&["get", "agents", "--sort-by=.metadata.name", "-A"])?,
        &["NAMESPACE"],
    )?;
    for path in [
        "agents",
        "agents.spec.drivers.command",
        "task.spec.verify",
        "configmap.data",
    ] {
        says(&kubectl.ok(&["explain", path])?, &["VERSION:", "DESCRIPTION:"])?;
    }
    says(
        &kubectl.ok(&["explain", "tasks", "--recursive"])?,
        &["prompt", "verify"],
    )?;
    says(
        &kubectl.ok(&["describe", "agent", "a"])?,
        &["Display Name:", "Events:"],
    )?;

    kubectl.ok(&["label", "agent", "a", "team=x"])?;
    kubectl.ok(&["annotate", "agent", "a", "note=y"])?;
    kubectl.ok(&[
        "patch",
        "agent",
        "a",
        "--type=merge",
        "-p",
        r#"{"spec":{"displayName":"three"}}"#,
    ])?;
    let change = r#"[{"op":"replace","path":"/spec/displayName","value":"four"}]"#;
    kubectl.ok(&["patch", "agent", "a", "--type=json", "-p", change])?;
    says(
        &kubectl.ok(&["get", "agents", "-l", "team=x", "-o", "name"])?,
        &["agent.panda.dev/a"],
    )?;

    // Built-in kinds: newer versions send them as protobuf.
    kubectl.ok(&["create", "namespace", "web"])?;
    kubectl.ok(&["create", "configmap", "m", "-n", "web", "--from-literal=k=v"])?;
    kubectl.ok(&["create", "serviceaccount", "bot", "-n", "web"])?;
    kubectl.ok(&[
        "create",
        "role",
        "r",
        "-n",
        "web",
        "--verb=get",
        "--resource=configmaps",
    ])?;
    kubectl.ok(&[
        "create",
        "rolebinding",
        "b",
        "-n",
        "web",
        "--role=r",
        "--serviceaccount=web:bot",
    ])?;
    says(
        &kubectl.ok(&["auth", "can-i", "create", "tasks.panda.dev"])?,
        &["yes"],
    )?;
    let bot = "--as=system:serviceaccount:web:bot";
    says(
        &kubectl.fails(&["auth", "can-i", "delete", "configmaps", "-n", "web", bot])?,
        &["no"],
    )?;
    says(&kubectl.ok(&["auth", "can-i", "--list"])?, &["Resources"])?;
    says(&kubectl.fails(&["get", "agents", bot])?, &["forbidden"])?;
    if kubectl.minor >= 28 {
        says(&kubectl.ok(&["auth", "whoami"])?, &["Username"])?;
        kubectl.ok(&["create", "token", "bot", "-n", "web"])?;
    }

    // A deletion that a finalizer holds is waited for.
    kubectl.ok(&[
        "patch",
        "agent",
        "a",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":["example.com/f"]}}"#,
    ])?;
    kubectl.ok(&["delete", "agent", "a", "--wait=false"])?;
    kubectl.ok(&["get", "agent", "a"])?;
    kubectl.ok(&[
        "patch",
        "agent",
        "a",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":null}}"#,
    ])?;
    // The old one calls it an error that nothing is left to wait for.
    if kubectl.minor > 30 {
        kubectl.ok(&["wait", "--for=delete", "agent/a", "--timeout=20s"])?;
    }
    says(&kubectl.fails(&["get", "agent", "a"])?, &["NotFound"])?;
    says(&kubectl.ok(&["delete", "configmap", "listed"])?, &["deleted"])
}
