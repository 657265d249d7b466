//! The memory of an agent's gossip, as the allocator counts it.

/// Bytes that are allocated now, in this process.
pub fn allocated_bytes() -> u64 {
    // SAFETY: mallinfo2 takes nothing and only reads the allocator's own counts.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as u64
}
