//! The table of all commands. A row has what a command carries, the cluster level from which on it may be
//! proposed, its urgency, who may ask for it, about how many bytes it takes in the log, and the function of
//! the ledger that applies it.
//!
//! A new command is a row here, and a function in the file of its family beside this one.

use super::asker::Asker::{self, Member, Operator, Owner, User, UserOrOperator};
use super::refusal::Refusal;
use super::signing::SignedHead;
use super::state::keyring::Secret;
use super::state::user_usage::script_of;
use super::tenants::{QuotaChange, TenantChange};
use super::urgency::Urgency::{self, Keeps, Mends, New};
use super::user_limits::UserLimitsChange;
use super::vclusters::VClusterChange;
use super::{
    Access, AccessKind, ApplyContext, DomainKey, HeldShare, Ledger, MembersStep, NodeStanding, NotifyWay, Outcome, Registration,
    VniPoolChange, holds, level,
};
use lattice_model::conformance::Components;
use lattice_model::{
    AllocationId, AllocationSpec, Claim, Epoch, HoldKind, Incarnation, MemberId, NodeId, NodeReport, Preemption, Principal, ReportItem,
    Revision, TelemetryMode, Timestamp, When,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use uuid::Uuid;

/// Makes [`Action`] of a table with a row for each command:
///
/// ```ignore
/// /// A node of this name may register.
/// Admit { node: NodeId, by: String, reason: String }
///     => 1, New, Operator(by, &["NodeService/Admit"]), 256 + reason.len(), ledger.admit(context, node, by, reason);
/// ```
///
/// Behind the arrow stand its cluster level, its [`Urgency`], its [`Asker`], about how many bytes it takes in
/// the log, and how it is applied. Each of them is an expression that may use the fields.
macro_rules! commands {
    (|$ledger:ident, $context:ident| $(
        $(#[$about:meta])*
        $name:ident $(($content:ident: $content_type:ty))? $({ $($(#[$attribute:meta])* $field:ident: $type:ty),+ $(,)? })?
            => $level:expr, $urgency:expr, $asker:expr, $bytes:expr, $apply:expr;
    )+) => {
        /// What is to be done. Once a version is released, kinds are added and never changed: newer versions
        /// read its log.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Action {
            $($(#[$about])* $name $(($content_type))? $({ $($(#[$attribute])* $field: $type),+ })?,)+
        }

        impl Action {
            /// The names of all of them.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// Its name.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name { .. } => stringify!($name),)+ }
            }

            /// The cluster level that it needs. Raising the level needs none: it is proposed when every
            /// member knows it.
            #[allow(unused_variables, reason = "`apply` alone needs every field")]
            pub fn level(&self) -> u32 {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $level,)+ }
            }

            /// What it is for, where the disk has little room.
            #[allow(unused_variables, reason = "`apply` alone needs every field")]
            pub fn urgency(&self) -> Urgency {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $urgency,)+ }
            }

            /// Who may ask for it.
            #[allow(unused_variables, reason = "`apply` alone needs every field")]
            pub fn asker(&mut self) -> Asker<'_> {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $asker,)+ }
            }

            /// About how many bytes it will take in the log.
            #[allow(unused_variables, reason = "`apply` alone needs every field")]
            pub fn bytes_about(&self) -> usize {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $bytes,)+ }
            }

            pub(super) fn apply(&self, $ledger: &mut Ledger, $context: &mut ApplyContext) -> Result<Outcome, Refusal> {
                match self { $(Self::$name $(($content))? $({ $($field),+ })? => $apply,)+ }
            }
        }
    };
}

commands! { |ledger, context|
    /// Names the cluster, once.
    Bootstrap { cluster: String }
        => 1, Keeps, Member, 256, ledger.bootstrap(context, cluster);

    /// See `wire::Request::Submit`.
    Submit { id: AllocationId, spec: Box<AllocationSpec>, owner: Principal, claim: Option<Claim> }
        => 1, New, Member, submission_bytes(spec, claim.as_ref()),
        ledger.submit(context, *id, spec, owner, claim.as_ref());

    /// Ends an allocation. Ended ones stay as they are (success).
    Cancel { id: AllocationId, by: Principal }
        => 1, Keeps, User(by, *id), 256, ledger.cancel(context, *id, by);

    /// See `wire::Request::Claim`.
    Claim(claim: Claim)
        => 1, New, Member, claim_bytes(claim), ledger.claim(context, claim);

    /// An agent opens its session.
    Register(registration: Registration)
        => 1, Keeps, Member, 512, ledger.register(context, registration);

    /// An agent reports.
    Report(report: NodeReport)
        => 1, Keeps, Member, 512, ledger.report(context, report);

    /// After a recovery: all that a node has. See `wire::Up::Holds`.
    Adopt { node: NodeId, incarnation: Incarnation, held: Vec<HeldShare>, unreported: Vec<ReportItem> }
        => 1, Keeps, Member, adoption_bytes(held, unreported),
        ledger.adopt(context, node, *incarnation, (held, unreported));

    /// The leader's clocks say where nodes stand.
    NodeStates(standings: Vec<NodeStanding>)
        => 1, Keeps, Member, 64 + standings.len() * 128, ledger.node_states(context, standings);

    /// Gives a lease back, whatever holds there are.
    ReleaseLease { name: String, token: u64, user: Option<Principal> }
        => 1, Keeps, Owner(user.as_mut()), 256, ledger.release_lease(context, name, *token, user.as_ref());

    /// The leader's timer for a lease ran out: it ends unless it was renewed after `renewed`.
    ExpireLease { name: String, token: u64, renewed: Revision }
        => 1, Keeps, Member, 256, ledger.expire_lease(context, name, *token, *renewed);

    /// A step of a change of the members that is about to be taken: written down first.
    Members { by: Principal, step: MembersStep }
        => 1, Mends, Member, 1024, ledger.record_members(context, by, step);

    /// See `wire::Request::RecordAccess`.
    RecordAccess(access: Access)
        => 1, access_urgency(access.kind), Member, 512 + access.detail.len(), ledger.record_access(context, access);

    /// The member signs with this key from now on: 64 hexadecimal digits.
    SetSigningKey { member: MemberId, key: String }
        => 1, New, Member, 256, ledger.set_signing_key(context, *member, key);

    /// The leader signed the audit chain.
    SignHead(signed: SignedHead)
        => 1, New, Member, 512, ledger.sign_head(context, signed);

    /// See `wire::Request::AcquireLease`.
    GrantLease { name: String, holder: NodeId, ttl_ms: u64, user: Option<Principal> }
        => level::of_lease(name), New, Member, 256, ledger.grant_lease(context, name, holder, *ttl_ms, user.as_ref());

    /// Takes a lease away, where a token is given only that grant of it.
    RevokeLease { name: String, token: Option<u64>, by: String }
        => 1, Keeps, Operator(by, &["LeaseService/Revoke"]), 256, ledger.revoke_lease(context, name, *token, by);

    /// Keeps new work and leases off a node. A further reason is appended. `until`: when it ends by itself;
    /// `deadline`, of a drain: when what is still there is ended. Both by the leader's clock.
    SetHold {
        node: NodeId,
        kind: HoldKind,
        by: String,
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<When>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<When>,
    }
        => 1, Keeps, Operator(by, &["NodeService/SetHold"]), 256 + reason.len(),
        ledger.set_requested_hold(context, node, *kind, by, reason, holds::Ends { until: *until, deadline: *deadline });

    /// Lifts such a hold; where `until` is given, only one that ends then: the leader's clock proposes that.
    LiftHold {
        node: NodeId,
        kind: HoldKind,
        by: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    }
        => 1, Keeps, Operator(by, &["NodeService/LiftHold"]), 256,
        ledger.lift_requested_hold(context, node, *kind, by, *until);

    /// Every member understands commands of this level.
    RaiseLevel { level: u32 }
        => 1, New, Member, 256, ledger.raise_level(context, *level);

    /// Creates a tenant, or changes its quotas. The same again is the same success.
    SetTenant { change: TenantChange, by: String }
        => 1, New, Operator(by, &["AdminService/CreateTenant", "AdminService/UpdateTenant"]), 256,
        ledger.set_tenant(context, change, by);

    /// Forgets a tenant that has no work. Its name is without limits then.
    DeleteTenant { name: String, by: String }
        => 1, Keeps, Operator(by, &["AdminService/DeleteTenant"]), 256, ledger.delete_tenant(context, name, by);

    /// Certificates of this name, of any role, that were issued until now count no more, anywhere. The gossip
    /// key is replaced.
    Revoke { name: String, by: String, reason: String }
        => 1, Keeps, Operator(by, &["AdminService/RevokeCertificates"]), 256 + name.len() + reason.len(),
        ledger.revoke(context, name, by, reason);

    /// Brings in a gossip key that the asker has drawn, or names the one that is being brought in. The leader
    /// takes the steps behind it.
    AddKey { secret: Secret, by: String }
        => 1, New, Operator(by, &["AdminService/RotateGossipKeys"]), 256, ledger.add_key(context, secret, by);

    /// All agents that can be heard have the key: it seals from now on.
    SealWithKey { id: u32 }
        => 1, New, Member, 256, ledger.seal_with_key(context, *id);

    /// All of them seal with the one after it: the key is forgotten.
    RetireKey { id: u32 }
        => 1, New, Member, 256, ledger.retire_key(context, *id);

    /// Creates a vCluster, or changes one. The same again is the same success.
    SetVCluster { change: VClusterChange, by: String }
        => 1, New, Operator(by, &["VClusterService/Create", "VClusterService/SetConfig"]), change.bytes_about(),
        ledger.set_vcluster(context, change, by);

    /// Forgets a vCluster that has no work. Its nodes are the default's then.
    DeleteVCluster { name: String, by: String }
        => 1, Keeps, Operator(by, &["VClusterService/Delete"]), 256, ledger.delete_vcluster(context, name, by);

    /// Opens a session in an allocation that runs and is held for one; for its owner alone.
    CreateSession { id: Uuid, allocation: AllocationId, by: Principal }
        => 1, New, Owner(Some(by)), 256, ledger.create_session(context, *id, *allocation, by);

    /// Ends a session, and the allocation that is held for it.
    DeleteSession { id: Uuid, allocation: AllocationId, by: Principal }
        => 1, Keeps, User(by, *allocation), 256, ledger.delete_session(context, *id, *allocation, by);

    /// Makes the pool that network domains have their numbers from another one. Domains keep the numbers that
    /// they have. The same again is the same success.
    SetVniPool { change: VniPoolChange, by: String }
        => 1, New, Operator(by, &["AdminService/SetVniPool"]), 256, ledger.set_vni_pool(context, change, by);

    /// The leader's clock says that network domains have been without work for long enough.
    ReleaseDomains
        => 1, Keeps, Member, 256, ledger.release_domains(context);

    /// How long one network domain keeps its number without work, instead of what the pool says, until it is
    /// released.
    SetDomainGrace { domain: DomainKey, grace_ms: u64, by: String }
        => 1, New, Operator(by, &["AdminService/SetNetworkGrace"]), 256,
        ledger.set_domain_grace(context, domain, *grace_ms, by);

    /// Makes the limits of the whole cluster other ones. The same again is the same success.
    SetLimits {
        sensitive_pool_size: QuotaChange,
        #[serde(default, skip_serializing_if = "UserLimitsChange::is_none")]
        users: UserLimitsChange,
        by: String,
    }
        => 1, New, Operator(by, &["AdminService/SetLimits"]), 256,
        ledger.set_limits(context, *sensitive_pool_size, users, by);

    /// The leader's clock says that this deadline of the node's drain is past.
    EndDrained { node: NodeId, deadline: Timestamp }
        => 1, Keeps, Member, 256, Ok(ledger.end_drained(context, node, *deadline));

    /// A node is being booted: it is expected back under another boot id.
    BootNode { node: NodeId, by: String, reason: String }
        => 1, Keeps, Operator(by, &["NodeService/Boot"]), 256 + reason.len(),
        ledger.boot_node(context, node, by, reason);

    /// Run leases of claims from now on are this long.
    SetRunLease { ms: u64 }
        => 1, New, Member, 256, ledger.set_run_lease(context, *ms);

    /// A node that is Down was not heard for so long: run leases there that were shorter are over.
    Fence { node: NodeId, incarnation: Incarnation, silent_ms: u64 }
        => 1, Keeps, Member, 256, ledger.fence(context, node, *incarnation, *silent_ms);

    /// Somebody vouches that nothing runs any more on a node that is not heard: its work is ended there. The
    /// same again is the same success.
    ConfirmDead { node: NodeId, by: String, reason: String }
        => 1, Keeps, Operator(by, &["NodeService/ConfirmDead"]), 256 + reason.len(),
        ledger.confirm_dead(context, node, by, reason);

    /// A node's agent says what its software and firmware are.
    Conforms { node: NodeId, incarnation: Incarnation, components: Components }
        => 1, Keeps, Member, components_bytes(components), ledger.conforms(context, node, *incarnation, components);

    /// And whether it could not look at them for too long.
    ConformanceStale { node: NodeId, incarnation: Incarnation, stale: bool }
        => 1, Keeps, Member, 256, ledger.conformance_stale(context, node, *incarnation, *stale);

    /// What a node's software and firmware are now is what is expected of it. The same again is the same
    /// success.
    AcceptDrift { node: NodeId, by: String, reason: String }
        => 1, Keeps, Operator(by, &["NodeService/AcceptDrift"]), 256 + reason.len(),
        ledger.accept_drift(context, node, by, reason);

    /// The leader's clock says that the time to mend the drift that began then is over.
    DriftOver { node: NodeId, since: Timestamp }
        => 1, Keeps, Member, 256, ledger.drift_over(context, node, *since);

    /// A node is claimed by nobody until its own hook has wiped it. `force`: one that failed is tried again.
    Wipe { node: NodeId, by: String, reason: String, force: bool }
        => 1, Keeps, Operator(by, &["NodeService/Wipe"]), 256 + reason.len(),
        ledger.wipe(context, node, by, reason, *force);

    /// A node's agent says how this wipe ended: `failed`, where it did.
    Wiped {
        node: NodeId,
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    }
        => 1, Keeps, Member, 256 + failed.as_ref().map_or(0, String::len),
        ledger.wiped(context, node, *order, failed.as_deref());

    /// Whoever is notified this way has taken everything up to this audit record.
    Notified { way: NotifyWay, upto: u64 }
        => 1, New, Member, 256, Ok(ledger.set_notified(*way, *upto));

    /// Has an allocation save itself and give its nodes back: it is Suspended then, and otherwise ended. Of
    /// this claim: where it is over, its nodes are given back (success). `kill`: end work that cannot save
    /// itself all the same.
    Preempt { allocation: AllocationId, epoch: Epoch, by: Principal, order: Preemption, kill: bool }
        => 1, Keeps, User(by, *allocation), 512 + order.reason.len(),
        ledger.preempt(context, (*allocation, *epoch), by, order, *kill);

    /// Ends this claim of an allocation and puts it back into the queue, to begin again, where its requeue
    /// rules let it. Where that claim is over, nothing is done (success).
    RequeueAllocation { allocation: AllocationId, epoch: Epoch, by: Principal, reason: String }
        => 1, Keeps, User(by, *allocation), 256 + reason.len(),
        ledger.requeue(context, (*allocation, *epoch), by, reason);

    /// Has an allocation that waits for nodes wait for none until it is resumed. One that is held already
    /// stays so (success).
    HoldAllocation { allocation: AllocationId, by: Principal }
        => 1, Keeps, User(by, *allocation), 256, ledger.hold_allocation(context, *allocation, by);

    /// Gives an allocation that has not ended another walltime.
    SetWalltime { allocation: AllocationId, by: Principal, walltime: Duration, as_operator: bool }
        => 1, New,
        UserOrOperator { by, allocation: *allocation, as_operator, methods: &["AllocationService/Update"] }, 256,
        ledger.set_walltime(context, *allocation, by, *walltime, *as_operator);

    /// Has an allocation wait for nodes that was to stay Suspended until somebody says this.
    Resume { allocation: AllocationId, by: Principal }
        => 1, New, User(by, *allocation), 256, ledger.resume(context, *allocation, by);

    /// Drains a node ([`Action::SetHold`]), and has what runs there save itself and go elsewhere where it
    /// can. Checkpoints have ids made of `seed` and the allocation's; said again with another one, it is
    /// tried again.
    DrainUrgently {
        node: NodeId,
        by: String,
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<When>,
        seed: Uuid,
    }
        => 1, Keeps, Operator(by, &["NodeService/SetHold"]), 256 + reason.len(),
        ledger.drain_urgently(context, node, by, reason, *deadline, *seed);

    /// Has an allocation's work be measured in this mode on all of its nodes, for so long (Debug). `id` is
    /// the idempotency key.
    SetTelemetry { allocation: AllocationId, by: Principal, id: Uuid, mode: TelemetryMode, duration_ms: u64 }
        => 1, telemetry_urgency(*mode), User(by, *allocation), 256,
        ledger.set_telemetry(context, *allocation, by, (*id, *mode, *duration_ms));

    /// The leader's clock says that waits until then are over.
    EndWaits { now: Timestamp }
        => 1, Keeps, Member, 256, Ok(ledger.end_waits(context, *now));

    /// The leader's clock says that the time of this order is over.
    EndTelemetry { allocation: AllocationId, order: Uuid }
        => 1, Keeps, Member, 256, Ok(ledger.end_telemetry(context, *allocation, *order));

    /// A node's own checks ask for a drain; see `wire::DrainWish`.
    AskDrain { node: NodeId, incarnation: Incarnation, asked: Timestamp, reason: String }
        => 1, Keeps, Member, 256 + reason.len(), ledger.ask_drain(context, node, (*incarnation, *asked), reason);

    /// A node of this name may register. The same again is the same success.
    Admit { node: NodeId, by: String, reason: String }
        => 1, New, Operator(by, &["NodeService/Admit"]), 256 + reason.len(), ledger.admit(context, node, by, reason);

    /// It may not, as long as it has not. The same again is the same success.
    WithdrawAdmission { node: NodeId, by: String }
        => 1, Keeps, Operator(by, &["NodeService/WithdrawAdmission"]), 256,
        ledger.withdraw_admission(context, node, by);

    /// It is [`super::Command::at`], however long ago the last command was: a leader has measured that by a
    /// clock that nobody sets, or begins to lead and knows it by the clocks of a majority.
    AdvanceTime
        => 1, Keeps, Member, 256, Ok(Outcome::Done);
}

/// Operators look into what fills the disks; once an hour at most for each of them, allocation and command.
fn access_urgency(kind: AccessKind) -> Urgency {
    if kind == AccessKind::MeasurementsRead { Keeps } else { New }
}

fn telemetry_urgency(mode: TelemetryMode) -> Urgency {
    match mode {
        TelemetryMode::Debug | TelemetryMode::Audit => New,
        TelemetryMode::Prod => Keeps,
    }
}

fn submission_bytes(spec: &AllocationSpec, claim: Option<&Claim>) -> usize {
    let script = script_of(spec).map_or(0, |text| text.len());
    spec.bytes_without_script() + script + 256 + claim.map_or(0, claim_bytes)
}

fn claim_bytes(claim: &Claim) -> usize {
    128 + claim.shares.len() * 96
}

fn adoption_bytes(held: &[HeldShare], unreported: &[ReportItem]) -> usize {
    256 + unreported.len() * 512 + held.iter().map(HeldShare::bytes_about).sum::<usize>()
}

fn components_bytes(components: &Components) -> usize {
    256 + components.iter().map(|(name, value)| 8 + name.len() + value.len()).sum::<usize>()
}
