//! Delete, wait, label, task verbs, describe, events, config, create.

use panda_api::{Namespace, Task};
use panda_client::params::WriteParams;
use serde_json::json;

use crate::harness::Cluster;

async fn task(cluster: &Cluster, name: &str) {
    let text = format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {{name: {name}}}\nspec: {{prompt: p}}\n"
    );
    cluster.feed(&["apply", "-f", "-"], text.as_bytes()).await.ok();
}

async fn status(cluster: &Cluster, name: &str, status: serde_json::Value) {
    cluster
        .api::<Task>()
        .patch_status(name, &json!({"status": status}), &WriteParams::default())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_deleted_by_name_file_and_selector() {
    let cluster = Cluster::start().await;
    for name in ["a", "b", "c"] {
        task(&cluster, name).await;
    }
    cluster.ok(&["label", "task/b", "team=web"]).await;
    assert_eq!(
        cluster.ok(&["delete", "task", "a"]).await,
        "task.panda.dev \"a\" deleted\n"
    );
    assert_eq!(
        cluster.ok(&["delete", "tasks", "-l", "team=web"]).await,
        "task.panda.dev \"b\" deleted\n"
    );
    cluster.run(&["delete", "task/a"]).await.fails();
    cluster.ok(&["delete", "task/a", "--ignore-not-found"]).await;
    cluster.run(&["delete", "tasks"]).await.fails();
    let file = cluster.file(
        "c.yaml",
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {name: c}\nspec: {prompt: p}\n",
    );
    assert_eq!(
        cluster
            .ok(&["delete", "-f", &file, "--force", "--grace-period=0"])
            .await,
        "task.panda.dev \"c\" deleted\n"
    );
    assert_eq!(
        cluster.run(&["get", "tasks"]).await.err(),
        "No resources found in default namespace.\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_when_it_is_so_and_mirrors_tasks() {
    let cluster = Cluster::start().await;
    task(&cluster, "x").await;
    let err = cluster
        .run(&["wait", "--for=condition=Complete", "task/x", "--timeout=1s"])
        .await
        .fails();
    assert!(err.contains("timed out"), "{err}");
    let waiting = cluster.run(&["wait", "--for=jsonpath={.status.phase}=Failed", "task/x"]);
    let changing = status(
        &cluster,
        "x",
        json!({"phase": "Failed", "failure": {"reason": "Crashed", "message": "it broke"}}),
    );
    let (done, ()) = tokio::join!(waiting, changing);
    assert_eq!(done.ok(), "task.panda.dev/x condition met\n");
    let done = cluster.run(&["wait", "task/x", "--exit-status"]).await;
    assert_eq!(
        (done.code(), done.out().as_str()),
        (2, "task.panda.dev/x failed\n")
    );
    assert_eq!(
        cluster
            .run(&["wait", "--for=condition=Complete", "task/x", "--exit-status"])
            .await
            .code(),
        2
    );
    let waiting = cluster.run(&["wait", "--for=delete", "task/x", "--timeout=30s"]);
    let deleting = cluster.run(&["delete", "task/x"]);
    let (done, _) = tokio::join!(waiting, deleting);
    done.ok();
    cluster
        .run(&["wait", "--for=condition=Complete", "task/x"])
        .await
        .fails();
}

#[tokio::test(flavor = "multi_thread")]
async fn several_are_waited_for_in_one_time_and_in_all_namespaces() {
    let cluster = Cluster::start().await;
    task(&cluster, "x").await;
    task(&cluster, "y").await;
    for name in ["x", "y"] {
        status(&cluster, name, json!({"phase": "Running"})).await;
    }
    let running = "--for=jsonpath={.status.phase}=Running";
    assert_eq!(
        cluster
            .ok(&[
                "wait",
                running,
                "tasks",
                "-A",
                "--field-selector=status.phase=Running"
            ])
            .await,
        "task.panda.dev/x condition met\ntask.panda.dev/y condition met\n"
    );
    assert_eq!(
        cluster
            .ok(&["wait", running, "task/x", "task/y", "--timeout=0"])
            .await
            .lines()
            .count(),
        2
    );
    let creating = cluster.run(&["wait", "--for=create", "task/z", "--timeout=30s"]);
    let (done, ()) = tokio::join!(creating, task(&cluster, "z"));
    assert_eq!(done.ok(), "task.panda.dev/z condition met\n");
    let err = cluster.run(&["wait", running, "task/x", "-A"]).await.fails();
    assert!(err.contains("-n NAMESPACE"), "{err}");
    let err = cluster
        .run(&["wait", running, "task/x", "task/z", "task/y", "--timeout=1s"])
        .await
        .fails();
    assert!(
        err.contains("timed out") && err.contains("task.panda.dev/z"),
        "{err}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_of_tasks_write_the_spec() {
    let cluster = Cluster::start().await;
    task(&cluster, "x").await;
    let spec = async || cluster.api::<Task>().get("x").await.unwrap().spec;
    cluster.ok(&["pause", "x"]).await;
    assert_eq!(spec().await.suspend, Some(true));
    cluster.ok(&["resume", "task/x"]).await;
    assert_eq!(spec().await.suspend, Some(false));
    cluster.run(&["retry", "x"]).await.fails();
    cluster.ok(&["cancel", "x"]).await;
    assert_eq!(spec().await.cancel, Some(true));
    status(&cluster, "x", json!({"phase": "Cancelled"})).await;
    cluster.run(&["cancel", "x"]).await.fails();
    cluster.ok(&["retry", "x"]).await;
    assert_eq!(spec().await.rerun, Some(1));
    let text = cluster.ok(&["explain-wait", "x"]).await;
    assert!(text.contains("task/x"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn labels_are_not_replaced_unasked() {
    let cluster = Cluster::start().await;
    task(&cluster, "x").await;
    assert_eq!(
        cluster.ok(&["label", "task", "x", "a=1"]).await,
        "task.panda.dev/x labeled\n"
    );
    assert_eq!(cluster.ok(&["label", "task/x", "--list"]).await, "a=1\n");
    cluster.run(&["label", "task/x", "a=2"]).await.fails();
    cluster.ok(&["label", "task/x", "a=2", "--overwrite"]).await;
    cluster.ok(&["annotate", "task/x", "example.com/n=3"]).await;
    assert_eq!(
        cluster.ok(&["label", "task/x", "a-"]).await,
        "task.panda.dev/x labeled\n"
    );
    let meta = cluster.api::<Task>().get("x").await.unwrap().metadata;
    assert!(meta.labels.is_empty() && meta.annotations["example.com/n"] == "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptions_are_for_people_and_cannot_talk_to_the_terminal() {
    let cluster = Cluster::start().await;
    task(&cluster, "x").await;
    status(&cluster, "x", json!({
        "phase": "Queued",
        "unschedulable": [{"device": "pi", "reason": "MissingCapability", "message": "no agent \u{1b}]0;evil\u{7} offers it"}],
    }))
    .await;
    let text = cluster.ok(&["describe", "task", "x"]).await;
    assert!(
        text.contains("MissingCapability") && text.contains("Prompt:") && text.contains("Events"),
        "{text}"
    );
    assert!(!text.contains('\u{1b}') && text.contains("\\x1b"), "{text}");
    let text = cluster.ok(&["describe", "namespace", "default"]).await;
    assert!(text.contains("Active"), "{text}");
    assert_eq!(cluster.run(&["events", "--for", "task/x"]).await.code(), 0);
    let text = cluster.ok(&["explain-wait", "task/x"]).await;
    assert!(text.contains("pi") && !text.contains('\u{1b}'), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn small_objects_are_made_from_flags() {
    let cluster = Cluster::start().await;
    assert_eq!(
        cluster.ok(&["create", "namespace", "web"]).await,
        "namespace/web created\n"
    );
    let spaces: panda_client::Api<Namespace> = panda_client::Api::cluster(cluster.client.clone());
    assert!(spaces.get_opt("web").await.unwrap().is_some());
    cluster
        .ok(&[
            "create",
            "secret",
            "generic",
            "s",
            "-n",
            "web",
            "--from-literal=k=v=w",
        ])
        .await;
    assert_eq!(
        cluster
            .ok(&["get", "secret", "s", "-n", "web", "-o", "jsonpath={.data.k}"])
            .await,
        "dj13"
    );
    cluster.file("guide.md", "be kind");
    cluster
        .ok(&["create", "configmap", "c", "--from-file=guide.md"])
        .await;
    assert_eq!(
        cluster
            .ok(&["get", "cm", "c", "-o", "jsonpath={.data['guide.md']}"])
            .await,
        "be kind"
    );
    cluster.file("tokens.env", "# mine\n\nA=1=2\n  B=\n");
    cluster
        .ok(&["create", "secret", "generic", "e", "--from-env-file=tokens.env"])
        .await;
    assert_eq!(
        cluster
            .ok(&["get", "secret", "e", "-o", "jsonpath={.data.A}|{.data.B}|"])
            .await,
        "MT0y||"
    );
    cluster.file("bad.env", "A=1\nhunter2\n");
    let err = cluster
        .run(&["create", "secret", "generic", "f", "--from-env-file=bad.env"])
        .await
        .fails();
    assert!(err.contains("bad.env:2") && !err.contains("hunter2"), "{err}");
    let err = cluster
        .run(&["create", "secret", "generic", "t", "--from-literal=hunter2"])
        .await
        .fails();
    assert!(!err.contains("hunter2"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_is_shown_without_secrets_and_changed() {
    let cluster = Cluster::start().await;
    let text = cluster.ok(&["config", "view"]).await;
    assert!(
        text.contains("REDACTED") && text.contains("https://127.0.0.1"),
        "{text}"
    );
    assert_eq!(cluster.ok(&["config", "current-context"]).await, "panda\n");
    assert!(
        cluster
            .ok(&["config", "get-contexts"])
            .await
            .contains("*        panda")
    );
    cluster.ok(&["config", "use-context", "panda"]).await;
    cluster.run(&["config", "use-context", "nowhere"]).await.fails();
    cluster
        .ok(&["config", "set-context", "--current", "--namespace", "web"])
        .await;
    cluster
        .ok(&[
            "config",
            "set-context",
            "other",
            "--cluster",
            "panda",
            "--user",
            "panda",
        ])
        .await;
    cluster.ok(&["config", "rename-context", "panda", "mine"]).await;
    let taken = cluster.run(&["config", "rename-context", "other", "mine"]).await;
    assert!(taken.fails().contains("already"));
    let table = cluster.ok(&["config", "get-contexts"]).await;
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|row| row.split_whitespace().collect())
        .collect();
    assert!(
        rows.contains(&vec!["*", "mine", "panda", "panda", "web"]),
        "{table}"
    );
    assert!(rows.contains(&vec!["other", "panda", "panda"]), "{table}");
    cluster.ok(&["config", "delete-context", "other"]).await;
    cluster.run(&["config", "delete-context", "other"]).await.fails();
    let version = cluster.ok(&["version"]).await;
    assert!(
        version.contains("Client Version") && version.contains("Server Version"),
        "{version}"
    );
    assert!(cluster.ok(&["api-resources"]).await.contains("tasks"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_is_made_from_nothing_and_used() {
    let cluster = Cluster::start().await;
    let token = cluster.ok(&["create", "serviceaccount", "bot"]).await;
    assert!(token.contains("bot"), "{token}");
    let token = cluster.ok(&["create", "token", "bot"]).await;
    let view: serde_json::Value =
        serde_yaml::from_str(&cluster.ok(&["config", "view", "--raw"]).await).unwrap();
    let server = view["clusters"][0]["cluster"]["server"]
        .as_str()
        .unwrap()
        .to_owned();
    let ca = cluster.dir.path().join("server/pki/ca.crt").display().to_string();
    let file = cluster.dir.path().join("new/folder/config").display().to_string();
    let config = |args: &[&str]| {
        let words = [&["--kubeconfig", file.as_str(), "config"], args].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let run = async |args: &[&str]| {
        let words = config(args);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        cluster.run(&words).await
    };
    let embed = [
        "set-cluster",
        "lab",
        "--server",
        &server,
        "--certificate-authority",
        &ca,
        "--embed-certs",
    ];
    assert_eq!(run(&embed).await.ok(), "Cluster \"lab\" set.\n");
    let secret = cluster.file("token", &token);
    run(&["set-credentials", "bot", "--token-file", &secret])
        .await
        .ok();
    run(&["set-context", "lab", "--cluster", "lab", "--user", "bot"])
        .await
        .ok();
    run(&["use-context", "lab"]).await.ok();
    let who = cluster.ok(&["--kubeconfig", &file, "auth", "whoami"]).await;
    assert!(who.contains("system:serviceaccount:default:bot"), "{who}");

    // What is not given stays; what was set last is what is used.
    assert_eq!(
        run(&["set-cluster", "lab", "--tls-server-name", "localhost"])
            .await
            .ok(),
        "Cluster \"lab\" modified.\n"
    );
    run(&["set-credentials", "bot", "--token", "wrong"]).await.ok();
    let view = run(&["view", "--raw"]).await.ok();
    assert!(
        view.contains(&server) && view.contains("certificate-authority-data"),
        "{view}"
    );
    assert!(
        view.contains("token: wrong") && !view.contains("tokenFile"),
        "{view}"
    );
    assert!(!run(&["view"]).await.ok().contains("wrong"));

    for (args, says) in [
        (
            &["set-cluster", "x", "--server", "lab:7443"][..],
            "https://host:port",
        ),
        (&["set-cluster", "x"], "nothing to set"),
        (
            &["set-cluster", "x", "--certificate-authority", "/no/such"],
            "/no/such",
        ),
        (
            &["set-cluster", "x", "--certificate-authority", &secret],
            "no CERTIFICATE",
        ),
        (&["set-credentials", "x"], "nothing to set"),
        (&["set-credentials", "x", "--client-key", &ca], "no PRIVATE KEY"),
    ] {
        let failed = run(args).await.fails();
        assert!(failed.contains(says), "{args:?}: {failed}");
    }
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn join_tokens_are_listed_and_revoked_and_their_secrets_not_shown() {
    let cluster = Cluster::start().await;
    let empty = cluster.run(&["device", "join-token", "list"]).await;
    assert!(empty.err().contains("No join tokens"), "{}", empty.err());
    let pi = cluster
        .ok(&["device", "join-token", "--name", "pi", "--token-only"])
        .await;
    let any = cluster
        .ok(&["device", "join-token", "create", "--token-only"])
        .await;
    let (pi, any) = (pi.trim(), any.trim());
    let table = cluster.ok(&["device", "join-token", "list"]).await;
    let json = cluster.ok(&["device", "join-token", "list", "-o", "json"]).await;
    let yaml = cluster.ok(&["device", "join-token", "list", "-o", "yaml"]).await;
    for (token, name) in [(pi, "pi"), (any, "<any>")] {
        let (id, secret) = token.split_once('.').unwrap();
        let row = table.lines().find(|line| line.starts_with(id)).unwrap();
        assert!(row.contains("Unused") && row.contains(name), "{table}");
        for text in [&table, &json, &yaml] {
            assert!(text.contains(id) && !text.contains(secret), "{text}");
        }
    }
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");
    let list: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(list["kind"], "JoinTokenList");
    // By its id, and by the whole of it.
    let id = pi.split_once('.').unwrap().0;
    assert_eq!(
        cluster.ok(&["device", "join-token", "revoke", id, any]).await,
        format!(
            "join token {id} revoked\njoin token {} revoked\n",
            any.split_once('.').unwrap().0
        )
    );
    assert!(
        cluster
            .run(&["device", "join-token", "revoke", id])
            .await
            .fails()
            .contains("no join token")
    );
    let wrong = cluster
        .run(&["device", "join-token", "revoke", "a/b"])
        .await
        .fails();
    assert!(wrong.contains("no id"), "{wrong}");
}
