//! The API: `lattice.v1` on the agent's socket. Each service has a file, and large ones several;
//! other files have what all handlers share (`api`), the identity of callers (`caller`) and the
//! statuses of refusals (`refusal`).
//!
//! | task | ends | queues |
//! |---|---|---|
//! | [`Services::serve_socket`] | when the agent stops; its connections then have two seconds | |
//! | one that records denied calls in the audit log, if this agent vouches for users | when the agent stops | denials 64; more are counted |
//! | one per streaming call; a connection has at most `CALLS_PER_CONNECTION` | with its answer, or with its caller | events 1 to 64 |
//! | one per node of such a call (`JoinSet`s) | with the call's task | the call's events |
//! | one per stream from another node for such a call | with its reader | items 2 to 32 |
//! | one per attached terminal, which also records its end in the audit log ([`Api::tasks`]) | with the session, once the end is recorded | events 16 |

pub mod user_shares;

mod access;
mod access_tokens;
mod accounts;
mod admin;
mod admissions;
mod allocations;
mod api;
mod application;
mod arguments;
mod attaching;
mod auditing;
mod caller;
mod checkpoints;
mod command;
mod comparing;
mod connections;
mod corrections;
mod dag_graph;
mod dags;
mod denials;
mod dependencies;
mod diagnosing;
mod estimating;
mod explaining;
mod facts;
mod feeding;
mod finding;
mod gossiping;
mod groups;
mod heads;
mod history;
mod images;
mod intake;
mod isolation;
mod launching;
mod leases;
mod mail;
mod measurement_reads;
mod members;
mod monitoring;
mod network_callers;
mod networks;
mod niceness;
mod nodes;
mod outlooks;
mod output;
mod paying_tenants;
mod preempting;
mod privacy;
mod projects;
mod refusal;
mod requests;
mod reservations;
mod revocations;
mod rights;
mod roles;
mod scaling;
mod servable;
mod sessions;
mod signalling;
mod status_message;
mod steps;
mod submitted;
mod target;
mod tasks;
mod telemetry;
mod traced;
mod updating;
mod usage;
mod usage_reports;
mod vclusters;
mod watches;
mod watching;

pub use accounts::account_named;
pub use api::{Api, Limits, Past, Site};
pub use comparing::past;
pub use connections::{Authentication, LocalPeer, NetworkPeer, Peer};
pub use heads::Heads;
pub use measurement_reads::MeasurementReads;
pub use outlooks::Outlooks;
pub use requests::Requests;
pub use submitted::Submitted;
pub use usage::tail as stored_tail;

use futures::FutureExt;
use futures::future::BoxFuture;
use intake::Intake;
use lattice_agent_common::user_quota::UserQuota;
use lattice_api::MESSAGE_BYTES_MAX;
use lattice_api::v1::accounting_service_server::AccountingServiceServer;
use lattice_api::v1::admin_service_server::AdminServiceServer;
use lattice_api::v1::allocation_service_server::AllocationServiceServer;
use lattice_api::v1::application_service_server::ApplicationServiceServer;
use lattice_api::v1::dag_service_server::DagServiceServer;
use lattice_api::v1::lease_service_server::LeaseServiceServer;
use lattice_api::v1::node_service_server::NodeServiceServer;
use lattice_api::v1::reservation_service_server::ReservationServiceServer;
use lattice_api::v1::session_service_server::SessionServiceServer;
use lattice_api::v1::v_cluster_service_server::VClusterServiceServer;
use lattice_api::v1::watch_service_server::WatchServiceServer;
use network_callers::NetworkCallers;
use revocations::Revocations;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

/// Binds the socket (mode 0666; callers are identified by their credentials). If no agent answers
/// there, removes the file at the path first.
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

/// The flow-control window of one call, in bytes not yet read by its handler.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
/// The same for all calls of one connection together.
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// How many concurrent calls one connection may have.
const CALLS_PER_CONNECTION: u32 = 128;
/// The largest headers of a call, in bytes.
const HEADER_BYTES_MAX: u32 = 8 << 10;

/// The services of `lattice.v1`. The socket, gRPC on the network and REST call these same handlers. Cloneable; all clones
/// share the limits and the counters.
#[derive(Clone)]
pub struct Services(Routes);

impl Services {
    /// Builds them. `requests` counts the calls, [`denials`] records denied ones until `stop`, and [`intake`] limits what
    /// callers may send.
    pub fn new(api: Api, requests: Requests, stop: CancellationToken) -> Self {
        let (most, intake) = (MESSAGE_BYTES_MAX, Intake::new());
        let denials = api.site.vouches.then(|| denials::begin(api.quorum.clone(), &api.tasks, stop));
        let revocations = Revocations::of_quorum(api.quorum.clone());
        let network = NetworkCallers::new(api.limits.network_streams.clone(), api.limits.network_streams_max, revocations);
        let requests = requests.with(denials, network);
        let routes = Routes::new(intake.bound(requests.count(AllocationServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(ApplicationServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(NodeServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(LeaseServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(SessionServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(VClusterServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(ReservationServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(WatchServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(DagServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(AccountingServiceServer::new(api.clone()).max_encoding_message_size(most))))
            .add_service(intake.bound(requests.count(AdminServiceServer::new(api).max_encoding_message_size(most))));
        Self(routes.prepare())
    }

    /// Serves the socket until `stop`, and then until the open calls have ended or `cut` breaks their connections.
    ///
    /// Boxed, so that the server is compiled here and not in the crate that awaits it.
    pub fn serve_socket(
        self,
        listener: UnixListener,
        stop: CancellationToken,
        cut: CancellationToken,
    ) -> BoxFuture<'static, Result<(), tonic::transport::Error>> {
        tonic::transport::Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(CALLS_PER_CONNECTION)
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            .add_routes(self.0)
            .serve_with_incoming_shutdown(connections::accept(listener, UserQuota::default(), cut), stop.cancelled_owned())
            .boxed()
    }

    /// All services as one: a call's path chooses among them. Each request needs its [`Peer`] in its extensions.
    pub fn grpc(&self) -> Routes {
        self.0.clone()
    }
}
