//! Output, events and standard input of a job.

use std::collections::VecDeque;
use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::{Buf, Bytes};
use panda_api::Usage;
use panda_api::logline::{Origin, encode};
use panda_api::meta::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use crate::driver::{AgentEvent, Driver, Output, Tail, TurnEnd, TurnOutcome, last_words};
use crate::supervisor::control::Progress;
use crate::supervisor::journal::{Record, Writer};
use crate::supervisor::log::{Caps, LogWriter, Stream};

/// Shortest time between two usage records.
const USAGE_PACE: Duration = Duration::from_secs(1);

/// Everything that goes in and out of a job. What cannot be written to disk is a gap, never a reason to stop.
pub(super) struct Io {
    journal: Writer,
    clock: SystemClock,
    progress: watch::Sender<Progress>,
    seen: Progress,
    stdout: Source,
    stderr: Source,
    log: LogWriter,
    events: LogWriter,
    stdin: Option<pipe::Sender>,
    pending: VecDeque<Bytes>,
    close_after: bool,
    driver: Option<Box<dyn Driver>>,
    heard: bool,
    session: String,
    usage: Usage,
    usage_noted: Option<Instant>,
}

struct Source {
    origin: Origin,
    pipe: Option<pipe::Receiver>,
    tail: Tail,
    buffer: Vec<u8>,
}

impl Source {
    fn new(origin: Origin) -> Self {
        Self {
            origin,
            pipe: None,
            tail: Tail::default(),
            buffer: vec![0; 32 << 10],
        }
    }

    /// Bytes read; 0 at the end. Waits for ever when there is nothing to read from.
    async fn read(&mut self) -> usize {
        match &mut self.pipe {
            // A broken pipe is an end like any other.
            Some(pipe) => pipe.read(&mut self.buffer).await.unwrap_or(0),
            None => std::future::pending().await,
        }
    }

    /// Keeps what was read; says whether the disk failed for the first time.
    fn keep(&mut self, n: usize, log: &mut LogWriter, now: jiff::Timestamp) -> io::Result<()> {
        if n == 0 {
            self.pipe = None;
            return Ok(());
        }
        let bytes = &self.buffer[..n];
        self.tail.push(bytes);
        let mut records = Vec::with_capacity(n + 64);
        for line in bytes.split_inclusive(|b| *b == b'\n') {
            let whole = line.strip_suffix(b"\n");
            encode(
                &mut records,
                now,
                self.origin,
                whole.is_none(),
                whole.unwrap_or(line),
            );
        }
        log.append(&records)
    }
}

impl Io {
    pub(super) fn new(dir: &Path, caps: Caps, journal: Writer, progress: watch::Sender<Progress>) -> Self {
        Self {
            journal,
            clock: SystemClock,
            progress,
            seen: Progress::default(),
            stdout: Source::new(Origin::Stdout),
            stderr: Source::new(Origin::Stderr),
            log: LogWriter::new(dir, Stream::Log, caps),
            events: LogWriter::new(dir, Stream::Events, caps),
            stdin: None,
            pending: VecDeque::new(),
            close_after: false,
            driver: None,
            heard: false,
            session: String::new(),
            usage: Usage::default(),
            usage_noted: None,
        }
    }

    pub(super) fn record(&mut self, record: Record) -> io::Result<()> {
        self.seen.seq = self.journal.append(&self.clock, record)?;
        self.tell();
        Ok(())
    }

    /// Records what nothing hangs on: on a full disk the run goes on without it.
    pub(super) fn note(&mut self, record: Record) {
        if let Err(e) = self.record(record) {
            tracing::warn!(error = %e, "journal not written");
        }
    }

    fn tell(&mut self) {
        self.seen.log = self.log.end();
        self.seen.events = self.events.end();
        self.progress.send_replace(self.seen);
    }

    pub(super) fn watch(&mut self, stdout: OwnedFd, stderr: OwnedFd) -> io::Result<()> {
        self.stdout.pipe = Some(pipe::Receiver::from_owned_fd(stdout)?);
        self.stderr.pipe = Some(pipe::Receiver::from_owned_fd(stderr)?);
        Ok(())
    }

    pub(super) fn feed(&mut self, stdin: Option<PipeWriter>) -> io::Result<()> {
        self.stdin = stdin
            .map(|pipe| pipe::Sender::from_owned_fd(pipe.into()))
            .transpose()?;
        Ok(())
    }

    pub(super) fn attach(&mut self, driver: Box<dyn Driver>) {
        self.driver = Some(driver);
    }

    /// Moves one piece of output or input. Loses nothing when it is dropped while waiting.
    pub(super) async fn step(&mut self) {
        let writing = async {
            match (&mut self.stdin, self.pending.front_mut()) {
                (Some(pipe), Some(bytes)) => pipe.write(bytes).await.ok(),
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            n = self.stdout.read() => self.take_stdout(n),
            n = self.stderr.read() => self.take_stderr(n),
            n = writing => self.wrote(n),
        }
    }

    fn take_stdout(&mut self, n: usize) {
        let kept = self.stdout.keep(n, &mut self.log, self.clock.now());
        self.heard |= n > 0;
        let outputs = match &mut self.driver {
            Some(driver) if n > 0 => driver.stdout(&self.stdout.buffer[..n]),
            _ => Vec::new(),
        };
        self.after(kept, outputs);
    }

    fn take_stderr(&mut self, n: usize) {
        let kept = self.stderr.keep(n, &mut self.log, self.clock.now());
        self.heard |= n > 0;
        let outputs = match &mut self.driver {
            Some(driver) if n > 0 => driver.stderr(&self.stderr.buffer[..n]),
            _ => Vec::new(),
        };
        self.after(kept, outputs);
    }

    fn after(&mut self, kept: io::Result<()>, outputs: Vec<Output>) {
        if let Err(e) = kept {
            self.note_disk(&e);
        }
        self.apply(outputs);
        self.tell();
    }

    fn note_disk(&mut self, error: &io::Error) {
        let record = Record::Event {
            reason: "LogLost".into(),
            message: format!("output cannot be kept and is passed over: {error}"),
        };
        self.note(record);
    }

    fn wrote(&mut self, n: Option<usize>) {
        match (n, self.pending.front_mut()) {
            (Some(n), Some(bytes)) => {
                bytes.advance(n.min(bytes.len()));
                if bytes.is_empty() {
                    self.pending.pop_front();
                }
            }
            // The agent does not read its input (any more).
            _ => self.pending.clear(),
        }
        if self.pending.is_empty() && (self.close_after || n.is_none()) {
            self.stdin = None;
        }
    }

    /// Whether there was output since the last question.
    pub(super) fn heard(&mut self) -> bool {
        std::mem::take(&mut self.heard)
    }

    pub(super) fn apply(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Event(event) => self.event(&event),
                Output::Write(bytes) if self.stdin.is_some() && !bytes.is_empty() => {
                    self.pending.push_back(bytes)
                }
                Output::Write(_) => {}
                Output::CloseStdin if self.pending.is_empty() => self.stdin = None,
                Output::CloseStdin => self.close_after = true,
            }
        }
    }

    fn event(&mut self, event: &AgentEvent) {
        let at = panda_api::meta::Time::from(self.clock.now());
        let line = serde_json::json!({"at": at, "event": event});
        if let Err(e) = self.events.append(format!("{line}\n").as_bytes()) {
            self.note_disk(&e);
        }
        match event {
            AgentEvent::Session { id } if *id != self.session => {
                self.session.clone_from(id);
                self.note(Record::Session { id: id.clone() });
            }
            AgentEvent::Usage { usage } => {
                self.usage = usage.clone();
                if self.usage_noted.is_none_or(|then| then.elapsed() >= USAGE_PACE) {
                    self.usage_noted = Some(Instant::now());
                    self.note(Record::Usage { usage: usage.clone() });
                }
            }
            AgentEvent::Text { .. }
            | AgentEvent::ToolCall { .. }
            | AgentEvent::Session { .. }
            | AgentEvent::Error { .. }
            | AgentEvent::End { .. }
            | AgentEvent::Other { .. }
            | AgentEvent::Raw { .. } => {}
        }
    }

    pub(super) fn cancel(&mut self) {
        let outputs = self.driver.as_mut().map_or_else(Vec::new, |d| d.cancel());
        self.apply(outputs);
    }

    /// Reads both outputs to their ends.
    pub(super) async fn drain(&mut self) {
        self.stdin = None;
        self.pending.clear();
        while self.stdout.pipe.is_some() || self.stderr.pipe.is_some() {
            self.step().await;
        }
    }

    pub(super) fn close(&mut self) {
        self.stdout.pipe = None;
        self.stderr.pipe = None;
        self.stdin = None;
        self.pending.clear();
        self.close_after = false;
    }

    /// The last output, for a message.
    pub(super) fn last_words(&self) -> String {
        let tail = [&self.stdout.tail, &self.stderr.tail].map(|t| last_words(&t.text(), 300));
        tail.join("\n").trim().to_owned()
    }

    pub(super) fn last_stderr(&self) -> String {
        last_words(&self.stderr.tail.text(), 500)
    }

    /// What the driver makes of it; without one, only what was done by us.
    pub(super) fn finish(&mut self, end: &TurnEnd) -> TurnOutcome {
        let rest = self.driver.as_mut().map_or_else(Vec::new, |d| d.end_of_output());
        self.apply(rest);
        for log in [&self.log, &self.events] {
            if let Err(e) = log.sync() {
                tracing::warn!(error = %e, "log not durable");
            }
        }
        match self.driver.take() {
            Some(driver) => driver.finish(end),
            None => TurnOutcome {
                failure: end.ours.clone(),
                ..TurnOutcome::default()
            },
        }
    }
}
