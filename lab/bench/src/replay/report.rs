//! The table.

use super::measures::Measures;
use super::workload::Workload;
use lattice_model::count::counted;

const WIDTH: usize = 80;

/// The jobs, and notes about them for the reader.
pub fn header(workload: &Workload) -> String {
    let (first_s, last_s) = workload.span_s();
    let days = (last_s - first_s) as f64 / 86_400.0;
    let (jobs, nodes) = (counted(workload.jobs.len(), "job"), counted(workload.nodes, "node"));
    let mut text = format!("{}: {jobs} in {days:.1} days on {nodes}, load {:.1} %\n", workload.name, workload.load() * 100.0);
    for note in &workload.notes {
        text.push_str(&wrapped(note));
    }
    text
}

/// A row for each scheduler, and the first one compared with the best of the others.
pub fn table(all: &[Measures]) -> String {
    let mut text = row(["scheduler", "jobs", "use", "wait", "p95", "longest", "slowdown", "late", "most", "cpu"].map(str::to_owned));
    text.push_str(&row(["", "", "%", "h", "h", "h", "", "", "h", "s"].map(str::to_owned)));
    text.insert(0, '\n');
    for of in all {
        let promise = |value: String| if of.expected == 0 { "-".to_owned() } else { value };
        text.push_str(&row([
            of.scheduler.to_owned(),
            of.jobs.to_string(),
            format!("{:.1}", of.utilisation * 100.0),
            hours(of.wait_mean_s),
            hours(of.wait_p95_s as f64),
            hours(of.wait_max_s as f64),
            format!("{:.2}", of.slowdown_mean),
            promise(of.late.to_string()),
            promise(hours(of.late_max_s as f64)),
            format!("{:.2}", of.processor.as_secs_f64()),
        ]));
    }
    if let Some((first, references)) = all.split_first() {
        text.push('\n');
        text.push_str(&wrapped(&compared(first, references)));
        let plan_ms = first.processor.as_secs_f64() * 1e3 / first.plans as f64;
        text.push_str(&wrapped(&format!("{}: {}, {plan_ms:.2} ms of processor time each", first.scheduler, counted(first.plans, "plan"))));
    }
    for note in [
        "use: of the nodes' time from the first to the last submission; the cluster is empty at the first one. All jobs run, and the rest \
         of the table counts all of them.",
        "slowdown: bounded, with run times of 10 s or more. late: jobs that began after the first start that was expected for them, and by \
         how much at most (EASY: the first in the queue alone).",
    ] {
        text.push_str(&wrapped(note));
    }
    text
}

/// Ratios to the best of the references.
fn compared(first: &Measures, references: &[Measures]) -> String {
    let best = |value: fn(&Measures) -> f64, is_better: fn(f64, f64) -> bool| {
        let better = |a, b| if is_better(value(b), value(a)) { b } else { a };
        let best = references.iter().reduce(better)?;
        Some(format!("{:.3} ({})", value(first) / value(best), best.scheduler))
    };
    let less = |a: f64, b: f64| a < b;
    let more = |a: f64, b: f64| a > b;
    let of = |ratio: Option<String>| ratio.unwrap_or_else(|| "no reference".to_owned());
    format!(
        "{} / best reference: use {}, wait {}, slowdown {}",
        first.scheduler,
        of(best(|of| of.utilisation, more)),
        of(best(|of| of.wait_mean_s, less)),
        of(best(|of| of.slowdown_mean, less)),
    )
}

fn row([scheduler, jobs, used, wait, p95, longest, slowdown, late, most, cpu]: [String; 10]) -> String {
    let line = format!("{scheduler:<12} {jobs:>6} {used:>5} {wait:>6} {p95:>6} {longest:>8} {slowdown:>9} {late:>6} {most:>6} {cpu:>7}");
    format!("{}\n", line.trim_end())
}

fn hours(seconds: f64) -> String {
    format!("{:.2}", seconds / 3600.0)
}

/// A paragraph; further lines are indented.
pub fn wrapped(text: &str) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            out.push_str("\n  ");
            column = 2;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn measures(scheduler: &'static str, wait_mean_s: f64, expected: usize) -> Measures {
        Measures {
            scheduler,
            jobs: 123_456,
            utilisation: 0.9,
            wait_mean_s,
            wait_p95_s: 3_599_000,
            wait_max_s: 35_000_000,
            slowdown_mean: 123_456.789,
            expected,
            late: 12_345,
            late_max_s: 360_000,
            plans: 10,
            processor: Duration::from_secs(1000),
        }
    }

    #[test]
    fn a_table_is_at_most_80_columns_wide_and_compares_with_the_best() {
        let all = [measures("lattice", 7200.0, 1), measures("conservative", 14_400.0, 1), measures("EASY", 9600.0, 0)];
        let text = table(&all);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("wait 0.750 (EASY)"), "{text}");
        assert_eq!(text.matches(" 100.00").count(), 2, "one without promises has no late jobs: {text}");
    }
}
