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
/// For instrumented code alone: `start..stop` are its counters, which live as long as the process.
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
    // SAFETY: the range that the instrumented code gave us. Its increments are plain writes that nobody reads but we,
    // between two inputs; one that another thread loses or adds changes which input is kept, nothing else.
    unsafe { slice::from_raw_parts_mut(start, length) }
}

/// Forgets what ran.
pub fn clear() {
    counters().fill(0);
}

/// Everything that ran for any input so far: for each edge a bit for each class of how often.
#[derive(Debug, Default)]
pub struct Seen(Vec<u8>);

impl Seen {
    /// Takes what ran since [`clear`]. Whether any of it is new.
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

    /// Edges that ran at all.
    pub fn edges(&self) -> usize {
        self.0.iter().filter(|classes| **classes != 0).count()
    }
}

/// AFL's classes of counts: a loop that runs once more is nothing new, one that runs twice as often is.
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
