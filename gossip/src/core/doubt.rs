//! What the core makes of silence: foca's timers, slower where this node is slow itself, and suspicions that wait for
//! others to confirm them. The reckoning is in `suspicion.rs`.

use super::{Core, Output, Pending};
use crate::fact::ACCUSATIONS_MAX;
use crate::peer::Peer;
use crate::suspicion::Accusation;
use crate::view::{Liveness, News};
use foca::Timer;
use std::sync::atomic::Ordering;

impl Core {
    /// One of foca's timers has fired, which was due at `due_ms`; `again`: it was put off once.
    pub(super) fn foca_timer(&mut self, now_ms: u64, due_ms: u64, timer: Timer<Peer>, again: bool, out: &mut Vec<Output>) {
        let (probe, indirect) = (matches!(timer, Timer::ProbeRandomMember(_)), matches!(timer, Timer::SendIndirectProbe { .. }));
        if (probe || indirect) && self.is_late(now_ms, due_ms) && !again {
            // This node was away. What came meanwhile lies in its socket, the answer to the probe perhaps among it: that is
            // read first, and others get the time to be asked.
            self.suspicions.unwell();
            self.counters.timers_late += 1;
            let rounds = if probe { 2 } else { 1 };
            self.arm(now_ms, rounds * self.config.probe_rtt_ms, Pending::Foca { timer, again: true }, out);
            return;
        }
        if self.foca.handle_timer(timer, &mut self.wishes).is_err() {
            self.counters.probes_late += 1;
        }
        let failed = self.wishes.timers.iter().any(|(_, timer)| matches!(timer, Timer::ChangeSuspectToDown { .. }));
        if probe && !failed {
            self.suspicions.well();
        }
    }

    /// Arms what foca asked for. Its suspicions wait for our patience instead.
    pub(super) fn give_timers(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let mut timers = std::mem::take(&mut self.wishes.timers);
        for (after, timer) in timers.drain(..) {
            let after_ms = after.as_millis() as u64;
            match &timer {
                Timer::ChangeSuspectToDown { member_id, .. } => {
                    let peer = member_id.clone();
                    self.wishes.touched.insert(peer.key);
                    self.suspect(now_ms, &peer, timer, out);
                }
                Timer::ProbeRandomMember(_) | Timer::SendIndirectProbe { .. } => {
                    let next = matches!(timer, Timer::ProbeRandomMember(_));
                    let after_ms = if next { self.config.probe_every_ms(self.sized_for) } else { after_ms };
                    let after_ms = after_ms * u64::from(1 + self.suspicions.health());
                    self.arm(now_ms, after_ms, Pending::Foca { timer, again: false }, out);
                }
                Timer::PeriodicAnnounce(_) | Timer::PeriodicAnnounceDown(_) | Timer::PeriodicGossip(_) | Timer::RemoveDown(_) => {
                    self.arm(now_ms, after_ms, Pending::Foca { timer, again: false }, out);
                }
            }
        }
        timers.append(&mut self.wishes.timers);
        self.wishes.timers = timers;
    }

    fn suspect(&mut self, now_ms: u64, peer: &Peer, timer: Timer<Peer>, out: &mut Vec<Output>) {
        let before = self.view.of(peer.key).is_some_and(|(known, entry)| known == peer && entry.liveness == Liveness::Suspect);
        let Some(accusation) = self.suspicions.hold(now_ms, self.me.key, timer, before) else { return };
        self.counters.suspicions += 1;
        if self.accused.len() == ACCUSATIONS_MAX {
            self.accused.pop_front();
        }
        self.accused.push_back(accusation);
        if let Some(fact) = self.fact() {
            self.tell_fact(&fact);
        }
        self.wait_for(now_ms, peer.key, out);
    }

    /// A node says that its own probe found a suspect silent.
    pub(super) fn accused_by(&mut self, now_ms: u64, accusation: Accusation, who: u64, out: &mut Vec<Output>) {
        if who == self.me.key || !self.suspicions.accuse(now_ms, accusation, who) {
            return;
        }
        if let Some(node) = self.suspicions.suspect(accusation) {
            self.news.push(News::Confirmed(node.clone()));
        }
        if let Some(key) = self.suspicions.confirmed(accusation) {
            self.wait_for(now_ms, key, out);
        }
    }

    /// Looks at a suspicion again when patience with it ends, as things are now.
    fn wait_for(&mut self, now_ms: u64, key: u64, out: &mut Vec<Output>) {
        if let Some(due_ms) = self.suspicions.due_ms(key, self.me.key, &self.config, self.sized_for)
            && self.suspicions.is_sooner(key, now_ms, due_ms)
        {
            self.arm(now_ms, due_ms.saturating_sub(now_ms), Pending::Patience(key), out);
        }
    }

    /// Patience with the suspect of this key was to end at `due_ms`.
    pub(super) fn patience_over(&mut self, now_ms: u64, due_ms: u64, key: u64, out: &mut Vec<Output>) {
        if self.is_late(now_ms, due_ms) {
            self.suspicions.put_off(key, now_ms + self.config.suspect_after_ms);
        }
        match self.suspicions.due_ms(key, self.me.key, &self.config, self.sized_for) {
            None => {}
            Some(over_ms) if over_ms > now_ms => self.wait_for(now_ms, key, out),
            Some(_) => {
                if let Some(timer) = self.suspicions.end(key) {
                    self.wishes.touched.insert(key);
                    // Only encoding could fail.
                    let _ = self.foca.handle_timer(timer, &mut self.wishes);
                }
            }
        }
    }

    /// Whether a timer came so late that this node must have stood still.
    fn is_late(&self, now_ms: u64, due_ms: u64) -> bool {
        now_ms.saturating_sub(due_ms) > self.config.probe_rtt_ms
    }

    /// Counts what foca refuted: who has to, was too slow to answer.
    pub(super) fn count_refutations(&mut self) {
        let refuted = self.refuted.load(Ordering::Relaxed);
        if refuted > self.refuted_counted {
            self.counters.refutations += 1;
            self.suspicions.unwell();
        }
        self.refuted_counted = refuted;
    }
}
