//! The metrics that can set the number of a service's replicas.

use crate::ids::AllocationId;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};
use std::str::FromStr;
use thiserror::Error;

/// The longest text of a metric, in characters.
pub const METRIC_CHARS_MAX: usize = 512;
/// The label that has the id of a series' allocation.
pub const ALLOCATION: &str = "allocation";

/// A metric of a service's replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ScaleMetric {
    /// How busy the GPUs of a replica are, from 0 to 1: the mean over the replicas.
    GpuUtilization,
    /// Used part of the processors that a replica has, from 0 to 1: the mean over the replicas.
    CpuUtilization,
    /// TCP connections that a replica accepts each second: the mean over the replicas. One connection may
    /// carry many requests.
    ConnectionRate,
    /// TCP connections to a replica that wait to be accepted: the mean over the replicas.
    QueueDepth,
    /// Series of the metrics store: the mean over the replicas, each with the mean of its series.
    Stored(Selector),
}

/// A selector of series in the metrics store, such as `queue_length{queue="new"}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    name: String,
    /// Label, operator, value.
    matchers: Vec<(String, &'static str, String)>,
}

/// Why a text names no metric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoSuchMetric {
    /// It is too long.
    #[error("more than {METRIC_CHARS_MAX} characters")]
    TooLong,
    /// It is malformed.
    #[error(
        "{0:?} is neither gpu_utilization, cpu_utilization, connection_rate, queue_depth nor a selector of series such as queue_length{{queue=\"new\"}}; for a larger query, define a recording rule in the metrics store and give its name"
    )]
    Malformed(String),
    /// It counts requests, which only the program itself can count.
    #[error(
        "{REQUEST_RATE} has no value: a connection may carry many requests, and only the program can count them. Name connection_rate (TCP connections accepted each second), or a series of the metrics store that the program exports, with a label if it has this name: {REQUEST_RATE}{{job=\"web\"}}"
    )]
    CountsRequests,
    /// It names the label that Lattice adds.
    #[error("leave the label allocation out: Lattice adds it, so that only series of the service's own replicas count")]
    NamesAllocation,
}

/// The name of the metric that a user expects and that cannot be measured.
const REQUEST_RATE: &str = "request_rate";

/// The metrics that need no store, by name.
const BUILT_IN: [(&str, ScaleMetric); 4] = [
    ("gpu_utilization", ScaleMetric::GpuUtilization),
    ("cpu_utilization", ScaleMetric::CpuUtilization),
    ("connection_rate", ScaleMetric::ConnectionRate),
    ("queue_depth", ScaleMetric::QueueDepth),
];

/// The operators of matchers; of two that begin alike, the longer one comes first.
const OPERATORS: [&str; 4] = ["=~", "!~", "!=", "="];

impl Selector {
    /// The PromQL expression for the mean of the selected series of each of these allocations, by the label
    /// [`ALLOCATION`]. A series without a point in the last `age_max_s` seconds is left out.
    pub fn each_of(&self, allocations: &[AllocationId], age_max_s: u64) -> String {
        let mut text = format!("avg by ({ALLOCATION}) (last_over_time({}{{", self.name);
        for (label, operator, value) in &self.matchers {
            let _ = write!(text, "{label}{operator}{value:?},");
        }
        let ids: Vec<String> = allocations.iter().map(ToString::to_string).collect();
        let _ = write!(text, "{ALLOCATION}=~\"{}\"}}[{age_max_s}s]))", ids.join("|"));
        text
    }

    /// Reads a selector: a name, and matchers in braces if there are any.
    fn read(text: &str) -> Option<Self> {
        let name_end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':')).unwrap_or(text.len());
        let (name, rest) = text.split_at(name_end);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let mut selector = Self { name: name.to_owned(), matchers: Vec::new() };
        let rest = rest.trim();
        if rest.is_empty() {
            return Some(selector);
        }
        let mut rest = rest.strip_prefix('{')?.trim_start();
        while !rest.starts_with('}') {
            let label_end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))?;
            let (label, after) = rest.split_at(label_end);
            if label.is_empty() || label.starts_with(|c: char| c.is_ascii_digit()) {
                return None;
            }
            let after = after.trim_start();
            let operator = *OPERATORS.iter().find(|operator| after.starts_with(**operator))?;
            let (value, after) = quoted(after[operator.len()..].trim_start())?;
            selector.matchers.push((label.to_owned(), operator, value));
            rest = after.trim_start();
            match rest.strip_prefix(',') {
                Some(next) => rest = next.trim_start(),
                None if rest.starts_with('}') => {}
                None => return None,
            }
        }
        rest.strip_prefix('}').filter(|after| after.trim().is_empty()).map(|_| selector)
    }
}

/// The quoted value at the beginning of a text, and the rest. Accepts printable ASCII without quotes and backslashes
/// only, which PromQL writes in the same way.
fn quoted(text: &str) -> Option<(String, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let (value, after) = text[1..].split_once(quote)?;
    let is_plain = value.chars().all(|c| (c == ' ' || c.is_ascii_graphic()) && !matches!(c, '"' | '\'' | '\\'));
    is_plain.then(|| (value.to_owned(), after))
}

impl FromStr for ScaleMetric {
    type Err = NoSuchMetric;

    fn from_str(text: &str) -> Result<Self, NoSuchMetric> {
        let text = text.trim();
        if text.chars().count() > METRIC_CHARS_MAX {
            return Err(NoSuchMetric::TooLong);
        }
        if let Some((_, metric)) = BUILT_IN.iter().find(|(name, _)| *name == text) {
            return Ok(metric.clone());
        }
        let selector = Selector::read(text).ok_or_else(|| NoSuchMetric::Malformed(text.chars().take(40).collect()))?;
        // Every reader would take a series of this name without labels for a built-in metric.
        if selector.name == REQUEST_RATE && selector.matchers.is_empty() {
            return Err(NoSuchMetric::CountsRequests);
        }
        if selector.matchers.iter().any(|(label, _, _)| label == ALLOCATION) {
            return Err(NoSuchMetric::NamesAllocation);
        }
        Ok(Self::Stored(selector))
    }
}

impl TryFrom<String> for ScaleMetric {
    type Error = NoSuchMetric;

    fn try_from(text: String) -> Result<Self, NoSuchMetric> {
        text.parse()
    }
}

impl From<ScaleMetric> for String {
    fn from(metric: ScaleMetric) -> Self {
        metric.to_string()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (number, (label, operator, value)) in self.matchers.iter().enumerate() {
            write!(f, "{}{label}{operator}{value:?}", if number == 0 { '{' } else { ',' })?;
        }
        f.write_str(if self.matchers.is_empty() { "" } else { "}" })
    }
}

impl fmt::Display for ScaleMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GpuUtilization => f.write_str("gpu_utilization"),
            Self::CpuUtilization => f.write_str("cpu_utilization"),
            Self::ConnectionRate => f.write_str("connection_rate"),
            Self::QueueDepth => f.write_str("queue_depth"),
            Self::Stored(selector) => selector.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn read(text: &str) -> Result<String, NoSuchMetric> {
        text.parse::<ScaleMetric>().map(|metric| metric.to_string())
    }

    #[test]
    fn a_metric_is_built_in_or_selects_series() {
        for text in ["gpu_utilization", "cpu_utilization", "connection_rate", "queue_depth", "up", "a:b_5m", "q{queue=\"new\",x!=\"1\"}"] {
            assert_eq!(read(text).as_deref(), Ok(text));
        }
        assert_eq!(read(" q { job = 'my app' , x =~ \"a|b\", } ").as_deref(), Ok("q{job=\"my app\",x=~\"a|b\"}"));
        assert_eq!(read("q{}").as_deref(), Ok("q"));
        for bad in [
            "",
            "1x",
            "sum(q)",
            "q{",
            "q{a}",
            "q{a=}",
            "q{a=\"1}",
            "q{a=\"1\"} or up",
            "q{a=\"x\\\"\"}",
            "q[5m]",
            "q{a==\"1\"}",
            "q{a=\"1\" b=\"2\"}",
        ] {
            assert!(matches!(read(bad), Err(NoSuchMetric::Malformed(_))), "{bad}");
        }
        assert_eq!(read("q{allocation=\"other\"}"), Err(NoSuchMetric::NamesAllocation));
        for text in ["request_rate", " request_rate{ } "] {
            assert_eq!(read(text), Err(NoSuchMetric::CountsRequests), "{text}");
        }
        assert_eq!(read("request_rate{job='web'}").as_deref(), Ok("request_rate{job=\"web\"}"));
        let refused = NoSuchMetric::CountsRequests.to_string();
        assert!(refused.contains("connection_rate") && refused.ends_with("request_rate{job=\"web\"}"), "{refused}");
        assert_eq!(read(&"a".repeat(METRIC_CHARS_MAX + 1)), Err(NoSuchMetric::TooLong));
    }

    #[test]
    fn a_query_asks_for_series_of_the_replicas_alone() {
        let ScaleMetric::Stored(selector) = "q{queue='new'}".parse().unwrap() else { panic!() };
        let ids = [1, 2].map(|n| AllocationId(Uuid::from_u128(n)));
        let expected = "avg by (allocation) (last_over_time(q{queue=\"new\",allocation=~\"\
                        00000000-0000-0000-0000-000000000001|00000000-0000-0000-0000-000000000002\"}[60s]))";
        assert_eq!(selector.each_of(&ids, 60), expected);
    }
}
