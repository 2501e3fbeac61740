//! Failures of real users, each with its kind, against a whole `pandactl up`.

#[path = "cases/absent.rs"]
mod absent;
#[path = "cases/api_access.rs"]
mod api_access;
#[path = "cases/conduct.rs"]
mod conduct;
#[path = "cases/folders.rs"]
mod folders;
#[path = "cases/lists.rs"]
mod lists;
#[path = "cases/manifests.rs"]
mod manifests;
#[path = "cases/odd_bytes.rs"]
mod odd_bytes;
#[path = "cases/retries.rs"]
mod retries;
#[path = "cases/secrets.rs"]
mod secrets;
#[path = "cases/stdin.rs"]
mod stdin;
#[path = "cases/watches.rs"]
mod watches;

use std::process::Output;

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use panda_api::{Run, Task};
use panda_client::params::ListParams;
use panda_client::{Api, Error};
use panda_e2e::cluster::Cluster;
use serde_json::{Value, json};

use crate::support::apply;

/// Where tasks live.
const TASKS: &str = "/apis/panda.dev/v1alpha1/namespaces/default/tasks";

/// A request as any HTTP client would send it: the code and the answer's body.
async fn send(
    cluster: &Cluster,
    method: Method,
    path: &str,
    kind: &str,
    body: impl Into<Bytes>,
) -> anyhow::Result<(u16, Value)> {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", kind)
        .body(body.into())?;
    match cluster.client()?.request(request).await {
        Ok(response) => Ok((
            response.status().as_u16(),
            serde_json::from_slice(response.body())?,
        )),
        Err(Error::Api(status)) => Ok((status.code, serde_json::to_value(status)?)),
        Err(error) => Err(error.into()),
    }
}

/// POSTs one task.
async fn post(cluster: &Cluster, kind: &str, body: impl Into<Bytes>) -> anyhow::Result<(u16, Value)> {
    send(cluster, Method::POST, TASKS, kind, body).await
}

/// Names of all tasks.
async fn stored(cluster: &Cluster) -> anyhow::Result<Vec<String>> {
    let list: Value = cluster.client()?.get_json(TASKS).await?;
    let items = list["items"].as_array().context("a list has items")?;
    Ok(items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned))
        .collect())
}

/// `pandactl apply` of these bytes in a file of that name.
fn apply_file(cluster: &Cluster, name: &str, bytes: &[u8], more: &[&str]) -> anyhow::Result<Output> {
    std::fs::write(cluster.dir().join(name), bytes)?;
    cluster.pandactl(&[&["apply", "-f", name], more].concat())
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// An Agent with this command line.
fn agent(name: &str, command: &[&str], more: Value) -> String {
    let mut agent = json!({
        "apiVersion": "panda.dev/v1alpha1",
        "kind": "Agent",
        "metadata": {"name": name},
        "spec": {"capabilities": ["shell"], "drivers": [{"kind": "Exec", "command": command}]},
    });
    merge(&mut agent["spec"], more);
    agent.to_string()
}

/// A Task for an agent of the same name.
fn task(name: &str, more: Value) -> String {
    let mut task = json!({
        "apiVersion": "panda.dev/v1alpha1",
        "kind": "Task",
        "metadata": {"name": name},
        "spec": {"prompt": "Do it.", "agents": [{"name": name}], "retry": {"limit": 0}},
    });
    merge(&mut task["spec"], more);
    task.to_string()
}

fn merge(target: &mut Value, more: Value) {
    if let Value::Object(more) = more {
        for (key, value) in more {
            target[key] = value;
        }
    }
}

/// Applies an Agent and a Task of this name.
fn start(
    cluster: &Cluster,
    name: &str,
    command: &[&str],
    agent_more: Value,
    task_more: Value,
) -> anyhow::Result<()> {
    apply(cluster, "agent.json", &agent(name, command, agent_more))?;
    apply(cluster, "task.json", &task(name, task_more))?;
    Ok(())
}

/// The runs of a task, by attempt.
async fn runs(cluster: &Cluster, task: &Task) -> anyhow::Result<Vec<Run>> {
    let api: Api<Run> = Api::namespaced(cluster.client()?, "default");
    let mut runs = api.list_all(&ListParams::default()).await?.items;
    runs.retain(|run| run.spec.task_ref.uid == task.metadata.uid);
    runs.sort_by_key(|run| run.spec.attempt);
    Ok(runs)
}

/// The task once `wanted` holds of it.
async fn once(cluster: &Cluster, name: &str, wanted: impl Fn(&Task) -> bool) -> anyhow::Result<Task> {
    let api: Api<Task> = Api::namespaced(cluster.client()?, "default");
    cluster
        .eventually(&format!("task {name} is as wanted"), || async {
            let task = api.get(name).await.ok()?;
            wanted(&task).then_some(task)
        })
        .await
}

/// Waits until no process of the cluster but the server is left.
async fn nothing_is_left(cluster: &Cluster) -> anyhow::Result<()> {
    cluster
        .eventually("no process is left", || async {
            cluster.leftovers().is_empty().then_some(())
        })
        .await
        .with_context(|| format!("left behind: {:#?}", cluster.leftovers()))
}
