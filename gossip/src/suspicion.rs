//! How long a suspect has to refute, and how far this node trusts its own probes: Lifeguard
//! (Dadgar, Phillips, Currey: "Lifeguard: Local Health Awareness for More Accurate Failure
//! Detection", arXiv 1707.00788). The time that a suspect has is called patience here.
//!
//! ```text
//!   own probe failed ──▶ patience_max ──each further node whose probe failed──▶ ... ──▶ patience_min ──▶ Down
//!        │                      ╰── × (1 + health): a node that is slow itself waits longer
//!        ├──▶ Accusation, appended to the own fact: foca spreads one suspicion, but not who else shares it
//!        ╰──▶ a ping to the suspect at every tick that names the suspicion, until it refutes: LHA's buddy system
//! ```
//!
//! When a probe of this node's own has failed, foca asks for one timer of fixed length. The core
//! times the suspicion instead and declares the suspect Down when patience is over: foca would
//! ignore its own timer if this node had been declared Down and had come back meanwhile. A node
//! that only received a suspicion decides nothing, as with foca alone.

use crate::config::Config;
use crate::peer::Peer;
use lattice_model::NodeId;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Local health after everything was late or unanswered for a while: probes are nine times slower.
pub(crate) const HEALTH_MAX: u32 = 8;
/// How many further nodes must find the same suspect silent to make patience shortest: K of the
/// paper.
const CONFIRMATIONS: usize = 2;
/// For how many suspicions accusers are stored before old ones are dropped.
const ACCUSED_MAX: usize = 256;
/// The most accusers of one suspicion that are counted.
const ACCUSERS_MAX: usize = 16;
/// After how long without a new accuser the accusers of a suspicion may be dropped, in
/// milliseconds.
const ACCUSERS_RETENTION_MS: u64 = 120_000;

/// Identifies one suspicion of one life of one node in messages. A refutation makes it void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Accusation(pub u64);

impl Accusation {
    pub fn of(peer: &Peer, incarnation: u16) -> Self {
        // FNV-1a, as in `sync::tag`: whoever can send one holds the key, so it need not resist
        // forgery.
        let words = [peer.key, peer.incarnation, u64::from(peer.renewal), u64::from(incarnation)];
        let bytes = words.iter().flat_map(|word| word.to_be_bytes());
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)))
    }
}

/// A suspicion that a failed probe of this node began or confirmed.
struct Held {
    suspect: Peer,
    /// foca's own incarnation of the suspect: a higher one is a refutation.
    incarnation: u16,
    accusation: Accusation,
    began_ms: u64,
    /// Another node suspected it before our probe failed, and the accusation of that node had not
    /// arrived.
    has_unknown_accuser: bool,
    /// Whether this suspicion raised our own local health.
    doubted: bool,
    /// Set once it is postponed: it does not end before this time.
    not_before_ms: u64,
    /// The earliest time when the caller will check it again.
    check_at_ms: u64,
}

/// Every suspicion that this node knows of, its accusers, and those that this node may end by
/// declaring the suspect Down.
#[derive(Default)]
pub(crate) struct Suspicions {
    held: BTreeMap<u64, Held>,
    /// The suspects in this node's view, by key.
    suspects: BTreeMap<u64, (Accusation, NodeId)>,
    accused: BTreeMap<Accusation, Accusers>,
    /// While there are too many suspicions, none of them is old enough to be dropped before this
    /// time: they are not searched again for each new one.
    full_until_ms: u64,
    health: u32,
}

#[derive(Default)]
struct Accusers {
    /// By [`Peer::key`].
    who: Vec<u64>,
    last_ms: u64,
}

impl Suspicions {
    /// 0: well. Up to [`HEALTH_MAX`].
    pub fn health(&self) -> u32 {
        self.health
    }

    /// A probe was answered.
    pub fn improve_health(&mut self) {
        self.health = self.health.saturating_sub(1);
    }

    /// A timer of this node was late, or it had to refute a suspicion of itself.
    pub fn worsen_health(&mut self) {
        self.health = (self.health + 1).min(HEALTH_MAX);
    }

    /// A probe by this node failed. `before`: the node was already suspected. Returns the
    /// accusation to publish.
    pub fn hold(&mut self, now_ms: u64, me: u64, suspect: Peer, incarnation: u16, before: bool) -> Option<Accusation> {
        let (key, accusation) = (suspect.key, Accusation::of(&suspect, incarnation));
        if self.held.get(&key).is_some_and(|held| held.accusation == accusation) {
            return None;
        }
        let others = self.others(accusation, me);
        // A suspicion that no other node shares counts against this node, until another shares it.
        let doubted = others == 0 && !before;
        if doubted {
            self.worsen_health();
        }
        let has_unknown_accuser = before && others == 0;
        let held =
            Held { suspect, incarnation, accusation, began_ms: now_ms, has_unknown_accuser, doubted, not_before_ms: 0, check_at_ms: 0 };
        self.held.insert(key, held);
        self.accuse(now_ms, accusation, me);
        Some(accusation)
    }

    /// The node `who` found the suspect silent by its own probe. Returns whether that is new.
    pub fn accuse(&mut self, now_ms: u64, accusation: Accusation, who: u64) -> bool {
        if self.accused.len() >= ACCUSED_MAX && !self.accused.contains_key(&accusation) {
            if now_ms < self.full_until_ms {
                return false;
            }
            let held: Vec<Accusation> = self.held.values().map(|held| held.accusation).collect();
            self.accused.retain(|of, accusers| held.contains(of) || now_ms.saturating_sub(accusers.last_ms) < ACCUSERS_RETENTION_MS);
            if self.accused.len() >= ACCUSED_MAX {
                let oldest_ms = self.accused.values().map(|accusers| accusers.last_ms).min();
                self.full_until_ms = oldest_ms.map_or(0, |oldest_ms| oldest_ms + ACCUSERS_RETENTION_MS);
                return false;
            }
        }
        let accusers = self.accused.entry(accusation).or_default();
        accusers.last_ms = now_ms;
        let new = accusers.who.len() < ACCUSERS_MAX && !accusers.who.contains(&who);
        if new {
            accusers.who.push(who);
        }
        new
    }

    /// The node is suspected, by this node or another.
    pub fn begin(&mut self, peer: &Peer, incarnation: u16) {
        self.suspects.insert(peer.key, (Accusation::of(peer, incarnation), peer.node.clone()));
    }

    /// The suspect of this accusation, if this node knows it.
    pub fn suspect(&self, accusation: Accusation) -> Option<&NodeId> {
        self.suspects.values().find(|(of, _)| *of == accusation).map(|(_, node)| node)
    }

    /// How many nodes are known to have found the suspect silent by their own probes.
    pub fn accusers(&self, accusation: Accusation) -> usize {
        self.accused.get(&accusation).map_or(0, |accusers| accusers.who.len())
    }

    /// Another node shares a suspicion of ours, so we were not the slow one. Returns the suspect's
    /// key.
    pub fn confirm(&mut self, accusation: Accusation) -> Option<u64> {
        let (key, held) = self.held.iter_mut().find(|(_, held)| held.accusation == accusation)?;
        if std::mem::take(&mut held.doubted) {
            self.health = self.health.saturating_sub(1);
        }
        Some(*key)
    }

    /// When patience with the node ends, in a cluster of `nodes`; `None` if this node holds no
    /// suspicion of it.
    pub fn due_ms(&self, key: u64, me: u64, config: &Config, nodes: usize) -> Option<u64> {
        let held = self.held.get(&key)?;
        let others = self.others(held.accusation, me).max(usize::from(held.has_unknown_accuser));
        let patience_ms = patience_ms(config, nodes, others) * u64::from(1 + self.health);
        Some((held.began_ms + patience_ms).max(held.not_before_ms))
    }

    /// Moves the time at which the caller will check the suspicion to `due_ms`, if that is sooner.
    /// Returns whether it did.
    pub fn reschedule_if_sooner(&mut self, key: u64, now_ms: u64, due_ms: u64) -> bool {
        let Some(held) = self.held.get_mut(&key) else { return false };
        // A check in the past or at this moment is done or in progress, and does not count.
        let sooner = held.check_at_ms <= now_ms || due_ms < held.check_at_ms;
        if sooner {
            held.check_at_ms = due_ms;
        }
        sooner
    }

    /// This node was suspended while patience ran out, and its socket may have an answer: the
    /// suspicion waits once more.
    pub fn postpone(&mut self, key: u64, until_ms: u64) {
        if let Some(held) = self.held.get_mut(&key)
            && held.not_before_ms == 0
        {
            held.not_before_ms = until_ms;
        }
    }

    /// The suspicion ends: the node has refuted, is Down, or has another identity.
    pub fn end(&mut self, key: u64) {
        self.suspects.remove(&key);
        self.held.remove(&key);
    }

    /// Patience with the node is over. Returns the identity to declare Down, and foca's incarnation
    /// of it.
    pub fn give_up(&mut self, key: u64) -> Option<(Peer, u16)> {
        self.held.remove(&key).map(|held| (held.suspect, held.incarnation))
    }

    /// This node was declared Down itself, so the silence that it found may have been its own
    /// fault: each suspect gets the full patience again. Returns the keys of the suspects to check
    /// again.
    pub fn restart(&mut self, now_ms: u64) -> Vec<u64> {
        for held in self.held.values_mut() {
            (held.began_ms, held.not_before_ms, held.check_at_ms) = (now_ms, 0, 0);
        }
        self.held.keys().copied().collect()
    }

    /// The suspects to ping: those that this node found silent, and those for which `is_overdue` is
    /// true, in order of their keys beginning after `after`.
    pub fn suspects_to_ping(&self, after: u64, is_overdue: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
        let later = self.suspects.range((Bound::Excluded(after), Bound::Unbounded));
        let keys = later.chain(self.suspects.range(..=after)).map(|(key, _)| *key);
        keys.filter(move |key| self.held.contains_key(key) || is_overdue(*key))
    }

    fn others(&self, accusation: Accusation, me: u64) -> usize {
        self.accused.get(&accusation).map_or(0, |accusers| accusers.who.iter().filter(|who| **who != me).count())
    }
}

/// max − (max − min) × log(C + 1) / log(K + 1), where C is `others`: section IV-B of the paper. In a
/// cluster of two no other node can confirm.
fn patience_ms(config: &Config, nodes: usize, others: usize) -> u64 {
    let (min, max) = config.patience_ms(nodes);
    let needed = CONFIRMATIONS.min(nodes.saturating_sub(2));
    if others >= needed {
        return min;
    }
    let share = ((others + 1) as f64).ln() / ((needed + 1) as f64).ln();
    // Rounded, so that all machines get the same result.
    max - ((max - min) as f64 * share).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> Peer {
        Peer::new(name.parse().unwrap(), "10.0.0.1:1".parse().unwrap(), 1, 0)
    }

    #[test]
    fn each_further_accuser_shortens_patience_and_the_first_does_most() {
        let config = Config::default();
        let at = |nodes, others| patience_ms(&config, nodes, others);
        let (min, max) = config.patience_ms(1_000);
        assert_eq!((at(1_000, 0), at(1_000, 2), at(1_000, 9)), (max, min, min));
        assert!(max - at(1_000, 1) > at(1_000, 1) - min, "the first counts most");
        assert_eq!(at(2, 0), config.patience_ms(2).0, "no other node can confirm");
        assert_eq!((at(3, 0), at(3, 1)), (config.patience_ms(3).1, config.patience_ms(3).0));
    }

    #[test]
    fn a_suspicion_that_nobody_shares_lowers_trust_until_somebody_does() {
        let (config, mut all, a) = (Config::default(), Suspicions::default(), peer("a"));
        let accusation = all.hold(1_000, 1, a.clone(), 3, false).expect("it is new");
        assert_eq!((accusation, all.health()), (Accusation::of(&a, 3), 1));
        assert_eq!(all.hold(2_000, 1, a.clone(), 3, true), None, "a second own probe is not another accuser");
        let (min, max) = config.patience_ms(10);
        assert_eq!(all.due_ms(a.key, 1, &config, 10), Some(1_000 + 2 * max));
        assert!(all.accuse(3_000, accusation, 7) && !all.accuse(3_000, accusation, 7));
        assert_eq!(all.confirm(accusation), Some(a.key));
        assert_eq!((all.health(), all.accusers(accusation)), (0, 2));
        assert!(all.accuse(3_000, accusation, 8));
        assert_eq!(all.due_ms(a.key, 1, &config, 10), Some(1_000 + min));
        all.postpone(a.key, 90_000);
        assert_eq!(all.due_ms(a.key, 1, &config, 10), Some(90_000));
        assert!(
            all.reschedule_if_sooner(a.key, 3_000, 90_000)
                && !all.reschedule_if_sooner(a.key, 3_000, 95_000)
                && all.reschedule_if_sooner(a.key, 3_000, 80_000)
        );
        assert_eq!(all.restart(50_000), [a.key]);
        assert_eq!(all.due_ms(a.key, 1, &config, 10), Some(50_000 + min), "the full patience again");
        assert!(all.reschedule_if_sooner(a.key, 50_000, 90_000), "and it is checked again");
        assert_eq!(all.give_up(a.key), Some((a.clone(), 3)));
        assert!(all.give_up(a.key).is_none() && all.due_ms(a.key, 1, &config, 10).is_none());
    }

    #[test]
    fn own_suspects_are_pinged_in_turn_and_others_when_overdue() {
        let (mut all, peers) = (Suspicions::default(), ["a", "b", "c", "d"].map(peer));
        let mut keys = peers.each_ref().map(|peer| peer.key);
        keys.sort_unstable();
        for peer in &peers {
            all.begin(peer, 0);
            if peer.key != keys[2] {
                all.hold(0, 1, peer.clone(), 0, false);
            }
        }
        let asked =
            |all: &Suspicions, after, overdue: &[u64]| all.suspects_to_ping(after, |key| overdue.contains(&key)).collect::<Vec<_>>();
        assert_eq!(asked(&all, keys[1], &[]), [keys[3], keys[0], keys[1]]);
        assert_eq!(asked(&all, keys[1], &[keys[2]]), [keys[2], keys[3], keys[0], keys[1]]);
        keys.iter().for_each(|key| all.end(*key));
        assert_eq!(asked(&all, keys[1], &keys), [0u64; 0]);
    }

    #[test]
    fn an_unknown_earlier_accuser_counts_once() {
        let (config, mut all, a) = (Config::default(), Suspicions::default(), peer("a"));
        all.hold(0, 1, a.clone(), 0, true);
        assert_eq!((all.health(), all.due_ms(a.key, 1, &config, 3)), (0, Some(config.patience_ms(3).0)));
    }

    #[test]
    fn health_and_stored_accusers_are_bounded() {
        let mut all = Suspicions::default();
        (0..20).for_each(|_| all.worsen_health());
        assert_eq!(all.health(), HEALTH_MAX);
        (0..20).for_each(|_| all.improve_health());
        assert_eq!(all.health(), 0);
        for n in 0..10_000 {
            all.accuse(n, Accusation(n % 1_000), n);
        }
        assert!(all.accused.len() <= ACCUSED_MAX && all.accused.values().all(|a| a.who.len() <= ACCUSERS_MAX));
    }
}
