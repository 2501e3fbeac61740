use serde_json::json;

use crate::harness::{CONFIG_MAPS, Harness};

#[tokio::test(flavor = "multi_thread")]
async fn an_object_is_made_read_watched_changed_and_deleted() {
    let server = Harness::start().await;
    let map = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    let made = server.admin.post(CONFIG_MAPS, &map).await.expect(201);
    assert_eq!(made["kind"], "ConfigMap");
    assert_eq!(made["metadata"]["generation"], 1);
    let version = made["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let path = format!("{CONFIG_MAPS}/a");
    assert_eq!(server.admin.get(&path).await.expect(200), made);
    let list = server.admin.get(CONFIG_MAPS).await.expect(200);
    assert_eq!(list["kind"], "ConfigMapList");
    assert_eq!(list["items"], json!([made]));
    assert_eq!(list["metadata"]["resourceVersion"], version);
    let mut watch = server
        .admin
        .watch(&format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}"))
        .await;
    let changed = server
        .admin
        .merge(&path, &json!({"data": {"k": "w"}}))
        .await
        .expect(200);
    assert_eq!(changed["data"]["k"], "w");
    let gone = server.admin.delete(&path).await.expect(200);
    assert_eq!(gone["status"], "Success");
    assert_eq!(gone["details"]["uid"], made["metadata"]["uid"]);
    assert_eq!(
        watch.next().await.unwrap(),
        json!({"type": "MODIFIED", "object": changed})
    );
    assert_eq!(watch.short().await, ("DELETED".to_owned(), "a".to_owned()));
    server.admin.get(&path).await.refused(404, "NotFound");
    server.stop().await;
}
