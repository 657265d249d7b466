//! Advance reservations: nodes that operators set aside for a time, for some work or for maintenance.
//!
//! ```text
//!   other work      ──must have ended──▶│                          │──may begin──▶
//!                                     start ── the window ──▶     end
//!   work that names the reservation     │──may begin──────────────▶│
//! ```
//!
//! Work without a walltime never has ended, so it gets none of the nodes before the window ends. What has
//! nodes keeps them: also beyond the start of a window, and beyond its end.

use crate::hostlist;
use crate::ids::{NodeId, Revision};
use crate::principal::Principal;
use crate::spec::AllocationSpec;
use crate::time::Timestamp;
use crate::vcluster::is_name;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Largest size of the comment, in bytes.
pub const COMMENT_BYTES_MAX: usize = 256;
/// Largest number of tenants, and of users, of one reservation.
pub const SUBJECTS_MAX: usize = 256;
/// Largest size of the name of a tenant or user, in bytes.
pub const SUBJECT_BYTES_MAX: usize = 128;

/// A reservation as created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// The name that work gives.
    pub name: String,
    /// The nodes that are set aside; at least one.
    #[serde(with = "folded")]
    pub nodes: BTreeSet<NodeId>,
    /// When the window begins.
    pub start: Timestamp,
    /// When it ends: after its start.
    pub end: Timestamp,
    /// Tenants whose work may use it.
    pub tenants: BTreeSet<String>,
    /// Accounts whose work may use it: name and uid. A namesake on a machine with other numbers is somebody else.
    pub users: BTreeMap<String, u32>,
    /// Whether the nodes are set aside for maintenance: nobody's work begins there.
    pub maintenance: bool,
    /// For people.
    pub comment: String,
    /// Who created it.
    pub created_by: String,
    /// When it was created.
    pub created_at: Timestamp,
    /// The revision of its latest change.
    pub revision: Revision,
}

impl Reservation {
    /// Whether its window is over.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.end <= now
    }

    /// Whether work that names it may begin now, as far as the time decides.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.start <= now && !self.is_over(now)
    }

    /// Whether work of this owner with this specification may use it.
    pub fn is_for(&self, spec: &AllocationSpec, owner: &Principal) -> bool {
        !self.maintenance && (self.tenants.contains(&spec.tenant) || self.users.get(&owner.name) == Some(&owner.uid))
    }

    /// Whether other work would be in its window if it had a node from `from_ms` until `until_ms`, in
    /// milliseconds since 1970.
    pub fn overlaps(&self, from_ms: u64, until_ms: u64) -> bool {
        from_ms < self.end.0 && self.start.0 < until_ms
    }

    /// Whose work may use it, for people.
    pub fn subjects_text(&self) -> String {
        if self.maintenance {
            return "nobody: maintenance".to_owned();
        }
        let tenants = self.tenants.iter().map(|tenant| format!("tenant {tenant}"));
        tenants.chain(self.users.keys().map(|user| format!("user {user}"))).collect::<Vec<_>>().join(", ")
    }

    /// The reservation's fault, as far as no other record is needed to find it; `None`: it has none.
    pub fn fault(&self) -> Option<String> {
        let is_text = |text: &str, bytes_max: usize| text.len() <= bytes_max && !text.contains(char::is_control);
        let is_subject = |name: &String| !name.is_empty() && is_text(name, SUBJECT_BYTES_MAX);
        if !is_name(&self.name) {
            return Some("a reservation's name has 1 to 64 letters, digits, dots, dashes and underscores".to_owned());
        }
        if self.nodes.is_empty() {
            return Some("a reservation has at least one node: name its nodes".to_owned());
        }
        if self.end <= self.start {
            return Some(format!("it would end at {}, and it begins at {}: it has to end later", self.end, self.start));
        }
        if self.tenants.len() > SUBJECTS_MAX || self.users.len() > SUBJECTS_MAX {
            return Some(format!("a reservation is for at most {SUBJECTS_MAX} tenants and {SUBJECTS_MAX} users"));
        }
        if !self.tenants.iter().chain(self.users.keys()).all(is_subject) {
            return Some(format!("the name of a tenant or user has 1 to {SUBJECT_BYTES_MAX} bytes without control characters"));
        }
        if !is_text(&self.comment, COMMENT_BYTES_MAX) {
            return Some(format!("a comment has at most {COMMENT_BYTES_MAX} bytes without control characters"));
        }
        match (self.maintenance, self.tenants.is_empty() && self.users.is_empty()) {
            (false, true) => Some("a reservation is for tenants, users or maintenance: name one of them".to_owned()),
            (true, false) => Some("no work begins during maintenance: leave out the maintenance, or the tenants and users".to_owned()),
            (false, false) | (true, true) => None,
        }
    }
}

/// The nodes as a hostlist.
mod folded {
    use super::{BTreeSet, NodeId, hostlist};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(nodes: &BTreeSet<NodeId>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hostlist::fold(nodes))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<NodeId>, D::Error> {
        hostlist::expand(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::spec;

    fn reservation() -> Reservation {
        Reservation {
            name: "course".into(),
            nodes: hostlist::expand("n[1-3]").unwrap(),
            start: Timestamp(1000),
            end: Timestamp(2000),
            tenants: ["physics".to_owned()].into(),
            users: [("anna".to_owned(), 1)].into(),
            maintenance: false,
            comment: String::new(),
            created_by: "root".into(),
            created_at: Timestamp(1),
            revision: Revision(1),
        }
    }

    #[test]
    fn a_window_has_its_start_and_not_its_end() {
        let r = reservation();
        assert_eq!([999, 1000, 1999, 2000].map(|ms| r.is_open(Timestamp(ms))), [false, true, true, false]);
        let spans = [(0, 1000), (0, 1001), (1999, 5000), (2000, 5000), (0, u64::MAX)];
        assert_eq!(spans.map(|(from, until)| r.overlaps(from, until)), [false, true, true, false, true]);
    }

    #[test]
    fn it_is_for_work_of_its_tenants_and_users() {
        let (r, owner) = (reservation(), |name: &str| Principal { name: name.into(), uid: 1, gid: 1, groups: vec![] });
        let of_physics = AllocationSpec { tenant: "physics".into(), ..spec() };
        assert!(r.is_for(&of_physics, &owner("bob")) && r.is_for(&spec(), &owner("anna")) && !r.is_for(&spec(), &owner("bob")));
        let namesake = Principal { uid: 2, ..owner("anna") };
        assert!(!r.is_for(&spec(), &namesake), "another account of this name, on a machine with other numbers");
        let maintenance = Reservation { maintenance: true, ..r };
        assert!(!maintenance.is_for(&of_physics, &owner("anna")));
    }

    #[test]
    fn a_faulty_one_is_refused_with_what_is_wrong() {
        let r = reservation;
        assert_eq!(r().fault(), None);
        let fault = |r: Reservation| r.fault().unwrap();
        assert!(fault(Reservation { name: "a b".into(), ..r() }).starts_with("a reservation's name"));
        assert!(fault(Reservation { nodes: BTreeSet::new(), ..r() }).starts_with("a reservation has at least one node"));
        assert!(fault(Reservation { end: Timestamp(1000), ..r() }).ends_with("it has to end later"));
        assert!(fault(Reservation { comment: "x".repeat(COMMENT_BYTES_MAX + 1), ..r() }).starts_with("a comment has"));
        assert!(fault(Reservation { users: [(String::new(), 1)].into(), ..r() }).starts_with("the name of a tenant or user"));
        let (tenants, users) = (BTreeSet::new(), BTreeMap::new());
        assert!(fault(Reservation { tenants, users, ..r() }).starts_with("a reservation is for tenants, users or maintenance"));
        assert!(fault(Reservation { maintenance: true, ..r() }).starts_with("no work begins during maintenance"));
    }

    #[test]
    fn its_nodes_are_written_as_a_hostlist() {
        let text = serde_json::to_string(&reservation()).unwrap();
        assert!(text.contains("\"n[1-3]\""), "{text}");
        assert_eq!(serde_json::from_str::<Reservation>(&text).unwrap(), reservation());
    }
}
