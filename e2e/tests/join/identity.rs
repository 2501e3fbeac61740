//! Who a device is, for how long, and to whom.

use std::time::Duration;

use anyhow::{Context, ensure};
use panda_api::RunPhase;
use panda_e2e::faults::Part;
use panda_e2e::processes;
use serde_json::json;

use crate::support::{
    Machine, PATIENCE, address, another_server, control_plane, make, until, until_done, work,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_device_says_so_once_with_the_remedy_and_the_remedy_works() -> anyhow::Result<()> {
    let fleet = control_plane(json!({})).await?;
    let mut machine = Machine::join(&fleet, "device-0", &[address(&fleet)?]).await?;
    let before = machine.device(&fleet).await?.metadata.uid;
    let stops = panda_e2e::schedule::Work {
        device: Some(0),
        ..panda_e2e::schedule::Work::new("long", Duration::from_secs(600))
    };
    make(&fleet, &stops)?;
    until(&fleet, "long", RunPhase::Running).await?;
    fleet.ok(&["device", "remove", "device-0"])?;
    machine.until_said(&fleet, "does not take this device").await?;
    // What ran there ends with its grant, and nothing is started.
    let ended = || async {
        let own = machine.daemon.pid();
        let left = processes::naming(&machine.folder);
        left.iter().all(|process| Some(process.pid) == own).then_some(())
    };
    fleet.eventually("its runs end", PATIENCE, ended).await?;
    // It was refused more than once, and has not said more than one word about it.
    let refused = || async {
        let log = fleet.part(Part::Apiserver).log();
        (log.matches("this device was removed; join it again").count() > 1).then_some(())
    };
    fleet.eventually("it asks again", PATIENCE, refused).await?;
    let said = machine.said("does not take this device");
    ensure!(said == 1, "{said} times\n{}", machine.daemon.tail());
    ensure!(
        machine.daemon.log().contains("pandactl device join-token"),
        "{}",
        machine.daemon.tail()
    );
    ensure!(machine.daemon.ended().is_none(), "it waits for a person");

    machine.daemon.stop(PATIENCE).await?;
    machine.join_again(&fleet)?;
    machine.until_ready(&fleet).await?;
    let after = machine.device(&fleet).await?.metadata.uid;
    ensure!(after != before, "another device of the same name");
    until_done_on(&fleet, &machine).await
}

async fn until_done_on(fleet: &panda_e2e::fleet::Fleet, machine: &Machine) -> anyhow::Result<()> {
    make(fleet, &work(machine, "again", Duration::from_millis(200)))?;
    until_done(fleet, "again").await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_is_renewed_under_a_live_run_and_no_stream_drops() -> anyhow::Result<()> {
    let fleet = control_plane(json!({"certificates": {"deviceLife": "30s"}})).await?;
    let machine = Machine::join(&fleet, "device-0", &[address(&fleet)?]).await?;
    let before = machine.device(&fleet).await?.status;
    let first = before.certificate_expires.context("it has joined")?;
    let connected = || {
        fleet
            .part(Part::Apiserver)
            .log()
            .matches("device connected")
            .count()
    };
    let sessions = connected();
    let over = machine.said("session ended");
    // Longer than the certificate lives that the session was opened with.
    make(&fleet, &work(&machine, "outlives", Duration::from_secs(36)))?;
    let run = until_done(&fleet, "outlives").await?;
    let after = machine.device(&fleet).await?.status;
    let second = after.certificate_expires.context("it has a certificate")?;
    let ended = run.status.completion_time.context("it has ended")?;
    ensure!(ended > first, "the run outlived the first certificate");
    ensure!(
        second > first && machine.said("certificate renewed") > 0,
        "{}",
        machine.daemon.tail()
    );
    ensure!(after.key_fingerprint == before.key_fingerprint, "the key stays");
    ensure!(
        connected() == sessions,
        "the session was opened anew:\n{}",
        fleet.logs()
    );
    ensure!(machine.said("session ended") == over, "{}", machine.daemon.tail());
    let logs = fleet.ok(&["logs", "task/outlives"])?;
    ensure!(logs.contains("at work"), "{logs}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_server_under_the_same_name_gets_nothing_and_the_log_says_what_to_do() -> anyhow::Result<()> {
    let fleet = control_plane(json!({})).await?;
    let machine = Machine::join(&fleet, "device-0", &[address(&fleet)?]).await?;
    machine.daemon.stop(PATIENCE).await?;
    let (other, wrong) = another_server(&fleet, None).await?;
    machine.configure(&[wrong])?;
    machine.daemon.start()?;
    machine
        .until_said(&fleet, "of another authority than the one this device joined")
        .await?;
    ensure!(machine.daemon.ended().is_none(), "it goes on trying");
    ensure!(!other.log().contains("device connected"), "{}", other.tail());
    // It was no word of that server that could have ended anything here.
    machine.daemon.stop(PATIENCE).await?;
    machine.configure(&[address(&fleet)?])?;
    machine.daemon.start()?;
    until_done_on(&fleet, &machine).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_that_the_certificate_does_not_have_is_refused_with_the_remedy() -> anyhow::Result<()> {
    let fleet = control_plane(json!({})).await?;
    let server: std::net::SocketAddr = address(&fleet)?.trim_start_matches("https://").parse()?;
    let machine = Machine::join(&fleet, "device-0", &[address(&fleet)?]).await?;
    machine.daemon.stop(PATIENCE).await?;
    // The same server under an address that nobody told it of.
    let listener = tokio::net::TcpListener::bind(("127.0.0.2", 0)).await?;
    let elsewhere = format!("https://{}", listener.local_addr()?);
    let forwarding = tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut far = tokio::net::TcpStream::connect(server).await?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            });
        }
    });
    machine.configure(&[elsewhere])?;
    machine.daemon.start()?;
    machine.until_said(&fleet, "--tls-name").await?;
    forwarding.abort();
    Ok(())
}
