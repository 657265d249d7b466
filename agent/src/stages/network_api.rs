//! The API on the network, for an agent whose settings say where (`api.listen`).

use anyhow::Context as _;
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_agent_common::session_state::SessionState;
use lattice_edge::{Bound, Counts, Parts};
use lattice_identity::Identities;
use lattice_pki::credentials::Credentials;
use lattice_quorum_client::QuorumClient;
use lattice_service::Services;
use lattice_telemetry::sample::Collect;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// An open address, where nothing is answered yet.
pub struct NetworkApi {
    bound: Bound,
    identities: Identities,
    counts: Counts,
}

impl NetworkApi {
    /// Opens the API's address; `None`: none is configured.
    pub(super) async fn open(config: &AgentConfig, credentials: &Credentials, quorum: &QuorumClient) -> anyhow::Result<Option<Self>> {
        let Some(bound) = Bound::open(&config.api, credentials).await? else { return Ok(None) };
        let identities = Identities::new(config.api.oidc.clone(), quorum.clone()).context("api.oidc")?;
        Ok(Some(Self { bound, identities, counts: Counts::default() }))
    }

    /// The API's metrics.
    pub(super) fn counts(&self) -> Box<dyn Collect> {
        Box::new(self.counts.clone())
    }

    /// Begins to serve the API, until `stop`. `cut` breaks its connections.
    pub(super) fn serve(
        self,
        services: Services,
        cluster: &str,
        (session, problems): (watch::Receiver<SessionState>, NodeProblems),
        (tasks, stop, cut): (&TaskTracker, &CancellationToken, &CancellationToken),
    ) -> JoinHandle<()> {
        let Self { bound, identities, counts } = self;
        tasks.spawn(identities.clone().run(stop.child_token()));
        let parts = Parts { services, identities, session, problems, cluster: cluster.to_owned(), counts, tasks: tasks.clone() };
        tasks.spawn(bound.serve(parts, stop.child_token(), cut.clone()))
    }
}
