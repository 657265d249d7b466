//! Shares in a snapshot and in a message.
//!
//! ```text
//!   { nodes: hostlist, amounts: [[count, amount], …], phases: [[count, phase], …] }
//! ```
//!
//! Amounts and phases are stored as runs, because consecutive nodes are often equal. The counts of
//! each list must add up to the number of names. A hostlist has at most
//! [`NAMES_MAX`](crate::hostlist::NAMES_MAX) names.

use super::{InvalidShares, ShareList, Shares};
use crate::claim::SharePhase;
use crate::node_list::NodeList;
use crate::resources::Resources;
use serde::{Deserialize, Serialize, Serializer};

#[derive(Serialize)]
struct Encoded {
    nodes: NodeList,
    amounts: Vec<(u32, Resources)>,
    phases: Vec<(u32, SharePhase)>,
}

#[derive(Deserialize)]
pub(super) struct Decoded {
    nodes: NodeList,
    amounts: Vec<(u32, Resources)>,
    phases: Vec<(u32, SharePhase)>,
}

impl Serialize for Shares {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (amounts, phases) = (self.list.amount_runs().collect(), self.phases.runs(self.len()));
        Encoded { nodes: self.list.node_list(), amounts, phases }.serialize(serializer)
    }
}

impl TryFrom<Decoded> for Shares {
    type Error = InvalidShares;

    fn try_from(Decoded { nodes, amounts, phases }: Decoded) -> Result<Self, InvalidShares> {
        check_sum(&amounts, "amounts", nodes.len())?;
        check_sum(&phases, "phases", nodes.len())?;
        let mut shares = Self::of_list(ShareList::of(nodes, amounts.into_iter().filter(|(count, _)| *count > 0))?);
        let phases = phases.iter().flat_map(|(count, phase)| std::iter::repeat_n(*phase, *count as usize));
        for (rank, phase) in (0..).zip(phases) {
            shares.set_phase_of_rank(rank, phase);
        }
        Ok(shares)
    }
}

/// Checks that the runs have this many shares together.
fn check_sum<T>(runs: &[(u32, T)], what: &'static str, nodes: usize) -> Result<(), InvalidShares> {
    // At most 2^32 runs of less than 2^32 shares each.
    let given: u64 = runs.iter().map(|(count, _)| u64::from(*count)).sum();
    if given == nodes as u64 { Ok(()) } else { Err(InvalidShares::Miscounted { what, given, nodes }) }
}
