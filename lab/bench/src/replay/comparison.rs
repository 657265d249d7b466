//! Replays of one scenario under several weights, side by side: as a table, as JSON, and as drawings.

use super::outcome::Outcome;
use super::report::wrapped;
use super::scenario::Scenario;
use crate::chart::{Chart, Curve, Scale};
use anyhow::{Context, Result};
use lattice_model::count::counted;
use serde::Serialize;
use std::path::Path;

/// From this value on, values are shown without decimals, so that they fit their column.
const WITHOUT_DECIMALS_FROM: f64 = 100_000.0;
/// The largest difference that is shown, in per cent.
const DIFFERENCE_MAX: f64 = 9999.9;
/// Columns of a table for people.
const LABEL_WIDTH: usize = 25;
const COLUMN_WIDTH: usize = 18;
/// How many runs are side by side in 80 columns.
const RUNS_PER_TABLE: usize = 3;

/// A row of the table.
struct Row {
    label: &'static str,
    /// `None`: this run has no such value.
    value: fn(&Outcome) -> Option<f64>,
    shown: fn(f64) -> String,
}

const ROWS: [Row; 20] = [
    Row { label: "submitted", value: |of| Some(of.submitted as f64), shown: count },
    Row { label: "never began", value: |of| Some(of.never_began as f64), shown: count },
    Row { label: "nodes in use, %", value: |of| Some(100.0 * of.nodes.part()), shown: tenths },
    Row { label: "node-hours", value: |of| Some(of.nodes.used_hours), shown: tenths },
    Row { label: "GPUs in use, %", value: |of| Some(100.0 * of.gpus?.part()), shown: tenths },
    Row { label: "GPU-hours", value: |of| Some(of.gpus?.used_hours), shown: tenths },
    Row { label: "wait p50, h", value: |of| Some(hours(of.wait_p50_s)), shown: hundredths },
    Row { label: "wait p95, h", value: |of| Some(hours(of.wait_p95_s)), shown: hundredths },
    Row { label: "wait p99, h", value: |of| Some(hours(of.wait_p99_s)), shown: hundredths },
    Row { label: "oldest job waited, h", value: |of| Some(hours(of.oldest_s)), shown: hundredths },
    Row { label: "bounded slowdown", value: |of| Some(of.slowdown_mean), shown: hundredths },
    Row { label: "Jain's fairness index", value: |of| of.jain, shown: thousandths },
    Row { label: "share deviation, points", value: |of| Some(100.0 * of.share_deviation?), shown: tenths },
    Row { label: "backfilled", value: |of| Some(of.backfilled as f64), shown: count },
    Row { label: "preempted for priority", value: |of| Some(of.preempted_for_priority as f64), shown: count },
    Row { label: "preempted for reclaim", value: |of| Some(of.preempted_for_reclaim as f64), shown: count },
    Row { label: "preempted and saved, %", value: |of| Some(100.0 * of.saved?), shown: tenths },
    Row { label: "until 95 % in use, min", value: |of| Some(of.ramp_up_s? as f64 / 60.0), shown: tenths },
    Row { label: "longest plan, ms", value: |of| Some(of.effort.longest_plan_ms), shown: hundredths },
    Row { label: "all plans, s", value: |of| Some(of.effort.processor_seconds), shown: hundredths },
];

/// What is replayed, and notes about it for the reader.
pub fn header(scenario: &Scenario) -> String {
    let (first_s, last_s) = scenario.span_s();
    let days = (last_s - first_s) as f64 / 86_400.0;
    let (works, nodes) = (counted(scenario.works.len(), "submission"), counted(scenario.site.nodes.len(), "node"));
    let mut text = wrapped(&format!("{}: {works} in {days:.1} days on {nodes}", scenario.name));
    scenario.notes.iter().for_each(|note| text.push_str(&wrapped(note)));
    text
}

/// A column for each run. The runs of files are compared with the first file, in per cent.
pub fn table(all: &[Outcome]) -> String {
    // The first run has the trace's own weights.
    let base = all.get(1);
    let mut text = String::new();
    for runs in all.chunks(RUNS_PER_TABLE) {
        text.push('\n');
        text.push_str(&line("weights", runs.iter().map(|of| column_name(&of.weights))));
        for row in &ROWS {
            if all.iter().any(|of| (row.value)(of).is_some()) {
                text.push_str(&line(row.label, runs.iter().map(|of| cell(row, of, base))));
            }
        }
    }
    text.push('\n');
    if let Some(base) = base {
        text.push_str(&wrapped(&format!("The percentages are differences to {}.", base.weights)));
    }
    text.push_str(&wrapped(
        "In use: between the first and the last submission. Jain's index is of the tenants' use in proportion to their targets; a \
         deviation is the difference between a tenant's target and its part of the use. Backfilled: began while work \
         ahead of it waited. The rows of plans are processor time: they alone differ from run to run.",
    ));
    text
}

fn line(label: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!("{cell:>COLUMN_WIDTH$}")).collect();
    format!("{label:<LABEL_WIDTH$}{cells}").trim_end().to_owned() + "\n"
}

fn cell(row: &Row, of: &Outcome, base: Option<&Outcome>) -> String {
    let Some(value) = (row.value)(of) else { return "-".to_owned() };
    let shown = (row.shown)(value);
    let base_value = base.filter(|base| base.weights != of.weights).and_then(|base| (row.value)(base));
    match base_value {
        Some(base) if base != 0.0 => format!("{shown} {:>8}", difference(100.0 * (value - base) / base)),
        Some(_) | None => format!("{shown}         "),
    }
}

fn difference(percent: f64) -> String {
    if percent > DIFFERENCE_MAX { ">+9999%".to_owned() } else { format!("{percent:+.1}%") }
}

/// The end of a path that fits above a column.
fn column_name(weights: &str) -> String {
    let chars: Vec<char> = weights.chars().collect();
    let left_out = chars.len().saturating_sub(COLUMN_WIDTH - 1);
    if left_out == 0 { weights.to_owned() } else { std::iter::once('…').chain(chars.into_iter().skip(left_out + 1)).collect() }
}

fn hours(seconds: u64) -> f64 {
    seconds as f64 / 3600.0
}

fn count(value: f64) -> String {
    format!("{value:.0}")
}

fn tenths(value: f64) -> String {
    if value >= WITHOUT_DECIMALS_FROM { count(value) } else { format!("{value:.1}") }
}

fn hundredths(value: f64) -> String {
    if value >= WITHOUT_DECIMALS_FROM { count(value) } else { format!("{value:.2}") }
}

fn thousandths(value: f64) -> String {
    format!("{value:.3}")
}

/// What must hold for a trace with a name, with its own weights.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Criterion {
    pub text: &'static str,
    pub met: bool,
}

/// All runs as JSON. `criterion`: null in it if the trace has none.
pub fn json(scenario: &Scenario, all: &[Outcome], criterion: Option<Criterion>) -> Result<String> {
    let value = serde_json::json!({ "trace": scenario.name, "notes": scenario.notes, "criterion": criterion, "replays": all });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

/// Writes `replay-use.svg` and `replay-waits.svg` into `folder`, which is created if missing.
pub fn draw(folder: &Path, scenario: &Scenario, all: &[Outcome]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let curves = |points: fn(&Outcome) -> &Vec<(f64, f64)>| {
        all.iter().map(|of| Curve { name: column_name(&of.weights), points: points(of).clone() }).collect::<Vec<_>>()
    };
    let drawings = [
        ("use", "nodes in use", "hours since the first submission", curves(|of| &of.curves.in_use)),
        ("waits", "work that waited no longer", "hours of waiting", curves(|of| &of.curves.waits)),
    ];
    for (name, title, size_name, curves) in drawings {
        let svg = Chart { title: format!("{}: {title}", scenario.name), size_name, scale: Scale::Differences, unit: "%", curves }.svg()?;
        let file = folder.join(format!("replay-{name}.svg"));
        std::fs::write(&file, svg).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::course;
    use super::super::product::id;
    use super::super::scenario::{Work, whole_nodes};
    use super::super::site::Site;
    use super::*;
    use lattice_api::trace::{Request, Span};

    fn lasting_two_hours() -> Request {
        Request { walltime: Some(Span(7200)), ..whole_nodes(1) }
    }

    fn scenario() -> Scenario {
        let work = |number| Work { id: id(number), request: lasting_two_hours(), submitted_s: number as u64, run_s: 7200 };
        Scenario { name: "t".into(), site: Site::alike(2), works: (0..5).map(work).collect(), notes: vec!["a note".into()] }
    }

    fn outcomes(names: &[&str]) -> Vec<Outcome> {
        let scenario = scenario();
        let course = course::run(&scenario, &scenario.site).unwrap();
        names.iter().map(|name| Outcome::of(name, &scenario, &course)).collect()
    }

    #[test]
    fn the_table_has_a_column_for_each_run_and_differences_to_the_first_file() {
        let mut all = outcomes(&["own", "a.yaml", "a/folder/with/a/long/name/b.yaml", "c.yaml"]);
        all[2].wait_p50_s *= 2;
        let text = header(&scenario()) + &table(&all);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for want in ["own", "a.yaml", "c.yaml", "…", "name/b.yaml", "differences to a.yaml"] {
            assert!(text.contains(want), "{want}: {text}");
        }
        let waits: Vec<&str> = text.lines().find(|line| line.starts_with("wait p50")).unwrap().split_whitespace().collect();
        assert_eq!(waits, ["wait", "p50,", "h", "2.00", "+0.0%", "2.00", "4.00", "+100.0%"]);
        assert!(!text.contains("Jain's fairness"), "no tenant has a target: {text}");
    }

    #[test]
    fn columns_do_not_touch_where_numbers_are_large() {
        let mut all = outcomes(&["own", "a.yaml", "b.yaml"]);
        for (of, hours) in all.iter_mut().zip([1_234_567.8, 1_234.5, 9_876_543.2]) {
            (of.nodes.used_hours, of.nodes.available_hours) = (hours, 2.0 * hours);
            (of.submitted, of.oldest_s, of.effort.processor_seconds) = (9_999_999, 3600 * hours as u64, hours);
        }
        let text = table(&all);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let cells = |label: &str| {
            let line = text.lines().find(|line| line.starts_with(label)).unwrap();
            line.strip_prefix(label).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(cells("node-hours"), ["1234568", ">+9999%", "1234.5", "9876543", ">+9999%"]);
        // Whole hours.
        assert_eq!(cells("oldest job waited, h"), ["1234567", ">+9999%", "1234.00", "9876543", ">+9999%"]);
        assert_eq!(cells("submitted"), ["9999999", "+0.0%", "9999999", "9999999", "+0.0%"]);
    }

    #[test]
    fn json_and_drawings_have_all_runs() {
        let all = outcomes(&["own", "a.yaml"]);
        let parsed = |criterion| serde_json::from_str::<serde_json::Value>(&json(&scenario(), &all, criterion).unwrap()).unwrap();
        let value = parsed(Some(Criterion { text: "nothing waits", met: false }));
        assert_eq!(value["criterion"], serde_json::json!({ "text": "nothing waits", "met": false }));
        assert!(parsed(None)["criterion"].is_null());
        assert_eq!((&value["replays"][1]["weights"], &value["replays"][0]["submitted"]), (&"a.yaml".into(), &5.into()));
        let folder = std::env::temp_dir().join(format!("lattice-replay-drawings-{}", std::process::id()));
        draw(&folder, &scenario(), &all).unwrap();
        for name in ["use", "waits"] {
            let svg = std::fs::read_to_string(folder.join(format!("replay-{name}.svg"))).unwrap();
            assert!(svg.matches("<polyline").count() == 2 && svg.contains(">a.yaml<"), "{svg}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
