//! The context in which processes are started.

use crate::work::Work;
use lattice_model::Principal;
use lattice_model::binding::RankPlace;
use lattice_runtime::process::NotStarted;
use lattice_runtime::shim::ShimDir;
use nix::sys::epoll::Epoll;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::BorrowedFd;

/// The standard input that ranks get from files of their user, by rank; `None`: the rank has none. Or why a rank cannot
/// begin. Ranks without files of their user are left out.
pub type Inputs = BTreeMap<u32, Result<Option<File>, NotStarted>>;

/// What every start of a process needs.
pub struct Surroundings<'a> {
    pub dir: &'a ShimDir,
    pub owner: &'a Principal,
    pub work: &'a Work,
    pub epoll: &'a Epoll,
    pub null: &'a File,
    pub open_files: Option<(u64, u64)>,
    pub v1_groups: &'a [BorrowedFd<'a>],
    /// Bytes of ranks' values that this process may hold for a launch, and bytes of answers that it may hold in
    /// addition because ranks have not read them.
    pub held_bytes_max: usize,
    /// The resources that each local rank is bound to. The launch has the policy for its memory.
    pub places: Vec<RankPlace>,
    pub inputs: Inputs,
}
