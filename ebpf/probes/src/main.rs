//! Counting in the kernel, for each allocation: what its work's processes do is added up where it happens, on the processor where it
//! happens, and the agent reads the sums. There is no event for each switch or packet.
//!
//! An allocation is its cgroup of all work, whose id is the inode of its directory. The agent puts the ids that it wants counted into
//! [`counts::COUNTS`]; what is of another cgroup costs one look-up that finds nothing.
//!
//! What rarely happens and is asked for by name is told one by one: [`audit`], attached while somebody asks for it.
//!
//! The kernel's structures lie differently in each kernel. What is read of them is read at offsets that the agent takes from the
//! kernel's own description of its types, and a program whose offsets are not there is not loaded.
//!
//! `../rebuild` makes `../probes.bpf.o` of this, which is committed.

#![no_std]
#![no_main]
#![feature(core_intrinsics)]
#![allow(internal_features)]

mod audit;
mod block;
mod cgroup;
mod counts;
mod network;
mod processes;
mod switches;

/// Needed for helpers that read the kernel's memory; the licence of the sources is the repository's, of which MIT is one.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
