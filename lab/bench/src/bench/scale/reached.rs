//! The times until something is reached, which a bench waits for up to a limit.

use crate::bench::figures::{Figure, Samples, Target};
use anyhow::{Context, Result};
use std::time::Duration;

/// When something was reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Reached {
    /// After this many seconds.
    After(f64),
    /// It was not reached; the reason, for people.
    Not(String),
}

impl Reached {
    /// It was not reached in this time.
    pub fn not_in(limit: Duration) -> Self {
        Self::Not(format!("not reached in {} s", limit.as_secs()))
    }

    /// The seconds, if it was reached.
    pub fn seconds(&self) -> Option<f64> {
        match self {
            Self::After(seconds) => Some(*seconds),
            Self::Not(_) => None,
        }
    }

    /// The figure in seconds; a target that was not reached is missed.
    pub fn figure(&self, name: &str, target: Option<Target>) -> Result<Figure> {
        Ok(match self {
            Self::After(seconds) => Figure::new(name, "s", one(*seconds)?, vec![], target),
            Self::Not(why) => Figure::not_measured(name, "s", why, target),
        })
    }

    /// Marks a figure of the same time as incomplete unless this was reached.
    pub fn complete(&self, figure: Figure) -> Figure {
        match self {
            Self::After(_) => figure,
            Self::Not(why) => figure.cut_short(&format!("only until it was given up: {why}")),
        }
    }
}

/// The seconds from one moment of [`lattice_lab::quorum::agents::monotonic_ns`] to another one.
pub fn seconds_between(began_ns: u64, ended_ns: u64) -> f64 {
    Duration::from_nanos(ended_ns.saturating_sub(began_ns)).as_secs_f64()
}

/// A single measurement.
pub fn one(value: f64) -> Result<Samples> {
    Samples::of(vec![value], 0).context("nothing was measured")
}

/// A target that is an upper bound.
pub fn at_most(value: f64, why: &str) -> Option<Target> {
    Some(Target::AtMost { value, why: why.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Verdict;

    #[test]
    fn what_is_not_reached_misses_its_target() {
        let verdict = |reached: Reached| reached.figure("until x", at_most(3.0, "soon")).unwrap().verdict;
        assert_eq!(verdict(Reached::After(3.0)), Verdict::Met);
        assert_eq!(verdict(Reached::After(3.1)), Verdict::Missed);
        assert_eq!(verdict(Reached::not_in(Duration::from_secs(30))), Verdict::Missed);
        let figure = Reached::not_in(Duration::from_secs(30)).figure("until x", None).unwrap();
        assert_eq!((figure.verdict, figure.incomplete.as_deref()), (Verdict::NoTarget, Some("not reached in 30 s")));
    }

    #[test]
    fn a_figure_of_a_time_that_was_given_up_is_incomplete() {
        let memory = || Figure::new("memory", "MB", one(5.0).unwrap(), vec![], at_most(100.0, "small"));
        assert_eq!(Reached::After(1.0).complete(memory()).verdict, Verdict::Met);
        assert_eq!(Reached::Not("not reached in 30 s".into()).complete(memory()).verdict, Verdict::Missed);
        assert_eq!((seconds_between(1_000_000_000, 2_500_000_000), seconds_between(9, 3)), (1.5, 0.0));
    }
}
