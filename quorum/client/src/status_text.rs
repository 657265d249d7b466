//! Messages for failed calls.

use lattice_model::with_causes;

/// The message of a failed call, with the transport's causes if any.
pub fn status_text(status: &tonic::Status) -> String {
    std::error::Error::source(status).map_or_else(|| status.message().to_owned(), with_causes)
}
