//! Caches of three libraries' informers while their server is killed, started again and forgets old versions.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use panda_api::{Agent, ConfigMap};
use panda_client::params::{DeleteParams, ListParams, WriteParams};
use panda_client::{ApiResource, DynamicApi};
use panda_e2e::cluster::PATIENCE;
use serde_json::{Value, json};

use crate::libraries::{node, python, rust};
use crate::server::{NAMESPACE, Server};

/// Restarts of a short run; `e2e/long clients` asks for more.
const ROUNDS: usize = 3;
const LABEL: &str = "w=follow";

#[expect(
    clippy::disallowed_methods,
    reason = "a longer run is asked for by a variable"
)]
fn rounds() -> usize {
    let asked = std::env::var("PANDA_ROUNDS").ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(ROUNDS)
}

/// A program that keeps a cache; killed when it is forgotten.
struct Follower {
    what: String,
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Follower {
    /// Starts it, and waits until its cache is filled.
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let what = format!("{command:?}");
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let mut out = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut line = String::new();
        out.read_line(&mut line)?;
        ensure!(line.trim() == "ready", "{what} says {line:?}");
        Ok(Self { what, child, out })
    }

    /// What it holds once it has seen the end.
    async fn cache(mut self) -> anyhow::Result<BTreeSet<String>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "{} ended with {status}", self.what);
                break;
            }
            ensure!(Instant::now() < deadline, "{} never saw the end", self.what);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let mut text = String::new();
        self.out.read_to_string(&mut text)?;
        Ok(text
            .lines()
            .filter_map(|line| line.strip_prefix("cache "))
            .map(str::to_owned)
            .collect())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _: Result<(), _> = self.child.kill();
        let _: Result<_, _> = self.child.wait();
    }
}

/// The objects of one kind that are followed.
struct Objects {
    api: DynamicApi,
    body: Value,
}

impl Objects {
    fn of(server: &Server) -> anyhow::Result<[Self; 2]> {
        let api = |resource| anyhow::Ok(DynamicApi::dynamic(server.client()?, resource, Some(NAMESPACE)));
        let agent = json!({"apiVersion": "panda.dev/v1alpha1", "kind": "Agent",
            "spec": {"displayName": "x", "drivers": [{"kind": "Exec", "command": ["true"]}]}});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}});
        Ok([
            Self {
                api: api(ApiResource::of::<Agent>())?,
                body: agent,
            },
            Self {
                api: api(ApiResource::of::<ConfigMap>())?,
                body: map,
            },
        ])
    }

    async fn create(&self, name: &str) -> anyhow::Result<()> {
        let mut body = self.body.clone();
        body["metadata"] = json!({"name": name, "labels": {"w": "follow"}});
        self.api.create(&body, &WriteParams::default()).await?;
        Ok(())
    }

    async fn change(&self, name: &str, note: usize) -> anyhow::Result<()> {
        let patch = json!({"metadata": {"annotations": {"note": note.to_string()}}});
        self.api
            .patch_merge(name, &patch, &WriteParams::default())
            .await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.api.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// `name version` of all, and the version of the list.
    async fn list(&self) -> anyhow::Result<(BTreeSet<String>, String)> {
        let list = self.api.list_all(&ListParams::labels(LABEL)).await?;
        let line = |object: &Value| {
            let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("name"), text("resourceVersion"))
        };
        Ok((
            list.items.iter().map(line).collect(),
            list.metadata.resource_version,
        ))
    }
}

/// Waits until the server has forgotten a version.
async fn forgotten(server: &Server, version: &str) -> anyhow::Result<()> {
    let client = server.client()?;
    let path = format!(
        "/api/v1/namespaces/{NAMESPACE}/configmaps?limit=1&resourceVersion={version}&resourceVersionMatch=Exact"
    );
    let deadline = Instant::now() + PATIENCE;
    while client.get_json::<Value>(&path).await.is_ok() {
        ensure!(Instant::now() < deadline, "version {version} is never forgotten");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[tokio::test]
async fn caches_of_every_library_equal_the_store_after_kills_and_compactions() -> anyhow::Result<()> {
    let mut server = Server::start("1s").await?;
    let commands = [
        (1, python(&server, "follow.py")),
        (0, node(&server, "follow.mjs")),
        (
            0,
            rust(&server).map(|mut command| {
                command.arg("follow");
                command
            }),
        ),
    ];
    for kind in Objects::of(&server)? {
        for n in 0..4 {
            kind.create(&format!("first-{n}")).await?;
        }
    }
    let mut followers = Vec::new();
    for (kind, command) in commands {
        if let Some(command) = command {
            followers.push((kind, Follower::start(command)?));
        }
    }
    for round in 0..rounds() {
        let (_, before) = Objects::of(&server)?[0].list().await?;
        // In every second round they have lost more than they can be told.
        server.restart().await?;
        for kind in Objects::of(&server)? {
            kind.create(&format!("round-{round}")).await?;
            kind.change("first-0", round).await?;
            if round > 0 {
                kind.delete(&format!("round-{}", round - 1)).await?;
            }
        }
        if round % 2 == 0 {
            forgotten(&server, &before).await?;
        }
    }
    let kinds = Objects::of(&server)?;
    let mut want = Vec::new();
    for kind in &kinds {
        kind.delete("first-3").await?;
        kind.create("stop").await?;
        want.push(kind.list().await?.0);
    }
    for (kind, follower) in followers {
        let what = follower.what.clone();
        let cache = follower.cache().await?;
        ensure!(
            cache == want[kind],
            "{what} holds {cache:#?}, the store {:#?}",
            want[kind]
        );
    }
    Ok(())
}
