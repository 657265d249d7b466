//! Figures: medians with their spread, a peer or lower bound beside each, a target, and the verdict.

use lattice_lab::machine::Machine;
use serde::Serialize;
use std::fmt;

/// Measurements of one quantity, in one unit.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Samples {
    /// How many were taken.
    pub count: usize,
    /// How many tries failed; they are counted, never averaged.
    pub failed: usize,
    /// The median.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
}

impl Samples {
    /// The summary of these values; `None` if there are none.
    pub fn of(mut values: Vec<f64>, failed: usize) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        Some(Self { count: values.len(), failed, median, min, max })
    }
}

/// A comparison for a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Measured in the same run.
    pub samples: Samples,
    /// The figure's median divided by this one's.
    pub ratio: f64,
}

/// The target of a figure.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// At most this fraction of the named peer's median.
    RatioTo { peer: String, at_most: f64 },
    /// At least this many times the named peer's median.
    RatioAtLeast { peer: String, at_least: f64 },
    /// At most this much, in the figure's unit; and the reason for the value.
    AtMost { value: f64, why: String },
    /// At least this much, in the figure's unit; and the reason for the value.
    AtLeast { value: f64, why: String },
}

/// The result of comparing a figure with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The target is met.
    Met,
    /// The target is missed.
    Missed,
    /// The figure has no target; it is only observed.
    NoTarget,
}

/// One line of a report.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// What was measured.
    pub name: String,
    /// For example `ms`, `MB`, `%` or `/s`.
    pub unit: &'static str,
    /// The measurements.
    pub samples: Samples,
    /// The comparisons.
    pub peers: Vec<Peer>,
    /// The target.
    pub target: Option<Target>,
    /// The verdict.
    pub verdict: Verdict,
    /// Why the measurement was not complete; its target then counts as missed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

impl Figure {
    /// A figure with its peers. Peers that could not be measured are left out here and named in the report's notes.
    pub fn new(name: &str, unit: &'static str, samples: Samples, peers: Vec<(&str, Option<Samples>)>, target: Option<Target>) -> Self {
        let ratio = |peer: &Samples| if peer.median > 0.0 { samples.median / peer.median } else { f64::INFINITY };
        let peers: Vec<Peer> =
            peers.into_iter().filter_map(|(name, s)| s.map(|s| Peer { name: name.to_owned(), ratio: ratio(&s), samples: s })).collect();
        let verdict = match &target {
            None => Verdict::NoTarget,
            Some(Target::AtMost { value, .. }) => met(samples.median <= *value),
            Some(Target::AtLeast { value, .. }) => met(samples.median >= *value),
            // If the peer was not measured, the target counts as missed.
            Some(Target::RatioAtLeast { peer, at_least }) => met(peers.iter().any(|p| p.name == *peer && p.ratio >= *at_least)),
            Some(Target::RatioTo { peer, at_most }) => met(peers.iter().any(|p| p.name == *peer && p.ratio <= *at_most)),
        };
        Self { name: name.to_owned(), unit, samples, peers, target, verdict, incomplete: None }
    }

    /// A figure without a measurement: its target is missed.
    pub fn not_measured(name: &str, unit: &'static str, why: &str, target: Option<Target>) -> Self {
        let none = Samples { failed: 1, ..Samples::default() };
        Self::new(name, unit, none, vec![], target).cut_short(why)
    }

    /// The same figure with its measurement marked as incomplete: a target that it has is missed.
    pub fn cut_short(mut self, why: &str) -> Self {
        self.verdict = if self.target.is_some() { Verdict::Missed } else { Verdict::NoTarget };
        self.incomplete = Some(why.to_owned());
        self
    }
}

fn met(yes: bool) -> Verdict {
    if yes { Verdict::Met } else { Verdict::Missed }
}

/// All figures of one run, with the necessary facts about the machine.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The benchmark's name, as on the command line.
    pub bench: &'static str,
    /// The machine.
    pub machine: Machine,
    /// The build profile of the measured binaries: `release`, `debug`.
    pub profile: String,
    /// Share of time in which tasks waited for a processor, percent over 10 s, before and after.
    pub cpu_pressure: [Option<f64>; 2],
    /// The figures.
    pub figures: Vec<Figure>,
    /// What was left out or is unusual, and why.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether no target was missed.
    pub fn met(&self) -> bool {
        self.figures.iter().all(|f| f.verdict != Verdict::Missed)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let m = &self.machine;
        let pressure = |p: Option<f64>| p.map_or_else(|| "unknown".to_owned(), |p| format!("{p:.0} %"));
        writeln!(f, "bench {} · {} cores · Linux {} · {} binaries", self.bench, m.cores, m.kernel, self.profile)?;
        writeln!(f, "waiting for a processor (10 s): {} before, {} after", pressure(self.cpu_pressure[0]), pressure(self.cpu_pressure[1]))?;
        for figure in &self.figures {
            writeln!(f, "\n{}\n  {:<38} {}", figure.name, "lattice", spread(&figure.samples, figure.unit))?;
            if let Some(why) = &figure.incomplete {
                writeln!(f, "  {why}")?;
            }
            for peer in &figure.peers {
                writeln!(f, "  {:<38} {}   ratio {:.2}", peer.name, spread(&peer.samples, figure.unit), peer.ratio)?;
            }
            let target = match &figure.target {
                None => "no target".to_owned(),
                Some(Target::RatioTo { peer, at_most }) => format!("target: at most {at_most} × {peer}"),
                Some(Target::RatioAtLeast { peer, at_least }) => format!("target: at least {at_least} × {peer}"),
                Some(Target::AtLeast { value, why }) => format!("target: at least {value} {} ({why})", figure.unit),
                Some(Target::AtMost { value, why }) => format!("target: at most {value} {} ({why})", figure.unit),
            };
            let verdict = match figure.verdict {
                Verdict::Met => " · met",
                Verdict::Missed => " · MISSED",
                Verdict::NoTarget => "",
            };
            writeln!(f, "  {target}{verdict}")?;
        }
        for note in &self.notes {
            writeln!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

fn spread(s: &Samples, unit: &str) -> String {
    if s.count == 0 {
        return format!("{:>9}", "none");
    }
    let failed = if s.failed > 0 { format!(", {} FAILED", s.failed) } else { String::new() };
    format!("{:>9.2} {unit}  ({:.2}–{:.2}, n={}{failed})", s.median, s.min, s.max, s.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples::of(values.to_vec(), 0).unwrap()
    }

    #[test]
    fn medians_are_medians() {
        assert_eq!(samples(&[9.0, 1.0, 2.0]).median, 2.0);
        assert_eq!(samples(&[4.0, 1.0, 2.0, 100.0]).median, 3.0);
        assert!(Samples::of(vec![], 3).is_none());
    }

    #[test]
    fn a_target_is_met_or_missed_never_silent() {
        let verdict = |peers: Vec<(&str, Option<Samples>)>, target| Figure::new("x", "ms", samples(&[10.0]), peers, target).verdict;
        let ratio = || Some(Target::RatioTo { peer: "srun".into(), at_most: 0.35 });
        assert_eq!(verdict(vec![("srun", Some(samples(&[40.0])))], ratio()), Verdict::Met);
        assert_eq!(verdict(vec![("srun", Some(samples(&[20.0])))], ratio()), Verdict::Missed);
        assert_eq!(verdict(vec![("srun", None)], ratio()), Verdict::Missed);
        assert_eq!(verdict(vec![], Some(Target::AtMost { value: 30.0, why: String::new() })), Verdict::Met);
        let more = || Some(Target::RatioAtLeast { peer: "etcd".into(), at_least: 1.2 });
        assert_eq!(verdict(vec![("etcd", Some(samples(&[8.0])))], more()), Verdict::Met);
        assert_eq!(verdict(vec![("etcd", Some(samples(&[9.0])))], more()), Verdict::Missed);
        assert_eq!(verdict(vec![], more()), Verdict::Missed);
        assert_eq!(verdict(vec![], Some(Target::AtLeast { value: 10.5, why: String::new() })), Verdict::Missed);
        assert_eq!(verdict(vec![], None), Verdict::NoTarget);
    }

    #[test]
    fn what_was_not_measured_to_the_end_misses_its_target() {
        let at_most = || Some(Target::AtMost { value: 30.0, why: "soon".into() });
        let none = Figure::not_measured("until all are back", "s", "not reached in 60 s", at_most());
        assert_eq!((none.verdict, none.samples.count, none.samples.failed), (Verdict::Missed, 0, 1));
        let part = Figure::new("x", "MB", samples(&[10.0]), vec![], at_most());
        assert_eq!(part.verdict, Verdict::Met);
        assert_eq!(part.cut_short("given up after 60 s").verdict, Verdict::Missed);
        assert_eq!(Figure::not_measured("y", "s", "not reached in 60 s", None).verdict, Verdict::NoTarget);
        let machine = lattice_lab::machine::Machine::look();
        let report =
            Report { bench: "scale", machine, profile: "debug".into(), cpu_pressure: [None; 2], figures: vec![none], notes: vec![] };
        let text = report.to_string();
        assert!(text.contains("none\n  not reached in 60 s\n  target: at most 30 s (soon) · MISSED"), "{text}");
    }
}
