//! Why an allocation cannot have a node.

use crate::holdings::Holdings;
use crate::owners::{kept_apart, users_apart};
use crate::replicas::replica_there;
use crate::view::View;
use lattice_model::{Allocation, AllocationId, Exclusion, Node, Resources, Timestamp, VCluster, hostlist};

/// Why an allocation cannot have a node, as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// It belongs to another vCluster.
    Foreign(String),
    /// The quorum's record of the node does not allow claims on it.
    Unclaimable(String),
    /// Gossip does not show it alive.
    NotAlive,
    /// Another allocation has the node, or is about to get it, or has a part of it while this one
    /// wants the whole node.
    Taken(AllocationId),
    /// It is reserved for another allocation from a time before the end of this one.
    Reserved {
        /// The other allocation.
        by: AllocationId,
        /// When the reservation begins, if that is known.
        from: Option<Timestamp>,
    },
    /// Less of it is free than the allocation wants.
    Full {
        /// The free part.
        free: Resources,
        /// What the allocation wants of it.
        wanted: Resources,
    },
    /// Enough of it is free, but the cluster's share policy allows the allocation no part of it.
    Apart {
        /// The allocation that holds a part of the node.
        by: AllocationId,
        /// What the node holds, in words: [`lattice_model::SharePolicy::keeps_apart`].
        work: &'static str,
    },
    /// Enough of it is free, but `--exclusive=user`, of this allocation or of one on the node, forbids that they share it.
    UsersApart {
        /// The allocation that holds a part of the node.
        by: AllocationId,
        /// What the node holds, in words: [`lattice_model::ShareUser::keeps_apart`].
        work: &'static str,
    },
    /// Enough of it is free, but another replica of the same service has a part of it.
    Replica(AllocationId),
    /// This allocation could not begin there: its prologue failed, or the tasks of its group could not be
    /// started. The exclusion ends at `until`, or earlier if the node is repaired.
    Excluded {
        /// Why it failed.
        why: String,
        /// By the leader's clock.
        until: Timestamp,
    },
    /// Even if it were free, it lacks something that the allocation asks for.
    Lacks(String),
    /// An operator has set it aside for others from a time before the end of this allocation.
    SetAside {
        /// The reservation.
        reservation: String,
        /// When its window begins.
        from: Timestamp,
        /// When it ends.
        until: Timestamp,
    },
}

impl std::fmt::Display for WhyNot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Foreign(why) | Self::Unclaimable(why) => f.write_str(why),
            Self::NotAlive => f.write_str("is not seen alive by gossip"),
            Self::Taken(by) => write!(f, "is taken by allocation {}", by.short()),
            Self::Reserved { by, from: Some(from) } => write!(f, "is reserved for allocation {} from {from} on", by.short()),
            Self::Reserved { by, from: None } => write!(f, "is kept for allocation {}, whose start is not known", by.short()),
            Self::Full { free, wanted } => write!(f, "has too little free: {}", wanted.short_of(free)),
            Self::Apart { by, work } => write!(f, "holds {work} (allocation {}), and the share policy keeps the two apart", by.short()),
            Self::UsersApart { by, work } => {
                write!(f, "holds {work} (allocation {}), and --exclusive=user keeps the two apart", by.short())
            }
            Self::Replica(by) => write!(f, "has a replica of the same service already (allocation {})", by.short()),
            Self::Lacks(what) => f.write_str(what),
            Self::SetAside { reservation, from, until } => write!(f, "is set aside by reservation {reservation} from {from} to {until}"),
            Self::Excluded { why, until } => write!(
                f,
                "is excluded until {until}, because this allocation could not begin there ({why}); it is used before that once its checks \
                 are ok again, it has booted, or a hold of it is lifted"
            ),
        }
    }
}

/// Why `allocation` cannot have `node` now; `None`: it can.
pub(crate) fn why_not(view: &View, held: &Holdings, node: &Node, allocation: &Allocation) -> Option<WhyNot> {
    if let Some(why) = VCluster::keeps_off(view.named(allocation), node) {
        return Some(WhyNot::Foreign(why));
    }
    if let Some(why) = node.unclaimable() {
        return Some(WhyNot::Unclaimable(why));
    }
    if let Some(Exclusion { why, until: Some(until), .. }) = allocation.exclusion(&node.id) {
        return Some(WhyNot::Excluded { why: why.clone(), until: *until });
    }
    if let Some(what) = allocation.spec.lacked_by(node) {
        return Some(WhyNot::Lacks(what));
    }
    let (free, wanted) = (node.size.minus(&held.committed(&node.id)), allocation.spec.amount_of(&node.size));
    match held.largest(&node.id) {
        Some((by, part)) if allocation.spec.share.is_none() || part == node.size => return Some(WhyNot::Taken(by)),
        Some(_) | None if !free.holds(&wanted) => return Some(WhyNot::Full { free, wanted }),
        Some(_) | None => {}
    }
    if let Some(by) = replica_there(view, allocation, held.holders(&node.id)) {
        return Some(WhyNot::Replica(by));
    }
    if let Some((by, work)) = kept_apart(view, allocation, node, held.holders(&node.id)) {
        return Some(WhyNot::Apart { by, work });
    }
    if let Some((by, work)) = users_apart(view, allocation, node, held.holders(&node.id)) {
        return Some(WhyNot::UsersApart { by, work });
    }
    (!view.alive.contains(&node.id)).then_some(WhyNot::NotAlive)
}

/// The number of this cluster's nodes that are excluded for the allocation, and a text with their
/// names and the end of the first exclusion. `None`: no node is excluded.
pub(crate) fn excluded(view: &View, allocation: &Allocation) -> Option<(usize, String)> {
    let excluded = || allocation.excluded.iter().filter(|e| view.nodes.contains_key(&e.node)).filter_map(|e| Some((&e.node, e.until?)));
    let first = excluded().map(|(_, until)| until).min()?;
    let nodes = hostlist::fold(excluded().map(|(node, _)| node));
    Some((excluded().count(), format!("{nodes}, where it could not begin, until {first} or until the trouble there is over")))
}
