//! Parsing of request arguments that several services share.

use lattice_model::ids::IdError;
use lattice_model::{AllocationId, NodeId};
use tonic::Status;

pub(super) fn node_id(text: &str) -> Result<NodeId, Status> {
    text.parse().map_err(|e: IdError| Status::invalid_argument(e.to_string()))
}

/// The service and the number of a replica, if the key of an allocation names one: `ID[3]`.
pub(super) fn replica_key(key: &str) -> Result<Option<(&str, u32)>, Status> {
    let Some((service, rest)) = key.split_once('[') else { return Ok(None) };
    let number = rest.strip_suffix(']').filter(|_| !service.is_empty()).and_then(|number| number.parse().ok());
    number.map(|number| Some((service, number))).ok_or_else(|| {
        let shown: String = key.chars().take(60).collect();
        Status::invalid_argument(format!("{shown:?} is no key: a replica of a scaled service is named as in '1f0c9a4e[3]'"))
    })
}

pub(super) fn allocation_id(text: &str) -> Result<AllocationId, Status> {
    text.parse().map_err(|e: IdError| Status::invalid_argument(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_named_by_its_number_in_brackets() {
        assert_eq!(replica_key("1f0c9a4e").unwrap(), None);
        assert_eq!(replica_key("1f0c9a4e[3]").unwrap(), Some(("1f0c9a4e", 3)));
        for bad in ["1f0c[", "1f0c[]", "1f0c[-1]", "1f0c[3", "1f0c[3]x", "[3]", "1f0c[1-2]", "1f0c[4294967296]", "1f0c[[3]]"] {
            assert!(replica_key(bad).is_err(), "{bad}");
        }
        assert!(replica_key(&"[".repeat(1000)).unwrap_err().message().chars().count() < 200);
    }
}
