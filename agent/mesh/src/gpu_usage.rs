//! The wire form of the activity of an allocation's GPUs on one node.

use super::frame::FrameError;
use super::usage::Shown;
use rkyv::{Archive, Deserialize, Serialize};

/// Bounds on what one node may send: GPUs, numbers and reasons for throttling of each GPU, bytes of
/// each text, characters of `error`.
const GPUS_MAX: usize = 64;
const SHOWN_MAX: usize = 32;
const THROTTLED_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 128;
const ERROR_CHARS_MAX: usize = 1024;

/// The answer to [`Open::UsageGpus`](super::open::Open::UsageGpus).
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum GpusAnswer {
    Refused { why: String },
    Answered(WireGpus),
}

/// The newest measurement.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireGpus {
    /// Age of the measurement.
    pub age_ms: u64,
    /// All GPUs that the allocation has here, with or without numbers.
    pub gpus: Vec<WireGpu>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireGpu {
    pub id: String,
    pub model: String,
    /// Why there are no numbers; empty: there are numbers.
    pub error: String,
    pub shown: Vec<Shown>,
    /// Why the GPU's clocks are throttled.
    pub throttled: Vec<String>,
}

impl WireGpus {
    /// Checks the bounds and refuses control characters, because the texts are printed on users'
    /// terminals; in `error` it replaces control characters and cuts what is too long.
    pub fn checked(mut self) -> Result<Self, FrameError> {
        for gpu in &mut self.gpus {
            // Part of this text may come from a driver.
            gpu.error = gpu.error.chars().map(|c| if c.is_control() { ' ' } else { c }).take(ERROR_CHARS_MAX).collect();
        }
        let plain = |text: &String| text.len() <= NAME_BYTES_MAX && !text.chars().any(char::is_control);
        let good = |gpu: &WireGpu| {
            let shown = gpu.shown.iter().all(|one| {
                let numbers = [Some(one.now), one.mean, one.max];
                [&one.name, &one.unit, &one.source].into_iter().all(plain) && numbers.iter().flatten().all(|n| n.is_finite())
            });
            let bounded = gpu.shown.len() <= SHOWN_MAX && gpu.throttled.len() <= THROTTLED_MAX;
            shown && bounded && plain(&gpu.id) && plain(&gpu.model) && gpu.throttled.iter().all(plain)
        };
        if self.gpus.len() > GPUS_MAX || !self.gpus.iter().all(good) { Err(FrameError::Malformed) } else { Ok(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[tokio::test]
    async fn valid_answers_arrive_unchanged_and_invalid_ones_are_refused() {
        let shown = Shown { name: "gpu_utilization".into(), unit: "ratio".into(), source: "nvml".into(), now: 0.5, mean: None, max: None };
        let gpu = WireGpu { id: "GPU-1".into(), model: "H200".into(), error: String::new(), shown: vec![shown], throttled: vec![] };
        let gpus = WireGpus { age_ms: 7, gpus: vec![gpu.clone()] };
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &GpusAnswer::Answered(gpus.clone())).await.unwrap();
        assert_eq!(frame::read::<GpusAnswer, _>(&mut bytes.as_slice()).await.unwrap(), GpusAnswer::Answered(gpus.clone()));
        assert_eq!(gpus.clone().checked().unwrap(), gpus);
        let silent = WireGpu { error: "a\u{1b}[2J".into(), ..gpu.clone() };
        assert_eq!(WireGpus { age_ms: 0, gpus: vec![silent] }.checked().unwrap().gpus[0].error, "a [2J");
        let mut wild = gpu.clone();
        wild.shown[0].now = f64::NAN;
        for bad in [vec![WireGpu { id: "\n".into(), ..gpu.clone() }], vec![wild], vec![gpu; GPUS_MAX + 1]] {
            assert!(WireGpus { age_ms: 0, gpus: bad }.checked().is_err());
        }
    }
}
