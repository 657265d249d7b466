//! When and with which node the core compares its view, and how it uses the answer. The messages
//! are in `sync.rs`.

use super::Core;
use super::progress::PendingPull;
use crate::counters::Refusal;
use crate::peer::Peer;
use crate::sync::{Pull, Range, Record, Records, Tags};
use crate::wire::{KIND_PULL, KIND_RECORDS};
use foca::State;
use lattice_model::NodeId;
use rand_foca::RngExt;
use std::net::SocketAddr;

impl Core {
    /// Begins to compare views, when this node has just joined. `sender`: the node that answered.
    pub(super) fn begin_catch_up(&mut self, now_ms: u64, sender: Option<SocketAddr>) {
        self.catch_up.done = false;
        self.catch_up.after = None;
        // The node that let us in knows us already; others may not, and would not answer.
        let host = self.view.others().find(|(peer, _)| Some(peer.addr) == sender).map(|(peer, _)| peer.clone());
        match host {
            Some(host) => {
                self.catch_up.pulled_ms = now_ms;
                self.pull(host, Range::default());
            }
            None => self.pull_from_anyone(now_ms),
        }
    }

    pub(super) fn compare_when_due(&mut self, now_ms: u64) {
        if !self.catch_up.done || now_ms.saturating_sub(self.catch_up.pulled_ms) >= self.config.sync_period_ms {
            self.pull_from_anyone(now_ms);
        }
    }

    fn pull_from_anyone(&mut self, now_ms: u64) {
        self.catch_up.pulled_ms = now_ms;
        // The first node alive after a random position of foca's list: searching all of the list
        // costs more than the answer.
        let all = || self.foca.iter_membership_state();
        let place = self.rng.random_range(0..all().len().max(1));
        let alive = |member: &&foca::Member<Peer>| member.state() == State::Alive && member.id().key != self.me.key;
        let to = all().skip(place).chain(all().take(place)).find(alive).map(|member| member.id().clone());
        if let Some(to) = to {
            let range = Range { after: self.catch_up.after.take(), upto: None };
            self.pull(to, range);
        }
    }

    /// Pulls `range`, or as much of its beginning as the tags in one datagram cover.
    fn pull(&mut self, to: Peer, mut range: Range) {
        let mut tags = Vec::with_capacity(Pull::tags_max(self.body_bytes_max).min(self.view.len()));
        let mut last: Option<&NodeId> = None;
        let mut upto = range.upto.clone();
        for (peer, entry) in self.view.within(range.bounds()) {
            if tags.len() == Pull::tags_max(self.body_bytes_max) {
                upto = last.cloned();
                break;
            }
            tags.push(entry.tag);
            last = Some(&peer.node);
        }
        range.upto = upto;
        let nonce = self.rng.random();
        let pull = Pull { from: self.me.clone(), to: to.clone(), nonce, range: range.clone(), tags };
        self.send(to.addr, KIND_PULL, pull.encode());
        self.catch_up.pending_pull = Some(PendingPull { to, nonce, range });
    }

    pub(super) fn answer_pull(&mut self, now_ms: u64, pull: &Pull) {
        if pull.to.outranks_own(&self.me) {
            self.handle_contradiction(now_ms, pull.to.incarnation);
        }
        // The pull is addressed to another identity of ours. foca sends our present identity to
        // nodes that do not know it.
        if pull.to != self.me {
            return;
        }
        // The sender of the pull is alive: when many nodes start together, most do not know each
        // other yet. Only encoding could fail.
        if !self.view.is_active(&pull.from) {
            let _ = self.foca.apply_many([foca::Member::alive(pull.from.clone())].into_iter(), true, &mut self.requests);
            self.requests.touched.insert(pull.from.key);
            self.refresh(now_ms);
        }
        // Still inactive: we know this very identity as Down, or a later one of that node.
        if !self.view.is_active(&pull.from) {
            return;
        }
        let mut have = Tags::new(&pull.tags);
        let facts = self.facts.book();
        let all = self.view.within(pull.range.bounds());
        let lacking = all.filter(|(_, entry)| !have.contains(entry.tag));
        let lacking = lacking.map(|(peer, entry)| Record::new(foca::Member::new(peer.clone(), entry.refutations, entry.state()), &facts));
        let answer = Records::answer(&self.me, pull, lacking, self.body_bytes_max);
        drop(facts);
        self.send(pull.from.addr, KIND_RECORDS, answer.encode());
    }

    pub(super) fn handle_records(&mut self, now_ms: u64, records: Records) -> Result<(), Refusal> {
        let Some(pending_pull) =
            self.catch_up.pending_pull.take_if(|pending_pull| pending_pull.nonce == records.nonce && pending_pull.to == records.from)
        else {
            return Ok(());
        };
        if records.to != self.me || !self.view.is_active(&records.from) {
            return Ok(());
        }
        let something = !records.records.is_empty();
        let newest_life = self.newest_life(now_ms);
        let (mut members, mut malformed, mut claims) = (Vec::new(), false, None);
        {
            let mut facts = self.facts.book();
            for record in records.records {
                malformed |= !record.fact_item.is_empty() && facts.learn(&record.fact_item, false).is_err();
                let peer = record.member.id();
                if peer.outranks_own(&self.me) {
                    claims = claims.max(Some(peer.incarnation));
                    continue;
                }
                if self.view.is_ahead(peer, newest_life) {
                    self.counters.claims_refused += 1;
                    continue;
                }
                // Unknown nodes that are Down are not added: nodes would remind each other of them
                // for ever.
                let unknown = self.view.of(record.member.id().key).is_none();
                if self.view.is_news(&record.member) && !(unknown && record.member.state() == State::Down) {
                    self.requests.touched.insert(record.member.id().key);
                    members.push(record.member);
                }
            }
        }
        if let Some(life) = claims {
            self.handle_contradiction(now_ms, life);
        }
        // Only encoding could fail, and what was decoded fits when it is encoded again.
        let _ = self.foca.apply_many(members.into_iter(), false, &mut self.requests);
        self.refresh(now_ms);

        // The rest of the requested range is pulled at once, the next range at a later tick: when
        // thousands start together there is always something new, and pulling without a pause would
        // be most of the traffic.
        let rest = match records.covered {
            Some(covered) if pending_pull.range.after.as_ref().is_none_or(|after| covered > *after) => {
                Some(Range { after: Some(covered), upto: pending_pull.range.upto.clone() }).filter(Range::is_nonempty)
            }
            Some(_) => return Err(Refusal::Undecodable),
            None => None,
        };
        match rest {
            Some(rest) => self.pull(pending_pull.to, rest),
            None => {
                self.catch_up.after = pending_pull.range.upto;
                self.catch_up.done = !something && (self.catch_up.done || self.catch_up.after.is_none());
            }
        }
        if malformed { Err(Refusal::Undecodable) } else { Ok(()) }
    }
}
