//! Which edges of the code ran: LLVM's "inline 8-bit counters", one byte for each edge of each instrumented crate.
//!
//! Source of the interface: <https://clang.llvm.org/docs/SanitizerCoverage.html>.

use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

static COUNTERS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static COUNTERS_LEN: AtomicUsize = AtomicUsize::new(0);

/// Called by each instrumented module before `main`. They share one section, so that all report the same range.
///
/// # Safety
/// Only for instrumented code: `start..stop` are its counters, which live as long as the process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    COUNTERS.store(start, Ordering::Relaxed);
    COUNTERS_LEN.store(stop as usize - start as usize, Ordering::Relaxed);
}

fn counters() -> &'static mut [u8] {
    let (start, length) = (COUNTERS.load(Ordering::Relaxed), COUNTERS_LEN.load(Ordering::Relaxed));
    if start.is_null() {
        return &mut [];
    }
    // SAFETY: the range from the instrumented code. Its increments are plain writes that only we read, between two
    // inputs; a lost or additional increment of another thread only changes which input is stored.
    unsafe { slice::from_raw_parts_mut(start, length) }
}

/// Resets all counters.
pub fn clear() {
    counters().fill(0);
}

/// Everything that ran for any input so far: for each edge one bit for each class of counts.
#[derive(Debug, Default)]
pub struct Seen(Vec<u8>);

impl Seen {
    /// Adds what ran since [`clear`]. Returns whether any of it is new.
    pub fn add(&mut self) -> bool {
        let counters = counters();
        self.0.resize(counters.len(), 0);
        let mut is_new = false;
        for (counts, seen) in counters.chunks(8).zip(self.0.chunks_mut(8)) {
            if counts == [0; 8] {
                continue;
            }
            for (count, seen) in counts.iter().zip(seen) {
                let class = class(*count);
                is_new |= class & !*seen != 0;
                *seen |= class;
            }
        }
        is_new
    }

    /// The number of edges that ran at all.
    pub fn edges(&self) -> usize {
        self.0.iter().filter(|classes| **classes != 0).count()
    }
}

/// AFL's classes of counts: one more iteration of a loop is not new, twice as many are.
fn class(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..=7 => 8,
        8..=15 => 16,
        16..=31 => 32,
        32..=127 => 64,
        128.. => 128,
    }
}
