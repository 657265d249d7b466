//! The wire form of what an allocation's work uses on a node.

use super::frame::FrameError;
use lattice_model::{Allocation, Principal, millis};
use rkyv::{Archive, Deserialize, Serialize};
use std::time::Duration;

/// How many numbers one node may send, and the longest name, in bytes.
const SHOWN_MAX: usize = 128;
const NAME_BYTES_MAX: usize = 64;

/// A request for an allocation's usage over a time span.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct UsageOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The time span of means and maxima; it ends now.
    pub duration_ms: u64,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
}

impl UsageOpen {
    /// Asks for what an allocation's current claim uses, for a user who may see it, over a time span
    /// that ends now.
    pub fn of(user: &Principal, allocation: &Allocation, duration: Duration) -> Self {
        Self {
            allocation: *allocation.id.0.as_bytes(),
            epoch: allocation.epoch.0,
            duration_ms: millis(duration),
            uid: user.uid,
            user: user.name.clone(),
        }
    }
}

/// The answer to [`UsageOpen`].
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum UsageAnswer {
    Refused { why: String },
    Answered(WireUsage),
}

/// The newest measurement.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireUsage {
    /// Age of the measurement.
    pub age_ms: u64,
    pub shown: Vec<Shown>,
}

/// One number. Names, units and sources are strings: a later version may have more of them.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct Shown {
    pub name: String,
    pub unit: String,
    pub source: String,
    pub now: f64,
    /// Mean and maximum over the requested time span, if it is recorded.
    pub mean: Option<f64>,
    pub max: Option<f64>,
}

impl WireUsage {
    /// Checks the bounds and refuses control characters: the names are printed on users' terminals.
    pub fn checked(self) -> Result<Self, FrameError> {
        let plain = |text: &str| text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control);
        let good = |shown: &Shown| {
            let numbers = [Some(shown.now), shown.mean, shown.max];
            [&shown.name, &shown.unit, &shown.source].iter().all(|text| plain(text)) && numbers.iter().flatten().all(|n| n.is_finite())
        };
        if self.shown.len() > SHOWN_MAX || !self.shown.iter().all(good) { Err(FrameError::Malformed) } else { Ok(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[tokio::test]
    async fn usage_survives_the_wire_and_values_out_of_bounds_are_refused() {
        let shown =
            Shown { name: "cpu_cores".into(), unit: "cores".into(), source: "cgroup2".into(), now: 1.5, mean: Some(1.0), max: Some(2.0) };
        let usage = WireUsage { age_ms: 7, shown: vec![shown.clone()] };
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &UsageAnswer::Answered(usage.clone())).await.unwrap();
        assert_eq!(frame::read::<UsageAnswer, _>(&mut bytes.as_slice()).await.unwrap(), UsageAnswer::Answered(usage.clone()));
        assert_eq!(usage.clone().checked().unwrap(), usage);
        for bad in [
            vec![Shown { name: "a\u{1b}[2J".into(), ..shown.clone() }],
            vec![Shown { mean: Some(f64::NAN), ..shown.clone() }],
            vec![shown; SHOWN_MAX + 1],
        ] {
            assert!(WireUsage { age_ms: 0, shown: bad }.checked().is_err());
        }
    }
}
