//! When the core compares its view with whom, and what it makes of the answer. The messages are in `sync.rs`.

use super::{Core, others};
use crate::counters::Refusal;
use crate::peer::Peer;
use crate::sync::{Pull, Range, Record, Records, tag};
use crate::view::Liveness;
use crate::wire::{KIND_PULL, KIND_RECORDS};
use foca::State;
use lattice_model::NodeId;
use rand_foca::RngExt;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// How far comparing has come.
#[derive(Default)]
pub(super) struct CatchUp {
    asked: Option<Asked>,
    /// Where the next stretch begins.
    after: Option<NodeId>,
    pulled_ms: u64,
    /// Whether the last comparison came to the end of the view and found nothing new; until then there is one at every tick.
    done: bool,
}

/// A pull that waits for its answer. There is one at a time; a later one takes its place.
struct Asked {
    to: Peer,
    nonce: u64,
    range: Range,
}

impl Core {
    /// We have just joined, by word of somebody at `heard_from`.
    pub(super) fn catch_up_with(&mut self, now_ms: u64, heard_from: Option<SocketAddr>) {
        self.catch_up.done = false;
        self.catch_up.after = None;
        // Who let us in knows us already; others may not, and would not answer.
        let host = self.view.others().find(|entry| Some(entry.member.addr) == heard_from).map(|entry| entry.peer.clone());
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
        let count = self.view.others().filter(|entry| entry.member.liveness == Liveness::Alive).count();
        if count == 0 {
            return;
        }
        let chosen = self.rng.random_range(0..count);
        let to = self.view.others().filter(|entry| entry.member.liveness == Liveness::Alive).nth(chosen).map(|e| e.peer.clone());
        if let Some(to) = to {
            let range = Range { after: self.catch_up.after.take(), upto: None };
            self.pull(to, range);
        }
    }

    /// Pulls `range`, or as much of its beginning as one datagram can hold the tags of.
    fn pull(&mut self, to: Peer, mut range: Range) {
        let states = self.states();
        let facts = self.facts.book();
        let mut tags = Vec::new();
        let mut last = None;
        for (node, (peer, state)) in states.range::<NodeId, _>(range.bounds()) {
            if tags.len() == Pull::tags_max(self.body_bytes_max) {
                range.upto = last;
                break;
            }
            tags.push(tag(peer, *state, facts.get(node).map(|known| known.version)));
            last = Some((*node).clone());
        }
        drop(facts);
        drop(states);
        let nonce = self.rng.random();
        let pull = Pull { from: self.me.clone(), to: to.clone(), nonce, range: range.clone(), tags };
        self.send(to.addr, KIND_PULL, pull.encode());
        self.catch_up.asked = Some(Asked { to, nonce, range });
    }

    pub(super) fn answer(&mut self, pull: &Pull) {
        // One that does not know who we are now hears so from foca.
        if pull.to != self.me {
            return;
        }
        // Who asks is there: among many that start together, most do not know each other yet. Only encoding could fail.
        if !self.view.is_active(&pull.from) {
            let _ = self.foca.apply_many([foca::Member::alive(pull.from.clone())].into_iter(), true, &mut self.wishes);
        }
        // Unless we hold that very identity for Down, or know a later one.
        if !others(&self.foca, self.me.key).any(|member| *member.id() == pull.from && member.state() != State::Down) {
            return;
        }
        let have: BTreeSet<u64> = pull.tags.iter().copied().collect();
        let listed: BTreeMap<&NodeId, &foca::Member<Peer>> = others(&self.foca, self.me.key).map(|m| (&m.id().node, m)).collect();
        let ourselves = foca::Member::alive(self.me.clone());
        let facts = self.facts.book();
        let mut lacking: Vec<Record> = listed
            .range::<NodeId, _>(pull.range.bounds())
            .map(|(_, member)| *member)
            .chain(self.view.entries.range::<NodeId, _>(pull.range.bounds()).filter(|(n, _)| **n == self.me.node).map(|_| &ourselves))
            .filter(|m| !have.contains(&tag(m.id(), m.state(), facts.get(&m.id().node).map(|known| known.version))))
            .map(|member| Record::new(member, &facts))
            .collect();
        lacking.sort_by(|a, b| a.member.id().node.cmp(&b.member.id().node));
        drop(facts);
        let answer = Records::answer(&self.me, pull, lacking, self.body_bytes_max);
        self.send(pull.from.addr, KIND_RECORDS, answer.encode());
    }

    pub(super) fn learn(&mut self, now_ms: u64, records: Records) -> Result<(), Refusal> {
        let Some(asked) = self.catch_up.asked.take_if(|asked| asked.nonce == records.nonce && asked.to == records.from) else {
            return Ok(());
        };
        if records.to != self.me || !self.view.is_active(&records.from) {
            return Ok(());
        }
        let something = !records.records.is_empty();
        let (mut members, mut malformed) = (Vec::new(), false);
        {
            let mut facts = self.facts.book();
            for record in records.records {
                malformed |= !record.fact_item.is_empty() && facts.learn(&record.fact_item, false).is_err();
                // The dead whom we do not know we do not learn about: nodes would remind each other of them for ever.
                if record.member.state() != State::Down || self.view.entries.contains_key(&record.member.id().node) {
                    members.push(record.member);
                }
            }
        }
        self.wishes.view_changed = true;
        // Only encoding could fail, and what was decoded fits again.
        let _ = self.foca.apply_many(members.into_iter(), false, &mut self.wishes);

        // The rest of what we asked for, then the next stretch: at once as long as there is something new.
        let rest = match records.covered {
            Some(covered) if asked.range.after.as_ref().is_none_or(|after| covered > *after) => {
                Some(Range { after: Some(covered), upto: asked.range.upto.clone() }).filter(Range::is_sound)
            }
            Some(_) => return Err(Refusal::Undecodable),
            None => None,
        };
        match rest {
            Some(rest) => self.pull(asked.to, rest),
            None => {
                self.catch_up.after = asked.range.upto;
                self.catch_up.done = self.catch_up.after.is_none() && !something;
                if something && self.catch_up.after.is_some() {
                    self.pull_from_anyone(now_ms);
                }
            }
        }
        if malformed { Err(Refusal::Undecodable) } else { Ok(()) }
    }

    /// Everybody's identity and state, ourselves included, by name.
    fn states(&self) -> BTreeMap<&NodeId, (&Peer, State)> {
        let listed = others(&self.foca, self.me.key).map(|member| (&member.id().node, (member.id(), member.state())));
        listed.chain([(&self.me.node, (&self.me, State::Alive))]).collect()
    }
}
