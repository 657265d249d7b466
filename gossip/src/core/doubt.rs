//! How the core handles silence: foca's timers, slower when this node itself is slow, and
//! suspicions that wait for other nodes to confirm them and for the suspect to refute.
//! `suspicion.rs` has the arithmetic.

use super::{Core, Output, Pending, Stage};
use crate::fact::ACCUSATIONS_MAX;
use crate::peer::Peer;
use crate::suspicion::Accusation;
use crate::view::{Entry, Liveness, News};
use crate::wire::{KIND_FOCA, suspicion_ping, turn_undead};
use foca::{State, Timer};
use lattice_model::millis;
use std::sync::atomic::Ordering;

/// How many suspects are pinged at one tick.
const SUSPECTS_PINGED_MAX: usize = 8;

impl Core {
    /// One of foca's timers has fired, which was due at `due_ms`; `postponed`: it was postponed once.
    pub(super) fn handle_foca_timer(&mut self, now_ms: u64, due_ms: u64, timer: Timer<Peer>, postponed: bool, out: &mut Vec<Output>) {
        let (probe, indirect) = (matches!(timer, Timer::ProbeRandomMember(_)), matches!(timer, Timer::SendIndirectProbe { .. }));
        if (probe || indirect) && self.is_late(now_ms, due_ms) && !postponed {
            // This node was suspended. Its socket holds what arrived meanwhile, perhaps the answer
            // to the probe. The delay gives time to read that first, and to ask other nodes.
            self.suspicions.worsen_health();
            self.counters.timers_late += 1;
            let rounds = if probe { 2 } else { 1 };
            self.arm(now_ms, rounds * self.config.probe_rtt_ms, Pending::Foca { timer, postponed: true }, out);
            return;
        }
        if self.foca.handle_timer(timer, &mut self.requests).is_err() {
            self.counters.probes_late += 1;
        }
        let failed = self.requests.timers.iter().any(|(_, timer)| matches!(timer, Timer::ChangeSuspectToDown { .. }));
        if probe && !failed {
            self.suspicions.improve_health();
        }
    }

    /// Arms the timers that foca asked for, except those of suspicions: the core times them itself.
    pub(super) fn arm_foca_timers(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let mut timers = std::mem::take(&mut self.requests.timers);
        for (after, timer) in timers.drain(..) {
            let after_ms = millis(after);
            match &timer {
                Timer::ChangeSuspectToDown { member_id, incarnation, .. } => {
                    self.requests.touched.insert(member_id.key);
                    self.begin_suspicion(now_ms, member_id, *incarnation, out);
                }
                Timer::ProbeRandomMember(_) | Timer::SendIndirectProbe { .. } => {
                    let next = matches!(timer, Timer::ProbeRandomMember(_));
                    let after_ms = if next { self.config.probe_every_ms(self.sized_for) } else { after_ms };
                    let after_ms = after_ms * u64::from(1 + self.suspicions.health());
                    self.arm(now_ms, after_ms, Pending::Foca { timer, postponed: false }, out);
                }
                Timer::PeriodicAnnounce(_) | Timer::PeriodicAnnounceDown(_) | Timer::PeriodicGossip(_) | Timer::RemoveDown(_) => {
                    self.arm(now_ms, after_ms, Pending::Foca { timer, postponed: false }, out);
                }
            }
        }
        timers.append(&mut self.requests.timers);
        self.requests.timers = timers;
    }

    fn begin_suspicion(&mut self, now_ms: u64, peer: &Peer, incarnation: u16, out: &mut Vec<Output>) {
        let before = self.view.of(peer.key).is_some_and(|(known, entry)| known == peer && entry.liveness == Liveness::Suspect);
        let Some(accusation) = self.suspicions.hold(now_ms, self.me.key, peer.clone(), incarnation, before) else { return };
        self.counters.suspicions += 1;
        if self.accused.len() == ACCUSATIONS_MAX {
            self.accused.pop_front();
        }
        self.accused.push_back(accusation);
        if let Some(fact) = self.fact() {
            self.publish_fact(&fact);
        }
        self.arm_suspicion_check(now_ms, peer.key, out);
    }

    /// The node `who` reports that its own probe found a suspect silent.
    pub(super) fn handle_accusation(&mut self, now_ms: u64, accusation: Accusation, who: u64, out: &mut Vec<Output>) {
        if who == self.me.key || !self.suspicions.accuse(now_ms, accusation, who) {
            return;
        }
        if let Some(node) = self.suspicions.suspect(accusation) {
            self.news.push(News::Confirmed(node.clone()));
        }
        if let Some(key) = self.suspicions.confirm(accusation) {
            self.arm_suspicion_check(now_ms, key, out);
        }
    }

    /// Arms a check of a suspicion for the time at which patience with it ends, as far as is known
    /// now.
    pub(super) fn arm_suspicion_check(&mut self, now_ms: u64, key: u64, out: &mut Vec<Output>) {
        if let Some(due_ms) = self.suspicions.due_ms(key, self.me.key, &self.config, self.sized_for)
            && self.suspicions.reschedule_if_sooner(key, now_ms, due_ms)
        {
            self.arm(now_ms, due_ms.saturating_sub(now_ms), Pending::Patience(key), out);
        }
    }

    /// A check that was due at `due_ms`: the suspect of this key may have had its time to refute.
    pub(super) fn check_suspicion(&mut self, now_ms: u64, due_ms: u64, key: u64, out: &mut Vec<Output>) {
        // A Defunct node decides nothing: when it rejoins, it checks its suspects again.
        if let Stage::Defunct = self.stage {
            return;
        }
        if self.is_late(now_ms, due_ms) {
            self.suspicions.postpone(key, now_ms + self.config.suspect_after_ms);
        }
        match self.suspicions.due_ms(key, self.me.key, &self.config, self.sized_for) {
            None => {}
            Some(window_ms) if window_ms > now_ms => self.arm_suspicion_check(now_ms, key, out),
            Some(_) => self.declare_down(key),
        }
    }

    /// Declares the suspect of this key Down, unless it has refuted or has another identity by now,
    /// and notifies it.
    fn declare_down(&mut self, key: u64) {
        let Some((suspect, incarnation)) = self.suspicions.give_up(key) else { return };
        let is_still =
            |(known, entry): (&Peer, &Entry)| *known == suspect && (entry.liveness, entry.refutations) == (Liveness::Suspect, incarnation);
        if !self.view.of(key).is_some_and(is_still) {
            return;
        }
        self.requests.touched.insert(key);
        let down = foca::Member::new(suspect.clone(), incarnation, State::Down);
        // Only encoding could fail.
        let _ = self.foca.apply_many([down].into_iter(), true, &mut self.requests);
        self.send(suspect.addr, KIND_FOCA, turn_undead(&self.me, self.incarnation(), suspect));
    }

    /// Pings suspects with the suspicion, so that each one that is alive refutes it in its answer.
    /// Gossip may not have reached a suspect that was cut off, and we answer its probes whether we
    /// suspect it or not.
    ///
    /// Nodes that found the suspect silent ping it. Other nodes ping it once the suspicion should
    /// have been decided: they missed the decision.
    pub(super) fn ping_suspects(&mut self, now_ms: u64) {
        let (_, longest_ms) = self.config.patience_ms(self.sized_for);
        let is_overdue = |key| self.view.of(key).is_some_and(|(_, entry)| now_ms.saturating_sub(entry.since_ms) > longest_ms);
        let asked: Vec<u64> = self.suspicions.suspects_to_ping(self.last_pinged_suspect, is_overdue).take(SUSPECTS_PINGED_MAX).collect();
        for key in asked {
            self.last_pinged_suspect = key;
            let Some((suspect, entry)) = self.view.of(key) else { continue };
            let ping = suspicion_ping(&self.me, self.incarnation(), suspect.clone(), entry.refutations);
            self.send(suspect.addr, KIND_FOCA, ping);
        }
    }

    /// foca's own incarnation of this node, from the last header that foca wrote.
    pub(super) fn incarnation(&self) -> u16 {
        u16::try_from(self.refuted.load(Ordering::Relaxed)).unwrap_or(u16::MAX)
    }

    /// Whether a timer came so late that this node must have been suspended.
    fn is_late(&self, now_ms: u64, due_ms: u64) -> bool {
        now_ms.saturating_sub(due_ms) > self.config.probe_rtt_ms
    }

    /// Counts foca's refutations: a node that has to refute was too slow to answer.
    pub(super) fn count_refutations(&mut self) {
        let refuted = self.refuted.load(Ordering::Relaxed);
        if refuted > self.refuted_counted {
            self.counters.refutations += 1;
            self.suspicions.worsen_health();
        }
        self.refuted_counted = refuted;
    }
}
