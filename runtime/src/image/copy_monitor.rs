//! How another thread follows and cancels a copy.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One copy of an image: whether it is to stop, and how far it is.
#[derive(Debug, Default)]
pub struct CopyMonitor {
    pub(super) cancelled: AtomicBool,
    read_bytes: AtomicU64,
    /// 0: nothing is copied yet.
    source_bytes: AtomicU64,
}

impl CopyMonitor {
    /// Of a copy that has not begun.
    pub const fn new() -> Self {
        Self { cancelled: AtomicBool::new(false), read_bytes: AtomicU64::new(0), source_bytes: AtomicU64::new(0) }
    }

    /// The copy ends at its next piece.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// How much of the image was copied and hashed, in percent; `None`: nothing is copied here. 100 at most, also while a
    /// file grows.
    pub fn percent(&self) -> Option<u64> {
        let total = Some(self.source_bytes.load(Ordering::Relaxed)).filter(|total| *total > 0)?;
        Some(self.read_bytes.load(Ordering::Relaxed).min(total).saturating_mul(100) / total)
    }

    pub(super) fn begin(&self, source_bytes: u64) {
        self.read_bytes.store(0, Ordering::Relaxed);
        self.source_bytes.store(source_bytes, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_has_percents_from_its_beginning_on_and_never_more_than_a_hundred() {
        let monitor = CopyMonitor::new();
        assert_eq!(monitor.percent(), None);
        monitor.begin(1000);
        assert_eq!(monitor.percent(), Some(0));
        monitor.add(255);
        assert_eq!(monitor.percent(), Some(25));
        monitor.add(1000);
        assert_eq!(monitor.percent(), Some(100), "it has grown since");
        monitor.begin(10);
        assert_eq!(monitor.percent(), Some(0));
    }
}
