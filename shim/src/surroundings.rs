//! Where processes are started.

use crate::work::Work;
use lattice_model::Principal;
use lattice_model::binding::RankPlace;
use lattice_runtime::shim::ShimDir;
use nix::sys::epoll::Epoll;
use std::fs::File;
use std::os::fd::BorrowedFd;

/// What every start of a process needs to know of its surroundings.
pub struct Surroundings<'a> {
    pub dir: &'a ShimDir,
    pub owner: &'a Principal,
    pub work: &'a Work,
    pub epoll: &'a Epoll,
    pub null: &'a File,
    pub open_files: Option<(u64, u64)>,
    pub v1_groups: &'a [BorrowedFd<'a>],
    /// What this process may hold of what ranks put, and as much again of what they do not read, in bytes.
    pub held_bytes_max: usize,
    /// Each local rank's place; the policy by which its memory is taken is the launch's.
    pub places: Vec<RankPlace>,
}
