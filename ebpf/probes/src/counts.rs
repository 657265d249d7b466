//! The maps of counters, and how programs add to them.

use aya_ebpf::macros::map;
use aya_ebpf::maps::{PerCpuArray, PerCpuHashMap};
use core::hint::black_box;
use core::intrinsics::{AtomicOrdering, atomic_xadd};

#[path = "../../shared/layout.rs"]
#[allow(dead_code, reason = "some of it is the agent's alone")]
pub mod layout;

use layout::{ALLOCATIONS_MAX, DEVICE, DEVICE_WORDS, DEVICES, DEVICES_MAX, DEVICES_OTHER, NODE_WORDS, RANGE_SHIFT, RANGES, Words};

/// Entries are allocated when they are inserted: most nodes have few allocations and many processors.
const BPF_F_NO_PREALLOC: u32 = 1;

/// Cgroup id → its counters. Only the agent inserts and removes entries.
#[map]
static COUNTS: PerCpuHashMap<u64, Words> = PerCpuHashMap::with_max_entries(ALLOCATIONS_MAX, BPF_F_NO_PREALLOC);

/// The counters of what belongs to no allocation.
#[map]
static NODE: PerCpuArray<u64> = PerCpuArray::with_max_entries(NODE_WORDS, 0);

/// One allocation's counters on this processor.
#[derive(Clone, Copy)]
pub struct Counts(*mut u64);

impl Counts {
    /// `None`: this cgroup is not counted.
    #[inline(always)]
    pub fn of(cgroup: u64) -> Option<Self> {
        COUNTS.get_ptr_mut(&cgroup).map(|words| Self(words.cast()))
    }

    /// Adds, if a program in another context may interrupt this one on the same processor.
    #[inline(always)]
    pub fn add(self, word: usize, more: u64) {
        // SAFETY: `word` is an index of the layout, so it is inside the map's value.
        unsafe { add_at(self.0.add(word), more) };
    }

    /// Adds a duration to a histogram.
    #[inline(always)]
    pub fn took(self, histogram: usize, ns: u64) {
        self.add(histogram, ns);
        self.add(histogram + 1 + range(ns), 1);
    }

    /// The begin of a device's slot: its own slot on this processor, else a free one, else the slot of all others.
    #[inline(always)]
    pub fn device(self, id: Option<u64>) -> usize {
        let Some(id) = id else { return DEVICES_OTHER };
        for n in 0..DEVICES_MAX {
            let place = DEVICES + n * DEVICE_WORDS;
            // SAFETY: the slot is inside the map's value. A program does not interrupt itself on one processor, and no
            // other program uses slots.
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

    /// Adds, if no other program that adds to this word can interrupt this one.
    #[inline(always)]
    pub fn add_alone(self, word: usize, more: u64) {
        // SAFETY: as in `add`.
        unsafe { *self.0.add(word) += more };
    }

    /// Like `took`, under the condition of `add_alone`.
    #[inline(always)]
    pub fn took_alone(self, histogram: usize, ns: u64) {
        self.add_alone(histogram, ns);
        self.add_alone(histogram + 1 + range(ns), 1);
    }
}

/// One instruction; it is the only atomic one of the kernel's machine for which core has a function.
///
/// # Safety
/// `at` is the address of a word in a map's value.
#[inline(always)]
pub unsafe fn add_at(at: *mut u64, more: u64) {
    // SAFETY: the caller guarantees it.
    let _ = unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(at, more) };
}

/// Adds to a counter of what belongs to no allocation.
#[inline(always)]
pub fn node(word: u32, more: u64) {
    if let Some(at) = NODE.get_ptr_mut(word) {
        // SAFETY: the map's value is one aligned word.
        unsafe { add_at(at, more) };
    }
}

/// The histogram range of a duration: the first whose bound it does not exceed.
#[inline(always)]
fn range(ns: u64) -> usize {
    let above = ns.saturating_sub(1) >> RANGE_SHIFT;
    // The verifier must see the bound on the value that is added to the address, so hide it from the compiler.
    let range = black_box((u64::BITS - above.leading_zeros()) as usize);
    if range < RANGES { range } else { RANGES - 1 }
}
