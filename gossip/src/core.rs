//! The core: one `handle` in front of foca, the sealing, the view and the comparison of views.
//!
//! ```text
//!   Apart ──a node answers──▶ Joined ──declared Down──▶ Defunct ──at once, then after a growing pause──▶ Apart
//!     ▲                         │                                           (under a renewed identity)
//!     └──no active node is left─┘              any ──Leave──▶ Left ──Return──▶ Apart
//! ```

use crate::config::Config;
use crate::counters::{Counters, Refusal};
use crate::fact::{Fact, FactVersion};
use crate::fact_book::{Facts, encode_item};
use crate::keyring::Keyring;
use crate::known::Known;
use crate::peer::{Identity, Peer};
use crate::seal::{Opened, Opener, SEAL_BYTES, Sealer};
use crate::suspicion::{Accusation, Suspicions};
use crate::sync::{Pull, Records};
use crate::table::Table;
use crate::view::{Entry, Liveness, Member, News, View};
use crate::wire::{KIND_FOCA, KIND_PULL, KIND_RECORDS, Wire};
use crate::{PACKET_BYTES_MAX, PACKET_BYTES_MIN};
use foca::{Foca, Notification, Runtime, State, Timer};
use lattice_model::NodeId;
use progress::{ANNOUNCES_AT_ONCE, CatchUp, JoinAddress};
use rand_foca::rngs::Xoshiro256PlusPlus;
use rand_foca::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

mod catch_up;
mod doubt;
mod join;
mod lives;
mod progress;
mod receive;

/// If more changes than this are pending, each is sent less often, and this node does not pass on
/// newcomers (nor their first facts) that others reported: foca goes through all pending changes for
/// each datagram. The nodes of a cluster that starts all at once find each other by comparing views.
const FEW_CHANGES_MAX: usize = 256;

/// The input of the core. The first event of any kind starts it.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A datagram arrived.
    Datagram {
        /// The sender's address as the socket gives it. The seal, not the address, proves that the
        /// sender has a key of the cluster.
        from: SocketAddr,
        /// The whole datagram.
        bytes: &'a [u8],
    },
    /// A timer that [`Output::Timer`] asked for has fired. An unknown token, or one that was given
    /// before, is ignored.
    Timer(Token),
    /// A node of the cluster may be at this address. The core stores the address and tries it until
    /// a node answers, and later at intervals as long as no member has it, so that two halves of a
    /// cluster that started apart find each other. Our own address is ignored.
    Join(SocketAddr),
    /// The fact that this node publishes about itself from now on. Setting the same fact again
    /// costs nothing.
    SetFact(Fact),
    /// The keys from now on: each of them opens received datagrams, one of them seals what we send.
    SetKeys(&'a Keyring),
    /// This node leaves. A few other nodes are notified and pass it on. Until [`Event::Return`],
    /// datagrams and new addresses are ignored, and nothing is sent.
    Leave,
    /// This node returns under a renewed identity, if it has left.
    Return,
}

/// What the caller has to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this datagram; nothing happens when it is lost.
    Datagram {
        /// Where to.
        to: SocketAddr,
        /// At most [`Config::packet_bytes_max`] bytes.
        bytes: Vec<u8>,
    },
    /// Return the token as [`Event::Timer`] once, after this time. A late timer does no harm; one
    /// that never fires does.
    Timer {
        /// The delay in milliseconds.
        after_ms: u64,
        /// The token to return.
        token: Token,
    },
    /// The view has changed; [`Core::members`] reads it.
    News(News),
}

/// One timer of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

struct Armed {
    due_ms: u64,
    what: Pending,
}

enum Pending {
    /// `postponed`: the timer came late and was postponed once.
    Foca {
        timer: Timer<Peer>,
        postponed: bool,
    },
    Tick,
    Rejoin,
    /// The suspect with this key may have no time left to refute.
    Patience(u64),
}

enum Stage {
    /// We know no active node that receives from us.
    Apart,
    /// At least one active node receives from us.
    Joined,
    /// Others declared us Down, and we wait before we rejoin.
    Defunct,
    /// This node has left.
    Left,
}

/// What foca requested and the core has not done yet.
#[derive(Default)]
struct FocaRequests {
    sends: Vec<(SocketAddr, u8, Vec<u8>)>,
    timers: Vec<(Duration, Timer<Peer>)>,
    stage: Option<Stage>,
    /// The keys of the nodes that foca may have changed.
    touched: BTreeSet<u64>,
}

impl Runtime<Peer> for FocaRequests {
    fn notify(&mut self, notification: Notification<'_, Peer>) {
        match notification {
            Notification::Active => self.stage = Some(Stage::Joined),
            Notification::Idle => self.stage = Some(Stage::Apart),
            Notification::Defunct => self.stage = Some(Stage::Defunct),
            Notification::MemberUp(peer) | Notification::MemberDown(peer) | Notification::Rename(_, peer) => {
                self.touched.insert(peer.key);
            }
            // Peers never renew by themselves, so foca never rejoins by itself.
            Notification::Rejoin(_) => {}
        }
    }

    fn send_to(&mut self, to: Peer, data: &[u8]) {
        self.sends.push((to.addr, KIND_FOCA, data.to_vec()));
    }

    fn submit_after(&mut self, event: Timer<Peer>, after: Duration) {
        self.timers.push((after, event));
    }
}

type OurFoca = Foca<Peer, Wire, Xoshiro256PlusPlus, Facts>;

/// One node's part in the gossip. See the [crate] for what it does.
pub struct Core {
    me: Peer,
    config: Config,
    body_bytes_max: usize,
    foca: OurFoca,
    /// The number of nodes for which foca is configured, and whether it is configured for many
    /// pending changes.
    sized_for: usize,
    many_changes: bool,
    requests: FocaRequests,
    known: Known,
    suspicions: Suspicions,
    /// The key of the suspect that was pinged last; the next round begins after it.
    last_pinged_suspect: u64,
    /// The nodes that this node found silent, the latest last. It publishes them with its own fact.
    accused: VecDeque<Accusation>,
    /// How often foca has refuted a suspicion of us in this identity, and how many of those
    /// refutations are counted.
    refuted: Arc<AtomicU32>,
    refuted_counted: u32,
    sealer: Sealer,
    opener: Opener,
    /// By how much the machine's clock is ahead of the caller's monotonic one.
    clock_offset_ms: u64,
    /// The life that the next rejoin takes, if it is not the present one.
    next_life: Option<u64>,
    /// Until when this node publishes that others contradict its life or facts.
    contradicted_until_ms: Option<u64>,
    /// By node key: since when that node has published that others contradict it.
    contradicted: BTreeMap<u64, u64>,
    rng: Xoshiro256PlusPlus,
    view: View,
    /// News not yet given to the caller.
    news: Vec<News>,
    facts: Facts,
    fact_counter: u32,
    stage: Stage,
    started: bool,
    join_addresses: Vec<JoinAddress>,
    join_cursor: usize,
    catch_up: CatchUp,
    reconnected_ms: u64,
    rejoined_ms: Option<u64>,
    rejoin_pause_ms: u64,
    timers: Table<Token, Armed>,
    tokens: u64,
    counters: Counters,
}

impl Core {
    /// A core that knows only itself.
    ///
    /// `seed` decides which nodes it probes and gossips to. It must be drawn from the machine's
    /// randomness at every start: together with the incarnation it keeps two lives from sealing
    /// with one key. Until [`Core::set_clock`] is called, the caller's clock is taken for the
    /// machine's.
    ///
    /// # Panics
    /// If `config` is not valid: see [`Config::validate`].
    pub fn new(me: Identity, config: Config, keys: &Keyring, cluster: &str, seed: u64) -> Self {
        Self::with_known(me, config, keys, cluster, seed, Known::default())
    }

    /// [`Core::new`] with a cache of decoded names and facts, which several cores of one process
    /// share, so that a process has enough memory for thousands of cores.
    pub fn with_known(me: Identity, config: Config, keys: &Keyring, cluster: &str, seed: u64, known: Known) -> Self {
        if let Err(error) = config.validate() {
            panic!("a core is made from a validated configuration: {error}");
        }
        debug_assert!((PACKET_BYTES_MIN..=PACKET_BYTES_MAX).contains(&config.packet_bytes_max));
        let me = Peer::from(me);
        let body_bytes_max = config.packet_bytes_max - SEAL_BYTES - 1;
        let facts = Facts::new(me.node.clone(), me.incarnation, config.nodes_max, known.clone());
        let refuted = Arc::new(AtomicU32::new(0));
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
        let foca = Foca::with_custom_broadcast(
            me.clone(),
            config.foca(1, body_bytes_max, false),
            Xoshiro256PlusPlus::from_rng(&mut rng),
            Wire::new(me.clone(), known.clone(), refuted.clone()),
            facts.clone(),
        );
        Self {
            foca,
            sized_for: 1,
            many_changes: false,
            requests: FocaRequests::default(),
            known,
            suspicions: Suspicions::default(),
            last_pinged_suspect: 0,
            accused: VecDeque::new(),
            refuted,
            refuted_counted: 0,
            sealer: Sealer::new(keys, cluster, &me, seed),
            opener: Opener::new(keys, cluster, &me, config.nodes_max),
            clock_offset_ms: 0,
            next_life: None,
            contradicted_until_ms: None,
            contradicted: BTreeMap::new(),
            rng,
            view: View::new(&me),
            news: Vec::new(),
            facts,
            fact_counter: 0,
            stage: Stage::Apart,
            started: false,
            join_addresses: Vec::new(),
            join_cursor: 0,
            catch_up: CatchUp::default(),
            reconnected_ms: 0,
            rejoined_ms: None,
            rejoin_pause_ms: 0,
            timers: Table::default(),
            tokens: 0,
            counters: Counters::default(),
            me,
            config,
            body_bytes_max,
        }
    }

    /// Handles one event. `now_ms` is the milliseconds of a monotonic clock since any fixed moment;
    /// outputs are appended to `out`.
    pub fn handle(&mut self, now_ms: u64, event: Event<'_>, out: &mut Vec<Output>) {
        if let Stage::Left = self.stage {
            self.handle_left(now_ms, event, out);
            return;
        }
        if !self.started {
            self.started = true;
            // Nodes that start together should not tick together.
            let after_ms = self.rng.random_range(0..self.config.probe_period_ms);
            self.arm(now_ms, after_ms, Pending::Tick, out);
        }
        let mut sender = None;
        self.facts.book().set_newest_life(self.newest_life(now_ms));
        match event {
            Event::Datagram { from, bytes } => {
                sender = Some(from);
                self.counters.datagrams_in += 1;
                self.counters.bytes_in += bytes.len() as u64;
                if let Err(refusal) = self.handle_datagram(now_ms, bytes) {
                    self.counters.refused.count(refusal);
                }
                self.counters.senders_evicted = self.opener.evicted();
            }
            Event::Timer(token) => match self.timers.remove(&token) {
                Some(Armed { due_ms, what: Pending::Foca { timer, postponed } }) => {
                    self.handle_foca_timer(now_ms, due_ms, timer, postponed, out);
                }
                Some(Armed { what: Pending::Tick, .. }) => self.tick(now_ms, out),
                Some(Armed { what: Pending::Rejoin, .. }) => self.rejoin(now_ms, None, out),
                Some(Armed { due_ms, what: Pending::Patience(key) }) => self.check_suspicion(now_ms, due_ms, key, out),
                None => {}
            },
            Event::Join(addr) => self.add_join_address(addr),
            Event::SetFact(fact) => self.set_fact(fact),
            Event::SetKeys(keys) => self.set_keys(keys),
            Event::Return => {}
            Event::Leave => {
                // Only encoding could fail, and our own encoding of ourselves fits.
                let _ = self.foca.leave_cluster(&mut self.requests);
                self.requests.stage = Some(Stage::Left);
                self.view.set_me(&self.me, Liveness::Down);
            }
        }
        self.settle(now_ms, sender, out);
    }

    /// A node that has left only arms its tick again and accepts keys and a new fact, for its
    /// return.
    fn handle_left(&mut self, now_ms: u64, event: Event<'_>, out: &mut Vec<Output>) {
        self.facts.book().set_newest_life(self.newest_life(now_ms));
        match event {
            Event::Datagram { .. } | Event::Join(_) | Event::Leave => return,
            Event::Timer(token) => match self.timers.remove(&token) {
                Some(Armed { what: Pending::Tick, .. }) => self.arm(now_ms, self.config.probe_period_ms, Pending::Tick, out),
                Some(_) | None => return,
            },
            Event::SetFact(fact) => self.set_fact(fact),
            Event::SetKeys(keys) => self.set_keys(keys),
            Event::Return => self.rejoin(now_ms, None, out),
        }
        self.settle(now_ms, None, out);
    }

    fn set_keys(&mut self, keys: &Keyring) {
        self.sealer.rekey(keys);
        if self.opener.rekey(keys) {
            self.end_contradiction();
        }
    }

    /// Every known node, ourselves included, in order of their ids.
    pub fn members(&self) -> impl Iterator<Item = Member> {
        self.view.all().map(|(peer, entry)| self.to_member(peer, entry))
    }

    /// One node.
    pub fn member(&self, node: &NodeId) -> Option<Member> {
        self.view.get(node).map(|(peer, entry)| self.to_member(peer, entry))
    }

    fn to_member(&self, peer: &Peer, entry: &Entry) -> Member {
        let accusers = match entry.liveness {
            Liveness::Suspect => self.suspicions.accusers(Accusation::of(peer, entry.refutations)),
            Liveness::Alive | Liveness::Down => 0,
        };
        entry.member(peer, accusers, self.contradicted.get(&peer.key).copied())
    }

    /// This node's present life: the one that it began with, or another one that it took since (see
    /// `lives.rs`).
    pub fn life(&self) -> u64 {
        self.me.incarnation
    }

    /// Whether a node is Alive, or Suspect and not yet declared Down, in this node's view.
    pub fn is_alive(&self, node: &NodeId) -> bool {
        self.view.get(node).is_some_and(|(_, entry)| entry.liveness != Liveness::Down)
    }

    /// How slow this node believes itself to be, from 0 (well) to 8. At `n` its probes and its
    /// suspicions take `1 + n` times as long.
    pub fn health(&self) -> u32 {
        self.suspicions.health()
    }

    /// How many nodes are seen Alive, ourselves included.
    pub fn alive(&self) -> usize {
        self.view.alive() + 1
    }

    /// Whether at least one other node is active and receives from us.
    pub fn is_joined(&self) -> bool {
        matches!(self.stage, Stage::Joined)
    }

    /// The counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    fn handle_datagram(&mut self, now_ms: u64, bytes: &[u8]) -> Result<(), Refusal> {
        if bytes.len() > PACKET_BYTES_MAX {
            return Err(Refusal::TooLong);
        }
        let newest_life = self.newest_life(now_ms);
        let Opened { node, incarnation, kind, body } = self.opener.open(now_ms, newest_life, bytes)?;
        let sealed_by = (node, incarnation);
        match kind {
            KIND_FOCA => self.handle_foca_message(now_ms, sealed_by, &body),
            KIND_PULL => {
                let pull = Pull::decode(&body, &self.known).map_err(|_| Refusal::Undecodable)?;
                self.check_sender(sealed_by, &pull.from)?;
                self.answer_pull(now_ms, &pull);
                Ok(())
            }
            KIND_RECORDS => {
                let records = Records::decode(&body, &self.known).map_err(|_| Refusal::Undecodable)?;
                self.check_sender(sealed_by, &records.from)?;
                self.handle_records(now_ms, records)
            }
            _ => Err(Refusal::Undecodable),
        }
    }

    fn set_fact(&mut self, fact: Fact) {
        if self.fact().is_none_or(|known| known != fact) {
            self.publish_fact(&fact);
        }
    }

    /// The fact about this node that was published last.
    fn fact(&self) -> Option<Fact> {
        self.view.of(self.me.key).and_then(|(_, entry)| entry.fact.as_ref()).map(|known| known.fact)
    }

    fn publish_fact(&mut self, fact: &Fact) {
        self.fact_counter += 1;
        let version = FactVersion { incarnation: self.me.incarnation, counter: self.fact_counter };
        let contradicted = self.contradicted_until_ms.is_some();
        // Our own item is well formed and newer than the last, so foca accepts it.
        let _ = self.foca.add_broadcast(&encode_item(&self.me.node, version, fact, contradicted, self.accused.make_contiguous()));
    }

    /// Runs every probe period: does what foca has no timer for.
    fn tick(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        self.arm(now_ms, self.config.probe_period_ms, Pending::Tick, out);
        self.check_own_life(now_ms);
        match self.stage {
            Stage::Apart => {
                self.ping_suspects(now_ms);
                // Down nodes are asked too: if this node was cut off, no other node makes the first
                // attempt.
                let known: BTreeSet<SocketAddr> = self.view.others().map(|(peer, _)| peer.addr).collect();
                self.announce_to_some(
                    &known.into_iter().chain(self.join_addresses.iter().map(|join| join.addr)).collect(),
                    ANNOUNCES_AT_ONCE,
                );
            }
            Stage::Joined => {
                self.ping_suspects(now_ms);
                if now_ms.saturating_sub(self.reconnected_ms) >= self.config.reconnect_period_ms {
                    self.reconnected_ms = now_ms;
                    let silent = self.silent_addresses();
                    self.announce_to_some(&silent, 1);
                    self.forget_down_nodes(now_ms);
                }
                self.compare_when_due(now_ms);
            }
            Stage::Defunct | Stage::Left => {}
        }
    }

    fn forget_down_nodes(&mut self, now_ms: u64) {
        if self.view.down_since_ms().is_none_or(|since_ms| now_ms.saturating_sub(since_ms) < self.config.forget_down_after_ms) {
            return;
        }
        let over = |entry: &Entry| now_ms.saturating_sub(entry.since_ms) >= self.config.forget_down_after_ms;
        let gone = self.view.others().filter(|(_, entry)| entry.liveness == Liveness::Down && over(entry));
        let gone: Vec<Peer> = gone.map(|(peer, _)| peer.clone()).collect();
        for peer in gone {
            self.opener.forget(&peer);
            self.facts.book().forget(peer.key);
            self.contradicted.remove(&peer.key);
            self.view.forget(now_ms, &peer, &mut self.news);
            // Cannot fail: foca removes the member if it is still Down.
            let _ = self.foca.handle_timer(Timer::RemoveDown(peer), &mut self.requests);
        }
    }

    fn send(&mut self, to: SocketAddr, kind: u8, body: Vec<u8>) {
        self.requests.sends.push((to, kind, body));
    }

    fn arm(&mut self, now_ms: u64, after_ms: u64, what: Pending, out: &mut Vec<Output>) {
        self.tokens += 1;
        let token = Token(self.tokens);
        self.timers.insert(token, Armed { due_ms: now_ms + after_ms, what });
        out.push(Output::Timer { after_ms, token });
    }

    /// After every event: follows foca's stage, updates the view, and appends the outputs.
    fn settle(&mut self, now_ms: u64, sender: Option<SocketAddr>, out: &mut Vec<Output>) {
        let mut just_joined = false;
        let (claimed, refused) = self.facts.book().take_claimed();
        self.counters.claims_refused += refused;
        if let Some(life) = claimed {
            self.handle_contradiction(now_ms, life);
        }
        match self.requests.stage.take() {
            None => {}
            Some(Stage::Defunct) => self.handle_defunct(now_ms, sender, out),
            Some(stage) => {
                just_joined = matches!(stage, Stage::Joined);
                self.stage = stage;
            }
        }
        self.arm_foca_timers(now_ms, out);
        self.refresh(now_ms);
        self.handle_changed_facts(now_ms, out);
        out.extend(self.news.drain(..).map(Output::News));
        if just_joined {
            self.begin_catch_up(now_ms, sender);
        }
        debug_assert!(self.view_equals_foca(), "the view differs from foca's list");
        self.count_refutations();
        self.resize();
        self.output_datagrams(out);
    }

    /// Updates the view from foca's list, in one pass, for each node that may have changed.
    fn refresh(&mut self, now_ms: u64) {
        let touched = std::mem::take(&mut self.requests.touched);
        if touched.is_empty() {
            return;
        }
        let facts = self.facts.book();
        // A Bloom filter of the touched keys: a few bits exclude most nodes of a long list.
        let (mut maybe, place) = ([0u64; 16], |key: u64| ((key >> 6) as usize % 16, 1 << (key % 64)));
        for (word, bit) in touched.iter().map(|key| place(*key)) {
            maybe[word] |= bit;
        }
        let is_touched = |key: u64| maybe[place(key).0] & place(key).1 != 0 && touched.contains(&key);
        for member in others(&self.foca, self.me.key).filter(|member| is_touched(member.id().key)) {
            self.view.update(now_ms, member, &facts, &mut self.news);
            match member.state() {
                State::Suspect => self.suspicions.begin(member.id(), member.incarnation()),
                State::Alive | State::Down => self.suspicions.end(member.id().key),
            }
        }
    }

    /// Whether the view, which is updated by changes alone, equals foca's list. Checked in small
    /// clusters only.
    fn view_equals_foca(&self) -> bool {
        let same = |member: &foca::Member<Peer>| {
            self.view.of(member.id().key).is_some_and(|(peer, entry)| {
                (peer, entry.state(), entry.refutations) == (member.id(), member.state(), member.incarnation())
            })
        };
        self.sized_for > 64
            || (others(&self.foca, self.me.key).all(same) && others(&self.foca, self.me.key).count() == self.view.others().count())
    }

    fn handle_changed_facts(&mut self, now_ms: u64, out: &mut Vec<Output>) {
        let changed = self.facts.book().take_changed();
        for fact in changed {
            self.view.show_fact(fact.key, Some(&fact), &mut self.news);
            self.record_contradiction(now_ms, &fact);
            for accusation in &fact.suspects {
                self.handle_accusation(now_ms, *accusation, fact.key, out);
            }
        }
    }

    /// News takes longer to travel in a larger cluster, so the times that foca waits grow with the
    /// number of nodes. When there is much news, comparing views is cheaper than sending everything
    /// to all nodes repeatedly.
    fn resize(&mut self) {
        let nodes = self.foca.num_members() + 1;
        let many_changes = self.foca.updates_backlog() + self.foca.custom_broadcast_backlog() > FEW_CHANGES_MAX;
        if (nodes, many_changes) != (self.sized_for, self.many_changes) {
            (self.sized_for, self.many_changes) = (nodes, many_changes);
            self.facts.book().set_many_changes(many_changes);
            // Only settings that foca allows to change depend on these values.
            let _ = self.foca.set_config(self.config.foca(nodes, self.body_bytes_max, many_changes));
        }
    }

    fn output_datagrams(&mut self, out: &mut Vec<Output>) {
        for (to, kind, body) in self.requests.sends.drain(..) {
            // foca tries Down members again, and our own earlier identities are among them.
            if to == self.me.addr {
                continue;
            }
            let bytes = self.sealer.seal(kind, &body);
            self.counters.datagrams_out += 1;
            self.counters.bytes_out += bytes.len() as u64;
            out.push(Output::Datagram { to, bytes });
        }
    }
}

/// foca's members without our own earlier identities, which foca lists as Down once another node
/// has mentioned them.
fn others(foca: &OurFoca, me: u64) -> impl Iterator<Item = &foca::Member<Peer>> {
    foca.iter_membership_state().filter(move |member| member.id().key != me)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyring::Key;

    /// foca answers an update of an earlier identity of ours by listing that identity as Down.
    #[test]
    fn an_update_of_our_earlier_life_is_not_our_death() {
        let addr: SocketAddr = "10.0.0.1:7".parse().unwrap();
        let me = Identity { node: "a".parse().unwrap(), addr, mesh: addr, incarnation: 2 };
        let mut core = Core::new(me.clone(), Config::default(), &Keyring::configured(Key::from_bytes([7; 32])), "lab", 1);
        let mut out = Vec::new();
        core.handle(0, Event::Join(addr), &mut out);
        out.clear();
        let earlier = Peer::new(me.node.clone(), addr, 1, 0);
        let me_key = earlier.key;
        core.foca.apply_many([foca::Member::alive(earlier)].into_iter(), true, &mut core.requests).unwrap();
        core.requests.touched.insert(me_key);
        core.settle(0, None, &mut out);
        assert_eq!(core.foca.iter_membership_state().count(), 1, "the test needs an update of the earlier life");
        assert_eq!(out, vec![]);
        let seen: Vec<_> = core.members().map(|member| (member.incarnation, member.liveness)).collect();
        assert_eq!(seen, [(2, Liveness::Alive)]);
    }
}
