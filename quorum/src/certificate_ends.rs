//! The expiry of members' certificates.

use lattice_model::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;

/// When members' certificates expire, as they reported to the leader. In memory.
#[derive(Debug, Default)]
pub(crate) struct CertificateEnds(Mutex<HashMap<u64, Timestamp>>);

impl CertificateEnds {
    /// Records a member's report.
    pub fn record(&self, member: u64, until: Timestamp) {
        self.0.lock().insert(member, until);
    }

    /// The latest report of this member.
    pub fn of(&self, member: u64) -> Option<Timestamp> {
        self.0.lock().get(&member).copied()
    }
}
