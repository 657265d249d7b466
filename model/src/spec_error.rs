//! Why a specification is not taken.

use thiserror::Error;

/// Why a specification is not taken.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// A value outside its range or form.
    #[error("{field}: {why}")]
    Invalid {
        /// The field, as the user spells it.
        field: &'static str,
        /// What is wrong with it, and what would be right.
        why: String,
    },
    /// A documented field that this version cannot honour.
    #[error("{field} is not built yet: this version cannot honour it, so the submission is refused; leave it out")]
    NotBuilt {
        /// The field, as the user spells it.
        field: &'static str,
    },
}
