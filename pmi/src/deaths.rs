//! Reports of dead ranks of a launch to the PMIx servers of all its nodes.
//!
//! ```text
//!   node 3 ─ who died there ─▶ node 0 ─ all who died ─▶ nodes 1, 2, 3 …
//! ```
//!
//! From one node to another there is at most one unanswered call. Deaths that happen meanwhile go
//! into the next call. So if all ranks of a launch die at once, each node needs only a few calls,
//! and one more for every `DEATHS_PER_CALL` deaths.

use lattice_model::call::{Call, CallKind, Service};
use std::collections::BTreeSet;

/// Wire size of a death in bytes: rank and exit code, four bytes each, little-endian.
const DEATH_BYTES: usize = 8;
/// Largest number of deaths in one call.
const DEATHS_PER_CALL: usize = 4096;
/// The body of an answer; an empty body would mean that the service is not available.
const ACKNOWLEDGED: &[u8] = b"heard";

/// The death of a rank: it ended with a code other than 0, by a signal (128 + its number), or with
/// code 0 between init and finalize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    pub rank: u32,
    pub code: i32,
}

/// Another node that receives reports.
#[derive(Debug)]
struct Listener {
    part: u32,
    /// Number of deaths that it has acknowledged.
    acknowledged: usize,
    /// The unanswered call to it, and the value of `acknowledged` after its answer.
    pending: Option<(Call, usize)>,
}

/// The deaths known on one node.
#[derive(Debug)]
pub struct Deaths {
    part: u32,
    number: u64,
    /// The deaths to report to other nodes, in order of arrival.
    to_report: Vec<Death>,
    /// The ranks of all deaths known here.
    known: BTreeSet<u32>,
    listeners: Vec<Listener>,
}

impl Deaths {
    /// For a launch on `parts` nodes, on its node `part`.
    pub fn new(part: u32, parts: u32) -> Self {
        let listeners = if part == 0 { 1..parts } else { 0..1 };
        let listeners = listeners.map(|part| Listener { part, acknowledged: 0, pending: None }).collect();
        Self { part, number: 0, to_report: Vec::new(), known: BTreeSet::new(), listeners }
    }

    /// Records the death of a rank, here or as reported by a call. Returns whether it is new, and
    /// appends the calls to make.
    pub fn died(&mut self, death: Death, calls: &mut Vec<Call>) -> bool {
        let is_new = self.known.insert(death.rank);
        if is_new {
            self.to_report.push(death);
            self.report(calls);
        }
        is_new
    }

    /// Handles a call or an answer from another node. `part_of` returns a rank's node. Returns the
    /// deaths that are new here.
    pub fn called(&mut self, call: &Call, part_of: impl Fn(u32) -> Option<u32>, calls: &mut Vec<Call>) -> Vec<Death> {
        match call.kind {
            CallKind::Request => self.handle_report(call, part_of, calls),
            CallKind::Reply => {
                let from = self.listeners.iter_mut().find(|listener| listener.part == call.from);
                if let Some(listener) = from
                    && let Some((_, acknowledged)) = listener.pending.take_if(|(pending, _)| pending.number == call.number)
                {
                    listener.acknowledged = acknowledged;
                    self.report(calls);
                }
                Vec::new()
            }
        }
    }

    fn handle_report(&mut self, call: &Call, part_of: impl Fn(u32) -> Option<u32>, calls: &mut Vec<Call>) -> Vec<Death> {
        // Node 0 accepts the report of a rank's death only from the node of that rank. Every other
        // node accepts reports only from node 0.
        let may_report = |rank: u32| part_of(rank).is_some_and(|part| call.from == if self.part == 0 { part } else { 0 });
        let deaths = decode_deaths(&call.body);
        if deaths.iter().any(|death| !may_report(death.rank)) || !call.body.len().is_multiple_of(DEATH_BYTES) {
            calls.extend(call.unserved());
            return Vec::new();
        }
        let new: Vec<Death> = deaths.into_iter().filter(|death| !self.known.contains(&death.rank)).collect();
        for death in &new {
            if self.part == 0 {
                self.died(*death, calls);
            } else {
                self.known.insert(death.rank);
            }
        }
        calls.push(call.answer(ACKNOWLEDGED.to_vec()));
        new
    }

    /// The unanswered calls.
    pub fn unanswered(&self) -> impl Iterator<Item = &Call> {
        self.listeners.iter().filter_map(|listener| listener.pending.as_ref().map(|(call, _)| call))
    }

    fn report(&mut self, calls: &mut Vec<Call>) {
        for listener in &mut self.listeners {
            if listener.pending.is_some() || listener.acknowledged == self.to_report.len() {
                continue;
            }
            let until = self.to_report.len().min(listener.acknowledged + DEATHS_PER_CALL);
            self.number += 1;
            let body = self.to_report[listener.acknowledged..until].iter().flat_map(|death| encode_death(*death)).collect();
            let (from, to, service, kind, number) = (self.part, listener.part, Service::Deaths, CallKind::Request, self.number);
            let call = Call { from, to, service, kind, number, body };
            calls.push(call.clone());
            listener.pending = Some((call, until));
        }
    }
}

fn encode_death(Death { rank, code }: Death) -> [u8; DEATH_BYTES] {
    let ([a, b, c, d], [e, f, g, h]) = (rank.to_le_bytes(), code.to_le_bytes());
    [a, b, c, d, e, f, g, h]
}

fn decode_deaths(body: &[u8]) -> Vec<Death> {
    let (deaths, _) = body.as_chunks::<DEATH_BYTES>();
    let one = |[a, b, c, d, e, f, g, h]: &[u8; DEATH_BYTES]| Death {
        rank: u32::from_le_bytes([*a, *b, *c, *d]),
        code: i32::from_le_bytes([*e, *f, *g, *h]),
    };
    deaths.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    const PARTS: u32 = 4;
    const RANKS: u32 = 40;

    fn part_of(rank: u32) -> Option<u32> {
        (rank < RANKS).then_some(rank % PARTS)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Dies(u32),
        /// The call at this index of those in transit arrives, or is lost.
        Arrives(prop::sample::Index),
        Lost(prop::sample::Index),
        /// A node repeats its unanswered calls.
        Again(u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..RANKS).prop_map(Step::Dies),
            any::<prop::sample::Index>().prop_map(Step::Arrives),
            any::<prop::sample::Index>().prop_map(Step::Lost),
            (0..PARTS).prop_map(Step::Again),
        ];
        prop::collection::vec(step, 0..100)
    }

    /// The servers of a launch, what they learned from calls, and the messages in transit.
    struct Launch {
        nodes: Vec<Deaths>,
        reported: Vec<BTreeMap<u32, i32>>,
        in_transit: VecDeque<Call>,
    }

    impl Launch {
        fn new() -> Self {
            let nodes = (0..PARTS).map(|part| Deaths::new(part, PARTS)).collect();
            Self { nodes, reported: vec![BTreeMap::new(); PARTS as usize], in_transit: VecDeque::new() }
        }

        fn dies(&mut self, rank: u32) {
            let mut calls = Vec::new();
            let at = part_of(rank).unwrap();
            self.nodes[at as usize].died(Death { rank, code: 100 + rank.cast_signed() }, &mut calls);
            self.in_transit.extend(calls);
        }

        fn arrives(&mut self, call: &Call) {
            let mut calls = Vec::new();
            let at = call.to as usize;
            for death in self.nodes[at].called(call, part_of, &mut calls) {
                assert_eq!(self.reported[at].insert(death.rank, death.code), None, "told once");
            }
            self.in_transit.extend(calls);
        }

        fn again(&mut self, part: u32) {
            self.in_transit.extend(self.nodes[part as usize].unanswered().cloned());
        }
    }

    proptest! {
        #[test]
        fn each_death_is_reported_once_to_each_node_whatever_is_lost(steps in steps()) {
            let mut launch = Launch::new();
            let mut dead = BTreeSet::new();
            for step in steps {
                match step {
                    Step::Dies(rank) => {
                        dead.insert(rank);
                        launch.dies(rank);
                    }
                    Step::Arrives(at) if !launch.in_transit.is_empty() => {
                        let call = launch.in_transit.remove(at.index(launch.in_transit.len())).unwrap();
                        launch.arrives(&call);
                    }
                    Step::Lost(at) if !launch.in_transit.is_empty() => drop(launch.in_transit.remove(at.index(launch.in_transit.len()))),
                    Step::Arrives(_) | Step::Lost(_) => {}
                    Step::Again(part) => launch.again(part),
                }
            }
            // Finally all unanswered calls are repeated, without further losses.
            while launch.nodes.iter().any(|node| node.unanswered().next().is_some()) {
                (0..PARTS).for_each(|part| launch.again(part));
                while let Some(call) = launch.in_transit.pop_front() {
                    launch.arrives(&call);
                }
            }
            for (part, reported) in (0..).zip(&launch.reported) {
                let of_others: BTreeMap<u32, i32> =
                    dead.iter().filter(|rank| part_of(**rank) != Some(part)).map(|rank| (*rank, 100 + rank.cast_signed())).collect();
                prop_assert_eq!(reported, &of_others);
            }
        }

        #[test]
        fn a_call_of_any_bytes_is_answered_and_reports_only_ranks_of_its_sender(
            part in 0..PARTS, from in 0..PARTS, body in prop::collection::vec(any::<u8>(), 0..40)
        ) {
            let mut node = Deaths::new(part, PARTS);
            let call = Call { from, to: part, service: Service::Deaths, kind: CallKind::Request, number: 1, body };
            let mut calls = Vec::new();
            let new = node.called(&call, part_of, &mut calls);
            let own = new.iter().all(|death| part_of(death.rank).is_some_and(|of| from == if part == 0 { of } else { 0 }));
            prop_assert!(own);
            let answered = calls.iter().any(|answer| answer.kind == CallKind::Reply && answer.to == from && answer.number == 1);
            prop_assert!(answered);
        }
    }

    #[test]
    fn a_launch_whose_ranks_die_at_once_needs_few_calls_for_each_node() {
        let mut launch = Launch::new();
        (0..RANKS).for_each(|rank| launch.dies(rank));
        let mut calls = 0;
        while let Some(call) = launch.in_transit.pop_front() {
            calls += 1;
            launch.arrives(&call);
        }
        assert!(calls <= 10 * (PARTS - 1), "{calls} calls for {RANKS} deaths on {PARTS} nodes");
    }
}
