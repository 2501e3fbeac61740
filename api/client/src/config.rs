//! kubeconfig files: reading, editing, writing, and what a context of one means for a client.
//!
//! Nothing here reads the environment, the home folder or a file: contents come in, and files that a kubeconfig
//! names are read through a function that the caller passes in.

use std::fmt;
use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use serde_json::{Map, Value, json};

/// A kubeconfig is no larger.
const MAX_BYTES: usize = 1 << 20;

/// How to reach one server, as one identity.
#[derive(Clone, PartialEq, Eq)]
pub struct Config {
    /// Address, for example `https://127.0.0.1:7443`.
    pub server: Uri,
    /// Authorities to trust, PEM. No other is trusted.
    pub ca: Vec<u8>,
    /// Name that the server's certificate must hold, if it is not the host of `server`.
    pub tls_server_name: Option<String>,
    /// Who the client is.
    pub identity: Identity,
    /// Namespace used when nothing else is said.
    pub namespace: String,
}

/// Who a client is.
#[derive(Clone, PartialEq, Eq)]
pub enum Identity {
    /// A client certificate and its key, PEM.
    ClientCert {
        /// Certificate chain.
        cert: Vec<u8>,
        /// Private key.
        key: Vec<u8>,
    },
    /// A bearer token.
    Bearer(String),
    /// Nobody.
    None,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("server", &self.server)
            .field("identity", &self.identity)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ClientCert { .. } => "ClientCert(..)",
            Self::Bearer(_) => "Bearer(..)",
            Self::None => "None",
        })
    }
}

/// What is wrong with a kubeconfig.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no YAML.
    #[error("not YAML: {0}")]
    Syntax(String),
    /// It is larger than any kubeconfig.
    #[error("larger than {MAX_BYTES} bytes: not a kubeconfig")]
    TooLarge,
    /// A field is missing or wrong.
    #[error("{field}: {problem}")]
    Field {
        /// Path of the field, for example `clusters[0].cluster.server`.
        field: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A file that a field names cannot be read.
    #[error("{field}: cannot read {path}")]
    File {
        /// Path of the field.
        field: String,
        /// The file.
        path: String,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
}

fn field(field: impl Into<String>, problem: impl Into<String>) -> Error {
    Error::Field {
        field: field.into(),
        problem: problem.into(),
    }
}

/// A context: which cluster, as which user, in which namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// Its name.
    pub name: String,
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the user.
    pub user: String,
    /// Namespace, if it says one.
    pub namespace: Option<String>,
}

/// A kubeconfig. Fields that are not understood are kept when it is edited.
#[derive(Clone, Debug, PartialEq)]
pub struct Kubeconfig {
    doc: Map<String, Value>,
}

impl Default for Kubeconfig {
    fn default() -> Self {
        let mut doc = Map::new();
        doc.insert("apiVersion".into(), "v1".into());
        doc.insert("kind".into(), "Config".into());
        for list in ["clusters", "contexts", "users"] {
            doc.insert(list.into(), json!([]));
        }
        doc.insert("current-context".into(), "".into());
        Self { doc }
    }
}

/// Reads a file that a kubeconfig names.
pub type ReadFile<'a> = &'a dyn Fn(&str) -> io::Result<Vec<u8>>;

impl Kubeconfig {
    /// Reads the contents of a kubeconfig.
    ///
    /// # Errors
    /// When it is no YAML mapping, or its kind is another.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_BYTES {
            return Err(Error::TooLarge);
        }
        let doc: Value = serde_yaml::from_str(text).map_err(|e| Error::Syntax(e.to_string()))?;
        let doc = match doc {
            Value::Null => return Ok(Self::default()),
            Value::Object(doc) => doc,
            _ => {
                return Err(field(
                    "(root)",
                    "want a mapping with clusters, users and contexts",
                ));
            }
        };
        if let Some(kind) = doc.get("kind")
            && kind != "Config"
        {
            return Err(field("kind", format!("want Config, found {kind}")));
        }
        Ok(Self { doc })
    }

    /// Writes it as YAML.
    ///
    /// # Errors
    /// When a value that was read cannot be written as YAML.
    pub fn to_yaml(&self) -> Result<String, Error> {
        serde_yaml::to_string(&self.doc).map_err(|e| Error::Syntax(e.to_string()))
    }

    /// Name of the context used when none is said.
    #[must_use]
    pub fn current_context(&self) -> Option<&str> {
        self.doc
            .get("current-context")
            .and_then(Value::as_str)
            .filter(|s| !s.is_empty())
    }

    /// Chooses the context used when none is said.
    ///
    /// # Errors
    /// When there is no such context.
    pub fn set_current_context(&mut self, name: &str) -> Result<(), Error> {
        self.entry("contexts", name)?;
        self.doc.insert("current-context".into(), name.into());
        Ok(())
    }

    /// All contexts.
    ///
    /// # Errors
    /// When one is malformed.
    pub fn contexts(&self) -> Result<Vec<Context>, Error> {
        let mut all = Vec::new();
        for (index, entry) in self.list("contexts")?.iter().enumerate() {
            let path = format!("contexts[{index}]");
            let name = text(entry, &path, "name")?.ok_or_else(|| missing(&path, "name"))?;
            let inner = &entry["context"];
            let path = format!("{path}.context");
            all.push(Context {
                name,
                cluster: text(inner, &path, "cluster")?.ok_or_else(|| missing(&path, "cluster"))?,
                user: text(inner, &path, "user")?.unwrap_or_default(),
                namespace: text(inner, &path, "namespace")?,
            });
        }
        Ok(all)
    }

    /// Adds or replaces a context.
    pub fn set_context(&mut self, context: &Context) {
        let mut inner = json!({"cluster": context.cluster, "user": context.user});
        if let Some(namespace) = &context.namespace {
            inner["namespace"] = namespace.as_str().into();
        }
        self.put("contexts", &context.name, "context", inner);
    }

    /// Removes a context. The current one may be removed, too: then none is.
    ///
    /// # Errors
    /// When there is no such context.
    pub fn remove_context(&mut self, name: &str) -> Result<(), Error> {
        self.entry("contexts", name)?;
        if let Some(Value::Array(entries)) = self.doc.get_mut("contexts") {
            entries.retain(|entry| entry["name"] != name);
        }
        if self.current_context() == Some(name) {
            self.doc.insert("current-context".into(), "".into());
        }
        Ok(())
    }

    /// Gives a context another name; the current one stays the current one.
    ///
    /// # Errors
    /// When there is no such context, or one of the new name.
    pub fn rename_context(&mut self, name: &str, new: &str) -> Result<(), Error> {
        let (_, path) = self.entry("contexts", name)?;
        if self.entry("contexts", new).is_ok() {
            return Err(field(path, format!("there is a context named {new:?} already")));
        }
        if let Some(Value::Array(entries)) = self.doc.get_mut("contexts") {
            for entry in entries.iter_mut().filter(|entry| entry["name"] == name) {
                entry["name"] = new.into();
            }
        }
        if self.current_context() == Some(name) {
            self.doc.insert("current-context".into(), new.into());
        }
        Ok(())
    }

    /// Makes a cluster, or changes one: each field gets its value, is removed where that is null, and stays if it is not
    /// named. Whether there was such a cluster.
    pub fn change_cluster(&mut self, name: &str, fields: Map<String, Value>) -> bool {
        self.change("clusters", name, "cluster", fields)
    }

    /// The same for a user.
    pub fn change_user(&mut self, name: &str, fields: Map<String, Value>) -> bool {
        self.change("users", name, "user", fields)
    }

    fn change(&mut self, list: &str, name: &str, key: &str, fields: Map<String, Value>) -> bool {
        let old = self.entry(list, name).ok().map(|(entry, _)| entry[key].clone());
        let was = old.is_some();
        let mut inner = match old {
            Some(Value::Object(inner)) => inner,
            _ => Map::new(),
        };
        for (field, value) in fields {
            match value {
                Value::Null => drop(inner.remove(&field)),
                value => drop(inner.insert(field, value)),
            }
        }
        self.put(list, name, key, inner.into());
        was
    }

    /// Adds or replaces a cluster, with its authorities inline.
    pub fn set_cluster(&mut self, name: &str, server: &str, ca_pem: &[u8]) {
        let inner = json!({"server": server, "certificate-authority-data": STANDARD.encode(ca_pem)});
        self.put("clusters", name, "cluster", inner);
    }

    /// Adds or replaces a user, with its credentials inline.
    pub fn set_user(&mut self, name: &str, identity: &Identity) {
        let inner = match identity {
            Identity::ClientCert { cert, key } => json!({
                "client-certificate-data": STANDARD.encode(cert),
                "client-key-data": STANDARD.encode(key),
            }),
            Identity::Bearer(token) => json!({"token": token}),
            Identity::None => json!({}),
        };
        self.put("users", name, "user", inner);
    }

    /// Adds or replaces cluster, user and context of one name, and makes that context the current one.
    pub fn set_all(&mut self, name: &str, config: &Config) {
        self.set_cluster(name, config.server.to_string().trim_end_matches('/'), &config.ca);
        self.set_user(name, &config.identity);
        self.set_context(&Context {
            name: name.to_owned(),
            cluster: name.to_owned(),
            user: name.to_owned(),
            namespace: Some(config.namespace.clone()).filter(|n| !n.is_empty() && n != "default"),
        });
        self.doc.insert("current-context".into(), name.into());
    }

    /// What a context (absent: the current one) means for a client. Files that it names are read with `read`.
    ///
    /// # Errors
    /// When something is missing, malformed or not supported; the error names the field.
    pub fn resolve(&self, context: Option<&str>, read: ReadFile<'_>) -> Result<Config, Error> {
        let name = match context {
            Some(name) => name,
            None => self
                .current_context()
                .ok_or_else(|| field("current-context", "not set: name a context, or set one"))?,
        };
        let (_, path) = self.entry("contexts", name)?;
        let context = self
            .contexts()?
            .into_iter()
            .find(|c| c.name == name)
            .ok_or_else(|| field(path, "no such context"))?;
        let (cluster, cluster_path) = self.entry("clusters", &context.cluster)?;
        let (cluster, cluster_path) = (&cluster["cluster"], format!("{cluster_path}.cluster"));
        let identity = if context.user.is_empty() {
            Identity::None
        } else {
            let (user, path) = self.entry("users", &context.user)?;
            identity(&user["user"], &format!("{path}.user"), read)?
        };
        if cluster["insecure-skip-tls-verify"] == true {
            return Err(field(
                format!("{cluster_path}.insecure-skip-tls-verify"),
                "not supported: give certificate-authority-data instead",
            ));
        }
        Ok(Config {
            server: server(cluster, &cluster_path)?,
            ca: data(cluster, &cluster_path, "certificate-authority", read)?.ok_or_else(|| {
                field(
                    format!("{cluster_path}.certificate-authority-data"),
                    "missing: no authority is trusted unless it is named",
                )
            })?,
            tls_server_name: text(cluster, &cluster_path, "tls-server-name")?,
            identity,
            namespace: context.namespace.unwrap_or_else(|| "default".to_owned()),
        })
    }

    fn list(&self, list: &str) -> Result<&[Value], Error> {
        match self.doc.get(list) {
            None | Some(Value::Null) => Ok(&[]),
            Some(Value::Array(entries)) => Ok(entries),
            Some(_) => Err(field(list, "want a list")),
        }
    }

    /// The entry of a list with that name, and its path.
    fn entry(&self, list: &str, name: &str) -> Result<(&Value, String), Error> {
        let entries = self.list(list)?;
        match entries.iter().position(|e| e["name"] == name) {
            Some(index) => Ok((&entries[index], format!("{list}[{index}]"))),
            None => {
                let names: Vec<&str> = entries.iter().filter_map(|e| e["name"].as_str()).collect();
                let found = if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                };
                Err(field(list, format!("no entry named {name:?} (found: {found})")))
            }
        }
    }

    fn put(&mut self, list: &str, name: &str, key: &str, inner: Value) {
        let entry = json!({"name": name, key: inner});
        let entries = self.doc.entry(list).or_insert_with(|| json!([]));
        if !entries.is_array() {
            *entries = json!([]);
        }
        if let Value::Array(entries) = entries {
            match entries.iter_mut().find(|e| e["name"] == name) {
                Some(old) => *old = entry,
                None => entries.push(entry),
            }
        }
    }
}

fn missing(path: &str, key: &str) -> Error {
    field(format!("{path}.{key}"), "missing")
}

fn text(map: &Value, path: &str, key: &str) -> Result<Option<String>, Error> {
    match &map[key] {
        Value::Null => Ok(None),
        Value::String(s) if s.is_empty() => Ok(None),
        Value::String(s) => Ok(Some(s.clone())),
        _ => Err(field(format!("{path}.{key}"), "want text")),
    }
}

fn server(cluster: &Value, path: &str) -> Result<Uri, Error> {
    let address = text(cluster, path, "server")?.ok_or_else(|| missing(path, "server"))?;
    parse_server(&address, &format!("{path}.server"))
}

/// The address of a server; `path` is the field that it stands in.
///
/// # Errors
/// When it is no `https://host:port`.
pub fn parse_server(address: &str, path: &str) -> Result<Uri, Error> {
    let uri: Uri = address
        .parse()
        .map_err(|_| field(path, format!("{address:?} is no address; want https://host:port")))?;
    if uri.scheme_str() != Some("https") || uri.host().is_none_or(str::is_empty) {
        return Err(field(path, format!("{address:?}: want https://host:port")));
    }
    Ok(uri)
}

/// `KEY-data` (base64), else the file that `KEY` names.
fn data(map: &Value, path: &str, key: &str, read: ReadFile<'_>) -> Result<Option<Vec<u8>>, Error> {
    let inline = format!("{key}-data");
    if let Some(encoded) = text(map, path, &inline)? {
        let compact: String = encoded.split_ascii_whitespace().collect();
        return STANDARD
            .decode(compact)
            .map(Some)
            .map_err(|e| field(format!("{path}.{inline}"), format!("not base64: {e}")));
    }
    text(map, path, key)?
        .map(|file| read_file(&file, &format!("{path}.{key}"), read))
        .transpose()
}

fn read_file(file: &str, path: &str, read: ReadFile<'_>) -> Result<Vec<u8>, Error> {
    read(file).map_err(|source| Error::File {
        field: path.to_owned(),
        path: file.to_owned(),
        source,
    })
}

fn identity(user: &Value, path: &str, read: ReadFile<'_>) -> Result<Identity, Error> {
    for key in ["exec", "auth-provider", "username", "password"] {
        if !user[key].is_null() {
            return Err(field(
                format!("{path}.{key}"),
                "not supported: use a client certificate or a token",
            ));
        }
    }
    let cert = data(user, path, "client-certificate", read)?;
    let key = data(user, path, "client-key", read)?;
    match (cert, key) {
        (Some(cert), Some(key)) => return Ok(Identity::ClientCert { cert, key }),
        (Some(_), None) => {
            return Err(field(
                format!("{path}.client-key-data"),
                "missing beside the certificate",
            ));
        }
        (None, Some(_)) => {
            return Err(field(
                format!("{path}.client-certificate-data"),
                "missing beside the key",
            ));
        }
        (None, None) => {}
    }
    if let Some(token) = text(user, path, "token")? {
        return Ok(Identity::Bearer(token));
    }
    if let Some(file) = text(user, path, "tokenFile")? {
        let at = format!("{path}.tokenFile");
        let token =
            String::from_utf8(read_file(&file, &at, read)?).map_err(|_| field(at, "the file is no text"))?;
        return Ok(Identity::Bearer(token.trim().to_owned()));
    }
    Ok(Identity::None)
}

#[cfg(test)]
mod tests;
