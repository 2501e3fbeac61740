//! B01, B03, B05: words that become booleans, the same key twice, files of other editors.

use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use super::{TASKS, apply_file, err, once, out, post, send, stored};

const WORDS: &str = "apiVersion: panda.dev/v1alpha1
kind: Task
metadata:
  name: yaml-words
  labels: {country: no, switch: on, letter: y, tilde: ~}
spec:
  prompt: p
  env: [{name: MIRROR, value: no}, {name: VER, value: 1.10}, {name: WHEN, value: 2026-01-02}]
";

fn task(name: &str, prompt: &str) -> String {
    format!(
        "apiVersion: panda.dev/v1alpha1\nkind: Task\nmetadata:\n  name: {name}\nspec:\n  prompt: {prompt}\n  suspend: true\n"
    )
}

/// Every part stands in the text.
#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[tokio::test]
async fn words_of_older_yaml_stay_text_and_what_is_no_text_is_refused() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;

    let refused = apply_file(&cluster, "words.yaml", WORDS.as_bytes(), &[])?;
    assert_eq!(refused.status.code(), Some(1));
    says(
        &err(&refused),
        &[
            "metadata.labels.tilde: ~ is null",
            "words.yaml:5:55",
            "spec.env[1].value: 1.10 is a number",
            "words.yaml:8:55",
            "document 1",
            "put it in quotes: \"~\"",
            "put it in quotes: \"1.10\"",
        ],
    );
    let (code, status) = post(&cluster, "application/yaml", WORDS).await?;
    assert!((400..500).contains(&code), "{status}");
    let message = status["message"].as_str().unwrap_or_default();
    says(
        message,
        &[
            "metadata.labels.tilde",
            "spec.env[1].value",
            "5:55",
            "8:55",
            "\"1.10\"",
        ],
    );
    for (field, value) in [
        ("prompt", json!(1.10)),
        ("prompt", json!(true)),
        ("prompt", json!(null)),
        ("dedupeKey", json!(false)),
        ("env", json!([{"name": "A", "value": 1}])),
        ("env", json!([{"name": "A", "value": false}])),
    ] {
        let mut spec = json!({"prompt": "p", "suspend": true});
        spec[field] = value.clone();
        let body = json!({
            "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "raw"}, "spec": spec,
        });
        let (code, status) = post(&cluster, "application/json", body.to_string()).await?;
        assert!((400..500).contains(&code), "{field}={value}: {status}");
        let message = status["message"].as_str().unwrap_or_default();
        says(message, &[&format!("spec.{field}")]);
        if !value.is_null() {
            says(message, &["quotes"]);
        }
    }
    assert_eq!(stored(&cluster).await?, [""; 0], "nothing of it was stored");

    // A label may not be called so, quoted or not.
    let good = WORDS.replace(", tilde: ~", "").replace("1.10", "\"1.10\"");
    let created = apply_file(&cluster, "words.yaml", good.as_bytes(), &[])?;
    assert_eq!(
        out(&created),
        "task.panda.dev/yaml-words created\n",
        "{}",
        err(&created)
    );
    let task: Value = cluster.client()?.get_json(&format!("{TASKS}/yaml-words")).await?;
    assert_eq!(
        task["metadata"]["labels"],
        json!({"country": "no", "switch": "on", "letter": "y"})
    );
    let values: Vec<_> = task["spec"]["env"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|entry| &entry["value"])
        .collect();
    assert_eq!(values, ["no", "1.10", "2026-01-02"]);

    let again = apply_file(&cluster, "words.yaml", good.as_bytes(), &[])?;
    assert_eq!(out(&again), "task.panda.dev/yaml-words unchanged\n");
    let printed = cluster.ok(&["get", "task", "yaml-words", "-o", "yaml"])?;
    let round = apply_file(&cluster, "printed.yaml", printed.as_bytes(), &[])?;
    assert_eq!(
        out(&round),
        "task.panda.dev/yaml-words unchanged\n",
        "{}",
        err(&round)
    );
    let after: Value = cluster.client()?.get_json(&format!("{TASKS}/yaml-words")).await?;
    assert_eq!(after["spec"], task["spec"]);
    assert_eq!(after["metadata"]["generation"], task["metadata"]["generation"]);
    Ok(())
}

#[tokio::test]
async fn text_that_looks_like_something_else_survives_every_way_through() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;
    let odd = [
        "no",
        "Yes",
        "off",
        "~",
        "null",
        "Null",
        "true",
        "FALSE",
        "1.10",
        "1e3",
        "0x1F",
        "0o17",
        "017",
        "+1",
        ".inf",
        ".NaN",
        "-.5",
        "1_000",
        "12:30:45",
        "2026-01-02T03:04:05Z",
        "",
        " ",
        "- a",
        "a: b",
        "# c",
        "!tag",
        "&a",
        "*a",
        "@x",
        "`x`",
        "%x",
        "{a",
        "[a",
        "? k",
        "|",
        ">",
        "'",
        "\"",
        "a\tb",
        "a\r\nb",
        "\u{85}",
        "\u{2028}",
        "\u{feff}x",
        "<<",
        "=",
        "---",
        "...",
        "tail \n",
        "\n\nlead",
        "🐼",
    ];
    let env: Vec<_> = odd
        .iter()
        .enumerate()
        .map(|(i, value)| json!({"name": format!("V{i}"), "value": value}))
        .collect();
    let body = json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": "odd"},
        "spec": {"prompt": "1.10", "suspend": true, "env": env},
    });
    let (code, created) = post(&cluster, "application/json", body.to_string()).await?;
    assert_eq!(code, 201, "{created}");
    for format in ["yaml", "json"] {
        let printed = cluster.ok(&["get", "task", "odd", "-o", format])?;
        let name = format!("odd.{format}");
        let applied = apply_file(&cluster, &name, printed.as_bytes(), &[])?;
        assert!(applied.status.success(), "{}\n{printed}", err(&applied));
        let (code, status) = send(
            &cluster,
            http::Method::PUT,
            &format!("{TASKS}/odd"),
            &format!("application/{format}"),
            cluster.ok(&["get", "task", "odd", "-o", format])?,
        )
        .await?;
        assert_eq!(code, 200, "{status}");
        let after: Value = cluster.client()?.get_json(&format!("{TASKS}/odd")).await?;
        assert_eq!(after["spec"], created["spec"], "{format}");
        assert_eq!(after["metadata"]["generation"], 1, "{format}");
    }
    let applied = apply_file(
        &cluster,
        "odd.yaml",
        cluster.ok(&["get", "task", "odd", "-o", "yaml"])?.as_bytes(),
        &[],
    )?;
    assert_eq!(out(&applied), "task.panda.dev/odd unchanged\n");
    Ok(())
}

#[tokio::test]
async fn the_same_key_twice_is_refused_by_client_and_server() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;
    let env =
        task("twice", "p") + "  env: [{name: A, value: a}]\n  priority: 1\n  env: [{name: B, value: b}]\n";
    let labels = task("twice", "p").replace(
        "  name: twice",
        "  name: twice\n  labels:\n    tier: a\n    tier: b",
    );
    let twins = task("twice", "p").replace("  name: twice", "  \"name\": twice\n  name: other");
    let flow = task("twice", "p") + "  env: [{name: A, value: a, name: B}]\n";
    let document = task("twice", "p") + "kind: Task\n";
    for (file, field, first, second) in [
        (&env, "spec.env", 8, 10),
        (&labels, "metadata.labels.tier", 6, 7),
        (&twins, "metadata.name", 4, 5),
        (&flow, "spec.env[0].name", 8, 8),
        (&document, "kind", 2, 8),
    ] {
        let what = format!("the same key stands twice, on lines {first} and {second}");
        let refused = apply_file(&cluster, "twice.yaml", file.as_bytes(), &[])?;
        assert_eq!(refused.status.code(), Some(1), "{file}");
        says(&err(&refused), &[&format!("{field}: {what}"), "document 1"]);
        let going_on = apply_file(&cluster, "twice.yaml", file.as_bytes(), &["--continue-on-error"])?;
        assert_eq!(going_on.status.code(), Some(1), "{file}");
        let (code, status) = post(&cluster, "application/yaml", file.clone()).await?;
        assert_eq!(code, 400, "{status}");
        says(
            status["message"].as_str().unwrap_or_default(),
            &[field, &format!("{first}"), &format!("{second}")],
        );
    }
    let json = |meta: &str, spec: &str| {
        format!(
            "{{\"apiVersion\": \"panda.dev/v1alpha1\", \"kind\": \"Task\",\n\"metadata\": {{{meta}}},\n\"spec\": {{{spec}}}}}"
        )
    };
    let spec = "\"prompt\": \"p\", \"suspend\": true";
    for (body, field, lines) in [
        (
            json(
                "\"name\": \"twice\"",
                &format!("{spec},\n\"env\": [],\n\"env\": []"),
            ),
            "spec.env",
            [4, 5],
        ),
        (
            json(
                "\"name\": \"twice\",\n\"labels\": {\"tier\": \"a\",\n\"tier\": \"b\"}",
                spec,
            ),
            "metadata.labels.tier",
            [3, 4],
        ),
        (
            json("\"name\": \"twice\", \"n\\u0061me\": \"other\"", spec),
            "metadata.name",
            [2, 2],
        ),
        (
            json("\"name\": \"twice\"", spec).replace("}}", "},\n\"spec\": {}}"),
            "spec",
            [3, 4],
        ),
    ] {
        let refused = apply_file(&cluster, "twice.json", body.as_bytes(), &[])?;
        assert_eq!(refused.status.code(), Some(1), "{body}");
        let [first, second] = lines;
        says(
            &err(&refused),
            &[&format!(
                "{field}: the same key stands twice, on lines {first} and {second}"
            )],
        );
        let (code, status) = post(&cluster, "application/json", body.clone()).await?;
        assert_eq!(code, 400, "{status}");
        says(
            status["message"].as_str().unwrap_or_default(),
            &[field, &first.to_string(), &second.to_string()],
        );
    }
    assert_eq!(stored(&cluster).await?, [""; 0], "nothing of it was stored");

    // The same in what changes an object that is there, also for clients that ask to be strict.
    post(&cluster, "application/yaml", task("twice", "p")).await?;
    // Once the controllers have seen it nothing but a person changes it.
    once(&cluster, "twice", |task| {
        task.status.observed_generation == Some(1)
    })
    .await?;
    let made: Value = cluster.client()?.get_json(&format!("{TASKS}/twice")).await?;
    let patch = "{\"spec\": {\n\"prompt\": \"q\",\n\"prompt\": \"r\"}}";
    for query in ["", "?fieldValidation=Strict"] {
        let path = format!("{TASKS}/twice{query}");
        let kind = "application/merge-patch+json";
        let (code, status) = send(&cluster, http::Method::PATCH, &path, kind, patch).await?;
        assert_eq!(code, 400, "{status}");
        says(status["message"].as_str().unwrap_or_default(), &["spec.prompt"]);
        let mut body = made.to_string();
        let at = body.find("\"prompt\"").unwrap_or_default();
        body.insert_str(at, "\"prompt\":\"q\",");
        let (code, status) = send(&cluster, http::Method::PUT, &path, "application/json", body).await?;
        assert_eq!(code, 400, "{status}");
        says(status["message"].as_str().unwrap_or_default(), &["spec.prompt"]);
    }
    let wrong = json!({"spec": {"prompt": 1.10}}).to_string();
    let kind = "application/merge-patch+json";
    let (code, status) = send(
        &cluster,
        http::Method::PATCH,
        &format!("{TASKS}/twice"),
        kind,
        wrong,
    )
    .await?;
    assert_eq!(code, 422, "{status}");
    says(
        status["message"].as_str().unwrap_or_default(),
        &["spec.prompt", "quotes"],
    );
    let after: Value = cluster.client()?.get_json(&format!("{TASKS}/twice")).await?;
    assert_eq!(after, made, "nothing was changed");
    Ok(())
}

/// Three documents with separators as editors and people write them.
fn three(tab: bool) -> String {
    let third = task("c", "p").trim_end().to_owned();
    let third = if tab {
        third.replace("  prompt", "\tprompt")
    } else {
        third
    };
    format!(
        "{}---\n{}--- # two\n{third}",
        task("a", "|\n    line one\n\n    line  two\n"),
        task("b", "p"),
    )
}

fn utf16(text: &str, unit: fn(u16) -> [u8; 2]) -> Vec<u8> {
    std::iter::once(0xFEFF)
        .chain(text.encode_utf16())
        .flat_map(unit)
        .collect()
}

#[tokio::test]
async fn files_of_other_editors_are_the_same_objects() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;
    let lf = three(false);
    let crlf = lf.replace('\n', "\r\n");
    let created = apply_file(&cluster, "lf.yaml", lf.as_bytes(), &[])?;
    let words = |word: &str| {
        ["a", "b", "c"]
            .map(|name| format!("task.panda.dev/{name} {word}\n"))
            .concat()
    };
    assert_eq!(out(&created), words("created"), "{}", err(&created));
    let prompt = |value: &Value| value["spec"]["prompt"].as_str().unwrap_or_default().to_owned();
    let twin: Value = cluster.client()?.get_json(&format!("{TASKS}/a")).await?;
    assert_eq!(prompt(&twin), "line one\n\nline  two\n");
    let forms = [
        ("bom.yaml", [b"\xEF\xBB\xBF".as_slice(), crlf.as_bytes()].concat()),
        ("crlf.yaml", crlf.clone().into_bytes()),
        ("le.yaml", utf16(&crlf, u16::to_le_bytes)),
        ("be.yaml", utf16(&crlf, u16::to_be_bytes)),
    ];
    for (name, bytes) in &forms {
        // The same objects as the twin: there is nothing to do.
        let again = apply_file(&cluster, name, bytes, &[])?;
        assert_eq!(out(&again), words("unchanged"), "{name}: {}", err(&again));
        // And the same when nothing is there yet.
        cluster.ok(&["delete", "task", "a", "b", "c"])?;
        let anew = apply_file(&cluster, name, bytes, &[])?;
        assert_eq!(out(&anew), words("created"), "{name}: {}", err(&anew));
        let task: Value = cluster.client()?.get_json(&format!("{TASKS}/a")).await?;
        assert_eq!(task["spec"], twin["spec"], "{name}");
    }
    // One document raw, in the same forms.
    cluster.ok(&["delete", "task", "a", "b", "c"])?;
    let one = task("a", "|\n    line one\n\n    line  two\n");
    let crlf = one.replace('\n', "\r\n");
    for bytes in [
        [b"\xEF\xBB\xBF".as_slice(), crlf.as_bytes()].concat(),
        utf16(&crlf, u16::to_le_bytes),
    ] {
        let (code, task) = post(&cluster, "application/yaml", bytes).await?;
        assert_eq!(code, 201, "{task}");
        assert_eq!(task["spec"], twin["spec"]);
        cluster.ok(&["delete", "task", "a"])?;
    }
    Ok(())
}

#[tokio::test]
async fn a_tab_is_named_where_it_stands_and_nothing_is_applied() -> anyhow::Result<()> {
    let cluster = Cluster::start(&["--no-agentlet"]).await?;
    let lf = three(true);
    let line = lf
        .lines()
        .position(|line| line.starts_with('\t'))
        .unwrap_or_default()
        + 1;
    let crlf = lf.replace('\n', "\r\n");
    for (name, bytes) in [
        ("lf.yaml", lf.clone().into_bytes()),
        ("bom.yaml", [b"\xEF\xBB\xBF".as_slice(), crlf.as_bytes()].concat()),
        ("le.yaml", utf16(&crlf, u16::to_le_bytes)),
    ] {
        let refused = apply_file(&cluster, name, &bytes, &[])?;
        assert_eq!(refused.status.code(), Some(1));
        says(
            &err(&refused),
            &[
                &format!("{name}:{line}:1"),
                "tab",
                "document 3",
                "nothing was applied",
            ],
        );
        assert_eq!(stored(&cluster).await?, [""; 0], "{name}");
        let going_on = apply_file(&cluster, name, &bytes, &["--continue-on-error"])?;
        assert_eq!(going_on.status.code(), Some(1));
        assert_eq!(
            out(&going_on),
            "task.panda.dev/a created\ntask.panda.dev/b created\n"
        );
        cluster.ok(&["delete", "task", "a", "b"])?;
    }
    // From standard input and from a folder as well.
    let folder = cluster.dir().join("folder");
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join("win.yaml"), crlf.as_bytes())?;
    std::fs::write(folder.join("good.yaml"), task("good", "p"))?;
    let refused = cluster.pandactl(&["apply", "-f", "folder"])?;
    assert_eq!(refused.status.code(), Some(1));
    says(
        &err(&refused),
        &[&format!("folder/win.yaml:{line}:1"), "tab", "document 3"],
    );
    let piped = cluster
        .command(cluster.pandactl_path()?)
        .args(["apply", "-f", "-"])
        .stdin(std::fs::File::open(folder.join("win.yaml"))?)
        .output()?;
    assert_eq!(piped.status.code(), Some(1));
    says(
        &err(&piped),
        &[&format!("standard input:{line}:1"), "tab", "document 3"],
    );
    assert_eq!(stored(&cluster).await?, [""; 0]);
    let raw = task("a", "p").replace("  prompt", "\tprompt");
    let (code, status) = post(&cluster, "application/yaml", raw).await?;
    assert_eq!(code, 400, "{status}");
    says(status["message"].as_str().unwrap_or_default(), &["tab", "6"]);
    assert_eq!(stored(&cluster).await?, [""; 0]);
    Ok(())
}
