//! The results of a simulation.

use super::scene::{Preset, Scene};
use std::fmt::Write as _;

/// The figures of one run.
#[derive(Clone, Debug, Default)]
pub struct Measures {
    /// From each death until 99 % of the living saw it.
    pub deaths_ms: Vec<u64>,
    /// From each change until 99 % knew it.
    pub changes_ms: Vec<u64>,
    /// Deaths and changes that 99 % did not learn.
    pub unseen: usize,
    /// Agents that were considered dead and ran all the time.
    pub false_deaths_healthy: u64,
    /// Agents that were considered dead and had been stopped shortly before.
    pub false_deaths_starved: u64,
    /// Failed probes of agents' own.
    pub suspicions: u64,
    /// Refutations.
    pub refutations: u64,
    /// Sent by each agent after joining, on average.
    pub bytes_per_second: f64,
    pub datagrams_per_second: f64,
    /// The most bytes that one agent sent in one second after joining.
    pub peak_bytes: u64,
    /// Time until every agent knew every other.
    pub joined_ms: u64,
    /// The most bytes that one agent sent in one second while joining.
    pub joining_peak_bytes: u64,
    /// Sent by each agent while joining, on average.
    pub joining_bytes: u64,
    /// The gossip memory of one agent that shares nothing with others.
    pub memory_bytes: u64,
    /// The memory of each agent in this simulation, where agents share memory.
    pub simulated_bytes: u64,
    /// All datagrams that were sent.
    pub datagrams: u64,
    /// See [`World::trace`](super::world::World::trace).
    pub trace: u64,
}

const DEATH_MS_MAX: u64 = 10_000;
const CHANGE_MS_MAX: u64 = 3_000;
const BYTES_PER_SECOND_MAX: f64 = 10_000.0;
const MEMORY_BYTES_MAX: u64 = 20_000_000;
const FALSE_DEATHS_MAX: u64 = 1;

impl Measures {
    /// The missed targets of the preset, as text.
    pub fn missed(&self, preset: Preset) -> Vec<String> {
        let mut missed = Vec::new();
        let mut need = |met: bool, what: String| {
            if !met {
                missed.push(what);
            }
        };
        match preset {
            Preset::Size => {
                let (death, change) = (worst(&self.deaths_ms), worst(&self.changes_ms));
                need(self.unseen == 0, format!("{} deaths or changes were not known to 99 %", self.unseen));
                need(
                    death.is_some_and(|ms| ms <= DEATH_MS_MAX),
                    format!("a death known after {}, not {} s", seconds(death), DEATH_MS_MAX / 1_000),
                );
                need(
                    change.is_some_and(|ms| ms <= CHANGE_MS_MAX),
                    format!("a change known after {}, not {} s", seconds(change), CHANGE_MS_MAX / 1_000),
                );
                need(self.bytes_per_second < BYTES_PER_SECOND_MAX, format!("{:.0} bytes per second and agent", self.bytes_per_second));
                need((1..MEMORY_BYTES_MAX).contains(&self.memory_bytes), format!("{} bytes of memory per agent", self.memory_bytes));
            }
            Preset::Loss => {
                let dead = self.false_deaths_healthy;
                need(dead <= FALSE_DEATHS_MAX, format!("{dead} healthy agents declared dead"));
            }
        }
        missed
    }

    /// As text, for people.
    pub fn text(&self, scene: &Scene, wall_s: f64, missed: Option<&[String]>) -> String {
        let mut text = String::new();
        let mut row = |what: &str, value: String| {
            let _ = writeln!(text, "{what:<44}{value}");
        };
        let (loss, starved) = (scene.loss_per_million as f64 / 1e4, scene.starved);
        row("agents, virtual minutes, seed", format!("{}, {}, {}", scene.nodes, scene.minutes, scene.seed));
        row("datagrams lost, agents starved", format!("{loss} %, {starved}"));
        row("all know all after", format!("{:.1} s", self.joined_ms as f64 / 1e3));
        row(
            "joining: sent by one, at most in a second",
            format!("{:.1} KB, {:.1} KB/s", kilo(self.joining_bytes), kilo(self.joining_peak_bytes)),
        );
        row("dead known to 99 %: median, slowest", spread(&self.deaths_ms));
        row("change known to 99 %: median, slowest", spread(&self.changes_ms));
        row("not known to 99 %", self.unseen.to_string());
        row(
            "sent by one on average, at most in a second",
            format!("{:.2} KB/s, {:.1} KB/s", self.bytes_per_second / 1e3, kilo(self.peak_bytes)),
        );
        row("datagrams sent by one", format!("{:.2}/s", self.datagrams_per_second));
        row("memory of one agent (and of one here)", format!("{:.2} MB ({:.2} MB)", mega(self.memory_bytes), mega(self.simulated_bytes)));
        row("healthy agents declared dead", self.false_deaths_healthy.to_string());
        row("starved agents declared dead", self.false_deaths_starved.to_string());
        row("suspicions, refutations", format!("{}, {}", self.suspicions, self.refutations));
        row("datagrams in all, wall time", format!("{}, {wall_s:.0} s", self.datagrams));
        row("trace (the same: the same run, to the byte)", format!("{:016x}", self.trace));
        match missed {
            Some([]) => row("the preset's figures", "met".to_owned()),
            Some(missed) => missed.iter().for_each(|what| row("MISSED", what.clone())),
            None => {}
        }
        text
    }

    /// As JSON, for programs.
    pub fn json(&self, scene: &Scene, wall_s: f64, missed: Option<&[String]>) -> serde_json::Value {
        serde_json::json!({
            "nodes": scene.nodes, "minutes": scene.minutes, "seed": scene.seed,
            "loss_percent": scene.loss_per_million as f64 / 1e4, "starved": scene.starved,
            "joined_ms": self.joined_ms, "joining_bytes": self.joining_bytes, "joining_peak_bytes_per_second": self.joining_peak_bytes,
            "deaths_ms": self.deaths_ms, "changes_ms": self.changes_ms, "unseen": self.unseen,
            "bytes_per_second": self.bytes_per_second, "peak_bytes_per_second": self.peak_bytes,
            "datagrams_per_second": self.datagrams_per_second, "memory_bytes": self.memory_bytes,
            "false_deaths_healthy": self.false_deaths_healthy, "false_deaths_starved": self.false_deaths_starved,
            "suspicions": self.suspicions, "refutations": self.refutations,
            "datagrams": self.datagrams, "trace": format!("{:016x}", self.trace), "wall_seconds": wall_s, "missed": missed,
        })
    }
}

fn worst(times_ms: &[u64]) -> Option<u64> {
    times_ms.iter().copied().max()
}

fn seconds(ms: Option<u64>) -> String {
    ms.map_or("never".to_owned(), |ms| format!("{:.1} s", ms as f64 / 1e3))
}

fn spread(times_ms: &[u64]) -> String {
    let mut sorted = times_ms.to_vec();
    sorted.sort_unstable();
    let median = sorted.get(sorted.len() / 2).copied();
    format!("{}, {} (of {})", seconds(median), seconds(sorted.last().copied()), sorted.len())
}

fn kilo(bytes: u64) -> f64 {
    bytes as f64 / 1e3
}

fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_can_be_missed() {
        let good = Measures { deaths_ms: vec![8_000], changes_ms: vec![2_000], memory_bytes: 5_000_000, ..Measures::default() };
        assert_eq!(good.missed(Preset::Size), Vec::<String>::new());
        for bad in [
            Measures { deaths_ms: vec![8_000, 10_001], ..good.clone() },
            Measures { changes_ms: vec![], ..good.clone() },
            Measures { unseen: 1, ..good.clone() },
            Measures { bytes_per_second: 10_000.0, ..good.clone() },
            Measures { memory_bytes: 20_000_000, ..good.clone() },
            Measures { memory_bytes: 0, ..good.clone() },
        ] {
            assert_eq!(bad.missed(Preset::Size).len(), 1, "{bad:?}");
        }
        assert_eq!(Measures { false_deaths_healthy: 1, ..Measures::default() }.missed(Preset::Loss), Vec::<String>::new());
        assert_eq!(Measures { false_deaths_healthy: 2, ..Measures::default() }.missed(Preset::Loss).len(), 1);
    }
}
