//! Which lives of nodes the core accepts, and how a node outranks a life that another published in
//! its name.
//!
//! ```text
//!   an unknown life too far ahead of this machine's clock ──▶ refused, whoever sends it
//!   a datagram of an outranked life ──▶ refused, and answered with the later life ──╮
//!   a later life, or fact, of this node that it never published ◀───────────────────╯
//!        ╰──▶ rejoin in the life above it, and publish that this node is contradicted
//! ```
//!
//! All nodes seal with one key, so its holder can send in any node's name. A life is a time in
//! milliseconds, and others accept one at most [`LIFE_AHEAD_MS_MAX`] ahead of their clocks. So the
//! node itself finds a higher life that others accept, and rejoins in it as soon as it receives the
//! forged one.

use super::{Core, Stage};
use crate::config::LIFE_AHEAD_MS_MAX;
use crate::counters::Refusal;
use crate::fact::KnownFact;
use crate::peer::Peer;
use crate::view::News;
use crate::wire::{KIND_FOCA, update_for};

/// For how many milliseconds after the last contradiction a node publishes that it is contradicted.
const CONTRADICTED_MS: u64 = 3_600_000;

impl Core {
    /// Sets the machine's clock: it shows `unix_ms` when the caller's monotonic clock shows
    /// `now_ms`. Call it again whenever the clock may have been set: it bounds the lives that are
    /// accepted.
    pub fn set_clock(&mut self, now_ms: u64, unix_ms: u64) {
        self.clock_offset_ms = unix_ms.saturating_sub(now_ms);
    }

    /// The latest life of any node that this core accepts if it does not know that life yet.
    pub(super) fn newest_life(&self, now_ms: u64) -> u64 {
        self.clock_life(now_ms).saturating_add(LIFE_AHEAD_MS_MAX)
    }

    fn clock_life(&self, now_ms: u64) -> u64 {
        now_ms.saturating_add(self.clock_offset_ms)
    }

    /// Checks that a message's sender is the node and life that sealed it, and that no later life
    /// of that node is known. If one is known, this node sends that life to the sender.
    pub(super) fn check_sender(&mut self, sealed_by: (u64, u64), from: &Peer) -> Result<(), Refusal> {
        if (from.key, from.incarnation) != sealed_by {
            return Err(Refusal::OtherSender);
        }
        let Some((known, entry)) = self.view.of(from.key).filter(|(known, _)| known.outranks(from)) else { return Ok(()) };
        let later = foca::Member::new(known.clone(), entry.refutations, entry.state());
        let notice = update_for(&self.me, self.incarnation(), from.clone(), &later);
        self.send(from.addr, KIND_FOCA, notice);
        Err(Refusal::StaleLife)
    }

    /// Handles a notice that others know this node in the life `life`, or have a fact of that life,
    /// which this node never published.
    pub(super) fn handle_contradiction(&mut self, now_ms: u64, life: u64) {
        // If this machine's clock is right, no other core accepts that life. If it is slow, another
        // notice comes, and is handled once the life is within the bound.
        if life > self.newest_life(now_ms) {
            self.counters.claims_refused += 1;
            return;
        }
        self.counters.contradictions += 1;
        self.next_life = self.next_life.max(Some(life.saturating_add(1)));
        self.contradicted_until_ms = Some(now_ms + CONTRADICTED_MS);
        self.requests.stage = Some(Stage::Defunct);
    }

    /// The identity under which this node rejoins.
    pub(super) fn next_identity(&mut self) -> Peer {
        self.next_life.take().map_or_else(|| self.me.renewed(), |life| self.me.in_life(life))
    }

    /// Runs at every tick. An agent that started with its clock far ahead has a life that others
    /// refuse: once the clock is right, and while this node is not joined, it takes a life of the
    /// right clock. Also ends a contradiction whose time is over.
    pub(super) fn check_own_life(&mut self, now_ms: u64) {
        if matches!(self.stage, Stage::Apart) && self.me.incarnation > self.newest_life(now_ms) {
            self.next_life = Some(self.clock_life(now_ms));
            self.requests.stage = Some(Stage::Defunct);
        }
        if self.contradicted_until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            self.end_contradiction();
        }
    }

    /// Ends a contradiction, if there is one, and publishes this node's fact again without it.
    pub(super) fn end_contradiction(&mut self) {
        if self.contradicted_until_ms.take().is_some()
            && let Some(fact) = self.fact()
        {
            self.publish_fact(&fact);
        }
    }

    /// Records whether a node is contradicted, as its newest fact states, and reports a change.
    pub(super) fn record_contradiction(&mut self, now_ms: u64, fact: &KnownFact) {
        match (fact.contradicted, self.contradicted.contains_key(&fact.key)) {
            (true, false) => {
                self.contradicted.insert(fact.key, now_ms);
                self.news.push(News::Contradicted(fact.node.clone()));
            }
            (false, true) => {
                self.contradicted.remove(&fact.key);
                self.news.push(News::Fact(fact.node.clone()));
            }
            (true, true) | (false, false) => {}
        }
    }
}

#[cfg(test)]
#[path = "lives_tests.rs"]
mod tests;
