//! Runs that use the API: an agent with `apiAccess` works with the clients that people have.

use anyhow::{Context, ensure};
use panda_api::{Run, Task, TaskPhase};
use panda_client::Api;
use panda_client::config::Identity;
use panda_e2e::cluster::{Cluster, tool};
use serde_json::{Value, json};

use super::{err, out, runs, start};
use crate::support::{apply, ended};

/// Says how each attempt went; `P` is pandactl.
const TRY: &str = r#"
try() { name=$1; shift; if said=$("$@" 2>&1); then echo "$name: allowed"; else echo "$name: refused: $said" | tr '\n' ' '; echo; fi; }
make() { cat >"$TMPDIR/new.json"; "$P" apply -f "$TMPDIR/new.json"; }
child() { printf '{"apiVersion":"panda.dev/v1alpha1","kind":"Task","metadata":{"name":"%s","namespace":"%s"},"spec":%s}' "$1" "${3:-default}" "$2" | make; }
try own "$P" get task asks
try child child small '{"prompt":"p","agents":[{"name":"asks"}],"suspend":true}'
try secret "$P" get secret gh
try secrets "$P" get secrets
try token "$P" create token default
try roles "$P" get clusterroles
try binding "$P" apply -f "$TMPDIR/binding.json"
try certificates "$P" get certificatesigningrequests
try devices "$P" get devices
try elsewhere "$P" get tasks -n other
try elsewhere-child child far '{"prompt":"p","agents":[{"name":"asks"}]}' other
try agent child strange '{"prompt":"p","agents":[{"name":"another"}]}'
try profile child unwalled '{"prompt":"p","agents":[{"name":"asks"}],"sandbox":{"network":{"mode":"Host"},"profile":"Off"}}'
try env-secret child greedy '{"prompt":"p","agents":[{"name":"asks"}],"env":[{"name":"T","valueFrom":{"secretKeyRef":{"name":"gh","key":"k"}}}]}'
if [ -n "$K" ]; then
    try kubectl "$K" get task asks
    try kubectl-secret "$K" get secret gh
    try impersonation "$K" get tasks --as panda-admin
fi
echo "token is $PANDA_TOKEN"
stat -f -c 'on %T' "$KUBECONFIG"
cp "$KUBECONFIG" "$OUTSIDE"; chmod 644 "$OUTSIDE"
while [ ! -e "$TMPDIR/go" ]; do sleep 0.1; done
try afterwards "$P" get task asks
"#;

/// The code that the server itself answers to the token.
async fn code(cluster: &Cluster, token: &str) -> anyhow::Result<u16> {
    let mut config = cluster.connection()?;
    config.identity = Identity::Bearer(token.into());
    let client = panda_client::Client::connect(&config, panda_client::Options::default())?;
    match client
        .get_text("/apis/panda.dev/v1alpha1/namespaces/default/tasks/asks")
        .await
    {
        Ok(_) => Ok(200),
        Err(panda_client::Error::Api(status)) => Ok(status.code),
        Err(error) => Err(error.into()),
    }
}

fn token(path: &std::path::Path) -> anyhow::Result<String> {
    let config: Value = serde_json::from_slice(&std::fs::read(path)?)?;
    let token = config["users"][0]["user"]["token"].as_str();
    Ok(token.context("a token")?.to_owned())
}

/// The temporary folder of the agent that runs, and lets it go on.
fn go_on(cluster: &Cluster) -> anyhow::Result<()> {
    let agents = panda_e2e::processes::naming(&cluster.dir().join("work"));
    let words = agents.iter().flat_map(|process| process.text.split(' '));
    let tmp = words.filter_map(|word| word.strip_prefix("TMPDIR=")).next();
    Ok(std::fs::write(
        std::path::Path::new(tmp.context("the agent lives")?).join("go"),
        "",
    )?)
}

#[tokio::test]
async fn a_run_uses_the_api_within_its_rights_and_no_longer_than_it_lives() -> anyhow::Result<()> {
    let mut cluster = Cluster::start(&[]).await?;
    cluster.ok(&[
        "create",
        "secret",
        "generic",
        "gh",
        "--from-literal=k=hunter22-secret",
    ])?;
    apply(
        &cluster,
        "other.json",
        r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"other"}}"#,
    )?;
    // Where any user may write.
    let outside = tempfile::Builder::new()
        .prefix("panda-token-")
        .tempdir_in("/tmp")?;
    let copy = outside.path().join("config");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(outside.path(), mode)?;
    let program = cluster.dir().join("bin/pandactl");
    std::fs::copy(cluster.pandactl_path()?, &program)?;
    let kubectl = tool("kubectl")
        .map(|path| path.display().to_string())
        .unwrap_or_default();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "mine"},
        "subjects": [{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "panda:runs"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let script = format!("cat >\"$TMPDIR/binding.json\" <<'END'\n{binding}\nEND\n{TRY}");
    let env = json!([
        {"name": "P", "value": program}, {"name": "K", "value": kubectl}, {"name": "OUTSIDE", "value": copy},
    ]);
    start(
        &cluster,
        "asks",
        &["sh", "-c", &script],
        Value::Null,
        json!({"apiAccess": true, "env": env}),
    )?;
    let told = cluster
        .eventually("the agent has asked everything", || async {
            let said = out(&cluster
                .pandactl(&["logs", "task/asks", "--stream", "stdout"])
                .ok()?);
            (said.contains("on tmpfs") && copy.exists()).then_some(said)
        })
        .await?;
    let line = |name: &str| {
        let found = told.lines().find(|line| line.starts_with(&format!("{name}: ")));
        found.unwrap_or_default().to_owned()
    };
    let refused = |name: &str| {
        let line = line(name).to_lowercase();
        line.contains(": refused: ") && (line.contains("forbidden") || line.contains("may "))
    };
    for name in ["own", "child"] {
        ensure!(line(name).ends_with("allowed"), "{name}: {told}");
    }
    for name in [
        "secret",
        "secrets",
        "token",
        "roles",
        "binding",
        "certificates",
        "devices",
        "elsewhere",
        "elsewhere-child",
        "agent",
        "env-secret",
    ] {
        ensure!(refused(name), "{name}: {told}");
    }
    if !kubectl.is_empty() {
        ensure!(line("kubectl").ends_with("allowed"), "{told}");
        ensure!(refused("kubectl-secret") && refused("impersonation"), "{told}");
    }
    ensure!(told.contains("token is [masked]"), "{told}");
    let tasks: Api<Task> = Api::namespaced(cluster.client()?, "default");
    tasks.get("small").await?;
    let token = token(&copy)?;
    assert_eq!(code(&cluster, &token).await?, 200);
    let log = cluster.log();
    ensure!(!log.contains(&token), "the token is in the log");

    // The agentlet comes and goes; the way to the API stays where it was.
    cluster.kill();
    cluster.restart().await?;
    go_on(&cluster)?;
    let task = ended(&cluster, "asks").await?;
    assert_eq!(
        task.status.phase,
        Some(TaskPhase::Succeeded),
        "{:#?}",
        task.status
    );
    assert_eq!(code(&cluster, &token).await?, 401);
    Ok(())
}

#[tokio::test]
async fn a_token_is_dead_once_the_lease_is_taken() -> anyhow::Result<()> {
    let cluster = Cluster::start(&[]).await?;
    let outside = tempfile::Builder::new()
        .prefix("panda-token-")
        .tempdir_in("/tmp")?;
    let copy = outside.path().join("config");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(outside.path(), mode)?;
    let script = format!(
        "cp \"$KUBECONFIG\" {0}.new && chmod 644 {0}.new && mv {0}.new {0}; sleep 600",
        copy.display()
    );
    start(
        &cluster,
        "asks",
        &["sh", "-c", &script],
        Value::Null,
        json!({"apiAccess": true}),
    )?;
    cluster
        .eventually("there is a token", || async { copy.exists().then_some(()) })
        .await?;
    let token = token(&copy)?;
    assert_eq!(code(&cluster, &token).await?, 200);
    let tasks: Api<Task> = Api::namespaced(cluster.client()?, "default");
    let run: Run = runs(&cluster, &tasks.get("asks").await?)
        .await?
        .pop()
        .context("a run")?;
    let name = &run.metadata.name;
    let taken = r#"{"spec":{"holderIdentity":null,"leaseTransitions":2}}"#;
    let output = cluster.pandactl(&["patch", "lease", name, "--type=merge", "-p", taken])?;
    ensure!(output.status.success(), "{}", err(&output));
    assert_eq!(code(&cluster, &token).await?, 401);
    apply(
        &cluster,
        "stop.json",
        &super::task("asks", json!({"apiAccess": true, "cancel": true})),
    )?;
    Ok(())
}
