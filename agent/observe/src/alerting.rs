//! Alerts of the work on this node, found by the measuring thread.
//!
//! ```text
//!   each look's numbers ──▶ AlertState of each rule ─┐
//!   processor time of each launch ──▶ Idle ─┐        ├──▶ alerts.json, /metrics, `lattice watch`
//!   other nodes' reports ─▶ hangs ─▶ Verdict ┴───────┘
//! ```
//!
//! Raised alerts are stored on disk, so that a restarted agent does not begin by clearing
//! everything: only a measurement clears an alert, never a restart. The beginning of a launch's
//! idle time is stored as well, with its processor time, which shows whether the launch did
//! anything while no agent ran.
//!
//! Alerts are found where work is measured, so they need no store. A number that is not measured
//! for a while raises nothing and clears nothing. An invalid rule stops the agent at its start:
//! otherwise people would learn too late that its alert reaches nobody.

pub mod saved;

use lattice_telemetry::alert::idle::{Idle, IdleReport, Verdict};
use lattice_telemetry::alert::rules::{HANG, Rule, Severity};
use lattice_telemetry::alert::{AlertSettings, AlertState};
use lattice_telemetry::catalogue::alert as family;
use lattice_telemetry::readers::{Parts, Text};
use lattice_telemetry::sample::Samples;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

/// How often launches are checked for activity.
pub const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How many changes of one allocation's alerts are stored for followers. A follower that is further
/// behind gets all raised alerts instead.
const CHANGES_MAX: usize = 64;

/// An alert that was raised or cleared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub alert: String,
    /// The launch that it is about, if it is about one.
    pub launch: Option<u32>,
    pub severity: Severity,
    pub raised: bool,
    /// When it was raised, on the clock of the windows.
    pub since_ms: u64,
    /// Text for people.
    pub text: String,
}

/// One allocation's alerts on this node.
#[derive(Debug, Default)]
pub struct Alerts {
    states: BTreeMap<String, AlertState>,
    /// Rules whose measure had a value at the last look.
    measured: BTreeSet<String>,
    idle: BTreeMap<u32, Idle>,
    /// Which launches were checked in this run of the agent.
    looked: Looked,
    /// Names of the activities that were checked, and of those that could not be measured.
    looked_at: Vec<&'static str>,
    unmeasured: Vec<&'static str>,
    /// Launches that hang, and since when the alert is raised.
    hung: BTreeMap<u32, u64>,
    /// All alerts that were ever raised.
    ever: BTreeMap<String, Severity>,
    changes: VecDeque<Change>,
    /// How many changes there have been.
    count: u64,
}

/// See [`Alerts::looked`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Looked {
    /// None yet: what is known is from an earlier run.
    #[default]
    No,
    /// Only some, because there are too many.
    AtSome,
    AtAll,
}

impl Alerts {
    /// Evaluates the rules on new numbers. Returns whether the raised alerts have changed.
    pub fn look(&mut self, settings: &AlertSettings, now_ms: u64, value_of: impl Fn(&str) -> Option<f64>) -> bool {
        let before = self.count;
        for rule in &settings.rules {
            let value = value_of(&rule.measure);
            match value {
                Some(_) => self.measured.insert(rule.name.clone()),
                None => self.measured.remove(&rule.name),
            };
            let was = self.states.get(&rule.name).copied().unwrap_or_default();
            let is = was.look(rule, now_ms, value);
            if is == AlertState::Quiet {
                self.states.remove(&rule.name);
            } else {
                self.states.insert(rule.name.clone(), is);
            }
            match (was.raised_since(), is.raised_since()) {
                (None, Some(since_ms)) => self.change(rule_change(rule, true, since_ms, value)),
                (Some(since_ms), None) => self.change(rule_change(rule, false, since_ms, value)),
                (None, None) | (Some(_), Some(_)) => {}
            }
        }
        self.count != before
    }

    /// Checks its launches. `moved`: for each activity besides processor time, by name, whether it
    /// moved; `None`: it is not measured here.
    pub fn look_at_launches(&mut self, now_ms: u64, parts: &Parts, moved: &[(&'static str, Option<bool>)]) {
        let names = |measured| moved.iter().filter(move |(_, moved)| moved.is_some() == measured).map(|(name, _)| *name);
        self.looked_at = std::iter::once("cpu").chain(names(true)).collect();
        self.unmeasured = names(false).collect();
        let also = moved.iter().any(|(_, moved)| *moved == Some(true));
        self.looked = if parts.cut { Looked::AtSome } else { Looked::AtAll };
        self.idle.retain(|launch, _| parts.all.iter().any(|part| part.launch == *launch));
        for part in &parts.all {
            let idle = self.idle.entry(part.launch).or_insert_with(|| Idle::new(now_ms, part.used_us));
            idle.look(now_ms, part.used_us, part.processes, also);
        }
    }

    /// This node's report about its ranks of a launch. For the script: about everything that runs
    /// here, because the script waits for what it launched.
    pub fn report(&self, launch: u32) -> IdleReport {
        let idle = match launch {
            0 => self.idle.values().max_by_key(|idle| idle.since_ms),
            launch => self.idle.get(&launch),
        };
        match (self.looked, idle) {
            (Looked::No, _) | (Looked::AtSome, None) => IdleReport::Unknown,
            (Looked::AtSome | Looked::AtAll, Some(idle)) => idle.report(),
            (Looked::AtAll, None) => IdleReport::None,
        }
    }

    /// The launches that may hang or have a hang alert: those that have been idle here for
    /// `limit_ms`, and those that hang already.
    pub fn suspects(&self, limit_ms: u64) -> BTreeSet<u32> {
        // A script waits for its launches: it matters only if it has none.
        let alone = self.idle.len() == 1;
        let suspect = |(launch, idle): (&u32, &Idle)| {
            let long = idle.idle_ms() >= limit_ms;
            (long && (*launch > 0 || alone)).then_some(*launch)
        };
        self.idle.iter().filter_map(suspect).chain(self.hung.keys().copied()).collect()
    }

    /// Clears all alerts of work that has ended, without reporting changes.
    pub fn end(&mut self) {
        self.states.clear();
        self.hung.clear();
        self.idle.clear();
    }

    /// Applies the verdict about a launch, which follows from the reports of all its nodes. Returns
    /// whether the raised alerts have changed.
    pub fn decide(&mut self, launch: u32, verdict: Verdict, now_ms: u64, limit_ms: u64) -> bool {
        let looked_at = self.looked_at_text();
        let severity = Severity::Warning;
        let what = if launch == 0 { "the script".to_owned() } else { format!("launch {launch}") };
        let change = match (verdict, self.hung.get(&launch).copied()) {
            (Verdict::Hangs, None) => {
                self.hung.insert(launch, now_ms);
                let text = format!("{what}: no rank on any node did anything for {} s ({looked_at})", limit_ms / 1000);
                Change { alert: HANG.to_owned(), launch: Some(launch), severity, raised: true, since_ms: now_ms, text }
            }
            (Verdict::Moves, Some(since_ms)) => {
                self.hung.remove(&launch);
                let text = if self.idle.contains_key(&launch) { format!("{what} moves again") } else { format!("{what} is over here") };
                Change { alert: HANG.to_owned(), launch: Some(launch), severity, raised: false, since_ms, text }
            }
            (Verdict::Hangs, Some(_)) | (Verdict::Moves, None) | (Verdict::Unknown, _) => return false,
        };
        self.change(change);
        true
    }

    fn looked_at_text(&self) -> String {
        let looked_at = self.looked_at.join(", ");
        match self.unmeasured.as_slice() {
            [] => format!("looked at: {looked_at}"),
            unmeasured => format!("looked at: {looked_at}; not measured: {}", unmeasured.join(", ")),
        }
    }

    fn change(&mut self, change: Change) {
        self.ever.insert(change.alert.clone(), change.severity);
        while self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
        }
        self.changes.push_back(change);
        self.count += 1;
    }

    /// How many changes there have been: a follower begins here.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The changes after the first `known` ones; `None`: not all of them are stored any more.
    pub fn since(&self, known: u64) -> Option<Vec<Change>> {
        let missing = usize::try_from(self.count.checked_sub(known)?).unwrap_or(usize::MAX);
        let first = self.changes.len().checked_sub(missing)?;
        Some(self.changes.iter().skip(first).cloned().collect())
    }

    /// All alerts that are raised now.
    pub fn raised(&self, settings: &AlertSettings) -> Vec<Change> {
        let by_rule = settings.rules.iter().filter_map(|rule| {
            let since_ms = self.states.get(&rule.name)?.raised_since()?;
            Some(rule_change(rule, true, since_ms, None))
        });
        let looked_at = self.looked_at_text();
        let hung = self.hung.iter().map(|(launch, since_ms)| {
            let what = if *launch == 0 { "the script".to_owned() } else { format!("launch {launch}") };
            let text = format!("{what}: no rank on any node does anything ({looked_at})");
            Change { alert: HANG.to_owned(), launch: Some(*launch), severity: Severity::Warning, raised: true, since_ms: *since_ms, text }
        });
        by_rule.chain(hung).collect()
    }

    fn is_raised(&self, alert: &str) -> bool {
        let by_rule = self.states.get(alert).is_some_and(|state| state.raised_since().is_some());
        by_rule || (alert == HANG && !self.hung.is_empty())
    }

    /// Whether the measure of this rule had a value at the last look.
    pub fn measures(&self, rule: &Rule) -> bool {
        self.measured.contains(&rule.name)
    }

    /// Adds the allocation's alert metrics.
    pub fn write_metrics(&self, id: &str, samples: &mut Samples) {
        for (alert, severity) in &self.ever {
            samples.add(&family::ACTIVE, &[id, alert, severity.name()], u32::from(self.is_raised(alert)));
        }
        for (launch, idle) in &self.idle {
            samples.add(&family::LAUNCH_IDLE, &[id, &launch.to_string()], idle.idle_ms() as f64 / 1e3);
        }
    }
}

fn rule_change(rule: &Rule, raised: bool, since_ms: u64, value: Option<f64>) -> Change {
    let side = match rule.side {
        lattice_telemetry::alert::rules::Side::Above => "above",
        lattice_telemetry::alert::rules::Side::Below => "below",
    };
    let now = value.map(|value| format!(" (now {value:.4})")).unwrap_or_default();
    let seconds = rule.for_ms / 1000;
    let unit = rule.unit();
    let text = match raised {
        true => format!("{} is {side} {} {unit} for {seconds} s{now}", rule.measure, rule.raised_at),
        false => format!("{} is back within {} {unit} for {seconds} s{now}", rule.measure, rule.cleared_at),
    };
    Change { alert: rule.name.clone(), launch: None, severity: rule.severity, raised, since_ms, text }
}

/// Errors of the node's network interfaces, as a share of its packets, over half a minute.
#[derive(Debug, Default)]
pub struct NetworkErrors(VecDeque<(u64, u64)>);

/// How many measurements, one every [`IDLE_CHECK_INTERVAL`], span half a minute.
const NETWORK_LOOKS: usize = 7;
/// With fewer packets there is no share: one error among a few packets does not make a bad network.
const PACKETS_MIN: u64 = 1000;

impl NetworkErrors {
    /// Reads `/proc/net/dev`.
    pub fn look(&mut self, text: &mut Text) {
        match text.of(Path::new("/proc/net/dev")).ok().map(packets_and_errors) {
            Some(counts) => {
                while self.0.len() >= NETWORK_LOOKS {
                    self.0.pop_front();
                }
                self.0.push_back(counts);
            }
            None => self.0.clear(),
        }
    }

    /// The share of errors; `None`: unknown.
    pub fn ratio(&self) -> Option<f64> {
        let (first, last) = (self.0.front()?, self.0.back().filter(|_| self.0.len() == NETWORK_LOOKS)?);
        // The sums fall when an interface disappears.
        let (packets, errors) = (last.0.checked_sub(first.0)?, last.1.checked_sub(first.1)?);
        match (packets, errors) {
            (_, 0) => Some(0.0),
            (packets, _) if packets < PACKETS_MIN => None,
            (packets, errors) => Some(errors as f64 / packets as f64),
        }
    }
}

/// Packets and errors of all interfaces but loopback, both directions.
fn packets_and_errors(dev: &str) -> (u64, u64) {
    let mut sums = (0u64, 0u64);
    for line in dev.lines() {
        let Some((name, counts)) = line.split_once(':') else { continue };
        if name.trim() == "lo" {
            continue;
        }
        let counts: Vec<u64> = counts.split_ascii_whitespace().map_while(|count| count.parse().ok()).collect();
        // Eight columns for received data (bytes, packets, errs, …), then the same for sent data.
        let [_, received, wrong_in, ..] = counts.as_slice() else { continue };
        let [_, sent, wrong_out, ..] = counts.get(8..).unwrap_or_default() else { continue };
        sums = (sums.0.saturating_add(*received).saturating_add(*sent), sums.1.saturating_add(*wrong_in).saturating_add(*wrong_out));
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::readers::Part;

    fn settings() -> AlertSettings {
        let rule = Rule { for_ms: 1000, ..Rule::above("busy", "cpu_cores", 1.0, 0.5) };
        AlertSettings { hang_ms: Some(10_000), rules: vec![rule] }
    }

    #[test]
    fn a_follower_gets_each_change_once_or_learns_that_it_missed_some() {
        let (mut alerts, settings) = (Alerts::default(), settings());
        let mut at = 0;
        let mut look = |alerts: &mut Alerts, cores: f64| {
            at += 1000;
            alerts.look(&settings, at, |measure| (measure == "cpu_cores").then_some(cores))
        };
        assert!(!look(&mut alerts, 2.0));
        assert!(look(&mut alerts, 2.0));
        let raised = alerts.since(0).unwrap();
        assert_eq!(raised.iter().map(|c| (c.alert.as_str(), c.raised)).collect::<Vec<_>>(), [("busy", true)]);
        assert_eq!(alerts.raised(&settings).len(), 1);
        assert_eq!(alerts.since(alerts.count()), Some(vec![]));
        assert!(!look(&mut alerts, 0.1) && look(&mut alerts, 0.1));
        assert_eq!(alerts.since(1).unwrap().iter().map(|c| c.raised).collect::<Vec<_>>(), [false]);
        assert!(alerts.raised(&settings).is_empty());
        for _ in 0..CHANGES_MAX {
            for cores in [2.0, 2.0, 0.1, 0.1] {
                look(&mut alerts, cores);
            }
        }
        assert_eq!((alerts.since(0), alerts.changes.len()), (None, CHANGES_MAX));
        assert_eq!(alerts.since(alerts.count() - 3).unwrap().len(), 3);
    }

    #[test]
    fn a_script_without_launches_is_a_suspect_and_an_unknown_verdict_clears_no_hang() {
        let mut alerts = Alerts::default();
        let part = |launch, used_us| Part { launch, used_us, processes: 1 };
        let of = |parts: &[Part]| Parts { all: parts.to_vec(), cut: false };
        assert_eq!(alerts.report(1), IdleReport::Unknown, "nobody has looked");
        let nothing = [("io", None)];
        alerts.look_at_launches(0, &of(&[part(0, 0), part(1, 0)]), &nothing);
        alerts.look_at_launches(10_000, &of(&[part(0, 0), part(1, 0)]), &nothing);
        assert_eq!(alerts.suspects(10_000), [1].into());
        assert!(alerts.decide(1, Verdict::Hangs, 10_000, 10_000) && !alerts.decide(1, Verdict::Unknown, 11_000, 10_000));
        let text = &alerts.since(0).unwrap()[0].text;
        assert!(text.contains("launch 1") && text.ends_with("(looked at: cpu; not measured: io)"), "{text}");
        // Launch 1 moved, but is still a suspect.
        alerts.look_at_launches(20_000, &of(&[part(0, 0), part(1, 900_000)]), &nothing);
        assert_eq!(alerts.suspects(10_000), [1].into());
        assert!(alerts.decide(1, Verdict::Moves, 20_000, 10_000));
        alerts.look_at_launches(30_000, &of(&[part(0, 0)]), &nothing);
        assert_eq!(alerts.suspects(10_000), [0].into());
        // The script's launch then computes, and waiting for it is no hang.
        assert!(alerts.decide(0, Verdict::Hangs, 30_000, 10_000));
        alerts.look_at_launches(35_000, &of(&[part(0, 0), part(2, 0)]), &nothing);
        alerts.look_at_launches(40_000, &of(&[part(0, 0), part(2, 900_000)]), &nothing);
        assert_eq!(alerts.suspects(10_000), [0].into());
        assert_eq!(alerts.report(0), IdleReport::There { idle_ms: 0, moved: true });
        assert!(alerts.decide(0, Verdict::Moves, 40_000, 10_000));
        // On another node, the script waits for its launches.
        let mut other = Alerts::default();
        other.look_at_launches(0, &of(&[part(2, 0), part(3, 0)]), &nothing);
        other.look_at_launches(30_000, &of(&[part(2, 0), part(3, 900_000)]), &nothing);
        assert_eq!(other.report(0), IdleReport::There { idle_ms: 0, moved: true });
        assert_eq!(other.report(1), IdleReport::None);
        other.look_at_launches(31_000, &Parts { all: vec![part(2, 0)], cut: true }, &nothing);
        assert_eq!(other.report(9), IdleReport::Unknown, "it may be among those that are not looked at");
    }

    #[test]
    fn errors_are_a_share_of_many_packets() {
        let dev = |packets: u64, errors: u64| {
            format!(
                "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs\n    \
                 lo: 1 9 9 0 0 0 0 0 1 9 9 0 0 0 0 0\n  eth0: 5 {packets} {errors} 0 0 0 0 0 5 10 1 0 0 0 0 0\n"
            )
        };
        assert_eq!(packets_and_errors(&dev(100, 2)), (110, 3));
        let mut errors = NetworkErrors::default();
        errors.0.extend([packets_and_errors(&dev(0, 0)); NETWORK_LOOKS - 1]);
        assert_eq!(errors.ratio(), None, "not half a minute yet");
        errors.0.push_back(packets_and_errors(&dev(2000, 4)));
        assert_eq!(errors.ratio(), Some(0.002));
        errors.0.pop_back();
        errors.0.push_back(packets_and_errors(&dev(10, 4)));
        assert_eq!(errors.ratio(), None);
    }
}
