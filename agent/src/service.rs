//! The API: `lattice.v1` on the agent's socket. One file per service; who is calling, and how refusals read, beside them.

mod access;
mod accounts;
mod admin;
mod admissions;
mod allocations;
mod application;
mod attaching;
mod auditing;
mod caller;
mod checkpoints;
mod comparing;
mod connections;
mod diagnosing;
mod facts;
mod feeding;
mod gossiping;
mod intake;
mod isolation;
mod launching;
mod leases;
mod monitoring;
mod networks;
mod nodes;
mod output;
mod preempting;
mod privacy;
mod refusal;
mod requests;
mod sessions;
mod signalling;
mod situation;
mod telemetry;
mod updating;
mod usage;
mod vclusters;
mod watches;
mod watching;

pub use access::Looks;
pub use allocations::Submitted;
pub use comparing::past;
pub use requests::Requests;
pub use usage::tail as stored_tail;
pub use watching::Heads;

use crate::cluster::Cluster;
use crate::config::WorkMay;
use crate::context::Shared;
use crate::membership::Membership;
use crate::places::Places;
use crate::placing::Placing;
use crate::session_state::SessionState;
use crate::user_shares::UserShares;
use intake::Intake;
use lattice_api::MESSAGE_BYTES_MAX;
use lattice_api::v1::admin_service_server::AdminServiceServer;
use lattice_api::v1::allocation_service_server::AllocationServiceServer;
use lattice_api::v1::application_service_server::ApplicationServiceServer;
use lattice_api::v1::lease_service_server::LeaseServiceServer;
use lattice_api::v1::node_service_server::NodeServiceServer;
use lattice_api::v1::session_service_server::SessionServiceServer;
use lattice_api::v1::v_cluster_service_server::VClusterServiceServer;
use lattice_api::v1::watch_service_server::WatchServiceServer;
use lattice_model::Timestamp;
use lattice_quorum::client::QuorumClient;
use lattice_quorum::credentials::Credentials;
use lattice_telemetry::query::Query;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What the handlers need.
#[derive(Clone)]
pub struct Api {
    pub context: Shared,
    pub credentials: Credentials,
    pub quorum: QuorumClient,
    pub cluster: watch::Receiver<Arc<Cluster>>,
    pub membership: Membership,
    pub session: watch::Receiver<SessionState>,
    /// Whether this agent vouches for the users of its machine.
    pub vouches: bool,
    /// What allocations' work may do here.
    pub work_may: WorkMay,
    /// Whether users are shown neither name nor owner of others' allocations.
    pub private: bool,
    /// The scheduler, where this agent is one.
    pub placing: Placing,
    /// What this node cannot do, each with its remedy.
    pub degraded: Arc<Vec<String>>,
    pub started_at: Timestamp,
    /// How many images may be read at once for their digests: reading takes as long as the image is large.
    pub digests: Arc<Semaphore>,
    /// How many of them each user's may be.
    pub own_digests: UserShares,
    /// What was submitted here a moment ago.
    pub submitted: Submitted,
    /// Heads of allocations that are followed here.
    pub heads: Heads,
    /// Who watches how much here.
    pub watches: Places,
    /// Who looks at what is measured of others' work.
    pub looks: Looks,
    /// The store that answers what was measured, or why it cannot be asked.
    pub past: Arc<Result<Option<Query>, String>>,
    /// How long behind the end of work its last window is told to it.
    pub stored_tail: Duration,
    /// Who reads how many logs here.
    pub log_streams: Places,
    /// How many each user may.
    pub log_streams_max: usize,
    /// Those that the agent waits for when it stops.
    pub tasks: TaskTracker,
}

/// Binds the socket (mode 0666; callers are told apart by their credentials). One that nobody answers on is replaced.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent answers on it"));
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Bytes of one call's request that the handler has not asked for yet.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// The same of all calls of a connection.
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Calls of one connection at once.
const CALLS_PER_CONNECTION: u32 = 128;
/// Bytes of a call's headers.
const HEADER_BYTES_MAX: u32 = 8 << 10;

/// Serves until `stop`; calls are counted in `requests`. What callers may send is bounded by [`intake`].
pub async fn serve(api: Api, requests: Requests, listener: UnixListener, stop: CancellationToken) -> Result<(), tonic::transport::Error> {
    let (most, intake) = (MESSAGE_BYTES_MAX, Intake::new());
    tonic::transport::Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(CALLS_PER_CONNECTION)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .add_service(intake.bound(requests.count(AllocationServiceServer::new(api.clone()).max_encoding_message_size(most))))
        .add_service(intake.bound(requests.count(ApplicationServiceServer::new(api.clone()).max_encoding_message_size(most))))
        .add_service(intake.bound(requests.count(NodeServiceServer::new(api.clone()).max_encoding_message_size(most))))
        .add_service(intake.bound(requests.count(LeaseServiceServer::new(api.clone()).max_encoding_message_size(most))))
        .add_service(intake.bound(requests.count(SessionServiceServer::new(api.clone()).max_encoding_message_size(most))))
        .add_service(intake.bound(requests.count(VClusterServiceServer::new(api.clone()).max_encoding_message_size(most))))
        .add_service(intake.bound(requests.count(WatchServiceServer::new(api.clone()).max_encoding_message_size(most))))
        .add_service(intake.bound(requests.count(AdminServiceServer::new(api).max_encoding_message_size(most))))
        .serve_with_incoming_shutdown(connections::accept(listener), stop.cancelled_owned())
        .await
}
