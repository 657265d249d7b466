//! Alert rules: the four built-in ones, and those of the site.

use crate::names::{OtherName, meant};
use lattice_model::config::nearest;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt;
use thiserror::Error;

/// Rules of one agent, including the built-in ones.
pub const RULES_MAX: usize = 32;
/// The name of the alert that has no rule: see [`super::idle`].
pub const HANG: &str = "hang";
const NAME_BYTES_MAX: usize = 64;
const FOR_SECONDS_MAX: u64 = 86_400;
const HANG_SECONDS_MIN: u64 = 10;
const HANG_SECONDS_MAX: u64 = 7 * 86_400;

/// The measures that a rule can use, with their units: the names in `lattice top`. Only some nodes have the last ones.
pub const MEASURES: &[(&str, &str)] = &[
    ("cpu_cores", "cores"),
    ("memory_used", "bytes"),
    ("memory_peak", "bytes"),
    ("io_read_bytes", "bytes/s"),
    ("io_write_bytes", "bytes/s"),
    ("processes", "count"),
    ("threads", "count"),
    ("page_faults_minor", "1/s"),
    ("page_faults_major", "1/s"),
    ("pressure_cpu", "ratio"),
    ("pressure_memory", "ratio"),
    ("pressure_io", "ratio"),
    ("oom_kills", "count"),
    ("network_received_bytes", "bytes/s"),
    ("network_sent_bytes", "bytes/s"),
    ("tcp_retransmits", "1/s"),
    ("connections_accepted", "1/s"),
    ("accept_queue", "count"),
    ("switches_voluntary", "1/s"),
    ("switches_involuntary", "1/s"),
    ("run_queue_p99", "seconds"),
    ("block_read_p99", "seconds"),
    ("block_write_p99", "seconds"),
    ("io_latency_p99", "seconds"),
    ("network_error_ratio", "ratio"),
    ("gpu_utilization", "ratio"),
    ("gpu_utilization_min", "ratio"),
    ("gpu_memory_used", "bytes"),
    ("gpu_memory_ratio", "ratio"),
    ("gpu_power_draw", "W"),
    ("gpu_temperature_max", "°C"),
    ("gpu_energy", "J"),
    ("cpu_power_draw", "W"),
    ("cpu_energy", "J"),
];

/// The urgency of an alert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Info,
    #[default]
    Warning,
    Critical,
}

impl Severity {
    /// Its name in labels and in `lattice watch`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The bad side of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Above,
    Below,
}

/// One threshold.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RuleText")]
pub struct Rule {
    pub name: String,
    /// One of [`MEASURES`].
    pub measure: String,
    pub side: Side,
    /// The bound that raises the alert: a value beyond it is bad.
    pub raised_at: f64,
    /// The bound that clears the alert. A value between the two bounds changes nothing.
    pub cleared_at: f64,
    /// How long the value must be beyond a bound before the alert is raised or cleared.
    pub for_ms: u64,
    pub severity: Severity,
}

impl Rule {
    /// Bad above `raised_at` for a minute.
    pub fn above(name: &str, measure: &str, raised_at: f64, cleared_at: f64) -> Self {
        let (name, measure) = (name.to_owned(), measure.to_owned());
        Self { name, measure, side: Side::Above, raised_at, cleared_at, for_ms: 60_000, severity: Severity::Warning }
    }

    /// Whether this value is bad.
    pub fn is_beyond(&self, value: f64) -> bool {
        match self.side {
            Side::Above => value > self.raised_at,
            Side::Below => value < self.raised_at,
        }
    }

    /// Whether this value clears the alert.
    pub fn is_well(&self, value: f64) -> bool {
        match self.side {
            Side::Above => value <= self.cleared_at,
            Side::Below => value >= self.cleared_at,
        }
    }

    /// The unit of its measure.
    pub fn unit(&self) -> &'static str {
        MEASURES.iter().find(|(name, _)| *name == self.measure).map_or("", |(_, unit)| unit)
    }
}

/// The four built-in rules: an idle GPU (each GPU of an allocation counts: one that idles beside seven busy ones is
/// wasted), a GPU with nearly full memory, a network with errors, slow storage. A rule has no effect on a node that
/// does not measure its value.
pub fn documented() -> Vec<Rule> {
    let gpu_idle = Rule { side: Side::Below, ..Rule::above("gpu_idle", "gpu_utilization_min", 0.10, 0.15) };
    let latency = Rule { for_ms: 30_000, ..Rule::above("io_latency", "io_latency_p99", 0.010, 0.008) };
    vec![
        gpu_idle,
        Rule { for_ms: 10_000, severity: Severity::Critical, ..Rule::above("gpu_memory", "gpu_memory_ratio", 0.95, 0.90) },
        Rule { for_ms: 30_000, ..Rule::above("network_errors", "network_error_ratio", 0.001, 0.0005) },
        latency,
    ]
}

/// `alerts:` in an agent's configuration. Unknown keys, unknown measures and contradictory bounds are refused with
/// their line.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "SettingsText")]
pub struct AlertSettings {
    /// How long all ranks of a launch may do nothing before an alert is raised; `None`: never.
    pub hang_ms: Option<u64>,
    /// The built-in rules and the site's.
    pub rules: Vec<Rule>,
}

impl Default for AlertSettings {
    fn default() -> Self {
        Self { hang_ms: Some(SettingsText::default().hang_seconds * 1000), rules: documented() }
    }
}

/// Invalid rules or settings.
#[derive(Debug, Error, PartialEq)]
pub enum AlertSettingsError {
    #[error("alert {0:?}: a name has lower-case letters, digits and _, begins with a letter and has at most {NAME_BYTES_MAX} bytes")]
    Name(String),
    #[error("alert {HANG:?}: the agent has one of this name; `hang_seconds` sets it")]
    Hang,
    #[error("alert {name}: there is no measure {measure:?}; {hint}")]
    Measure { name: String, measure: String, hint: OtherName },
    #[error("alert {0}: one bound is needed: `above` or `below`")]
    Bound(String),
    #[error("alert {name}: cleared_at {cleared_at} must not be {side} {raised_at}, the bound that raises the alert")]
    Cleared { name: String, cleared_at: f64, side: &'static str, raised_at: f64 },
    #[error("alert {0}: a bound must be a number")]
    NotANumber(String),
    #[error("alert {name}: for_seconds {seconds} is not between 0 and {FOR_SECONDS_MAX}")]
    For { name: String, seconds: u64 },
    #[error("alerts: {0:?} is defined twice")]
    Twice(String),
    #[error("alerts: {0} rules; at most {RULES_MAX} are possible, including the built-in ones")]
    TooMany(usize),
    #[error("alerts.off: there is no alert {name:?}{hint}")]
    Off { name: String, hint: String },
    #[error("alerts.hang_seconds: {0} is not between {HANG_SECONDS_MIN} and {HANG_SECONDS_MAX}; 0 switches it off")]
    HangSeconds(u64),
}

/// A rule in the configuration's form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    name: String,
    measure: String,
    above: Option<f64>,
    below: Option<f64>,
    cleared_at: Option<f64>,
    #[serde(default = "a_minute")]
    for_seconds: u64,
    #[serde(default)]
    severity: Severity,
}

fn a_minute() -> u64 {
    60
}

impl TryFrom<RuleText> for Rule {
    type Error = AlertSettingsError;

    fn try_from(text: RuleText) -> Result<Self, AlertSettingsError> {
        let RuleText { name, measure, above, below, cleared_at, for_seconds, severity } = text;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.len() > NAME_BYTES_MAX || !name.chars().all(plain) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(AlertSettingsError::Name(name));
        }
        if name == HANG {
            return Err(AlertSettingsError::Hang);
        }
        let measure = match meant(&measure, MEASURES.iter().map(|(known, _)| *known)) {
            Ok(known) => known.to_owned(),
            Err(hint) => return Err(AlertSettingsError::Measure { name, measure, hint }),
        };
        let (side, raised_at) = match (above, below) {
            (Some(above), None) => (Side::Above, above),
            (None, Some(below)) => (Side::Below, below),
            (None, None) | (Some(_), Some(_)) => return Err(AlertSettingsError::Bound(name)),
        };
        let cleared_at = cleared_at.unwrap_or(raised_at);
        if !raised_at.is_finite() || !cleared_at.is_finite() {
            return Err(AlertSettingsError::NotANumber(name));
        }
        let (apart, side_text) = match side {
            Side::Above => (cleared_at <= raised_at, "above"),
            Side::Below => (cleared_at >= raised_at, "below"),
        };
        if !apart {
            return Err(AlertSettingsError::Cleared { name, cleared_at, side: side_text, raised_at });
        }
        if for_seconds > FOR_SECONDS_MAX {
            return Err(AlertSettingsError::For { name, seconds: for_seconds });
        }
        Ok(Self { name, measure, side, raised_at, cleared_at, for_ms: for_seconds * 1000, severity })
    }
}

/// The block in the configuration's form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SettingsText {
    hang_seconds: u64,
    rules: Vec<Rule>,
    off: Vec<String>,
}

impl Default for SettingsText {
    fn default() -> Self {
        Self { hang_seconds: 600, rules: Vec::new(), off: Vec::new() }
    }
}

impl TryFrom<SettingsText> for AlertSettings {
    type Error = AlertSettingsError;

    fn try_from(SettingsText { hang_seconds, rules: own, off }: SettingsText) -> Result<Self, AlertSettingsError> {
        if hang_seconds != 0 && !(HANG_SECONDS_MIN..=HANG_SECONDS_MAX).contains(&hang_seconds) {
            return Err(AlertSettingsError::HangSeconds(hang_seconds));
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = own.iter().find(|rule| !names.insert(rule.name.clone())) {
            return Err(AlertSettingsError::Twice(twice.name.clone()));
        }
        // A rule of the site replaces the built-in one of the same name.
        let mut rules: Vec<Rule> = documented().into_iter().filter(|rule| !names.contains(&rule.name)).chain(own).collect();
        for name in off {
            let before = rules.len();
            rules.retain(|rule| rule.name != name);
            if rules.len() == before {
                let hint = hint(&name, rules.iter().map(|rule| rule.name.as_str()));
                return Err(AlertSettingsError::Off { name, hint });
            }
        }
        if rules.len() > RULES_MAX {
            return Err(AlertSettingsError::TooMany(rules.len()));
        }
        Ok(Self { hang_ms: (hang_seconds > 0).then_some(hang_seconds * 1000), rules })
    }
}

fn hint<'a>(given: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    match nearest(given, known.clone()) {
        Some(meant) => format!("; did you mean {meant:?}?"),
        None => format!(": there are {}", known.collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::config::{ConfigError, parse};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default)]
        alerts: AlertSettings,
    }

    fn read(text: &str) -> Result<AlertSettings, ConfigError> {
        parse::<File>("agent.yaml", text).map(|file| file.alerts)
    }

    #[test]
    fn the_documents_four_are_there_and_a_site_adds_changes_and_switches_off() {
        assert_eq!(read("").unwrap(), AlertSettings::default());
        let text = "alerts:\n  hang_seconds: 0\n  off: [gpu_idle]\n  rules:\n    - {name: io_latency, measure: io_latency_p99, above: 0.5}\n    \
                    - {name: idle, measure: cpu_cores, below: 1, cleared_at: 2, for_seconds: 5, severity: critical}\n";
        let settings = read(text).unwrap();
        assert_eq!(settings.hang_ms, None);
        let names: Vec<&str> = settings.rules.iter().map(|rule| rule.name.as_str()).collect();
        assert_eq!(names, ["gpu_memory", "network_errors", "io_latency", "idle"]);
        let own = &settings.rules[3];
        assert_eq!((own.side, own.raised_at, own.cleared_at, own.for_ms, own.severity), (Side::Below, 1.0, 2.0, 5000, Severity::Critical));
        assert!(own.is_beyond(0.5) && !own.is_beyond(1.5) && !own.is_well(1.5) && own.is_well(2.0));
        assert_eq!((settings.rules[2].raised_at, settings.rules[2].cleared_at), (0.5, 0.5));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_line() {
        let rule = |text: &str| format!("alerts:\n  hang_seconds: 60\n  rules:\n    - {{{text}}}\n");
        for (text, expected) in [
            (rule("name: X, measure: cpu_cores, above: 1"), "a name has lower-case letters"),
            (rule("name: hang, measure: cpu_cores, above: 1"), "hang_seconds"),
            (rule("name: a, measure: cpu_core, above: 1"), "did you mean \"cpu_cores\""),
            (rule("name: a, measure: cpu_cores"), "`above` or `below`"),
            (rule("name: a, measure: cpu_cores, above: 1, below: 2"), "`above` or `below`"),
            (rule("name: a, measure: cpu_cores, above: .nan"), "must be a number"),
            (rule("name: a, measure: cpu_cores, above: 1, cleared_at: 2"), "cleared_at 2 must not be above 1"),
            (rule("name: a, measure: cpu_cores, above: 1, for_seconds: 90000"), "not between 0 and 86400"),
            (rule("name: a, measure: cpu_cores, abov: 1"), "unknown field"),
            ("alerts:\n  off: [gpu_idel]\n".to_owned(), "did you mean \"gpu_idle\""),
            ("alerts:\n  hang_seconds: 5\n".to_owned(), "not between 10 and"),
        ] {
            let why = read(&text).unwrap_err().to_string();
            assert!(why.contains(expected) && why.contains("line "), "{text}{why}");
        }
        let many: String = (0..RULES_MAX).map(|n| format!("    - {{name: a{n}, measure: threads, above: 1}}\n")).collect();
        assert!(read(&format!("alerts:\n  rules:\n{many}")).unwrap_err().to_string().contains("at most 32"));
        let twice = "    - {name: a, measure: threads, above: 1}\n".repeat(2);
        assert!(read(&format!("alerts:\n  rules:\n{twice}")).unwrap_err().to_string().contains("is defined twice"));
    }

    #[test]
    fn every_measure_of_the_documents_rules_is_known() {
        for rule in documented() {
            assert!(!rule.unit().is_empty() && rule.is_well(rule.cleared_at) && !rule.is_beyond(rule.cleared_at), "{}", rule.name);
        }
    }
}
