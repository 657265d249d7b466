//! Staggers the members' snapshots.
//!
//! All members apply the same entries, so all would make their snapshots at the same entry, and no
//! majority would be fast during that time. Therefore each makes its first snapshot after a start
//! at a different entry, and later ones at the common interval.

use crate::core::Core;
use lattice_store::raft::Peer;
use openraft::RaftMetrics;
use std::sync::Arc;

/// Makes this member's first snapshot since its start at its assigned entry.
pub async fn run(core: Arc<Core>) {
    let mut metrics = core.raft.metrics();
    let begun = applied(&metrics.borrow());
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            changed = metrics.changed() => if changed.is_err() { return },
        }
        let now = metrics.borrow_and_update();
        let ids = || now.membership_config.nodes().map(|(id, _)| *id);
        let (before, all) = (ids().filter(|id| *id < core.config.id).count(), ids().count());
        if applied(&now) >= first_snapshot_index(begun, core.config.snapshot_entries, before as u64, all as u64) {
            break;
        }
    }
    if let Err(error) = core.raft.trigger().snapshot().await {
        tracing::warn!(%error, "no snapshot can be made");
    }
}

fn applied(metrics: &RaftMetrics<u64, Peer>) -> u64 {
    metrics.last_applied.map_or(0, |id| id.index)
}

/// The first entry after `begun` at which a member makes a snapshot. `before` of `all` members come
/// before it in the order, and each member makes a snapshot every `every` entries.
fn first_snapshot_index(begun: u64, every: u64, before: u64, all: u64) -> u64 {
    let phase = every * before / all.max(1);
    let behind = (begun + every - phase) % every;
    begun + every - behind
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn first_snapshots_are_apart_and_come_within_one_interval(begun in 0u64..100_000, every in 10u64..20_000, all in 1u64..8) {
            let mut firsts: Vec<u64> = (0..all).map(|before| first_snapshot_index(begun, every, before, all)).collect();
            prop_assert!(firsts.iter().all(|first| *first > begun && *first <= begun + every), "{firsts:?}");
            firsts.sort_unstable();
            // The distance between the last one and the first one of the next round counts as well.
            firsts.push(firsts[0] + every);
            for pair in firsts.windows(2) {
                prop_assert!(pair[1] - pair[0] >= every / all, "{pair:?}");
            }
            // Members that started at different times use the same order.
            for before in 0..all {
                let (one, other) = (first_snapshot_index(begun, every, before, all), first_snapshot_index(begun + 7, every, before, all));
                prop_assert_eq!(one % every, other % every);
            }
        }
    }
}
