//! Discovery and OpenAPI.

use std::collections::BTreeSet;

use http::Method;
use panda_api::scheme;
use serde_json::{Value, json};

use crate::harness::{Client, Harness};

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

#[tokio::test(flavor = "multi_thread")]
async fn every_group_has_reachable_versions_and_a_valid_preferred_one() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let groups = admin.get("/apis").await.expect(200);
    assert_eq!(groups["kind"], "APIGroupList");
    for group in groups["groups"].as_array().unwrap() {
        let versions = group["versions"].as_array().unwrap();
        assert!(versions.contains(&group["preferredVersion"]), "{group}");
        for version in versions {
            let at = version["groupVersion"].as_str().unwrap();
            let list = admin.get(&format!("/apis/{at}")).await.expect(200);
            assert_eq!(list["kind"], "APIResourceList");
            assert_eq!(list["groupVersion"], at);
            assert!(!list["resources"].as_array().unwrap().is_empty());
        }
        let one = admin
            .get(&format!("/apis/{}", group["name"].as_str().unwrap()))
            .await
            .expect(200);
        assert_eq!(one["versions"], group["versions"]);
    }
    assert_eq!(admin.get("/api").await.expect(200)["versions"], json!(["v1"]));
    for path in ["/apis/no.such.group", "/apis/panda.dev/v9", "/api/v9"] {
        admin.get(path).await.refused(404, "NotFound");
    }
    for path in ["/version", "/version/"] {
        let version = admin.get(path).await.expect(200);
        for part in ["major", "minor"] {
            version[part].as_str().unwrap().parse::<u32>().unwrap();
        }
    }
    server.stop().await;
}

/// What plain discovery says: `group/version plural Kind verbs scope`.
async fn plain(admin: &Client) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    let groups = admin.get("/apis").await.expect(200);
    let mut bases = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        bases.push(format!(
            "/apis/{}",
            group["preferredVersion"]["groupVersion"].as_str().unwrap()
        ));
    }
    for base in bases {
        let list = admin.get(&base).await.expect(200);
        for resource in list["resources"].as_array().unwrap() {
            out.insert(format!(
                "{} {} {} {} {}",
                list["groupVersion"].as_str().unwrap(),
                resource["name"].as_str().unwrap(),
                resource["kind"].as_str().unwrap(),
                resource["verbs"],
                resource["namespaced"],
            ));
        }
    }
    out
}

/// The same, said by aggregated discovery.
async fn aggregated(admin: &Client, accept: &str) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for root in ["/api", "/apis"] {
        let document = admin.get_as(root, accept).await.expect(200);
        for group in document["items"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                let name = group["metadata"]["name"].as_str().unwrap();
                let word = version["version"].as_str().unwrap();
                let at = if name.is_empty() {
                    word.to_owned()
                } else {
                    format!("{name}/{word}")
                };
                assert_eq!(version["freshness"], "Current");
                for resource in version["resources"].as_array().unwrap() {
                    let plural = resource["resource"].as_str().unwrap();
                    let namespaced = resource["scope"] == "Namespaced";
                    let line = |name: &str, of: &Value| {
                        let kind = of["responseKind"]["kind"].as_str().unwrap();
                        format!("{at} {name} {kind} {} {namespaced}", of["verbs"])
                    };
                    out.insert(line(plural, resource));
                    for sub in resource["subresources"].as_array().into_iter().flatten() {
                        let name = format!("{plural}/{}", sub["subresource"].as_str().unwrap());
                        out.insert(line(&name, sub));
                    }
                }
            }
        }
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn aggregated_discovery_says_what_plain_discovery_says() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let form = |version: &str| {
        format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList")
    };
    let want = plain(admin).await;
    assert_eq!(aggregated(admin, &form("v2")).await, want);
    assert_eq!(aggregated(admin, &form("v2beta1")).await, want);
    // The first possible entry wins, and the answer says which it was.
    for (accept, media) in [
        (format!("{},{}", form("v2"), form("v2beta1")), form("v2")),
        (format!("{},{}", form("v3"), form("v2beta1")), form("v2beta1")),
        (
            format!("{},application/json", form("v3")),
            "application/json".to_owned(),
        ),
        (
            format!("application/json,{}", form("v2")),
            "application/json".to_owned(),
        ),
        ("*/*".to_owned(), "application/json".to_owned()),
    ] {
        let reply = admin.get_as("/apis", &accept).await;
        assert_eq!(reply.header("content-type"), media, "{accept}");
        let etag = reply.header("etag").to_owned();
        let again = [("accept", accept.as_str()), ("if-none-match", etag.as_str())];
        let same = admin.call(Method::GET, "/apis", &again, "").await;
        assert_eq!((same.status.as_u16(), same.body.len()), (304, 0), "{accept}");
        let stale = [("accept", accept.as_str()), ("if-none-match", "\"old\"")];
        admin.call(Method::GET, "/apis", &stale, "").await.expect(200);
    }
    server.stop().await;
}

/// Every reference in a document leads somewhere in it.
fn references(value: &Value, document: &Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(to)) = object.get("$ref") {
                let pointer = to.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{to} leads nowhere");
            }
            object.values().for_each(|inner| references(inner, document));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, document)),
        _ => {}
    }
}

/// Operations of a document: `method url operationId`.
fn operations(document: &Value) -> BTreeSet<String> {
    let mut out = BTreeSet::new();
    for (url, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if method == "parameters" {
                continue;
            }
            let kind = &operation["x-kubernetes-group-version-kind"];
            assert!(kind["kind"].is_string(), "{method} {url}");
            assert!(operation["responses"].get("default").is_some());
            let id = operation["operationId"].as_str().unwrap();
            out.insert(format!("{method} {url} {id}"));
        }
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_openapi_describe_every_kind_and_every_address() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let two = admin.get("/openapi/v2").await.expect(200);
    assert_eq!(two["swagger"], "2.0");
    references(&two, &two);
    let in_two = operations(&two);
    let ids: BTreeSet<&str> = in_two
        .iter()
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    assert_eq!(ids.len(), in_two.len(), "operation ids are unique");
    let mut in_three = BTreeSet::new();
    let mut schemas = BTreeSet::new();
    let root = admin.get("/openapi/v3").await.expect(200);
    for entry in root["paths"].as_object().unwrap().values() {
        let url = entry["serverRelativeURL"].as_str().unwrap();
        let reply = admin.get(url).await;
        assert_eq!(reply.header("cache-control"), "public, immutable");
        let document = reply.expect(200);
        references(&document, &document);
        in_three.extend(operations(&document));
        let etag = reply.header("etag").to_owned();
        let same = admin
            .call(Method::GET, url, &[("if-none-match", etag.as_str())], "")
            .await;
        assert_eq!((same.status.as_u16(), same.body.len()), (304, 0));
        // An address from an older server leads to what there is now.
        let (path, _) = url.split_once('?').unwrap();
        let moved = admin.get(&format!("{path}?hash=OLD")).await;
        assert_eq!((moved.status.as_u16(), moved.header("location")), (301, url));
        admin.get(path).await.expect(200);
        for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
            for kind in kinds.into_iter().flatten() {
                schemas.insert(format!("{name} {}", kind["kind"].as_str().unwrap()));
            }
        }
    }
    assert_eq!(in_two, in_three);
    for kind in scheme::served() {
        let name = format!("{} {}", kind.definition_name, kind.kind);
        assert!(schemas.contains(&name), "{name}");
        let schema = &two["definitions"][kind.definition_name];
        assert!(
            schema["properties"]["metadata"]["description"].is_string(),
            "{name}"
        );
        assert!(schema["description"].is_string(), "{name}");
    }
    let agents = &two["definitions"]["dev.panda.v1alpha1.Task"]["properties"]["spec"]["properties"]["agents"];
    assert_eq!(agents["x-kubernetes-list-type"], "map");
    assert_eq!(agents["x-kubernetes-list-map-keys"], json!(["name", "model"]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_comes_in_the_form_that_is_asked_for() {
    let server = Harness::start().await;
    let admin = &server.admin;
    let reply = admin.get_as("/openapi/v2", PROTOBUF).await;
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("content-type"),
        "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
    );
    // Field 1, of bytes, is the version.
    assert_eq!(&reply.body[..5], b"\x0a\x032.0");
    let etag = reply.header("etag").to_owned();
    let headers = [("accept", PROTOBUF), ("if-none-match", etag.as_str())];
    let same = admin.call(Method::GET, "/openapi/v2", &headers, "").await;
    assert_eq!(same.status, 304);
    let both = format!("{PROTOBUF},application/json");
    let reply = admin.get_as("/openapi/v2", &both).await;
    assert_eq!(&reply.body[..5], b"\x0a\x032.0");
    for accept in ["application/json", "*/*", "text/html, application/json"] {
        admin.get_as("/openapi/v2", accept).await.expect(200);
        admin.get_as("/openapi/v3", accept).await.expect(200);
    }
    for path in ["/openapi/v2", "/openapi/v3"] {
        admin
            .get_as(path, "text/html")
            .await
            .refused(406, "NotAcceptable");
        admin
            .post(path, &json!({}))
            .await
            .refused(405, "MethodNotAllowed");
    }
    admin
        .get("/openapi/v3/apis/no.such/v1")
        .await
        .refused(404, "NotFound");
    server.stop().await;
}
