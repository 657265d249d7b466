//! Queries and commands. The leader answers; other members forward them to it, once.
//!
//! If a submission's claim uses the agent's own node, the leader's answer contains that node's
//! list, which the session would otherwise send a moment later: this saves one message and one
//! queue. Lists are compared by (generation, revision), so their order of arrival does not matter.
//! A node that a recovered quorum still waits for gets no list, because it must first report what
//! it has.

use super::{auditing, leasing, own};
use crate::core::Core;
use crate::gathered::Results;
use crate::membership::{self, UNREACHABLE_AFTER};
use crate::permission::{self, Call, Grant};
use crate::proposer::{Unserved, unserved};
use crate::{backup, rotation};
use futures::future::BoxFuture;
use lattice_api::pack::{pack, unpack};
use lattice_ledger::access::detail_from_agent;
use lattice_ledger::{Action, EndsStatus, Outcome, Urgency};
use lattice_ledger_state::record_bytes::{allocation_bytes, ended_work_bytes};
use lattice_model::access_token::TokenId;
use lattice_model::count::counted;
use lattice_model::ended_work::EndedWork;
use lattice_model::{
    Allocation, AllocationId, Claim, DesiredList, Incarnation, MemberId, NodeId, NodeState, Reservation, Revision, millis, with_causes,
};
use lattice_pki::identity::{Caller, Role, member_name};
use lattice_quorum_client::status_text;
use lattice_quorum_client::wire::{
    ALLOCATIONS_ASKED_MAX, Answer, CLAIMS_MAX, Claimed, ENDED_WORK_MAX, EndedWorkPage, MemberStatus, NODES_ASKED_MAX, NODES_SAMPLED_MAX,
    QuorumStatus, Refusal, Request,
};
use lattice_store::background;
use lattice_store::roster::Roster;
use rand::seq::IteratorRandom;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tonic::metadata::MetadataValue;

/// Marks a forwarded request: it is answered here or not at all.
pub(super) const FORWARDED_HEADER: &str = "lattice-forwarded";
/// Timeout for a request forwarded to the leader.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(5);
/// Approximate size of allocations or records in one answer, in bytes.
const ANSWER_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Approximate size of the ended work in one answer, in bytes.
const ENDED_WORK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Approximate size of the answers to point reads in one message, in bytes.
const OUTCOMES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Largest number of allocations in one answer.
const ALLOCATIONS_MAX: u32 = 5000;
/// Number of allocations in an answer if the request has no limit; largest number of DAGs in an answer.
const LIST_MAX: u32 = 1000;
/// Largest number of service names or endpoints in one answer.
const SERVICES_MAX: usize = 10_000;

/// A request that a member forwards to the leader.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Forward {
    Propose(Vec<Action>),
    Answer(Box<Request>),
}

/// The leader's answer to a [`Forward`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Forwarded {
    Proposed(Vec<Result<(Outcome, Revision), Refusal>>),
    Answered(Box<Result<Answer, Refusal>>),
    Unserved(String),
}

/// Answers an agent's request to the extent granted by the permission table. `token`: with which somebody on the network
/// requested it.
pub(super) async fn answer(
    core: &Arc<Core>,
    caller: &Caller,
    grant: Grant,
    request: Request,
    token: Option<TokenId>,
) -> Result<Answer, Refusal> {
    let call = Call::of(&request);
    match (grant, call) {
        (Grant::Own, Call::GetAllocation) => own::allocation(caller, answer_in_full(core, caller, request, token).await),
        (Grant::Own, Call::GetAllocations) => {
            let request = own::of_node(request, &caller.name);
            own::allocations(caller, answer_in_full(core, caller, request, token).await)
        }
        (Grant::Own, Call::ListServices | Call::LookupService) => {
            let tenants = own::tenants(core, caller, ask_leader).await?;
            answer_in_full(core, caller, own::narrowed(request, &tenants), token).await
        }
        (Grant::Own, Call::RecordAccess) => {
            own::access(core, caller, &request, ask_leader).await?;
            answer_in_full(core, caller, request, token).await
        }
        (Grant::Own | Grant::Yes, _) => answer_in_full(core, caller, request, token).await,
        (Grant::No, _) => Err(permission::refused(call, caller)),
    }
}

async fn answer_in_full(core: &Arc<Core>, caller: &Caller, request: Request, token: Option<TokenId>) -> Result<Answer, Refusal> {
    let mut newcomer = None;
    let (action, ttl_ms) = match request {
        Request::Status => return Ok(Answer::Status(status(core))),
        Request::StateHash => return state_hash(core).await,
        Request::Stale(inner) => return stale(core, &inner),
        Request::Backup => return make_backup(core).await,
        Request::VerifyAudit { from } => return auditing::verify(core, from.map(|from| *from)).await,
        Request::Members if core.leader().is_none() => return Ok(Answer::Status(status(core))),
        Request::GetAllocation { .. }
        | Request::GetAllocations { .. }
        | Request::ListAllocations { .. }
        | Request::ListNodes
        | Request::GetNodes { .. }
        | Request::SampleNodes { .. }
        | Request::QueryAudit { .. }
        | Request::ExportAudit { .. }
        | Request::ListLeases
        | Request::CheckSubmission { .. }
        | Request::ListTenants
        | Request::ListKeys
        | Request::ListRevocations
        | Request::ListVClusters
        | Request::ListReservations
        | Request::ListSessions
        | Request::ListAdmissions
        | Request::CheckDag { .. }
        | Request::GetDag { .. }
        | Request::ListDags { .. }
        | Request::GetVniPool
        | Request::ListDomains { .. }
        | Request::ListServices { .. }
        | Request::LookupService { .. }
        | Request::GetUsage { .. }
        | Request::GetLimits
        | Request::GetTasks { .. }
        | Request::StandingOf { .. }
        | Request::ListRoles
        | Request::ListTenantMembers { .. }
        | Request::ListProjects { .. }
        | Request::TokenRecord { .. }
        | Request::ListTokens { .. }
        | Request::EndedWork { .. }
        | Request::RefusedClaim { .. }
        | Request::RenewLease { .. }
        | Request::Members
        | Request::ChangeMembers(_) => return by_leader(core, request).await,
        Request::AsOperator { .. } => {
            return Err(Refusal::Malformed { why: "an operator's request must not contain another one".to_owned() });
        }
        Request::RenewCertificate { .. } => {
            return Err(Refusal::Malformed { why: "a certificate can only be renewed by its holder".to_owned() });
        }
        Request::RecordAccess(mut access) => {
            // The agent's name is taken from its certificate, not from its request.
            access.detail = detail_from_agent(&caller.name, &access.detail);
            if caller.role == Role::Node {
                access.node = Some(caller.name.parse().map_err(|_| permission::refused(Call::RecordAccess, caller))?);
            }
            (Action::RecordAccess(access), 0)
        }
        Request::Submit { id, spec, owner, claim, life, login_tenants } => {
            newcomer = life.map(|life| Newcomer::new(caller, life, claim.as_ref()));
            let claim = claim.map(|claim| proposed_by(caller, claim));
            (Action::Submit { id, spec, owner, claim }.by_login(login_tenants), 0)
        }
        Request::Command(action) => {
            match &*action {
                Action::Revoke { name, .. } => may_be_revoked(core, name)?,
                Action::LiftHold { until: Some(_), .. } => {
                    let why = "only the leader lifts a hold at its end: leave `until` out".to_owned();
                    return Err(Refusal::Malformed { why });
                }
                _ => {}
            }
            (*action, 0)
        }
        Request::Claims(claims) => return claims_answer(core, caller, claims).await,
        Request::AdvanceLane { id, epoch, node, report } => (Action::AdvanceLane { id, epoch, node, report }, 0),
        Request::AcquireLease { name, holder, ttl_ms, user } => {
            if user.is_none() && core.leads() && core.reads.pass().await.is_ok() {
                leasing::held_by_another(core, &name, &holder)?;
            }
            (Action::GrantLease { name, holder, ttl_ms, user }, ttl_ms)
        }
    };
    let result = propose(core, vec![action.by_token(token)]).await.map_err(unserved)?.into_iter().next();
    let (outcome, revision) = result.unwrap_or_else(|| Err(Refusal::Unavailable { why: "the leader gave no answer".to_owned() }))?;
    if let Some(newcomer) = newcomer {
        let claimed = newcomer.claims.map(|id| core.agreed.ledger().allocation(id).is_some_and(|a| !a.state.is_without_nodes()));
        let number = if let Outcome::Submitted { number } = outcome { number } else { 0 };
        return Ok(Answer::Submitted { revision, desired: newcomer.desired(core), claimed, number });
    }
    Ok(match outcome {
        Outcome::Done | Outcome::Submitted { .. } | Outcome::Registered { .. } | Outcome::Claimed { .. } => Answer::Done { revision },
        Outcome::ContentRefused(refusal) => return Err(refusal),
        Outcome::Leased { token } => Answer::Lease { token, ttl_ms },
        Outcome::KeyAdded { id } => Answer::KeyAdded { id },
        Outcome::LaneWork(work) => Answer::LaneWork(work),
        Outcome::TasksCancelled { cancelled, ended } => Answer::TasksCancelled { cancelled, ended },
    })
}

/// A member must be removed from the quorum before its certificates are revoked, because the quorum
/// would lose its vote otherwise.
fn may_be_revoked(core: &Core, name: &str) -> Result<(), Refusal> {
    match core.roster().members.keys().find(|id| member_name(**id) == name) {
        Some(id) => Err(Refusal::Members {
            why: format!("{name} is a member of the quorum: remove it first, by `lattice quorum remove {id}` or `replace`"),
        }),
        None => Ok(()),
    }
}

fn revocations(core: &Core) -> Answer {
    let ledger = core.agreed.ledger();
    let revoked = ledger.revocations().map(|(name, revocation)| (name.to_owned(), revocation.clone())).collect();
    Answer::Revocations { revoked, issue_time: ledger.issue_time() }
}

/// The outcome of each of these claims.
async fn claims_answer(core: &Arc<Core>, caller: &Caller, claims: Vec<Claim>) -> Result<Answer, Refusal> {
    if claims.len() > CLAIMS_MAX {
        return Err(Refusal::Malformed { why: format!("{}: at most {CLAIMS_MAX} in one request", counted(claims.len(), "claim")) });
    }
    let actions = claims.into_iter().map(|claim| Action::Claim(proposed_by(caller, claim))).collect();
    let claimed = |result: Result<(Outcome, Revision), Refusal>| match result? {
        (Outcome::Claimed { epoch }, revision) => Ok(Claimed { epoch, revision }),
        (Outcome::ContentRefused(refusal), _) => Err(refusal),
        (other, _) => Err(Refusal::Unavailable { why: format!("the ledger answered a claim with {other:?}") }),
    };
    Ok(Answer::Claims(propose(core, actions).await.map_err(unserved)?.into_iter().map(claimed).collect()))
}

fn proposed_by(caller: &Caller, claim: Claim) -> Claim {
    Claim { by: Some(caller.name.clone()), ..claim }
}

/// The submitting agent, if its own node may start the work.
struct Newcomer {
    /// Its node, and the incarnation in which it would start the work.
    here: Option<(NodeId, Incarnation)>,
    /// The allocation of its claim.
    claims: Option<AllocationId>,
}

impl Newcomer {
    fn new(caller: &Caller, life: Incarnation, claim: Option<&Claim>) -> Self {
        let claimed = claim.into_iter().flat_map(|claim| &claim.shares).find(|share| share.node.as_str() == caller.name);
        Self { here: claimed.map(|share| (share.node.clone(), life)), claims: claim.map(|claim| claim.allocation) }
    }

    /// Its node's list. The member that has its session sends the same list, one message between
    /// members later.
    fn desired(&self, core: &Core) -> Option<DesiredList> {
        let (node, life) = self.here.as_ref().filter(|_| core.leads())?;
        let ledger = core.agreed.ledger();
        let is_current = ledger.node(node).is_some_and(|n| n.incarnation == *life) && !ledger.awaits(node);
        is_current.then(|| ledger.desired(node))
    }
}

/// Proposes commands in this order, here or through the leader.
pub(super) async fn propose(core: &Arc<Core>, actions: Vec<Action>) -> Results {
    match leader_elsewhere(core) {
        None => core.propose_here(actions).await,
        Some(leader) => match pass_on(core, leader, &Forward::Propose(actions)).await? {
            Forwarded::Proposed(results) => Ok(results),
            Forwarded::Unserved(why) => Err(Unserved::Unavailable(why)),
            Forwarded::Answered(_) => Err(Unserved::Unavailable("the leader answered something else".to_owned())),
        },
    }
}

/// Like [`propose`], but sends commands of several sessions to the leader in one message. A command must
/// not be a reason to refuse others in the message.
pub(super) async fn propose_gathered(core: &Arc<Core>, actions: Vec<Action>) -> Results {
    if leader_elsewhere(core).is_none() {
        return core.propose_here(actions).await;
    }
    let results = core.gathered.add(actions);
    let member = Arc::clone(core);
    core.tasks.spawn(async move {
        let forwarding = async {
            if let Some(mut message) = member.gathered.next().await {
                let results = propose(&member, std::mem::take(&mut message.actions)).await;
                message.answer(results);
                tokio::time::sleep(message.pause).await;
            }
        };
        // If the message is dropped, its senders get the answer that this member is stopping.
        tokio::select! {
            () = member.stop.cancelled() => {}
            () = forwarding => {}
        }
    });
    results.await.unwrap_or_else(|_| Err(Unserved::Unavailable("this member is stopping".to_owned())))
}

/// [`by_leader`] as a function value, for modules that must not depend on this one.
pub(crate) fn ask_leader(core: Arc<Core>, request: Request) -> BoxFuture<'static, Result<Answer, Refusal>> {
    Box::pin(async move { by_leader(&core, request).await })
}

pub(crate) async fn by_leader(core: &Arc<Core>, request: Request) -> Result<Answer, Refusal> {
    match leader_elsewhere(core) {
        None => answer_here(core, request).await,
        Some(leader) => match pass_on(core, leader, &Forward::Answer(Box::new(request))).await.map_err(unserved)? {
            Forwarded::Answered(answer) => *answer,
            Forwarded::Unserved(why) => Err(Refusal::Unavailable { why }),
            Forwarded::Proposed(_) => Err(Refusal::Unavailable { why: "the leader answered something else".to_owned() }),
        },
    }
}

/// Answers a request that another member forwarded. Never forwards it again.
pub(super) async fn forwarded(core: &Arc<Core>, forward: Forward) -> Forwarded {
    match forward {
        Forward::Propose(actions) => match core.propose_here(actions).await {
            Ok(results) => Forwarded::Proposed(results),
            Err(why) => Forwarded::Unserved(unserved(why).to_string()),
        },
        Forward::Answer(request) => Forwarded::Answered(Box::new(answer_here(core, *request).await)),
    }
}

pub(super) fn leader_elsewhere(core: &Core) -> Option<u64> {
    core.leader().filter(|leader| *leader != core.config.id)
}

async fn pass_on(core: &Core, leader: u64, forward: &Forward) -> Result<Forwarded, Unserved> {
    let unavailable = |why: String| Unserved::Unavailable(format!("member {leader} leads: {why}"));
    let peer = core.roster().members.remove(&leader).ok_or_else(|| unavailable("this member does not know its address".to_owned()))?;
    let mut client = core.peers.service(leader, &peer).map_err(|e| unavailable(with_causes(&e)))?;
    let mut request = tonic::Request::new(pack(forward).map_err(|e| unavailable(with_causes(&e)))?);
    request.metadata_mut().insert(FORWARDED_HEADER, MetadataValue::from_static("1"));
    match tokio::time::timeout(FORWARD_TIMEOUT, client.call(request)).await {
        Ok(Ok(reply)) => unpack(reply.get_ref()).map_err(|e| unavailable(with_causes(&e))),
        Ok(Err(status)) => Err(unavailable(status_text(&status))),
        Err(_) => Err(unavailable("no answer in time".to_owned())),
    }
}

async fn answer_here(core: &Arc<Core>, request: Request) -> Result<Answer, Refusal> {
    if let Request::ChangeMembers(order) = request {
        return membership::change(core, order).await;
    }
    if let Request::RenewLease { name, token, holder, user } = &request {
        return leasing::renew(core, name, *token, holder, user.as_ref()).await;
    }
    core.reads.pass().await.map_err(unserved)?;
    if let Some(answer) = as_applied(core, &request) {
        return answer;
    }
    match request {
        Request::Members => Ok(Answer::Status(status(core))),
        Request::QueryAudit { filter, after, limit, by } => auditing::query(core, filter, after, limit, by).await,
        Request::ExportAudit { filter, after, end } => auditing::export(core, filter, after, end).await,
        Request::ListLeases => Ok(Answer::Leases(leasing::list(core))),
        Request::ListRevocations => Ok(revocations(core)),
        // No stale answer: an outdated state must not decide what somebody may do.
        Request::StandingOf { by, login_tenants, about } => {
            Ok(Answer::Standing(Box::new(core.agreed.ledger().standing_of(&by, &login_tenants, &about))))
        }
        Request::TokenRecord { id } => Ok(Answer::TokenRecord(core.agreed.ledger().access_token(id).cloned().map(Box::new))),
        Request::ListAdmissions => Ok(Answer::Admissions(core.leading.waiting_nodes.status(&core.agreed.ledger()))),
        Request::ListKeys => Ok(Answer::Keyring(rotation::keyring_status(&core.agreed.ledger(), &core.leading.keys_held))),
        // A reason that concerns every claim takes precedence over the latest refusal.
        Request::RefusedClaim { id } => match core.disk_full_refusal(Urgency::New) {
            Some(refusal) => Err(refusal),
            None => Ok(Answer::RefusedClaim(core.leading.refused_claims.of(id))),
        },
        Request::GetAllocation { .. }
        | Request::GetAllocations { .. }
        | Request::ListAllocations { .. }
        | Request::ListNodes
        | Request::GetNodes { .. }
        | Request::SampleNodes { .. }
        | Request::CheckSubmission { .. }
        | Request::CheckDag { .. }
        | Request::GetDag { .. }
        | Request::ListDags { .. }
        | Request::ListTenants
        | Request::ListVClusters
        | Request::ListReservations
        | Request::ListSessions
        | Request::GetVniPool
        | Request::ListDomains { .. }
        | Request::ListServices { .. }
        | Request::LookupService { .. }
        | Request::GetUsage { .. }
        | Request::GetLimits
        | Request::GetTasks { .. }
        | Request::ListRoles
        | Request::ListTenantMembers { .. }
        | Request::ListProjects { .. }
        | Request::ListTokens { .. }
        | Request::EndedWork { .. }
        | Request::AdvanceLane { .. }
        | Request::Stale(_)
        | Request::AsOperator { .. }
        | Request::Command(_)
        | Request::Submit { .. }
        | Request::Claims(_)
        | Request::AcquireLease { .. }
        | Request::RenewLease { .. }
        | Request::VerifyAudit { .. }
        | Request::RecordAccess(_)
        | Request::ChangeMembers(_)
        | Request::RenewCertificate { .. }
        | Request::StateHash
        | Request::Backup
        | Request::Status => Err(Refusal::Malformed { why: "members do not forward this request".to_owned() }),
    }
}

/// The answer from this member's applied state, if the query is about that.
fn as_applied(core: &Core, request: &Request) -> Option<Result<Answer, Refusal>> {
    // The call reads the ledger as well: never make it while holding the same lock.
    let now = core.timekeeper.time();
    let ledger = core.agreed.ledger();
    Some(match request {
        Request::GetAllocation { key } => {
            let found = ledger.find(key).cloned();
            drop(ledger);
            found.map(|found| Answer::Allocation(Box::new(Arc::unwrap_or_clone(found))))
        }
        Request::GetAllocations { keys, node } => {
            let mut found: Vec<_> = keys.iter().take(ALLOCATIONS_ASKED_MAX).map(|key| ledger.find(key).cloned()).collect();
            drop(ledger);
            if let Some(node) = node {
                found = keys.iter().zip(found).map(|(key, found)| own::restricted(found, key, node)).collect();
            }
            Ok(Answer::Allocations(bounded_outcomes(found, OUTCOMES_BYTES_MAX)))
        }
        Request::ListAllocations { uid, states, limit, before, filter } => {
            let limit = if *limit == 0 { LIST_MAX } else { ALLOCATIONS_MAX.min(*limit) } as usize;
            // One more than requested, to see whether there are more.
            let mut found = ledger.list(*uid, states, limit + 1, *before, filter);
            drop(ledger);
            let all = found.len();
            found.truncate(limit);
            let allocations = bounded(found);
            let more = allocations.len() < all;
            Ok(Answer::AllocationPage { allocations, more })
        }
        Request::ListNodes => {
            let nodes: Vec<_> = ledger.nodes().cloned().collect();
            drop(ledger);
            Ok(Answer::Nodes(nodes.iter().map(|n| (**n).clone()).collect()))
        }
        Request::GetNodes { names } => {
            let nodes: Vec<_> = names.iter().take(NODES_ASKED_MAX).filter_map(|name| ledger.node(name).cloned()).collect();
            drop(ledger);
            Ok(Answer::Nodes(nodes.iter().map(|n| (**n).clone()).collect()))
        }
        Request::SampleNodes { count } => {
            let ready = ledger.nodes().filter(|node| node.state == NodeState::Ready);
            let sampled: Vec<_> = ready.cloned().choose_multiple(&mut rand::rng(), (*count).min(NODES_SAMPLED_MAX) as usize);
            drop(ledger);
            Ok(Answer::Nodes(sampled.iter().map(|n| (**n).clone()).collect()))
        }
        Request::CheckSubmission { spec, owner, login_tenants } => {
            ledger.admits_submission(spec, owner, login_tenants, now).map(|()| Answer::Done { revision: ledger.revision() })
        }
        Request::CheckDag { owner, dag, login_tenants } => {
            ledger.admits_dag(owner, dag, login_tenants, now).map(|()| Answer::Done { revision: ledger.revision() })
        }
        Request::GetDag { key } => ledger.find_dag(key).map(|dag| Answer::Dag(Box::new(ledger.dag_status(dag)))),
        Request::ListDags { filter, limit, before } => {
            let limit = if *limit == 0 { LIST_MAX } else { LIST_MAX.min(*limit) } as usize;
            // One more than requested, to see whether there are more.
            let mut dags = ledger.list_dags(filter, limit + 1, *before);
            let more = dags.len() > limit;
            dags.truncate(limit);
            Ok(Answer::DagPage { dags, more })
        }
        Request::ListTenants => Ok(Answer::Tenants(ledger.tenant_statuses())),
        Request::ListTenantMembers { tenant } => ledger.tenant_members(tenant).map(Answer::TenantMembers),
        Request::ListProjects { tenant } => ledger.projects_of(tenant).map(Answer::Projects),
        Request::ListRoles => Ok(Answer::Roles(ledger.role_bindings().cloned().collect())),
        Request::ListTokens { account } => Ok(Answer::Tokens(ledger.access_tokens(account.as_ref()))),
        Request::ListVClusters => Ok(Answer::VClusters(ledger.vcluster_statuses())),
        Request::ListReservations => Ok(Answer::Reservations(ledger.reservations().map(|r| Reservation::clone(r)).collect())),
        Request::ListSessions => Ok(Answer::Sessions(ledger.sessions().cloned().collect())),
        Request::GetVniPool => Ok(Answer::VniPool(ledger.vni_pool_status())),
        Request::GetUsage { of, days } => ledger.usage_report(of, *days, now).map(|report| Answer::Usage(Box::new(report))),
        Request::GetLimits => Ok(Answer::Limits(ledger.limits(now))),
        Request::GetTasks { id, which } => ledger.task_states(*id, *which).map(|states| Answer::Tasks(Box::new(states))),
        Request::ListDomains { tenants, name } => {
            let found = ledger.domain_statuses(tenants.as_deref(), name.as_deref(), crate::clock::now());
            match name {
                Some(name) if found.is_empty() => Err(Refusal::NoSuchDomain { name: name.clone() }),
                Some(_) | None => Ok(Answer::Domains(found)),
            }
        }
        Request::ListServices { tenants } => {
            // One more than returned, to see whether there are more.
            let mut services = ledger.services(tenants.as_deref(), SERVICES_MAX + 1);
            let more = services.len() > SERVICES_MAX;
            services.truncate(SERVICES_MAX);
            Ok(Answer::Services { services, more })
        }
        Request::LookupService { name, tenants } => {
            let mut endpoints = ledger.endpoints(name, tenants.as_deref(), SERVICES_MAX + 1);
            let more = endpoints.len() > SERVICES_MAX;
            endpoints.truncate(SERVICES_MAX);
            if endpoints.is_empty() {
                Err(Refusal::NoSuchService { name: name.clone() })
            } else {
                Ok(Answer::Endpoints { endpoints, more })
            }
        }
        Request::EndedWork { after, limit } => {
            let status = ledger.ends_status();
            let limit = ENDED_WORK_MAX.min(*limit) as usize;
            let found: Vec<Arc<EndedWork>> = ledger.ended_work_after(*after).take(limit).cloned().collect();
            drop(ledger);
            let EndsStatus { accounted, ended, waiting, dropped } = status;
            Ok(Answer::EndedWork(Box::new(EndedWorkPage { work: bounded_work(&found), accounted, ended, waiting, dropped })))
        }
        _ => return None,
    })
}

/// As many as fit in one page, and one at least.
fn bounded_work(found: &[Arc<EndedWork>]) -> Vec<EndedWork> {
    let mut bytes = 0;
    let fits = found.iter().enumerate().take_while(|(place, work)| {
        bytes += ended_work_bytes(work);
        *place == 0 || bytes <= ENDED_WORK_BYTES_MAX
    });
    fits.map(|(_, work)| EndedWork::clone(work)).collect()
}

/// The outcomes of the first point reads, as many as fit, and one at least.
fn bounded_outcomes(mut found: Vec<Result<Arc<Allocation>, Refusal>>, bytes_max: usize) -> Vec<Result<Arc<Allocation>, Refusal>> {
    let mut bytes = 0;
    let fits = found.iter().enumerate().take_while(|(place, outcome)| {
        bytes += match outcome {
            Ok(allocation) => allocation_bytes(allocation),
            // A refusal is about as long as the key, with at most 8 candidates.
            Err(_) => 0,
        };
        *place == 0 || bytes <= bytes_max
    });
    let fits = fits.count();
    found.truncate(fits);
    found
}

/// An answer from this member alone, with its age. The age is read first, because later changes can
/// only make the state newer.
fn stale(core: &Core, request: &Request) -> Result<Answer, Refusal> {
    let age_ms = millis(core.silence());
    let unfit = || Err(Refusal::Malformed { why: "this query has no stale answer".to_owned() });
    let answer = as_applied(core, request).unwrap_or_else(unfit)?;
    Ok(Answer::Stale { age_ms, answer: Box::new(answer) })
}

/// As many as fit in one message.
fn bounded(found: Vec<Arc<Allocation>>) -> Vec<Allocation> {
    let mut bytes = 0;
    let fits = found.iter().take_while(|a| {
        bytes += allocation_bytes(a);
        bytes <= ANSWER_BYTES_MAX
    });
    fits.map(|a| (**a).clone()).collect()
}

async fn make_backup(core: &Arc<Core>) -> Result<Answer, Refusal> {
    let made = backup::make(core).await.map_err(|e| Refusal::NoBackup { why: with_causes(&e) })?;
    let (revision, audit_records) = (made.about.revision, made.about.audit.seq);
    Ok(Answer::Backup { name: made.name, url: core.config.backup.clone(), revision, audit_records })
}

/// Computed outside the serving tasks, because a large state takes a while. The copy shares all
/// entries.
async fn state_hash(core: &Arc<Core>) -> Result<Answer, Refusal> {
    let ledger = core.agreed.ledger().clone();
    let hashed = background::run("state-hash", move || ledger.hash().map(|hash| Answer::StateHash { revision: ledger.revision(), hash }));
    let why = match hashed.await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(error)) => with_causes(&error),
        Err(error) => error.to_string(),
    };
    Err(Refusal::Unavailable { why })
}

fn status(core: &Core) -> QuorumStatus {
    let metrics = core.raft.metrics().borrow().clone();
    let leads = metrics.current_leader == Some(core.config.id);
    let roster = Roster::of(&metrics.membership_config);
    let shortages = core.shortages();
    let members = roster.members.iter().map(|(id, peer)| {
        let is_leader = metrics.current_leader == Some(*id);
        let this = *id == core.config.id;
        let votes = roster.has_vote(*id);
        let replicated = metrics.replication.as_ref().and_then(|r| r.get(id)).copied().flatten().map(|id| id.index);
        let matched = if this { metrics.last_log_index } else { replicated };
        let alive = if votes { "follower" } else { "learner" };
        let standing = if is_leader {
            "leader"
        } else if this {
            alive
        } else if leads {
            let unreachable = core.peers.silence(*id).is_none_or(|s| s > UNREACHABLE_AFTER);
            if unreachable { "unreachable" } else { alive }
        } else {
            "unknown"
        };
        let (service, raft) = (peer.service.clone(), peer.raft.clone());
        let level = if this { Some(core.config.level_max) } else { core.leading.levels.of(*id).filter(|_| leads) };
        let certificate_until =
            if this { Some(core.identity.credentials.until()) } else { core.leading.certificate_ends.of(*id).filter(|_| leads) };
        let shortage = shortages.get(id).cloned();
        MemberStatus { id: MemberId(*id), service, raft, votes, matched, level, certificate_until, shortage, standing: standing.to_owned() }
    });
    let members = members.collect();
    // The call reads the ledger as well.
    let now = core.timekeeper.time();
    let ledger = core.agreed.ledger();
    QuorumStatus {
        cluster: core.config.cluster.clone(),
        member: MemberId(core.config.id),
        leader: metrics.current_leader.map(MemberId),
        term: metrics.current_term,
        generation: ledger.generation(),
        revision: ledger.revision(),
        members,
        nodes: ledger.node_counts(),
        allocations: ledger.allocation_counts(),
        audit_records: ledger.audit_head().seq,
        at: crate::clock::now(),
        refused: core.identity.credentials.refused().counts(),
        level: ledger.level(),
        awaited: ledger.placing_waits_for(),
        notified: core.notify.status(&ledger),
        held_back: core.counts.held_back.load(Ordering::Relaxed),
        clocks: core.timekeeper.alarm(),
        ended: ledger.ended_status(now),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::test_builders;
    use uuid::Uuid;

    #[test]
    fn the_answer_to_point_reads_is_bounded_and_has_one_outcome_at_least() {
        let allocation = |id| Arc::new(test_builders::allocation(AllocationId(Uuid::from_u128(id))));
        let unknown = || Err(Refusal::NoSuchAllocation { key: "42".to_owned(), forgotten: None });
        let found = vec![unknown(), Ok(allocation(1)), Ok(allocation(2)), unknown(), Ok(allocation(3))];
        let bytes = allocation_bytes(&allocation(1));
        assert_eq!(bounded_outcomes(found.clone(), 3 * bytes), found);
        assert_eq!(bounded_outcomes(found.clone(), 2 * bytes), found[..4]);
        assert_eq!(bounded_outcomes(found.clone(), bytes), found[..2]);
        assert_eq!(bounded_outcomes(found[1..].to_vec(), 0), found[1..2], "one at least, however large");
        assert_eq!(bounded_outcomes(Vec::new(), 0), []);
    }
}
