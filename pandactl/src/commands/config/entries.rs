//! Clusters and users of a kubeconfig, set from the command line.

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use panda_client::config::{Kubeconfig, parse_server};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::output::text;

/// Files of certificates, keys and tokens are no larger.
const MAX_BYTES: u64 = 1 << 20;

/// Arguments of `config set-cluster`.
#[derive(Clone, Debug, clap::Args)]
pub struct SetCluster {
    /// Its name
    name: String,
    /// Address of the server, https://host:port
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// File of the authority that signs the server's certificate (PEM)
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,
    /// Name to expect in the server's certificate, if it is not the address's
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// Keep the content of files, not their names
    #[arg(long)]
    embed_certs: bool,
}

/// Arguments of `config set-credentials`.
#[derive(Clone, Debug, clap::Args)]
pub struct SetCredentials {
    /// Its name
    name: String,
    /// File of the client's certificate (PEM)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["token", "token_file"])]
    client_certificate: Option<PathBuf>,
    /// File of the certificate's private key (PEM)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["token", "token_file"])]
    client_key: Option<PathBuf>,
    /// Token (other users of this machine see a command line: prefer --token-file)
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// File that holds the token; it is read each time
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Keep the content of files, not their names
    #[arg(long)]
    embed_certs: bool,
}

const CERTIFICATE: [&str; 4] = [
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
];
const TOKEN: [&str; 2] = ["token", "tokenFile"];

impl SetCluster {
    /// The name, and whether it was made or changed.
    pub(super) fn apply(self, config: &mut Kubeconfig) -> Result<(String, &'static str)> {
        let mut fields = Map::new();
        if let Some(server) = self.server {
            parse_server(&server, "--server").map_err(|error| {
                Error::user(error.to_string()).hint("for example --server https://panda.example.com:7443")
            })?;
            fields.insert("server".into(), server.trim_end_matches('/').into());
        }
        if let Some(file) = &self.certificate_authority {
            named(
                &mut fields,
                "certificate-authority",
                file,
                self.embed_certs,
                "CERTIFICATE",
            )?;
        }
        if let Some(name) = self.tls_server_name {
            fields.insert("tls-server-name".into(), name.into());
        }
        if fields.is_empty() {
            return Err(Error::user("nothing to set")
                .hint("give --server, --certificate-authority or --tls-server-name"));
        }
        let was = config.change_cluster(&self.name, fields);
        Ok((text::line(&self.name), done(was)))
    }
}

impl SetCredentials {
    /// The name, and whether it was made or changed.
    pub(super) fn apply(self, config: &mut Kubeconfig) -> Result<(String, &'static str)> {
        let mut fields = Map::new();
        // One way in at a time: what was set last is what is used.
        let other: &[&str] = match (&self.token, &self.token_file) {
            (None, None) => &TOKEN,
            _ => &CERTIFICATE,
        };
        let files = [
            ("client-certificate", &self.client_certificate, "CERTIFICATE"),
            ("client-key", &self.client_key, "PRIVATE KEY"),
        ];
        for (key, file, holds) in files {
            if let Some(file) = file {
                named(&mut fields, key, file, self.embed_certs, holds)?;
            }
        }
        if let Some(token) = self.token {
            if token.trim().is_empty() {
                return Err(
                    Error::user("--token: it is empty").hint("`pandactl create token NAME` makes one")
                );
            }
            fields.insert("token".into(), token.into());
            fields.insert("tokenFile".into(), Value::Null);
        }
        if let Some(file) = &self.token_file {
            read(file)?;
            fields.insert("tokenFile".into(), absolute(file)?.into());
            fields.insert("token".into(), Value::Null);
        }
        if fields.is_empty() {
            return Err(Error::user("nothing to set")
                .hint("give --client-certificate and --client-key, or --token-file, or --token"));
        }
        fields.extend(other.iter().map(|key| ((*key).to_owned(), Value::Null)));
        let was = config.change_user(&self.name, fields);
        Ok((text::line(&self.name), done(was)))
    }
}

const fn done(was: bool) -> &'static str {
    if was { "modified" } else { "set" }
}

/// Sets a field that names a file, or holds its content; the other of the two goes.
fn named(fields: &mut Map<String, Value>, key: &str, file: &Path, embed: bool, holds: &str) -> Result<()> {
    let content = read(file)?;
    if !String::from_utf8_lossy(&content).contains(&format!("{holds}-----")) {
        let text = format!("--{key}: {} holds no {holds} in PEM", file.display());
        return Err(Error::user(text).hint("a file in PEM has a line -----BEGIN ...-----"));
    }
    let data = format!("{key}-data");
    let (name, value) = if embed {
        (Value::Null, STANDARD.encode(content).into())
    } else {
        (absolute(file)?.into(), Value::Null)
    };
    fields.insert(key.to_owned(), name);
    fields.insert(data, value);
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>> {
    let failed = |error: &std::io::Error| Error::file("read", file, error);
    let meta = std::fs::metadata(file).map_err(|error| failed(&error))?;
    if meta.len() > MAX_BYTES {
        let text = format!(
            "{}: larger than {MAX_BYTES} bytes: no certificate, key or token",
            file.display()
        );
        return Err(Error::user(text).hint("check the path"));
    }
    std::fs::read(file).map_err(|error| failed(&error))
}

/// The name of a file that means the same from every folder.
fn absolute(file: &Path) -> Result<String> {
    let path = std::path::absolute(file).map_err(|error| Error::file("read", file, &error))?;
    Ok(path.display().to_string())
}
