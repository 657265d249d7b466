//! The commands that are measured, in the order in which allocations and nodes meet them.

use super::cluster::{Cluster, NODES, components, node, registration};
use anyhow::{Context, Result};
use lattice_ledger::clocks::{Clocks, Limits, Patience};
use lattice_ledger::{Action, AllocationChange, DriftLimits, NodeStateChange};
use lattice_model::{EndReason, HoldKind, Incarnation, NodeState, OnIsolation, ReportItem, Timestamp};
use std::time::{Duration, Instant};

/// The times of each kind of command.
#[derive(Default)]
pub struct Round {
    kinds: Vec<(&'static str, Vec<Duration>)>,
    /// The node whose turn it is.
    turn: usize,
}

impl Round {
    fn add(&mut self, kind: &'static str, took: Duration) {
        match self.kinds.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, times)) => times.push(took),
            None => self.kinds.push((kind, vec![took])),
        }
    }

    /// In the order in which they were first measured.
    pub fn into_kinds(self) -> Vec<(&'static str, Vec<Duration>)> {
        self.kinds
    }
}

/// Applies each kind of command once.
pub fn live(cluster: &mut Cluster, round: &mut Round) -> Result<()> {
    round.turn = (round.turn + 7919) % NODES;
    ordinary(cluster, round).context("ordinary work")?;
    wanted_by_its_owner(cluster, round).context("work that its owner changes")?;
    in_a_domain(cluster, round).context("work in a network domain")?;
    sensitive(cluster, round).context("sensitive work")?;
    not_twice(cluster, round).context("work that must not run twice")?;
    of_a_node(cluster, round).context("a node")?;
    others(cluster, round).context("a lease and a wait")
}

fn ordinary(cluster: &mut Cluster, round: &mut Round) -> Result<()> {
    let on = round.turn;
    let (id, took) = cluster.submit(|_| {})?;
    round.add("Submit", took);
    let (epoch, took) = cluster.claim(id, on)?;
    round.add("Claim", took);
    let [prepared, ended] = cluster.end(id, epoch, on)?;
    round.add("Report: prepared", prepared);
    round.add("Report: ended", ended);
    round.add("Report: released", cluster.release(id, epoch, on)?);
    let (id, epoch, took) = cluster.submit_claimed(on)?;
    round.add("Submit with its claim", took);
    cluster.end(id, epoch, on)?;
    cluster.release(id, epoch, on)?;
    Ok(())
}

fn wanted_by_its_owner(cluster: &mut Cluster, round: &mut Round) -> Result<()> {
    let (on, (id, _)) = (round.turn, cluster.submit(|_| {})?);
    let by = cluster.owner(id);
    round.add("HoldAllocation", cluster.act(Action::HoldAllocation { allocation: id, by: by.clone() })?.1);
    round.add("Resume", cluster.act(Action::Resume { allocation: id, by: by.clone() })?.1);
    let change = AllocationChange { walltime: Some(Duration::from_secs(7200)), ..AllocationChange::default() };
    let update = Action::UpdateAllocation { allocation: id, by: by.clone(), change, as_operator: false };
    round.add("UpdateAllocation", cluster.act(update)?.1);
    let (epoch, _) = cluster.claim(id, on)?;
    let requeue = Action::RequeueAllocation { allocation: id, epoch, by: by.clone(), reason: "another node".into() };
    round.add("RequeueAllocation", cluster.act(requeue)?.1);
    cluster.release(id, epoch, on)?;
    round.add("Cancel", cluster.act(Action::Cancel { id, by })?.1);
    Ok(())
}

fn in_a_domain(cluster: &mut Cluster, round: &mut Round) -> Result<()> {
    let on = round.turn;
    let (id, _) = cluster.submit(|spec| spec.connectivity.network_domain = format!("domain{on}"))?;
    let (epoch, took) = cluster.claim(id, on)?;
    round.add("Claim with a new network domain", took);
    cluster.end(id, epoch, on)?;
    cluster.release(id, epoch, on)?;
    cluster.pass(2000);
    round.add("ReleaseDomains", cluster.act(Action::ReleaseDomains)?.1);
    Ok(())
}

fn sensitive(cluster: &mut Cluster, round: &mut Round) -> Result<()> {
    let on = round.turn;
    let (id, _) = cluster.submit(|spec| spec.sensitive = true)?;
    let (epoch, took) = cluster.claim(id, on)?;
    round.add("Claim for sensitive work", took);
    cluster.end(id, epoch, on)?;
    cluster.release(id, epoch, on)?;
    Ok(())
}

fn not_twice(cluster: &mut Cluster, round: &mut Round) -> Result<()> {
    let on = round.turn;
    let (id, _) = cluster.submit(|spec| spec.on_isolation = OnIsolation::Stop)?;
    let by = cluster.owner(id);
    let (epoch, _) = cluster.claim(id, on)?;
    cluster.act(Action::RequeueAllocation { allocation: id, epoch, by, reason: "another node".into() })?;
    cluster.release(id, epoch, on)?;
    let (epoch, took) = cluster.claim(id, on)?;
    round.add("Claim again of work that must not run twice", took);
    cluster.end(id, epoch, on)?;
    cluster.release(id, epoch, on)?;
    Ok(())
}

fn of_a_node(cluster: &mut Cluster, round: &mut Round) -> Result<()> {
    let (on, by, reason) = (round.turn, || "root".to_owned(), || "fan".to_owned());
    let (id, incarnation) = (node(on), cluster.ledger.node(&node(on)).map_or(Incarnation(0), |known| known.incarnation));
    let hold = Action::SetHold { node: id.clone(), kind: HoldKind::Cordon, by: by(), reason: reason(), until: None, deadline: None };
    round.add("SetHold", cluster.act(hold)?.1);
    round.add("LiftHold", cluster.act(Action::LiftHold { node: id.clone(), kind: HoldKind::Cordon, by: by(), until: None })?.1);
    for (kind, state, reason) in
        [("NodeStates: silent", NodeState::Degraded, "silent for 31 s"), ("NodeStates: heard", NodeState::Ready, "")]
    {
        let state_change = NodeStateChange { node: id.clone(), incarnation, state, reason: reason.to_owned() };
        round.add(kind, cluster.act(Action::NodeStates(vec![state_change]))?.1);
    }
    for (kind, version) in [("Conforms: a drift begins", 1), ("Conforms: as expected again", 0)] {
        round.add(kind, cluster.act(Action::Conforms { node: id.clone(), incarnation, components: components(version) })?.1);
    }
    round.add("Register", cluster.act(Action::Register(registration(on, incarnation)))?.1);
    Ok(())
}

fn others(cluster: &mut Cluster, round: &mut Round) -> Result<()> {
    let on = round.turn;
    let name = format!("lock{on}");
    let grant = Action::GrantLease { name: name.clone(), holder: node(on), ttl_ms: 10_000, user: None };
    round.add("GrantLease", cluster.act(grant)?.1);
    let token = cluster.ledger.lease(&name).context("the lease was not granted")?.token;
    round.add("ReleaseLease", cluster.act(Action::ReleaseLease { name, token, holder: node(on), user: None })?.1);
    let (id, _) = cluster.submit(|_| {})?;
    let (epoch, _) = cluster.claim(id, on)?;
    cluster.report(on, ReportItem::Prepared { allocation: id, epoch })?;
    let failed = ReportItem::Ended { allocation: id, epoch, reason: EndReason::Exited { code: 1 } };
    round.add("Report: ended, requeued", cluster.report(on, failed)?);
    cluster.release(id, epoch, on)?;
    cluster.pass(2000);
    let now = cluster.now();
    round.add("EndWaits", cluster.act(Action::EndWaits { now })?.1);
    let by = cluster.owner(id);
    cluster.act(Action::Cancel { id, by })?;
    Ok(())
}

/// Every node reports another fingerprint, and then the former one. Returns how long applying the first took.
pub fn rollout(cluster: &mut Cluster) -> Result<Duration> {
    let mut took = [Duration::ZERO; 2];
    for (version, took) in [1, 0].into_iter().zip(&mut took) {
        for number in 0..NODES {
            let (id, incarnation) = (node(number), cluster.ledger.node(&node(number)).map_or(Incarnation(0), |known| known.incarnation));
            *took += cluster.act(Action::Conforms { node: id, incarnation, components: components(version) })?.1;
        }
    }
    Ok(took[0])
}

/// How long each evaluation of the leader's clocks takes, a second apart, while every node sends a heartbeat each ten
/// seconds.
pub fn ticks(cluster: &Cluster, ticks: u32) -> Vec<Duration> {
    let patience = Patience { degraded_after: Duration::from_secs(30), down_after: Duration::from_secs(60) };
    let limits = Limits { own: patience, sensitive: patience, borrowed: patience, cut_off_after: Duration::from_secs(300) };
    let drifts = DriftLimits { ordinary_ms: 86_400_000, sensitive_ms: 3_600_000 };
    let (ledger, time) = (&cluster.ledger, Timestamp(cluster.now().0));
    let mut clocks = Clocks::new(limits);
    // A term begins with an evaluation of all nodes.
    clocks.state_changes(Duration::ZERO, ledger);
    let evaluate = |second: u32| {
        let now = Duration::from_secs(second.into());
        for number in (0..NODES).filter(|number| number % 10 == second as usize % 10) {
            let incarnation = ledger.node(&node(number)).map_or(Incarnation(0), |known| known.incarnation);
            clocks.record_heartbeat(node(number), incarnation, now);
        }
        let begun = Instant::now();
        let proposed = clocks.state_changes(now, ledger).len() + clocks.fences(now, ledger).len();
        let held = clocks.failures(now, ledger).len() + clocks.drains(now, ledger).len();
        let due = ledger.nodes_due(time, 600_000).len() + ledger.drifts_due(time, drifts).len() + ledger.telemetry_due(time).len();
        let others = ledger.domains_due(time).len() + usize::from(ledger.waits_are_due(time));
        std::hint::black_box(proposed + held + due + others);
        begun.elapsed()
    };
    (1..=ticks).map(evaluate).collect()
}
