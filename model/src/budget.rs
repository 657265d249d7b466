//! The budgets of tenants, and the marks at which the use of a budget is reported.
//!
//! ```text
//!   0 % ──────────────▶ 80 %: nearly used ──────────▶ 100 %: used
//!                        the score falls from here on   nothing is refused or ended
//! ```

use crate::usage::Used;
use serde::{Deserialize, Serialize};

/// What a budget counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// GPUs × hours.
    GpuHours,
    /// Nodes × hours.
    NodeHours,
}

impl Budget {
    /// Both.
    pub const ALL: [Self; 2] = [Self::GpuHours, Self::NodeHours];

    /// Its name, as it is written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::GpuHours => "gpu_hours",
            Self::NodeHours => "node_hours",
        }
    }

    /// The part of the use that it counts, in milliseconds.
    pub fn used_ms(self, used: Used) -> u64 {
        match self {
            Self::GpuHours => used.gpu_ms,
            Self::NodeHours => used.node_ms,
        }
    }
}

/// The part of a budget whose use is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetMark {
    /// From here on, the score of the tenant's work falls.
    NearlyUsed,
    /// All of it.
    Used,
}

impl BudgetMark {
    /// In percent of the budget.
    pub fn percent(self) -> u64 {
        match self {
            Self::NearlyUsed => 80,
            Self::Used => 100,
        }
    }

    /// The highest mark that is reached when `percent` of the budget is used.
    pub fn reached_at(percent: u64) -> Option<Self> {
        [Self::Used, Self::NearlyUsed].into_iter().find(|mark| percent >= mark.percent())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_reached_from_its_percentage_on() {
        let reached = [0, 79, 80, 99, 100, u64::MAX].map(BudgetMark::reached_at);
        let (nearly, used) = (Some(BudgetMark::NearlyUsed), Some(BudgetMark::Used));
        assert_eq!(reached, [None, None, nearly, nearly, used, used]);
        assert!(nearly < used && None < nearly, "the ledger compares them");
    }

    #[test]
    fn names_are_those_in_json() {
        for budget in Budget::ALL {
            assert_eq!(serde_json::to_string(&budget).unwrap(), format!("{:?}", budget.name()));
        }
    }
}
