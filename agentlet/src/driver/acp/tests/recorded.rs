//! Conversations that were recorded with real agents, where they lie beside the repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;
use crate::process::Exit;

/// One line of a recording.
struct Said {
    by_agent: bool,
    message: Value,
}

fn read(file: &Path) -> Vec<Said> {
    let text = std::fs::read_to_string(file).unwrap();
    // What was cut off when it was recorded is no message of the agent.
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .map(|line| Said {
            by_agent: line["dir"] == "<-",
            message: line["msg"].clone(),
        })
        .collect()
}

/// Plays the agent's side until the turn is over. None when the recording ends before.
fn replay(said: &[Said]) -> Option<TurnOutcome> {
    let mut talk = Talk::new(&config(|_| {}));
    let mut methods: BTreeMap<String, String> = BTreeMap::new();
    for Said { by_agent, message } in said {
        let id = message["id"].to_string();
        if !by_agent {
            if let Some(method) = message["method"].as_str() {
                methods.insert(id, method.to_owned());
            }
            continue;
        }
        let mut message = message.clone();
        if message["method"].is_null() {
            // An answer: to the same question under the number that it has here, if it was asked here.
            let asked = talk
                .written
                .iter()
                .rev()
                .find(|written| !written["method"].is_null())?;
            if methods.get(&id).map(String::as_str) != asked["method"].as_str() {
                continue;
            }
            message["id"] = asked["id"].clone();
        }
        let outputs = talk.driver().stdout(format!("{message}\n").as_bytes());
        talk.take(outputs);
        if talk.over {
            let end = TurnEnd {
                exit: Exit {
                    code: Some(0),
                    ..Exit::default()
                },
                ..TurnEnd::default()
            };
            return Some(talk.driver.take()?.finish(&end));
        }
    }
    None
}

#[test]
fn recorded_conversations_are_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/probes/agents/transcripts");
    let Ok(agents) = std::fs::read_dir(&root) else {
        eprintln!("skipped: no recordings beside the repository");
        return;
    };
    let mut files: Vec<PathBuf> = agents
        .filter_map(|agent| std::fs::read_dir(agent.ok()?.path()).ok())
        .flatten()
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            name.starts_with("acp-") && name.ends_with(".jsonl")
        })
        .collect();
    files.sort();
    let mut played = 0;
    for file in files {
        let Some(outcome) = replay(&read(&file)) else {
            continue;
        };
        played += 1;
        let shown = format!("{}: {outcome:#?}", file.display());
        let reason = outcome.failure.as_ref().map(|failure| failure.reason);
        assert_ne!(reason, Some(R::ProtocolError), "{shown}");
        let name = file
            .file_stem()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if matches!(name, "acp-write-nofs" | "acp-multi" | "acp-perm-allow") {
            assert_eq!(reason, None, "{shown}");
            assert!(
                !outcome.summary.is_empty() && !outcome.session.is_empty(),
                "{shown}"
            );
        }
    }
    eprintln!("{played} recordings");
    assert!(played > 0);
}
