//! What the audit log says of requests, and that nothing is written without it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use http::Method;
use panda_apiserver::audit::verify::{folder, read, verify};
use panda_apiserver::pki::Subject;
use panda_client::config::Kubeconfig;
use panda_store::Memory;
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness, PATIENCE};

/// All events in the log of a data folder.
fn events(data: &Path) -> Vec<Value> {
    let mut events = Vec::new();
    read(&folder(data), &mut |_, record| {
        events.push(serde_json::from_str(record.unwrap().event).unwrap());
        true
    })
    .unwrap();
    events
}

/// Those that have this verb and name.
fn of<'a>(events: &'a [Value], verb: &str, name: &str) -> Vec<&'a Value> {
    let is = |event: &&Value| event["verb"] == verb && event["objectRef"]["name"] == name;
    events.iter().filter(is).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_write_and_every_refused_read_is_recorded_without_what_is_in_it() {
    let server = Harness::start().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"token": "canary-5d1f"}});
    server.admin.post(secrets, &secret).await.expect(201);
    let made = json!({"metadata": {"generateName": "gen-"}});
    let made = server.admin.post(CONFIG_MAPS, &made).await.expect(201);
    let name = made["metadata"]["name"].as_str().unwrap();
    let one = format!("{CONFIG_MAPS}/{name}");
    let headers = [
        ("content-type", "application/merge-patch+json"),
        ("audit-id", "mine-17"),
    ];
    let patch = json!({"data": {"k": "v"}}).to_string();
    let changed = server
        .admin
        .call(Method::PATCH, &one, &headers, patch)
        .await
        .expect(200);
    server
        .admin
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "NO"}}))
        .await
        .expect(422);
    server.admin.get(&one).await.expect(200);
    server.admin.delete(&one).await.expect(200);
    // Refused: somebody without rights, and somebody else whom the administrator acts as.
    let nobody = server.client(&Subject::user("mallory", &[]));
    nobody.get(&format!("{secrets}/s")).await.expect(403);
    nobody
        .post(CONFIG_MAPS, &json!({"metadata": {"name": "x"}}))
        .await
        .expect(403);
    let acting = [("impersonate-user", "eve")];
    server
        .admin
        .call(Method::GET, secrets, &acting, "")
        .await
        .expect(403);
    server.anonymous().get(secrets).await.expect(401);
    // Questions are no writes.
    let review = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "secrets"}}});
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    nobody.post(reviews, &review).await.expect(201);

    let data = server.halt().await;
    let found = events(data.path());
    let event = of(&found, "create", name)[0];
    assert_eq!(event["kind"], "Event");
    assert_eq!(
        (&event["apiVersion"], &event["level"]),
        (&json!("audit.k8s.io/v1"), &json!("Metadata"))
    );
    assert_eq!(event["responseStatus"]["code"], 201);
    assert_eq!(event["objectRef"]["resource"], "configmaps");
    assert_eq!(event["objectRef"]["namespace"], "default");
    assert_eq!(
        event["objectRef"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
    assert_eq!(event["sourceIPs"], json!(["127.0.0.1"]));
    let event = of(&found, "patch", name)[0];
    assert_eq!(
        (&event["auditID"], &event["requestURI"]),
        (&json!("mine-17"), &json!(one))
    );
    assert_eq!(
        event["objectRef"]["resourceVersion"],
        changed["metadata"]["resourceVersion"]
    );
    assert_eq!(of(&found, "delete", name).len(), 1);
    assert!(
        of(&found, "get", name).is_empty(),
        "reads that are allowed are not recorded"
    );
    let codes = |user: &str| -> Vec<u64> {
        let by = found.iter().filter(|event| event["user"]["username"] == user);
        by.map(|event| event["responseStatus"]["code"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(codes("mallory"), [403, 403]);
    assert_eq!(codes("system:anonymous"), [401]);
    let acted: Vec<_> = found
        .iter()
        .filter(|event| event["impersonatedUser"]["username"] == "eve")
        .collect();
    assert_eq!(acted.len(), 1);
    assert_eq!(acted[0]["responseStatus"]["code"], 403);
    assert!(found.iter().any(|event| event["responseStatus"]["code"] == 422));
    let all = serde_json::to_string(&found).unwrap();
    assert!(!all.contains("canary-5d1f") && !all.contains("selfsubjectaccessreviews"));
    assert!(verify(&folder(data.path()), None).unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_in_particular_asks_cannot_push_out_records() {
    let server = Harness::start().await;
    let stranger = server.anonymous();
    for _ in 0..300 {
        stranger.get(CONFIG_MAPS).await.expect(401);
    }
    let data = server.halt().await;
    let refused = events(data.path())
        .into_iter()
        .filter(|event| event["responseStatus"]["code"] == 401);
    assert!((1..300).contains(&refused.count()));
}

/// A small file system, which root alone can mount.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(at: &'a Path) -> Self {
        std::fs::create_dir(at).unwrap();
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", "size=3m,mode=700", "panda-test"])
            .arg(at);
        assert!(command.status().unwrap().success());
        Self(at)
    }

    fn fill(&self) {
        let file = std::fs::File::create(self.0.join("filler")).unwrap();
        let mut size = 0;
        for step in [256 << 10, 4 << 10] {
            while rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), size, step).is_ok() {
                size += step;
            }
        }
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(self.0).status();
        assert!(std::thread::panicking() || unmounted.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_without_a_record_and_a_full_disk_recovers() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_owned();
    let audit = folder(&data);
    let small = Small::mount(&audit);
    let server = Harness::over_dir(Arc::new(Memory::new("test")), dir).await;
    small.fill();
    // What is reserved is used up first: all of it ends up in the log.
    let mut made = 0;
    let refused = loop {
        let object = json!({"metadata": {"name": format!("m-{made}")}});
        let reply = server.admin.post(CONFIG_MAPS, &object).await;
        if reply.status != 201 {
            break reply;
        }
        made += 1;
        assert!(made < 5000, "the disk is full");
    };
    let status = refused.refused(503, "ServiceUnavailable");
    assert!(status["message"].as_str().unwrap().contains("audit"), "{status}");
    assert_eq!(refused.header("retry-after"), "5");
    server.admin.get(CONFIG_MAPS).await.expect(200);
    assert_eq!(server.admin.get("/readyz").await.status, 200);
    std::fs::remove_file(audit.join("filler")).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let after = json!({"metadata": {"name": "after"}});
    while server.admin.post(CONFIG_MAPS, &after).await.status != 201 {
        assert!(tokio::time::Instant::now() < deadline, "it recovers by itself");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let _dir = server.halt().await;
    let found = events(&data);
    assert!((0..made).all(|n| of(&found, "create", &format!("m-{n}")).len() == 1));
    assert!(verify(&audit, None).unwrap().is_sound());
}

#[tokio::test(flavor = "multi_thread")]
async fn kill_nine_keeps_the_chain_and_the_record_of_every_acknowledged_write() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let mut acknowledged = Vec::new();
    for round in 0..3 {
        let mut server = Command::new(env!("CARGO_BIN_EXE_panda-apiserver"))
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&data)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().starts_with("ready at")));
        let text = std::fs::read_to_string(data.join("admin.kubeconfig")).unwrap();
        let config = Kubeconfig::parse(&text).unwrap();
        let config = config.resolve(None, &|path| std::fs::read(path)).unwrap();
        let client = panda_client::Client::connect(&config, panda_client::Options::default()).unwrap();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let client = client.clone();
                tokio::spawn(async move {
                    let mut done = Vec::new();
                    for n in 0.. {
                        let name = format!("r{round}-{writer}-{n}");
                        let body = json!({"metadata": {"name": name}}).to_string();
                        let post =
                            panda_client::client::request(Method::POST, CONFIG_MAPS, Some(body.into()));
                        match client.request(post.unwrap()).await {
                            Ok(reply) if reply.status() == 201 => done.push(name),
                            _ => return done,
                        }
                        if n == 25 && writer == 0 {
                            break;
                        }
                    }
                    done
                })
            })
            .collect();
        let mut writers = writers.into_iter();
        acknowledged.extend(writers.next().unwrap().await.unwrap());
        server.kill().unwrap();
        server.wait().unwrap();
        for writer in writers {
            acknowledged.extend(writer.await.unwrap());
        }
        let found = verify(&folder(&data), None).unwrap();
        assert!(found.is_sound(), "{found:?}");
    }
    assert!(acknowledged.len() > 75);
    let found = events(&data);
    for name in acknowledged {
        assert_eq!(of(&found, "create", &name).len(), 1, "{name}");
    }
}
