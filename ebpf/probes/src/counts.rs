//! The maps, and how they are counted into.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{PerCpuArray, PerCpuHashMap};
use core::hint::black_box;
use core::intrinsics::{AtomicOrdering, atomic_xadd};

#[path = "../../shared/layout.rs"]
#[allow(dead_code, reason = "some of it is the agent's alone")]
pub mod layout;

use layout::{ALLOCATIONS_MAX, DEVICE, DEVICE_WORDS, DEVICES, DEVICES_MAX, DEVICES_OTHER, NODE_WORDS, RANGE_SHIFT, RANGES, Words};

/// Elements are made when they are put in: most nodes have few allocations and many processors.
const BPF_F_NO_PREALLOC: u32 = 1;

/// Cgroup id → its numbers. The agent alone puts in and takes out.
#[map]
static COUNTS: PerCpuHashMap<u64, Words> = PerCpuHashMap::with_max_entries(ALLOCATIONS_MAX, BPF_F_NO_PREALLOC);

/// What is of no allocation.
#[map]
static NODE: PerCpuArray<u64> = PerCpuArray::with_max_entries(NODE_WORDS, 0);

/// One allocation's numbers on this processor.
#[derive(Clone, Copy)]
pub struct Counts(*mut u64);

impl Counts {
    /// `None`: it is not counted.
    #[inline(always)]
    pub fn of(cgroup: u64) -> Option<Self> {
        COUNTS.get_ptr_mut(&cgroup).map(|words| Self(words.cast()))
    }

    /// Adds, where a program of another context on this processor can come in between.
    #[inline(always)]
    pub fn add(self, word: usize, more: u64) {
        // SAFETY: `word` is one of the layout's, which lie in the map's value.
        unsafe { add_at(self.0.add(word), more) };
    }

    /// Adds a duration to a histogram.
    #[inline(always)]
    pub fn took(self, histogram: usize, ns: u64) {
        self.add(histogram, ns);
        self.add(histogram + 1 + range(ns), 1);
    }

    /// Where a device's place begins: the one that it has on this processor, or a free one, or that of all others.
    #[inline(always)]
    pub fn device(self, id: Option<u64>) -> usize {
        let Some(id) = id else { return DEVICES_OTHER };
        for n in 0..DEVICES_MAX {
            let place = DEVICES + n * DEVICE_WORDS;
            // SAFETY: the place lies in the map's value. A program does not come in between itself on one processor, and no other
            // has to do with places.
            let known = unsafe { &mut *self.0.add(place + DEVICE) };
            if *known == 0 {
                *known = id;
            }
            if *known == id {
                return place;
            }
        }
        DEVICES_OTHER
    }

    /// Adds, where nothing comes in between that adds to the same word.
    #[inline(always)]
    pub fn add_alone(self, word: usize, more: u64) {
        // SAFETY: as in `add`.
        unsafe { *self.0.add(word) += more };
    }

    /// The same as `took`.
    #[inline(always)]
    pub fn took_alone(self, histogram: usize, ns: u64) {
        self.add_alone(histogram, ns);
        self.add_alone(histogram + 1 + range(ns), 1);
    }
}

/// One instruction of the kernel's machine, which has no others for atomic words that core would offer.
///
/// # Safety
/// It is the address of a word of a map's value.
#[inline(always)]
pub unsafe fn add_at(at: *mut u64, more: u64) {
    // SAFETY: the caller's.
    let _ = unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(at, more) };
}

/// Adds to what is of no allocation.
#[inline(always)]
pub fn node(word: u32, more: u64) {
    if let Some(at) = NODE.get_ptr_mut(word) {
        // SAFETY: the map's value is one aligned word.
        unsafe { add_at(at, more) };
    }
}

/// The range that a duration is in: the first whose bound it does not exceed.
#[inline(always)]
fn range(ns: u64) -> usize {
    let above = ns.saturating_sub(1) >> RANGE_SHIFT;
    // The verifier has to see the bound on the very number that is added to the address: what the compiler knows of it is hidden here.
    let range = black_box((u64::BITS - above.leading_zeros()) as usize);
    if range < RANGES { range } else { RANGES - 1 }
}
