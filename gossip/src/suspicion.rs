//! How long a suspect may take to refute, and how far this node trusts itself: Lifeguard (Dadgar, Phillips, Currey:
//! "Lifeguard: Local Health Awareness for More Accurate Failure Detection", arXiv 1707.00788).
//!
//! ```text
//!   own probe failed ──▶ patience_max ──each further node that found the same──▶ ... ──▶ patience_min ──▶ Down
//!        │                      ╰── × (1 + health): a node that is slow itself waits longer
//!        ├──▶ Accusation, appended to the own fact: foca spreads one suspicion, but not who else shares it
//!        ╰──▶ a ping to the suspect at every tick that names the suspicion, until it refutes: LHA's buddy system
//! ```
//!
//! foca asks for one timer, of fixed length, when a probe of this node's own has failed. The core times the suspicion itself
//! and declares the suspect Down when patience is over: foca would ignore its own timer once this node had been declared Down
//! and come back meanwhile. A node that only received a suspicion decides nothing, as with foca alone.

use crate::config::Config;
use crate::peer::Peer;
use lattice_model::NodeId;
use std::collections::BTreeMap;
use std::ops::Bound;

/// Local health when everything was late or unanswered for a while: probes come nine times slower.
pub(crate) const HEALTH_MAX: u32 = 8;
/// So many further nodes that found the same make patience shortest: K of the paper.
const CONFIRMATIONS: usize = 2;
/// Of how many suspicions accusers are remembered before old ones go.
const ACCUSED_MAX: usize = 256;
/// The most accusers of one suspicion that are counted.
const ACCUSERS_MAX: usize = 16;
/// Accusers of a suspicion that nobody mentioned for so long are not remembered when there are many.
const ACCUSED_KEPT_MS: u64 = 120_000;

/// One suspicion of one life of one node, as nodes name it to each other. A refutation makes it mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Accusation(pub u64);

impl Accusation {
    pub fn of(peer: &Peer, incarnation: u16) -> Self {
        // FNV-1a, as in `sync::tag`, and for the same reason.
        let words = [peer.key, peer.incarnation, u64::from(peer.renewal), u64::from(incarnation)];
        let bytes = words.iter().flat_map(|word| word.to_be_bytes());
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)))
    }
}

/// A suspicion that this node's own probe has raised or found again.
struct Held {
    suspect: Peer,
    /// foca's own incarnation of the suspect: a higher one refutes.
    incarnation: u16,
    accusation: Accusation,
    began_ms: u64,
    /// Somebody suspected the node before our probe failed, and his accusation had not come here yet.
    unnamed: bool,
    /// Whether it made us doubt ourselves.
    doubted: bool,
    /// Once put off, it does not end before.
    not_before_ms: u64,
    /// The earliest time when the caller will check it again.
    looked_at_ms: u64,
}

/// Every suspicion that this node knows of, who shares it, and which it may end by declaring Down.
#[derive(Default)]
pub(crate) struct Suspicions {
    held: BTreeMap<u64, Held>,
    /// Whom this node sees as suspect.
    suspects: BTreeMap<u64, (Accusation, NodeId)>,
    accused: BTreeMap<Accusation, Accusers>,
    /// Until then none of them is old enough to go: they are not gone through again for each new one while there are too many.
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
    pub fn well(&mut self) {
        self.health = self.health.saturating_sub(1);
    }

    /// This node was late, or had to refute that it is gone.
    pub fn unwell(&mut self) {
        self.health = (self.health + 1).min(HEALTH_MAX);
    }

    /// A probe of our own failed. `before`: the node was suspected already. Returns whom to accuse.
    pub fn hold(&mut self, now_ms: u64, me: u64, suspect: Peer, incarnation: u16, before: bool) -> Option<Accusation> {
        let (key, accusation) = (suspect.key, Accusation::of(&suspect, incarnation));
        if self.held.get(&key).is_some_and(|held| held.accusation == accusation) {
            return None;
        }
        let others = self.others(accusation, me);
        // What nobody else has found speaks against us, until somebody has.
        let doubted = others == 0 && !before;
        if doubted {
            self.unwell();
        }
        let unnamed = before && others == 0;
        let held = Held { suspect, incarnation, accusation, began_ms: now_ms, unnamed, doubted, not_before_ms: 0, looked_at_ms: 0 };
        self.held.insert(key, held);
        self.accuse(now_ms, accusation, me);
        Some(accusation)
    }

    /// `who` has found it by a probe of its own. Returns whether that is new.
    pub fn accuse(&mut self, now_ms: u64, accusation: Accusation, who: u64) -> bool {
        if self.accused.len() >= ACCUSED_MAX && !self.accused.contains_key(&accusation) {
            if now_ms < self.full_until_ms {
                return false;
            }
            let held: Vec<Accusation> = self.held.values().map(|held| held.accusation).collect();
            self.accused.retain(|of, accusers| held.contains(of) || now_ms.saturating_sub(accusers.last_ms) < ACCUSED_KEPT_MS);
            if self.accused.len() >= ACCUSED_MAX {
                let oldest_ms = self.accused.values().map(|accusers| accusers.last_ms).min();
                self.full_until_ms = oldest_ms.map_or(0, |oldest_ms| oldest_ms + ACCUSED_KEPT_MS);
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

    /// The node is suspected, by whomsoever.
    pub fn begin(&mut self, peer: &Peer, incarnation: u16) {
        self.suspects.insert(peer.key, (Accusation::of(peer, incarnation), peer.node.clone()));
    }

    /// The suspect whom this is about, where we know of it.
    pub fn suspect(&self, accusation: Accusation) -> Option<&NodeId> {
        self.suspects.values().find(|(of, _)| *of == accusation).map(|(_, node)| node)
    }

    /// How many nodes are known to have found it by probes of their own.
    pub fn accusers(&self, accusation: Accusation) -> usize {
        self.accused.get(&accusation).map_or(0, |accusers| accusers.who.len())
    }

    /// Somebody else shares a suspicion of ours: it was not us who are slow.
    pub fn confirmed(&mut self, accusation: Accusation) -> Option<u64> {
        let (key, held) = self.held.iter_mut().find(|(_, held)| held.accusation == accusation)?;
        if std::mem::take(&mut held.doubted) {
            self.health = self.health.saturating_sub(1);
        }
        Some(*key)
    }

    /// When patience with the node ends, in a cluster of `nodes`; `None`: no suspicion of it is held.
    pub fn due_ms(&self, key: u64, me: u64, config: &Config, nodes: usize) -> Option<u64> {
        let held = self.held.get(&key)?;
        let others = self.others(held.accusation, me).max(usize::from(held.unnamed));
        let patience_ms = patience_ms(config, nodes, others) * u64::from(1 + self.health);
        Some((held.began_ms + patience_ms).max(held.not_before_ms))
    }

    /// Whether the caller would not check it by then without this call; then it will now.
    pub fn is_sooner(&mut self, key: u64, now_ms: u64, due_ms: u64) -> bool {
        let Some(held) = self.held.get_mut(&key) else { return false };
        // A check in the past does not count; one at this moment is under way.
        let sooner = held.looked_at_ms <= now_ms || due_ms < held.looked_at_ms;
        if sooner {
            held.looked_at_ms = due_ms;
        }
        sooner
    }

    /// This node was suspended while patience ran out, and its socket may have news: it waits once more.
    pub fn put_off(&mut self, key: u64, until_ms: u64) {
        if let Some(held) = self.held.get_mut(&key)
            && held.not_before_ms == 0
        {
            held.not_before_ms = until_ms;
        }
    }

    /// The node is not suspected any more, or Down, or another.
    pub fn end(&mut self, key: u64) {
        self.suspects.remove(&key);
        self.held.remove(&key);
    }

    /// Patience with the node is over: whom to declare Down, and in which incarnation of foca's.
    pub fn give_up(&mut self, key: u64) -> Option<(Peer, u16)> {
        self.held.remove(&key).map(|held| (held.suspect, held.incarnation))
    }

    /// This node was declared Down itself, so that what it found silent may have been its own fault: each suspect has all of
    /// the patience once more. Returns the keys of the suspects to check again.
    pub fn restart(&mut self, now_ms: u64) -> Vec<u64> {
        for held in self.held.values_mut() {
            (held.began_ms, held.not_before_ms, held.looked_at_ms) = (now_ms, 0, 0);
        }
        self.held.keys().copied().collect()
    }

    /// The suspects whom this node found silent itself, and those for whom `is_overdue`; the first of them is the one after `after`.
    pub fn to_ask(&self, after: u64, is_overdue: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
        let later = self.suspects.range((Bound::Excluded(after), Bound::Unbounded));
        let keys = later.chain(self.suspects.range(..=after)).map(|(key, _)| *key);
        keys.filter(move |key| self.held.contains_key(key) || is_overdue(*key))
    }

    fn others(&self, accusation: Accusation, me: u64) -> usize {
        self.accused.get(&accusation).map_or(0, |accusers| accusers.who.iter().filter(|who| **who != me).count())
    }
}

/// max − (max − min) × log(C + 1) / log(K + 1), of `others` = C: section IV-B of the paper. Nobody else can confirm where
/// there are but two.
fn patience_ms(config: &Config, nodes: usize, others: usize) -> u64 {
    let (min, max) = config.patience_ms(nodes);
    let needed = CONFIRMATIONS.min(nodes.saturating_sub(2));
    if others >= needed {
        return min;
    }
    let share = ((others + 1) as f64).ln() / ((needed + 1) as f64).ln();
    // Rounded, so that machines agree.
    max - ((max - min) as f64 * share).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str) -> Peer {
        Peer::new(name.parse().unwrap(), "10.0.0.1:1".parse().unwrap(), 1, 0)
    }

    #[test]
    fn patience_shortens_with_those_who_found_the_same_and_sooner_with_the_first() {
        let config = Config::default();
        let at = |nodes, others| patience_ms(&config, nodes, others);
        let (min, max) = config.patience_ms(1_000);
        assert_eq!((at(1_000, 0), at(1_000, 2), at(1_000, 9)), (max, min, min));
        assert!(max - at(1_000, 1) > at(1_000, 1) - min, "the first counts most");
        assert_eq!(at(2, 0), config.patience_ms(2).0, "nobody is there to confirm");
        assert_eq!((at(3, 0), at(3, 1)), (config.patience_ms(3).1, config.patience_ms(3).0));
    }

    #[test]
    fn a_suspicion_that_nobody_shares_is_doubted_until_somebody_does() {
        let (config, mut all, a) = (Config::default(), Suspicions::default(), peer("a"));
        let accusation = all.hold(1_000, 1, a.clone(), 3, false).expect("it is new");
        assert_eq!((accusation, all.health()), (Accusation::of(&a, 3), 1));
        assert_eq!(all.hold(2_000, 1, a.clone(), 3, true), None, "found again is not found by another");
        let (min, max) = config.patience_ms(10);
        assert_eq!(all.due_ms(a.key, 1, &config, 10), Some(1_000 + 2 * max));
        assert!(all.accuse(3_000, accusation, 7) && !all.accuse(3_000, accusation, 7));
        assert_eq!(all.confirmed(accusation), Some(a.key));
        assert_eq!((all.health(), all.accusers(accusation)), (0, 2));
        assert!(all.accuse(3_000, accusation, 8));
        assert_eq!(all.due_ms(a.key, 1, &config, 10), Some(1_000 + min));
        all.put_off(a.key, 90_000);
        assert_eq!(all.due_ms(a.key, 1, &config, 10), Some(90_000));
        assert!(all.is_sooner(a.key, 3_000, 90_000) && !all.is_sooner(a.key, 3_000, 95_000) && all.is_sooner(a.key, 3_000, 80_000));
        assert_eq!(all.restart(50_000), [a.key]);
        assert_eq!(all.due_ms(a.key, 1, &config, 10), Some(50_000 + min), "all of the patience once more");
        assert!(all.is_sooner(a.key, 50_000, 90_000), "and it is looked at anew");
        assert_eq!(all.give_up(a.key), Some((a.clone(), 3)));
        assert!(all.give_up(a.key).is_none() && all.due_ms(a.key, 1, &config, 10).is_none());
    }

    #[test]
    fn whom_this_node_found_silent_is_asked_in_turn_and_others_when_overdue() {
        let (mut all, peers) = (Suspicions::default(), ["a", "b", "c", "d"].map(peer));
        let mut keys = peers.each_ref().map(|peer| peer.key);
        keys.sort_unstable();
        for peer in &peers {
            all.begin(peer, 0);
            if peer.key != keys[2] {
                all.hold(0, 1, peer.clone(), 0, false);
            }
        }
        let asked = |all: &Suspicions, after, overdue: &[u64]| all.to_ask(after, |key| overdue.contains(&key)).collect::<Vec<_>>();
        assert_eq!(asked(&all, keys[1], &[]), [keys[3], keys[0], keys[1]]);
        assert_eq!(asked(&all, keys[1], &[keys[2]]), [keys[2], keys[3], keys[0], keys[1]]);
        keys.iter().for_each(|key| all.end(*key));
        assert_eq!(asked(&all, keys[1], &keys), [0u64; 0]);
    }

    #[test]
    fn one_who_suspected_before_us_without_a_name_counts_once() {
        let (config, mut all, a) = (Config::default(), Suspicions::default(), peer("a"));
        all.hold(0, 1, a.clone(), 0, true);
        assert_eq!((all.health(), all.due_ms(a.key, 1, &config, 3)), (0, Some(config.patience_ms(3).0)));
    }

    #[test]
    fn health_and_what_is_remembered_are_bounded() {
        let mut all = Suspicions::default();
        (0..20).for_each(|_| all.unwell());
        assert_eq!(all.health(), HEALTH_MAX);
        (0..20).for_each(|_| all.well());
        assert_eq!(all.health(), 0);
        for n in 0..10_000 {
            all.accuse(n, Accusation(n % 1_000), n);
        }
        assert!(all.accused.len() <= ACCUSED_MAX && all.accused.values().all(|a| a.who.len() <= ACCUSERS_MAX));
    }
}
