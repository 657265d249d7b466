//! Network domains and exposed ports.

use crate::v1;
use lattice_model::SpecError;
use lattice_model::network::{Connectivity, Exposed, PROTOCOL_DEFAULT};

/// `name`: the allocation's name, used for exposed ports without a name.
pub(super) fn to_model(connectivity: Option<&v1::Connectivity>, name: &str) -> Result<Connectivity, SpecError> {
    let Some(v1::Connectivity { network_domain, expose }) = connectivity else { return Ok(Connectivity::default()) };
    let or = |given: &str, default: &str| if given.is_empty() { default.to_owned() } else { given.to_owned() };
    let exposed = |e: &v1::connectivity::Expose| {
        let why = || format!("{} is not a port: use 1 to 65535", e.port);
        let port = u16::try_from(e.port).map_err(|_| SpecError::Invalid { field: "expose", why: why() })?;
        Ok(Exposed { name: or(&e.name, name), port, protocol: or(&e.protocol, PROTOCOL_DEFAULT) })
    };
    let expose: Result<Vec<Exposed>, SpecError> = expose.iter().map(exposed).collect();
    Ok(Connectivity { network_domain: network_domain.clone(), expose: expose? })
}

pub(crate) fn from_model(connectivity: &Connectivity) -> Option<v1::Connectivity> {
    let exposed = |e: &Exposed| v1::connectivity::Expose { name: e.name.clone(), port: e.port.into(), protocol: e.protocol.clone() };
    (*connectivity != Connectivity::default()).then(|| v1::Connectivity {
        network_domain: connectivity.network_domain.clone(),
        expose: connectivity.expose.iter().map(exposed).collect(),
    })
}
