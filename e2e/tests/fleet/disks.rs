//! Disks that are full: the server's (B31), and a device's when its certificate is renewed.

use std::time::Duration;

use anyhow::{Context, ensure};
use panda_agentlet::credentials::Credentials;
use panda_api::meta::ObjectMeta;
use panda_api::{ConfigMap, RunPhase};
use panda_client::params::{ListParams, WriteParams};
use panda_client::{Api, Error};
use panda_e2e::faults::{Fault, Part};
use panda_e2e::fleet::machine::is_root;
use panda_e2e::fleet::{Fleet, Plan};
use panda_e2e::schedule::Work;
use panda_e2e::schedule::play::judge;
use serde_json::json;

use crate::support::{PATIENCE, begin, runs, until};

const UNTIL_MENDED: Duration = Duration::MAX;

fn map(name: &str, bytes: usize) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta::namespaced("default", name),
        data: [("k".to_owned(), "x".repeat(bytes))].into(),
        ..ConfigMap::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_disk_fills_refuses_what_is_new_and_goes_on() -> anyhow::Result<()> {
    if !is_root("a full disk") {
        return Ok(());
    }
    let plan = Plan {
        devices: 1,
        disks: vec![Part::Apiserver],
        disk_mib: 128,
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await?;
    let server = fleet.part(Part::Apiserver).pid();
    let maps = Api::<ConfigMap>::namespaced(fleet.client()?, "default");
    let works = [Work {
        policy: "Continue",
        after: Duration::from_secs(300),
        ..Work::new("at-work", Duration::from_secs(6))
    }];
    let recorder = begin(&fleet, &works)?;
    until(&fleet, "at-work", 1, RunPhase::Running).await?;

    // Steady writes until nothing new is taken, which is before the disk is full. Most of it is taken by others.
    std::fs::write(fleet.dir().join("server/others"), vec![0_u8; 100 << 20])?;
    let params = WriteParams::default();
    let (mut written, mut largest) = (0_u64, 0);
    let wal = fleet.dir().join("server/data/store/store.db-wal");
    let refused = loop {
        match maps.create(&map(&format!("m{written}"), 200_000), &params).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        largest = std::fs::metadata(&wal)?.len().max(largest);
        ensure!(written < 140, "28 MiB take 28 MB");
        // The disk is looked at once a second, and a tenth of it is held back.
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let Error::Api(status) = &refused else {
        anyhow::bail!("{refused}")
    };
    ensure!(
        status.code == 503 && status.message.starts_with("DiskPressure"),
        "{status:?}"
    );
    ensure!(largest < 16 << 20, "the WAL grew to {largest} bytes");
    // Everything else goes on: reads, changes, what runs, its end.
    let kept = maps.list_all(&ListParams::default()).await;
    let kept = kept.context("a list under DiskPressure")?.items.len() as u64;
    ensure!(kept == written, "{written} were acknowledged, {kept} are there");
    let change = json!({"data": {"k": "y"}});
    let changed = maps.patch_merge("m0", &change, &params).await;
    changed.with_context(|| format!("a change under DiskPressure\n{}", fleet.logs()))?;
    until(&fleet, "at-work", 1, RunPhase::Succeeded).await?;

    // The last byte: a write is an error now, of the store or of the audit log, and never half there.
    let full = Fault::Fill(Part::Apiserver, UNTIL_MENDED);
    fleet.inject(&full)?;
    let mut acknowledged = Vec::new();
    let fails = loop {
        let n = acknowledged.len();
        let change = json!({"data": {"k": format!("{n}{}", "z".repeat(200_000))}});
        match maps.patch_merge("m1", &change, &params).await {
            Ok(map) => acknowledged.push(map.metadata.resource_version),
            Err(error) => break error,
        }
        ensure!(n < 100, "a full disk takes everything");
    };
    ensure!(fails.to_string().contains("no space"), "{fails}");
    let now = maps.get("m1").await.context("a read on a full disk")?;
    let now = now.metadata.resource_version;
    ensure!(
        acknowledged.last().is_none_or(|last| *last == now),
        "{acknowledged:?}, {now}"
    );

    // Room again, without a restart.
    fleet.mend(&full)?;
    std::fs::remove_file(fleet.dir().join("server/others"))?;
    let taken = || async { maps.create(&map("again", 10), &params).await.ok() };
    fleet.eventually("new objects are taken", PATIENCE, taken).await?;
    ensure!(
        fleet.part(Part::Apiserver).pid() == server,
        "the server was started again"
    );
    judge(&fleet, &recorder, &works).await?;
    ensure!(runs(&fleet, "at-work").await?.len() == 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_renewed_on_a_full_disk_is_used_and_kept_later() -> anyhow::Result<()> {
    if !is_root("a full disk") {
        return Ok(());
    }
    let device = Part::Agentlet(0);
    let mut plan = Plan {
        devices: 1,
        disks: vec![device],
        ..Plan::default()
    };
    plan.server
        .insert("certificates".into(), json!({"deviceLife": "12s"}));
    let mut fleet = Fleet::start(plan).await?;
    let full = Fault::Fill(device, UNTIL_MENDED);
    fleet.inject(&full)?;
    let on_disk = |fleet: &Fleet| {
        let kept = Credentials::load(fleet.devices()[0].data())?;
        anyhow::Ok(kept.context("an identity")?.not_after)
    };
    let before = on_disk(&fleet)?;
    let log = |what: &'static str| {
        let fleet = &fleet;
        move || async move { fleet.part(device).log().contains(what).then_some(()) }
    };
    let renewed = log("certificate renewed");
    fleet.eventually("it is renewed", PATIENCE, renewed).await?;
    let unkept = log("the new certificate cannot be kept");
    fleet.eventually("it is not kept", PATIENCE, unkept).await?;
    ensure!(on_disk(&fleet)? == before, "the old one is whole");
    fleet.mend(&full)?;
    let kept = || async { (on_disk(&fleet).ok()? > before).then_some(()) };
    fleet
        .eventually("it is kept once there is room", PATIENCE, kept)
        .await?;
    fleet.inject(&Fault::Kill(device))?;
    fleet.until_ready(0).await?;
    let works = [Work::new("after", Duration::from_millis(200))];
    let recorder = begin(&fleet, &works)?;
    judge(&fleet, &recorder, &works).await
}
