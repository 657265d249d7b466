//! Histories of claims and leases, recorded while members are killed, stopped and lose their power, while their network
//! is cut, their clocks jump and their disks are slow: each must be linearizable, nothing acknowledged may be missing,
//! and afterwards every member has the same state and the same audit chain.
//!
//! Two schedulers race for the cores of the nodes, three other clients for three leases. `LATTICE_TEST_SEED` repeats a
//! run's faults and choices, but not its timing. `LATTICE_TEST_SECONDS` adds rounds with further seeds. A round is
//! short: an unanswered operation may take effect at any later time, and too many of them make the search too long.

use crate::harness::{Need, alone};
use crate::hosts::{TIMERS, between, on_hosts, others};
use lattice_lab::history::{Model, Operation, first_fault};
use lattice_lab::quorum::agents::{Agents, SIZE};
use lattice_lab::quorum::hosts::{Hosts, Party};
use lattice_lab::quorum::members::{Members, certificate};
use lattice_ledger::{Action, SCHEDULER_LEASE};
use lattice_model::claim::ClaimShare;
use lattice_model::{Allocation, AllocationId, AllocationSpec, AllocationState, Claim, Entrypoint, Node, NodeId, Principal, Resources};
use lattice_pki::identity::Role;
use lattice_quorum_client::wire::{Answer, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use uuid::Uuid;

const NODES: usize = 24;
const SCHEDULERS: usize = 2;
const HOLDERS: usize = 3;
const LEASES: usize = 3;
/// How long clients work and members fail.
const ROUND: Duration = Duration::from_secs(30);
/// How long a client waits for an answer; after that the result is unknown.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// A command that took longer may have been sent more than once.
const SENT_TWICE: Duration = Duration::from_millis(100);
/// Longer than any run: no lease expires.
const LEASE_MS: u64 = 3_600_000;
/// Snapshots are made, and sent to lagging members, during the run.
const LINES: &str = "snapshot_entries: 300\n";

pub fn trials() -> Vec<Trial> {
    vec![alone("histories::claims_and_leases_are_linearizable_under_faults", &[Need::Hosts], || {
        let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().unwrap());
        let first = number("LATTICE_TEST_SEED").unwrap_or_else(|| rand::rng().random());
        let lasts = Duration::from_secs(number("LATTICE_TEST_SECONDS").unwrap_or(0));
        let began = Instant::now();
        for round in 0.. {
            let seed = first.wrapping_add(round);
            eprintln!("LATTICE_TEST_SEED={seed}");
            on_hosts("histories", |o| LINES.clone_into(&mut o.member_lines), async |hosts, members| run(hosts, members, seed).await);
            if began.elapsed() >= lasts {
                break;
            }
        }
    })]
}

/// The claims on one node: at most `CLAIMS_PER_NODE`, one for each allocation, and none is released.
struct Cores;

#[derive(Clone, Debug)]
enum CoreAsk {
    Claim(AllocationId),
    Look(AllocationId),
}

#[derive(Clone, Debug)]
enum CoreAnswer {
    Claimed,
    /// The allocation has a claim already.
    NotPending,
    Conflict,
    /// The result of a read: with a claim or without.
    Seen(bool),
}

impl Model for Cores {
    type State = BTreeSet<AllocationId>;
    type Input = CoreAsk;
    type Output = CoreAnswer;

    fn initial() -> Self::State {
        BTreeSet::new()
    }

    fn step(held: &Self::State, input: &CoreAsk, output: Option<&CoreAnswer>) -> Option<Self::State> {
        let full = held.len() == CLAIMS_PER_NODE;
        let taken = |id: &AllocationId| held.iter().copied().chain([*id]).collect();
        match (input, output) {
            (CoreAsk::Claim(id), Some(CoreAnswer::Claimed)) => (!full && !held.contains(id)).then(|| taken(id)),
            // An earlier command claimed it, or the same command, whose first answer was lost.
            (CoreAsk::Claim(id), Some(CoreAnswer::NotPending)) => (held.contains(id) || !full).then(|| taken(id)),
            (CoreAsk::Claim(id), Some(CoreAnswer::Conflict)) => (full && !held.contains(id)).then(|| held.clone()),
            (CoreAsk::Claim(id), None) => Some(if full { held.clone() } else { taken(id) }),
            (CoreAsk::Look(id), Some(CoreAnswer::Seen(claimed))) => (held.contains(id) == *claimed).then(|| held.clone()),
            (CoreAsk::Look(_), None) => Some(held.clone()),
            (CoreAsk::Claim(_), Some(CoreAnswer::Seen(_))) | (CoreAsk::Look(_), Some(_)) => None,
        }
    }
}

/// How many claims fit on one node: each takes an equal part of its cores.
const CLAIMS_PER_NODE: usize = 4;
const CLAIM_SIZE: Resources = Resources { cores: SIZE.cores / CLAIMS_PER_NODE as u32, memory_bytes: 0, gpus: 0 };

/// One lease: one holder at a time, each grant with a higher token than all before it.
struct LeaseOf;

#[derive(Clone, Debug)]
enum LeaseAsk {
    Acquire(usize),
    Release(u64),
}

#[derive(Clone, Debug)]
enum LeaseAnswer {
    Held(u64),
    HeldByOther,
    Released,
    Stale,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LeaseState {
    /// The holder and its token, if an answer showed it.
    holder: Option<(usize, Option<u64>)>,
    /// The last known token.
    token: u64,
}

impl Model for LeaseOf {
    type State = LeaseState;
    type Input = LeaseAsk;
    type Output = LeaseAnswer;

    fn initial() -> LeaseState {
        LeaseState { holder: None, token: 0 }
    }

    fn step(state: &LeaseState, input: &LeaseAsk, output: Option<&LeaseAnswer>) -> Option<LeaseState> {
        let free = LeaseState { holder: None, token: state.token };
        match (input, output) {
            (LeaseAsk::Acquire(who), Some(LeaseAnswer::Held(token))) => {
                let granted = LeaseState { holder: Some((*who, Some(*token))), token: *token };
                match state.holder {
                    Some((holder, Some(known))) => (holder == *who && known == *token).then_some(granted),
                    Some((holder, None)) => (holder == *who && *token > state.token).then_some(granted),
                    None => (*token > state.token).then_some(granted),
                }
            }
            (LeaseAsk::Acquire(who), Some(LeaseAnswer::HeldByOther)) => {
                state.holder.is_some_and(|(holder, _)| holder != *who).then(|| state.clone())
            }
            (LeaseAsk::Acquire(who), None) => Some(LeaseState { holder: state.holder.or(Some((*who, None))), token: state.token }),
            (LeaseAsk::Release(token), Some(LeaseAnswer::Released)) => match state.holder {
                Some((_, known)) => (known == Some(*token)).then_some(free),
                None => Some(free),
            },
            // If the command was sent twice, the first one may have released the lease.
            (LeaseAsk::Release(token), Some(LeaseAnswer::Stale) | None) => {
                Some(if state.holder.is_some_and(|(_, known)| known == Some(*token)) { free } else { state.clone() })
            }
            (LeaseAsk::Acquire(_), Some(LeaseAnswer::Released | LeaseAnswer::Stale))
            | (LeaseAsk::Release(_), Some(LeaseAnswer::Held(_) | LeaseAnswer::HeldByOther)) => None,
        }
    }
}

type CoreHistory = Arc<Mutex<Vec<Operation<CoreAsk, CoreAnswer>>>>;
type LeaseHistory = Arc<Mutex<Vec<Operation<LeaseAsk, LeaseAnswer>>>>;

async fn run(hosts: &Hosts, members: &mut Members, seed: u64) {
    drop(Agents::open(members, NODES, Duration::from_secs(10)).await.unwrap());
    // From here on the members can lose their power.
    members.restart(TIMERS, LINES).unwrap();
    members.leader().await.unwrap();

    let began = Instant::now();
    let end = began + ROUND;
    let (cores, leases) = (CoreHistory::default(), LeaseHistory::default());
    let submitted: Arc<Mutex<Vec<AllocationId>>> = Arc::default();
    let client = members.client().unwrap();
    let token = lease(&client, "lab").await;
    let Ok(Answer::Nodes(nodes)) = client.call(&Request::ListNodes, CALL_TIMEOUT).await else { panic!("no list of nodes") };
    assert_eq!(nodes.len(), NODES);
    let mut tasks = Vec::new();
    for number in 0..SCHEDULERS {
        let rng = StdRng::seed_from_u64(seed ^ (number as u64 + 1));
        let scheduler =
            Scheduler { client: members.client().unwrap(), token, nodes: nodes.clone(), rng, began, history: Arc::clone(&cores) };
        tasks.push(tokio::spawn(scheduler.run(end, Arc::clone(&submitted))));
    }
    for number in 0..HOLDERS {
        let name = format!("holder{number}");
        let tls = certificate(&members.cluster, &name, Role::Api).unwrap();
        let rng = StdRng::seed_from_u64(seed ^ (number as u64 + 100));
        let holder = Holder { number, name, client: members.client_as(tls).unwrap(), rng, began, history: Arc::clone(&leases) };
        tasks.push(tokio::spawn(holder.run(end)));
    }
    let faults = faults(hosts, members, StdRng::seed_from_u64(seed), end).await;
    for task in tasks {
        task.await.unwrap();
    }
    members.caught_up().await.unwrap();
    members.assert_same().await.unwrap();
    members.assert_audited().await.unwrap();

    let submitted = submitted.lock().unwrap().clone();
    for id in &submitted {
        let there = client.call(&Request::GetAllocation { key: id.to_string() }, CALL_TIMEOUT).await;
        assert!(matches!(there, Ok(Answer::Allocation(_))), "acknowledged and missing: {id}: {there:?}");
    }
    let (cores, leases) = (cores.lock().unwrap().clone(), leases.lock().unwrap().clone());
    let (on_cores, on_leases) = (first_fault::<Cores>(&cores), first_fault::<LeaseOf>(&leases));
    let shown = |key: &str| {
        let cores = cores.iter().filter(|o| o.key == key).map(|o| format!("{o:?}"));
        cores.chain(leases.iter().filter(|o| o.key == key).map(|o| format!("{o:?}"))).collect::<Vec<_>>().join("\n")
    };
    if let Some(key) = on_cores.or(on_leases) {
        panic!("LATTICE_TEST_SEED={seed}: no order explains the history of {key}:\n{}", shown(&key));
    }
    let answered =
        |is_wanted: &dyn Fn(&CoreAnswer) -> bool| cores.iter().filter(|o| o.returned.as_ref().is_some_and(|(_, t)| is_wanted(t))).count();
    let (claimed, refused) = (answered(&|t| matches!(t, CoreAnswer::Claimed)), answered(&|t| matches!(t, CoreAnswer::Conflict)));
    let granted = leases.iter().filter(|o| matches!(o.returned, Some((_, LeaseAnswer::Held(_))))).count();
    eprintln!(
        "{} submissions, {} operations on {NODES} nodes ({claimed} claimed, {refused} in conflict), {} on leases ({granted} granted); {}",
        submitted.len(),
        cores.len(),
        leases.len(),
        faults.join(", ")
    );
    // A run without any decisions proves nothing.
    assert!(claimed > NODES && refused > 0 && granted > LEASES && faults.len() > 2, "seed {seed}: too little happened");
}

/// Until `end`: causes a fault, ends it, and lets clients work for a while.
async fn faults(hosts: &Hosts, members: &mut Members, mut rng: StdRng, end: Instant) -> Vec<&'static str> {
    let ms = |rng: &mut StdRng, range: std::ops::Range<u64>| Duration::from_millis(rng.random_range(range));
    let mut done = Vec::new();
    while Instant::now() + Duration::from_secs(5) < end {
        let leader = members.leader().await.unwrap();
        let other = leader % 3 + 1;
        done.extend(background_fault(hosts, leader, other, &mut rng));
        match rng.random_range(0..9) {
            0 => {
                members.signal(leader, Signal::SIGKILL).unwrap();
                tokio::time::sleep(ms(&mut rng, 0..600)).await;
                members.start_again(leader).unwrap();
                done.push("leader killed");
            }
            1 => {
                members.signal(other, Signal::SIGKILL).unwrap();
                tokio::time::sleep(ms(&mut rng, 0..300)).await;
                members.start_again(other).unwrap();
                done.push("member killed");
            }
            // When it continues, it still believes that it is the leader.
            2 => {
                members.signal(leader, Signal::SIGSTOP).unwrap();
                tokio::time::sleep(ms(&mut rng, 200..1500)).await;
                members.signal(leader, Signal::SIGCONT).unwrap();
                done.push("leader stopped");
            }
            3 => {
                members.signal(other, Signal::SIGSTOP).unwrap();
                tokio::time::sleep(ms(&mut rng, 200..1500)).await;
                members.signal(other, Signal::SIGCONT).unwrap();
                done.push("member stopped");
            }
            4 => {
                members.restart(TIMERS, LINES).unwrap();
                done.push("all killed");
            }
            5 => {
                std::fs::write(members.power_switch(), "").unwrap();
                // A member dies at its next write; one with nothing to write survives.
                tokio::time::sleep(Duration::from_millis(300)).await;
                members.restart(TIMERS, LINES).unwrap();
                done.push("power lost");
            }
            6 => {
                hosts.cut(&between(leader, &others(leader))).unwrap();
                tokio::time::sleep(ms(&mut rng, 500..3000)).await;
                done.push("leader cut off");
            }
            7 => {
                hosts.cut(&between(other, &others(other))).unwrap();
                tokio::time::sleep(ms(&mut rng, 500..3000)).await;
                done.push("member cut off");
            }
            _ => {
                // One direction of each pair is cut with probability 0.3: some members lose their majority.
                let parties = [Party::Clients, Party::Member(1), Party::Member(2), Party::Member(3)];
                let pairs = parties.iter().flat_map(|from| parties.iter().map(|to| (*from, *to))).filter(|(from, to)| from != to);
                let lost: Vec<_> = pairs.filter(|_| rng.random_bool(0.3)).collect();
                hosts.cut(&lost).unwrap();
                tokio::time::sleep(ms(&mut rng, 500..3000)).await;
                done.push("links cut");
            }
        }
        hosts.heal().unwrap();
        tokio::time::sleep(ms(&mut rng, 300..900)).await;
    }
    done
}

/// In half of the cases, a slow disk or a wrong clock of one member, which lasts during the main fault.
fn background_fault(hosts: &Hosts, leader: u64, other: u64, rng: &mut StdRng) -> Option<&'static str> {
    let member = if rng.random_bool(0.5) { leader } else { other };
    match rng.random_range(0..4) {
        0 => {
            hosts.slow_disk(member, Duration::from_millis(rng.random_range(20..500))).unwrap();
            Some(if member == leader { "leader's disk slow" } else { "member's disk slow" })
        }
        1 => {
            // Within the certificates' lifetime: new connections must still be possible.
            hosts.shift_clock(member, rng.random_range(-7200..7200)).unwrap();
            Some(if member == leader { "leader's clock wrong" } else { "member's clock wrong" })
        }
        _ => None,
    }
}

async fn lease(client: &QuorumClient, holder: &str) -> u64 {
    let request = Request::AcquireLease { name: SCHEDULER_LEASE.to_owned(), holder: holder.parse().unwrap(), ttl_ms: LEASE_MS, user: None };
    match client.call(&request, Duration::from_secs(20)).await.unwrap() {
        Answer::Lease { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

struct Scheduler {
    client: QuorumClient,
    token: u64,
    nodes: Vec<Node>,
    rng: StdRng,
    began: Instant,
    history: CoreHistory,
}

impl Scheduler {
    async fn run(mut self, end: Instant, submitted: Arc<Mutex<Vec<AllocationId>>>) {
        let mut tried: Vec<(AllocationId, NodeId)> = Vec::new();
        let spec = AllocationSpec {
            share: Some(CLAIM_SIZE),
            ..AllocationSpec::new("history", Entrypoint::Command { argv: vec!["/bin/true".into()] }, Path::new("/"))
        };
        while Instant::now() < end {
            let id = AllocationId(Uuid::from_u128(self.rng.random()));
            let owner = Principal { name: "alice".into(), uid: 1000, gid: 1000, groups: vec![] };
            let request = Request::Submit { id, spec: Box::new(spec.clone()), owner, claim: None, life: None, login_tenants: [].into() };
            if self.client.call(&request, CALL_TIMEOUT).await.is_err() {
                continue;
            }
            submitted.lock().unwrap().push(id);
            let node = self.nodes.choose(&mut self.rng).unwrap().clone();
            let resources = spec.amount_of(&node.size);
            let shares = vec![ClaimShare { node: node.id.clone(), resources, hold_revision: node.hold_revision }];
            let claim = Claim { allocation: id, requeue_count: 0, lease_token: self.token, shares, after: None, by: None, walltime: None };
            self.ask(&node.id, CoreAsk::Claim(id), &Request::Claims(vec![claim])).await;
            tried.push((id, node.id));
            let (id, node) = tried.choose(&mut self.rng).unwrap().clone();
            self.ask(&node, CoreAsk::Look(id), &Request::GetAllocation { key: id.to_string() }).await;
        }
    }

    async fn ask(&self, node: &NodeId, input: CoreAsk, request: &Request) {
        let called = self.began.elapsed();
        let answer = match self.client.call(request, CALL_TIMEOUT).await {
            Ok(Answer::Claims(mut outcomes)) => match outcomes.remove(0) {
                Ok(_) => Some(CoreAnswer::Claimed),
                Err(Refusal::Conflict { .. }) => Some(CoreAnswer::Conflict),
                Err(Refusal::NotPending { .. }) => Some(CoreAnswer::NotPending),
                // It may have been claimed.
                Err(Refusal::Unavailable { .. }) => None,
                Err(other) => panic!("{request:?}: {other:?}"),
            },
            Ok(Answer::Allocation(a)) => Some(CoreAnswer::Seen(is_claimed(&a))),
            Err(CallError::Unavailable { .. }) => None,
            other => panic!("{request:?}: {other:?}"),
        };
        let returned = answer.map(|answer| (self.began.elapsed(), answer));
        self.history.lock().unwrap().push(Operation { key: node.to_string(), called, returned, input });
    }
}

fn is_claimed(allocation: &Allocation) -> bool {
    allocation.state != AllocationState::Pending
}

struct Holder {
    number: usize,
    name: String,
    client: QuorumClient,
    rng: StdRng,
    began: Instant,
    history: LeaseHistory,
}

impl Holder {
    async fn run(mut self, end: Instant) {
        let mut held: Vec<(String, u64)> = Vec::new();
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..20))).await;
            if !held.is_empty() && self.rng.random_bool(0.5) {
                let (name, token) = held.swap_remove(self.rng.random_range(0..held.len()));
                let request =
                    Request::from(Action::ReleaseLease { name: name.clone(), token, holder: self.name.parse().unwrap(), user: None });
                self.ask(&name, LeaseAsk::Release(token), &request).await;
            } else {
                let name = format!("history:{}", self.rng.random_range(0..LEASES));
                let holder = self.name.parse().unwrap();
                let request = Request::AcquireLease { name: name.clone(), holder, ttl_ms: LEASE_MS, user: None };
                let answer = self.ask(&name, LeaseAsk::Acquire(self.number), &request).await;
                if let Some(LeaseAnswer::Held(token)) = answer {
                    held.retain(|(n, _)| *n != name);
                    held.push((name, token));
                }
            }
        }
    }

    async fn ask(&self, name: &str, input: LeaseAsk, request: &Request) -> Option<LeaseAnswer> {
        let called = self.began.elapsed();
        let answer = match self.client.call(request, CALL_TIMEOUT).await {
            Ok(Answer::Lease { token, .. }) => Some(LeaseAnswer::Held(token)),
            Ok(Answer::Done { .. }) => Some(LeaseAnswer::Released),
            Err(CallError::Refused(Refusal::LeaseHeld { .. })) => Some(LeaseAnswer::HeldByOther),
            Err(CallError::Refused(Refusal::StaleLease { .. })) => Some(LeaseAnswer::Stale),
            Err(CallError::Unavailable { .. }) => None,
            other => panic!("{request:?}: {other:?}"),
        };
        let now = self.began.elapsed();
        let operation = Operation { key: name.to_owned(), called, returned: answer.clone().map(|answer| (now, answer)), input };
        let mut history = self.history.lock().unwrap();
        if operation.returned.is_some() && now - called > SENT_TWICE && matches!(operation.input, LeaseAsk::Acquire(_)) {
            // A stopped member may still forward the first copy, after everything else.
            history.push(Operation { returned: None, ..operation.clone() });
        }
        history.push(operation);
        answer
    }
}
