//! Counting in the kernel for each allocation. Programs count what the work's processes do on the processor where it
//! happens, and the agent reads the sums. There is no event for each switch or packet.
//!
//! An allocation is identified by the cgroup of all its work, whose id is the inode of its directory. The agent inserts
//! the ids that it wants counted into [`counts::COUNTS`]; other cgroups cost one look-up that finds nothing.
//!
//! Rare operations of audited work are recorded one by one: [`audit`], attached only while an audit is requested.
//!
//! The layout of the kernel's structures differs between kernels. The programs read members at offsets that the agent
//! takes from the kernel's own description of its types; a program whose offsets this kernel lacks is not loaded.
//!
//! `../rebuild` builds `../probes.bpf.o`, which is committed, from this crate.

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

/// The kernel requires it for helpers that read its memory; MIT is one of the two licences of this repository.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
