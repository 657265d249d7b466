//! The options of a job, translated.

use super::arguments::Given;
use super::own::OwnOptions;
use super::value_error::ValueError;
use crate::UsageError;

/// The options of `lattice submit` that one option became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The option as it was written, and where.
    pub shown: String,
    /// Its translation.
    pub words: Vec<String>,
    /// Whether it is of a command line, not of a variable, a script's line or several options together.
    pub is_typed: bool,
}

/// All options of a job, translated.
#[derive(Default)]
pub struct Job {
    /// The translations of the options, in their order.
    pub pieces: Vec<Piece>,
    /// For `srun`: options that only a job of its own needs, and a step in an allocation does not.
    pub of_job: Vec<String>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The options that the command itself handles.
    pub own: OwnOptions,
    /// The options that set `own`.
    pub own_given: Vec<Given>,
}

impl Job {
    /// The options of `lattice submit`.
    pub fn words(&self) -> Vec<String> {
        self.pieces.iter().flat_map(|piece| piece.words.iter().cloned()).collect()
    }

    /// The value of an option of `lattice submit`.
    pub fn value_of(&self, ours: &str) -> Option<&str> {
        let words = self.pieces.iter().flat_map(|piece| &piece.words);
        words.filter_map(|word| word.strip_prefix(ours)?.strip_prefix('=')).next_back()
    }

    /// Whether an option of `lattice submit` without a value was given.
    pub(super) fn has_plain(&self, ours: &str) -> bool {
        self.pieces.iter().any(|piece| piece.words.iter().any(|word| word == ours))
    }
}

/// The error for a value of an option.
pub(super) fn refusal(given: &Given, why: &ValueError) -> UsageError {
    UsageError { what: format!("{}: {why}", given.shown()), hint: why.remedy().map(str::to_owned) }
}
