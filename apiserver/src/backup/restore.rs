//! Reading a backup: whole and checked in a folder aside, then put in place.

use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use panda_api::meta::Time;
use panda_api::{Secret, scheme};
use panda_store::sqlite::copy;

use super::layout::{self, BLOBS, CA, FORMAT, HEADER, KEY_FILES, KEYS, MANIFEST, STORE, STREAMS, SUMS};
use super::save::Hashing;
use super::swap::{self, Commit, Staging};
use super::{Error, Header, KIND, Manifest, Progress, RAISE, failed, tar};
use crate::agentlet::{Activation, activation_key};
use crate::files;
use crate::registry::{self, Sealer, encode};
use crate::server::{PKI_DIR, SECRETS_KEY};

/// Largest header or manifest.
const MAX_TEXT: u64 = 1 << 16;

/// How a backup is restored.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// Whether the server may act on the restored state at once; otherwise it waits for `POST /activation`.
    pub activate: bool,
    /// Whether the old state stays, in the folder `replaced`.
    pub keep_old: bool,
    /// The key of the Secrets, when it is neither in the archive nor in the data folder.
    pub secrets_key: Option<PathBuf>,
    /// The new identity of the store.
    pub store_uid: String,
    /// The time of the restore.
    pub now: Time,
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// When the backup was taken.
    pub taken: Time,
    /// The newest revision in the backup.
    pub revision: u64,
    /// The revision that the store goes on from.
    pub raised: u64,
    /// Files and bytes.
    pub total: Progress,
    /// Secrets that were opened for trial.
    pub secrets: usize,
    /// Whether the data folder keeps, or gets, a certificate authority that devices know.
    pub authority: bool,
}

/// Puts the archive `from` in place of what the data folder `data` holds; no server may run on it.
///
/// The archive is unpacked beside the old state and checked whole first: every path, every digest, the database, the
/// Secrets against their key. Only then the old state is replaced, and a crash leaves the old or the new one.
///
/// # Errors
/// When the folder is in use, the archive is foreign, damaged or of a newer version, the Secrets have no key, or the file
/// system refuses. The old state is untouched then.
pub fn restore(
    data: &Path,
    from: impl Read,
    options: &RestoreOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Restored, Error> {
    files::private_dir(data)?;
    let _owned = copy::own(&layout::store_dir(data))?;
    // What was committed counts; this restore comes after it.
    swap::forward(data, usize::MAX)?;
    let staging = Staging::of(data);
    staging.begin()?;
    let ready = stage(data, &staging, from, options, progress);
    match ready {
        Ok((restored, commit)) => {
            staging.commit(&commit)?;
            swap::forward(data, usize::MAX)?;
            Ok(restored)
        }
        Err(error) => {
            if let Err(error) = staging.remove() {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what was unpacked stays behind"
                );
            }
            Err(error)
        }
    }
}

fn stage(
    data: &Path,
    staging: &Staging,
    from: impl Read,
    options: &RestoreOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Restored, Commit), Error> {
    let new = staging.new_state();
    for folder in ["store", "blobs/blobs", "blobs/streams"] {
        files::private_dir(&new.join(folder))?;
    }
    let (header, total) = unpack(&new, staging.folder(), from, progress)?;
    let store = new.join("store").join(STORE);
    let facts = copy::examine(&store)?;
    if facts.uid != header.store_uid || facts.revision.0 != header.revision {
        return Err(Error::Damaged(
            "the store is not the one that its header speaks of".into(),
        ));
    }
    if let Some(path) = &options.secrets_key {
        let key = files::read_private(path)?.ok_or_else(|| Error::WrongKey { path: path.clone() })?;
        files::write_atomic(&new.join(SECRETS_KEY), &key, 0o600)?;
    }
    let secrets = try_secrets(data, &new, &store, options)?;
    let marker = serde_json::to_value(Activation {
        inactive: !options.activate,
        store_uid: String::new(),
        reason: format!("restored from the backup of {}", header.time),
        device: String::new(),
        since: Some(options.now),
    })
    .expect("our types serialise");
    let renewed = copy::renew(
        &store,
        &options.store_uid,
        RAISE,
        &activation_key(),
        encode::body(&marker),
    )?;
    let authority = new.join(PKI_DIR).join(CA).exists() || data.join(PKI_DIR).join(CA).exists();
    sync_tree(&new)?;
    let commit = Commit {
        parts: parts(&new)?,
        keep_old: options.keep_old,
    };
    let restored = Restored {
        taken: header.time,
        revision: header.revision,
        raised: renewed.revision.0,
        total,
        secrets,
        authority,
    };
    Ok((restored, commit))
}

/// What is replaced, in this order: the old log of the database must be gone before another database stands there.
fn parts(new: &Path) -> Result<Vec<String>, Error> {
    let mut parts: Vec<String> = ["-wal", "-shm", "-journal", ""]
        .iter()
        .map(|side| format!("store/{STORE}{side}"))
        .collect();
    parts.extend(["blobs/partial", "blobs/blobs", "blobs/streams"].map(str::to_owned));
    for key in [SECRETS_KEY, crate::server::TOKENS_KEY, PKI_DIR] {
        if new.join(key).try_exists().map_err(failed("inspect", new))? {
            parts.push(key.to_owned());
        }
    }
    Ok(parts)
}

/// Where a file of the archive goes below the new state.
fn place(new: &Path, path: &str) -> PathBuf {
    match path.split_once('/') {
        Some((KEYS, name)) => {
            let found = KEY_FILES.iter().find(|(known, _)| *known == name);
            new.join(found.map_or(name, |(_, place)| place))
        }
        Some((BLOBS | STREAMS, _)) => new.join("blobs").join(path),
        _ => new.join("store").join(path),
    }
}

/// Unpacks and checks the archive as such.
fn unpack(
    new: &Path,
    scratch: &Path,
    from: impl Read,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Header, Progress), Error> {
    let mut archive = tar::Reader::new(BufReader::with_capacity(1 << 20, from));
    let mut done = Progress::default();
    let seen = scratch.join("seen");
    let seen = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&seen)
        .map_err(failed("create", &seen))?;
    let mut seen = BufWriter::new(seen);
    let mut header = None;
    loop {
        let file = archive.next().map_err(|error| match error {
            tar::Error::Damaged(why) if header.is_none() => Error::Foreign(why.to_owned()),
            tar::Error::Truncated if header.is_none() => {
                Error::Foreign("it is no archive, or empty".to_owned())
            }
            error => error.into(),
        })?;
        let Some(file) = file else {
            return Err(Error::Damaged(format!("it ends without {MANIFEST}")));
        };
        let path = file.path;
        if !layout::is_ours(&path) {
            return Err(Error::Damaged(format!("it holds {path:?}, which no backup does")));
        }
        if header.is_none() != (path == HEADER) {
            return Err(Error::Foreign(format!("it does not begin with {HEADER}")));
        }
        match path.as_str() {
            HEADER => {
                let bytes = text(&mut archive, file.size, &path)?;
                header = Some(read_header(&bytes)?);
                note(&mut seen, &bytes, &path)?;
            }
            SUMS => {
                let sums = seen.into_inner().map_err(|e| tar::Error::Io(e.into_error()))?;
                let sums = compare(&mut archive, file.size, sums)?;
                let manifest = last_file(&mut archive)?;
                if (manifest.files, manifest.bytes, manifest.sums) != (done.files, done.bytes, sums) {
                    return Err(Error::Damaged(format!("{MANIFEST} speaks of another content")));
                }
                let header = header.ok_or_else(|| Error::Foreign("it has no header".into()))?;
                return Ok((header, done));
            }
            MANIFEST => return Err(Error::Damaged(format!("{MANIFEST} stands before {SUMS}"))),
            path => {
                let target = place(new, path);
                if let Some(parent) = target.parent() {
                    files::private_dir(parent)?;
                }
                let digest = extract(&mut archive, file.size, &target)?;
                let named = path.starts_with(BLOBS).then(|| path.rsplit('/').next()).flatten();
                if named.is_some_and(|name| name != digest) {
                    return Err(Error::Damaged(format!(
                        "{path} has another content than its name says"
                    )));
                }
                writeln!(seen, "{digest}  {path}").map_err(tar::Error::from)?;
            }
        }
        done.files += 1;
        done.bytes += file.size;
        progress(done);
    }
}

fn note(seen: &mut impl Write, bytes: &[u8], path: &str) -> Result<(), Error> {
    let mut hashing = Hashing::new(std::io::sink());
    hashing.write_all(bytes).map_err(tar::Error::from)?;
    writeln!(seen, "{}  {path}", hashing.digest()).map_err(tar::Error::from)?;
    Ok(())
}

/// A small file of the archive.
fn text<R: Read>(archive: &mut tar::Reader<R>, size: u64, path: &str) -> Result<Vec<u8>, Error> {
    if size > MAX_TEXT {
        return Err(Error::Damaged(format!("{path} is too large")));
    }
    let mut bytes = Vec::new();
    archive.content(size, &mut bytes)?;
    Ok(bytes)
}

fn read_header(bytes: &[u8]) -> Result<Header, Error> {
    // The format first: the rest may look otherwise in a newer one.
    let value: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    if value["kind"] != KIND {
        return Err(Error::Foreign("its header says something else".into()));
    }
    let found = value["format"]
        .as_u64()
        .and_then(|format| u32::try_from(format).ok());
    match found {
        Some(found) if found > FORMAT => Err(Error::TooNew { found, known: FORMAT }),
        _ => serde_json::from_value(value).map_err(|error| Error::Damaged(format!("{HEADER}: {error}"))),
    }
}

/// Writes a file and syncs it; its digest.
fn extract<R: Read>(archive: &mut tar::Reader<R>, size: u64, target: &Path) -> Result<String, Error> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(target)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Damaged("it holds a file twice".into()),
            _ => failed("create", target)(error),
        })?;
    let mut hashing = Hashing::new(BufWriter::with_capacity(1 << 18, file));
    archive.content(size, &mut hashing).map_err(|error| match error {
        tar::Error::Io(source) => failed("unpack", target)(source),
        error => error.into(),
    })?;
    hashing.flush().map_err(failed("write", target))?;
    Ok(hashing.digest())
}

/// Compares the archive's list of digests with what was seen; its own digest.
fn compare<R: Read>(archive: &mut tar::Reader<R>, size: u64, mut seen: File) -> Result<String, Error> {
    let differs = || Error::Damaged("a file is not what it was when the backup was taken".to_owned());
    let io = |error: std::io::Error| Error::from(tar::Error::Io(error));
    if seen.stream_position().map_err(io)? != size {
        return Err(differs());
    }
    seen.rewind().map_err(io)?;
    let mut expected = Hashing::new(std::io::sink());
    std::io::copy(&mut BufReader::new(seen), &mut expected).map_err(io)?;
    let mut found = Hashing::new(std::io::sink());
    archive.content(size, &mut found)?;
    let found = found.digest();
    if expected.digest() == found {
        Ok(found)
    } else {
        Err(differs())
    }
}

fn last_file<R: Read>(archive: &mut tar::Reader<R>) -> Result<Manifest, Error> {
    let damaged = |why: &str| Error::Damaged(format!("{MANIFEST}: {why}"));
    let file = archive.next()?.ok_or_else(|| damaged("it is missing"))?;
    if file.path != MANIFEST {
        return Err(damaged("something else stands in its place"));
    }
    let bytes = text(archive, file.size, MANIFEST)?;
    let manifest = serde_json::from_slice(&bytes).map_err(|error| damaged(&error.to_string()))?;
    match archive.next()? {
        None => Ok(manifest),
        Some(_) => Err(damaged("it is not the last file")),
    }
}

/// Opens every Secret with the key that the restored server will use; how many there are.
fn try_secrets(data: &Path, new: &Path, store: &Path, options: &RestoreOptions) -> Result<usize, Error> {
    let resource = registry::key(scheme::of::<Secret>(), "", "").resource;
    let staged = new.join(SECRETS_KEY);
    let path = if staged.exists() {
        staged
    } else {
        data.join(SECRETS_KEY)
    };
    let mut count = 0;
    copy::visit(store, &resource, |_, _| {
        count += 1;
        Ok::<_, Error>(())
    })?;
    if count == 0 {
        return Ok(0);
    }
    if !path.exists() {
        return Err(Error::NoKey { secrets: count });
    }
    let sealer = Sealer::open(&path)?;
    let shown = options.secrets_key.clone().unwrap_or(path);
    copy::visit(store, &resource, |key, value| {
        sealer
            .open_value(key, value)
            .map(|_| ())
            .map_err(|_| Error::WrongKey { path: shown.clone() })
    })?;
    Ok(count)
}

/// Makes a folder durable, with all that is in it.
fn sync_tree(folder: &Path) -> Result<(), Error> {
    for entry in fs::read_dir(folder).map_err(failed("list", folder))? {
        let entry = entry.map_err(failed("list", folder))?;
        let path = entry.path();
        if entry.file_type().map_err(failed("inspect", &path))?.is_dir() {
            sync_tree(&path)?;
        } else {
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(failed("sync", &path))?;
        }
    }
    swap::sync(folder)
}
