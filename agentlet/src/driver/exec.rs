//! Standard output is text; success is the exit code.

use super::turn::{Judge, Turn};
use super::{Driver, DriverConfig, Launch, Output, Tail, TurnEnd, TurnOutcome, stdin_outputs};

/// See the module.
#[derive(Debug)]
pub(super) struct Exec {
    stdin: Option<String>,
    judge: Judge,
    stdout: Tail,
    stderr: Tail,
}

impl Exec {
    pub(super) fn new(config: &DriverConfig, judge: Judge) -> Self {
        Self {
            stdin: config.stdin.clone(),
            judge,
            stdout: Tail::default(),
            stderr: Tail::default(),
        }
    }
}

impl Driver for Exec {
    fn launch(&self) -> Launch {
        Launch {
            stdin: self.stdin.is_some(),
        }
    }

    fn start(&mut self) -> Vec<Output> {
        stdin_outputs(self.stdin.take().as_ref())
    }

    fn stdout(&mut self, bytes: &[u8]) -> Vec<Output> {
        self.stdout.push(bytes);
        Vec::new()
    }

    fn stderr(&mut self, bytes: &[u8]) -> Vec<Output> {
        self.stderr.push(bytes);
        Vec::new()
    }

    fn cancel(&mut self) -> Vec<Output> {
        vec![Output::CloseStdin]
    }

    fn finish(self: Box<Self>, end: &TurnEnd) -> TurnOutcome {
        let turn = Turn {
            text: self.stdout.text(),
            stderr: self.stderr.text(),
            ..Turn::default()
        };
        self.judge.decide(turn, end)
    }
}
