//! `pandactl backup` and `pandactl restore`: a data folder as one file, and back.
//!
//! Both work on the data folder, not through the server: a backup needs no credentials and can be taken of a server that
//! does not start, and a restore is done while none runs.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use http::Method;
use panda_apiserver::backup::{self, Progress, RestoreOptions, SaveOptions};
use rustix::fs::{FlockOperation, flock};

use crate::cli::Exit;
use crate::error::{Error, Result, chain};
use crate::output::text;
use crate::session::Session;

/// Bytes after which progress is shown again.
const STEP: u64 = 64 << 20;

/// Arguments of `backup`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl backup panda.tar
  pandactl backup - | age -r KEY > panda.tar.age
  pandactl backup --data-dir /var/lib/panda --with-keys /mnt/safe/panda.tar

The server may run meanwhile. The archive is a tar file with a SHA-256 of every file; it appears under its
name when it is whole. The values of Secrets are in it sealed; the key that opens them, and the keys of the
certificate authority and of tokens, only --with-keys.")]
pub struct BackupArgs {
    /// Where the archive goes; `-` is standard output
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The server's data folder [default: $PANDA_DATA, or ~/.local/share/panda]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Put the server's keys in, too; keep such an archive as safe as the keys
    #[arg(long)]
    pub with_keys: bool,
}

/// Arguments of `restore`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  pandactl restore panda.tar
  pandactl restore panda.tar --activate
  pandactl restore --activate               # once the restored server runs and shows what you want
  age -d panda.tar.age | pandactl restore - --data-dir /var/lib/panda

The server must be stopped. The archive is checked whole before anything is replaced. The restored store is
another one for devices and clients: whatever version they know is too old, so they list anew, and runs on
devices are adopted. Until it is activated it takes reports, but binds, grants and publishes nothing.")]
pub struct RestoreArgs {
    /// The archive; `-` is standard input. Without it, --activate speaks to the running server
    #[arg(value_name = "FILE", required_unless_present = "activate")]
    pub file: Option<PathBuf>,
    /// The server's data folder [default: $PANDA_DATA, or ~/.local/share/panda]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Let the server act on the restored state
    #[arg(long)]
    pub activate: bool,
    /// Keep what is replaced, in the folder `replaced` of the data folder
    #[arg(long)]
    pub keep_old: bool,
    /// The key of the Secrets, when it is neither in the archive nor in the data folder
    #[arg(long, value_name = "FILE")]
    pub secrets_key: Option<PathBuf>,
}

/// Runs `backup`.
pub(crate) fn save(args: &BackupArgs, session: &mut Session<'_>) -> Result<Exit> {
    let data = data_dir(args.data_dir.as_deref(), session)?;
    let options = SaveOptions {
        with_keys: args.with_keys,
        now: session.io.clock.now().into(),
        program: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut shown = Shown::new(session, "saved");
    let mut report = |progress| shown.tell(progress);
    let saved = if args.file == Path::new("-") {
        if session.io.terminal.stdout {
            return Err(Error::user("an archive is nothing for a terminal")
                .hint("name a file, or send standard output to one"));
        }
        let scratch = tempfile::tempdir()
            .map_err(|error| Error::file("make a folder in", &std::env::temp_dir(), &error))?;
        let saved = backup::save(
            &data,
            &options,
            scratch.path(),
            &mut session.io.stdout,
            &mut report,
        );
        let saved = saved.map_err(|error| refused(&error))?;
        session.io.flush()?;
        saved
    } else {
        to_file(&args.file, |scratch, to| {
            backup::save(&data, &options, scratch, to, &mut report)
        })?
    };
    shown.end(saved.total);
    session.io.stderr.line(&format!(
        "backup of store {} at revision {}: {} files, {}{}",
        saved.store_uid,
        saved.revision,
        saved.total.files,
        size(saved.total.bytes),
        if args.with_keys {
            ", with keys"
        } else {
            ", without keys"
        },
    ));
    Ok(0)
}

/// Writes a file that has its name only when it is whole. What a killed backup left behind is used again.
fn to_file<T>(path: &Path, write: impl FnOnce(&Path, &File) -> Result<T, backup::Error>) -> Result<T> {
    let name = path
        .file_name()
        .ok_or_else(|| Error::user(format!("{} is no name of a file", path.display())).hint("name a file"))?;
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let scratch = parent.join(format!(".{}.partial", name.to_string_lossy()));
    let io = |what| {
        let scratch = scratch.clone();
        move |error: io::Error| Error::file(what, &scratch, &error)
    };
    match fs::DirBuilder::new().mode(0o700).create(&scratch) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io("create")(error)),
        _ => {}
    }
    let held = File::open(&scratch).map_err(io("open"))?;
    flock(&held, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Error::user(format!("another backup to {} is being written", path.display()))
            .hint("wait for it, or name another file")
    })?;
    for left in fs::read_dir(&scratch).map_err(io("list"))? {
        let left = left.map_err(io("list"))?.path();
        fs::remove_file(&left).map_err(|error| Error::file("remove", &left, &error))?;
    }
    let archive = scratch.join("archive");
    let done = (|| {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&archive)
            .map_err(io("write in"))?;
        let saved = write(&scratch, &file).map_err(|error| refused(&error))?;
        file.sync_all().map_err(io("sync"))?;
        fs::rename(&archive, path).map_err(|error| Error::file("write", path, &error))?;
        let synced = File::open(parent).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Error::file("sync", parent, &error))?;
        Ok(saved)
    })();
    // Never under its name, so whether it can be removed changes nothing.
    let _: io::Result<()> = fs::remove_dir_all(&scratch);
    done
}

/// Runs `restore`.
pub(crate) async fn restore(args: &RestoreArgs, session: &mut Session<'_>) -> Result<Exit> {
    let Some(file) = &args.file else {
        return activate(session).await;
    };
    let data = data_dir(args.data_dir.as_deref(), session)?;
    let options = RestoreOptions {
        activate: args.activate,
        keep_old: args.keep_old,
        secrets_key: args.secrets_key.clone(),
        store_uid: session.io.ids.uuid().to_string(),
        now: session.io.clock.now().into(),
    };
    let mut shown = Shown::new(session, "restored");
    let mut report = |progress| shown.tell(progress);
    let restored = if file == Path::new("-") {
        backup::restore(&data, &mut session.io.stdin, &options, &mut report)
    } else {
        let archive = File::open(file).map_err(|error| Error::file("read", file, &error))?;
        backup::restore(&data, archive, &options, &mut report)
    };
    let restored = restored.map_err(|error| refused(&error))?;
    shown.end(restored.total);
    let stderr = &session.io.stderr;
    stderr.line(&format!(
        "restored the backup of {} (revision {}) into {}; the store goes on at revision {}",
        restored.taken,
        restored.revision,
        data.display(),
        restored.raised
    ));
    if !restored.authority {
        stderr.line("neither the archive nor the data folder has the certificate authority: devices have to join anew");
    }
    stderr.line(if args.activate {
        "it is active: start the server"
    } else {
        "start the server, look at its state, then let it act: pandactl restore --activate"
    });
    Ok(0)
}

async fn activate(session: &mut Session<'_>) -> Result<Exit> {
    let client = session.client()?;
    let before: serde_json::Value = client.get_json("/activation").await?;
    if before["inactive"] != true {
        session.out("the server is active; nothing to do\n")?;
        return Ok(0);
    }
    let post = panda_client::client::request(Method::POST, "/activation", None)?;
    let _: serde_json::Value = client.request_json(post).await?;
    let reason = before["reason"].as_str().unwrap_or_default();
    session.out(format!("the server is active again ({})\n", text::line(reason)))?;
    Ok(0)
}

/// The data folder that a command speaks of.
pub(super) fn data_dir(flag: Option<&Path>, session: &Session<'_>) -> Result<PathBuf> {
    let env = &session.io.env;
    let found = flag
        .map(Path::to_owned)
        .or_else(|| env.var("PANDA_DATA").map(PathBuf::from))
        .or_else(|| Some(env.home.as_ref()?.join(".local/share/panda")));
    found.ok_or_else(|| {
        Error::user("there is no home folder with a data folder").hint("name one with --data-dir")
    })
}

fn refused(error: &backup::Error) -> Error {
    Error::user(chain(error)).hint(error.hint())
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

/// Progress on a terminal, one line that is written over.
struct Shown {
    to: Option<crate::io::Stderr>,
    verb: &'static str,
    next: u64,
}

impl Shown {
    fn new(session: &Session<'_>, verb: &'static str) -> Self {
        let to = session.io.terminal.stderr.then(|| session.io.stderr.clone());
        Self { to, verb, next: STEP }
    }

    fn tell(&mut self, progress: Progress) {
        if let Some(to) = &self.to
            && progress.bytes >= self.next
        {
            self.next = progress.bytes + STEP;
            to.write(&format!(
                "\r{} {}, {} files ",
                self.verb,
                size(progress.bytes),
                progress.files
            ));
        }
    }

    fn end(&self, total: Progress) {
        if let Some(to) = self.to.as_ref().filter(|_| total.bytes >= STEP) {
            to.write("\r");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("b.tar");
        let fails = to_file(&path, |_, mut to| {
            to.write_all(b"half").unwrap();
            Err::<(), _>(backup::Error::Foreign("x".into()))
        });
        assert!(fails.is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        // A killed one left its folder behind.
        fs::create_dir(dir.path().join(".b.tar.partial")).unwrap();
        fs::write(dir.path().join(".b.tar.partial/archive"), "half").unwrap();
        to_file(&path, |_, mut to| {
            to.write_all(b"whole").unwrap();
            // Another one at the same time is refused.
            assert!(to_file(&path, |_, _| Ok(())).is_err());
            Ok(())
        })
        .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
