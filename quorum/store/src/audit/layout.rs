//! The layout of a segment.

pub(super) const MAGIC: &[u8; 16] = b"LATTICE-AUDIT\0\0\x02";
/// The offset of the first record.
pub const START: u64 = MAGIC.len() as u64;
/// The offset of one record in this many is remembered, including that of a segment's first.
pub const STRIDE: u64 = 1024;
