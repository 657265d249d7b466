//! Packets of the work's sockets, and what TCP does for them.

use crate::cgroup::{level, of_socket};
use crate::counts::Counts;
use crate::counts::layout::{RECEIVED_BYTES, RECEIVED_PACKETS, SENT_BYTES, SENT_PACKETS, TCP_ACCEPTS, TCP_CONNECTS, TCP_RETRANSMITS};
use aya_ebpf::helpers::generated::bpf_skb_ancestor_cgroup_id;
use aya_ebpf::macros::{cgroup_skb, raw_tracepoint};
use aya_ebpf::programs::{RawTracePointContext, SkBuffContext};

/// The return value that lets the packet pass.
const PASS: i32 = 1;
/// `TCP_ESTABLISHED`, `TCP_SYN_SENT` and `TCP_SYN_RECV` of the kernel's states.
const ESTABLISHED: i32 = 1;
const SYN_SENT: i32 = 2;
const SYN_RECV: i32 = 3;

#[cgroup_skb(egress)]
pub fn packets_sent(ctx: SkBuffContext) -> i32 {
    count(&ctx, SENT_BYTES, SENT_PACKETS)
}

#[cgroup_skb(ingress)]
pub fn packets_received(ctx: SkBuffContext) -> i32 {
    count(&ctx, RECEIVED_BYTES, RECEIVED_PACKETS)
}

/// Counts bytes from the network header on. A buffer of several segments counts as that many packets, as on the wire.
#[inline(always)]
fn count(ctx: &SkBuffContext, bytes: usize, packets: usize) -> i32 {
    let skb = ctx.skb.skb;
    // SAFETY: a helper on the packet that this program was called with.
    let cgroup = unsafe { bpf_skb_ancestor_cgroup_id(skb, level()) };
    if let Some(counts) = Counts::of(cgroup) {
        counts.add(bytes, u64::from(ctx.skb.len()));
        // SAFETY: as above.
        let segments = unsafe { (*skb).gso_segs };
        counts.add(packets, if segments > 1 { u64::from(segments) } else { 1 });
    }
    PASS
}

/// `tcp_retransmit_skb(const struct sock *sk, …)`
#[raw_tracepoint(tracepoint = "tcp_retransmit_skb")]
pub fn tcp_retransmit_skb(ctx: RawTracePointContext) -> i32 {
    if let Some(counts) = of_socket(ctx.arg(0)).and_then(Counts::of) {
        counts.add(TCP_RETRANSMITS, 1);
    }
    0
}

/// `inet_sock_set_state(const struct sock *sk, const int oldstate, const int newstate)`. The socket of a connection that
/// arrives has the cgroup of the listening one, and goes through `SYN_RECV`: it is then the listener's to accept.
#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub fn inet_sock_set_state(ctx: RawTracePointContext) -> i32 {
    let (before, after): (i32, i32) = (ctx.arg(1), ctx.arg(2));
    let word = if after == SYN_SENT {
        TCP_CONNECTS
    } else if before == SYN_RECV && after == ESTABLISHED {
        TCP_ACCEPTS
    } else {
        return 0;
    };
    if let Some(counts) = of_socket(ctx.arg(0)).and_then(Counts::of) {
        counts.add(word, 1);
    }
    0
}
