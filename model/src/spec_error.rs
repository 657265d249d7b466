//! Why a specification is refused.

use thiserror::Error;

/// Why a specification is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// A value with a wrong range or syntax.
    #[error("{field}: {why}")]
    Invalid {
        /// The field, as the user writes it.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// A documented field that this version does not implement.
    #[error("{field} is not built yet: this version cannot honour it, so the submission is refused; leave it out")]
    NotBuilt {
        /// The field, as the user writes it.
        field: &'static str,
    },
}
