//! Whoever lists and then watches ends with the state of the server.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

use crate::harness::{CONFIG_MAPS, Harness};

#[derive(Clone, Debug)]
enum Step {
    Write { name: usize, value: u8, label: bool },
    Delete { name: usize },
}

fn steps() -> impl Strategy<Value = (Vec<Step>, usize)> {
    let step = prop_oneof![
        3 => (0..4_usize, any::<u8>(), any::<bool>())
            .prop_map(|(name, value, label)| Step::Write { name, value, label }),
        1 => (0..4_usize).prop_map(|name| Step::Delete { name }),
    ];
    prop::collection::vec(step, 1..24).prop_flat_map(|steps| {
        let length = steps.len();
        (Just(steps), 0..length)
    })
}

type State = BTreeMap<String, Value>;

fn state(list: &Value) -> State {
    let items = list["items"].as_array().unwrap().iter();
    items
        .map(|item| {
            (
                item["metadata"]["name"].as_str().unwrap().to_owned(),
                item.clone(),
            )
        })
        .collect()
}

async fn run(steps: &[Step], split: usize, query: &str) {
    let server = Harness::start().await;
    let admin = &server.admin;
    let path = format!("{CONFIG_MAPS}?{query}");
    let mut watcher = None;
    for (index, step) in steps.iter().enumerate() {
        if index == split {
            let list = admin.get(&path).await.expect(200);
            let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
            let from = format!("{path}&watch=1&allowWatchBookmarks=true&resourceVersion={version}");
            watcher = Some((state(&list), admin.watch(&from).await));
        }
        match step {
            Step::Write { name, value, label } => {
                let label = if *label { json!("yes") } else { json!("no") };
                let map = json!({"metadata": {"name": format!("m{name}"), "labels": {"in": label}}, "data": {"v": value.to_string()}});
                if admin.merge(&format!("{CONFIG_MAPS}/m{name}"), &map).await.status == 404 {
                    admin.post(CONFIG_MAPS, &map).await.expect(201);
                }
            }
            Step::Delete { name } => {
                admin.delete(&format!("{CONFIG_MAPS}/m{name}")).await;
            }
        }
    }
    // Something that every selection sees marks the end.
    let last = json!({"metadata": {"name": "zz-last", "labels": {"in": "yes"}}});
    admin.post(CONFIG_MAPS, &last).await.expect(201);
    let (mut seen, mut watch) = watcher.expect("the split lies inside the steps");
    let mut newest = 0;
    loop {
        let event = watch.next().await.expect("an event");
        let object = event["object"].clone();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let version: u64 = object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!(version > newest, "out of order");
        newest = version;
        match event["type"].as_str().unwrap() {
            "ADDED" => assert!(seen.insert(name.clone(), object).is_none(), "{name} was there"),
            "MODIFIED" => assert!(
                seen.insert(name.clone(), object).is_some(),
                "{name} was not there"
            ),
            "DELETED" => assert!(seen.remove(&name).is_some(), "{name} was not there"),
            other => panic!("{other}"),
        }
        if name == "zz-last" {
            break;
        }
    }
    assert_eq!(seen, state(&admin.get(&path).await.expect(200)));
    server.stop().await;
}

#[test]
fn list_and_watch_give_the_state_of_the_server() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let mut runner = TestRunner::new(Config {
        cases: 12,
        ..Config::default()
    });
    runner
        .run(&steps(), |(steps, split)| {
            for query in ["limit=0", "labelSelector=in%3Dyes"] {
                runtime.block_on(run(&steps, split, query));
            }
            Ok(())
        })
        .unwrap();
}
