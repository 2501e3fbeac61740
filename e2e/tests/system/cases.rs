//! Failures of real users, each with its kind, against a whole `pandactl up`.

#[path = "cases/lists.rs"]
mod lists;
#[path = "cases/manifests.rs"]
mod manifests;

use std::process::Output;

use anyhow::Context;
use bytes::Bytes;
use http::Method;
use panda_client::Error;
use panda_e2e::cluster::Cluster;
use serde_json::Value;

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
