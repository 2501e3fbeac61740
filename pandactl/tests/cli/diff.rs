//! Diff and its exit codes, apply sets, kustomizations.

use std::os::unix::fs::PermissionsExt;

use panda_api::Task;
use panda_client::params::ListParams;

use crate::harness::Cluster;

fn task(name: &str, prompt: &str) -> String {
    format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {{name: {name}}}\nspec: {{prompt: {prompt}}}\n---\n"
    )
}

async fn names(cluster: &Cluster) -> Vec<String> {
    let listed = cluster
        .api::<Task>()
        .list_all(&ListParams::default())
        .await
        .unwrap();
    let mut names: Vec<_> = listed.items.into_iter().map(|task| task.metadata.name).collect();
    names.sort();
    names
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_same_different_and_unknown_apart() {
    let cluster = Cluster::start().await;
    let file = cluster.file("task.yaml", task("x", "p"));
    let new = cluster.run(&["diff", "-f", &file]).await;
    assert_eq!(new.code(), 1, "{}", new.err());
    assert!(
        new.out()
            .starts_with("--- /dev/null\n+++ merged/task.panda.dev/default/x\n@@ -0,0 +1,"),
        "{}",
        new.out()
    );
    assert!(names(&cluster).await.is_empty(), "a diff writes nothing");

    cluster.ok(&["apply", "-f", &file]).await;
    assert_eq!(cluster.ok(&["diff", "-f", &file]).await, "");

    cluster.file("task.yaml", task("x", "q"));
    let changed = cluster.run(&["diff", "-f", &file]).await;
    assert_eq!((changed.code(), changed.err()), (1, String::new()));
    let out = changed.out();
    assert!(
        out.starts_with("--- live/task.panda.dev/default/x\n+++ merged/task.panda.dev/default/x\n"),
        "{out}"
    );
    let lines: Vec<&str> = out
        .lines()
        .filter(|line| line.starts_with(['+', '-']))
        .skip(2)
        .collect();
    assert_eq!(lines, ["-  prompt: p", "+  prompt: q"], "{out}");
    assert_eq!(cluster.api::<Task>().get("x").await.unwrap().spec.prompt, "p");

    let bad = cluster.file("bad.yaml", format!("{}spec: [\n", task("x", "q")));
    let refused = cluster.file(
        "refused.yaml",
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {name: y}\nspec: {prompt: p, promt: q}\n",
    );
    for args in [
        &["diff", "-f", "nowhere.yaml"][..],
        &["diff", "-f", &bad],
        &["diff", "-f", &refused],
        &["diff", "-f", &file, "--no-such-flag"],
        &["-n", "web", "diff"],
        &["diff", "-f", &file, "--kubeconfig", "/nowhere"],
    ] {
        let done = cluster.run(args).await;
        assert_eq!(done.code(), 2, "{args:?}: {}", done.err());
        assert!(done.err().contains("error"), "{args:?}: {}", done.err());
    }
    cluster.stop().await;
    assert_eq!(cluster.run(&["diff", "-f", &file]).await.code(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_shows_no_values_of_secrets() {
    let cluster = Cluster::start().await;
    let secret = |value: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{same: hunter1, changed: {value}}}\n"
        )
    };
    let file = cluster.file("secret.yaml", secret("hunter2"));
    let new = cluster.run(&["diff", "-f", &file]).await;
    cluster.ok(&["apply", "-f", &file]).await;
    cluster.file("secret.yaml", secret("hunter3"));
    let changed = cluster.run(&["diff", "-f", &file]).await;
    assert_eq!((new.code(), changed.code()), (1, 1));
    for out in [new.out(), changed.out()] {
        assert!(!out.contains("hunter") && !out.contains("aHVudGVy"), "{out}");
    }
    let out = changed.out();
    assert!(
        out.contains("-  changed: '*** (before)'") && out.contains("+  changed: '*** (after)'")
            || out.contains("-  changed: \"*** (before)\"") && out.contains("+  changed: \"*** (after)\""),
        "{out}"
    );
    assert!(out.contains("   same: "), "{out}");
}

const SET: [&str; 3] = ["--prune", "--applyset=web", "-f"];

#[tokio::test(flavor = "multi_thread")]
async fn a_set_is_pruned_of_what_the_files_do_not_hold_any_more() {
    let cluster = Cluster::start().await;
    let write = |tasks: &[&str]| {
        let text: String = tasks.iter().map(|name| task(name, "p")).collect();
        cluster.file("set.yaml", text)
    };
    let file = write(&["a", "b", "c", "d"]);
    let apply = |more: &[&str]| {
        let mut args = vec!["apply"];
        args.extend(SET);
        args.push(&file);
        args.extend(more);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let run = async |more: &[&str]| {
        let args = apply(more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        cluster.run(&args).await
    };
    assert_eq!(run(&[]).await.ok().matches("created").count(), 4);
    cluster.ok(&["create", "task", "stranger", "--prompt", "p"]).await;
    let parent = cluster.ok(&["get", "secret", "web", "-o", "json"]).await;
    let parent: serde_json::Value = serde_json::from_str(&parent).unwrap();
    let id = panda_api::apply_set::id("web", "default", "Secret", "");
    assert_eq!(parent["metadata"]["labels"]["applyset.kubernetes.io/id"], *id);
    let notes = &parent["metadata"]["annotations"];
    assert_eq!(
        notes["applyset.kubernetes.io/contains-group-kinds"],
        "Task.panda.dev"
    );
    assert!(
        notes["applyset.kubernetes.io/tooling"]
            .as_str()
            .unwrap()
            .starts_with("pandactl/")
    );

    // A dry run and a diff say what goes, and nothing goes.
    write(&["a", "b", "c"]);
    let dry = run(&["--dry-run=server"]).await.ok();
    assert!(
        dry.ends_with("task.panda.dev/d pruned (server dry run)\n"),
        "{dry}"
    );
    let diff = cluster.run(&["diff", SET[0], SET[1], SET[2], &file]).await;
    assert_eq!(diff.code(), 1, "{}", diff.err());
    assert!(
        diff.out()
            .starts_with("--- live/task.panda.dev/default/d\n+++ /dev/null\n"),
        "{}",
        diff.out()
    );
    assert_eq!(names(&cluster).await, ["a", "b", "c", "d", "stranger"]);

    let out = run(&[]).await.ok();
    assert!(out.ends_with("task.panda.dev/d pruned\n"), "{out}");
    assert_eq!(names(&cluster).await, ["a", "b", "c", "stranger"]);

    // Two of three are more than half; nothing is written either, until it is confirmed.
    write(&["c", "new"]);
    let err = run(&[]).await.fails();
    assert!(
        err.contains("2 of 3 objects would be lost") && err.contains("--prune-limit"),
        "{err}"
    );
    assert_eq!(names(&cluster).await, ["a", "b", "c", "stranger"]);
    run(&["--prune-limit=67"]).await.ok();
    assert_eq!(names(&cluster).await, ["c", "new", "stranger"]);

    // Nothing at all, and what cannot be read, prune nothing whatever the limit.
    for broken in ["", "# nothing\n", "kind: [\n"] {
        cluster.file("set.yaml", broken);
        let err = run(&["--prune-limit=100"]).await.fails();
        assert!(err.contains("nothing"), "{err}");
    }
    cluster.file("set.yaml", format!("{}kind: [\n", task("c", "p")));
    let done = run(&["--prune-limit=100", "--continue-on-error"]).await;
    assert!(done.fails().contains("nothing was pruned"));
    assert_eq!(names(&cluster).await, ["c", "new", "stranger"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_takes_no_objects_of_another_and_no_secret_that_is_no_parent() {
    let cluster = Cluster::start().await;
    let file = cluster.file("x.yaml", task("x", "p"));
    cluster
        .ok(&["apply", "--prune", "--applyset=one", "-f", &file])
        .await;
    let err = cluster
        .run(&["apply", "--prune", "--applyset=two", "-f", &file])
        .await
        .fails();
    assert!(
        err.contains("another apply set") && err.contains("x.yaml:"),
        "{err}"
    );
    cluster
        .ok(&["create", "secret", "generic", "plain", "--from-literal=a=b"])
        .await;
    let err = cluster
        .run(&["apply", "--prune", "--applyset=plain", "-f", &file])
        .await
        .fails();
    assert!(err.contains("is no parent of an apply set"), "{err}");
    let err = cluster
        .run(&["apply", "--prune", "--applyset=task/x", "-f", &file])
        .await
        .fails();
    assert!(err.contains("cannot be the parent"), "{err}");
    cluster
        .ok(&[
            "annotate",
            "secret/one",
            "--overwrite",
            "applyset.kubernetes.io/tooling=kubectl/v1.30",
        ])
        .await;
    let err = cluster
        .run(&["apply", "--prune", "--applyset=one", "-f", &file])
        .await
        .fails();
    assert!(err.contains("kubectl/v1.30"), "{err}");
    assert_eq!(cluster.run(&["apply", "--prune", "-f", &file]).await.code(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kustomization_is_built_by_the_tool_or_refused() {
    let cluster = Cluster::start().await;
    std::fs::create_dir_all(cluster.dir.path().join("bin")).unwrap();
    std::fs::create_dir_all(cluster.dir.path().join("k")).unwrap();
    let with_path = async |args: &[&str]| {
        let mut command = cluster.command(args);
        command.env("PATH", cluster.dir.path().join("bin"));
        crate::harness::finish(command, b"").await
    };
    let err = with_path(&["apply", "-k", "k"]).await.fails();
    assert!(
        err.contains("kustomize") && err.contains("kubectl") && err.contains("| pandactl apply -f -"),
        "{err}"
    );
    let tool = |name: &str, script: &str| {
        let path = cluster.file(&format!("bin/{name}"), format!("#!/bin/sh\n{script}\n"));
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    let manifest =
        "echo \"{apiVersion: panda.dev/v1alpha1, kind: Task, metadata: {name: $NAME}, spec: {prompt: p}}\"";
    tool(
        "kubectl",
        &format!("[ \"$1 $2\" = 'kustomize k' ] || exit 9\nNAME=two\n{manifest}"),
    );
    assert_eq!(
        with_path(&["apply", "-k", "k"]).await.ok(),
        "task.panda.dev/two created\n"
    );
    tool(
        "kustomize",
        &format!("[ \"$1 $2\" = 'build k' ] || exit 9\nNAME=one\n{manifest}"),
    );
    assert_eq!(
        with_path(&["apply", "-k", "k"]).await.ok(),
        "task.panda.dev/one created\n"
    );
    assert_eq!(with_path(&["diff", "-k", "k"]).await.ok(), "");
    tool("kustomize", "echo 'no kustomization file' >&2\nexit 1");
    let err = with_path(&["apply", "-k", "k"]).await.fails();
    assert!(
        err.contains("no kustomization file") && err.contains("kustomize build k"),
        "{err}"
    );
    let err = with_path(&["apply", "-k", "https://example.com/x"]).await.fails();
    assert!(err.contains("not fetched from the network"), "{err}");
    assert_eq!(with_path(&["apply", "-k", "k", "-f", "x"]).await.code(), 1);
}
