//! Reduces how much of its node's memory the agent uses.
//!
//! glibc's malloc gives each thread its own heap, and a heap does not return all freed memory. The
//! agent has dozens of threads that seldom run, so all share two heaps. With 50 allocations, the
//! agent then has 38.7 MB resident, and 39.3 MB with four heaps (docs/benchmarks.md). The pages of
//! its program that only the start used are unmapped later ([`lattice_runtime::program_pages`]).

/// Number of heaps that all threads share.
const HEAPS_MAX: i32 = 2;

/// Makes all threads share few heaps. Call it before the first thread is started.
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a limit and changes no existing allocation.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX);
    }
}
