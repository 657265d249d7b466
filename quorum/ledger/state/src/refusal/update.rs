//! Why an allocation is not changed.

use lattice_model::duration::clock_text;
use lattice_model::{AllocationId, AllocationState};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thiserror::Error;

/// Why an allocation is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum UpdateRefusal {
    #[error("it is {state}")]
    HasEnded { state: AllocationState },
    #[error("its walltime is over, and its work is being ended")]
    WalltimeIsOver,
    #[error("it runs for {} already, so {} is the least that its walltime can be", clock_text(*ran), clock_text(*least))]
    TooShort { ran: Duration, least: Duration },
    #[error("it is {state}, and only operators lengthen the walltime of work that has nodes: other work was planned with its end")]
    LongerWithNodes { state: AllocationState },
    #[error("it is {state}, and only operators raise the preemption class of work that has nodes: other work counts on it")]
    HigherWithNodes { state: AllocationState },
    #[error("it has nodes that vCluster {lender} has lent to it, and does not lend to such work")]
    NodesAreLent { lender: String },
    #[error("it scales by no metric, so it has no target for one")]
    NoMetric,
    #[error("it is {state}: a time at which it begins, and a deadline, are for work that waits")]
    HasBegun { state: AllocationState },
    #[error("only operators put work before equal work, by a smaller nice")]
    SmallerNice,
    #[error("its settings have version {version}, and the change is for version {expected}: somebody changed them meanwhile")]
    OtherVersion { expected: u64, version: u64 },
}

impl UpdateRefusal {
    pub(super) fn remedy(&self, id: AllocationId) -> String {
        let id = id.short();
        match self {
            Self::HasEnded { .. } | Self::WalltimeIsOver => "submit it again with other options".to_owned(),
            Self::TooShort { .. } => format!("`lattice cancel {id}` ends it at once"),
            Self::LongerWithNodes { .. } => "ask root on a machine whose agent has the role api; its owner may shorten it".to_owned(),
            Self::HigherWithNodes { .. } => "ask root on a machine whose agent has the role api; its owner may lower it".to_owned(),
            Self::NodesAreLent { lender } => format!(
                "`lattice preempt --hold {id}` has it give its nodes back; it can be changed then, and `lattice resume {id}` lets it continue \
                 on nodes that are not lent by {lender}"
            ),
            Self::HasBegun { .. } => format!("`lattice requeue {id}` puts it back into its queue"),
            Self::SmallerNice => "give the nice that it has, or a larger one; or ask an operator".to_owned(),
            Self::OtherVersion { .. } => "read it again, and repeat the change".to_owned(),
            Self::NoMetric => {
                format!("`lattice scale {id} N` sets its replicas; or submit it again with --scale-metric and --scale-target")
            }
        }
    }
}
