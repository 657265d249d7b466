//! Where a process may run and where its memory comes from: set in the child, between its birth and its program.
//!
//! sched_setaffinity(2) and set_mempolicy(2), called raw, with masks that were laid out before: the child may not allocate.

use nix::errno::Errno;
use std::collections::BTreeSet;

/// Processors and memory nodes beyond this are not on any machine: the kernel's masks end there at the latest.
const BITS_MAX: u32 = 1 << 16;

/// Where memory is taken from, by NUMA nodes. As linux/mempolicy.h.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Page by page from each of these nodes in turn.
    Interleave(BTreeSet<u32>),
    /// From this node while it has any.
    Preferred(u32),
    /// From these nodes and from no other.
    Bind(BTreeSet<u32>),
}

/// One process's place, ready for the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    cpus: Option<Vec<u64>>,
    memory: Option<(libc::c_int, Vec<u64>)>,
}

impl Binding {
    /// Lays the masks out. No processors: any; no memory: the kernel's default, the node of the processor that runs.
    pub fn new(cpus: &BTreeSet<u32>, memory: Option<&Memory>) -> Self {
        let memory = memory.map(|memory| match memory {
            Memory::Interleave(nodes) => (libc::MPOL_INTERLEAVE, mask(nodes)),
            Memory::Preferred(node) => (libc::MPOL_PREFERRED, mask(&BTreeSet::from([*node]))),
            Memory::Bind(nodes) => (libc::MPOL_BIND, mask(nodes)),
        });
        Self { cpus: (!cpus.is_empty()).then(|| mask(cpus)), memory }
    }

    /// Binds the calling thread. Async-signal-safe: two system calls on memory that is there.
    pub(crate) fn apply(&self) -> Result<(), i32> {
        if let Some(cpus) = &self.cpus {
            // SAFETY: reads `cpus.len()` words of a live vector.
            let done = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(cpus.as_slice()), cpus.as_ptr()) };
            if done < 0 {
                return Err(Errno::last_raw());
            }
        }
        if let Some((mode, nodes)) = &self.memory {
            // The kernel reads one bit less than it is told.
            let bits = size_of_val(nodes.as_slice()) * 8 + 1;
            // SAFETY: reads `nodes.len()` words of a live vector.
            let done = unsafe { libc::syscall(libc::SYS_set_mempolicy, *mode, nodes.as_ptr(), bits) };
            if done < 0 {
                return Err(Errno::last_raw());
            }
        }
        Ok(())
    }
}

/// The bits of a kernel's mask, in words.
fn mask(bits: &BTreeSet<u32>) -> Vec<u64> {
    let mut words = Vec::new();
    for bit in bits.iter().filter(|b| **b < BITS_MAX) {
        let word = (bit / 64) as usize;
        if words.len() <= word {
            words.resize(word + 1, 0u64);
        }
        words[word] |= 1 << (bit % 64);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_laid_out_as_the_kernel_reads_them() {
        assert_eq!(mask(&BTreeSet::from([0, 3, 64, 130])), [0b1001, 1, 0b100]);
        assert_eq!(mask(&BTreeSet::from([BITS_MAX])), [] as [u64; 0]);
        assert_eq!(Binding::new(&BTreeSet::new(), None), Binding::default());
    }
}
