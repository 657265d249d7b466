//! The network domain of an allocation, and the ports that it exposes.

use super::values::filled;
use lattice_api::v1;

/// The name of its network domain.
pub fn domain(a: &v1::Allocation) -> Option<&str> {
    a.connectivity.as_ref().and_then(|c| filled(&c.network_domain))
}

/// The ports that it exposes.
pub fn exposed(a: &v1::Allocation) -> &[v1::connectivity::Expose] {
    a.connectivity.as_ref().map_or(&[], |c| &c.expose)
}
