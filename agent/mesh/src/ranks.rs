//! The wire form of the activity of ranks on a node.

use super::frame::FrameError;
use rkyv::{Archive, Deserialize, Serialize};

/// Ranks that one node reports at most.
pub const RANKS_MAX: usize = 1024;
const TEXT_BYTES_MAX: usize = 128;

/// The answer to [`Open::Ranks`](super::open::Open::Ranks).
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum RanksAnswer {
    Refused { why: String },
    Answered(WireRanks),
}

/// Two readings of all ranks, compared.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireRanks {
    /// Time between the two readings.
    pub window_ms: u64,
    /// Ascending by launch.
    pub ranks: Vec<WireRank>,
    /// Ranks and processes beyond the limits, which are not included.
    pub omitted: u32,
    /// Processes that could not be attributed to a rank.
    pub unknown: u32,
}

/// One rank: the sum over its processes.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireRank {
    /// The launch's number; 0 is the script.
    pub launch: u32,
    pub rank: u32,
    /// The process that the launch started, and its name.
    pub pid: i32,
    pub name: String,
    pub processes: u32,
    /// Processors kept busy between the readings; `None`: the rank did not exist at the first one.
    pub cpu_cores: Option<f64>,
    /// Resident bytes; memory that the rank's processes share counts once for each of them.
    pub memory_bytes: u64,
    pub threads: u32,
    /// The kernel's state letter: of a thread in uninterruptible sleep, else of a running one, else
    /// of the first one.
    pub state: String,
}

impl WireRanks {
    /// Checks the bounds and refuses control characters: the texts are printed on users' terminals.
    pub fn checked(self) -> Result<Self, FrameError> {
        let plain = |text: &String| text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
        let good = |rank: &WireRank| {
            let cores = rank.cpu_cores.is_none_or(|cores| cores.is_finite() && cores >= 0.0);
            cores && plain(&rank.name) && plain(&rank.state)
        };
        if self.ranks.len() <= RANKS_MAX && self.ranks.iter().all(good) { Ok(self) } else { Err(FrameError::Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    #[tokio::test]
    async fn reported_ranks_are_decoded_and_impossible_ones_are_refused() {
        let rank =
            WireRank { launch: 1, rank: 3, pid: 7, name: "a.out".into(), cpu_cores: Some(0.5), state: "R".into(), ..WireRank::default() };
        let ranks = |ranks: Vec<WireRank>| WireRanks { window_ms: 1000, ranks, omitted: 0, unknown: 1 };
        let good = ranks(vec![rank.clone()]);
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &RanksAnswer::Answered(good.clone())).await.unwrap();
        assert_eq!(frame::read::<RanksAnswer, _>(&mut bytes.as_slice()).await.unwrap(), RanksAnswer::Answered(good.clone()));
        assert_eq!(good.clone().checked().unwrap(), good);
        for bad in [
            vec![WireRank { name: "a\u{1b}[2J".into(), ..rank.clone() }],
            vec![WireRank { cpu_cores: Some(f64::NAN), ..rank.clone() }],
            vec![rank; RANKS_MAX + 1],
        ] {
            assert!(ranks(bad).checked().is_err());
        }
    }
}
