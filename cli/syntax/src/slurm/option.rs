//! What the table says of an option: its names, its commands, its value, and its rule.

use super::own::Sets;
use crate::compat::Compat;
use crate::memory::MemoryError;
use lattice_model::dependency::NoSuchCondition;
use lattice_model::duration::DurationError;
use std::collections::BTreeMap;
use thiserror::Error;

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

/// What a value is translated with.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// The site's names.
    pub compat: &'a Compat,
    /// The variables of the submitting process, where they are known.
    pub environment: &'a BTreeMap<String, String>,
}

/// What a value becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meaning {
    /// Options of `lattice submit`.
    pub words: Vec<String>,
    /// What a person should know.
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
    /// The command itself does it. The text is for `#SBATCH` lines of `lattice submit`, which is not that command.
    /// There an empty text means that the option changes nothing.
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
    /// What the guide adds.
    pub remark: &'static str,
}

impl SlurmOption {
    /// Whether a command has it.
    pub fn is_of(&self, command: Command) -> bool {
        self.commands & command.bit() != 0
    }
}

/// Why a value is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ValueError {
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("{0:?} is not supported: the only generic resources are GPUs, such as gpu:4 or gpu:a100:4")]
    NotGpus(String),
    #[error("{0:?} is not a number of GPUs, such as 4 or a100:4")]
    Gpus(String),
    #[error("only one kind of GPU can be requested")]
    SeveralKinds,
    #[error("{0:?} is not a number of {1}")]
    Number(String, &'static str),
    #[error("{0:?} is not {1}")]
    Choice(String, &'static str),
    #[error("{0}: write {0}=VALUE; a script's line may have only ALL, NONE and variables with their values")]
    Unassigned(String),
    #[error(
        "{0:?} is not supported: write afterok:ID, afternotok:ID, afterany:ID, after:ID, after:ID+MINUTES or aftercorr:ID, with job \
         numbers or ids of Lattice, or singleton"
    )]
    Dependency(String),
    #[error(
        "`?` is not supported: all jobs of the list count, with commas between them; for one of several, submit the job with --hold, \
         and let each of the others run `lattice resume ID || true`"
    )]
    AnyDependency,
    #[error("{0:?}: the delay is no number of minutes, such as after:ID+10")]
    Delay(String),
    #[error(transparent)]
    Condition(#[from] NoSuchCondition),
    #[error("the site has no QOS {0:?}")]
    Qos(String),
    #[error("there is one cluster here, {0}")]
    Cluster(String),
    #[error("{what} is not supported, and the job would be different without it")]
    NotHonoured {
        /// The value, or its part.
        what: String,
        /// What to do instead.
        remedy: &'static str,
    },
}

impl ValueError {
    /// This value is not honoured.
    pub(super) fn not_honoured(what: &str, remedy: &'static str) -> Self {
        Self::NotHonoured { what: format!("{what:?}"), remedy }
    }

    /// What to do instead.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NotHonoured { remedy, .. } => Some(remedy),
            Self::Qos(_) => Some("choose a queue with -p; qos_mapping of lattice-compat.yaml has the site's names of QOS"),
            Self::Cluster(_) => Some("leave it out; --endpoint of `lattice submit` names an agent of another cluster"),
            Self::NotGpus(_) => Some("leave it out; choose nodes by their features with -C"),
            Self::Duration(_)
            | Self::Memory(_)
            | Self::Gpus(_)
            | Self::SeveralKinds
            | Self::Number(..)
            | Self::Choice(..)
            | Self::Unassigned(_)
            | Self::Dependency(_)
            | Self::AnyDependency
            | Self::Delay(_)
            | Self::Condition(_) => None,
        }
    }
}
