//! How a segment is laid out.

pub(super) const MAGIC: &[u8; 16] = b"LATTICE-AUDIT\0\0\x02";
/// Where the first record begins.
pub const START: u64 = MAGIC.len() as u64;
/// One record in so many is remembered by its place, the first of a segment included.
pub const STRIDE: u64 = 1024;
