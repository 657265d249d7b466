//! Random moves: attempted commands.

use super::NODES;
use crate::QuotaChange;
use lattice_model::HoldKind;
use proptest::prelude::*;

const IDS: u128 = 24;

/// A move; it is turned into a command that fits the current ledger, so that most commands have an
/// effect.
#[derive(Clone, Debug)]
pub(super) enum Move {
    Submit {
        id: u128,
        nodes: u32,
        requeue: u8,
        max: u32,
        owner: u32,
        named: bool,
    },
    Cancel {
        id: u128,
        by: u32,
    },
    Claim {
        id: u128,
        nodes: Vec<u8>,
        half: bool,
        stale: u8,
    },
    Register {
        node: u8,
        boot: u128,
        memory: bool,
        new_life: bool,
    },
    Report {
        node: u8,
        id: u128,
        item: u8,
        old_epoch: bool,
        skip: u64,
    },
    State {
        node: u8,
        state: u8,
        stale: bool,
    },
    /// The scheduler's lease, for an agent; or a user's lease, sometimes one that needs the second
    /// level.
    Lease {
        holder: u8,
        trial: bool,
        user: Option<u32>,
        named: bool,
    },
    /// An agent gets the lease for accounting; or its store begins.
    Accounting {
        begins: bool,
    },
    Revoke {
        stale: bool,
    },
    Hold {
        node: u8,
        kind: HoldKind,
        lift: bool,
        /// After how many milliseconds it ends, or the drain's deadline is.
        ends: Option<u64>,
        reason: u8,
    },
    /// The commands that are due by the leader's clock.
    Due,
    Boot {
        node: u8,
    },
    /// Removes a node; or admits its name.
    Remove {
        node: u8,
        admit: bool,
    },
    Level {
        level: u32,
    },
    Tenant {
        max_nodes: QuotaChange,
        max_allocations: QuotaChange,
    },
    VCluster {
        nodes: Vec<u8>,
        tenant: bool,
        delete: bool,
    },
    Session {
        id: u128,
        owner: u32,
        delete: bool,
    },
    Release {
        stale: bool,
    },
    /// Sets a small pool.
    Pool {
        start: u32,
        size: u32,
        grace: u64,
    },
    /// Releases network domains whose time is over; or sets another grace period for one.
    Domains {
        grace: Option<u64>,
    },
    Limits {
        sensitive: QuotaChange,
        running: QuotaChange,
        history: QuotaChange,
    },
    /// A node reports its components; or an operator accepts drift; or the time limit of a drift
    /// passes.
    Conform {
        node: u8,
        kernel: u8,
        how: u8,
    },
    /// Requests a wipe of a node; or reports its result.
    Wipe {
        node: u8,
        how: u8,
    },
    /// Preempts an allocation, or drains a node urgently; or resumes a held allocation.
    Preempt {
        id: u128,
        hold: bool,
        how: u8,
    },
    /// The head of a lane on this node reports tasks and gets others; or somebody cancels some.
    Tasks {
        node: u8,
        how: u8,
    },
    /// A user scales a service; or its loop takes a step, sometimes under a stale lease.
    Scale {
        replicas: u32,
        how: u8,
    },
    /// Changes an allocation's measurement mode; or its time is over.
    Telemetry {
        id: u128,
        how: u8,
    },
    /// Notifications were delivered.
    Notified {
        upto: u64,
    },
    /// A silent node's leases expire; or its death is confirmed; or the length of leases changes.
    Fence {
        node: u8,
        silent_ms: u64,
        how: u8,
    },
    Expire {
        stale: bool,
    },
    Access {
        id: u128,
        of: u128,
        long: bool,
    },
    Key {
        member: u64,
        key: u8,
    },
    Sign {
        member: u64,
        key: u8,
        back: u64,
    },
    /// A gossip key is added; or another one encrypts or is retired, if possible.
    Gossip {
        step: u8,
        number: u8,
    },
}

fn a_quota() -> impl Strategy<Value = QuotaChange> {
    prop_oneof![Just(QuotaChange::Keep), Just(QuotaChange::Unlimited), (2..6u32).prop_map(QuotaChange::AtMost)]
}

fn a_small_limit() -> impl Strategy<Value = QuotaChange> {
    prop_oneof![Just(QuotaChange::Keep), Just(QuotaChange::Unlimited), (0..3u32).prop_map(QuotaChange::AtMost)]
}

pub(super) fn a_move() -> impl Strategy<Value = Move> {
    let (id, node, node_again) = (0..IDS, 0..NODES, 0..NODES);
    prop_oneof![
        3 => (id.clone(), 1..4u32, 0..3u8, 0..3u32, 1..3u32, prop::bool::weighted(0.15))
            .prop_map(|(id, nodes, requeue, max, owner, named)| Move::Submit { id, nodes, requeue, max, owner, named }),
        1 => (id.clone(), 0..3u32).prop_map(|(id, by)| Move::Cancel { id, by }),
        24 => (id.clone(), prop::collection::vec(node.clone(), 1..4), prop::bool::weighted(0.3), 0..12u8)
            .prop_map(|(id, nodes, half, stale)| Move::Claim { id, nodes, half, stale }),
        3 => (node.clone(), prop_oneof![4 => Just(1u128), 1 => Just(2u128)], any::<bool>(), any::<bool>())
            .prop_map(|(node, boot, memory, new_life)| Move::Register { node, boot, memory, new_life }),
        10 => (node.clone(), id, 0..19u8, prop::bool::weighted(0.1), prop_oneof![8 => Just(1u64), 1 => Just(0u64), 1 => Just(2u64)])
            .prop_map(|(node, id, item, old_epoch, skip)| Move::Report { node, id, item, old_epoch, skip }),
        // State 0, heard again, is the most frequent one.
        2 => (node.clone(), prop_oneof![3 => Just(0u8), 2 => 1..4u8], prop::bool::weighted(0.3)).prop_map(|(node, state, stale)| Move::State { node, state, stale }),
        6 => (node.clone(), any::<bool>(), prop_oneof![4 => Just(None), 1 => (1..3u32).prop_map(Some)], prop::bool::weighted(0.3))
            .prop_map(|(holder, trial, user, named)| Move::Lease { holder, trial, user, named }),
        1 => any::<bool>().prop_map(|stale| Move::Revoke { stale }),
        2 => (
            node.clone(),
            // Drains are frequent, because they have most effects.
            prop_oneof![Just(HoldKind::Drain), prop::sample::select(HoldKind::ALL.to_vec())],
            prop::bool::weighted(0.8),
            prop_oneof![2 => Just(None), 1 => (1..100u64).prop_map(Some)],
            0..3u8,
        )
            .prop_map(|(node, kind, lift, ends, reason)| Move::Hold { node, kind, lift, ends, reason }),
        2 => Just(Move::Due),
        1 => node.clone().prop_map(|node| Move::Boot { node }),
        2 => (node, prop::bool::weighted(0.6)).prop_map(|(node, admit)| Move::Remove { node, admit }),
        1 => (0..=crate::LEVEL_MAX).prop_map(|level| Move::Level { level }),
        1 => (a_quota(), a_quota()).prop_map(|(max_nodes, max_allocations)| Move::Tenant { max_nodes, max_allocations }),
        1 => (prop::collection::vec(node_again, 0..2), prop::bool::weighted(0.2), prop::bool::weighted(0.4))
            .prop_map(|(nodes, tenant, delete)| Move::VCluster { nodes, tenant, delete }),
        1 => (0..2u128, 0..3u32, prop::bool::weighted(0.2)).prop_map(|(id, owner, delete)| Move::Session { id, owner, delete }),
        1 => any::<bool>().prop_map(|stale| Move::Release { stale }),
        1 => any::<bool>().prop_map(|stale| Move::Expire { stale }),
        1 => (999..1004u32, 1..6u32, 0..60u64).prop_map(|(start, size, grace)| Move::Pool { start, size, grace }),
        6 => prop_oneof![3 => Just(None), 1 => (0..60u64).prop_map(Some)].prop_map(|grace| Move::Domains { grace }),
        1 => (a_quota(), a_small_limit(), a_small_limit()).prop_map(|(sensitive, running, history)| Move::Limits { sensitive, running, history }),
        1 => (0..NODES, 0..3u8, 0..8u8).prop_map(|(node, kernel, how)| Move::Conform { node, kernel, how }),
        1 => (0..NODES, 0..12u8).prop_map(|(node, how)| Move::Wipe { node, how }),
        1 => (0..300u64).prop_map(|upto| Move::Notified { upto }),
        4 => (0..IDS, any::<bool>(), 0..8u8).prop_map(|(id, hold, how)| Move::Preempt { id, hold, how }),
        3 => (0..NODES, 0..6u8).prop_map(|(node, how)| Move::Tasks { node, how }),
        3 => (0..5u32, 0..10u8).prop_map(|(replicas, how)| Move::Scale { replicas, how }),
        2 => (0..IDS, 0..6u8).prop_map(|(id, how)| Move::Telemetry { id, how }),
        1 => (0..NODES, prop_oneof![Just(200_000u64), 0..9000u64], 0..4u8).prop_map(|(node, silent_ms, how)| Move::Fence { node, silent_ms, how }),
        1 => prop_oneof![
            (0..4u128, 0..IDS, prop::bool::weighted(0.1)).prop_map(|(id, of, long)| Move::Access { id, of, long }),
            (0..2u64, 0..3u8).prop_map(|(member, key)| Move::Key { member, key }),
            (0..2u64, 0..3u8, 0..4u64).prop_map(|(member, key, back)| Move::Sign { member, key, back }),
            (0..6u8, 0..4u8).prop_map(|(step, number)| Move::Gossip { step, number }),
        ],
    ]
}
