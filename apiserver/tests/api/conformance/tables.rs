//! Tables and metadata alone.

use panda_api::scheme;
use serde_json::{Value, json};

use super::{task, version};
use crate::harness::{Harness, TASKS};
use crate::verbs::{collection, sample};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const ONE: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";

#[tokio::test(flavor = "multi_thread")]
async fn one_object_is_a_table_of_one_row_whose_cells_fit_the_columns() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for kind in scheme::kinds().iter().chain(scheme::forms()) {
        if kind.kind == "CertificateSigningRequest" {
            continue;
        }
        let all = collection(kind);
        // Both groups of Events show the same ones.
        let row = if kind.group == "events.k8s.io" {
            "row-newer"
        } else {
            "row"
        };
        admin.post(&all, &sample(kind, row)).await.expect(201);
        let table = admin.get_as(&format!("{all}/{row}"), TABLE).await.expect(200);
        assert_eq!(
            (&table["kind"], &table["apiVersion"]),
            (&json!("Table"), &json!("meta.k8s.io/v1"))
        );
        let columns = table["columnDefinitions"].as_array().unwrap();
        let rows = table["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 1, "{}", kind.kind);
        assert_eq!(
            rows[0]["cells"].as_array().unwrap().len(),
            columns.len(),
            "{}",
            kind.kind
        );
        let name = columns
            .iter()
            .position(|column| column["format"] == "name")
            .unwrap();
        assert_eq!(rows[0]["cells"][name], row, "{}", kind.kind);
        assert!(columns.iter().any(|column| column["priority"] == 0));
        assert_eq!(rows[0]["object"]["metadata"]["name"], row);
        if kind.kind != "Event" {
            assert_eq!(columns[0]["name"], "Name", "{}", kind.kind);
        }
        // Whoever changes an object may have the answer as a table, too.
        let merge = [
            ("content-type", "application/merge-patch+json"),
            ("accept", TABLE),
        ];
        let patched = admin
            .call(http::Method::PATCH, &format!("{all}/{row}"), &merge, "{}")
            .await
            .expect(200);
        assert_eq!(patched["rows"][0]["cells"][name], row, "{}", kind.kind);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_carry_what_was_asked_for_and_page_as_lists_do() {
    let server = Harness::start().await;
    let admin = &server.admin;
    for name in ["a", "b", "c"] {
        admin.post(TASKS, &task(name, "x")).await.expect(201);
    }
    let with = |include: &str| format!("{TASKS}?includeObject={include}");
    let kind = |table: &Value| table["rows"][0]["object"]["kind"].clone();
    assert_eq!(
        kind(&admin.get_as(TASKS, TABLE).await.expect(200)),
        "PartialObjectMetadata"
    );
    let whole = admin.get_as(&with("Object"), TABLE).await.expect(200);
    assert_eq!(kind(&whole), "Task");
    assert_eq!(whole["rows"][0]["object"]["spec"]["prompt"], "p");
    let none = admin.get_as(&with("None"), TABLE).await.expect(200);
    assert!(none["rows"][0].get("object").is_none());
    admin.get_as(&with("All"), TABLE).await.refused(422, "Invalid");
    let page = admin.get_as(&format!("{TASKS}?limit=2"), TABLE).await.expect(200);
    assert_eq!(page["rows"].as_array().unwrap().len(), 2);
    assert_eq!(page["metadata"]["remainingItemCount"], 1);
    let token = page["metadata"]["continue"].as_str().unwrap();
    let rest = admin
        .get_as(&format!("{TASKS}?continue={token}"), TABLE)
        .await
        .expect(200);
    assert_eq!(rest["rows"][0]["cells"][0], "c");
    assert_eq!(version(&rest), version(&page));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_alone_needs_no_other_entry_to_fall_back_to() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let made = admin.post(TASKS, &task("a", "x")).await.expect(201);
    let list = admin.get_as(TASKS, LIST).await.expect(200);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["kind"], "PartialObjectMetadata");
    assert_eq!(list["items"][0]["metadata"], made["metadata"]);
    let one = admin.get_as(&format!("{TASKS}/a"), ONE).await.expect(200);
    assert_eq!(
        one,
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made["metadata"]})
    );
    for (path, accept) in [
        (
            format!("{TASKS}/a"),
            "application/json;as=Table;v=v9;g=meta.k8s.io",
        ),
        (TASKS.to_owned(), "application/json;as=Table;v=v1;g=other.k8s.io"),
        (TASKS.to_owned(), "application/json;as=Chart;v=v1;g=meta.k8s.io"),
        (TASKS.to_owned(), "application/xml"),
        (format!("{TASKS}?watch=1"), "application/vnd.kubernetes.protobuf"),
    ] {
        admin.get_as(&path, accept).await.refused(406, "NotAcceptable");
    }
    let fall_back = "application/json;as=Table;v=v9;g=meta.k8s.io,application/json";
    assert_eq!(
        admin.get_as(TASKS, fall_back).await.expect(200)["kind"],
        "TaskList"
    );
    // A question about rights has no rows.
    let review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let ask = json!({"spec": {"resourceAttributes": {"verb": "get", "resource": "tasks"}}});
    let headers = [("accept", TABLE), ("content-type", "application/json")];
    admin
        .call(http::Method::POST, review, &headers, ask.to_string())
        .await
        .refused(406, "NotAcceptable");
    server.stop().await;
}

/// More than goes out at once, in every form.
#[tokio::test(flavor = "multi_thread")]
async fn large_lists_are_whole_in_every_form() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let maps = "/api/v1/namespaces/default/configmaps";
    for n in 0..30 {
        let map = json!({
            "metadata": {"name": format!("m{n:02}"), "annotations": {"pad": "x".repeat(9000)}},
            "data": {"k": "y".repeat(9000)},
        });
        admin.post(maps, &map).await.expect(201);
    }
    for (accept, items) in [("application/json", "items"), (LIST, "items"), (TABLE, "rows")] {
        let list = admin.get_as(maps, accept).await.expect(200);
        assert_eq!(list[items].as_array().unwrap().len(), 30, "{accept}");
        let empty = admin
            .get_as(&format!("{maps}?labelSelector=none"), accept)
            .await
            .expect(200);
        assert_eq!(empty[items], json!([]), "{accept}");
    }
    server.stop().await;
}
