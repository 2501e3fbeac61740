//! Tasks that say what they did: their agents beat, and use a known number of tokens.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::dice::Dice;

/// Tokens that an agent says it read, once it has done its work.
pub const INPUT_TOKENS: i64 = 100;
/// How often an attempt that failed by itself is tried again.
pub const RETRIES: usize = 1;
/// Tokens that it says it wrote.
pub const OUTPUT_TOKENS: i64 = 10;

/// One task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Its name, and its prompt.
    pub name: String,
    /// How long its agent works.
    pub time: Duration,
    /// Whether the agent fails at the end.
    pub fails: bool,
    /// After what time it is cancelled.
    pub cancel_after: Option<Duration>,
    /// `Stop`, `Continue` or `Pause`.
    pub policy: &'static str,
    /// How long a run may go on without its server.
    pub after: Duration,
    /// `KeepFirst`, `KeepOld` or `KeepNew`.
    pub on_return: &'static str,
    /// The only device that it may run on.
    pub device: Option<usize>,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "task {}: {:?}, {} {:?} {}",
            self.name, self.time, self.policy, self.after, self.on_return
        )?;
        if self.fails {
            f.write_str(", fails")?;
        }
        if let Some(n) = self.device {
            write!(f, ", on device {n}")?;
        }
        if let Some(after) = self.cancel_after {
            write!(f, ", cancelled after {after:?}")?;
        }
        Ok(())
    }
}

impl Work {
    /// A task that works for so long, succeeds, and stops with its grant.
    #[must_use]
    pub fn new(name: impl Into<String>, time: Duration) -> Self {
        Self {
            name: name.into(),
            time,
            fails: false,
            cancel_after: None,
            policy: "Stop",
            after: Duration::ZERO,
            on_return: "KeepFirst",
            device: None,
        }
    }

    pub(super) fn random(dice: &mut Dice, n: usize) -> Self {
        let ms = Duration::from_millis;
        let mut work = Self::new(
            format!("t{n}"),
            *dice.pick(&[ms(200), ms(1500), ms(4000), ms(7000)]),
        );
        work.fails = dice.below(5) == 0;
        work.policy = *dice.pick(&["Stop", "Continue", "Pause"]);
        if work.policy != "Stop" {
            work.after = Duration::from_secs(1 + dice.below(5));
        }
        work.on_return = *dice.pick(&["KeepFirst", "KeepOld", "KeepNew"]);
        if dice.below(6) == 0 {
            work.cancel_after = Some(dice.between(ms(500), ms(4000)));
        }
        if dice.below(4) == 0 {
            work.device = usize::try_from(dice.below(2)).ok();
        }
        work
    }

    fn agent_name(&self) -> String {
        format!(
            "works-{}ms{}",
            self.time.as_millis(),
            if self.fails { "-and-fails" } else { "" }
        )
    }

    /// The Agent that does such work. Its beats go to the file that the task's environment names.
    #[must_use]
    pub fn agent(&self) -> Value {
        let time = format!("{}ms", self.time.as_millis());
        let result =
            json!({"type": "result", "stop": "end", "in": INPUT_TOKENS, "out": OUTPUT_TOKENS}).to_string();
        let mut command = vec![
            "sh",
            "-c",
            r#"exec fakeagent --beat "$BEATS" "$@""#,
            "fakeagent",
            "--say",
            r#"{"type":"text","text":"at work"}"#,
            "--sleep",
            &time,
            "--write",
            "out.txt",
            "done",
            "--say",
            &result,
        ];
        command.extend(if self.fails {
            ["--fail", "1"].as_slice()
        } else {
            &["--succeed"]
        });
        json!({
            "apiVersion": "panda.dev/v1alpha1", "kind": "Agent", "metadata": {"name": self.agent_name()},
            "spec": {
                "capabilities": ["shell"],
                "drivers": [{
                    "kind": "Jsonl", "command": command,
                    "events": {
                        "text": [{"event": "text", "path": "text"}],
                        "end": [{"event": "result", "path": "stop"}],
                    },
                }],
                "usage": {"event": "result", "input": "in", "output": "out"},
                "stop": {"signal": "TERM", "to": "Group", "grace": "1s"},
            },
        })
    }

    /// The Task. `beats` is the folder of the file for its agents' beats.
    #[must_use]
    pub fn task(&self, beats: &Path) -> Value {
        let mut on_disconnect = json!({"policy": self.policy, "onReturn": self.on_return});
        if self.policy != "Stop" {
            on_disconnect["after"] = json!(format!("{}s", self.after.as_secs()));
        }
        let mut device = json!({"onDisconnect": on_disconnect});
        if let Some(n) = self.device {
            device["selector"] = json!({"matchLabels": {"device": format!("device-{n}")}});
        }
        json!({
            "apiVersion": "panda.dev/v1alpha1", "kind": "Task", "metadata": {"name": self.name},
            "spec": {
                "prompt": self.name,
                "agents": [{"name": self.agent_name()}],
                "device": device,
                "env": [{"name": "BEATS", "value": beats.join(&self.name)}],
                "outputs": [{"name": "out", "path": "out.txt"}],
                "workspace": {"retain": "Never"},
                "retry": {"limit": RETRIES, "backoff": {"base": "200ms", "factor": 1, "cap": "200ms", "jitter": "None"}},
            },
        })
    }
}
