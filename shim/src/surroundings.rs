//! The context in which processes are started.

use crate::work::Work;
use lattice_model::Principal;
use lattice_model::binding::RankPlace;
use lattice_runtime::shim::ShimDir;
use nix::sys::epoll::Epoll;
use std::fs::File;
use std::os::fd::BorrowedFd;

/// What every start of a process needs.
pub struct Surroundings<'a> {
    pub dir: &'a ShimDir,
    pub owner: &'a Principal,
    pub work: &'a Work,
    pub epoll: &'a Epoll,
    pub null: &'a File,
    pub open_files: Option<(u64, u64)>,
    pub v1_groups: &'a [BorrowedFd<'a>],
    /// Bytes that this process may hold of values that ranks put, and as many again of answers that they do not read.
    pub held_bytes_max: usize,
    /// Each local rank's place. The launch has the policy for its memory.
    pub places: Vec<RankPlace>,
}
