//! Heartbeats that this member received. They are only in memory; once a second or more often, they
//! are sent to the leader in one summary.

use lattice_ledger::Ledger;
use lattice_model::{Incarnation, NodeId};
use lattice_quorum_client::wire::{HeldKeys, NodeHealth};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;
use tokio::sync::watch;

/// The latest heartbeat of a node.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    pub incarnation: Incarnation,
    pub at: Instant,
    /// The gossip keys that it last reported; `None`: not reported.
    pub keys: Option<HeldKeys>,
    /// The health that it last reported; `None`: not reported.
    pub health: Option<NodeHealth>,
}

/// The heartbeats since the last summary.
#[derive(Debug)]
pub struct Heartbeats {
    fresh: Mutex<HashMap<NodeId, Heartbeat>>,
    /// The leader has every heartbeat that was received before this moment.
    known: watch::Sender<Instant>,
}

impl Default for Heartbeats {
    fn default() -> Self {
        Self { fresh: Mutex::new(HashMap::new()), known: watch::Sender::new(Instant::now()) }
    }
}

impl Heartbeat {
    /// Merges another heartbeat of this node; heartbeats may come in any order. One of an older
    /// incarnation is ignored.
    fn merge(&mut self, other: Self) {
        if other.incarnation < self.incarnation {
            return;
        }
        let (same_life, later) = (other.incarnation == self.incarnation, other.at >= self.at);
        *self = Self {
            incarnation: other.incarnation,
            at: self.at.max(other.at),
            keys: merge_report(same_life, later, self.keys.take(), other.keys),
            health: merge_report(same_life, later, self.health.take(), other.health),
        };
    }
}

/// A newer incarnation replaces the known report, even if it has not reported itself. Within one
/// incarnation the later report counts; if one of the two is missing, the other is used.
fn merge_report<T>(same_life: bool, later: bool, known: Option<T>, other: Option<T>) -> Option<T> {
    if !same_life || (later && other.is_some()) { other } else { known.or(other) }
}

/// The nodes' reports that this member has sent to the leader of one term. The leader remembers
/// them, so only changes are sent.
#[derive(Debug)]
pub struct SentToLeader<T> {
    term: u64,
    all: HashMap<NodeId, (Incarnation, T)>,
}

impl<T> Default for SentToLeader<T> {
    fn default() -> Self {
        Self { term: 0, all: HashMap::new() }
    }
}

impl<T: Clone + PartialEq> SentToLeader<T> {
    /// The reports that the leader of this term does not have yet; `of`: selects the part of a
    /// heartbeat.
    pub fn unsent(
        &mut self,
        term: u64,
        heartbeats: &HashMap<NodeId, Heartbeat>,
        of: impl Fn(&Heartbeat) -> Option<&T>,
    ) -> Vec<(NodeId, T)> {
        if self.term != term {
            *self = Self { term, all: HashMap::new() };
        }
        let reports = heartbeats.iter().filter_map(|(node, heartbeat)| Some((node, heartbeat.incarnation, of(heartbeat)?)));
        let new = reports.filter(|(node, life, report)| self.all.get(*node).is_none_or(|(of, known)| (of, known) != (life, *report)));
        new.map(|(node, _, report)| (node.clone(), report.clone())).collect()
    }

    /// Forgets the nodes that were removed.
    pub fn forget_removed(&mut self, ledger: &Ledger) {
        if self.all.len() > ledger.node_count() {
            self.all.retain(|node, _| ledger.node(node).is_some());
        }
    }

    /// Records that the leader has received these reports.
    pub fn mark_sent(&mut self, heartbeats: &HashMap<NodeId, Heartbeat>, reports: Vec<(NodeId, T)>) {
        let life = |node: &NodeId| heartbeats.get(node).map(|heartbeat| heartbeat.incarnation);
        self.all.extend(reports.into_iter().filter_map(|(node, report)| Some((node.clone(), (life(&node)?, report)))));
    }
}

impl Heartbeats {
    /// Records a heartbeat of the node.
    pub fn record(&self, node: NodeId, heartbeat: Heartbeat) {
        let mut fresh = self.fresh.lock();
        match fresh.entry(node) {
            Entry::Vacant(new) => drop(new.insert(heartbeat)),
            Entry::Occupied(mut known) => known.get_mut().merge(heartbeat),
        }
    }

    /// Takes everything since the last call.
    pub fn take(&self) -> HashMap<NodeId, Heartbeat> {
        std::mem::take(&mut *self.fresh.lock())
    }

    /// Records that the leader has every heartbeat that was received before `until`.
    pub fn leader_knows(&self, until: Instant) {
        self.known.send_replace(until);
    }

    /// The time up to which the leader has every heartbeat.
    pub fn known(&self) -> watch::Receiver<Instant> {
        self.known.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn later_reports_count_and_a_new_incarnation_starts_without_any() {
        let (heartbeats, began) = (Heartbeats::default(), Instant::now());
        let node: NodeId = "n1".parse().unwrap();
        let record = |incarnation, after_s, seals: Option<u32>| {
            let keys = seals.map(|seals| HeldKeys { opens: vec![seals], seals });
            let at = began + Duration::from_secs(after_s);
            heartbeats.record("n1".parse().unwrap(), Heartbeat { incarnation: Incarnation(incarnation), at, keys, health: None });
        };
        let taken = || {
            let heartbeat = heartbeats.take().remove(&node).unwrap();
            (heartbeat.incarnation.0, (heartbeat.at - began).as_secs(), heartbeat.keys.map(|k| k.seals))
        };
        record(1, 5, Some(1));
        record(1, 6, None);
        record(1, 4, Some(0));
        assert_eq!(taken(), (1, 6, Some(1)), "a heartbeat without keys keeps the known ones, and one that is put back is older");
        record(1, 6, None);
        record(1, 4, Some(1));
        assert_eq!(taken(), (1, 6, Some(1)));
        record(1, 5, Some(1));
        record(2, 6, None);
        record(1, 7, Some(3));
        assert_eq!(taken(), (2, 6, None));
        assert!(heartbeats.take().is_empty());
    }

    #[test]
    fn a_report_is_sent_once_to_the_leader_of_each_term() {
        let mut sent = SentToLeader::default();
        let node: NodeId = "n1".parse().unwrap();
        let send = |sent: &mut SentToLeader<NodeHealth>, term, life, why: &str, arrives| {
            let health = Some(NodeHealth::Unwell { why: why.to_owned(), drain: None });
            let heartbeat = Heartbeat { incarnation: Incarnation(life), at: Instant::now(), keys: None, health };
            let heartbeats = HashMap::from([(node.clone(), heartbeat)]);
            let unsent = sent.unsent(term, &heartbeats, |heartbeat| heartbeat.health.as_ref());
            let count = unsent.len();
            if arrives {
                sent.mark_sent(&heartbeats, unsent);
            }
            count == 1
        };
        assert!(send(&mut sent, 1, 1, "a", false) && send(&mut sent, 1, 1, "a", true), "until it arrives");
        assert!(!send(&mut sent, 1, 1, "a", true));
        assert!(send(&mut sent, 1, 1, "b", true), "another reason");
        assert!(send(&mut sent, 1, 2, "b", true), "another life");
        assert!(!send(&mut sent, 1, 2, "b", true));
        assert!(send(&mut sent, 2, 2, "b", true), "another term");
    }
}
