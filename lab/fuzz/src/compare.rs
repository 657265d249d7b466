//! Records the values that the code compared: a length, a version or a checksum that an input lacks can be put into the
//! next one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many of the newest comparisons are remembered.
const COMPARES: usize = 64;

/// Width in bytes, and both sides.
static RECENT: [[AtomicU64; 3]; COMPARES] = [const { [const { AtomicU64::new(0) }; 3] }; COMPARES];
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn remember(width: u64, left: u64, right: u64) {
    if left == right {
        return;
    }
    let entry = &RECENT[NEXT.fetch_add(1, Ordering::Relaxed) % COMPARES];
    for (cell, value) in entry.iter().zip([width, left, right]) {
        cell.store(value, Ordering::Relaxed);
    }
}

/// One of the newest comparisons of more than a byte: both sides, in as many bytes as were compared, little endian.
pub fn recent(index: usize) -> Option<(Vec<u8>, Vec<u8>)> {
    let [width, left, right] = RECENT[index % COMPARES].each_ref().map(|cell| cell.load(Ordering::Relaxed));
    let width = usize::try_from(width).ok().filter(|width| *width > 1)?;
    Some((left.to_le_bytes()[..width].to_vec(), right.to_le_bytes()[..width].to_vec()))
}

macro_rules! traced {
    ($($name:ident $type:ty;)*) => {$(
        /// Called by instrumented code at each comparison.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(left: $type, right: $type) {
            remember(size_of::<$type>() as u64, left.into(), right.into());
        }
    )*};
}

traced! {
    __sanitizer_cov_trace_cmp1 u8;
    __sanitizer_cov_trace_cmp2 u16;
    __sanitizer_cov_trace_cmp4 u32;
    __sanitizer_cov_trace_cmp8 u64;
    __sanitizer_cov_trace_const_cmp1 u8;
    __sanitizer_cov_trace_const_cmp2 u16;
    __sanitizer_cov_trace_const_cmp4 u32;
    __sanitizer_cov_trace_const_cmp8 u64;
}

/// Called by instrumented code at each `match` of a number: its cases are found by their edges.
#[unsafe(no_mangle)]
pub extern "C" fn __sanitizer_cov_trace_switch(_value: u64, _cases: *const u64) {}
