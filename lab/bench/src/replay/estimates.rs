//! The walltimes that users give.

use lattice_lab::dice::Dice;
use std::fmt::Write as _;

/// The walltimes that users choose from, in minutes. Real ones are few round values too: Tsafrir, Etsion and Feitelson,
/// "Modeling user runtime estimates", JSSPP 2005.
const USUAL_MIN: [u64; 14] = [5, 10, 15, 30, 60, 120, 180, 240, 360, 480, 720, 1080, 1440, 2880];

/// How walltimes are made from run times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Estimates {
    /// The run time divided by a random number from 0 to 1, and rounded up to a usual value
    Usual,
    /// The run time itself
    Exact,
}

impl Estimates {
    /// The walltime for work with this run time, in seconds. The random number is the accuracy: Mu'alem and Feitelson
    /// (IEEE TPDS 12(6), 2001) found all accuracies about equally often.
    pub fn walltime_s(self, run_s: u64, dice: &mut Dice) -> u64 {
        match self {
            Self::Exact => run_s.max(1),
            Self::Usual => {
                let estimate_s = run_s as f64 / dice.unit();
                let usual = USUAL_MIN.iter().map(|minutes| minutes * 60).find(|usual_s| *usual_s as f64 >= estimate_s);
                // Nobody asks for more than the longest, unless the work needs more.
                usual.unwrap_or_else(|| run_s.max(60 * USUAL_MIN[USUAL_MIN.len() - 1]))
            }
        }
    }

    /// The walltimes in a sentence.
    pub fn sentence(self) -> String {
        match self {
            Self::Exact => "walltimes are the run times".to_owned(),
            Self::Usual => {
                let mut text = "walltimes are the run times / uniform(0, 1), rounded up to minutes of".to_owned();
                USUAL_MIN.iter().for_each(|minutes| write!(text, " {minutes}").expect("text has room"));
                text
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walltime_is_a_usual_value_and_never_shorter_than_the_run() {
        let mut dice = Dice::new(1, "estimates");
        for run_s in [0, 1, 299, 300, 301, 86_400, 172_800, 200_000] {
            let walltime_s = Estimates::Usual.walltime_s(run_s, &mut dice);
            assert!(walltime_s >= run_s, "{run_s}: {walltime_s}");
            assert!(run_s > 172_800 || USUAL_MIN.contains(&(walltime_s / 60)), "{run_s}: {walltime_s}");
            assert_eq!(Estimates::Exact.walltime_s(run_s, &mut dice), run_s.max(1));
        }
    }
}
