//! The VNIs in use. Not part of the replicated state: derived from the holdings and the domains.
//!
//! ```text
//!   runs:   1000..=1004        1006..=1006
//!                       ▲ 1005 is the lowest free VNI of a pool that begins at 1000: two look-ups
//! ```

use imbl::OrdMap;
use lattice_model::VniPool;

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VniUse {
    users: OrdMap<u32, Users>,
    /// Consecutive VNIs in use: the last of each run, by its first. No two runs adjoin.
    runs: OrdMap<u32, u32>,
}

/// Who uses a VNI.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Users {
    holdings: u32,
    domains: u32,
}

impl VniUse {
    /// A holding has this VNI.
    pub fn hold(&mut self, vni: u32) {
        self.change(vni, |users| users.holdings += 1);
    }

    /// A holding with this VNI is gone.
    pub fn release(&mut self, vni: u32) {
        self.change(vni, |users| users.holdings = users.holdings.saturating_sub(1));
    }

    /// A domain got this VNI.
    pub fn assign(&mut self, vni: u32) {
        self.change(vni, |users| users.domains += 1);
    }

    /// A domain with this VNI is gone.
    pub fn free(&mut self, vni: u32) {
        self.change(vni, |users| users.domains = users.domains.saturating_sub(1));
    }

    /// No domain has a VNI any more.
    pub fn free_all(&mut self) {
        let assigned = self.users.iter().filter(|(_, users)| users.domains > 0);
        for vni in assigned.map(|(vni, _)| *vni).collect::<Vec<_>>() {
            self.change(vni, |users| users.domains = 0);
        }
    }

    /// Whether a node may still use this VNI.
    pub fn is_held(&self, vni: u32) -> bool {
        self.users.get(&vni).is_some_and(|users| users.holdings > 0)
    }

    /// How many VNIs of the pool are in use. VNIs in use outside the pool, which only an earlier
    /// pool can have assigned, are counted one by one.
    pub fn used_of(&self, pool: &VniPool) -> u32 {
        let below = self.users.keys().take_while(|vni| **vni < pool.start).count();
        let above = self.users.keys().rev().take_while(|vni| **vni > pool.end).count();
        u32::try_from(self.users.len().saturating_sub(below + above)).unwrap_or(u32::MAX)
    }

    /// The lowest VNI of the pool that nothing uses.
    pub fn lowest_free(&self, pool: &VniPool) -> Option<u32> {
        let candidate = match self.runs.get_prev(&pool.start) {
            Some((_, last)) if *last >= pool.start => last.checked_add(1)?,
            Some(_) | None => pool.start,
        };
        (candidate <= pool.end).then_some(candidate)
    }

    fn change(&mut self, vni: u32, change: impl FnOnce(&mut Users)) {
        let before = self.users.get(&vni).copied().unwrap_or_default();
        let mut now = before;
        change(&mut now);
        if now == before {
            return;
        }
        if now == Users::default() {
            self.users.remove(&vni);
            self.split(vni);
        } else {
            self.users.insert(vni, now);
            if before == Users::default() {
                self.join(vni);
            }
        }
    }

    /// Adds an unused VNI to the runs.
    fn join(&mut self, vni: u32) {
        let before = self.runs.get_prev(&vni).map(|(first, last)| (*first, *last)).filter(|(_, last)| last.checked_add(1) == Some(vni));
        let after = vni.checked_add(1).and_then(|next| Some((next, self.runs.get(&next).copied()?)));
        if let Some((first, _)) = after {
            self.runs.remove(&first);
        }
        self.runs.insert(before.map_or(vni, |(first, _)| first), after.map_or(vni, |(_, last)| last));
    }

    /// Takes a VNI out of its run.
    fn split(&mut self, vni: u32) {
        let Some((first, last)) = self.runs.get_prev(&vni).map(|(first, last)| (*first, *last)) else { return };
        self.runs.remove(&first);
        if first < vni {
            self.runs.insert(first, vni - 1);
        }
        if vni < last {
            self.runs.insert(vni + 1, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn counts_and_the_lowest_free_one_equal_a_scan(
            moves in prop::collection::vec((0..24u32, 0..4u8), 1..120), start in 0..12u32, size in 1..14u32, edge in any::<bool>(),
        ) {
            // At the very end of all numbers, too.
            let offset = if edge { u32::MAX - 23 } else { 0 };
            let pool = VniPool { start: start + offset, end: (start + offset).saturating_add(size - 1), grace_ms: 0 };
            let (mut vnis, mut held, mut assigned) = (VniUse::default(), BTreeMap::<u32, u32>::new(), BTreeMap::<u32, u32>::new());
            for (vni, what) in moves {
                let vni = vni + offset;
                let count = if what < 2 { held.entry(vni) } else { assigned.entry(vni) }.or_default();
                match what {
                    0 | 2 => *count += 1,
                    _ if *count == 0 => continue,
                    _ => *count -= 1,
                }
                match what {
                    0 => vnis.hold(vni),
                    1 => vnis.release(vni),
                    2 => vnis.assign(vni),
                    _ => vnis.free(vni),
                }
                let is_held = |vni: &u32| held.get(vni).is_some_and(|count| *count > 0);
                let is_used = |vni: &u32| is_held(vni) || assigned.get(vni).is_some_and(|count| *count > 0);
                prop_assert_eq!(vnis.lowest_free(&pool), pool.numbers().find(|vni| !is_used(vni)));
                prop_assert_eq!(vnis.used_of(&pool) as usize, pool.numbers().filter(is_used).count());
                prop_assert!((offset..=offset + 23).all(|vni| vnis.is_held(vni) == is_held(&vni)));
            }
        }
    }
}
