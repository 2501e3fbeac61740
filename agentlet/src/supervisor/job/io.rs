//! Output, events and standard input of a job.

use std::collections::VecDeque;
use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::path::Path;

use bytes::{Buf, Bytes};
use panda_api::logline::{Origin, encode};
use panda_api::meta::{Clock, SystemClock};
use panda_api::{FailureReason, Usage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

use super::veil::Veil;
use crate::driver::{AgentEvent, Driver, Output, Tail, TurnEnd, TurnOutcome, last_words};
use crate::mask::{Mask, MaskStream};
use crate::supervisor::control::Progress;
use crate::supervisor::journal::{Record, Writer};
use crate::supervisor::log::{Caps, LogWriter, Stream};
use crate::supervisor::repeat::Repeats;

/// Shortest time between two usage records.
const USAGE_PACE: Duration = Duration::from_secs(1);

/// Most bytes that wait for an agent to read them.
const MAX_PENDING: usize = 16 << 20;

/// How many refusals are told one by one.
const MAX_REFUSALS: u32 = 10;

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
    /// Bytes in `pending`.
    waiting: usize,
    close_after: bool,
    /// The agent leaves too much of its input unread.
    deaf: bool,
    /// Since when nothing more is expected of the agent.
    over: Option<Instant>,
    repeats: Repeats,
    /// A row of calls that came too often, in words.
    circle: Option<String>,
    refusals: u32,
    driver: Option<Box<dyn Driver>>,
    heard: bool,
    mask: Mask,
    /// Whether the driver gets standard output as it is masked: it is text and nothing more.
    plain_stdout: bool,
    veil: Veil,
    session: String,
    usage: Usage,
    usage_noted: Option<Instant>,
}

struct Source {
    origin: Origin,
    pipe: Option<pipe::Receiver>,
    tail: Tail,
    buffer: Vec<u8>,
    mask: MaskStream,
    /// What was read last, without values of Secrets.
    masked: Vec<u8>,
    /// Whether it is a protocol whose masked events stand in the log in its place.
    spoken: bool,
}

impl Source {
    fn new(origin: Origin, mask: &Mask) -> Self {
        Self {
            origin,
            pipe: None,
            tail: Tail::default(),
            buffer: vec![0; 32 << 10],
            mask: mask.stream(),
            masked: Vec::new(),
            spoken: false,
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
    /// A protocol that is to be masked is not kept as it is: it may hold a value in pieces, one a message.
    fn keep(&mut self, n: usize, log: &mut LogWriter, now: jiff::Timestamp) -> io::Result<()> {
        self.masked.clear();
        if self.spoken {
            if n == 0 {
                self.pipe = None;
            }
            return Ok(());
        }
        if n == 0 {
            self.pipe = None;
            self.mask.finish(&mut self.masked);
        } else {
            self.mask.push(&self.buffer[..n], &mut self.masked);
        }
        let masked = std::mem::take(&mut self.masked);
        let kept = self.write(&masked, log, now);
        self.masked = masked;
        kept
    }

    fn write(&mut self, bytes: &[u8], log: &mut LogWriter, now: jiff::Timestamp) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.tail.push(bytes);
        let mut records = Vec::with_capacity(bytes.len() + 64);
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
    pub(super) fn new(
        dir: &Path,
        caps: Caps,
        repeat: u32,
        journal: Writer,
        progress: watch::Sender<Progress>,
        mask: Mask,
        plain_stdout: bool,
    ) -> Self {
        let mut stdout = Source::new(Origin::Stdout, &mask);
        stdout.spoken = !plain_stdout && !mask.is_empty();
        Self {
            journal,
            clock: SystemClock,
            progress,
            seen: Progress::default(),
            stdout,
            stderr: Source::new(Origin::Stderr, &mask),
            log: LogWriter::new(dir, Stream::Log, caps),
            events: LogWriter::new(dir, Stream::Events, caps.of_events()),
            stdin: None,
            pending: VecDeque::new(),
            waiting: 0,
            close_after: false,
            deaf: false,
            over: None,
            repeats: Repeats::new(repeat),
            circle: None,
            refusals: 0,
            driver: None,
            heard: false,
            veil: Veil::new(mask.clone()),
            mask,
            plain_stdout,
            session: String::new(),
            usage: Usage::default(),
            usage_noted: None,
        }
    }

    pub(super) fn record(&mut self, record: Record) -> io::Result<()> {
        let record = if self.mask.is_empty() {
            record
        } else {
            let mut value = serde_json::to_value(&record)?;
            self.mask.json(&mut value);
            serde_json::from_value(value)?
        };
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
            Some(driver) if self.plain_stdout => driver.stdout(&self.stdout.masked),
            // What is spoken as a protocol may not be held back; its events are masked one by one.
            Some(driver) => driver.stdout(&self.stdout.buffer[..n]),
            None => Vec::new(),
        };
        self.after(kept, outputs);
    }

    fn take_stderr(&mut self, n: usize) {
        let kept = self.stderr.keep(n, &mut self.log, self.clock.now());
        self.heard |= n > 0;
        let outputs = match &mut self.driver {
            Some(driver) => driver.stderr(&self.stderr.masked),
            None => Vec::new(),
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
                let n = n.min(bytes.len());
                bytes.advance(n);
                self.waiting = self.waiting.saturating_sub(n);
                if bytes.is_empty() {
                    self.pending.pop_front();
                }
            }
            // The agent does not read its input (any more).
            _ => self.give_up_input(),
        }
        if self.pending.is_empty() && (self.close_after || n.is_none()) {
            self.stdin = None;
        }
    }

    fn give_up_input(&mut self) {
        self.pending.clear();
        self.waiting = 0;
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
                    // One text of any length, the prompt, always fits.
                    self.deaf |= self.waiting > 0 && self.waiting + bytes.len() > MAX_PENDING;
                    if !self.deaf {
                        self.waiting += bytes.len();
                        self.pending.push_back(bytes);
                    }
                }
                Output::Write(_) => {}
                Output::TurnOver => _ = self.over.get_or_insert_with(Instant::now),
                Output::CloseStdin if self.pending.is_empty() => self.stdin = None,
                Output::CloseStdin => self.close_after = true,
            }
        }
    }

    fn event(&mut self, event: &AgentEvent) {
        if self.veil.is_empty() {
            return self.put(event);
        }
        for event in self.veil.event(event) {
            self.put(&event);
        }
    }

    fn put(&mut self, event: &AgentEvent) {
        let at = panda_api::meta::Time::from(self.clock.now());
        let line = serde_json::json!({"at": at, "event": event});
        if let Err(e) = self.events.append(format!("{line}\n").as_bytes()) {
            self.note_disk(&e);
        }
        if self.stdout.spoken {
            let line = format!("{}\n", line["event"]);
            if let Err(e) = self
                .stdout
                .write(line.as_bytes(), &mut self.log, self.clock.now())
            {
                self.note_disk(&e);
            }
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
            AgentEvent::ToolCall {
                name,
                input: Some(input),
                ..
            } => {
                if let Some(period) = self.repeats.call(name, input) {
                    let input: String = input.chars().take(200).collect();
                    let row = if period > 1 {
                        format!("the same {period} calls in a row, the last of them")
                    } else {
                        "the same call:".into()
                    };
                    self.circle.get_or_insert(format!("{row} {name} {input}"));
                }
            }
            AgentEvent::Permission { what, allowed: false } => {
                self.refusals += 1;
                if self.refusals <= MAX_REFUSALS {
                    self.note(Record::Event {
                        reason: "PermissionRefused".into(),
                        message: format!("the level of permission does not allow it: {what}"),
                    });
                }
            }
            AgentEvent::Text { .. }
            | AgentEvent::ToolCall { .. }
            | AgentEvent::Permission { .. }
            | AgentEvent::Session { .. }
            | AgentEvent::Error { .. }
            | AgentEvent::End { .. }
            | AgentEvent::Other { .. }
            | AgentEvent::Raw { .. } => {}
        }
    }

    /// Says that the turn is to end; whether the agent was told and answers.
    pub(super) fn cancel(&mut self) -> bool {
        let outputs = self.driver.as_mut().map_or_else(Vec::new, |d| d.cancel());
        let told = outputs.iter().any(|output| matches!(output, Output::Write(_)));
        self.apply(outputs);
        told && self.stdin.is_some()
    }

    /// For how long nothing more has been expected of the agent.
    pub(super) fn over(&self) -> Option<Duration> {
        self.over.map(|since| since.elapsed())
    }

    /// What is wrong with how the agent behaves, if anything is.
    pub(super) fn trouble(&self) -> Option<(FailureReason, String)> {
        if let Some(circle) = &self.circle {
            return Some((FailureReason::LoopDetected, circle.clone()));
        }
        let why = "the agent does not read what it is told";
        self.deaf.then(|| (FailureReason::ProtocolError, why.to_owned()))
    }

    /// Reads both outputs to their ends.
    pub(super) async fn drain(&mut self) {
        self.stdin = None;
        self.give_up_input();
        while self.stdout.pipe.is_some() || self.stderr.pipe.is_some() {
            self.step().await;
        }
    }

    pub(super) fn close(&mut self) {
        // What was held back belongs to the log, also of a pipe that is given up.
        if self.stdout.pipe.is_some() {
            self.take_stdout(0);
        }
        if self.stderr.pipe.is_some() {
            self.take_stderr(0);
        }
        self.stdin = None;
        self.give_up_input();
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
        for event in self.veil.finish() {
            self.put(&event);
        }
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
