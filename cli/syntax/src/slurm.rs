//! The options of Slurm's `sbatch`, `srun` and `salloc`, on a command line, in variables and in `#SBATCH` lines. One table
//! ([`OPTIONS`]) has a rule for each option and each command.
//!
//! ```text
//!   command line ──▶ arguments ───╮
//!   SBATCH_... ────▶ environment ─┼─▶ translation ─▶ words of `lattice submit`, notes, the command's own options
//!   #SBATCH lines ─▶ arguments ───╯       │
//!                                         ├─ table: which rule an option has
//!                                         └─ values, amounts, places, times: what its value becomes
//! ```
//!
//! If an option is repeated, the last one counts, as in Slurm. The command line wins over the environment, and the
//! environment over the script's lines. No option that changes what runs is ignored: if it cannot be honoured, it is
//! refused with a remedy.

mod amounts;
mod arguments;
mod combination;
mod environment;
#[cfg(test)]
mod guide;
mod job;
mod option;
mod own;
mod places;
mod table;
mod times;
mod translation;
mod value_error;
mod values;

pub use amounts::{PRIORITY_MAX, nice_of_priority};
pub use arguments::{Arguments, Given, find_option, read_arguments};
pub use environment::read_environment;
pub use job::{Job, Piece};
pub use option::{Command, Rule, SlurmOption, Takes};
pub use own::OwnOptions;
pub use table::{NOT_HETEROGENEOUS, OPTIONS};
pub use translation::{names_of_sample, translate_job};
pub use value_error::ValueError;

use crate::UsageError;
use crate::compat::Compat;
use std::collections::BTreeMap;

/// A command line of Slurm, translated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// Options of `lattice submit` or `lattice launch`.
    pub words: Vec<String>,
    /// Notes for the user, on stderr.
    pub notes: Vec<String>,
    /// For `srun`: further options of a job of its own, which a step in an allocation does not need.
    pub of_job: Vec<String>,
    /// The options that the command itself handles.
    pub own: OwnOptions,
    /// The script or the program, and its arguments.
    pub rest: Vec<String>,
}

/// Translates a command line, without the variables that set options.
///
/// # Errors
/// An option that does not exist or cannot be honoured, or a wrong value; with a remedy.
pub fn translate(command: Command, args: &[String], compat: &Compat) -> Result<Translated, UsageError> {
    translate_with(command, args, &BTreeMap::new(), compat)
}

/// Translates a command line and the variables of `environment` that set options, such as `SBATCH_PARTITION`: the command
/// line wins.
///
/// # Errors
/// As [`translate`]; the error names the variable.
pub fn translate_with(
    command: Command,
    args: &[String],
    environment: &BTreeMap<String, String>,
    compat: &Compat,
) -> Result<Translated, UsageError> {
    let Arguments { given, rest } = read_arguments(command, "", args)?;
    let mut all = read_environment(command, environment);
    all.extend(given);
    let job = translate_job(command, &all, environment, compat)?;
    Ok(Translated { words: job.words(), notes: job.notes, of_job: job.of_job, own: job.own, rest })
}

#[cfg(test)]
mod tests;
