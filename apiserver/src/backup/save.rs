//! Writing a backup.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use panda_api::meta::Time;
use panda_store::blob::{Digest, StreamId};
use panda_store::sqlite::copy;
use sha2::{Digest as _, Sha256};

use super::layout::{self, BLOBS, FORMAT, HEADER, KEY_FILES, KEYS, MANIFEST, STORE, STREAMS, SUMS};
use super::{Error, Header, KIND, Manifest, Progress, failed, swap, tar};
use crate::files;

/// What a backup is made of.
#[derive(Clone, Debug)]
pub struct SaveOptions {
    /// Whether keys go along: that of the Secrets, that of the tokens, and the certificate authority's.
    pub with_keys: bool,
    /// The time that stands in it.
    pub now: Time,
    /// Version of the program that stands in it.
    pub program: String,
}

/// What was saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Identity of the store.
    pub store_uid: String,
    /// Its newest revision.
    pub revision: u64,
    /// Files and bytes.
    pub total: Progress,
}

/// Writes a backup of the data folder `data` to `to`; a server may run on it. `scratch` is an empty folder for files on
/// the way: as large as the store.
///
/// Objects are as of one revision. Blobs and logs are taken after it, so that what the objects name is there; a log may
/// be longer than at that revision.
///
/// # Errors
/// When the folder holds no store, something cannot be read, or `to` takes no more.
pub fn save(
    data: &Path,
    options: &SaveOptions,
    scratch: &Path,
    to: impl Write,
    progress: &mut dyn FnMut(Progress),
) -> Result<Saved, Error> {
    if swap::is_pending(data)? {
        return Err(Error::Interrupted {
            path: data.to_owned(),
        });
    }
    let store = scratch.join(STORE);
    let facts = copy::copy(&layout::store_dir(data), &store)?;
    let sums = scratch.join(SUMS);
    let sums = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&sums)
        .map_err(failed("create", &sums))?;
    let mut saving = Saving {
        archive: tar::Writer::new(BufWriter::with_capacity(1 << 20, to)),
        sums: BufWriter::new(sums),
        done: Progress::default(),
        progress,
    };
    let header = Header {
        kind: KIND.to_owned(),
        format: FORMAT,
        program: options.program.clone(),
        store_uid: facts.uid.clone(),
        revision: facts.revision.0,
        time: options.now,
        keys: options.with_keys,
    };
    saving.bytes(HEADER, &json(&header))?;
    if options.with_keys {
        for (name, path) in KEY_FILES {
            if let Some(key) = files::read_private(&data.join(path))? {
                saving.bytes(&format!("{KEYS}/{name}"), &key)?;
            }
        }
    }
    saving.file(STORE, &store, true)?;
    let blobs = layout::blob_dir(data);
    saving.blobs(&blobs.join("blobs"))?;
    saving.streams(&blobs.join("streams"))?;
    let total = saving.finish()?;
    Ok(Saved {
        store_uid: facts.uid,
        revision: facts.revision.0,
        total,
    })
}

fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("our types serialise")
}

struct Saving<'a, W: Write> {
    archive: tar::Writer<BufWriter<W>>,
    sums: BufWriter<File>,
    done: Progress,
    progress: &'a mut dyn FnMut(Progress),
}

impl<W: Write> Saving<'_, W> {
    fn add(&mut self, path: &str, size: u64, content: impl Read) -> Result<(), tar::Error> {
        let mut hashing = Hashing::new(content);
        self.archive.file(path, size, &mut hashing)?;
        writeln!(self.sums, "{}  {path}", hashing.digest())?;
        self.done.files += 1;
        self.done.bytes += size;
        (self.progress)(self.done);
        Ok(())
    }

    fn bytes(&mut self, path: &str, content: &[u8]) -> Result<(), Error> {
        Ok(self.add(path, content.len() as u64, content)?)
    }

    /// A file as long as it is now. One that is not `needed` may be gone: somebody collected it meanwhile.
    fn file(&mut self, path: &str, source: &Path, needed: bool) -> Result<(), Error> {
        let file = match File::open(source) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !needed => return Ok(()),
            file => file.map_err(failed("open", source))?,
        };
        let size = file.metadata().map_err(failed("inspect", source))?.len();
        let content = BufReader::with_capacity(1 << 18, file);
        match self.add(path, size, content) {
            Err(tar::Error::Truncated) => Err(Error::Changed {
                path: source.to_owned(),
            }),
            done => Ok(done?),
        }
    }

    fn blobs(&mut self, root: &Path) -> Result<(), Error> {
        for folder in names(root)? {
            for name in names(&root.join(&folder))? {
                if name.parse::<Digest>().is_ok() {
                    self.file(
                        &format!("{BLOBS}/{folder}/{name}"),
                        &root.join(&folder).join(&name),
                        false,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn streams(&mut self, root: &Path) -> Result<(), Error> {
        for run in names(root)? {
            for name in names(&root.join(&run))? {
                if StreamId::new(&run, &name).is_err() {
                    continue;
                }
                for segment in names(&root.join(&run).join(&name))? {
                    let path = format!("{STREAMS}/{run}/{name}/{segment}");
                    if layout::is_ours(&path) {
                        self.file(&path, &root.join(&run).join(&name).join(&segment), false)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Progress, Error> {
        let scratch = |error| tar::Error::Io(error);
        let mut sums = self
            .sums
            .into_inner()
            .map_err(|error| scratch(error.into_error()))?;
        let size = sums.stream_position().map_err(scratch)?;
        sums.rewind().map_err(scratch)?;
        let mut hashing = Hashing::new(BufReader::new(sums));
        self.archive.file(SUMS, size, &mut hashing)?;
        let manifest = json(&Manifest {
            files: self.done.files,
            bytes: self.done.bytes,
            sums: hashing.digest(),
        });
        self.archive
            .file(MANIFEST, manifest.len() as u64, &mut manifest.as_slice())?;
        let to = self.archive.finish()?;
        to.into_inner().map_err(|error| scratch(error.into_error()))?;
        Ok(self.done)
    }
}

/// Names in a folder, sorted; none when it does not exist.
fn names(path: &Path) -> Result<Vec<String>, Error> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed("list", path))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        // A name that is not text is none of ours.
        names.extend(
            entry
                .map_err(failed("list", path))?
                .file_name()
                .into_string()
                .ok(),
        );
    }
    names.sort_unstable();
    Ok(names)
}

/// Hashes what passes.
pub(super) struct Hashing<T> {
    inner: T,
    hash: Sha256,
}

impl<T> Hashing<T> {
    pub(super) fn new(inner: T) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
        }
    }

    /// Of all that has passed.
    pub(super) fn digest(self) -> String {
        hex::encode(self.hash.finalize())
    }
}

impl<T: Read> Read for Hashing<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
