//! The events of a simulation, and the observations.

use super::measures::Measures;
use super::memory;
use super::scene::Scene;
use super::world::{World, fact, name, number};
use anyhow::{Result, bail};
use lattice_gossip::{Event, Liveness, News};

/// Interval at which the agents are started, one after the other.
const START_MS_PER_NODE: u64 = 6;
/// Joining is given up after this long.
const JOIN_MS_MAX: u64 = 1_800_000;
/// A dead agent is started again after this long.
const DEAD_FOR_MS: u64 = 60_000;
/// A starved agent stops for this long at a time, and runs for this long in between.
const STOPPED_MS: std::ops::Range<u64> = 1_000..5_001;
const RUNNING_MS: std::ops::Range<u64> = 15_000..45_001;
/// An agent that was stopped this recently does not count as healthy.
const RECOVERED_MS: u64 = 30_000;
/// Interval of observations.
const OBSERVE_INTERVAL_MS: u64 = 100;
/// How long the simulation waits until a change has spread.
const SPREAD_MS_MAX: u64 = 55_000;

/// A change of one node that all others should learn.
struct Spreading {
    node: usize,
    what: What,
    since_ms: u64,
    knows: Vec<bool>,
    count: usize,
}

#[derive(PartialEq)]
enum What {
    Death,
    Change(u64),
}

struct Story<'a> {
    scene: &'a Scene,
    world: World,
    measures: Measures,
    spreading: Vec<Spreading>,
    starved: Vec<(usize, u64)>,
    dead: Vec<(usize, u64)>,
    /// When each was last considered dead while it lived.
    mistaken_ms: Vec<Option<u64>>,
    changes: u64,
}

/// Runs the whole simulation. `report` gets a line from time to time, because this takes minutes.
pub fn run(scene: &Scene, mut report: impl FnMut(&str)) -> Result<Measures> {
    let mut story = Story {
        scene,
        world: World::new(scene),
        measures: Measures::default(),
        spreading: Vec::new(),
        starved: Vec::new(),
        dead: Vec::new(),
        mistaken_ms: vec![None; scene.nodes],
        changes: 0,
    };
    story.join(&mut report)?;
    story.live(&mut report);
    Ok(story.end())
}

impl Story<'_> {
    fn join(&mut self, report: &mut impl FnMut(&str)) -> Result<()> {
        let empty = memory::allocated_bytes();
        let from_ms = self.world.now_ms;
        for n in 0..self.scene.nodes {
            self.world.run(from_ms + n as u64 * START_MS_PER_NODE);
            self.world.start(n);
            // Each core reports every other node, and nobody reads these reports.
            self.world.news.clear();
            if n > 0 && n % 1_000 == 0 {
                report(&format!("{n} agents started"));
            }
        }
        loop {
            self.run_discarding_news(1_000);
            let least = self.world.living().map(|(_, core)| core.alive()).min().unwrap_or(0);
            if least == self.scene.nodes {
                break;
            }
            if self.world.now_ms - from_ms > JOIN_MS_MAX {
                bail!("after {} virtual minutes some agent knows only {least} of {}", JOIN_MS_MAX / 60_000, self.scene.nodes);
            }
        }
        self.measures.joined_ms = self.world.now_ms - from_ms;
        // The last messages of joining belong to it.
        self.run_discarding_news(30_000);
        self.measures.joining_peak_bytes = self.world.peak_bytes;
        self.measures.joining_bytes = self.world.sent_bytes / self.scene.nodes as u64;
        self.measures.simulated_bytes = (memory::allocated_bytes().saturating_sub(empty)) / self.scene.nodes as u64;
        report(&format!("all know all after {:.1} s", self.measures.joined_ms as f64 / 1e3));
        Ok(())
    }

    /// Runs the simulation and discards the cores' messages. While thousands join, these would use more memory than the
    /// cores.
    fn run_discarding_news(&mut self, for_ms: u64) {
        let until_ms = self.world.now_ms + for_ms;
        while self.world.now_ms < until_ms {
            self.world.run((self.world.now_ms + OBSERVE_INTERVAL_MS).min(until_ms));
            self.world.news.clear();
        }
    }

    fn live(&mut self, report: &mut impl FnMut(&str)) {
        let from_ms = self.world.now_ms;
        let (until_ms, counted) = (from_ms + self.scene.minutes * 60_000, self.totals());
        let (sent, datagrams) = (self.world.sent_bytes, self.world.datagrams);
        self.world.peak_bytes = 0;
        // The seed nodes are never starved: their loss has its own test.
        let spread = self.scene.nodes / self.scene.starved.max(1);
        self.starved = (0..self.scene.starved).map(|i| (i * spread + spread / 2, from_ms + 1_000 * i as u64)).collect();
        let (mut death_ms, mut change_ms) = (from_ms + 10_000, from_ms + 25_000);
        let mut reported_ms = from_ms;
        while self.world.now_ms < until_ms {
            let now_ms = self.world.now_ms;
            let time_left = now_ms + SPREAD_MS_MAX < until_ms;
            if now_ms >= death_ms && time_left {
                death_ms += self.scene.death_every_ms;
                self.kill_one();
            }
            if now_ms >= change_ms && time_left {
                change_ms += self.scene.change_every_ms;
                self.change_one();
            }
            self.starve();
            self.restart_dead();
            self.world.run((now_ms + OBSERVE_INTERVAL_MS).min(until_ms));
            self.observe();
            if self.world.now_ms - reported_ms >= 300_000 {
                reported_ms = self.world.now_ms;
                let minutes = (reported_ms - from_ms) / 60_000;
                let (datagrams, healthy) = (self.world.datagrams - datagrams, self.measures.false_deaths_healthy);
                report(&format!(
                    "{minutes} of {} minutes: {datagrams} datagrams, {healthy} healthy ones declared dead",
                    self.scene.minutes
                ));
            }
        }
        let seconds = (self.scene.minutes * 60) as f64;
        self.measures.bytes_per_second = (self.world.sent_bytes - sent) as f64 / seconds / self.scene.nodes as f64;
        self.measures.datagrams_per_second = (self.world.datagrams - datagrams) as f64 / seconds / self.scene.nodes as f64;
        self.measures.datagrams = self.world.datagrams;
        self.measures.peak_bytes = self.world.peak_bytes;
        let (suspicions, refutations) = self.totals();
        self.measures.suspicions += suspicions.saturating_sub(counted.0);
        self.measures.refutations += refutations.saturating_sub(counted.1);
    }

    fn end(mut self) -> Measures {
        let host = self.world.living().map(|(n, _)| n).last().unwrap_or(0);
        // The second call: everything that is allocated only once exists by then.
        self.world.memory_of_one(host);
        self.measures.memory_bytes = self.world.memory_of_one(host);
        self.measures.unseen += self.spreading.len();
        self.measures.trace = self.world.trace;
        self.measures
    }

    /// Suspicions and refutations that the living agents have counted.
    fn totals(&self) -> (u64, u64) {
        self.world.living().fold((0, 0), |(s, r), (_, core)| (s + core.counters().suspicions, r + core.counters().refutations))
    }

    /// A random living node that is not starved and has no change that still spreads.
    fn anyone(&mut self) -> usize {
        loop {
            let n = self.world.random(self.scene.nodes as u64) as usize;
            let busy = self.starved.iter().any(|(s, _)| *s == n) || self.spreading.iter().any(|s| s.node == n);
            if !busy && self.world.nodes[n].core.is_some() {
                return n;
            }
        }
    }

    fn kill_one(&mut self) {
        let node = self.anyone();
        if let Some(core) = &self.world.nodes[node].core {
            self.measures.suspicions += core.counters().suspicions;
            self.measures.refutations += core.counters().refutations;
        }
        self.world.kill(node);
        self.dead.push((node, self.world.now_ms + DEAD_FOR_MS));
        self.spread(node, What::Death);
    }

    fn change_one(&mut self) {
        let node = self.anyone();
        self.changes += 1;
        self.spread(node, What::Change(self.changes));
        self.world.handle(node, Event::SetFact(fact(self.changes)));
    }

    fn spread(&mut self, node: usize, what: What) {
        let knows = vec![false; self.scene.nodes];
        self.spreading.push(Spreading { node, what, since_ms: self.world.now_ms, knows, count: 0 });
    }

    fn starve(&mut self) {
        let now_ms = self.world.now_ms;
        for at in 0..self.starved.len() {
            let (node, due_ms) = self.starved[at];
            if now_ms >= due_ms {
                let still_ms = STOPPED_MS.start + self.world.random(STOPPED_MS.end - STOPPED_MS.start);
                let runs_ms = RUNNING_MS.start + self.world.random(RUNNING_MS.end - RUNNING_MS.start);
                self.world.stop(node, still_ms);
                self.starved[at].1 = now_ms + still_ms + runs_ms;
            }
        }
    }

    fn restart_dead(&mut self) {
        let now_ms = self.world.now_ms;
        let (due, later) = std::mem::take(&mut self.dead).into_iter().partition(|(_, at_ms)| now_ms >= *at_ms);
        self.dead = later;
        let due: Vec<(usize, u64)> = due;
        due.into_iter().for_each(|(node, _)| self.world.start(node));
    }

    fn observe(&mut self) {
        for (at_ms, seer, news) in std::mem::take(&mut self.world.news) {
            match news {
                News::Down(node) => self.seen_down(at_ms, seer as usize, number(&node)),
                News::Fact(node) => self.seen_change(at_ms, seer as usize, number(&node)),
                News::Alive { .. }
                | News::Suspect(_)
                | News::Confirmed(_)
                | News::Restarted(_)
                | News::Contradicted(_)
                | News::Forgotten(_)
                | News::Rejoined => {}
            }
        }
        let now_ms = self.world.now_ms;
        let before = self.spreading.len();
        self.spreading.retain(|spreading| now_ms - spreading.since_ms < SPREAD_MS_MAX);
        self.measures.unseen += before - self.spreading.len();
    }

    fn seen_down(&mut self, at_ms: u64, seer: usize, node: usize) {
        if self.world.nodes[node].core.is_none() {
            self.know(at_ms, seer, node, &What::Death);
            return;
        }
        // A message about its earlier life is not an error.
        let life = self.world.nodes[node].life;
        let of_this_life = self.world.nodes[seer].core.as_ref().and_then(|core| core.member(&name(node)));
        if of_this_life.is_none_or(|member| member.incarnation != life || member.liveness != Liveness::Down) {
            return;
        }
        if self.mistaken_ms[node].is_none_or(|last_ms| at_ms - last_ms > RECOVERED_MS) {
            match self.world.nodes[node].was_still_ms {
                Some(still_ms) if at_ms < still_ms + RECOVERED_MS => self.measures.false_deaths_starved += 1,
                Some(_) | None => self.measures.false_deaths_healthy += 1,
            }
        }
        self.mistaken_ms[node] = Some(at_ms);
    }

    fn seen_change(&mut self, at_ms: u64, seer: usize, node: usize) {
        let digest = self.world.nodes[seer].core.as_ref().and_then(|core| core.member(&name(node))).and_then(|m| m.fact).map(|f| f.digest);
        if let Some(digest) = digest {
            self.know(at_ms, seer, node, &What::Change(digest));
        }
    }

    /// `seer` knows the change now.
    fn know(&mut self, at_ms: u64, seer: usize, node: usize, what: &What) {
        let living = self.scene.nodes - self.dead.len();
        let Some(at) = self.spreading.iter().position(|spreading| spreading.node == node && spreading.what == *what) else { return };
        let spreading = &mut self.spreading[at];
        if !std::mem::replace(&mut spreading.knows[seer], true) {
            spreading.count += 1;
        }
        // 99 % of those who can learn it, without the node itself.
        let all = if *what == What::Death { living } else { living - 1 };
        if spreading.count * 100 >= all * 99 {
            let took_ms = at_ms - spreading.since_ms;
            match what {
                What::Death => self.measures.deaths_ms.push(took_ms),
                What::Change(_) => self.measures.changes_ms.push(took_ms),
            }
            self.spreading.remove(at);
        }
    }
}
