//! Formatting of single values.

pub use lattice_api::json::{disclosed, filled, queue, time};
use lattice_api::v1;
use lattice_model::{NodeId, hostlist};

/// The first 8 characters of an id.
pub fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// The number of its job in a table; empty if it has none.
pub fn job(a: &v1::Allocation) -> String {
    if a.number == 0 { String::new() } else { a.number.to_string() }
}

/// A lease's token in a table; empty if the reader may not see it.
pub fn lease_token(lease: &v1::Lease) -> String {
    lease.token.map(|token| token.to_string()).unwrap_or_default()
}

/// The name of an allocation in a list that may have lanes of task groups and replicas of services: a lane is named by its
/// group, a replica by its service.
pub fn work_name(a: &v1::Allocation) -> String {
    match (filled(&a.lane_of), filled(&a.replica_of)) {
        _ if a.name.is_empty() => String::new(),
        (Some(group), _) => format!("{} (lane {} of {})", a.name, a.lane_number, short(group)),
        (None, Some(service)) => format!("{} (replica {} of {})", a.name, a.replica_number, short(service)),
        (None, None) => a.name.clone(),
    }
}

/// Node names as a hostlist; unchanged if one of them cannot be parsed.
pub fn folded(names: &[String]) -> String {
    match names.iter().map(|name| name.parse::<NodeId>()).collect::<Result<Vec<_>, _>>() {
        Ok(ids) => hostlist::fold(&ids),
        Err(_) => names.join(","),
    }
}

/// An account or a group with its number, such as `user:alice (uid 1000)`.
pub fn numbered_subject(subject: &str, id: u32) -> String {
    let kind = if subject.starts_with("group:") { "gid" } else { "uid" };
    format!("{subject} ({kind} {id})")
}
