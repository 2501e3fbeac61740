//! What upstream's conformance suite pins about the wire, and the matrix of who may do what, over a real server.

mod access;
mod chunking;
mod documents;
mod events;
mod fields;
mod kinds;
mod selecting;
mod tables;
mod timeouts;
mod watching;

use serde_json::{Value, json};

/// A Task that no controller looks at: this server runs none.
fn task(name: &str, team: &str) -> Value {
    json!({
        "apiVersion": "panda.dev/v1alpha1", "kind": "Task",
        "metadata": {"name": name, "labels": {"team": team}}, "spec": {"prompt": "p"},
    })
}

/// The names of a list's items.
fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}
