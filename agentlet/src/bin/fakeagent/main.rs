//! An agent that does what its arguments say, one after the other: every way in which a real one succeeds or fails.
//!
//! Durations are written `250ms`, `5s`. After the last argument it exits with code 0.

mod acp;

use std::fs::{self, OpenOptions};
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const HELP: &str = "\
--prompt TEXT          takes it and does nothing
--say TEXT             a line on standard output
--err TEXT             a line on standard error
--lines N              numbered lines
--succeed, --fail CODE exits
--die SIGNAL           ends by a signal, by number
--hang                 waits for ever
--sleep D              waits
--burn D               uses the processor, silently
--flood BYTES          that much output
--endless-line BYTES   the same without a line break
--bad-bytes            not UTF-8, an emoji in two pieces, NUL, lone CR, a Latin-1 path
--fork N               that many children that wait for ever
--orphan D             a grandchild in its own session that holds the output and lives on
--ignore-term D        ignores TERM, for that long
--write PATH TEXT      writes a file
--edit PATH OLD NEW    replaces text in a file
--read PATH            says what is in a file, or why it cannot be read
--lie                  claims success, changes nothing
--read-stdin-to-eof    reads standard input to its end
--ask QUESTION         asks on the terminal, if standard input is one
--open-tty             opens the terminal itself
--print-env            prints the environment
--status               prints uid, gid, groups, no_new_privs, descriptors
--journal PATH         appends a line at this point and one at the end
--beat PATH            appends a line now and every 50 ms from now on
--acp                  speaks ACP up to the prompt; then, as part of its turn:
  --acp-say TEXT, --acp-call INPUT, --acp-ask INPUT, --acp-wait-for-cancel, --acp-flood N, --acp-end REASON
";

fn main() -> ExitCode {
    let mut agent = Agent {
        args: std::env::args().skip(1).collect::<Vec<_>>().into_iter(),
        journal: None,
        talk: None,
    };
    let code = match agent.run() {
        Ok(code) => code,
        Err(e) => {
            say_err(&format!("fakeagent: {e}"));
            2
        }
    };
    if let Some(path) = agent.journal.take() {
        drop(note(&path, "end"));
    }
    ExitCode::from(code)
}

struct Agent {
    args: std::vec::IntoIter<String>,
    journal: Option<String>,
    talk: Option<acp::Talk>,
}

type Outcome = Result<u8, Box<dyn std::error::Error>>;

impl Agent {
    fn next(&mut self) -> Result<String, String> {
        self.args.next().ok_or_else(|| "an argument is missing".into())
    }

    fn number(&mut self) -> Result<u64, String> {
        let text = self.next()?;
        text.parse().map_err(|_| format!("{text:?} is no number"))
    }

    fn talk(&mut self) -> Result<&mut acp::Talk, String> {
        self.talk.as_mut().ok_or_else(|| "--acp comes first".into())
    }

    fn duration(&mut self) -> Result<Duration, String> {
        let text = self.next()?;
        let parsed = text.parse::<panda_api::meta::Duration>();
        parsed.map(|d| d.get()).map_err(|e| e.to_string())
    }

    fn run(&mut self) -> Outcome {
        while let Some(flag) = self.args.next() {
            match flag.as_str() {
                "--help" => say(HELP)?,
                "--prompt" => drop(self.next()?),
                "--say" => say(&format!("{}\n", self.next()?))?,
                "--err" => say_err(&self.next()?),
                "--lines" => {
                    for n in 1..=self.number()? {
                        say(&format!("line {n}\n"))?;
                    }
                }
                "--succeed" => return Ok(0),
                "--fail" => return Ok(u8::try_from(self.number()?)?),
                "--die" => die(self.number()?)?,
                "--hang" => wait(Duration::MAX),
                "--sleep" => wait(self.duration()?),
                "--burn" => burn(self.duration()?),
                "--flood" => flood(self.number()?, b"all work and no play makes a dull agent\n")?,
                "--endless-line" => flood(self.number()?, b"x")?,
                "--bad-bytes" => bad_bytes()?,
                "--fork" => {
                    for _ in 0..self.number()? {
                        again(&["--hang"])?.spawn()?;
                    }
                }
                "--orphan" => {
                    let how_long = self.next()?;
                    again(&["--daemon", &how_long])?.spawn()?.wait()?;
                }
                // The middle process of --orphan.
                "--daemon" => {
                    rustix::process::setsid()?;
                    let how_long = self.next()?;
                    let child = again(&["--ignore-term", &how_long])?.spawn()?;
                    say(&format!("orphan {}\n", child.id()))?;
                    return Ok(0);
                }
                "--ignore-term" => {
                    let how_long = self.duration()?;
                    ignore_term(how_long)?;
                }
                "--write" => {
                    let (path, text) = (self.next()?, self.next()?);
                    report("wrote", &path, fs::write(&path, text))?;
                }
                "--edit" => {
                    let (path, old, new) = (self.next()?, self.next()?, self.next()?);
                    let text = fs::read_to_string(&path)?;
                    if !text.contains(&old) {
                        return Err(format!("{path} has no {old:?}").into());
                    }
                    fs::write(&path, text.replace(&old, &new))?;
                    say(&format!("edited {path}\n"))?;
                }
                "--read" => {
                    let path = self.next()?;
                    match fs::read_to_string(&path) {
                        Ok(text) => say(&format!("read {path}: {text}\n"))?,
                        Err(e) => say(&format!("cannot read {path}: {e}\n"))?,
                    }
                }
                "--lie" => {
                    say("All done. I changed the code and every test passes.\n")?;
                    return Ok(0);
                }
                "--read-stdin-to-eof" => {
                    let mut text = String::new();
                    io::stdin().read_to_string(&mut text)?;
                    say(&format!("stdin {} bytes: {text}\n", text.len()))?;
                }
                "--ask" => {
                    let question = self.next()?;
                    if io::stdin().is_terminal() {
                        say(&question)?;
                        io::stdin().read_line(&mut String::new())?;
                    } else {
                        wait(Duration::MAX);
                    }
                }
                "--open-tty" => report(
                    "opened",
                    "/dev/tty",
                    OpenOptions::new().read(true).open("/dev/tty"),
                )?,
                "--print-env" => {
                    for (name, value) in std::env::vars_os() {
                        say(&format!("{}={}\n", name.display(), value.display()))?;
                    }
                }
                "--status" => status()?,
                "--beat" => {
                    let path = self.next()?;
                    note(&path, "beat")?;
                    // It ends with the process.
                    std::thread::spawn(move || {
                        while note(&path, "beat").is_ok() {
                            std::thread::sleep(Duration::from_millis(50));
                        }
                    });
                }
                "--journal" => {
                    let path = self.next()?;
                    note(&path, "start")?;
                    self.journal = Some(path);
                }
                "--acp" => self.talk = Some(acp::Talk::open()?),
                "--acp-say" => acp::Talk::say(&self.next()?)?,
                "--acp-call" => {
                    let input = self.next()?;
                    self.talk()?.call(&input)?;
                }
                "--acp-ask" => acp::Talk::ask(&self.next()?)?,
                "--acp-wait-for-cancel" => acp::Talk::wait_for_cancel()?,
                "--acp-flood" => acp::Talk::flood(self.number()?)?,
                "--acp-end" => {
                    let reason = self.next()?;
                    self.talk()?.end(&reason)?;
                }
                unknown => return Err(format!("unknown argument {unknown:?}; see --help").into()),
            }
        }
        Ok(0)
    }
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn say_err(text: &str) {
    drop(io::stderr().write_all(format!("{text}\n").as_bytes()));
}

fn report<T>(what: &str, path: &str, result: io::Result<T>) -> io::Result<()> {
    match result {
        Ok(_) => say(&format!("{what} {path}\n")),
        Err(e) => say(&format!("not {what} {path}: {e}\n")),
    }
}

/// This program once more, with the same output.
fn again(args: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args).stdin(Stdio::null());
    Ok(command)
}

fn wait(how_long: Duration) {
    let start = Instant::now();
    while start.elapsed() < how_long {
        let left = how_long.saturating_sub(start.elapsed());
        std::thread::sleep(left.min(Duration::from_secs(3600)));
    }
}

fn burn(how_long: Duration) {
    let start = Instant::now();
    let mut n = 0_u64;
    while start.elapsed() < how_long {
        n = std::hint::black_box(n.wrapping_mul(31).wrapping_add(7));
    }
}

fn flood(bytes: u64, pattern: &[u8]) -> io::Result<()> {
    let block: Vec<u8> = pattern.iter().copied().cycle().take(64 << 10).collect();
    let mut out = io::stdout().lock();
    let mut left = bytes;
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        out.write_all(&block[..n])?;
        left -= n as u64;
    }
    out.flush()
}

fn bad_bytes() -> io::Result<()> {
    let mut out = io::stdout().lock();
    let (first, second) = "🐼".as_bytes().split_at(2);
    out.write_all(b"\xff\xfe\x97\n")?;
    out.write_all(first)?;
    out.flush()?;
    std::thread::sleep(Duration::from_millis(50));
    out.write_all(second)?;
    out.write_all(b"\nNUL \0 here\n 10%\r 50%\r100%\rcaf\xe9/na\xefve.txt\n")?;
    out.flush()
}

/// Catching a signal is as good as ignoring it here, and is not inherited.
fn ignore_term(how_long: Duration) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        say("ignoring TERM\n")?;
        let ignoring = async {
            while term.recv().await.is_some() {
                say_err("TERM ignored");
            }
        };
        drop(tokio::time::timeout(how_long, ignoring).await);
        Ok(())
    })
}

fn die(signal: u64) -> Result<(), Box<dyn std::error::Error>> {
    let signal = Signal::from_named_raw(i32::try_from(signal)?).ok_or("no such signal")?;
    let me = Pid::from_raw(i32::try_from(std::process::id())?).ok_or("no pid")?;
    kill_process(me, signal)?;
    wait(Duration::MAX);
    Ok(())
}

fn status() -> io::Result<()> {
    let mut lines: Vec<String> = Vec::new();
    for line in fs::read_to_string("/proc/self/status")?.lines() {
        let wanted = [
            "Uid:",
            "Gid:",
            "Groups:",
            "NoNewPrivs:",
            "CapEff:",
            "CapBnd:",
            "CapAmb:",
            "SigIgn:",
        ];
        if wanted.iter().any(|w| line.starts_with(w)) {
            lines.push(line.split_whitespace().collect::<Vec<_>>().join(" "));
        }
    }
    let mut fds: Vec<String> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        // The one that lists them.
        if !target.starts_with("/proc/") {
            fds.push(entry.file_name().display().to_string());
        }
    }
    fds.sort();
    let session = rustix::process::getsid(None)?.as_raw_nonzero().get();
    let leads = session.cast_unsigned() == std::process::id();
    lines.push(format!("fds {}\nleads its session {leads}\n", fds.join(" ")));
    say(&lines.join("\n"))
}

fn note(path: &str, event: &str) -> io::Result<()> {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let line = format!(
        "{{\"event\":\"{event}\",\"pid\":{},\"boottime\":{}}}\n",
        std::process::id(),
        now.tv_sec * 1000 + now.tv_nsec / 1_000_000
    );
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)?
        .write_all(line.as_bytes())
}
