//! What a node is made of, on the wire.

use rkyv::{Archive, Deserialize, Serialize};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum FingerprintAnswer {
    Refused { why: String },
    Told(WireFound),
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireFound {
    pub components: Option<Vec<(String, String)>>,
    pub at_ms: Option<u64>,
    pub trouble: Option<String>,
}
