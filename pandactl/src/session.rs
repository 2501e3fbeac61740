//! One invocation: the global flags, the streams, and the server once it is needed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use panda_api::meta::new_traceparent;
use panda_api::scheme::{self, KindInfo};
use panda_client::config::Kubeconfig;
use panda_client::discovery::Discovery;
use panda_client::{ApiResource, Client, Config, DynamicApi, Identity, Options};

use crate::error::{Error, Result};
use crate::io::{ColorChoice, Io};
use crate::output::text;

/// Flags that every command takes.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Global {
    /// Namespace to work in [default: that of the context, or `default`]
    #[arg(
        short,
        long,
        global = true,
        value_name = "NAMESPACE",
        help_heading = "Global options"
    )]
    pub namespace: Option<String>,
    /// Context of the kubeconfig [default: its current one]
    #[arg(long, global = true, value_name = "NAME", help_heading = "Global options")]
    pub context: Option<String>,
    /// Kubeconfig file [default: $PANDACONFIG, or ~/.panda/config]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub kubeconfig: Option<PathBuf>,
    /// When to colour
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "auto",
        hide_possible_values = true,
        value_name = "auto|always|never",
        help_heading = "Global options"
    )]
    pub color: ColorChoice,
    /// Longest time for one request, for example 30s; 0: no limit
    #[arg(long, global = true, value_name = "DURATION", value_parser = crate::args::duration, help_heading = "Global options")]
    pub request_timeout: Option<Duration>,
    /// Say more on standard error; -v=2 for every request
    #[arg(short = 'v', long = "v", global = true, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "1", default_value = "0", hide_default_value = true, help_heading = "Global options")]
    pub verbosity: u8,
}

/// A command's surroundings.
#[derive(Debug)]
pub struct Session<'a> {
    /// The global flags.
    pub global: Global,
    /// Streams, environment, clock.
    pub io: &'a mut Io,
    config: Option<Config>,
    client: Option<Client>,
    discovery: Option<Discovery>,
}

impl<'a> Session<'a> {
    /// A session that has not talked to a server yet.
    #[must_use]
    pub const fn new(global: Global, io: &'a mut Io) -> Self {
        Self {
            global,
            io,
            config: None,
            client: None,
            discovery: None,
        }
    }

    /// The kubeconfig file.
    ///
    /// # Errors
    /// When there is no home folder and nothing names a file.
    pub fn config_path(&self) -> Result<PathBuf> {
        if let Some(path) = &self.global.kubeconfig {
            return Ok(path.clone());
        }
        self.io.env.config().ok_or_else(|| {
            Error::config("there is no home folder to look for a configuration in")
                .hint("name a kubeconfig with --kubeconfig, or set PANDACONFIG")
        })
    }

    /// The kubeconfig.
    ///
    /// # Errors
    /// When it is not there or cannot be read.
    pub fn kubeconfig(&self) -> Result<Kubeconfig> {
        let path = self.config_path()?;
        let content = std::fs::read_to_string(&path).map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                Error::config(format!("there is no configuration at {}", path.display()))
                    .hint("start a server with `pandactl up`, which writes one; or name a kubeconfig with --kubeconfig")
            } else {
                Error::config(format!("cannot read {}: {source}", path.display())).hint("check its owner and mode")
            }
        })?;
        Kubeconfig::parse(&content).map_err(|error| Error::from(error).during(&path.display().to_string()))
    }

    /// Who the configuration says that one is.
    ///
    /// # Errors
    /// When the configuration cannot be read.
    pub fn identity(&mut self) -> Result<Identity> {
        Ok(self.config()?.identity.clone())
    }

    fn config(&mut self) -> Result<&Config> {
        if self.config.is_none() {
            let path = self.config_path()?;
            let folder = path.parent().map(PathBuf::from).unwrap_or_default();
            let config = self
                .kubeconfig()?
                .resolve(self.global.context.as_deref(), &|file| {
                    std::fs::read(folder.join(file))
                })
                .map_err(|error| Error::from(error).during(&path.display().to_string()))?;
            self.config = Some(config);
        }
        self.config
            .as_ref()
            .ok_or_else(|| Error::internal("the configuration is gone"))
    }

    /// The address of the server.
    ///
    /// # Errors
    /// When the configuration cannot be read.
    pub fn server(&mut self) -> Result<String> {
        Ok(self.config()?.server.to_string())
    }

    /// A client of the server.
    ///
    /// # Errors
    /// When the configuration says none, or one that cannot be used.
    pub fn client(&mut self) -> Result<Client> {
        if let Some(client) = &self.client {
            return Ok(client.clone());
        }
        let stderr = self.io.stderr.clone();
        let timeout = self.global.request_timeout;
        let config = self.config()?;
        let mut options = Options {
            user_agent: concat!("pandactl/", env!("CARGO_PKG_VERSION")).to_owned(),
            on_warning: Some(Arc::new(move |warning| {
                stderr.line(&format!("Warning: {}", text::line(warning)))
            })),
            max_response_bytes: 512 << 20,
            ..Options::default()
        };
        match timeout {
            Some(Duration::ZERO) => options.request_timeout = Duration::from_secs(365 * 24 * 3600),
            Some(timeout) => options.request_timeout = timeout,
            None => {}
        }
        let client = Client::connect(config, options)?;
        // One command is one trace, which goes on in whatever comes of the objects that it makes.
        let client = client.with_traceparent(Some(&new_traceparent(&*self.io.ids)));
        self.client = Some(client.clone());
        Ok(client)
    }

    /// The kinds of the server.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn discovery(&mut self) -> Result<&Discovery> {
        if self.discovery.is_none() {
            let found = Discovery::fetch(&self.client()?).await?;
            self.discovery = Some(found);
        }
        self.discovery
            .as_ref()
            .ok_or_else(|| Error::internal("the list of kinds is gone"))
    }

    /// The kind that a word means. Kinds that this program knows cost no request.
    ///
    /// # Errors
    /// When no kind is called that.
    pub async fn resolve(&mut self, word: &str) -> Result<ApiResource> {
        if let Some(info) = scheme::by_word(word) {
            return Ok(resource_of(info));
        }
        Ok(self.discovery().await?.resolve(word)?.clone())
    }

    /// The kind of a manifest, if the server has it.
    ///
    /// # Errors
    /// When the server does not answer.
    pub async fn find(&mut self, api_version: &str, kind: &str) -> Result<Option<ApiResource>> {
        if let Some(info) = scheme::by_kind(api_version, kind) {
            return Ok(Some(resource_of(info)));
        }
        Ok(self.discovery().await?.find(api_version, kind).cloned())
    }

    /// The namespace to work in.
    ///
    /// # Errors
    /// When the configuration cannot be read.
    pub fn namespace(&mut self) -> Result<String> {
        match &self.global.namespace {
            Some(namespace) => Ok(namespace.clone()),
            None => Ok(self.config()?.namespace.clone()),
        }
    }

    /// Objects of a kind in the session's namespace.
    ///
    /// # Errors
    /// See [`Self::client`].
    pub fn api(&mut self, resource: &ApiResource) -> Result<DynamicApi> {
        let namespace = self.namespace()?;
        Ok(DynamicApi::dynamic(
            self.client()?,
            resource.clone(),
            Some(&namespace),
        ))
    }

    /// Objects of a kind in one namespace, or in all.
    ///
    /// # Errors
    /// See [`Self::client`].
    pub fn api_in(&mut self, resource: &ApiResource, namespace: Option<&str>) -> Result<DynamicApi> {
        Ok(DynamicApi::dynamic(self.client()?, resource.clone(), namespace))
    }

    /// Whether standard output is coloured (tables and descriptions only: machine formats never are).
    #[must_use]
    pub fn color_out(&self) -> bool {
        self.io.env.color(self.global.color, self.io.terminal.stdout)
    }

    /// Whether standard error is coloured.
    #[must_use]
    pub fn color_err(&self) -> bool {
        self.io.env.color(self.global.color, self.io.terminal.stderr)
    }

    /// Columns to fit tables into: those of the terminal, if standard output is one.
    #[must_use]
    pub fn width(&self) -> Option<usize> {
        self.io.terminal.width.filter(|_| self.io.terminal.stdout)
    }

    /// Writes a line about what happens, as opposed to data.
    pub fn note(&self, line: &str) {
        self.io.stderr.line(line);
    }

    /// Writes data.
    ///
    /// # Errors
    /// When standard output takes no more.
    pub fn out(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.io.out(bytes)
    }
}

/// The names of a kind that this program knows.
#[must_use]
pub fn resource_of(info: &KindInfo) -> ApiResource {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    ApiResource {
        group: info.group.to_owned(),
        version: info.version.to_owned(),
        kind: info.kind.to_owned(),
        plural: info.plural.to_owned(),
        singular: info.singular.to_owned(),
        namespaced: info.namespaced,
        verbs: owned(info.verbs),
        short_names: owned(info.short_names),
        categories: owned(info.categories),
        subresources: if info.has_status {
            vec!["status".to_owned()]
        } else {
            Vec::new()
        },
    }
}

/// `task.panda.dev/x`, or `secret/x` for the core group.
#[must_use]
pub fn object_name(resource: &ApiResource, name: &str) -> String {
    format!("{}/{}", qualified(resource), text::line(name))
}

/// `task.panda.dev`, or `secret` for the core group.
#[must_use]
pub fn qualified(resource: &ApiResource) -> String {
    if resource.group.is_empty() {
        resource.singular.clone()
    } else {
        format!("{}.{}", resource.singular, resource.group)
    }
}
