//! When members' certificates end.

use lattice_model::Timestamp;
use parking_lot::Mutex;
use std::collections::HashMap;

/// When members' certificates end, as each told the leader. In memory.
#[derive(Debug, Default)]
pub(crate) struct CertificateEnds(Mutex<HashMap<u64, Timestamp>>);

impl CertificateEnds {
    /// A member says until when it holds.
    pub fn told(&self, member: u64, until: Timestamp) {
        self.0.lock().insert(member, until);
    }

    /// What this member said last.
    pub fn of(&self, member: u64) -> Option<Timestamp> {
        self.0.lock().get(&member).copied()
    }
}
