//! Namespaces, roles, accounts, tokens, and what they may do.

use anyhow::ensure;

use super::{Kubectl, says};

#[tokio::test]
async fn kubectl_makes_roles_and_accounts_that_hold() -> anyhow::Result<()> {
    let Some(kubectl) = Kubectl::start().await? else {
        return Ok(());
    };
    kubectl.ok(&["create", "namespace", "team"])?;
    kubectl.ok(&["create", "serviceaccount", "bot", "-n", "team"])?;
    let role = [
        "create",
        "role",
        "reader",
        "--verb=get,list",
        "--resource=tasks.panda.dev",
    ];
    kubectl.ok(&[&role[..], &["-n", "team"]].concat())?;
    let binding = [
        "create",
        "rolebinding",
        "bots",
        "--role=reader",
        "--serviceaccount=team:bot",
    ];
    kubectl.ok(&[&binding[..], &["-n", "team"]].concat())?;
    kubectl.ok(&[
        "create",
        "secret",
        "generic",
        "s",
        "--from-literal=a=b",
        "-n",
        "team",
    ])?;
    kubectl.ok(&["create", "configmap", "m", "--from-literal=a=b", "-n", "team"])?;

    let token = kubectl.ok(&["create", "token", "bot", "-n", "team"])?;
    let token = format!("--token={}", token.trim());
    // The certificate of the kubeconfig would win over the token: only the server's place is taken from it.
    let server = kubectl.ok(&[
        "config",
        "view",
        "--raw",
        "-o",
        "jsonpath={.clusters[0].cluster.server}",
    ])?;
    let ca = "jsonpath={.clusters[0].cluster.certificate-authority-data}";
    let ca = kubectl.ok(&["config", "view", "--raw", "-o", ca])?;
    let plain = kubectl.file(
        "plain.yaml",
        &format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster:\n    server: {server}\n    \
             certificate-authority-data: {ca}\ncontexts:\n- name: c\n  context: {{cluster: c, user: \"\"}}\n\
             current-context: c\n"
        ),
    )?;
    let as_bot = |args: &[&'static str]| {
        let mut all = vec!["--kubeconfig", plain.as_str(), token.as_str()];
        all.extend(args);
        all
    };
    says(
        &kubectl.ok(&as_bot(&["auth", "whoami"]))?,
        &["system:serviceaccount:team:bot"],
    )?;
    ensure!(
        kubectl
            .ok(&as_bot(&["get", "tasks", "-n", "team", "-o", "name"]))?
            .is_empty()
    );
    says(
        &kubectl.fails(&as_bot(&["get", "secrets", "-n", "team"]))?,
        &["Forbidden", "cannot list resource \"secrets\""],
    )?;

    let account = ["-n", "team", "--as", "system:serviceaccount:team:bot"];
    let may = kubectl.ok(&[&["auth", "can-i", "get", "tasks.panda.dev"], &account[..]].concat())?;
    ensure!(may.trim() == "yes", "{may}");
    let may = kubectl.fails(&[&["auth", "can-i", "delete", "tasks.panda.dev"], &account[..]].concat())?;
    ensure!(may.trim() == "no", "{may}");
    let list = kubectl.ok(&[&["auth", "can-i", "--list"], &account[..]].concat())?;
    says(&list, &["tasks.panda.dev", "[get list]"])?;
    kubectl.ok(&["delete", "namespace", "team"])?;
    says(&kubectl.fails(&["get", "namespace", "team"])?, &["NotFound"])
}
