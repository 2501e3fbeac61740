//! What the device finds and says about itself.

use panda_api::meta::ObjectMeta;
use panda_api::{Agent, AgentSpec, DetectSpec, DeviceStatus, DriverKind, DriverSpec, LoggedIn};

use panda_rpc::v1::AgentsUpsert;
use panda_rpc::v1::server_message::Body;

use crate::harness::*;
use crate::testing::State;

fn agent(name: &str, argv: &[&str], match_: &str) -> Agent {
    Agent {
        metadata: ObjectMeta {
            generation: 1,
            uid: format!("uid-{name}"),
            ..ObjectMeta::namespaced("default", name)
        },
        spec: AgentSpec {
            drivers: vec![
                DriverSpec {
                    kind: DriverKind::Acp,
                    command: vec!["nothing".into()],
                    ..DriverSpec::default()
                },
                DriverSpec {
                    command: vec!["sh".into()],
                    ..DriverSpec::default()
                },
            ],
            detect: Some(DetectSpec {
                argv: argv.iter().map(|a| (*a).to_owned()).collect(),
                match_: match_.into(),
                logged_in: Some(LoggedIn {
                    env: vec!["NO_SUCH_KEY".into()],
                    files: vec!["../../etc/passwd".into()],
                }),
            }),
            ..AgentSpec::default()
        },
        ..Agent::default()
    }
}

fn status(state: &State) -> Option<DeviceStatus> {
    let newest = state.statuses.last()?;
    serde_json::from_slice(&newest.status).ok()
}

#[tokio::test]
async fn agents_are_looked_for_as_their_manifest_says() {
    let device = Device::new().await;
    device.server.until("a status", status).await;
    let mut absent = agent("absent", &[], "");
    absent.spec.drivers[1].command = vec!["no-such-program".into()];
    let script = "test $HOME = $PWD && echo tool 1.2.3 home=here files=$(ls | wc -l)";
    let agents = [
        agent(
            "good",
            &["sh", "-c", script],
            r"tool (\d+\.\d+\.\d+) home=here files=0",
        ),
        agent("other", &["sh", "-c", "echo something else"], r"tool (\d+)"),
        absent,
    ];
    let agents = serde_json::to_vec(&agents).unwrap();
    device.server.state().say(Body::Agents(AgentsUpsert { agents }));
    let all = |s: &State| status(s).map(|s| s.agents).filter(|agents| agents.len() == 3);
    let found = device.server.until("three agents", all).await;
    let of = |name: &str| found.iter().find(|a| a.name == name).cloned().unwrap();
    let good = of("good");
    assert_eq!(
        (good.driver, good.version.as_str()),
        (Some(DriverKind::Exec), "1.2.3"),
        "{good:?}"
    );
    assert_eq!((good.logged_in, good.generation), (Some(false), Some(1)));
    assert!(good.path.ends_with("/sh"));
    for bad in [of("other"), of("absent")] {
        assert_eq!(bad.driver, None::<DriverKind>, "{bad:?}");
        assert!(!bad.reason.is_empty());
    }
}

#[tokio::test]
async fn status_counts_the_runs() {
    let device = Device::new().await;
    let uid = device.give(device.a_run(&["--hang"]));
    let one = |s: &State| status(s).filter(|s| s.running == Some(1)).map(|_| ());
    device.server.until("one run", one).await;
    device.server.change(&uid, |run| run.spec.cancel = Some(true));
    let none = |s: &State| status(s).filter(|s| s.running == Some(0)).map(|_| ());
    device.server.until("no run", none).await;
}
