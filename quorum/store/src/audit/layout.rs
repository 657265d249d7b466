//! The layout of a segment of the audit chain.

pub(super) const MAGIC: &[u8; 16] = b"LATTICE-AUDIT\0\0\x02";
/// The offset of the first record.
pub const START: u64 = MAGIC.len() as u64;
/// Of each group of this many records in a segment, the offset of the first one stays in memory.
pub const STRIDE: u64 = 1024;
