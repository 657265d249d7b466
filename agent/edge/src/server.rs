//! The server: opened before anything runs, so that an agent with an unusable address or certificate does not start.

use super::access_log::AccessLog;
use super::connections::Connections;
use super::counts::Counts;
use super::gate::Gate;
use super::known_tokens::KnownTokens;
use super::origins::Origins;
use super::places::Places;
use super::rates::Rates;
use super::tls::Tls;
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_agent_common::config::api::ApiSettings;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_agent_common::session_state::SessionState;
use lattice_identity::Identities;
use lattice_pki::credentials::Credentials;
use lattice_pki::tls::TlsError;
use lattice_rest::Grpc;
use lattice_service::Services;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Why the API cannot be served on the network.
#[derive(Debug, Error)]
pub enum EdgeError {
    #[error("api.listen: cannot listen on {address}; choose another address, or stop the program that listens there")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the certificate of the API on the network")]
    Certificate(#[from] TlsError),
}

/// The subject of the node's problem while tokens of the identity provider cannot be checked.
const PROVIDER_PROBLEM: &str = "identity provider";
/// How often the identity provider is checked.
const PROVIDER_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// What the server needs of the agent.
pub struct Parts {
    /// The handlers.
    pub services: Services,
    /// Whom tokens identify.
    pub identities: Identities,
    /// The session with the quorum.
    pub session: watch::Receiver<SessionState>,
    /// The problems of this node.
    pub problems: NodeProblems,
    /// The cluster's name.
    pub cluster: String,
    /// The server's metrics.
    pub counts: Counts,
    /// The tasks that the agent waits for when it stops.
    pub tasks: TaskTracker,
}

/// An open address, where nothing is answered yet.
pub struct Bound {
    listener: TcpListener,
    tls: Tls,
    settings: ApiSettings,
}

impl Bound {
    /// Listens at the configured address; `None`: none is configured.
    pub async fn open(settings: &ApiSettings, credentials: &Credentials) -> Result<Option<Self>, EdgeError> {
        let Some(address) = settings.address() else { return Ok(None) };
        let tls = Tls::open(settings, credentials)?;
        let listener = TcpListener::bind(address).await.map_err(|source| EdgeError::Listen { address, source })?;
        Ok(Some(Self { listener, tls, settings: settings.clone() }))
    }

    /// Serves until `stop`, and then until all connections have ended or `cut` breaks them.
    ///
    /// Boxed, so that the server is compiled here and not in the crate that awaits it.
    pub fn serve(self, parts: Parts, stop: CancellationToken, cut: CancellationToken) -> BoxFuture<'static, ()> {
        let Self { listener, tls, settings } = self;
        let Parts { services, identities, session, problems, cluster, counts, tasks } = parts;
        tasks.spawn(report_provider(identities.clone(), problems.clone(), stop.clone()));
        tasks.spawn(tls.clone().keep_current(problems.clone(), stop.clone()));
        let log = if settings.access_log.as_os_str().is_empty() {
            AccessLog::none()
        } else {
            AccessLog::begin(&settings.access_log, settings.access_log_bytes_max, settings.access_log_read_sample, problems, &tasks)
        };
        let limits = &settings.limits;
        let gate = Gate {
            grpc: services.grpc(),
            rest: lattice_rest::router(Grpc::new(services.grpc())),
            identities,
            session,
            cluster,
            client_certificates: settings.client_certificates,
            origins: Origins::new(&settings.origins),
            rates: Rates::new(limits, counts.clone()),
            known_tokens: KnownTokens::default(),
            log,
            counts: counts.clone(),
            tasks,
        };
        let places = Places::new(limits.connections as usize, limits.connections_per_address as usize);
        Connections::new(gate, tls, places, counts, stop, cut).serve(listener).boxed()
    }
}

/// Shows in `lattice node status` why tokens of the provider cannot be checked, until `stop`.
async fn report_provider(identities: Identities, problems: NodeProblems, stop: CancellationToken) {
    loop {
        match identities.problem() {
            Some(why) => problems.set(PROVIDER_PROBLEM, why),
            None => problems.clear(PROVIDER_PROBLEM),
        }
        if stop.run_until_cancelled(tokio::time::sleep(PROVIDER_CHECK_INTERVAL)).await.is_none() {
            return;
        }
    }
}
