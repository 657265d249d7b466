//! The weights of a vCluster's score: how much each factor counts when the scheduler orders work of
//! one preemption class.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The largest weight.
pub const WEIGHT_MAX: u32 = 1000;
const MILLIONTHS: u32 = 1_000_000;

/// The factors of a score: f₁ to f₉ of the documents ("Scheduling algorithm").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Factor {
    Priority,
    WaitTime,
    FairShare,
    Topology,
    DataReadiness,
    Backlog,
    Energy,
    Checkpoint,
    Conformance,
}

impl Factor {
    /// All factors, in the order of the documents.
    pub const ALL: [Self; 9] = [
        Self::Priority,
        Self::WaitTime,
        Self::FairShare,
        Self::Topology,
        Self::DataReadiness,
        Self::Backlog,
        Self::Energy,
        Self::Checkpoint,
        Self::Conformance,
    ];

    /// The name of the option that sets its weight.
    pub fn name(self) -> &'static str {
        match self {
            Self::Priority => "priority",
            Self::WaitTime => "wait-time",
            Self::FairShare => "fair-share",
            Self::Topology => "topology",
            Self::DataReadiness => "data-readiness",
            Self::Backlog => "backlog",
            Self::Energy => "energy",
            Self::Checkpoint => "checkpoint",
            Self::Conformance => "conformance",
        }
    }
}

/// A weight from 0 to [`WEIGHT_MAX`], in millionths: a replicated value is no floating-point number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Weight(u32);

/// Why a number is not a weight.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
#[error("a weight is a number from 0 to {WEIGHT_MAX} with at most six decimals, and {0} is not one")]
pub struct NotAWeight(f64);

impl Weight {
    /// The weight of this value.
    pub fn new(value: f64) -> Result<Self, NotAWeight> {
        let millionths = value * f64::from(MILLIONTHS);
        let rounded = millionths.round();
        let is_valid = (0.0..=f64::from(WEIGHT_MAX)).contains(&value) && (millionths - rounded).abs() < 1e-3;
        // In range: at most 10⁹.
        if is_valid { Ok(Self(rounded as u32)) } else { Err(NotAWeight(value)) }
    }

    const fn hundredths(hundredths: u32) -> Self {
        Self(hundredths * (MILLIONTHS / 100))
    }

    pub fn value(self) -> f64 {
        f64::from(self.0) / f64::from(MILLIONTHS)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(f)
    }
}

/// One weight for each [`Factor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights([Weight; Factor::ALL.len()]);

impl Weights {
    const fn of_hundredths(hundredths: [u32; Factor::ALL.len()]) -> Self {
        let mut weights = [Weight(0); Factor::ALL.len()];
        let mut at = 0;
        while at < weights.len() {
            weights[at] = Weight::hundredths(hundredths[at]);
            at += 1;
        }
        Self(weights)
    }

    pub fn get(&self, factor: Factor) -> Weight {
        self.0[factor as usize]
    }

    pub fn set(&mut self, factor: Factor, weight: Weight) {
        self.0[factor as usize] = weight;
    }

    /// Whether all are 0, so that no work would come before other work.
    pub fn are_zero(&self) -> bool {
        self.0.iter().all(|weight| weight.0 == 0)
    }
}

/// Weights with a name: those of the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    HpcBatch,
    MlTraining,
    Service,
    Sensitive,
    Interactive,
}

/// A text that names no profile.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a weight profile; there are hpc-batch, ml-training, service, sensitive and interactive")]
pub struct NotAProfile(String);

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 5] = [Self::HpcBatch, Self::MlTraining, Self::Service, Self::Sensitive, Self::Interactive];

    pub fn name(self) -> &'static str {
        match self {
            Self::HpcBatch => "hpc-batch",
            Self::MlTraining => "ml-training",
            Self::Service => "service",
            Self::Sensitive => "sensitive",
            Self::Interactive => "interactive",
        }
    }

    /// Its weights, as the documents' table has them.
    pub const fn weights(self) -> Weights {
        Weights::of_hundredths(match self {
            Self::HpcBatch => [15, 20, 20, 15, 10, 5, 0, 5, 10],
            Self::MlTraining => [10, 10, 10, 25, 15, 5, 5, 10, 10],
            Self::Service => [15, 5, 10, 5, 10, 5, 10, 10, 30],
            Self::Sensitive => [90, 0, 0, 0, 0, 0, 0, 0, 10],
            Self::Interactive => [10, 30, 10, 0, 5, 15, 0, 0, 30],
        })
    }
}

impl FromStr for Profile {
    type Err = NotAProfile;

    fn from_str(text: &str) -> Result<Self, NotAProfile> {
        let named = Self::ALL.into_iter().find(|profile| profile.name() == text);
        named.ok_or_else(|| NotAProfile(text.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_a_number_that_weighs_something() {
        for value in [0.0, 0.15, 0.3, 1.0, 0.000_001, 1000.0] {
            let weight = Weight::new(value).unwrap();
            assert_eq!((weight.value(), weight.to_string()), (value, value.to_string()));
        }
        for value in [-0.1, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1000.1, 0.000_000_5] {
            let refused = Weight::new(value).unwrap_err().to_string();
            assert!(refused.contains("from 0 to 1000"), "{refused}");
        }
    }

    #[test]
    fn each_profile_is_found_by_its_name_and_sums_to_one() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
            let sum: f64 = Factor::ALL.iter().map(|factor| profile.weights().get(*factor).value()).sum();
            // The documents' column for ML training sums to 1.00, for HPC batch to 1.00.
            assert!((sum - 1.0).abs() < 1e-9, "{}: {sum}", profile.name());
        }
        assert!("lottery".parse::<Profile>().unwrap_err().to_string().contains("hpc-batch"));
    }

    #[test]
    fn a_weight_is_set_for_its_factor_alone() {
        let mut weights = Profile::Sensitive.weights();
        weights.set(Factor::FairShare, Weight::new(0.35).unwrap());
        let values: Vec<f64> = Factor::ALL.iter().map(|factor| weights.get(*factor).value()).collect();
        assert_eq!(values, [0.9, 0.0, 0.35, 0.0, 0.0, 0.0, 0.0, 0.0, 0.1]);
        assert!(!weights.are_zero() && Weights::of_hundredths([0; 9]).are_zero());
    }
}
