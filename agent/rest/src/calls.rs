//! The calls of `lattice.v1` that one HTTP request makes, in this process: no socket is between REST and the handlers.
//!
//! ```text
//!   HTTP request ──extensions (peer …)──▶ Calls ──Channel──▶ the services of lattice.v1
//! ```
//!
//! The extensions of the HTTP request are in each call. So the handlers see the caller whom the edge identified, and the
//! limits of that caller count for REST as for gRPC. A call ends when the request's future is dropped: a client that
//! goes away leaves nothing behind.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{Extensions, Request, Response};
use lattice_api::MESSAGE_BYTES_MAX;
use lattice_api::v1::accounting_service_client::AccountingServiceClient;
use lattice_api::v1::admin_service_client::AdminServiceClient;
use lattice_api::v1::allocation_service_client::AllocationServiceClient;
use lattice_api::v1::dag_service_client::DagServiceClient;
use lattice_api::v1::node_service_client::NodeServiceClient;
use lattice_api::v1::reservation_service_client::ReservationServiceClient;
use lattice_api::v1::session_service_client::SessionServiceClient;
use lattice_api::v1::v_cluster_service_client::VClusterServiceClient;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tower::Service;
use tower::util::BoxCloneSyncService;

/// The services of `lattice.v1`, as one service.
pub type Grpc = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// An extractor: the services, for the caller of this request.
#[derive(Clone)]
pub(crate) struct Calls {
    channel: Channel,
}

/// What the generated clients call through. Each call has the extensions of the HTTP request.
#[derive(Clone)]
pub(crate) struct Channel {
    grpc: Grpc,
    /// Shared, because a clone copies each extension.
    extensions: Arc<Extensions>,
}

impl FromRequestParts<Grpc> for Calls {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, grpc: &Grpc) -> Result<Self, Infallible> {
        Ok(Self { channel: Channel { grpc: grpc.clone(), extensions: Arc::new(parts.extensions.clone()) } })
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = <Grpc as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.grpc.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        request.extensions_mut().extend(Extensions::clone(&self.extensions));
        self.grpc.call(request)
    }
}

impl Calls {
    /// For a generated client of any service.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Allocations: submissions, their state, updates.
    pub(crate) fn allocations(&self) -> AllocationServiceClient<Channel> {
        AllocationServiceClient::new(self.channel())
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Ended work of any age.
    pub(crate) fn accounting(&self) -> AccountingServiceClient<Channel> {
        AccountingServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Tenants, tokens, the quorum, the audit log.
    pub(crate) fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// DAGs.
    pub(crate) fn dags(&self) -> DagServiceClient<Channel> {
        DagServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Nodes.
    pub(crate) fn nodes(&self) -> NodeServiceClient<Channel> {
        NodeServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Nodes that are set aside for a time.
    pub(crate) fn reservations(&self) -> ReservationServiceClient<Channel> {
        ReservationServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Sessions.
    pub(crate) fn sessions(&self) -> SessionServiceClient<Channel> {
        SessionServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }

    /// Queues.
    pub(crate) fn vclusters(&self) -> VClusterServiceClient<Channel> {
        VClusterServiceClient::new(self.channel()).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}
