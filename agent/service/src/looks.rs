//! Reads of other users' measurements: the audit log gets one record an hour for each user,
//! allocation and command.

use lattice_model::AllocationId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one audit record covers further reads of the same allocation by the same user with the
/// same command.
const LOOK_STANDS: Duration = Duration::from_secs(3600);
/// How many reads are remembered; beyond that the oldest are forgotten, and recorded again if
/// repeated.
const LOOKS_MAX: usize = 4096;

/// The reads of other users' measurements within the last hour: uid, allocation and command.
/// Cloneable; all clones share them.
#[derive(Clone, Default)]
pub struct Looks(Arc<Mutex<BTreeMap<Look, Instant>>>);

type Look = (u32, AllocationId, &'static str);

impl Looks {
    pub(super) fn stands(&self, look: &Look, now: Instant) -> bool {
        let mut looks = self.0.lock();
        looks.retain(|_, at| now.saturating_duration_since(*at) < LOOK_STANDS);
        looks.contains_key(look)
    }

    pub(super) fn remember(&self, look: Look, now: Instant) {
        let mut looks = self.0.lock();
        looks.insert(look, now);
        while looks.len() > LOOKS_MAX
            && let Some(oldest) = looks.iter().min_by_key(|(_, at)| **at).map(|(look, _)| *look)
        {
            looks.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn one_record_covers_an_hour_for_one_user_and_command() {
        let (looks, began, id) = (Looks::default(), Instant::now(), AllocationId(Uuid::from_u128(1)));
        let after = |seconds| began + Duration::from_secs(seconds);
        looks.remember((0, id, "top"), began);
        assert!(looks.stands(&(0, id, "top"), after(3599)));
        for other in [(1, id, "top"), (0, id, "diag"), (0, AllocationId(Uuid::from_u128(2)), "top")] {
            assert!(!looks.stands(&other, after(1)), "{other:?}");
        }
        assert!(!looks.stands(&(0, id, "top"), after(3600)));
        for n in 0..=LOOKS_MAX as u64 {
            looks.remember((7, AllocationId(Uuid::from_u128(u128::from(n) + 10)), "top"), after(3600 + n));
        }
        assert_eq!(looks.0.lock().len(), LOOKS_MAX);
    }
}
