//! The fields of sprio.

use crate::context::Context;
use crate::format::Field;
use crate::job::Job;
use lattice_api::v1::explain_response::ScoreTerm;

/// The columns without options.
pub const DEFAULT: &str = "%.15i %9r %.10Y %.10S %.10A %.10B %.10F %.10J %.10P %.10Q %20T";
/// The columns of `--long`.
pub const LONG: &str = "%.15i %9r %.8u %.10Y %.10S %.10A %.10B %.10F %.10J %.10P %.10Q %.11N %.20T";
/// The columns of `--norm`.
pub const NORMALIZED: &str = "%.15i %9r %.10y %.10a %.10b %.10f %.10j %.10p %.10q %20t";
/// Scores have fractions, and Slurm's priorities have none: a score of 1 is shown as this.
const SCALE: f64 = 1000.0;

/// A job that waits, and the terms of its score; or the weights of a partition.
#[derive(Clone, Debug)]
pub struct Priority {
    /// The job; `None`: this row has weights.
    pub job: Option<Job>,
    /// The partition.
    pub partition: String,
    /// The factors of its score; empty: its queue has no scores.
    pub terms: Vec<ScoreTerm>,
}

/// The factors of Lattice that sprio shows in columns of their own.
const WAIT_TIME: &str = "wait-time";
const FAIR_SHARE: &str = "fair-share";
const CLASS: &str = "priority";

impl Priority {
    fn weighted(&self, factor: &str) -> String {
        let of = |term: &ScoreTerm| if self.job.is_some() { term.weight * term.value } else { term.weight };
        let sum: f64 = self.terms.iter().filter(|term| term.factor == factor).map(of).sum();
        format!("{:.0}", sum * SCALE)
    }

    fn normalized(&self, factor: &str) -> String {
        let value = self.terms.iter().find(|term| term.factor == factor).map_or(0.0, |term| term.value);
        format!("{value:.7}")
    }

    /// The factors without a column of their own.
    fn others(&self, of: impl Fn(&ScoreTerm) -> String) -> String {
        let others = self.terms.iter().filter(|term| ![WAIT_TIME, FAIR_SHARE, CLASS].contains(&term.factor.as_str()));
        others.map(|term| format!("{}={}", term.factor, of(term))).collect::<Vec<_>>().join(",")
    }
}

const fn lettered(letter: char, heading: &'static str, value: fn(&Priority, &Context<'_>) -> String) -> Field<Priority> {
    Field { letter: Some(letter), name: "", heading, value }
}

fn zero(_: &Priority, _: &Context<'_>) -> String {
    "0".to_owned()
}

fn zero_normalized(_: &Priority, _: &Context<'_>) -> String {
    "0.0000000".to_owned()
}

/// The fields of sprio. The factors of associations, job sizes and partitions do not exist in Lattice: they are 0.
pub const PRIORITY_FIELDS: &[Field<Priority>] = &[
    lettered('a', "AGE", |row, _| row.normalized(WAIT_TIME)),
    lettered('A', "AGE", |row, _| row.weighted(WAIT_TIME)),
    lettered('b', "ASSOC", zero_normalized),
    lettered('B', "ASSOC", zero),
    lettered('c', "CLUSTER", |_, c| c.compat.cluster().to_owned()),
    lettered('f', "FAIRSHARE", |row, _| row.normalized(FAIR_SHARE)),
    lettered('F', "FAIRSHARE", |row, _| row.weighted(FAIR_SHARE)),
    lettered('i', "JOBID", |row, _| row.job.as_ref().map_or_else(|| "Weights".to_owned(), |job| job.base_number().to_string())),
    lettered('j', "JOBSIZE", zero_normalized),
    lettered('J', "JOBSIZE", zero),
    lettered('N', "NICE", |row, _| row.job.as_ref().map_or(0, |job| job.allocation.nice).to_string()),
    lettered('p', "PARTITION", zero_normalized),
    lettered('P', "PARTITION", zero),
    lettered('q', "QOS", |row, _| row.normalized(CLASS)),
    lettered('Q', "QOS", |row, _| row.weighted(CLASS)),
    lettered('r', "PARTITION", |row, _| row.partition.clone()),
    lettered('S', "SITE", zero),
    lettered('t', "TRES", |row, _| row.others(|term| format!("{:.7}", term.value))),
    lettered('T', "TRES", |row, _| {
        row.others(|term| format!("{:.0}", SCALE * if row.job.is_some() { term.weight * term.value } else { term.weight }))
    }),
    lettered('u', "USER", |row, _| row.job.as_ref().map(|job| job.allocation.owner.clone()).unwrap_or_default()),
    lettered('y', "PRIORITY", |row, _| {
        row.job.as_ref().map(|job| format!("{:.14}", job.priority() as f64 / f64::from(u32::MAX))).unwrap_or_default()
    }),
    lettered('Y', "PRIORITY", |row, _| row.job.as_ref().map(|job| job.priority().to_string()).unwrap_or_default()),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::rows;
    use crate::format::Layout;
    use crate::time::{Clock, Utc};
    use lattice_api::v1;
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    #[test]
    fn factors_of_the_score_are_in_slurms_columns() {
        let job = v1::Allocation { number: 12, state: "Pending".into(), queue_position: 2, owner: "ada".into(), ..Default::default() };
        let term = |factor: &str, weight, value| ScoreTerm { factor: factor.into(), weight, value, known: true };
        let terms =
            vec![term("wait-time", 0.5, 0.25), term("fair-share", 0.25, 0.5), term("topology", 0.1, 1.0), term("priority", 1.0, 0.5)];
        let row = Priority { job: rows(job, &[], false).pop(), partition: "default".into(), terms };
        let (compat, clock, nodes) = (Compat::default(), Clock::new(0, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| None, nodes: &nodes };
        let of = |format: &str| Layout::of_letters(format, PRIORITY_FIELDS).unwrap().line(&row, &context);
        assert_eq!(of("%i %r %u %Y %A %F %J %P %Q %T %N"), "12 default ada 4294901758 125 125 0 0 500 topology=100 0");
        assert_eq!(of("%a %f %q"), "0.2500000 0.5000000 0.5000000");
        for format in [DEFAULT, LONG, NORMALIZED] {
            Layout::of_letters(format, PRIORITY_FIELDS).unwrap();
        }
        let weights = Priority { job: None, ..row.clone() };
        assert_eq!(Layout::of_letters("%i %A", PRIORITY_FIELDS).unwrap().line(&weights, &context), "Weights 500");
    }
}
