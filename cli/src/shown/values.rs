//! Formatting of single values.

use lattice_api::v1;
use lattice_model::time::Timestamp;

/// The first 8 characters of an id.
pub fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// A time as RFC 3339; `None` for 0, which means that there is none.
pub fn time(ms: u64) -> Option<String> {
    (ms != 0).then(|| Timestamp(ms).to_string())
}

/// `None` for an empty text.
pub fn filled(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// A lease's token in a table; empty if the reader may not see it.
pub fn lease_token(lease: &v1::Lease) -> String {
    lease.token.map(|token| token.to_string()).unwrap_or_default()
}
