//! Reads of other users' measurements: the audit log gets one record an hour for each user,
//! allocation and command.

use lattice_model::AllocationId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one audit record covers further reads of the same allocation by the same user with the
/// same command.
const RECORD_INTERVAL: Duration = Duration::from_secs(3600);
/// How many reads are remembered; beyond that the oldest are forgotten, and recorded again if
/// repeated.
const READS_MAX: usize = 4096;

/// The reads of other users' measurements within the last hour: uid, allocation and command.
/// Cloneable; all clones share them.
#[derive(Clone, Default)]
pub struct MeasurementReads(Arc<Mutex<BTreeMap<Read, Instant>>>);

type Read = (u32, AllocationId, &'static str);

impl MeasurementReads {
    pub(super) fn is_recorded(&self, read: &Read, now: Instant) -> bool {
        let mut reads = self.0.lock();
        reads.retain(|_, at| now.saturating_duration_since(*at) < RECORD_INTERVAL);
        reads.contains_key(read)
    }

    pub(super) fn remember(&self, read: Read, now: Instant) {
        let mut reads = self.0.lock();
        reads.insert(read, now);
        while reads.len() > READS_MAX
            && let Some(oldest) = reads.iter().min_by_key(|(_, at)| **at).map(|(read, _)| *read)
        {
            reads.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn one_record_covers_an_hour_for_one_user_and_command() {
        let (reads, began, id) = (MeasurementReads::default(), Instant::now(), AllocationId(Uuid::from_u128(1)));
        let after = |seconds| began + Duration::from_secs(seconds);
        reads.remember((0, id, "top"), began);
        assert!(reads.is_recorded(&(0, id, "top"), after(3599)));
        for other in [(1, id, "top"), (0, id, "diag"), (0, AllocationId(Uuid::from_u128(2)), "top")] {
            assert!(!reads.is_recorded(&other, after(1)), "{other:?}");
        }
        assert!(!reads.is_recorded(&(0, id, "top"), after(3600)));
        for n in 0..=READS_MAX as u64 {
            reads.remember((7, AllocationId(Uuid::from_u128(u128::from(n) + 10)), "top"), after(3600 + n));
        }
        assert_eq!(reads.0.lock().len(), READS_MAX);
    }
}
