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
    #[error("it has run for {}, so its walltime must be at least {}", clock_text(*ran), clock_text(*least))]
    TooShort { ran: Duration, least: Duration },
    #[error(
        "it is {state}, and only operators lengthen the walltime of work that has nodes, because the starts of other work were planned from its end"
    )]
    LongerWithNodes { state: AllocationState },
    #[error(
        "it is {state}, and only operators raise the preemption class of work that has nodes, because other work may count on preempting it"
    )]
    HigherWithNodes { state: AllocationState },
    #[error("it runs on nodes of vCluster {lender}, which does not lend its nodes to work with these settings")]
    NodesAreLent { lender: String },
    #[error("it scales by no metric, so it has no target, window or cooldown for one")]
    NoMetric,
    #[error("another metric needs a target of its own")]
    NoTarget,
    #[error("it is {state}, and its begin time, deadline and reservation can be changed only while it waits")]
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
                "give its nodes back with `lattice preempt --hold {id}`, change it, and let it continue with `lattice resume {id}` on nodes that \
                 are not lent by {lender}"
            ),
            Self::HasBegun { .. } => format!("`lattice requeue {id}` puts it back into its queue"),
            Self::SmallerNice => "give the nice that it has, or a larger one; or ask an operator".to_owned(),
            Self::OtherVersion { .. } => "read it again, and repeat the change".to_owned(),
            Self::NoMetric => {
                format!("`lattice scale {id} N` sets its replicas; or give it a metric too, by --scale-metric and --scale-target")
            }
            Self::NoTarget => "add --scale-target (REST: scale_target)".to_owned(),
        }
    }
}
