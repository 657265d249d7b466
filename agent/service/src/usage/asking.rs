//! Limits of asking nodes for the usage of work.

/// How many nodes are asked at once.
pub(super) const NODES_AT_ONCE_MAX: usize = 64;
