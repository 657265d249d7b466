//! The periodic duties of a member: the leader evaluates its clocks, a follower sends it the
//! heartbeats that it received.

use crate::audit::duty::SigningDuty;
use crate::core::Core;
use crate::fencing_hook::FencingHook;
use crate::heartbeats::{Heartbeat, SentToLeader};
use crate::lease_clocks::LeaseClocks;
use crate::peers::{HeartbeatSummary, SummaryAnswer};
use crate::rotation::Rotation;
use crate::witnesses::Witnesses;
use crate::{membership, session_rebalance};
use lattice_ledger::clocks::Clocks;
use lattice_ledger::{Action, Urgency};
use lattice_model::{MemberId, Principal, millis, with_causes};
use lattice_quorum_client::wire::{HeldKeys, NodeHealth};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::time::MissedTickBehavior;

/// How often heartbeats are summarised and clocks are evaluated.
const DUTIES_INTERVAL: Duration = Duration::from_secs(1);
/// How often the use of tenants is compared with their budgets.
const BUDGETS_INTERVAL: Duration = Duration::from_secs(60);
/// How long after a limit is exceeded the clocks are evaluated again.
const LIMIT_MARGIN: Duration = Duration::from_millis(5);

/// The state of one term as leader.
struct Leading {
    term: u64,
    since: Instant,
    /// When sessions were last moved to other members.
    rebalanced_at: Instant,
    clocks: Clocks,
    signing: SigningDuty,
    rotation: Rotation,
    fencing_hook: FencingHook,
    /// When the use of tenants was last compared with their budgets; `None`: not in this term.
    budgets_checked_at: Option<Instant>,
}

/// Runs the periodic duties; see the module documentation.
pub(super) async fn duties(core: Arc<Core>) {
    let limits = core.config.limits();
    // A quarter of the shortest time limit, if that is shorter.
    let mut tick = tokio::time::interval(DUTIES_INTERVAL.min(limits.shortest() / 4).max(Duration::from_millis(20)));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let sign_every = Duration::from_secs(core.config.audit_sign_seconds);
    let mut leading: Option<Leading> = None;
    // When the next silent node is due, if that is before the next tick.
    let mut due: Option<Instant> = None;
    let mut sent = (SentToLeader::default(), SentToLeader::default());
    // React to elections at once, not at the next tick.
    let mut roles = core.raft.server_metrics();
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            _ = tick.tick() => {}
            () = passed(due) => {}
            changed = roles.changed() => if changed.is_err() {
                return;
            }
        }
        let (leader, term) = {
            let metrics = core.raft.metrics();
            let metrics = metrics.borrow();
            (metrics.current_leader, metrics.current_term)
        };
        if leader != Some(core.config.id) {
            (leading, due) = (None, None);
            core.leading.moving.allow(0);
            core.counts.held_back.store(0, Ordering::Relaxed);
            core.leading.silent.send_if_modified(|silent| !std::mem::take(silent).is_empty());
            *core.leading.lease_clocks.lock() = None;
            if leader.is_none() {
                core.timekeeper.follow(None);
            }
            if let Some(leader) = leader {
                // The call may wait, for example while this member lags behind: it must not delay the
                // stop.
                core.stop.run_until_cancelled(report_to_leader(&core, leader, term, &mut sent)).await;
            }
            continue;
        }
        if leading.as_ref().is_none_or(|l| l.term != term) {
            // Not before everything committed is applied here: otherwise an outdated state would be
            // evaluated.
            let caught_up = tokio::select! {
                () = core.stop.cancelled() => return,
                passed = core.reads.pass() => passed.is_ok(),
            };
            if !caught_up {
                continue;
            }
            leading = Some(Leading {
                term,
                since: Instant::now(),
                rebalanced_at: Instant::now(),
                clocks: Clocks::new(limits),
                signing: SigningDuty::new(sign_every, Instant::now()),
                rotation: Rotation::default(),
                fencing_hook: FencingHook::new(&core.config),
                budgets_checked_at: None,
            });
            *core.leading.lease_clocks.lock() = Some(LeaseClocks::default());
            core.leading.levels.forget();
            core.leading.keys_held.forget();
            core.disk.shortages.forget();
        }
        if let Some(leading) = &mut leading {
            if leading.since.elapsed() >= session_rebalance::ELECTION_DELAY
                && leading.rebalanced_at.elapsed() >= session_rebalance::REBALANCE_INTERVAL
            {
                leading.rebalanced_at = Instant::now();
                // Each moved session registers again elsewhere, so none is moved when there is no
                // disk space for that.
                core.leading.moving.allow(if core.disk_full_refusal(Urgency::Keeps).is_some() {
                    0
                } else {
                    session_rebalance::MOVED_SESSIONS_MAX
                });
            }
            lead(&core, leading).await;
            if let Some(to) = core.timekeeper.check_clocks() {
                core.stop.run_until_cancelled(hand_over(&core, to)).await;
            }
            // Evaluate the clocks again just after the next node exceeds its limit.
            due = leading.clocks.due().map(|due| leading.since + due + LIMIT_MARGIN).filter(|due| *due > Instant::now());
        }
    }
}

async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// Sends the heartbeats received here to the leader of this term, with the keys and health that it
/// does not know yet.
async fn report_to_leader(
    core: &Core,
    leader: u64,
    term: u64,
    (keys_sent, health_sent): &mut (SentToLeader<HeldKeys>, SentToLeader<NodeHealth>),
) {
    let until = Instant::now();
    let fresh = core.leading.heartbeats.take();
    let ago = |at: Instant| millis(until.saturating_duration_since(at));
    let heartbeats = fresh.iter().map(|(node, heartbeat)| (node.clone(), heartbeat.incarnation, ago(heartbeat.at))).collect();
    let keys = keys_sent.unsent(term, &fresh, |heartbeat| heartbeat.keys.as_ref());
    let health = health_sent.unsent(term, &fresh, |heartbeat| heartbeat.health.as_ref());
    let certificate_until = core.identity.credentials.until();
    let (from, shortage) = (MemberId(core.config.id), core.disk.reserve.check_shortage());
    let alive_in_gossip = core.leading.witnesses.take();
    let level = core.config.level_max;
    let summary = HeartbeatSummary { from, heartbeats, keys, health, level, certificate_until, shortage, alive_in_gossip };
    let answer = match core.roster().members.get(&leader) {
        Some(peer) => core.peers.heartbeats(leader, peer, &summary, DUTIES_INTERVAL).await,
        None => None,
    };
    if let Some((SummaryAnswer { shortages, silent, clocks }, revision)) = answer {
        core.timekeeper.follow(clocks);
        core.disk.shortages.are(shortages);
        core.leading.witnesses.ask(&silent);
        // An agent whose heartbeat is acknowledged must first have received the result of any
        // earlier loss. Otherwise it could still start work from a list from before it was
        // considered lost, although that work was started elsewhere.
        if core.applied(revision, DUTIES_INTERVAL).await {
            core.leading.heartbeats.leader_knows(until);
        }
        keys_sent.mark_sent(&fresh, summary.keys);
        health_sent.mark_sent(&fresh, summary.health);
        let ledger = core.agreed.ledger();
        keys_sent.forget_removed(&ledger);
        health_sent.forget_removed(&ledger);
    } else {
        // Sent with the next summary, to the leader at that time.
        for (node, heartbeat) in fresh {
            core.leading.heartbeats.record(node, heartbeat);
        }
    }
}

/// Hands the leadership over to a member with a correct clock, because this member's clock is wrong.
async fn hand_over(core: &Core, to: u64) {
    // A membership change has priority, and changes the leader itself if necessary.
    let Ok(_changing) = core.status.changing.try_lock() else { return };
    let by = Principal { name: "quorum".to_owned(), uid: 0, gid: 0, groups: Vec::new() };
    if let Err(refusal) = membership::transfer(core, &by, to).await {
        tracing::warn!(to, error = %with_causes(&refusal), "this member's clock is wrong, and it stays the leader");
    }
}

async fn lead(core: &Core, Leading { since, clocks, signing, rotation, fencing_hook, budgets_checked_at, .. }: &mut Leading) {
    let since = *since;
    let now = since.elapsed();
    let until = Instant::now();
    for (node, Heartbeat { incarnation, at, keys, health }) in core.leading.heartbeats.take() {
        if let Some(keys) = keys {
            core.leading.keys_held.record(node.clone(), incarnation, keys);
        }
        if let Some(health) = health {
            clocks.record_health(node.clone(), incarnation, health);
        }
        clocks.record_heartbeat(node, incarnation, at.saturating_duration_since(since));
    }
    // Acknowledged heartbeats extend run leases. A leader that may have been deposed must not
    // acknowledge them, because its successor's clocks may have started earlier. If a majority
    // still follows it, no successor's clock had started when the heartbeats arrived.
    let passed = core.stop.run_until_cancelled(tokio::time::timeout(DUTIES_INTERVAL, core.reads.pass())).await;
    if matches!(passed, Some(Ok(Ok(())))) {
        core.leading.heartbeats.leader_knows(until);
    }
    for (node, by) in core.leading.witnesses.take() {
        clocks.witnessed(&node, by, now);
    }
    let held_back_before = clocks.held_back;
    let time = core.timekeeper.time();
    let mut actions = Vec::new();
    {
        let ledger = core.agreed.ledger();
        if ledger.cluster().is_empty() {
            actions.push(Action::Bootstrap { cluster: core.config.cluster.clone() });
        }
        core.leading.keys_held.forget_removed(&ledger);
        let state_changes = clocks.state_changes(now, &*ledger);
        let silent = Witnesses::choose(clocks.asked().iter());
        core.leading.witnesses.ask(&silent);
        core.leading.silent.send_replace(silent);
        if !state_changes.is_empty() {
            actions.push(Action::NodeStates(state_changes));
        }
        let ms = core.config.run_lease_ms();
        actions.extend((ledger.run_lease_ms() != ms).then_some(Action::SetRunLease { ms }));
        actions.extend(clocks.fences(now, &ledger));
        actions.extend(clocks.failures(now, &*ledger));
        // After the node states: an unwell node becomes Degraded and then drains, in the same
        // command.
        actions.extend(clocks.drains(now, &*ledger));
        actions.extend(fencing_hook.poll(&ledger, |node| clocks.has_recent_heartbeat(now, node), until));
        actions.extend(signing.due(until, &ledger, &core.identity.signer));
        if let Some(clocks) = &mut *core.leading.lease_clocks.lock() {
            actions.extend(clocks.expiries(ledger.leases(), until));
        }
        actions.extend(rotation.due(&ledger, &core.leading.keys_held, until));
        if !ledger.domains_due(time).is_empty() {
            actions.push(Action::ReleaseDomains);
        }
        actions.extend(ledger.nodes_due(time, core.config.node_boot_ms));
        actions.extend(ledger.telemetry_due(time));
        if ledger.waits_are_due(time) {
            actions.push(Action::EndWaits { now: time });
        }
        if ledger.dependents_are_due() {
            actions.push(Action::SettleDependents);
        }
        actions.extend(ledger.drifts_due(time, core.config.drift_limits()));
        if budgets_checked_at.is_none_or(|at| until.duration_since(at) >= BUDGETS_INTERVAL) {
            *budgets_checked_at = Some(until);
            actions.extend(ledger.budgets_due(time));
        }
        core.leading.levels.record(core.config.id, core.config.level_max);
        let metrics = core.raft.metrics();
        let members: Vec<u64> = metrics.borrow().membership_config.nodes().map(|(id, _)| *id).collect();
        actions.extend(core.leading.levels.raise(members, ledger.level()));
    }
    if clocks.held_back > 0 && held_back_before == 0 {
        tracing::error!(nodes = clocks.held_back, "many nodes fell silent at once: none of them is declared Down, an operator must decide");
    }
    core.counts.held_back.store(clocks.held_back as u64, Ordering::Relaxed);
    // Commands for which there is no disk space now are proposed by a later tick.
    actions.retain(|action| core.disk_full_refusal(action.urgency()).is_none());
    if actions.is_empty() {
        return;
    }
    match tokio::time::timeout(DUTIES_INTERVAL * 5, core.propose_here(actions)).await {
        Ok(Ok(results)) => {
            for refusal in results.into_iter().filter_map(Result::err) {
                tracing::warn!(error = %with_causes(&refusal), "a command of the leader was refused");
            }
        }
        // The next tick, or the next leader, proposes them again.
        Ok(Err(error)) => tracing::debug!(?error, "the leader's commands were not accepted"),
        Err(_) => tracing::debug!("the leader's commands are not committed yet"),
    }
}
