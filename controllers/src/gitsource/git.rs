//! Getting a commit and the files in it with the git program, so that nothing of the repository's is ever run: no
//! configuration but ours, no hooks, no filters, no submodules, no checkout. Bounded in time, on disk and in memory.

mod call;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::IdSource;
use panda_client::dialer::{self, Dialer, SystemResolver};

use super::proxy::{self, Proxy};
use call::{Call, Ended};

/// Where the commit is kept.
const HEAD: &str = "refs/panda/head";
/// Longest list of files, in bytes.
const MAX_LISTING: usize = 16 << 20;
/// How long finding and connecting to a host may take.
const DIAL: Duration = Duration::from_secs(15);
/// How long reading out of git's objects may take.
const READ: Duration = Duration::from_secs(120);
/// Most that is said of git's own words.
const MAX_WORDS: usize = 512;

/// How repositories are fetched; the operator's to say.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The git program.
    pub program: PathBuf,
    /// `PATH` of git, which looks for ssh there.
    pub path: String,
    /// This program, which is ssh's way to the proxy; none: `ssh://` is refused.
    pub exe: Option<PathBuf>,
    /// Folder for fetched repositories; made when it is missing, mode 0700.
    pub work_dir: PathBuf,
    /// Folders below which `file://` repositories may lie; none: `file://` is refused.
    pub file_roots: Vec<PathBuf>,
    /// Hosts that may be at addresses which are not public.
    pub allowed_hosts: Vec<String>,
    /// Bounds.
    pub limits: Limits,
}

impl Settings {
    /// The usual settings with repositories kept in `work_dir`.
    #[must_use]
    pub fn new(program: PathBuf, path: String, work_dir: PathBuf) -> Self {
        Self {
            program,
            path,
            exe: None,
            work_dir,
            file_roots: Vec::new(),
            allowed_hosts: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// Bounds of one repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes on disk; looked at a few times a second while git fetches.
    pub repository: u64,
    /// Manifests.
    pub files: usize,
    /// Bytes of one manifest.
    pub file: u64,
    /// Bytes of all manifests.
    pub total: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            repository: 256 << 20,
            files: 10_000,
            file: 3 << 20,
            total: 64 << 20,
        }
    }
}

/// Why a repository is not read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is of no kind that is fetched here.
    #[error("{0}")]
    NotAllowed(String),
    /// git said no, or the host cannot be reached.
    #[error("{0}")]
    Fetch(String),
    /// It took too long.
    #[error("it took longer than {0:?}")]
    Timeout(Duration),
    /// It is larger than it may be.
    #[error("{0}")]
    TooLarge(String),
    /// The folder is not in the commit.
    #[error("there is no folder {0:?} in the commit")]
    NoPath(String),
    /// This host is to blame.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// A stable word.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NotAllowed(_) => "NotAllowed",
            Self::Fetch(_) => "FetchFailed",
            Self::Timeout(_) => "FetchTimeout",
            Self::TooLarge(_) => "TooLarge",
            Self::NoPath(_) => "PathNotFound",
            Self::Io { .. } => "Internal",
        }
    }
}

fn io(what: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::Io { what, source }
}

/// What opens a repository.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Name and password, for https.
    pub basic: Option<(String, String)>,
    /// Private key, for ssh.
    pub identity: Option<Vec<u8>>,
    /// Keys of hosts, for ssh.
    pub known_hosts: Option<Vec<u8>>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

/// What is to be fetched.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Uid of the source: name of its folder.
    pub uid: &'a str,
    /// Address, as validation lets it pass.
    pub url: &'a str,
    /// Branch, tag or commit; empty: `HEAD`.
    pub reference: &'a str,
    /// Folder in the commit; empty: the top.
    pub path: &'a str,
    /// Longest time for fetching.
    pub timeout: Duration,
    /// What opens it.
    pub credentials: Credentials,
}

/// A commit and the manifests in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// The commit.
    pub commit: String,
    /// Path from the top and content of each manifest, in the order of their paths.
    pub files: Vec<(String, Vec<u8>)>,
}

/// Fetches repositories.
#[derive(Clone, Debug)]
pub struct Git {
    settings: Arc<Settings>,
    ids: Arc<dyn IdSource>,
}

/// Where git finds the repository.
enum Place {
    File(PathBuf),
    Https { url: String, port: u16 },
    Ssh { url: String, port: u16 },
}

impl Git {
    /// git by these settings; tokens of proxies come from `ids`.
    #[must_use]
    pub fn new(settings: Settings, ids: Arc<dyn IdSource>) -> Self {
        Self {
            settings: Arc::new(settings),
            ids,
        }
    }

    /// Brings the repository of a source up to date and reads its manifests.
    ///
    /// # Errors
    /// See [`Error`]; what was fetched before stays.
    pub async fn fetch(&self, request: &Request<'_>) -> Result<Fetched, Error> {
        let place = self.place(request)?;
        let folder = self.folder(request.uid)?;
        self.make(&folder)?;
        // Kept objects of older commits are of no use: the folder begins anew before it could get too large.
        if call::size(&folder) > self.settings.limits.repository / 2 {
            std::fs::remove_dir_all(&folder).map_err(io("empty the folder of the repository"))?;
            self.make(&folder)?;
        }
        let repository = folder.join("git");
        if !repository.join("HEAD").is_file() {
            let init = ["init", "--quiet", "--bare", "--template=", "git"];
            self.check(self.call(&folder).args(init), READ).await?;
        }
        self.update(&folder, &repository, &place, request).await?;
        let commit = format!("{HEAD}^{{commit}}");
        let commit = self
            .output(&repository, &["rev-parse", "--verify", &commit], 256)
            .await?;
        let commit = String::from_utf8_lossy(&commit).trim().to_owned();
        let files = self.files(&repository, &commit, request.path).await?;
        Ok(Fetched { commit, files })
    }

    /// Forgets the repository of a source that is gone.
    pub fn forget(&self, uid: &str) {
        if let Ok(folder) = self.folder(uid)
            && let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, folder = %folder.display(), "a repository stays behind");
        }
    }

    fn folder(&self, uid: &str) -> Result<PathBuf, Error> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        if uid.is_empty() || !uid.bytes().all(plain) {
            return Err(Error::NotAllowed(format!("{uid:?} is no uid")));
        }
        Ok(self.settings.work_dir.join(uid))
    }

    fn make(&self, folder: &Path) -> Result<(), Error> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(io("make a folder for the repository"))
    }

    /// Where the repository is, if it may be read at all.
    fn place(&self, request: &Request<'_>) -> Result<Place, Error> {
        let url = request.url;
        let refuse = |why: String| Err(Error::NotAllowed(why));
        if let Some(path) = url.strip_prefix("file://") {
            let path = Path::new(path)
                .canonicalize()
                .map_err(|error| Error::Fetch(format!("{path}: {error}")))?;
            let roots = self
                .settings
                .file_roots
                .iter()
                .filter_map(|root| root.canonicalize().ok());
            return if { roots }.any(|root| path.starts_with(root)) {
                Ok(Place::File(path))
            } else {
                refuse(format!(
                    "{url}: file repositories must lie below a folder that the operator names (gitSources.fileRoots)"
                ))
            };
        }
        let (rest, usual) = match (url.strip_prefix("https://"), url.strip_prefix("ssh://")) {
            (Some(rest), _) => (rest, 443),
            (_, Some(rest)) => (rest, 22),
            _ => return refuse(format!("{url}: only https, ssh and file are fetched")),
        };
        let authority = rest.split('/').next().unwrap_or_default();
        let after_name = authority.rsplit('@').next().unwrap_or_default();
        let port = match after_name.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => port.parse().ok(),
            _ => Some(usual),
        };
        let Some(port) = port else {
            return refuse(format!("{url}: the port is no number"));
        };
        let url = url.to_owned();
        if usual == 443 {
            return Ok(Place::Https { url, port });
        }
        if self.settings.exe.is_none() {
            return refuse(format!("{url}: ssh is not set up here"));
        }
        if request.credentials.known_hosts.is_none() {
            return refuse(format!(
                "{url}: ssh needs a Secret with known_hosts (spec.credentialsRef)"
            ));
        }
        Ok(Place::Ssh { url, port })
    }

    async fn update(
        &self,
        folder: &Path,
        repository: &Path,
        place: &Place,
        request: &Request<'_>,
    ) -> Result<(), Error> {
        let reference = if request.reference.is_empty() {
            "HEAD"
        } else {
            request.reference
        };
        let refspec = format!("+{reference}:{HEAD}");
        let keys = tempfile::Builder::new()
            .prefix("keys-")
            .tempdir_in(folder)
            .map_err(io("make a folder for keys"))?;
        let mut call = self.call(repository);
        let (address, proxy) = match place {
            Place::File(path) => (path.display().to_string(), None),
            Place::Https { url, port } => {
                let proxy = self.proxy(*port).await?;
                call.config("http.proxy", &format!("http://{}", proxy.authority()));
                call.config("http.proxyAuthMethod", "basic");
                if let Some((name, password)) = &request.credentials.basic {
                    call.config(&format!("http.{url}.extraHeader"), &call::basic(name, password));
                }
                (url.clone(), Some(proxy))
            }
            Place::Ssh { url, port } => {
                let proxy = self.proxy(*port).await?;
                let command = self.ssh(keys.path(), &request.credentials)?;
                call.env("GIT_SSH_COMMAND", &command);
                call.env("GIT_SSH_VARIANT", "ssh");
                call.env(proxy::VARIABLE, &proxy.authority());
                (url.clone(), Some(proxy))
            }
        };
        let scheme = match place {
            Place::File(_) => "file",
            Place::Https { .. } => "https",
            Place::Ssh { .. } => "ssh",
        };
        call.env("GIT_ALLOW_PROTOCOL", scheme);
        let call = call.args([
            "fetch",
            "--quiet",
            "--depth=1",
            "--no-tags",
            "--no-recurse-submodules",
            "--no-write-fetch-head",
            "--no-auto-maintenance",
            "--update-shallow",
            "--",
            &address,
            &refspec,
        ]);
        let limit = self.settings.limits.repository;
        match call
            .watched(folder, limit, request.timeout)
            .await
            .map_err(io("run git"))?
        {
            Ended::Done(_) => Ok(()),
            Ended::Failed(words) => {
                let why = proxy.as_ref().and_then(Proxy::refused).unwrap_or(words);
                Err(Error::Fetch(crate::framework::cut(&why, MAX_WORDS)))
            }
            Ended::TooLarge => {
                // What is half there is of no use.
                let _: std::io::Result<()> = std::fs::remove_dir_all(repository);
                Err(Error::TooLarge(format!(
                    "the repository takes more than {limit} bytes"
                )))
            }
            Ended::TimedOut => Err(Error::Timeout(request.timeout)),
        }
    }

    async fn proxy(&self, port: u16) -> Result<Proxy, Error> {
        let resolver: Arc<dyn dialer::Resolve> = Arc::new(SystemResolver);
        let dialer = Dialer::new(&self.settings.allowed_hosts, resolver, DIAL);
        let ports = BTreeSet::from([port]);
        Proxy::start(dialer, self.ids.uuid().to_string(), ports)
            .await
            .map_err(io("open a port of the loopback interface"))
    }

    /// ssh with nothing but what the Secret brings.
    fn ssh(&self, keys: &Path, credentials: &Credentials) -> Result<String, Error> {
        let write = |name: &str, bytes: Option<&Vec<u8>>| -> Result<PathBuf, Error> {
            use std::io::Write as _;
            use std::os::unix::fs::OpenOptionsExt;
            let path = keys.join(name);
            let file = std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path);
            file.and_then(|mut file| file.write_all(bytes.map_or(&[][..], Vec::as_slice)))
                .map_err(io("write the keys of ssh"))?;
            Ok(path)
        };
        let hosts = write("known_hosts", credentials.known_hosts.as_ref())?;
        let identity = write("identity", credentials.identity.as_ref())?;
        let exe = self.settings.exe.clone().unwrap_or_default();
        Ok(format!(
            "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=none \
             -o UserKnownHostsFile='{}' -o IdentityAgent=none -o IdentitiesOnly=yes -i '{}' -o ForwardAgent=no \
             -o ControlPath=none -o ProxyCommand=\"{}\"",
            hosts.display(),
            identity.display(),
            proxy::command(&exe),
        ))
    }

    fn call(&self, folder: &Path) -> Call {
        Call::new(&self.settings.program, &self.settings.path, folder)
    }

    async fn check(&self, call: Call, timeout: Duration) -> Result<(), Error> {
        match call
            .run(None, MAX_LISTING, timeout)
            .await
            .map_err(io("run git"))?
        {
            Ended::Done(_) => Ok(()),
            Ended::Failed(words) => Err(Error::Fetch(crate::framework::cut(&words, MAX_WORDS))),
            Ended::TooLarge => Err(Error::TooLarge("git says too much".to_owned())),
            Ended::TimedOut => Err(Error::Timeout(timeout)),
        }
    }

    async fn output(&self, repository: &Path, args: &[&str], limit: usize) -> Result<Vec<u8>, Error> {
        self.output_of(self.call(repository).args(args.iter().copied()), None, limit)
            .await
    }

    async fn output_of(&self, call: Call, input: Option<Vec<u8>>, limit: usize) -> Result<Vec<u8>, Error> {
        match call.run(input, limit, READ).await.map_err(io("run git"))? {
            Ended::Done(output) => Ok(output),
            Ended::Failed(words) => Err(Error::Fetch(crate::framework::cut(&words, MAX_WORDS))),
            Ended::TooLarge => Err(Error::TooLarge(format!("git gives more than {limit} bytes"))),
            Ended::TimedOut => Err(Error::Timeout(READ)),
        }
    }

    /// The manifests of a commit: regular files only, no links, no submodules, nothing in hidden folders.
    async fn files(
        &self,
        repository: &Path,
        commit: &str,
        path: &str,
    ) -> Result<Vec<(String, Vec<u8>)>, Error> {
        let limits = self.settings.limits;
        let mut args = vec!["ls-tree", "-r", "-z", "-l", "--full-tree", commit];
        let below;
        if !path.is_empty() {
            below = format!("{path}/");
            args.extend(["--", &below]);
        }
        let listing = self.output(repository, &args, MAX_LISTING).await?;
        let entries: Vec<Entry> = listing.split(|byte| *byte == 0).filter_map(Entry::read).collect();
        if !path.is_empty() && entries.is_empty() {
            return Err(Error::NoPath(path.to_owned()));
        }
        let entries: Vec<Entry> = entries
            .into_iter()
            .filter(|entry| entry.is_manifest(path))
            .collect();
        if entries.len() > limits.files {
            return Err(Error::TooLarge(format!(
                "there are more than {} manifests",
                limits.files
            )));
        }
        let mut total = 0;
        for entry in &entries {
            if entry.size > limits.file {
                return Err(Error::TooLarge(format!(
                    "{} has more than {} bytes",
                    entry.path, limits.file
                )));
            }
            total += entry.size;
        }
        if total > limits.total {
            return Err(Error::TooLarge(format!(
                "the manifests have more than {} bytes",
                limits.total
            )));
        }
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let wanted: String = entries.iter().map(|entry| format!("{}\n", entry.id)).collect();
        let frame = 128 * entries.len() as u64;
        let limit = usize::try_from(total + frame).unwrap_or(usize::MAX);
        let call = self.call(repository).args(["cat-file", "--batch"]);
        let bytes = self.output_of(call, Some(wanted.into_bytes()), limit).await?;
        contents(&bytes, entries)
    }
}

/// A file of a commit.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    id: String,
    size: u64,
    path: String,
}

impl Entry {
    /// Reads `MODE TYPE ID SIZE<tab>PATH`; none for what is no regular file or has a name that is no text.
    fn read(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let (head, path) = line.split_once('\t')?;
        let mut words = head.split_whitespace();
        let (mode, kind, id, size) = (words.next()?, words.next()?, words.next()?, words.next()?);
        (kind == "blob" && matches!(mode, "100644" | "100755")).then_some(Self {
            id: id.to_owned(),
            size: size.parse().ok()?,
            path: path.to_owned(),
        })
    }

    fn is_manifest(&self, below: &str) -> bool {
        let rest = self.path.strip_prefix(below).unwrap_or(&self.path);
        let hidden = rest.split('/').any(|part| part.starts_with('.'));
        let kind = rest.rsplit_once('.').map(|(_, kind)| kind);
        !hidden && matches!(kind, Some("yaml" | "yml" | "json"))
    }
}

/// Takes the answers of `cat-file --batch` apart: `ID blob SIZE`, a break, the bytes, a break.
fn contents(mut bytes: &[u8], entries: Vec<Entry>) -> Result<Vec<(String, Vec<u8>)>, Error> {
    let mut files = Vec::with_capacity(entries.len());
    for entry in entries {
        let broken = || Error::Fetch(format!("git does not give {}", entry.path));
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(broken)?;
        let head = std::str::from_utf8(&bytes[..end]).map_err(|_| broken())?;
        if head != format!("{} blob {}", entry.id, entry.size) {
            return Err(broken());
        }
        let start = end + 1;
        let size = usize::try_from(entry.size).map_err(|_| broken())?;
        let content = bytes.get(start..start + size).ok_or_else(broken)?;
        bytes = bytes.get(start + size + 1..).ok_or_else(broken)?;
        files.push((entry.path, content.to_vec()));
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
