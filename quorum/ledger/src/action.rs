//! The table of all commands. A row contains the command's fields, the cluster level that it needs,
//! its urgency, who may request it, its approximate size in the log, and the function of the ledger
//! that applies it.
//!
//! To add a command, add a row here, and a function in the file of its family beside this one.

mod bytes;
mod commands;
mod urgencies;

use self::bytes::{
    adoption_bytes, binding_bytes, claim_bytes, components_bytes, member_bytes, project_bytes, registration_bytes, report_bytes,
    step_bytes, submission_bytes, tasks_bytes, token_bytes,
};
use self::commands::commands;
use self::urgencies::{access_urgency, member_urgency, project_urgency, telemetry_urgency};
use super::ended::EndedLimitsChange;
use super::ended_work::Correction;
use super::preemptions::PreemptFor;
use super::requester::Requester::{self, Member, Operator, Owner, OwnerOrOperator, User, UserOfDag, UserOrOperator};
use super::reservations::ReservationChange;
use super::scaled_services::ScalingStep;
use super::signing::SignedHead;
use super::tenants::{QuotaChange, TenantChange};
use super::updates::AllocationChange;
use super::urgency::Urgency::{self, Keeps, Mends, New};
use super::user_limits::UserLimitsChange;
use super::vclusters::VClusterChange;
use super::{
    Access, ApplyContext, DomainKey, HeldShare, Ledger, MembersStep, NodeStateChange, NotifyChannel, Outcome, Registration, VniPoolChange,
    holds, level,
};
use lattice_ledger_state::keyring::Secret;
use lattice_ledger_state::refusal::Refusal;
use lattice_model::access::{MemberChange, ProjectChange, Role, RoleBinding, RootMay, SubjectName};
use lattice_model::access_token::{AccessToken, TokenId};
use lattice_model::conformance::Components;
use lattice_model::ended_work::AccountedUntil;
use lattice_model::{
    AllocationId, AllocationSpec, Claim, DagId, DagSubmission, Epoch, Generation, HoldKind, Incarnation, LaneReport, MemberId, NodeId,
    NodeReport, Preemption, Principal, ReportItem, Revision, SharePolicy, TaskSet, TelemetryMode, Timestamp, When,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use uuid::Uuid;

commands! { |ledger, context|
    /// Sets the cluster's name, once.
    Bootstrap { cluster: String }
        => 1, Keeps, Member, 256, ledger.bootstrap(context, cluster);

    /// See `lattice_quorum_client::wire::Request::Submit`.
    Submit { id: AllocationId, spec: Box<AllocationSpec>, owner: Principal, claim: Option<Claim> }
        => 1, New, Member, submission_bytes(spec, claim.as_ref()),
        ledger.submit(context, *id, spec, owner, claim.as_ref());

    /// Ends an allocation. An ended one stays as it is (success).
    Cancel { id: AllocationId, by: Principal }
        => 1, Keeps, User(by, *id), 256, ledger.cancel(context, *id, by);

    /// See `lattice_quorum_client::wire::Request::Claim`.
    Claim(claim: Claim)
        => 1, New, Member, claim_bytes(claim), ledger.claim(context, claim);

    /// An agent opens its session.
    Register(registration: Registration)
        => 1, Keeps, Member, registration_bytes(registration), ledger.register(context, registration);

    /// An agent reports.
    Report(report: NodeReport)
        => 1, Keeps, Member, report_bytes(&report.item), ledger.report(context, report);

    /// After a recovery: everything that a node has. See `lattice_quorum_client::wire::Up::Holds`.
    Adopt { node: NodeId, incarnation: Incarnation, held: Vec<HeldShare>, unreported: Vec<ReportItem> }
        => 1, Keeps, Member, adoption_bytes(held, unreported),
        ledger.adopt(context, node, *incarnation, (held, unreported));

    /// The leader's clocks propose node states.
    NodeStates(state_changes: Vec<NodeStateChange>)
        => 1, Keeps, Member, 64 + state_changes.len() * 128, ledger.node_states(context, state_changes);

    /// Releases a lease, regardless of holds. `holder`: the node whose agent requests it; an agent's
    /// own lease is released by its holder alone.
    ReleaseLease { name: String, token: u64, holder: NodeId, user: Option<Principal> }
        => 1, Keeps, Owner(user.as_mut()), 256, ledger.release_lease(context, name, *token, holder, user.as_ref());

    /// The leader's timer for a lease ran out: the lease ends unless it was renewed after
    /// `renewed`.
    ExpireLease { name: String, token: u64, renewed: Revision }
        => 1, Keeps, Member, 256, ledger.expire_lease(context, name, *token, *renewed);

    /// Records a step of a membership change before it is taken.
    Members { by: Principal, step: MembersStep }
        => 1, Mends, Member, 1024, ledger.record_members(context, by, step);

    /// See `lattice_quorum_client::wire::Request::RecordAccess`.
    RecordAccess(access: Access)
        => 1, access_urgency(access.kind), Member, 512 + access.detail.len(), ledger.record_access(context, access);

    /// The member signs with this key from now on: its public half, 64 hexadecimal digits.
    SetSigningKey { member: MemberId, key: String }
        => 1, New, Member, 256, ledger.set_signing_key(context, *member, key);

    /// The leader signed the audit chain.
    SignHead(signed: SignedHead)
        => 1, New, Member, 512, ledger.sign_head(context, signed);

    /// The leader has read every audit record up to this one from this archive, from the folder of this
    /// generation.
    ArchiveAudit { signed: SignedHead, generation: Generation, archive: String }
        => 1, Keeps, Member, 512 + archive.len(), ledger.set_audit_checkpoint(signed, *generation, archive);

    /// See `lattice_quorum_client::wire::Request::AcquireLease`.
    GrantLease { name: String, holder: NodeId, ttl_ms: u64, user: Option<Principal> }
        => level::of_lease(name), New, Member, 256, ledger.grant_lease(context, name, holder, *ttl_ms, user.as_ref());

    /// Revokes a lease; if a token is given, only the grant with that token.
    RevokeLease { name: String, token: Option<u64>, by: String }
        => 1, Keeps, Operator(by, &["LeaseService/Revoke"]), 256, ledger.revoke_lease(context, name, *token, by);

    /// Keeps new work and leases off a node. If the hold exists, the reason is added. `until`: when
    /// it ends by itself; `deadline` (of a drain): when work that is still there is ended. Both are
    /// times of the leader's clock.
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

    /// Lifts a hold. If `until` is given, only a hold with that end: used by the leader's clock.
    LiftHold {
        node: NodeId,
        kind: HoldKind,
        by: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
    }
        => 1, Keeps, Operator(by, &["NodeService/LiftHold"]), 256,
        ledger.lift_requested_hold(context, node, *kind, by, *until);

    /// All members understand commands of this level.
    RaiseLevel { level: u32 }
        => 1, New, Member, 256, ledger.raise_level(context, *level);

    /// Creates a tenant, or changes its quotas. A repetition is a success.
    SetTenant { change: TenantChange, by: String }
        => 1, New, Operator(by, &["AdminService/CreateTenant", "AdminService/UpdateTenant"]), 256,
        ledger.set_tenant(context, change, by);

    /// Deletes a tenant that has no work, with its members and admins. Its name then has no limits.
    DeleteTenant { name: String, by: String }
        => 1, Keeps, Operator(by, &["AdminService/DeleteTenant"]), 256, ledger.delete_tenant(context, name, by);

    /// Revokes all certificates of this name, of any role, that were issued until now. The gossip
    /// key is replaced.
    Revoke { name: String, by: String, reason: String }
        => 1, Keeps, Operator(by, &["AdminService/RevokeCertificates"]), 256 + name.len() + reason.len(),
        ledger.revoke(context, name, by, reason);

    /// Introduces a gossip key that the requester has generated, or returns the one that is already
    /// being introduced. The leader takes the next steps.
    AddKey { secret: Secret, by: String }
        => 1, New, Operator(by, &["AdminService/RotateGossipKeys"]), 256, ledger.add_key(context, secret, by);

    /// All reachable agents have the key: it encrypts from now on.
    SealWithKey { id: u32 }
        => 1, New, Member, 256, ledger.seal_with_key(context, *id);

    /// All reachable agents encrypt with its successor: the key is deleted.
    RetireKey { id: u32 }
        => 1, New, Member, 256, ledger.retire_key(context, *id);

    /// Creates a vCluster, or changes one. A repetition is a success.
    SetVCluster { change: VClusterChange, by: String }
        => 1, New, Operator(by, change.methods()), change.bytes_about(), ledger.set_vcluster(context, change, by);

    /// Deletes a vCluster that has no work. Its nodes then belong to the default vCluster.
    DeleteVCluster { name: String, by: String }
        => 1, Keeps, Operator(by, &["VClusterService/Delete"]), 256, ledger.delete_vcluster(context, name, by);

    /// Creates a reservation, or changes one. A repetition is a success.
    SetReservation { change: ReservationChange, by: String }
        => 1, New, Operator(by, &["ReservationService/Create", "ReservationService/Update"]), change.bytes_about(),
        ledger.set_reservation(context, change, by);

    /// Deletes a reservation: its nodes are everybody's again, and work that names it gets none.
    DeleteReservation { name: String, by: String }
        => 1, Keeps, Operator(by, &["ReservationService/Delete"]), 256, ledger.delete_reservation(context, name, by);

    /// Opens a session in a running allocation that is kept for one; only for its owner.
    CreateSession { id: Uuid, allocation: AllocationId, by: Principal }
        => 1, New, Owner(Some(by)), 256, ledger.create_session(context, *id, *allocation, by);

    /// Ends a session, and the allocation that is kept for it.
    DeleteSession { id: Uuid, allocation: AllocationId, by: Principal }
        => 1, Keeps, User(by, *allocation), 256, ledger.delete_session(context, *id, *allocation, by);

    /// Changes the pool of VNIs. Domains keep the VNIs that they have. A repetition is a success.
    SetVniPool { change: VniPoolChange, by: String }
        => 1, New, Operator(by, &["AdminService/SetVniPool"]), 256, ledger.set_vni_pool(context, change, by);

    /// The leader's clock: network domains have been without work for long enough.
    ReleaseDomains
        => 1, Keeps, Member, 256, ledger.release_domains(context);

    /// Sets how long one network domain keeps its VNI without work, instead of the pool's value,
    /// until it is released.
    SetDomainGrace { domain: DomainKey, grace_ms: u64, by: String }
        => 1, New, Operator(by, &["AdminService/SetNetworkGrace"]), 256,
        ledger.set_domain_grace(context, domain, *grace_ms, by);

    /// Changes the cluster-wide limits. A repetition is a success.
    SetLimits {
        sensitive_pool_size: QuotaChange,
        #[serde(default, skip_serializing_if = "UserLimitsChange::is_none")]
        users: UserLimitsChange,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        budget_period_days: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        share_policy: Option<SharePolicy>,
        #[serde(default, skip_serializing_if = "EndedLimitsChange::is_none")]
        ended: EndedLimitsChange,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dag_size: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        root_may: Option<RootMay>,
        by: String,
    }
        => 1, New, Operator(by, &["AdminService/SetLimits"]), 256,
        ledger.set_limits(
            context,
            (*sensitive_pool_size, users, *ended),
            (*budget_period_days, *share_policy, *dag_size, *root_may),
            by,
        );

    /// The leader's clock: this deadline of the node's drain has passed.
    EndDrained { node: NodeId, deadline: Timestamp }
        => 1, Keeps, Member, 256, Ok(ledger.end_drained(context, node, *deadline));

    /// A node is being booted: it is expected to register with a new boot id.
    BootNode { node: NodeId, by: String, reason: String }
        => 1, Keeps, Operator(by, &["NodeService/Boot"]), 256 + reason.len(),
        ledger.boot_node(context, node, by, reason);

    /// Sets the length of the run leases of future claims.
    SetRunLease { ms: u64 }
        => 1, New, Member, 256, ledger.set_run_lease(context, *ms);

    /// A node that is Down has been silent for this long: shorter run leases on it have expired.
    Fence { node: NodeId, incarnation: Incarnation, silent_ms: u64 }
        => 1, Keeps, Member, 256, ledger.fence(context, node, *incarnation, *silent_ms);

    /// An operator or the fencing hook confirms that nothing runs any more on a silent node: its
    /// work there is ended. A repetition is a success.
    ConfirmDead { node: NodeId, by: String, reason: String }
        => 1, Keeps, Operator(by, &["NodeService/ConfirmDead"]), 256 + reason.len(),
        ledger.confirm_dead(context, node, by, reason);

    /// A node's agent reports its software and firmware.
    Conforms { node: NodeId, incarnation: Incarnation, components: Components }
        => 1, Keeps, Member, components_bytes(components), ledger.conforms(context, node, *incarnation, components);

    /// A node's agent reports whether it has been unable to examine them for too long.
    ConformanceStale { node: NodeId, incarnation: Incarnation, stale: bool }
        => 1, Keeps, Member, 256, ledger.conformance_stale(context, node, *incarnation, *stale);

    /// Accepts a node's current software and firmware as the expected state. A repetition is a
    /// success.
    AcceptDrift { node: NodeId, by: String, reason: String }
        => 1, Keeps, Operator(by, &["NodeService/AcceptDrift"]), 256 + reason.len(),
        ledger.accept_drift(context, node, by, reason);

    /// The leader's clock: the time limit of the drift that began at `since` has passed.
    DriftOver { node: NodeId, since: Timestamp }
        => 1, Keeps, Member, 256, ledger.drift_over(context, node, *since);

    /// No work may claim the node until its own hook has wiped it. `force`: retry a failed wipe.
    Wipe { node: NodeId, by: String, reason: String, force: bool }
        => 1, Keeps, Operator(by, &["NodeService/Wipe"]), 256 + reason.len(),
        ledger.wipe(context, node, by, reason, *force);

    /// A node's agent reports how this wipe ended; `failed` is set if it failed.
    Wiped {
        node: NodeId,
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    }
        => 1, Keeps, Member, 256 + failed.as_ref().map_or(0, String::len),
        ledger.wiped(context, node, *order, failed.as_deref());

    /// The recipients of this kind of notification have received everything up to this audit
    /// record.
    Notified { channel: NotifyChannel, upto: u64 }
        => 1, New, Member, 256, Ok(ledger.set_notified(*channel, *upto));

    /// Makes an allocation save itself and release its nodes: it is then Suspended, or ended if it
    /// could not save itself. Applies only to this claim: if it is over, the nodes are already
    /// released (success). `kill`: end work that cannot save itself anyway.
    Preempt { allocation: AllocationId, epoch: Epoch, by: Principal, order: Preemption, kill: bool }
        => 1, Keeps, User(by, *allocation), 512 + order.reason.len(),
        ledger.preempt(context, (*allocation, *epoch), by, order, *kill);

    /// A scheduler preempts work for work of a higher class; for victims whose claim has ended,
    /// nothing changes.
    PreemptFor(order: PreemptFor)
        => 1, New, Owner(None), 256 + order.victims.len() * 64, ledger.preempt_for(context, order);

    /// Ends this claim of an allocation and puts the allocation back into the queue, if its requeue
    /// rules allow it. If the claim is already over, nothing changes (success).
    RequeueAllocation { allocation: AllocationId, epoch: Epoch, by: Principal, reason: String }
        => 1, Keeps, User(by, *allocation), 256 + reason.len(),
        ledger.requeue(context, (*allocation, *epoch), by, reason);

    /// Holds an allocation that waits for nodes: it gets none until it is resumed. If it is already
    /// held, nothing changes (success).
    HoldAllocation { allocation: AllocationId, by: Principal }
        => 1, Keeps, User(by, *allocation), 256, ledger.hold_allocation(context, *allocation, by);

    /// Changes the name, the project, the tags, the walltime or the preemption class of an allocation that has not ended, or
    /// the bounds and the target of a scaled service.
    UpdateAllocation { allocation: AllocationId, by: Principal, change: AllocationChange, as_operator: bool }
        => 1, New,
        UserOrOperator { by, allocation: *allocation, as_operator, methods: &["AllocationService/Update"] }, change.bytes_about(),
        ledger.update_allocation(context, *allocation, by, change, *as_operator);

    /// Resumes a held or suspended allocation: it waits for nodes again.
    Resume { allocation: AllocationId, by: Principal }
        => 1, New, User(by, *allocation), 256, ledger.resume(context, *allocation, by);

    /// Drains a node ([`Action::SetHold`]), and makes the work there save itself and move elsewhere
    /// if possible. Checkpoint ids are derived from `seed` and the allocation's id; a repetition
    /// with another seed tries again.
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

    /// Sets the measurement mode of an allocation's work on all of its nodes, for this duration
    /// (Debug). `id` is the idempotency key.
    SetTelemetry { allocation: AllocationId, by: Principal, id: Uuid, mode: TelemetryMode, duration_ms: u64 }
        => 1, telemetry_urgency(*mode), User(by, *allocation), 256,
        ledger.set_telemetry(context, *allocation, by, (*id, *mode, *duration_ms));

    /// The leader's clock: waits until this time are over.
    EndWaits { now: Timestamp }
        => 1, Keeps, Member, 256, Ok(ledger.end_waits(context, *now));

    /// A lane of a task group reports what has ended, and gets what it may run. See
    /// `lattice_quorum_client::wire::Request::AdvanceLane`.
    AdvanceLane { id: AllocationId, epoch: Epoch, node: NodeId, report: LaneReport }
        => 1, Keeps, Member, 256 + report.ended.iter().map(|ended| 16 + tasks_bytes(&ended.tasks)).sum::<usize>(),
        ledger.advance_lane(context, (*id, *epoch), node, report);

    /// Cancels those of these tasks of a group that have not ended; the others stay as they are
    /// (success).
    CancelTasks { id: AllocationId, tasks: TaskSet, by: Principal }
        => 1, Keeps, User(by, *id), 256 + tasks_bytes(tasks), ledger.cancel_tasks(context, *id, tasks, by);

    /// A scaled service has this number of replicas from now on, within the bounds of its submission. If as
    /// many are wanted already, nothing changes (success).
    Scale { id: AllocationId, replicas: u32, by: Principal }
        => 1, New, User(by, *id), 256, ledger.scale(context, *id, *replicas, by);

    /// The loop of a scaled service has looked at its metric. The ledger checks by its own clock whether
    /// another number of replicas may be wanted.
    StepScaling(order: ScalingStep)
        => 1, New, Owner(None), 256 + order.metric.to_string().len() + step_bytes(&order.step), ledger.step_scaling(context, order);

    /// The leader's clock: an end has not reached all that depend on it, or a task group or scaled service
    /// has lanes or replicas to be created or ended. Each command goes on with that; this one does nothing
    /// else.
    SettleDependents
        => 1, Keeps, Member, 256, Ok(Outcome::Done);

    /// The leader's clock: the time of this order is over.
    EndTelemetry { allocation: AllocationId, order: Uuid }
        => 1, Keeps, Member, 256, Ok(ledger.end_telemetry(context, *allocation, *order));

    /// The leader's clock: the use of these tenants' budgets has reached a mark, or is below one again.
    CheckBudgets { tenants: Vec<String> }
        => 1, New, Member, 256 + tenants.iter().map(|name| 8 + name.len()).sum::<usize>(),
        Ok(ledger.check_budgets(context, tenants));

    /// A node's own checks request a drain; see `node_health::DrainRequest`.
    AskDrain { node: NodeId, incarnation: Incarnation, asked: Timestamp, reason: String }
        => 1, Keeps, Member, 256 + reason.len(), ledger.ask_drain(context, node, (*incarnation, *asked), reason);

    /// Admits a node of this name, so that it may register. A repetition is a success.
    Admit { node: NodeId, by: String, reason: String }
        => 1, New, Operator(by, &["NodeService/Admit"]), 256 + reason.len(), ledger.admit(context, node, by, reason);

    /// Withdraws an admission that was not used yet. A repetition is a success.
    WithdrawAdmission { node: NodeId, by: String }
        => 1, Keeps, Operator(by, &["NodeService/WithdrawAdmission"]), 256,
        ledger.withdraw_admission(context, node, by);

    /// Removes a node that is Drained or Down and has no work. Its name is refused until it is
    /// admitted and registers anew. A repetition is a success.
    RemoveNode { node: NodeId, by: String, reason: String }
        => 1, Keeps, Operator(by, &["NodeService/Remove"]), 256 + reason.len(),
        ledger.remove_node(context, node, by, reason);

    /// Submits all allocations of a DAG, or none. Its id is the idempotency key: repeating the same id
    /// with the same steps and owner is a success.
    SubmitDag { id: DagId, owner: Principal, dag: Box<DagSubmission> }
        => 1, New, Owner(Some(owner)), dag.bytes_about(), ledger.submit_dag(context, *id, owner, dag);

    /// A submission of a user whose login names tenants. The agent vouches for them, as for the user's
    /// groups: the owner counts as their member for this command alone.
    SubmitByLogin { tenants: BTreeSet<String>, submission: Box<Action> }
        => 1, New, submitter(submission), 64 + tenants.iter().map(|name| 8 + name.len()).sum::<usize>() + submission.bytes_about(),
        ledger.submit_by_login(context, tenants, submission);

    /// A command that a caller on the network requested with this token of the cluster: the records of what it does name
    /// the token. The answering member wraps the command once it has been checked.
    ByToken { token: TokenId, action: Box<Action> }
        => action.level(), action.urgency(), Member, 64 + action.bytes_about(), ledger.apply_by_token(context, *token, action);

    /// Ends all allocations of a DAG that have not ended. Each command ends some of them; if all have
    /// ended, nothing changes (success).
    CancelDag { id: DagId, by: Principal }
        => 1, Keeps, UserOfDag(by, *id), 256, ledger.cancel_dag(context, *id, by);

    /// Grants a role. A repetition is a success.
    GrantRole { binding: RoleBinding, by: String }
        => 1, New, Operator(by, &["AdminService/GrantRole"]), binding_bytes(binding), ledger.grant_role(context, binding, by);

    /// Revokes a role of an account or group.
    RevokeRole { subject: SubjectName, role: Role, tenant: Option<String>, by: String }
        => 1, Keeps, Operator(by, &["AdminService/RevokeRole"]), 256 + subject.name.len() + tenant.as_ref().map_or(0, String::len),
        ledger.revoke_role(context, (subject, *role, tenant.as_deref()), by);

    /// Changes the members of a tenant. Adding a member that it has is a success.
    SetTenantMember { change: MemberChange, by: String }
        => 1, member_urgency(change), Operator(by, &["AdminService/AddTenantMember", "AdminService/RemoveTenantMember"]),
        member_bytes(change), ledger.set_tenant_member(context, change, by);

    /// Registers or deletes a project of a tenant, or changes its members. Adding what is there is a success.
    SetProject { change: ProjectChange, by: String }
        => 1, project_urgency(change), Operator(by, &PROJECT_METHODS), project_bytes(change), ledger.set_project(context, change, by);

    /// Issues a token of the network API. Its id is the idempotency key: repeating the same token is a
    /// success.
    IssueToken { token: AccessToken }
        => 1, New, Operator(&mut token.issued_by, &["AdminService/IssueToken"]), token_bytes(token), ledger.issue_token(context, token);

    /// Revokes a token of the network API: of the requester's own account, or of any as an operator.
    RevokeToken { id: TokenId, by: Principal, as_operator: bool }
        => 1, Keeps, OwnerOrOperator { by, as_operator, methods: &["AdminService/RevokeToken"] }, 256,
        ledger.revoke_token(context, *id, by, *as_operator);

    /// The store of the agent that has the lease `accounting` has all ended work up to a number: the ledger
    /// forgets it. The first store that says so, with number 0, gets everything that ends from then on. An
    /// agent whose store is refused gives the lease back: another agent may have the right one.
    Account { until: AccountedUntil, node: NodeId, lease_token: u64 }
        => 1, Keeps, Owner(None), 256, ledger.account(context, *until, node, *lease_token);

    /// Lets another store get the ended work from now on. Without `force` only if the present one has
    /// everything.
    MoveAccounting { by: String, force: bool }
        => 1, New, Operator(by, &["AccountingService/MoveStore"]), 256, ledger.move_accounting(context, by, *force);

    /// Corrects the project and the tags in a record of ended work that the accounting store has.
    CorrectEndedWork { correction: Box<Correction>, by: Principal, as_operator: bool }
        => 1, New, OwnerOrOperator { by, as_operator, methods: &["AllocationService/Update"] }, correction.bytes_about(),
        ledger.correct_ended_work(context, correction, by, *as_operator);

    /// The ledger's time is [`super::Command::at`] from now on, however long ago the last command
    /// was. A leader proposes this when it has measured that time with a monotonic clock, or, at
    /// the beginning of its term, from the clocks of a majority.
    AdvanceTime
        => 1, Keeps, Member, 256, Ok(Outcome::Done);
}

impl Action {
    /// The tenant that it changes, if the tenant's admins may do that.
    pub fn concerns_tenant(&self) -> Option<&str> {
        match self {
            Self::SetTenantMember { change, .. } => Some(&change.tenant),
            Self::SetProject { change, .. } => Some(&change.tenant),
            _ => None,
        }
    }

    /// Whether only a system admin may request it, although the table lets others call its method: see
    /// [`MemberChange::needs_system_admin`].
    pub fn needs_system_admin(&self) -> bool {
        match self {
            Self::SetTenantMember { change, .. } => change.needs_system_admin(),
            _ => false,
        }
    }
}

/// Who may request what a login submits. Nothing else is requested by a login.
fn submitter(submission: &mut Action) -> Requester<'_> {
    match submission {
        Action::SubmitDag { owner, .. } => Owner(Some(owner)),
        _ => Member,
    }
}

/// The methods that change projects.
const PROJECT_METHODS: [&str; 4] =
    ["AdminService/AddProjectMember", "AdminService/CreateProject", "AdminService/DeleteProject", "AdminService/RemoveProjectMember"];
