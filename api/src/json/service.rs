//! Services that running allocations expose.

use crate::v1::list_services_response::Service;
use crate::v1::lookup_service_response::Endpoint;
use serde::Serialize;
use utoipa::ToSchema;

/// A service of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Service)]
pub struct ServiceJson {
    name: String,
    tenant: String,
    endpoints: u32,
    allocations: u32,
}

/// Where a service is reached.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Endpoint)]
pub struct EndpointJson {
    /// The name or address by which other nodes reach the node.
    host: String,
    port: u32,
    protocol: String,
    node: String,
    allocation: String,
    tenant: String,
}

impl From<&Service> for ServiceJson {
    fn from(s: &Service) -> Self {
        Self { name: s.name.clone(), tenant: s.tenant.clone(), endpoints: s.endpoints, allocations: s.allocations }
    }
}

impl From<&Endpoint> for EndpointJson {
    fn from(e: &Endpoint) -> Self {
        Self {
            host: e.host.clone(),
            port: e.port,
            protocol: e.protocol.clone(),
            node: e.node.clone(),
            allocation: e.allocation.clone(),
            tenant: e.tenant.clone(),
        }
    }
}
