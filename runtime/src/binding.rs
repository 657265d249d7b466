//! The processors on which a process may run and the memory nodes that it uses: set in the child before it executes its
//! program.
//!
//! sched_setaffinity(2) and set_mempolicy(2) are raw system calls with masks that were prepared before, because the
//! child may not allocate.

use nix::errno::Errno;
use std::collections::BTreeSet;

/// No machine has a processor or memory node with this number or a larger one, and the kernel's masks are not longer.
/// Such numbers are left out.
const BITS_MAX: u32 = 1 << 16;

/// Memory policy by NUMA nodes, as in linux/mempolicy.h.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Pages from each of these nodes in turn.
    Interleave(BTreeSet<u32>),
    /// From this node while it has free memory.
    Preferred(u32),
    /// From these nodes only.
    Bind(BTreeSet<u32>),
}

/// Processors and memory policy of one process, prepared for the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Binding {
    cpus: Option<Vec<u64>>,
    memory: Option<(libc::c_int, Vec<u64>)>,
}

impl Binding {
    /// Prepares the masks. Empty `cpus`: any processor. No `memory`: the kernel's default, which is the node of the
    /// running processor.
    pub fn new(cpus: &BTreeSet<u32>, memory: Option<&Memory>) -> Self {
        let memory = memory.map(|memory| match memory {
            Memory::Interleave(nodes) => (libc::MPOL_INTERLEAVE, mask(nodes)),
            Memory::Preferred(node) => (libc::MPOL_PREFERRED, mask(&BTreeSet::from([*node]))),
            Memory::Bind(nodes) => (libc::MPOL_BIND, mask(nodes)),
        });
        Self { cpus: (!cpus.is_empty()).then(|| mask(cpus)), memory }
    }

    /// Binds the calling thread. Async-signal-safe: two system calls on memory that exists already.
    pub(crate) fn apply(&self) -> Result<(), i32> {
        if let Some(cpus) = &self.cpus {
            // SAFETY: reads `cpus.len()` words of a live vector.
            let done = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(cpus.as_slice()), cpus.as_ptr()) };
            if done < 0 {
                return Err(Errno::last_raw());
            }
        }
        if let Some((mode, nodes)) = &self.memory {
            // The kernel uses one bit less than the number that it gets.
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

/// A kernel's bit mask, in words.
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
