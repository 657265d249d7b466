//! What a failed call says.

use lattice_model::with_causes;

/// What a failed call says, with the transport's causes where it has some.
pub fn status_text(status: &tonic::Status) -> String {
    std::error::Error::source(status).map_or_else(|| status.message().to_owned(), with_causes)
}
