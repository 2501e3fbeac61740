//! Several addresses of a control plane.

use std::time::Duration;

use anyhow::ensure;
use panda_api::RunPhase;
use panda_e2e::link::Link;

use crate::support::{Machine, address, another_server, control_plane, make, until, until_done, work};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_completes_tls_and_opens_no_session_is_left_for_the_next() -> anyhow::Result<()> {
    let fleet = control_plane(serde_json::json!({})).await?;
    let machine = Machine::join(&fleet, "device-0", &[address(&fleet)?]).await?;
    machine.daemon.stop(crate::support::PATIENCE).await?;
    // The same authority over an empty store: it knows the certificate, and not the device.
    let (_other, wrong) = another_server(&fleet, Some(&fleet.dir().join("server/data/pki"))).await?;
    machine.configure(&[wrong.clone(), address(&fleet)?])?;
    machine.daemon.start()?;
    make(&fleet, &work(&machine, "done", Duration::from_millis(200)))?;
    until_done(&fleet, "done").await?;
    let said = machine.said("does not take this device");
    ensure!(said == 1, "{said} times\n{}", machine.daemon.tail());
    ensure!(machine.daemon.log().contains(&wrong), "it names the server");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_address_is_used_when_the_first_dies_and_what_runs_goes_on() -> anyhow::Result<()> {
    let fleet = control_plane(serde_json::json!({})).await?;
    let server = address(&fleet)?.trim_start_matches("https://").parse()?;
    let (first, second) = (Link::to(server, 1).await?, Link::to(server, 2).await?);
    let (a, b) = (
        format!("https://{}", first.address()),
        format!("https://{}", second.address()),
    );
    let machine = Machine::join(&fleet, "device-0", &[a, b.clone()]).await?;
    make(&fleet, &work(&machine, "goes-on", Duration::from_secs(5)))?;
    until(&fleet, "goes-on", RunPhase::Running).await?;
    drop(first);
    // A new task is heard of over the other way.
    make(&fleet, &work(&machine, "new", Duration::from_millis(200)))?;
    until_done(&fleet, "new").await?;
    until_done(&fleet, "goes-on").await?;
    ensure!(machine.daemon.log().contains(&b), "{}", machine.daemon.tail());
    Ok(())
}
