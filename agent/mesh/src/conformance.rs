//! The wire form of a node's conformance fingerprint.

use rkyv::{Archive, Deserialize, Serialize};

/// The answer to [`Open::Fingerprint`](super::open::Open::Fingerprint).
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum FingerprintAnswer {
    Refused { why: String },
    Answered(WireConformance),
}

/// The components of the fingerprint with their values, if any look has succeeded; when they were
/// read; and why the last look is incomplete.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireConformance {
    pub components: Option<Vec<(String, String)>>,
    pub at_ms: Option<u64>,
    pub error: Option<String>,
}
