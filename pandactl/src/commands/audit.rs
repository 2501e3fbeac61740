//! `pandactl audit`: the server's audit log, read from its data folder.

use std::path::{Path, PathBuf};

use panda_apiserver::audit::verify::{self, Fault};
use panda_apiserver::audit::{Error as AuditError, Head};
use serde_json::Value;

use crate::cli::Exit;
use crate::error::{Error, Result, chain};
use crate::output::text;
use crate::session::Session;

/// Arguments of `audit`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl audit log --tail 20
  pandactl audit head > /mnt/elsewhere/panda-head.json
  pandactl audit verify --head /mnt/elsewhere/panda-head.json

Each record is bound to all before it. What was changed, removed or reordered inside shows by itself; that the whole
log was written anew, or its end cut off, shows against a head that was kept elsewhere.")]
pub struct AuditArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: AuditVerb,
    /// The server's data folder [default: $PANDA_DATA, or ~/.local/share/panda]
    #[arg(long, value_name = "DIR", global = true)]
    pub data_dir: Option<PathBuf>,
}

/// The verbs of `audit`.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum AuditVerb {
    /// Check the whole log
    Verify {
        /// What `pandactl audit head` printed once: the log must still hold it; `-` is standard input
        #[arg(long, value_name = "FILE")]
        head: Option<PathBuf>,
    },
    /// Show records, oldest first
    Log {
        /// Only so many of the newest
        #[arg(long, value_name = "N")]
        tail: Option<usize>,
        /// As they stand in the log: one audit.k8s.io/v1 Event a line
        #[arg(long)]
        json: bool,
    },
    /// Print the newest record's number and hash, to be kept elsewhere
    Head,
}

/// Runs `audit`.
pub(crate) fn run(args: &AuditArgs, session: &mut Session<'_>) -> Result<Exit> {
    let data = super::backup::data_dir(args.data_dir.as_deref(), session)?;
    let dir = verify::folder(&data);
    if !dir.is_dir() {
        return Err(
            Error::user(format!("there is no audit log in {}", data.display()))
                .hint("name the server's data folder with --data-dir"),
        );
    }
    match &args.verb {
        AuditVerb::Verify { head } => check(&dir, head.as_deref(), session),
        AuditVerb::Log { tail, json } => log(&dir, *tail, *json, session),
        AuditVerb::Head => {
            let findings = verify::verify(&dir, None).map_err(|error| refused(&error))?;
            if !findings.is_sound() {
                return Err(unsound(&findings.faults));
            }
            let head =
                serde_json::to_string(&findings.head).map_err(|error| Error::internal(error.to_string()))?;
            session.out(format!("{head}\n"))?;
            Ok(0)
        }
    }
}

fn check(dir: &Path, head: Option<&Path>, session: &mut Session<'_>) -> Result<Exit> {
    let head = head.map(|path| read_head(path, session)).transpose()?;
    let findings = verify::verify(dir, head.as_ref()).map_err(|error| refused(&error))?;
    if findings.unfinished > 0 {
        session.io.stderr.line(&format!(
            "{} bytes at the end are no whole record: one is being written, or the server died while it was",
            findings.unfinished
        ));
    }
    if !findings.faults.is_empty() {
        return Err(unsound(&findings.faults));
    }
    if let (Some(head), Some(false)) = (&head, findings.known) {
        let message = if head.seq < findings.first {
            format!(
                "record {} is no longer kept (the log begins with record {}), so nothing can be said about it",
                head.seq, findings.first
            )
        } else if head.seq > findings.head.seq {
            format!(
                "the log ends with record {}, and the head speaks of record {}: its end was cut off, or it was written anew",
                findings.head.seq, head.seq
            )
        } else {
            format!("record {} is not what it was: the log was written anew", head.seq)
        };
        return Err(Error::user(message).hint("take the log for forged; compare with other copies of it"));
    }
    let against = head.map_or(String::new(), |head| {
        format!(", and holds record {} as it was", head.seq)
    });
    session.out(format!(
        "{} records, {} to {}, unbroken{against}\n",
        findings.records, findings.first, findings.head.seq
    ))?;
    Ok(0)
}

fn read_head(path: &Path, session: &mut Session<'_>) -> Result<Head> {
    let mut content = String::new();
    let read = if path == Path::new("-") {
        std::io::Read::read_to_string(
            &mut std::io::Read::take(&mut session.io.stdin, 4096),
            &mut content,
        )
    } else {
        std::fs::File::open(path).and_then(|file| {
            std::io::Read::read_to_string(&mut std::io::Read::take(file, 4096), &mut content)
        })
    };
    read.map_err(|error| Error::file("read", path, &error))?;
    serde_json::from_str(&content).map_err(|error| {
        Error::user(format!("{} is no head of an audit log: {error}", path.display()))
            .hint("name a file that holds what `pandactl audit head` printed")
    })
}

fn log(dir: &Path, tail: Option<usize>, json: bool, session: &mut Session<'_>) -> Result<Exit> {
    let mut last = std::collections::VecDeque::new();
    let mut failed = Ok(());
    let mut broken = 0_u64;
    verify::read(dir, &mut |_, record| {
        let Some(record) = record else {
            broken += 1;
            return true;
        };
        let line = if json {
            format!("{}\n", record.event)
        } else {
            short(record.head.seq, record.event)
        };
        match tail {
            None => failed = session.out(line),
            Some(most) => {
                last.push_back(line);
                if last.len() > most {
                    last.pop_front();
                }
            }
        }
        failed.is_ok()
    })
    .map_err(|error| refused(&error))?;
    failed?;
    for line in last {
        session.out(line)?;
    }
    if broken > 0 {
        session.io.stderr.line(&format!(
            "{broken} lines are no records; see `pandactl audit verify`"
        ));
    }
    Ok(0)
}

/// A record for people: when, who, what, to what, and what came of it.
fn short(seq: u64, event: &str) -> String {
    let event: Value = serde_json::from_str(event).unwrap_or_default();
    let word = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let object = &event["objectRef"];
    let parts = ["resource", "subresource", "namespace", "name"].map(|part| word(&object[part]));
    let mut what = match parts.iter().all(String::is_empty) {
        true => word(&event["requestURI"]),
        false => parts
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("/"),
    };
    let note = word(&event["annotations"]["panda.dev/note"]);
    if !note.is_empty() {
        what = note;
    }
    let mut who = word(&event["user"]["username"]);
    if let Some(other) = event["impersonatedUser"]["username"].as_str() {
        who = format!("{who} as {other}");
    }
    let code = event["responseStatus"]["code"]
        .as_u64()
        .map_or_else(|| "-".to_owned(), |code| code.to_string());
    let line = format!(
        "{seq}  {}  {who}  {}  {what}  {code}",
        word(&event["stageTimestamp"]),
        word(&event["verb"])
    );
    format!("{}\n", text::line(&line))
}

fn unsound(faults: &[Fault]) -> Error {
    let mut message = "the audit log is not as it was written:".to_owned();
    for fault in faults {
        message.push_str(&format!(
            "\n  {}:{}: {}",
            fault.file.display(),
            fault.line,
            fault.what
        ));
    }
    Error::user(message).hint("keep the files as they are, and compare with a backup or another copy of them")
}

fn refused(error: &AuditError) -> Error {
    Error::user(chain(error)).hint("check the folder, its owner and its mode")
}
