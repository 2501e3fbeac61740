//! Secrets are nowhere in clear.

use std::path::Path;
use std::sync::Arc;

use panda_store::sqlite::{Config, Sqlite};
use panda_store::{Revision, Scope, Store, WatchRequest};
use serde_json::{Value, json};

use crate::harness::Harness;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// Never printed, never stored.
const CANARY: &str = "canary-f3c1a0d97b";
/// The same in the encoding of `data`.
const ENCODED: &str = "Y2FuYXJ5LWYzYzFhMGQ5N2I=";

fn scan(dir: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            scan(&path, found);
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for word in [CANARY, ENCODED] {
            if bytes.windows(word.len()).any(|window| window == word.as_bytes()) {
                found.push(format!("{word} in {}", path.display()));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_read_back_but_stands_in_no_file() {
    let data = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Sqlite::open(&Config::new(data.path()), "test").unwrap());
    let server = Harness::over(Arc::clone(&store), |_| {}).await;
    let admin = &server.admin;
    let mut watch = admin.watch(&format!("{SECRETS}?watch=1")).await;
    let secret = json!({"metadata": {"name": "gh", "labels": {"for": "git"}}, "data": {"token": ENCODED}});
    let made = admin.post(SECRETS, &secret).await.expect(201);
    assert_eq!(made["data"]["token"], ENCODED);
    let one = format!("{SECRETS}/gh");
    let changed = admin
        .merge(&one, &json!({"data": {"more": ENCODED}}))
        .await
        .expect(200);
    let list = admin
        .get(&format!("{SECRETS}?labelSelector=for%3Dgit"))
        .await
        .expect(200);
    assert_eq!(list["items"], json!([changed]));
    assert_eq!(admin.get(&one).await.expect(200), changed);
    admin.delete(&one).await.expect(200);
    let seen = [
        watch.next().await.unwrap(),
        watch.next().await.unwrap(),
        watch.next().await.unwrap(),
    ];
    assert_eq!(seen[0], json!({"type": "ADDED", "object": made}));
    assert_eq!(seen[1], json!({"type": "MODIFIED", "object": changed}));
    assert_eq!(
        (&seen[2]["type"], &seen[2]["object"]["data"]["token"]),
        (&json!("DELETED"), &json!(ENCODED))
    );
    // Not even the history shows it.
    let request = WatchRequest {
        scope: Scope::all(),
        from: Revision::ZERO,
    };
    let mut history = store.watch(request).await.unwrap();
    let mut sealed = 0;
    while let Some(event) = history.try_next() {
        let text = String::from_utf8_lossy(&event.value).into_owned();
        assert!(!text.contains(ENCODED) && !text.contains(CANARY), "{text}");
        sealed += usize::from(
            serde_json::from_str::<Value>(&text)
                .unwrap()
                .get("sealed")
                .is_some(),
        );
    }
    assert_eq!(sealed, 3);
    let mut found = Vec::new();
    scan(data.path(), &mut found);
    scan(server.dir.path(), &mut found);
    assert_eq!(found, Vec::<String>::new());
    server.stop().await;
}
