//! Apply: cases B01, B03, B05, B07, and what is around them.

use panda_api::Task;

use crate::harness::Cluster;

const WORDS: &str = "apiVersion: panda.dev/v1alpha1
kind: Task
metadata:
  name: yaml-words
  labels: {country: no, switch: on, letter: y}
spec:
  prompt: p
  env: [{name: MIRROR, value: no}, {name: VER, value: \"1.10\"}, {name: WHEN, value: 2026-01-02}]
";

fn task(name: &str) -> String {
    format!("apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {{name: {name}}}\nspec: {{prompt: p}}\n")
}

async fn names(cluster: &Cluster) -> Vec<String> {
    let tasks = cluster.api::<Task>().list_all(&Default::default()).await.unwrap();
    tasks.items.into_iter().map(|task| task.metadata.name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn words_that_look_like_booleans_stay_text_through_a_round_trip() {
    let cluster = Cluster::start().await;
    let file = cluster.file("words.yaml", WORDS);
    assert_eq!(
        cluster.ok(&["apply", "-f", &file]).await,
        "task.panda.dev/yaml-words created\n"
    );
    assert_eq!(
        cluster.ok(&["apply", "-f", &file]).await,
        "task.panda.dev/yaml-words unchanged\n"
    );
    let stored = cluster.api::<Task>().get("yaml-words").await.unwrap();
    assert_eq!(stored.metadata.labels["country"], "no");
    assert_eq!(stored.metadata.labels["letter"], "y");
    let values: Vec<_> = stored
        .spec
        .env
        .iter()
        .filter_map(|var| var.value.as_deref())
        .collect();
    assert_eq!(values, ["no", "1.10", "2026-01-02"]);
    let yaml = cluster.ok(&["get", "task", "yaml-words", "-o", "yaml"]).await;
    let again = cluster.feed(&["apply", "-f", "-"], yaml.as_bytes()).await.ok();
    assert_eq!(again, "task.panda.dev/yaml-words unchanged\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_and_nulls_where_text_belongs_are_refused_with_line_and_quotes() {
    let cluster = Cluster::start().await;
    for (word, line) in [("1.10", 8), ("~", 5)] {
        let text = if word == "~" {
            WORDS.replace("letter: y", "letter: ~")
        } else {
            WORDS.replace("\"1.10\"", "1.10")
        };
        let err = cluster.feed(&["apply", "-f", "-"], text.as_bytes()).await.fails();
        assert!(
            err.contains(&format!("standard input:{line}:")) && err.contains(&format!("\"{word}\"")),
            "{err}"
        );
    }
    assert!(names(&cluster).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_stands_twice_is_refused_with_both_lines() {
    let cluster = Cluster::start().await;
    let head = "apiVersion: panda.dev/v1alpha1\nkind: Task\n";
    for (name, text, lines) in [
        ("env.yaml", format!("{head}metadata: {{name: x}}\nspec:\n  env: [{{name: A, value: a}}]\n  prompt: p\n  env: [{{name: B, value: b}}]\n"), [5, 7]),
        ("labels.yaml", format!("{head}metadata:\n  name: x\n  labels:\n    tier: a\n    tier: b\nspec: {{prompt: p}}\n"), [6, 7]),
        ("quoted.yaml", format!("{head}metadata:\n  \"name\": x\n  name: y\nspec: {{prompt: p}}\n"), [4, 5]),
        ("body.json", "{\"apiVersion\":\"panda.dev/v1alpha1\",\"kind\":\"Task\",\n\"metadata\":{\"name\":\"x\",\n\"name\":\"y\"},\"spec\":{\"prompt\":\"p\"}}".to_owned(), [2, 3]),
    ] {
        let file = cluster.file(name, text);
        let err = cluster.run(&["apply", "-f", &file]).await.fails();
        for line in lines {
            assert!(err.contains(&format!("{line} |")), "{name}: no line {line} in\n{err}");
        }
    }
    assert!(names(&cluster).await.is_empty());
}

fn windows(tab: bool) -> String {
    let indent = if tab { "\t" } else { "  " };
    let lines = format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {{name: one}}\nspec:\n  prompt: |\n    first\n    second\n---\n{}--- # two\napiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata:\n  name: three\nspec:\n{indent}prompt: p",
        task("two")
    );
    lines.replace('\n', "\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_windows_editors_are_read_and_a_tab_is_found() {
    let cluster = Cluster::start().await;
    let utf8 = cluster.file("utf8.yaml", format!("\u{feff}{}", windows(false)));
    let out = cluster.ok(&["apply", "-f", &utf8]).await;
    assert_eq!(
        out,
        "task.panda.dev/one created\ntask.panda.dev/two created\ntask.panda.dev/three created\n"
    );
    assert_eq!(
        cluster.api::<Task>().get("one").await.unwrap().spec.prompt,
        "first\nsecond\n"
    );
    let mut wide = vec![0xff, 0xfe];
    wide.extend(windows(false).encode_utf16().flat_map(u16::to_le_bytes));
    let utf16 = cluster.file("utf16.yaml", wide);
    let out = cluster.ok(&["apply", "-f", &utf16]).await;
    assert_eq!(out.matches("unchanged").count(), 3, "{out}");

    let fresh = Cluster::start().await;
    let tab = fresh.file("tab.yaml", windows(true));
    let err = fresh.run(&["apply", "-f", &tab]).await.fails();
    let line = windows(true)
        .lines()
        .position(|line| line.starts_with('\t'))
        .unwrap()
        + 1;
    assert!(
        err.contains("tab.yaml") && err.contains(&format!(":{line}:")) && err.contains("tab"),
        "{err}"
    );
    assert!(names(&fresh).await.is_empty());
    let done = fresh.run(&["apply", "-f", &tab, "--continue-on-error"]).await;
    assert_eq!(done.out().matches("created").count(), 2);
    done.fails();
    assert_eq!(names(&fresh).await, ["one", "two"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_applied_twice_and_broken_ones_are_refused() {
    let cluster = Cluster::start().await;
    let item = |name: &str| {
        format!(
            "{{apiVersion: panda.dev/v1alpha1, kind: Task, metadata: {{name: {name}}}, spec: {{prompt: p}}}}"
        )
    };
    let two = cluster.file(
        "two.yaml",
        format!(
            "apiVersion: v1\nkind: List\nitems: [{}, {}]\n",
            item("a"),
            item("b")
        ),
    );
    assert_eq!(
        cluster
            .ok(&["apply", "-f", &two])
            .await
            .matches("created")
            .count(),
        2
    );
    assert_eq!(
        cluster
            .ok(&["apply", "-f", &two])
            .await
            .matches("unchanged")
            .count(),
        2
    );
    for (name, body) in [
        ("nested.yaml", "items: [[]]"),
        ("untyped.yaml", "items: [{metadata: {name: c}}]"),
    ] {
        let file = cluster.file(name, format!("apiVersion: v1\nkind: List\n{body}\n"));
        for _ in 0..2 {
            let err = cluster.run(&["apply", "-f", &file]).await.fails();
            assert!(err.contains("items[0]"), "{err}");
        }
    }
    let empty = cluster
        .run(&[
            "apply",
            "-f",
            &cluster.file("null.yaml", "apiVersion: v1\nkind: List\nitems: null\n"),
        ])
        .await;
    assert_eq!((empty.code(), empty.out()), (0, String::new()));
    let deep = cluster.file(
        "deep.yaml",
        format!(
            "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  items: [{}]\n",
            item("d")
        ),
    );
    cluster.run(&["apply", "-f", &deep]).await.fails();

    // As printed, with stale versions: after a change, the old print is applied again without a conflict.
    let printed = cluster.ok(&["get", "tasks", "-o", "yaml"]).await;
    assert!(printed.contains("resourceVersion") && printed.contains("uid"));
    cluster.ok(&["label", "task/a", "extra=yes"]).await;
    let file = cluster.file("printed.yaml", &printed);
    let out = cluster.ok(&["apply", "-f", &file]).await;
    assert!(!out.contains("created"), "{out}");
    let again = cluster.ok(&["apply", "-f", &file]).await;
    assert_eq!(again.matches("unchanged").count(), 2, "{again}");
    assert_eq!(
        cluster.api::<Task>().get("a").await.unwrap().metadata.labels["extra"],
        "yes"
    );
    let raw = format!(
        "apiVersion: panda.dev/v1alpha1\nkind: TaskList\nitems: [{}]\n",
        item("e")
    );
    assert_eq!(
        cluster.feed(&["apply", "-f", "-"], raw.as_bytes()).await.ok(),
        "task.panda.dev/e created\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_refuses_is_shown_in_the_file_and_nothing_is_applied() {
    let cluster = Cluster::start().await;
    let text = format!(
        "{}---\napiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {{name: bad}}\nspec:\n  promt: p\n  prompt: \"\"\n",
        task("good")
    );
    let file = cluster.file("tasks.yaml", text);
    let err = cluster.run(&["apply", "-f", &file]).await.fails();
    assert!(err.contains("promt") && err.contains("tasks.yaml:"), "{err}");
    assert!(names(&cluster).await.is_empty());
    let done = cluster.run(&["apply", "-f", &file, "--continue-on-error"]).await;
    assert_eq!(done.out(), "task.panda.dev/good created\n");
    done.fails();
    let misspelt = cluster.file("misspelt.yaml", "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {name: bad}\nspec:\n  prompt: p\n  prioritty: 3\n");
    let err = cluster.run(&["apply", "-f", &misspelt]).await.fails();
    assert!(
        err.contains("did you mean \"priority\"?") && err.contains("misspelt.yaml:6:3"),
        "{err}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_come_first_and_mismatches_and_twins_are_refused() {
    let cluster = Cluster::start().await;
    let text = "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata: {name: x, namespace: web}\nspec: {prompt: p}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: web}\n";
    let file = cluster.file("web.yaml", text);
    assert_eq!(
        cluster.ok(&["apply", "-f", &file, "--dry-run=server"]).await,
        "namespace/web created (server dry run)\ntask.panda.dev/x created (server dry run)\n"
    );
    assert_eq!(
        cluster.ok(&["apply", "-f", &file]).await,
        "namespace/web created\ntask.panda.dev/x created\n"
    );
    let err = cluster.run(&["apply", "-f", &file, "-n", "other"]).await.fails();
    assert!(
        err.contains("\"web\"") && err.contains("\"other\"") && err.contains("web.yaml:3"),
        "{err}"
    );
    let twins = cluster.file("twins.yaml", format!("{}---\n{}", task("t"), task("t")));
    let err = cluster.run(&["apply", "-f", &twins]).await.fails();
    assert!(err.contains("stands twice"), "{err}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_out_is_removed_and_values_of_secrets_are_not_copied() {
    let cluster = Cluster::start().await;
    let with = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, labels: {a: b}}\nstringData: {one: hunter2, two: x}\n";
    let without = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {one: hunter2}\n";
    assert_eq!(
        cluster.feed(&["apply", "-f", "-"], with.as_bytes()).await.ok(),
        "secret/s created\n"
    );
    assert_eq!(
        cluster.feed(&["apply", "-f", "-"], with.as_bytes()).await.ok(),
        "secret/s unchanged\n"
    );
    let yaml = cluster
        .ok(&["get", "secret", "s", "-o", "jsonpath={.metadata.annotations}"])
        .await;
    assert!(!yaml.contains("aHVudGVyMg"), "{yaml}");
    assert_eq!(
        cluster.feed(&["apply", "-f", "-"], without.as_bytes()).await.ok(),
        "secret/s configured\n"
    );
    assert_eq!(
        cluster
            .ok(&[
                "get",
                "secret",
                "s",
                "-o",
                "jsonpath={.data.two}{.metadata.labels}"
            ])
            .await,
        ""
    );
    assert_eq!(
        cluster
            .ok(&["get", "secret", "s", "-o", "jsonpath={.data.one}"])
            .await,
        "aHVudGVyMg=="
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_are_read_in_order_and_below_when_asked() {
    let cluster = Cluster::start().await;
    std::fs::create_dir_all(cluster.dir.path().join("m/sub")).unwrap();
    cluster.file("m/b.yaml", task("b"));
    cluster.file("m/a.yml", task("a"));
    cluster.file("m/readme.txt", "not a manifest");
    cluster.file("m/sub/c.json", "{\"apiVersion\":\"panda.dev/v1alpha1\",\"kind\":\"Task\",\"metadata\":{\"name\":\"c\"},\"spec\":{\"prompt\":\"p\"}}");
    assert_eq!(
        cluster.ok(&["apply", "-f", "m"]).await,
        "task.panda.dev/a created\ntask.panda.dev/b created\n"
    );
    assert!(
        cluster
            .ok(&["apply", "-R", "-f", "m"])
            .await
            .ends_with("task.panda.dev/c created\n")
    );
    let err = cluster.run(&["apply", "-f", "nowhere.yaml"]).await.fails();
    assert!(err.contains("nowhere.yaml"), "{err}");
}
