//! An option in the table: its names, its commands, its value, and its rule.

use super::own::Sets;
use super::value_error::ValueError;
use crate::compat::Compat;
use std::collections::BTreeMap;

/// A command of Slurm that asks for resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `sbatch`
    Sbatch,
    /// `srun`
    Srun,
    /// `salloc`
    Salloc,
}

impl Command {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sbatch, Self::Srun, Self::Salloc];

    /// The name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sbatch => "sbatch",
            Self::Srun => "srun",
            Self::Salloc => "salloc",
        }
    }

    /// Its bit in [`SlurmOption::commands`].
    pub(super) const fn bit(self) -> u8 {
        match self {
            Self::Sbatch => 1,
            Self::Srun => 2,
            Self::Salloc => 4,
        }
    }
}

/// Whether an option has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// None.
    Nothing,
    /// One, as `--name=VALUE`, `--name VALUE`, `-nVALUE` or `-n VALUE`.
    Value,
    /// Perhaps one, only as `--name=VALUE` or `-nVALUE`.
    Perhaps,
}

/// The context in which a value is translated.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// The site's names.
    pub compat: &'a Compat,
    /// The variables of the submitting process, where they are known.
    pub environment: &'a BTreeMap<String, String>,
}

/// The translation of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meaning {
    /// Options of `lattice submit`.
    pub words: Vec<String>,
    /// A note for the user.
    pub note: Option<&'static str>,
}

impl Meaning {
    /// One option.
    pub(super) fn word(word: impl Into<String>) -> Self {
        Self { words: vec![word.into()], note: None }
    }

    /// No option is needed, and why.
    pub(super) fn harmless(note: &'static str) -> Self {
        Self { words: Vec::new(), note: Some(note) }
    }
}

/// What happens to an option.
#[derive(Clone, Copy)]
pub enum Rule {
    /// The same value under this name.
    Word(&'static str),
    /// This option, which has no value.
    Plain(&'static str),
    /// The value is translated. An optional value that is missing is empty.
    By(fn(&str, Around<'_>) -> Result<Meaning, ValueError>),
    /// The command itself handles the option. For `#SBATCH` lines, `lattice submit` refuses it with this text as the
    /// remedy; an empty text: the option changes nothing there.
    Own(Sets, &'static str),
    /// It does not change what runs: it is ignored with a note. The text says why.
    Harmless(&'static str),
    /// It would change what runs. The text says what to do instead.
    Refused(&'static str),
}

/// An option of one or more of the commands.
pub struct SlurmOption {
    /// Its name, without dashes.
    pub long: &'static str,
    /// Its letter.
    pub short: Option<char>,
    /// The commands that have it, as bits.
    pub commands: u8,
    /// Whether it has a value.
    pub takes: Takes,
    /// What happens to it.
    pub rule: Rule,
    /// A value as an example, for the guide and the tests; empty: none is needed.
    pub sample: &'static str,
    /// A remark that the guide adds.
    pub remark: &'static str,
}

impl SlurmOption {
    /// Whether a command has it.
    pub fn is_of(&self, command: Command) -> bool {
        self.commands & command.bit() != 0
    }
}
