//! `pandactl doctor`: whether what Panda needs is there, and what to do where it is not.

use std::time::Duration;

use jiff::Timestamp;
use jiff::fmt::rfc2822;
use panda_api::{Device, DeviceAgent};
use panda_client::params::ListParams;
use panda_client::{Api, Client, Identity};
use serde_json::{Value, json};

use crate::cli::Exit;
use crate::error::{Error, Result};
use crate::output::text::{self, Style};
use crate::session::Session;

/// Difference of clocks that is not worth a word: it is measured over the network.
const SKEW: Duration = Duration::from_secs(5);

/// A certificate that ends within this is worth a word.
const WEEK: jiff::SignedDuration = jiff::SignedDuration::from_hours(7 * 24);

/// Arguments of `doctor`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl doctor
  pandactl doctor -o json

Exit codes: 0 when nothing failed (warnings may stand), 1 otherwise.")]
pub struct DoctorArgs {
    /// json or yaml
    #[arg(short, long, value_name = "FORMAT", value_parser = ["json", "yaml"], hide_possible_values = true)]
    pub output: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq)]
struct Finding {
    check: String,
    verdict: Verdict,
    message: String,
    remedy: String,
}

fn ok(check: &str, message: impl Into<String>) -> Finding {
    found(check, Verdict::Ok, message, "")
}

fn found(check: &str, verdict: Verdict, message: impl Into<String>, remedy: &str) -> Finding {
    Finding {
        check: check.to_owned(),
        verdict,
        message: message.into(),
        remedy: remedy.to_owned(),
    }
}

fn failed(check: &str, error: &Error) -> Finding {
    found(
        check,
        Verdict::Fail,
        error.message.clone(),
        &error.hints.join("; "),
    )
}

pub(crate) async fn run(args: DoctorArgs, session: &mut Session<'_>) -> Result<Exit> {
    let mut findings = vec![git(session).await];
    match session.client() {
        Err(error) => findings.push(failed("configuration", &error)),
        Ok(client) => {
            findings.push(ok("configuration", session.config_path()?.display().to_string()));
            let now = session.io.clock.now();
            findings.extend(certificate(&session.identity()?, now));
            server(&client, session.io.clock.now(), &mut findings).await;
        }
    }
    let worst = findings.iter().any(|finding| finding.verdict == Verdict::Fail);
    let color = session.color_out();
    let text = match args.output.as_deref() {
        None => findings.iter().map(|finding| line(finding, color)).collect(),
        Some(format) => {
            let list: Vec<Value> = findings.iter().map(value).collect();
            let list = json!({"checks": list});
            if format == "yaml" {
                panda_api::manifest::to_yaml(&list)
            } else {
                format!("{list:#}\n")
            }
        }
    };
    session.out(text)?;
    Ok(u8::from(worst))
}

fn line(finding: &Finding, color: bool) -> String {
    let style = match finding.verdict {
        Verdict::Ok => Style::Green,
        Verdict::Warn => Style::Yellow,
        Verdict::Fail => Style::Red,
    };
    let word = text::paint(finding.verdict.word(), style, color);
    let pad = " ".repeat(4 - finding.verdict.word().len());
    let mut line = format!(
        "{word}{pad}  {}: {}\n",
        finding.check,
        text::line(&finding.message)
    );
    if !finding.remedy.is_empty() {
        line.push_str(&format!("      {}\n", text::line(&finding.remedy)));
    }
    line
}

fn value(finding: &Finding) -> Value {
    json!({
        "check": finding.check,
        "verdict": finding.verdict.word(),
        "message": finding.message,
        "remedy": finding.remedy,
    })
}

async fn git(session: &Session<'_>) -> Finding {
    let remedy = "install git 2.30 or newer: repositories and results need it";
    match crate::git::call(&session.io.env.cwd, &["version"], None).await {
        Ok(output) if output.ok => ok("git", String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        Ok(output) => found("git", Verdict::Fail, output.stderr, remedy),
        Err(error) => found("git", Verdict::Fail, error.message, remedy),
    }
}

async fn server(client: &Client, now: Timestamp, findings: &mut Vec<Finding>) {
    let answer = async {
        let request = panda_client::client::request(http::Method::GET, "/version", None)?;
        client.request(request).await
    };
    let answer = match answer.await {
        Ok(answer) => answer,
        Err(error) => return findings.push(failed("server", &error.into())),
    };
    let version: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let version = version["gitVersion"].as_str().unwrap_or("of an unknown version");
    findings.push(ok("server", format!("answers, {version}")));
    let date = answer.headers().get(http::header::DATE);
    if let Some(date) = date.and_then(|date| date.to_str().ok()) {
        findings.extend(clock(date, now));
    }
    let devices: Api<Device> = Api::cluster(client.clone());
    match devices.list_all(&ListParams::default()).await {
        Err(error) => findings.push(failed("devices", &error.into())),
        Ok(list) if list.items.is_empty() => findings.push(found(
            "devices",
            Verdict::Fail,
            "none has joined",
            "`pandactl up` runs one in this process",
        )),
        Ok(list) => list.items.iter().for_each(|one| device(one, findings)),
    }
}

/// Until when the client certificate of the configuration is good.
fn certificate(identity: &Identity, now: Timestamp) -> Option<Finding> {
    let Identity::ClientCert { cert, .. } = identity else {
        return None;
    };
    let remedy = "`pandactl up` writes the configuration anew, or ask whoever runs the server";
    let end = x509_parser::pem::parse_x509_pem(cert)
        .ok()
        .and_then(|(_, pem)| Some(pem.parse_x509().ok()?.validity().not_after.timestamp()))
        .and_then(|end| Timestamp::from_second(end).ok());
    let Some(end) = end else {
        return Some(found("certificate", Verdict::Fail, "it cannot be read", remedy));
    };
    let left = end.duration_since(now);
    Some(if left.is_negative() {
        found("certificate", Verdict::Fail, format!("it ended at {end}"), remedy)
    } else if left < WEEK {
        found("certificate", Verdict::Warn, format!("it ends at {end}"), remedy)
    } else {
        ok("certificate", format!("good until {end}"))
    })
}

fn clock(date: &str, now: Timestamp) -> Option<Finding> {
    let theirs = rfc2822::DateTimeParser::new().parse_timestamp(date).ok()?;
    let apart = now.duration_since(theirs).unsigned_abs();
    Some(if apart <= SKEW {
        ok("clock", "agrees with the server's")
    } else {
        let message = format!("differs from the server's by {}s", apart.as_secs());
        let remedy = "set the clock, or turn time synchronisation on: certificates depend on it";
        found("clock", Verdict::Warn, message, remedy)
    })
}

fn device(device: &Device, findings: &mut Vec<Finding>) {
    let check = format!("device {}", text::line(&device.metadata.name));
    let status = &device.status;
    let condition = |type_: &str| status.conditions.iter().find(|c| c.type_ == type_);
    let is = |type_: &str| condition(type_).is_some_and(|c| c.status == "True");
    if is("Ready") {
        findings.push(ok(&check, "is Ready"));
    } else {
        let message = condition("Ready").map_or("has not reported yet", |c| c.message.as_str());
        let remedy = "start its agentlet, and see whether it reaches the server";
        findings.push(found(&check, Verdict::Fail, message, remedy));
    }
    if device.spec.unschedulable == Some(true) {
        let remedy = format!("`pandactl uncordon {}` lets it take work", device.metadata.name);
        findings.push(found(&check, Verdict::Warn, "is cordoned", &remedy));
    }
    for (type_, message, remedy) in [
        ("DiskPressure", "its disk is nearly full", "free space on it"),
        (
            "MemoryPressure",
            "its memory is nearly full",
            "end something on it",
        ),
        (
            "ClockSkew",
            "its clock is wrong",
            "turn time synchronisation on there",
        ),
        (
            "CertificateExpiring",
            "its certificate ends soon",
            "see why it does not renew: the agentlet's log tells",
        ),
    ] {
        if is(type_) {
            findings.push(found(&check, Verdict::Warn, message, remedy));
        }
    }
    if let Some(sandbox) = status.sandbox.as_ref().filter(|s| !s.floor.is_empty()) {
        findings.push(if sandbox.floor == "None" {
            let why: Vec<&str> = sandbox.layers.iter().map(|layer| layer.reason.as_str()).collect();
            let remedy =
                "without the floor nothing runs there; `pandactl describe device` says which layer lacks";
            found(
                &check,
                Verdict::Fail,
                format!("the floor does not hold {}", why.join("; ")),
                remedy,
            )
        } else {
            ok(&check, format!("the floor holds ({})", sandbox.floor))
        });
    }
    agents(&check, &status.agents, findings);
}

fn agents(check: &str, agents: &[DeviceAgent], findings: &mut Vec<Finding>) {
    let usable: Vec<&str> = agents
        .iter()
        .filter(|agent| agent.driver.is_some() && agent.logged_in != Some(false))
        .map(|agent| agent.name.as_str())
        .collect();
    if usable.is_empty() {
        let remedy = "install an agent's program there and log it in; `pandactl get agents` lists them";
        findings.push(found(check, Verdict::Warn, "no agent can run there", remedy));
    } else {
        findings.push(ok(check, format!("agents that can run: {}", usable.join(", "))));
    }
    for agent in agents.iter().filter(|agent| agent.logged_in == Some(false)) {
        let message = format!("agent {} is not logged in", agent.name);
        findings.push(found(
            check,
            Verdict::Warn,
            message,
            "log it in there, as the device's owner",
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared() {
        let now: Timestamp = "2026-03-01T12:00:00Z".parse().unwrap();
        let verdict = |date| clock(date, now).map(|finding| finding.verdict);
        assert_eq!(verdict("Sun, 01 Mar 2026 12:00:03 GMT"), Some(Verdict::Ok));
        assert_eq!(verdict("Sun, 01 Mar 2026 11:00:00 GMT"), Some(Verdict::Warn));
        assert_eq!(verdict("soon"), None);
    }

    #[test]
    fn a_device_tells_what_it_lacks() {
        let mut findings = Vec::new();
        device(&Device::default(), &mut findings);
        let verdicts: Vec<Verdict> = findings.iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Fail, Verdict::Warn]);
        assert!(findings.iter().all(|finding| !finding.remedy.is_empty()));
    }
}
