//! The resources under `/api/v1`: a file for each kind.

mod accounting;
mod allocations;
mod audit;
mod dags;
mod nodes;
mod quorum;
mod reservations;
mod roles;
mod services;
mod sessions;
mod tenants;
mod tokens;
mod usage;
mod vclusters;
mod whoami;

use crate::calls::Grpc;
use axum::Router;
use utoipa::openapi::OpenApi;

/// All of their paths.
pub(crate) fn routes() -> Router<Grpc> {
    Router::new()
        .merge(accounting::routes())
        .merge(allocations::routes())
        .merge(audit::routes())
        .merge(dags::routes())
        .merge(nodes::routes())
        .merge(quorum::routes())
        .merge(reservations::routes())
        .merge(roles::routes())
        .merge(services::routes())
        .merge(sessions::routes())
        .merge(tenants::routes())
        .merge(tokens::routes())
        .merge(usage::routes())
        .merge(vclusters::routes())
        .merge(whoami::routes())
}

/// Their descriptions.
pub(crate) fn openapi() -> Vec<OpenApi> {
    vec![
        accounting::openapi(),
        allocations::openapi(),
        audit::openapi(),
        dags::openapi(),
        nodes::openapi(),
        quorum::openapi(),
        reservations::openapi(),
        roles::openapi(),
        services::openapi(),
        sessions::openapi(),
        tenants::openapi(),
        tokens::openapi(),
        usage::openapi(),
        vclusters::openapi(),
        whoami::openapi(),
    ]
}
