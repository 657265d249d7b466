//! The cluster level: which commands every member understands.
//!
//! A member that meets a command it does not know must stop, or the replicas would differ. So a command newer than the
//! committed level is refused before it is proposed, and once more where it is applied; the leader raises the level when
//! every member has said that it can follow (see [`crate::levels`]). It never falls.

use super::{Ledger, Outcome, Step, Subject};
use crate::wire::Refusal;
use lattice_model::{AllocationSpec, AuditAction, Connectivity, EntryLaunch, HoldKind, OnIsolation};

/// The level of a cluster that has agreed on none: version 0.1's first commands.
pub const LEVEL_FIRST: u32 = 1;
/// The highest level that this program understands. 2: leases of users, holds, levels, tenants. 3: what nodes run is adopted
/// after a recovery from a backup. 4: a report under a claim that another one followed is answered with its refusal. 5: gossip keys;
/// vClusters, and a label of none is refused; interactive sessions; network domains, services, limits of the whole cluster. 6: nodes drain, are disabled and
/// booted, and holds end by themselves; run leases, fencing, nodes that are confirmed dead, that are silent and heard by others, or
/// whose session another one carries; nodes that shrink while work has more of them; failures of their hardware; what nodes' software
/// and firmware are, work that asks for the same on all of its nodes, wipes, and how far notifications are;
/// how the ranks of an inline command are laid out, and what becomes of the others when one ends badly. 7: checkpoints. 8: work that is
/// preempted, suspended and resumed. 9: work that is asked to save itself in other ways than by a signal, by one that is not of the
/// first six or not to all of its processes, or without anybody's request;
/// work that is measured more closely, and who looks at what was measured. 10: nodes that ask for their own drain, and that say with their
/// registration what they are made of. 11: what nodes saw of themselves while nobody heard them.
/// 12: requeued work waits; work is held before it has begun; time never goes back and never leaps; work is requeued for who asks, and
/// signals to somebody else's work are recorded.
/// 13: limits of each user and tenant; the history of ended work is shared among users.
/// 14: the walltime of work that has been submitted is changed; certificates are revoked; how many allocations of a user hold
/// nodes at once is limited; nodes are admitted, and it is recorded that their capacity grew.
pub const LEVEL_KNOWN: u32 = 14;

/// The level at which every member understands that work is held before it has begun.
pub const HELD_WORK_LEVEL: u32 = 12;

/// The level at which every member understands that work is suspended.
pub const SUSPENDS_LEVEL: u32 = 8;

/// The level at which every member understands how work asks to be asked for checkpoints.
pub const CHECKPOINT_MODES_LEVEL: u32 = 9;

/// The level at which every member remembers which request an allocation gave its nodes back for.
pub const PREEMPTED_BY_LEVEL: u32 = 9;

/// The level at which every member understands that work is measured more closely.
pub const TELEMETRY_LEVEL: u32 = 9;

/// The level at which every member keeps beside the state of a node under a drain that it is not well.
pub const DRAINS_UNWELL_LEVEL: u32 = 9;

/// The level at which every member has a node that is not well registered as Degraded.
pub const REGISTERS_UNWELL_LEVEL: u32 = 9;

/// The level at which every member understands that a node asks for its own drain.
pub const OWN_DRAIN_LEVEL: u32 = 10;

/// The level at which every member writes down with a registration what the node is made of.
pub const REGISTERS_CONFORMANCE_LEVEL: u32 = 10;

/// The level at which every member takes what a node saw of itself while nobody heard it.
pub const UNHEARD_LEVEL: u32 = 11;

/// The level at which every member ends waits.
pub const WAITS_LEVEL: u32 = 12;

/// The level at which every member limits what users have in the quorum.
pub const USER_LIMITS_LEVEL: u32 = 13;

/// The level at which every member limits how many allocations of a user hold nodes.
pub const USER_RUNNING_LEVEL: u32 = 14;

/// The level at which every member understands that work is put back into the queue for who asks, and that signals
/// are recorded.
pub const REQUEUES_LEVEL: u32 = 12;

/// The level at which every member understands that the walltime of submitted work is changed.
pub const WALLTIME_LEVEL: u32 = 14;

/// The level at which every member keeps revoked certificates out.
pub const REVOCATIONS_LEVEL: u32 = 14;

/// The level at which every member knows which nodes are admitted, and records that a node's capacity grew.
pub const ADMISSION_LEVEL: u32 = 14;

/// The level at which every member bounds the time of commands.
pub const TIME_LEVEL: u32 = 12;

/// The level at which every member understands this specification: one that does not would leave out what it does not know.
pub fn level_of(spec: &AllocationSpec) -> u32 {
    if spec.hold {
        return HELD_WORK_LEVEL;
    }
    if let Some(policy) = &spec.checkpoint {
        let first = policy.by.is_signal() && policy.signal.is_of_the_first() && policy.automatic.is_none();
        return if first { 7 } else { CHECKPOINT_MODES_LEVEL };
    }
    if spec.on_isolation == OnIsolation::Stop || spec.constraints.conformance || spec.launch != EntryLaunch::default() {
        return 6;
    }
    if spec.session || spec.sensitive || spec.connectivity != Connectivity::default() { 5 } else { LEVEL_FIRST }
}

/// The level at which every member understands a hold: one that does not know its kind could not read it, and one that does
/// not know its end (`ends`) would leave that out.
pub fn level_of_hold(kind: HoldKind, ends: bool) -> u32 {
    match kind {
        HoldKind::Cordon | HoldKind::Quarantine if !ends => 2,
        HoldKind::Cordon
        | HoldKind::Quarantine
        | HoldKind::Maintenance
        | HoldKind::Drain
        | HoldKind::Disable
        | HoldKind::Failure
        | HoldKind::Wipe => 6,
    }
}

impl Ledger {
    /// The committed level.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Refused, where a command of level `needed` must wait.
    pub fn admits(&self, needed: u32) -> Result<(), Refusal> {
        if needed <= self.level { Ok(()) } else { Err(Refusal::ClusterLevel { needed, now: self.level }) }
    }

    pub(super) fn raise_level(&mut self, step: &mut Step, level: u32) -> Result<Outcome, Refusal> {
        if level > LEVEL_KNOWN {
            return Err(Refusal::Malformed { why: format!("this version knows levels up to {LEVEL_KNOWN}, not {level}") });
        }
        if level > self.level {
            let detail = format!("{} -> {level}", self.level);
            if (self.level + 1..=level).contains(&SUSPENDS_LEVEL) {
                // Their lists say so from now on.
                step.changed.desired.extend(self.holdings.keys().cloned());
            }
            if (self.level + 1..=level).contains(&UNHEARD_LEVEL) {
                step.changed.desired.extend(self.nodes.keys().cloned());
            }
            self.level = level;
            self.record(step, "quorum", AuditAction::ClusterLevelRaised, Subject::default(), detail);
        }
        Ok(Outcome::Done)
    }
}
