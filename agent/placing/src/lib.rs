//! The scheduler's role: for each vCluster whose lease this agent holds, it proposes claims from
//! its view of the cluster.
//!
//! A proposal may lose: the quorum refuses a claim that no longer fits, and the next round sees the
//! reason.
//!
//! ```text
//!   this agent holds a queue's lease ───▶ every round: claims for the allocations that wait in it
//!   another agent holds it ─────────────▶ under that lease's token: a new allocation that fits while nobody waits
//! ```
//!
//! So a submission that can be placed at once costs one commit, on whichever agent it is made. Only
//! the lease's holder orders a queue: if anybody waits in it, other agents leave the submission to
//! the holder. A refusal in one queue ends the round of that queue only. An agent holds no lease
//! unless its gossip sees at least half of the Ready nodes alive, and none for a while after a plan
//! of it broke (`breaks`).

mod breaks;
mod claiming;
mod counts;
mod kept;
mod newcomers;
mod pace;

pub use counts::{ClaimResult, Rounds};
pub use newcomers::Newcomers;

use breaks::Breaks;
use claiming::Claiming;
use futures::StreamExt;
use kept::Kept;
use lattice_ledger::{Action, PreemptFor, scheduler_lease};
use lattice_membership::Membership;
use lattice_membership::cluster::Cluster;
use lattice_membership::quorum_clock::QuorumClock;
use lattice_model::checkpoint::DEADLINE_MS_DEFAULT;
use lattice_model::{Allocation, AllocationId, AllocationSpec, Claim, DEFAULT_VCLUSTER, NodeId, NodeState, Principal, Revision, Timestamp};
use lattice_quorum_client::wire::{Answer, Claimed, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use lattice_scheduler::{PreemptedFor, View};
use newcomers::Newcomer;
use pace::Pace;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

/// In a larger cluster, checking all nodes for one submission costs more than the commit that it
/// saves.
const NEWCOMER_NODES_MAX: usize = 1000;
/// How long a submission waits at most to be planned, after others and with its own plan.
const NEWCOMER_MAX: Duration = Duration::from_millis(500);
/// How long a request with claims may take.
const CLAIMS_TIMEOUT: Duration = Duration::from_secs(3);
/// After a plan that took this long or longer, the scheduler rests for the same time. A large cluster
/// changes all the time: so the scheduler uses at most half a processor.
const COSTLY_PLAN: Duration = Duration::from_millis(25);
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(1);
/// How long a round waits at most until the watch shows the claims of the one before.
const UNSEEN_MAX: Duration = Duration::from_secs(2);
/// Lease requests in flight at once.
const LEASE_REQUESTS_MAX: usize = 16;

/// A lease, as the quorum last reported it.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    token: u64,
    /// When the lease ends without renewal, counted from when it was requested.
    until: Instant,
    ours: bool,
}

/// The known leases of schedulers, by vCluster.
pub type Leases = BTreeMap<String, Lease>;

/// What the API asks of this agent's scheduler.
#[derive(Clone)]
pub struct Placing {
    pub leases: watch::Receiver<Leases>,
    pub cluster: watch::Receiver<Arc<Cluster>>,
    pub membership: Membership,
    pub rounds: Rounds,
    pub newcomers: Newcomers,
}

impl Placing {
    /// Whether this agent holds the lease of the default queue. Its holder is also the checkpoint
    /// broker.
    pub fn leads(&self) -> bool {
        leads(&self.leases.borrow(), Instant::now())
    }

    /// A claim to submit a new allocation with. `None` unless the token of its queue's lease is
    /// known, the allocation fits now, and nobody waits in the queue. Of very many at once, some are left to the
    /// scheduler's rounds.
    pub async fn newcomer(&self, id: AllocationId, spec: &AllocationSpec, owner: &Principal) -> Option<Claim> {
        // What must wait anyway does not wait for its turn too.
        newcomer_token(&self.cluster.borrow(), &self.leases.borrow(), spec, Instant::now())?;
        let newcomer = || {
            let cluster = self.cluster.borrow();
            let lease_token = newcomer_token(&cluster, &self.leases.borrow(), spec, Instant::now())?;
            let view = cluster.with_gossip(self.membership.gossiped());
            let allocation = Allocation::submitted(id, spec.clone(), owner.clone(), lattice_agent_common::clock::now());
            Some(Newcomer { allocation, lease_token, view })
        };
        match tokio::time::timeout(NEWCOMER_MAX, self.newcomers.place(newcomer)).await {
            Ok(Ok(claim)) => claim,
            Ok(Err(error)) if error.is_panic() => {
                self.rounds.record_failure();
                tracing::error!(allocation = %id, "a plan of the scheduler broke; this work is submitted without a claim");
                None
            }
            // The agent is stopping, or others took the time.
            Ok(Err(_)) | Err(_) => None,
        }
    }
}

/// The token of a queue's lease, if this agent holds it.
pub fn own_token(leases: &Leases, queue: &str, now: Instant) -> Option<u64> {
    leases.get(queue).filter(|lease| lease.ours && now < lease.until).map(|lease| lease.token)
}

/// Whether the lease of the default queue is this agent's.
fn leads(leases: &Leases, now: Instant) -> bool {
    own_token(leases, DEFAULT_VCLUSTER, now).is_some()
}

/// The token to claim nodes with for a new allocation, unless it must wait.
fn newcomer_token(cluster: &Cluster, leases: &Leases, spec: &AllocationSpec, now: Instant) -> Option<u64> {
    let queue = cluster.queue_named(&spec.vcluster);
    let token = leases.get(queue).filter(|lease| now < lease.until)?.token;
    // The quorum knows what it depends on and whether it is time for it to begin, and makes the lanes of a task
    // group and the replicas of a service.
    let has_conditions = spec.hold || !spec.depends_on.is_empty() || spec.begin().is_some();
    let gets_none_yet = has_conditions || spec.tasks.is_some() || spec.scaling.is_some();
    let waits = gets_none_yet || !cluster.fresh || cluster.nodes.len() > NEWCOMER_NODES_MAX || cluster.somebody_waits(queue);
    (!waits).then_some(token)
}

/// Places work until `stop`, then releases the leases. `held` publishes the known leases.
pub async fn run(me: NodeId, quorum: QuorumClient, placing: Placing, lease_ms: u64, held: watch::Sender<Leases>, stop: CancellationToken) {
    let ttl = Duration::from_millis(lease_ms);
    let Placing { mut cluster, membership, rounds, newcomers, .. } = placing;
    let mut gossip = membership.watch();
    let mut leases = Leases::new();
    // Queues whose lease was requested since the last tick.
    let mut asked = BTreeSet::new();
    let mut renew = tokio::time::interval(ttl / 3);
    let mut pace = Pace::default();
    let mut kept = Kept::default();
    let mut breaks = Breaks::default();
    let clock = QuorumClock::default();
    // The revision of the last claim. Until this time, no plan is made before the watch shows it.
    let mut unseen = (Revision(0), Instant::now());
    loop {
        let changed = tokio::select! {
            () = stop.cancelled() => break,
            _ = renew.tick() => {
                asked.clear();
                newcomers.forget_unless_used();
                Ok(())
            }
            changed = cluster.changed() => changed,
            changed = gossip.changed() => changed,
            () = pace.wait() => Ok(()),
        };
        if changed.is_err() {
            break;
        }
        if breaks.is_pausing(Instant::now()) || is_apart(&cluster.borrow(), &membership.alive()) {
            asked.clear();
            held.send_replace(Leases::new());
            rounds.set_depths(&BTreeMap::new());
            kept.forget();
            release_all(&me, &quorum, std::mem::take(&mut leases)).await;
            continue;
        }
        let queues = cluster.borrow().queues();
        if !queues.is_subset(&asked) {
            let wanted = queues.difference(&asked).cloned().collect();
            request_leases(&me, &quorum, wanted, lease_ms, &mut leases).await;
            asked.clone_from(&queues);
        }
        let now = Instant::now();
        leases.retain(|name, lease| queues.contains(name) && now < lease.until);
        held.send_replace(leases.clone());
        let tokens: BTreeMap<&str, u64> = leases.iter().filter(|(_, l)| l.ours).map(|(name, l)| (name.as_str(), l.token)).collect();
        if tokens.is_empty() {
            kept.forget();
            rounds.set_depths(&BTreeMap::new());
            continue;
        }
        let frozen = {
            gossip.mark_unchanged();
            let now = cluster.borrow_and_update();
            // A plan without what the last one claimed would claim it again.
            let is_behind = now.revision < unseen.0 && Instant::now() < unseen.1;
            if !now.fresh || is_behind {
                continue;
            }
            now.with_gossip(membership.gossiped())
        };
        rounds.set_depths(&depths(&frozen, &tokens));
        let due = pace.begin(&frozen, tokens, now);
        if due.is_empty() {
            continue;
        }
        let now = clock.now(&quorum).await;
        let round = propose((frozen, now), &due, &quorum, &cluster, &rounds, &mut kept).await;
        if let Some(error) = &round.broken {
            rounds.record_failure();
            let pause = breaks.begin(Instant::now());
            tracing::error!(error, ?pause, "a plan of the scheduler broke; this agent leaves the queues to others for a while");
            // The leases are released with the next tick.
            renew.reset_immediately();
            continue;
        }
        breaks.end();
        if !round.lost.is_empty() {
            leases.retain(|name, _| !round.lost.contains(name));
            held.send_replace(leases.clone());
        }
        unseen = (round.granted, Instant::now() + UNSEEN_MAX);
        if round.planning >= COSTLY_PLAN {
            tokio::time::sleep(round.planning.min(REST_MAX)).await;
        }
    }
    held.send_replace(Leases::new());
    release_all(&me, &quorum, leases).await;
}

/// Whether this agent's gossip sees less than half of the Ready nodes alive. It would place nothing
/// on the others, so it leaves the leases to agents that see more.
fn is_apart(cluster: &Cluster, alive: &BTreeSet<NodeId>) -> bool {
    let ready = || cluster.nodes.values().filter(|node| node.state == NodeState::Ready);
    ready().filter(|node| alive.contains(&node.id)).count() * 2 < ready().count()
}

/// Releases the leases that this agent holds.
async fn release_all(me: &NodeId, quorum: &QuorumClient, leases: Leases) {
    let mut releases = Vec::new();
    for (name, lease) in leases.into_iter().filter(|(_, lease)| lease.ours) {
        releases.push(release(me, quorum, name, lease.token));
    }
    futures::stream::iter(releases).buffer_unordered(LEASE_REQUESTS_MAX).collect::<()>().await;
}

/// Releases one lease; if that fails, the lease expires by itself.
async fn release(me: &NodeId, quorum: &QuorumClient, queue: String, token: u64) {
    let release = Request::from(Action::ReleaseLease { name: scheduler_lease(&queue), token, holder: me.clone(), user: None });
    let _ = quorum.call(&release, Duration::from_millis(500)).await;
}

/// Renews or acquires the leases of these queues.
async fn request_leases(me: &NodeId, quorum: &QuorumClient, queues: Vec<String>, lease_ms: u64, leases: &mut Leases) {
    let mut asking = Vec::new();
    for name in queues {
        let ours = leases.get(&name).filter(|l| l.ours).map(|l| l.token);
        asking.push(request_lease(me, quorum, name, ours, lease_ms));
    }
    let mut answers = futures::stream::iter(asking).buffer_unordered(LEASE_REQUESTS_MAX);
    while let Some((name, asked_at, kept)) = answers.next().await {
        record_lease(leases, name, asked_at + Duration::from_millis(lease_ms), kept);
    }
}

/// Records the result of a lease request that was made one lease's length before `until`.
fn record_lease(leases: &mut Leases, name: String, until: Instant, result: LeaseResult) {
    match result {
        LeaseResult::Ours(token) => drop(leases.insert(name, Lease { token, until, ours: true })),
        LeaseResult::Others(Some(token)) => drop(leases.insert(name, Lease { token, until, ours: false })),
        LeaseResult::Others(None) => drop(leases.remove(&name)),
        LeaseResult::Unknown => {}
    }
}

/// The result of a lease request: the holder, and the lease's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeaseResult {
    Ours(u64),
    /// `None`: the quorum did not send the token.
    Others(Option<u64>),
    /// The quorum did not answer.
    Unknown,
}

/// Renews or acquires one queue's lease; returns the queue, when the request was made, and the
/// result.
async fn request_lease(
    me: &NodeId,
    quorum: &QuorumClient,
    queue: String,
    held: Option<u64>,
    ttl_ms: u64,
) -> (String, Instant, LeaseResult) {
    let asked_at = Instant::now();
    let kept = renew_or_acquire(me, quorum, &scheduler_lease(&queue), held, ttl_ms).await;
    (queue, asked_at, kept)
}

/// Renews the lease, or acquires it if this agent holds none.
async fn renew_or_acquire(me: &NodeId, quorum: &QuorumClient, lease: &str, held: Option<u64>, ttl_ms: u64) -> LeaseResult {
    if let Some(token) = held {
        let renewal = Request::RenewLease { name: lease.to_owned(), token, holder: me.clone(), user: None };
        if let Some(kept) = renewed(&quorum.call(&renewal, Duration::from_millis(ttl_ms / 3)).await) {
            return kept;
        }
    }
    let request = Request::AcquireLease { name: lease.to_owned(), holder: me.clone(), ttl_ms, user: None };
    acquired(quorum.call(&request, Duration::from_millis(ttl_ms / 3)).await, lease)
}

/// The result of a renewal; `None`: the lease must be acquired again.
fn renewed(answer: &Result<Answer, CallError>) -> Option<LeaseResult> {
    match answer {
        Ok(Answer::Lease { token, .. }) => Some(LeaseResult::Ours(*token)),
        // The lease has ended, or the cluster's level has no renewal yet.
        Ok(_) | Err(CallError::Refused(_)) => None,
        Err(CallError::Unavailable { .. }) => Some(LeaseResult::Unknown),
    }
}

/// The result of a request to acquire a lease.
fn acquired(answer: Result<Answer, CallError>, lease: &str) -> LeaseResult {
    match answer {
        Ok(Answer::Lease { token, .. }) => LeaseResult::Ours(token),
        Ok(other) => {
            tracing::error!(?other, "the quorum answered a lease request with something else");
            LeaseResult::Unknown
        }
        Err(CallError::Refused(Refusal::LeaseHeld { token, .. })) => LeaseResult::Others(token),
        Err(CallError::Refused(Refusal::Held { .. })) => LeaseResult::Others(None),
        Err(error) => {
            tracing::debug!(%error, lease, "a scheduler's lease was not acquired");
            LeaseResult::Unknown
        }
    }
}

/// How many allocations wait in each of these queues.
fn depths<'a>(view: &View, tokens: &BTreeMap<&'a str, u64>) -> BTreeMap<&'a str, u64> {
    let mut depths: BTreeMap<&str, u64> = tokens.keys().map(|name| (*name, 0)).collect();
    for allocation in view.allocations.values().filter(|a| a.waits()) {
        if let Some(depth) = depths.get_mut(view.queue_of(allocation)) {
            *depth += 1;
        }
    }
    depths
}

/// What follows from a round.
#[derive(Default)]
struct Round {
    /// The queues whose lease this agent has lost.
    lost: BTreeSet<String>,
    /// The revision of the last claim that was granted.
    granted: Revision,
    /// How long the plan took.
    planning: Duration,
    /// Why there was no plan: the scheduler panicked.
    broken: Option<String>,
}

/// Proposes the claims of one round.
async fn propose(
    (view, now): (View, Timestamp),
    tokens: &BTreeMap<&str, u64>,
    quorum: &QuorumClient,
    cluster: &watch::Receiver<Arc<Cluster>>,
    rounds: &Rounds,
    kept: &mut Kept,
) -> Round {
    let began = Instant::now();
    let ((claims, preemptions), view) = match planned((view, now), tokens, kept).await {
        Ok(planned) => planned,
        // Without a panic, the agent is stopping.
        Err(error) => return Round { broken: error.is_panic().then(|| error.to_string()), ..Round::default() },
    };
    let planning = began.elapsed();
    let mut claiming = Claiming::of(view, claims);
    while let Some(request) = claiming.next_request() {
        let outcomes = call(quorum, &request).await;
        for (queue, result) in claiming.take(request, outcomes) {
            rounds.record_claim(queue, result);
        }
    }
    let Claiming { lost, refused, mut is_answered, granted, .. } = claiming;
    for (queue, preempted) in preemptions {
        let Some(lease_token) = tokens.get(queue.as_str()) else { continue };
        // Nothing is preempted by a view that was outdated, or for claims that would get no answer.
        if !is_answered || lost.contains(&queue) || refused.contains(queue.as_str()) {
            continue;
        }
        is_answered = preempt(quorum, *lease_token, preempted).await;
    }
    rounds.record_duration(began.elapsed());
    if !refused.is_empty() {
        // The view that the round was made from is outdated: wait for a change, or a short random
        // time.
        let mut cluster = cluster.clone();
        cluster.mark_unchanged();
        let pause = Duration::from_millis(rand::random_range(20..80));
        let _ = tokio::time::timeout(pause, cluster.changed()).await;
    }
    Round { lost, granted, planning, broken: None }
}

/// Claims, and what is preempted with the queue that it is preempted for.
type Proposals = (Vec<Claim>, Vec<(String, PreemptedFor)>);

/// What the plan of this view and time has to propose with these leases, and the view as the state has it. A plan
/// takes up to half a second of a processor in a large cluster, so it runs beside the other tasks. The
/// state follows to the view: it takes the records that differ from those of the last plan. The view itself
/// is dropped then: as long as it exists, the watch has to copy the maps that it shares with it.
async fn planned<'k>(
    (view, now): (View, Timestamp),
    tokens: &BTreeMap<&str, u64>,
    kept: &'k mut Kept,
) -> Result<(Proposals, &'k View), JoinError> {
    let tokens: BTreeMap<String, u64> = tokens.iter().map(|(queue, token)| ((*queue).to_owned(), *token)).collect();
    let planning = kept.with(move |state| {
        state.apply(view);
        let plan = lattice_scheduler::plan(state, now);
        (plan.claims(|queue| tokens.get(queue).copied()), plan.preemptions())
    });
    let (proposals, state) = planning.await?;
    Ok((proposals, state.view()))
}

/// Proposes these claims. One outcome for each; the last ones are missing if the quorum gave none.
async fn call(quorum: &QuorumClient, claims: &[Claim]) -> Vec<Result<Claimed, CallError>> {
    match quorum.call(&Request::Claims(claims.to_vec()), CLAIMS_TIMEOUT).await {
        Ok(Answer::Claims(outcomes)) => outcomes.into_iter().map(|outcome| outcome.map_err(CallError::from)).collect(),
        Ok(other) => {
            let why = format!("the quorum answered claims with something else: {other:?}");
            vec![Err(CallError::from(Refusal::Unavailable { why }))]
        }
        Err(error) => vec![Err(error)],
    }
}

/// Asks the quorum to have work give its nodes back to other work; returns whether it answered. If it
/// refuses, or does not answer, a later round asks again if that is still right.
async fn preempt(quorum: &QuorumClient, lease_token: u64, preempted: PreemptedFor) -> bool {
    let PreemptedFor { beneficiary, victims } = preempted;
    let count = victims.len();
    let order = PreemptFor { beneficiary, victims, lease_token, deadline_ms: DEADLINE_MS_DEFAULT };
    let answer = quorum.call(&Request::from(Action::PreemptFor(order)), Duration::from_secs(2)).await;
    match &answer {
        Ok(_) => tracing::info!(%beneficiary, victims = count, "work is preempted for other work"),
        Err(error) => tracing::info!(%beneficiary, victims = count, %error, "no work was preempted for it"),
    }
    !matches!(answer, Err(CallError::Unavailable { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::test_builders::{self, node};
    use lattice_model::{AllocationState, Dependency, DependencyCondition, Drain, Scaling, SchedulerKind, TaskGroup, VCluster};

    pub(crate) const OTHER: &str = "gpu";

    pub(crate) fn id(n: u64) -> AllocationId {
        format!("00000000-0000-4000-8000-{n:012x}").parse().unwrap()
    }

    pub(crate) fn vcluster(name: &str) -> VCluster {
        VCluster {
            name: name.to_owned(),
            scheduler: SchedulerKind::InteractiveFifo,
            tenant: String::new(),
            nodes: 0,
            weights: None,
            cycle_interval_ms: 0,
            borrows: false,
            lend_ms: None,
            created_by: String::new(),
            created_at: Timestamp(0),
            revision: Revision(1),
        }
    }

    pub(crate) fn pending(n: u64, label: &str) -> Allocation {
        let mut allocation = test_builders::allocation(id(n));
        label.clone_into(&mut test_builders::spec_of(&mut allocation).vcluster);
        allocation
    }

    /// A cluster of one ready node with the queue [`OTHER`] besides the default one.
    pub(crate) fn cluster(allocations: Vec<Allocation>) -> Cluster {
        Cluster {
            nodes: [("n1".parse().unwrap(), node("n1", NodeState::Ready))].into(),
            vclusters: [(OTHER.to_owned(), vcluster(OTHER))].into(),
            allocations: allocations.into_iter().map(|a| (a.id, a)).collect(),
            fresh: true,
            ..Cluster::default()
        }
    }

    fn scaling() -> Scaling {
        Scaling { replicas_min: 1, replicas_max: 2, policy: None, drain: Drain::default() }
    }

    fn refused(refusal: Refusal) -> Result<Answer, CallError> {
        Err(CallError::Refused(refusal))
    }

    fn unanswered() -> Result<Answer, CallError> {
        Err(CallError::Unavailable { why: "n1: no answer in time".to_owned() })
    }

    fn held_by_another(token: Option<u64>) -> Refusal {
        Refusal::LeaseHeld { name: scheduler_lease(OTHER), holder: "n2".parse().unwrap(), user: None, token }
    }

    fn stale_lease() -> Refusal {
        Refusal::StaleLease { name: scheduler_lease(OTHER), token: 7 }
    }

    #[test]
    fn an_agent_that_sees_less_than_half_of_the_ready_nodes_is_apart() {
        let states = [("n1", NodeState::Ready), ("n2", NodeState::Ready), ("n3", NodeState::Ready), ("n4", NodeState::Down)];
        let nodes = |n: usize| states[..n].iter().map(|(id, state)| (id.parse().unwrap(), node(id, *state))).collect();
        let apart = |n, alive: &[&str]| {
            let cluster = Cluster { nodes: nodes(n), ..Cluster::default() };
            is_apart(&cluster, &alive.iter().map(|id| id.parse().unwrap()).collect())
        };
        assert!(apart(3, &["n1"]) && apart(4, &["n1", "n4"]));
        assert!(!apart(3, &["n1", "n3"]) && !apart(2, &["n1"]) && !apart(1, &["n1"]) && !apart(0, &[]));
    }

    #[test]
    fn only_the_living_lease_of_the_default_queue_makes_an_agent_the_broker() {
        let now = Instant::now();
        let lease = |ours, until| Lease { token: 7, until, ours };
        let later = now + Duration::from_millis(1);
        let of = |name: &str, lease| Leases::from([(name.to_owned(), lease)]);
        assert!(leads(&of(DEFAULT_VCLUSTER, lease(true, later)), now));
        assert_eq!(own_token(&of(OTHER, lease(true, later)), OTHER, now), Some(7));
        assert_eq!(own_token(&of(OTHER, lease(false, later)), OTHER, now), None);
        for leases in [
            Leases::new(),
            of(DEFAULT_VCLUSTER, lease(false, later)),
            of(DEFAULT_VCLUSTER, lease(true, now)),
            of(OTHER, lease(true, later)),
        ] {
            assert!(!leads(&leases, now), "{leases:?}");
        }
    }

    #[test]
    fn a_newcomer_uses_the_token_of_its_own_queue_whoever_holds_that_lease() {
        let now = Instant::now();
        let lease = |token, ours| Lease { token, until: now + Duration::from_secs(1), ours };
        let leases = Leases::from([(DEFAULT_VCLUSTER.to_owned(), lease(7, true)), (OTHER.to_owned(), lease(8, false))]);
        let token = |label| newcomer_token(&cluster(vec![]), &leases, &pending(1, label).spec, now);
        assert_eq!((token(OTHER), token(""), token("unknown")), (Some(8), Some(7), Some(7)));
    }

    #[test]
    fn a_newcomer_waits_behind_others_and_where_the_agent_knows_too_little() {
        let now = Instant::now();
        let until = now + Duration::from_secs(1);
        let leases = Leases::from([(DEFAULT_VCLUSTER.to_owned(), Lease { token: 7, until, ours: true })]);
        let spec = test_builders::spec();
        let token = |cluster: &Cluster| newcomer_token(cluster, &leases, &spec, now);
        assert_eq!(token(&cluster(vec![pending(2, OTHER)])), Some(7), "those of another queue do not count");
        assert_eq!(token(&cluster(vec![pending(2, "")])), None);
        assert_eq!(token(&Cluster { fresh: false, ..cluster(vec![]) }), None);
        let nodes = |n: usize| (0..n).map(|n| format!("n{n}")).map(|id| (id.parse().unwrap(), node(&id, NodeState::Ready))).collect();
        assert_eq!(token(&Cluster { nodes: nodes(NEWCOMER_NODES_MAX), ..cluster(vec![]) }), Some(7));
        assert_eq!(token(&Cluster { nodes: nodes(NEWCOMER_NODES_MAX + 1), ..cluster(vec![]) }), None);
        let held = AllocationSpec { hold: true, ..spec.clone() };
        assert_eq!(newcomer_token(&cluster(vec![]), &leases, &held, now), None);
        let depends_on = vec![Dependency { on: id(2), condition: DependencyCondition::Any }];
        assert_eq!(newcomer_token(&cluster(vec![]), &leases, &AllocationSpec { depends_on, ..spec.clone() }, now), None);
        let tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
        assert_eq!(newcomer_token(&cluster(vec![]), &leases, &AllocationSpec { tasks, ..spec.clone() }, now), None);
        let scaling = Some(Box::new(scaling()));
        assert_eq!(newcomer_token(&cluster(vec![]), &leases, &AllocationSpec { scaling, ..spec.clone() }, now), None);
        assert_eq!(newcomer_token(&cluster(vec![]), &leases, &spec, until), None, "the lease has ended");
        assert_eq!(newcomer_token(&cluster(vec![]), &Leases::new(), &spec, now), None);
    }

    #[test]
    fn a_lease_that_cannot_be_renewed_is_acquired_again_unless_nobody_answered() {
        assert_eq!(renewed(&Ok(Answer::Lease { token: 9, ttl_ms: 1 })), Some(LeaseResult::Ours(9)));
        assert_eq!(renewed(&refused(stale_lease())), None);
        assert_eq!(renewed(&Ok(Answer::Done { revision: Revision(1) })), None);
        assert_eq!(renewed(&unanswered()), Some(LeaseResult::Unknown));
    }

    #[test]
    fn a_lease_that_another_agent_holds_is_known_by_its_token() {
        let acquired = |answer| acquired(answer, "scheduler/gpu");
        assert_eq!(acquired(Ok(Answer::Lease { token: 9, ttl_ms: 1 })), LeaseResult::Ours(9));
        assert_eq!(acquired(refused(held_by_another(Some(5)))), LeaseResult::Others(Some(5)));
        assert_eq!(acquired(refused(held_by_another(None))), LeaseResult::Others(None));
        let hold =
            Refusal::Held { node: "n1".parse().unwrap(), kind: lattice_model::HoldKind::Drain, by: "ada".into(), reason: String::new() };
        assert_eq!(acquired(refused(hold)), LeaseResult::Others(None), "an agent on a drained node knows no token");
        assert_eq!(acquired(Ok(Answer::Done { revision: Revision(1) })), LeaseResult::Unknown);
        assert_eq!(acquired(refused(Refusal::Malformed { why: String::new() })), LeaseResult::Unknown);
        assert_eq!(acquired(unanswered()), LeaseResult::Unknown);
    }

    #[test]
    fn an_unknown_result_leaves_a_lease_as_it_was_and_a_lost_one_is_forgotten() {
        let (then, now) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let after = |kept| {
            let mut leases = Leases::from([(OTHER.to_owned(), Lease { token: 7, until: then, ours: true })]);
            record_lease(&mut leases, OTHER.to_owned(), now, kept);
            leases.remove(OTHER).map(|lease| (lease.token, lease.until, lease.ours))
        };
        assert_eq!(after(LeaseResult::Unknown), Some((7, then, true)));
        assert_eq!(after(LeaseResult::Ours(8)), Some((8, now, true)));
        assert_eq!(after(LeaseResult::Others(Some(8))), Some((8, now, false)));
        assert_eq!(after(LeaseResult::Others(None)), None);
    }

    #[test]
    fn a_queues_depth_is_counted_by_the_agent_with_its_lease() {
        let running = Allocation { state: AllocationState::Running, ..pending(4, "") };
        let held = Allocation { held: true, ..pending(5, "") };
        let mut group = pending(6, "");
        test_builders::spec_of(&mut group).tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
        let mut service = pending(7, "");
        test_builders::spec_of(&mut service).scaling = Some(Box::new(scaling()));
        let view = cluster(vec![pending(1, ""), pending(2, "unknown"), pending(3, OTHER), running, held, group, service]);
        assert_eq!(depths(&view, &[(DEFAULT_VCLUSTER, 7)].into()), [(DEFAULT_VCLUSTER, 2)].into());
        let both = [(DEFAULT_VCLUSTER, 7), (OTHER, 8)].into();
        assert_eq!(depths(&view, &both), [(DEFAULT_VCLUSTER, 2), (OTHER, 1)].into());
        assert_eq!(depths(&cluster(vec![]), &both), [(DEFAULT_VCLUSTER, 0), (OTHER, 0)].into(), "an empty queue is reported too");
    }
}
