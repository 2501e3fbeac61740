//! The server, put together.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use panda_api::meta::{Clock, IdSource};
use panda_api::{Secret, scheme};
use panda_store::Store;
use panda_store::compactor::{Compactor, Policy};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::audit::{self, Audit, Bounds};
use crate::authn::{self, AccountTokens, Bearers, RunTokens, TokenAuthenticator, TokenKey};
use crate::authz::{self, Authorizer, Rbac};
use crate::certificates::{Certificates, JoinTokens, Renewals};
use crate::config::{self, Config};
use crate::endpoints::{Api, certificates, discovery, dispatch, health, openapi};
use crate::filters::Filters;
use crate::housekeeping::Housekeeping;
use crate::listener::Listener;
use crate::metrics::{Metrics, SharedRegistry};
use crate::pki::{self, Pki};
use crate::pressure::Pressure;
use crate::registry::{self, KeyError, ListOptions, Registry, Sealer};
use crate::respond::Failure;
use crate::tls;

/// Folder of the certificates inside the data folder.
pub(crate) const PKI_DIR: &str = "pki";
/// The key that seals Secrets, inside the data folder.
pub(crate) const SECRETS_KEY: &str = "secrets.key";
/// The key that signs tokens, inside the data folder.
pub(crate) const TOKENS_KEY: &str = "tokens.key";

/// Why a server could not be built or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration is no good.
    #[error("invalid configuration")]
    Config(#[from] config::Error),
    /// The certificates cannot be had.
    #[error("cannot set up the certificate authority")]
    Pki(#[from] pki::Error),
    /// TLS cannot be set up.
    #[error("cannot set up TLS")]
    Tls(#[from] tls::Error),
    /// The key of the Secrets cannot be had.
    #[error("cannot open the key that seals Secrets")]
    Sealer(#[from] KeyError),
    /// The key of the tokens cannot be had.
    #[error("cannot open the key that signs tokens")]
    Tokens(#[from] authn::KeyError),
    /// A stored Secret cannot be opened.
    #[error("the Secrets in the store were sealed with another key")]
    OtherKey(#[source] Box<registry::Error>),
    /// The audit log cannot be had.
    #[error("cannot open the audit log")]
    Audit(#[from] audit::Error),
    /// The first objects cannot be made.
    #[error("cannot make the first objects")]
    Bootstrap(#[from] registry::Error),
}

impl Error {
    /// What to do next, when that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::OtherKey(_) => Some(
                "put the secrets.key that belongs to this data folder back; without it its Secrets cannot be read",
            ),
            _ => None,
        }
    }

    /// Whether trying again, unchanged, may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Bootstrap(error) if error.is_retryable())
    }
}

/// What the server needs from outside.
pub struct Deps {
    /// Where objects live. A watch cache in front of it makes reads cheap.
    pub store: Arc<dyn Store>,
    /// Wall time and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Uids and random names.
    pub ids: Arc<dyn IdSource>,
    /// The process's metrics.
    pub metrics: SharedRegistry,
}

impl std::fmt::Debug for Deps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deps").finish_non_exhaustive()
    }
}

/// A server, ready to run.
pub struct Server {
    config: Config,
    deps: Deps,
    registry: Registry,
    pki: Arc<Pki>,
    audit: Audit,
    certificates: Arc<Certificates>,
    tls: Arc<rustls::ServerConfig>,
    rbac: Rbac,
    accounts: AccountTokens,
    run_tokens: RunTokens,
    bearers: Bearers,
    pressure: Arc<Pressure>,
    routes: Router,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Puts a server together; makes keys and certificates in the data folder where there are none.
    ///
    /// # Errors
    /// When the configuration is no good, or a key or certificate cannot be had.
    pub fn build(config: Config, deps: Deps) -> Result<Self, Error> {
        config.validate()?;
        let pki = Pki::open(
            &config.data_dir.join(PKI_DIR),
            Arc::clone(&deps.clock),
            Arc::clone(&deps.ids),
        )?;
        let mut names = config.tls_names.clone();
        if !config.listen.ip().is_unspecified() {
            names.push(config.listen.ip().to_string());
        }
        let identity = pki.server(&names)?;
        let tls = tls::server_config(&identity, pki.ca_certificate_pem(), Arc::clone(&deps.clock))?;
        let sealer = Sealer::open(&config.data_dir.join(SECRETS_KEY))?;
        let token_key = Arc::new(TokenKey::open(&config.data_dir.join(TOKENS_KEY))?);
        let registry = Registry::new(
            Arc::clone(&deps.store),
            sealer,
            Arc::clone(&deps.clock),
            Arc::clone(&deps.ids),
        );
        let audit = Audit::open(
            &audit::verify::folder(&config.data_dir),
            Bounds {
                segment: config.audit.max_file_bytes,
                total: config.audit.max_bytes,
            },
            Arc::clone(&deps.clock),
            Arc::clone(&deps.ids),
        )?;
        let run_tokens = RunTokens::new(Arc::clone(&token_key), registry.clone());
        let accounts = AccountTokens::new(token_key, registry.clone());
        let mut bearers = Bearers::default();
        let pki = Arc::new(pki);
        let certificates = Arc::new(Certificates::new(
            Arc::clone(&deps.store),
            Arc::clone(&pki),
            Arc::clone(&deps.clock),
            Arc::clone(&deps.ids),
            config.certificates.device_life.get(),
        ));
        bearers.extend(vec![
            Arc::new(run_tokens.clone()),
            Arc::new(accounts.clone()),
            Arc::new(JoinTokens(Arc::clone(&certificates))),
            Arc::new(Renewals(Arc::clone(&certificates))),
        ]);
        let pressure = Pressure::new(config.data_dir.clone(), config.disk_pressure_bytes, &deps.metrics);
        Ok(Self {
            config,
            deps,
            registry,
            pki,
            audit,
            certificates,
            tls,
            rbac: Rbac::default(),
            accounts,
            run_tokens,
            bearers,
            pressure: Arc::new(pressure),
            routes: Router::new(),
        })
    }

    /// The objects, for services in the same process.
    #[must_use]
    pub fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// The certificate authority, for kubeconfigs and device certificates.
    #[must_use]
    pub fn pki(&self) -> Arc<Pki> {
        Arc::clone(&self.pki)
    }

    /// Whether the disk is nearly full.
    #[must_use]
    pub fn pressure(&self) -> Arc<Pressure> {
        Arc::clone(&self.pressure)
    }

    /// Makes and checks the tokens of Runs.
    #[must_use]
    pub fn run_tokens(&self) -> RunTokens {
        self.run_tokens.clone()
    }

    /// Further kinds of tokens, asked after the server's own.
    #[must_use]
    pub fn with_tokens(mut self, tokens: Vec<Arc<dyn TokenAuthenticator>>) -> Self {
        self.bearers.extend(tokens);
        self
    }

    /// Further routes (gRPC services, subresources). They stand behind the same filters and find the
    /// [`crate::authn::User`] in the extensions of a request.
    #[must_use]
    pub fn with_routes(mut self, routes: Router) -> Self {
        self.routes = self.routes.merge(routes);
        self
    }

    /// Serves until `stop`, then lets open requests end.
    ///
    /// # Errors
    /// When the first objects cannot be made.
    pub async fn run(self, listener: TcpListener, stop: CancellationToken) -> Result<(), Error> {
        self.registry.bootstrap().await?;
        authz::bootstrap(&self.registry).await?;
        self.rbac.load(&self.registry).await?;
        let authorizer: Arc<dyn Authorizer> = Arc::new(self.rbac.clone());
        // Another key would make every list of Secrets fail later, and new ones unreadable for the old key.
        let one = ListOptions {
            limit: Some(1),
            ..ListOptions::default()
        };
        self.registry
            .list(scheme::of::<Secret>(), &one)
            .await
            .map_err(|error| Error::OtherKey(error.into()))?;
        let metrics = Metrics::new(&self.deps.metrics);
        let api = Arc::new(Api {
            registry: self.registry.clone(),
            authorizer: Arc::clone(&authorizer),
            bearers: self.bearers.clone(),
            accounts: self.accounts,
            certificates: Arc::clone(&self.certificates),
            metrics: Arc::clone(&metrics),
            process_metrics: Arc::clone(&self.deps.metrics),
            discovery: discovery::Documents::new(),
            openapi: openapi::Documents::new(),
            stop: stop.clone(),
        });
        let routes = routes(api)
            .merge(self.routes)
            .method_not_allowed_fallback(no_method);
        let filters = Filters {
            clock: Arc::clone(&self.deps.clock),
            ids: Arc::clone(&self.deps.ids),
            metrics: Arc::clone(&metrics),
            authorizer,
            audit: self.audit.clone(),
            registry: self.registry.clone(),
            bearers: self.bearers,
            limits: self.config.limits.clone(),
            pressure: Arc::clone(&self.pressure),
        };
        let serving = Listener {
            tls: self.tls,
            router: filters.around(routes),
            limits: self.config.limits.clone(),
            metrics,
        };
        let housekeeping = Housekeeping {
            registry: self.registry.clone(),
            event_ttl: self.config.event_ttl.get(),
        };
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "API server listens");
        }
        let compactor = Compactor::build(Arc::clone(&self.deps.store), policy(self.config.history.get()));
        tokio::join!(
            serving.run(listener, stop.clone()),
            housekeeping.run(stop.clone()),
            self.pressure.run(stop.clone()),
            self.rbac.run(&self.registry, stop.clone()),
            self.certificates.run(stop.clone()),
            compactor.run(stop)
        );
        self.audit.close().await;
        tracing::info!("API server has stopped");
        Ok(())
    }
}

/// History of this age is kept; it is looked at often enough that it is never much older.
fn policy(min_age: Duration) -> Policy {
    let default = Policy::default();
    Policy {
        min_age,
        interval: default.interval.min(min_age / 4).max(Duration::from_millis(250)),
        ..default
    }
}

fn routes(api: Arc<Api>) -> Router {
    Router::new()
        .route(
            certificates::JOIN_TOKENS,
            post(certificates::make_token).get(certificates::list_tokens),
        )
        .route(certificates::JOIN_TOKEN, delete(certificates::revoke_token))
        .route("/healthz", get(health::live))
        .route("/livez", get(health::live))
        .route("/readyz", get(health::ready))
        .route("/version", get(health::version))
        .route("/version/", get(health::version))
        .route("/metrics", get(health::metrics))
        .fallback(dispatch)
        .with_state(api)
}

async fn no_method() -> Response {
    Failure::no_method().into_response()
}
