//! Why a value of an option is refused, and what to do instead.

use crate::memory::MemoryError;
use lattice_model::dependency::NoSuchCondition;
use lattice_model::duration::DurationError;
use thiserror::Error;

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
    #[error("{0}: write {0}=VALUE; --export in a script accepts only ALL, NONE and NAME=VALUE")]
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
    #[error("{0:?}: the delay must be a number of minutes, such as after:ID+10")]
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
