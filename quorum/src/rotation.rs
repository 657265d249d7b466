//! The leader's part in a rotation of the gossip keys: it tracks which agent has which keys, and
//! when the next step may be taken.
//!
//! ```text
//!   introduced ──all have it──▶ encrypts ──all encrypt with it, no older message in transit──▶ older key deleted
//! ```
//!
//! A machine with a revoked certificate has the key, so the leader starts a rotation by itself after
//! a revocation.
//!
//! "All" means the nodes that are neither revoked nor away (Down, Booting or Failed), in their
//! current incarnations. A node that is away gets the keyring when it registers again. The agents'
//! reports are only in memory: every term collects them again before it takes a step.

use lattice_ledger::keyring::{CONFIGURED, KeySource, Keyring, Secret};
use lattice_ledger::{Action, Ledger};
use lattice_model::{Incarnation, NodeId};
use lattice_quorum_client::wire::{HeldKeys, KeyRole, KeyStatus, KeyringStatus};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long messages encrypted with the older key may be in transit and in socket queues.
const TRANSIT_TIME_MAX: Duration = Duration::from_secs(2);
/// Largest number of awaited nodes that an answer names.
const NAMED_MAX: usize = 16;

/// The latest keys that each agent reported, and the incarnation in which it did.
#[derive(Debug, Default)]
pub struct KeysHeld(Mutex<HashMap<NodeId, (Incarnation, HeldKeys)>>);

impl KeysHeld {
    /// Records a node's report, unless a later incarnation has already reported.
    pub fn record(&self, node: NodeId, incarnation: Incarnation, keys: HeldKeys) {
        let mut all = self.0.lock();
        if all.get(&node).is_none_or(|(known, _)| incarnation >= *known) {
            all.insert(node, (incarnation, keys));
        }
    }

    /// Discards all reports: every agent must report again.
    pub fn forget(&self) {
        self.0.lock().clear();
    }

    /// Discards the reports of nodes that were removed.
    pub fn forget_removed(&self, ledger: &Ledger) {
        let mut all = self.0.lock();
        if all.len() > ledger.node_count() {
            all.retain(|node, _| ledger.node(node).is_some());
        }
    }

    /// The results of `look` for all nodes that are neither revoked nor away, each with the report
    /// of its current incarnation.
    fn of<'a, T>(&self, ledger: &'a Ledger, look: impl Fn(&'a NodeId, Option<&HeldKeys>) -> Option<T>) -> Vec<T> {
        let all = self.0.lock();
        let counts = ledger.nodes().filter(|n| !n.state.is_away() && !ledger.is_revoked(&n.id));
        let report_of = |n: &'a lattice_model::Node| all.get(&n.id).filter(|(of, _)| *of == n.incarnation).map(|(_, keys)| keys);
        counts.filter_map(|n| look(&n.id, report_of(n))).collect()
    }

    /// The nodes, neither revoked nor away, that have not reported keys that satisfy `wanted`.
    fn lacking<'a>(&self, ledger: &'a Ledger, wanted: impl Fn(&HeldKeys) -> bool) -> Vec<&'a NodeId> {
        self.of(ledger, |node, keys| (!keys.is_some_and(&wanted)).then_some(node))
    }
}

/// The nodes that a rotation waits for; empty if there is no rotation.
fn awaited<'a>(ledger: &'a Ledger, held: &KeysHeld) -> Vec<&'a NodeId> {
    let ring = ledger.keyring();
    let newest = ring.newest();
    if !ring.is_rotating() {
        Vec::new()
    } else if ring.seals == newest {
        held.lacking(ledger, |keys| keys.seals == newest)
    } else {
        held.lacking(ledger, |keys| keys.opens.contains(&newest))
    }
}

/// The state of a rotation in one term.
#[derive(Debug, Default)]
pub struct Rotation {
    /// Since when this member knows that all nodes encrypt with the newest key.
    sealed: Option<Instant>,
}

impl Rotation {
    /// The step that may be taken now.
    pub fn due(&mut self, ledger: &Ledger, held: &KeysHeld, now: Instant) -> Option<Action> {
        let ring = ledger.keyring();
        if !ring.is_rotating() && ledger.needs_gossip_key() {
            return Some(Action::AddKey { secret: Secret(rand::random()), by: "quorum".to_owned() });
        }
        if !ring.is_rotating() || !awaited(ledger, held).is_empty() {
            self.sealed = None;
            return None;
        }
        let newest = ring.newest();
        if ring.seals != newest {
            self.sealed = None;
            return Some(Action::SealWithKey { id: newest });
        }
        let since = *self.sealed.get_or_insert(now);
        let oldest = ring.keys.first()?.id;
        (now.saturating_duration_since(since) >= TRANSIT_TIME_MAX).then_some(Action::RetireKey { id: oldest })
    }
}

/// The state of the keys. Only the leader knows it: the caller checks that.
pub fn keyring_status(ledger: &Ledger, held: &KeysHeld) -> KeyringStatus {
    let ring = ledger.keyring();
    let reports: Vec<Option<HeldKeys>> = held.of(ledger, |_, keys| Some(keys.cloned()));
    let count = |wanted: &dyn Fn(&HeldKeys) -> bool| reports.iter().flatten().filter(|keys| wanted(keys)).count() as u64;
    let one = |id: u32, source: &KeySource| {
        let (created_at, created_by) = match source {
            KeySource::Configured => (None, None),
            KeySource::Made { at, by, .. } => (Some(*at), Some(by.clone())),
        };
        let decrypting_nodes = count(&|keys| keys.opens.contains(&id));
        let encrypting_nodes = count(&|keys| keys.seals == id);
        KeyStatus { id, created_at, created_by, role: role(ring, id), decrypting_nodes, encrypting_nodes }
    };
    let configured = ring.is_empty().then(|| one(CONFIGURED, &KeySource::Configured));
    let waits = awaited(ledger, held);
    KeyringStatus {
        keys: configured.into_iter().chain(ring.keys.iter().map(|key| one(key.id, &key.source))).collect(),
        nodes: reports.len() as u64,
        awaited: waits.iter().take(NAMED_MAX).map(|node| (*node).clone()).collect(),
        awaited_count: waits.len() as u64,
    }
}

fn role(ring: &Keyring, id: u32) -> KeyRole {
    if ring.seals == id {
        KeyRole::Encrypt
    } else if id > ring.seals {
        KeyRole::Distributing
    } else {
        KeyRole::Decrypt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_ledger::test_builders::{node, registration};
    use lattice_ledger::{Command, NodeStateChange};
    use lattice_model::{NodeState, Revision, Timestamp};

    struct Scene {
        ledger: Ledger,
        held: KeysHeld,
        rotation: Rotation,
        now: Instant,
        index: u64,
    }

    impl Scene {
        fn new(nodes: u8) -> Self {
            let ledger = Ledger::default();
            let mut scene = Self { ledger, held: KeysHeld::default(), rotation: Rotation::default(), now: Instant::now(), index: 0 };
            (0..nodes).for_each(|n| scene.act(Action::Register(registration(n, 1, 0, true))));
            scene
        }

        fn act(&mut self, action: Action) {
            self.index += 1;
            self.ledger.apply(Revision(self.index), &Command { at: Timestamp(self.index), action }).result.unwrap();
        }

        fn report(&self, number: u8, opens: &[u32], seals: u32) {
            let incarnation = self.ledger.node(&node(number)).unwrap().incarnation;
            self.held.record(node(number), incarnation, HeldKeys { opens: opens.to_vec(), seals });
        }

        fn due(&mut self) -> Option<Action> {
            self.rotation.due(&self.ledger, &self.held, self.now)
        }

        fn waits_for(&self) -> Vec<NodeId> {
            keyring_status(&self.ledger, &self.held).awaited
        }
    }

    #[test]
    fn each_step_waits_until_all_that_are_not_down_are_ready_for_it() {
        let mut s = Scene::new(3);
        assert_eq!(s.due(), None, "no rotation was requested");
        s.act(Action::AddKey { secret: Secret([7; 32]), by: "root".into() });
        (0..2).for_each(|n| s.report(n, &[0, 1], 0));
        assert_eq!((s.due(), s.waits_for()), (None, vec![node(2)]), "node 2 has not reported");
        s.report(2, &[0], 0);
        assert_eq!(s.due(), None);
        let incarnation = s.ledger.node(&node(2)).unwrap().incarnation;
        let state_change = NodeStateChange { node: node(2), incarnation, state: NodeState::Down, reason: "x".into() };
        for state in [NodeState::Degraded, NodeState::Down] {
            s.act(Action::NodeStates(vec![NodeStateChange { state, ..state_change.clone() }]));
        }
        assert_eq!(s.due(), Some(Action::SealWithKey { id: 1 }), "a rotation does not wait for a node that is Down");
        s.act(Action::NodeStates(vec![NodeStateChange { state: NodeState::Ready, ..state_change }]));
        assert_eq!((s.due(), s.waits_for()), (None, vec![node(2)]), "node 2 is back");
        s.report(2, &[0, 1], 0);
        s.act(Action::SealWithKey { id: 1 });
        (0..3).for_each(|n| s.report(n, &[0, 1], 1));
        assert_eq!(s.due(), None, "older messages may be in transit");
        s.now += TRANSIT_TIME_MAX;
        assert_eq!(s.due(), Some(Action::RetireKey { id: 0 }));
        s.act(Action::RetireKey { id: 0 });
        assert_eq!((s.due(), s.waits_for()), (None, vec![]));
    }

    #[test]
    fn the_grace_time_starts_again_when_a_node_registers_again() {
        let mut s = Scene::new(1);
        s.act(Action::AddKey { secret: Secret([7; 32]), by: "root".into() });
        s.report(0, &[0, 1], 0);
        s.act(Action::SealWithKey { id: 1 });
        s.report(0, &[0, 1], 1);
        assert_eq!(s.due(), None);
        s.act(Action::Register(registration(0, 1, 1, true)));
        s.now += TRANSIT_TIME_MAX;
        assert_eq!((s.due(), s.waits_for()), (None, vec![node(0)]), "its new incarnation has not reported");
        s.report(0, &[0, 1], 1);
        assert_eq!(s.due(), None);
        s.now += TRANSIT_TIME_MAX;
        assert_eq!(s.due(), Some(Action::RetireKey { id: 0 }));
        s.held.forget();
        assert_eq!(s.due(), None, "a new leader collects the reports again");
    }

    #[test]
    fn keys_are_shown_with_the_number_of_nodes_that_have_them() {
        let mut s = Scene::new(2);
        s.report(0, &[0], 0);
        let seen = |s: &Scene| {
            let now = keyring_status(&s.ledger, &s.held);
            now.keys.iter().map(|k| (k.id, k.role, k.decrypting_nodes, k.encrypting_nodes)).collect::<Vec<_>>()
        };
        assert_eq!(seen(&s), [(0, KeyRole::Encrypt, 1, 1)]);
        s.act(Action::AddKey { secret: Secret([7; 32]), by: "root".into() });
        s.report(1, &[0, 1], 0);
        assert_eq!(seen(&s), [(0, KeyRole::Encrypt, 2, 2), (1, KeyRole::Distributing, 1, 0)]);
        s.report(0, &[0, 1], 0);
        s.act(Action::SealWithKey { id: 1 });
        s.report(0, &[0, 1], 1);
        assert_eq!(seen(&s), [(0, KeyRole::Decrypt, 2, 1), (1, KeyRole::Encrypt, 2, 1)]);
    }
}
