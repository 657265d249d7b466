//! Prometheus's text format, version 0.0.4.

use crate::catalogue::Kind;
use crate::sample::{Samples, Value};
use std::fmt::Write;

/// The content type of the answer.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The page.
pub fn page(samples: &Samples) -> String {
    let mut out = String::with_capacity(16 << 10);
    for (family, of_family) in samples.families() {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {} {}", family.name, escaped_help(family.help));
        let _ = writeln!(out, "# TYPE {} {}", family.name, family.kind);
        for sample in of_family {
            let labels: Vec<(&str, &str)> = labels_of(samples, family.labels, &sample.labels).collect();
            match &sample.value {
                Value::Number(value) => line(&mut out, family.name, "", &labels, None, *value),
                Value::Counts(counts) => {
                    debug_assert_eq!(family.kind, Kind::Histogram);
                    for (bound, count) in counts.cumulative() {
                        line(&mut out, family.name, "_bucket", &labels, Some(&number(bound)), count as f64);
                    }
                    line(&mut out, family.name, "_sum", &labels, None, counts.sum);
                    line(&mut out, family.name, "_count", &labels, None, counts.count() as f64);
                }
            }
        }
    }
    out
}

/// The labels of one series, with those of every series first.
pub(crate) fn labels_of<'a>(
    samples: &'a Samples,
    names: &'a [&'static str],
    values: &'a [String],
) -> impl Iterator<Item = (&'a str, &'a str)> {
    let common = samples.common().iter().map(|(name, value)| (*name, value.as_str()));
    common.chain(names.iter().copied().zip(values.iter().map(String::as_str)))
}

fn line(out: &mut String, name: &str, suffix: &str, labels: &[(&str, &str)], le: Option<&str>, value: f64) {
    out.push_str(name);
    out.push_str(suffix);
    let mut between = '{';
    for (label, text) in labels.iter().copied().chain(le.map(|le| ("le", le))) {
        let _ = write!(out, "{between}{label}=\"{}\"", escaped(text));
        between = ',';
    }
    if between == ',' {
        out.push('}');
    }
    let _ = writeln!(out, " {}", number(value));
}

/// As Go's parser reads it: infinity and NaN have names of their own.
pub(crate) fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf".to_owned() } else { "-Inf".to_owned() }
    } else {
        value.to_string()
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn escaped_help(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{gossip, process, quorum};
    use crate::histogram::Histogram;
    use std::time::Duration;

    #[test]
    fn the_page_is_byte_for_byte_what_a_scraper_reads() {
        let mut samples = Samples::new(vec![("node_id", "n1".to_owned())]);
        samples.count(&gossip::REFUSED, &["not_sealed"], 3);
        samples.count(&gossip::REFUSED, &["a\"b\\c\nd"], 0);
        samples.add(&process::CPU_SECONDS, &[], 1.25);
        let histogram = Histogram::new(&[0.001, 0.5]);
        histogram.observe(Duration::from_millis(250));
        samples.histogram(&quorum::APPLY_SECONDS, &[], histogram.counts());
        let expected = "\
# HELP lattice_gossip_datagrams_refused_total Datagrams received and refused, each counted once, by reason.
# TYPE lattice_gossip_datagrams_refused_total counter
lattice_gossip_datagrams_refused_total{node_id=\"n1\",reason=\"not_sealed\"} 3
lattice_gossip_datagrams_refused_total{node_id=\"n1\",reason=\"a\\\"b\\\\c\\nd\"} 0
# HELP lattice_raft_apply_seconds How long it took to apply one entry.
# TYPE lattice_raft_apply_seconds histogram
lattice_raft_apply_seconds_bucket{node_id=\"n1\",le=\"0.001\"} 0
lattice_raft_apply_seconds_bucket{node_id=\"n1\",le=\"0.5\"} 1
lattice_raft_apply_seconds_bucket{node_id=\"n1\",le=\"+Inf\"} 1
lattice_raft_apply_seconds_sum{node_id=\"n1\"} 0.25
lattice_raft_apply_seconds_count{node_id=\"n1\"} 1
# HELP process_cpu_seconds_total Processor time that the process has used, in user and system mode.
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total{node_id=\"n1\"} 1.25
";
        assert_eq!(page(&samples), expected);
    }

    #[test]
    fn numbers_read_back_as_they_were() {
        for value in [0.0, 1.0, -2.5, 1e300, 5e-324, 123_456_789.25, f64::MAX] {
            assert_eq!(number(value).parse::<f64>().unwrap(), value);
        }
        assert_eq!([number(f64::NAN), number(f64::INFINITY), number(f64::NEG_INFINITY)], ["NaN", "+Inf", "-Inf"]);
    }
}
