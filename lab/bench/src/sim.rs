//! Simulations of thousands of agents in virtual time: `lattice-lab sim gossip`, and `lattice-lab sim fence`
//! ([`fence`]).
//!
//! `sim gossip` runs the agents' real gossip cores with their real datagrams:
//!
//! ```text
//!   story: joins, deaths, changes, starvation ──▶ world: cores, lossy network, queue of events ──▶ measures
//! ```
//!
//! It has one process, one thread and one seed: the same seed gives the same run, to the byte. Nothing sleeps.

pub mod fence;
mod measures;
mod memory;
mod scene;
mod story;
mod wheel;
mod world;

use anyhow::{Result, ensure};

pub use scene::{Preset, Scene};

/// The options of `sim gossip`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The parameters of one of the two targets of gossip; exit code 1 when it is missed. Other options override them
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// Number of agents [default: 100]
    #[arg(long, value_parser = clap::value_parser!(u32).range(3..=60_000))]
    pub nodes: Option<u32>,
    /// Virtual minutes after the nodes have joined [default: 10]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=14_400))]
    pub minutes: Option<u32>,
    /// Percentage of the datagrams that are lost [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub loss: Option<f64>,
    /// Percentage of the agents that stop again and again, for one to five seconds [default: 0]
    #[arg(long, value_name = "PERCENT")]
    pub starved: Option<f64>,
    /// The seed: the same seed gives the same run
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
}

impl Options {
    fn scene(&self) -> Result<Scene> {
        let (nodes, minutes, loss, starved) = match self.preset {
            Some(Preset::Size) => (10_000, 30, 0.0, 0.0),
            Some(Preset::Loss) => (1_000, 24 * 60, 5.0, 1.0),
            None => (100, 10, 0.0, 0.0),
        };
        let (loss, starved) = (self.loss.unwrap_or(loss), self.starved.unwrap_or(starved));
        ensure!((0.0..=50.0).contains(&loss), "--loss {loss}: 0 to 50 percent are possible");
        ensure!((0.0..=50.0).contains(&starved), "--starved {starved}: 0 to 50 percent are possible");
        let nodes = self.nodes.unwrap_or(nodes) as usize;
        let minutes = u64::from(self.minutes.unwrap_or(minutes));
        Ok(Scene {
            nodes,
            minutes,
            loss_per_million: (loss * 10_000.0).round() as u64,
            starved: (nodes as f64 * starved / 100.0).ceil() as usize,
            // About ten deaths and thirty changes. A run of more than five hours has one death every half hour and one
            // change every ten minutes. A run of less than five minutes has fewer.
            death_every_ms: (minutes * 60_000 / 10).clamp(30_000, 1_800_000),
            change_every_ms: (minutes * 60_000 / 30).clamp(10_000, 600_000),
            seed: self.seed,
        })
    }
}

/// Simulates, and prints the figures. Returns whether the preset's targets were met.
pub fn gossip(options: &Options) -> Result<bool> {
    let scene = options.scene()?;
    let began = std::time::Instant::now();
    let measures = story::run(&scene, |line| {
        if !options.json {
            eprintln!("{line}");
        }
    })?;
    let (missed, wall_s) = (options.preset.map(|preset| measures.missed(preset)), began.elapsed().as_secs_f64());
    if options.json {
        println!("{}", serde_json::to_string_pretty(&measures.json(&scene, wall_s, missed.as_deref()))?);
    } else {
        print!("{}", measures.text(&scene, wall_s, missed.as_deref()));
    }
    Ok(missed.is_none_or(|missed| missed.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::measures::Measures;
    use super::*;

    fn run(seed: u64, loss_per_million: u64, starved: usize) -> Measures {
        let scene = Scene { nodes: 20, minutes: 2, loss_per_million, starved, death_every_ms: 60_000, change_every_ms: 30_000, seed };
        story::run(&scene, |_| {}).unwrap()
    }

    #[test]
    fn a_seed_determines_the_run_and_the_run_has_deaths_and_changes() {
        let (first, again, other) = (run(1, 50_000, 3), run(1, 50_000, 3), run(2, 50_000, 3));
        assert_eq!(first.trace, again.trace);
        assert_ne!(first.trace, other.trace);
        assert!(!first.deaths_ms.is_empty() && !first.changes_ms.is_empty() && first.unseen == 0, "{first:?}");
        assert!(first.bytes_per_second > 50.0 && first.bytes_per_second < 5_000.0, "{first:?}");
    }

    #[test]
    fn starved_agents_declare_no_healthy_one_down() {
        let measures = run(3, 50_000, 3);
        assert!(measures.suspicions > 0, "without suspicions this proves nothing: {measures:?}");
        assert_eq!(measures.false_deaths_healthy, 0, "{measures:?}");
    }

    #[test]
    fn options_override_the_preset_and_percentages_have_bounds() {
        let options =
            Options { preset: Some(Preset::Loss), nodes: None, minutes: Some(7), loss: None, starved: None, seed: 1, json: false };
        let scene = options.scene().unwrap();
        assert_eq!((scene.nodes, scene.minutes, scene.loss_per_million, scene.starved), (1_000, 7, 50_000, 10));
        assert!(Options { loss: Some(51.0), ..options }.scene().is_err());
    }
}
