//! The error for typed text that cannot be used.

use thiserror::Error;

/// Why typed text cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}")]
pub struct UsageError {
    /// What is wrong, and where.
    pub what: String,
    /// What to type instead.
    pub hint: Option<String>,
}

impl UsageError {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None }
    }

    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}
