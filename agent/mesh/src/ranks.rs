//! What each rank of an allocation's launches does on a node, on the wire.

use super::frame::FrameError;
use rkyv::{Archive, Deserialize, Serialize};

/// Ranks that one node tells of.
pub const RANKS_MAX: usize = 1024;
const TEXT_BYTES_MAX: usize = 128;

/// The answer.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum RanksAnswer {
    Refused { why: String },
    Told(RanksTold),
}

/// What was read of all of them, twice.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct RanksTold {
    /// Between the two looks.
    pub over_ms: u64,
    /// Launch by launch, ascending.
    pub ranks: Vec<WireRank>,
    /// Ranks and processes beyond what is told and read.
    pub left_out: u32,
    /// Processes of which it cannot be told which rank they are of.
    pub unknown: u32,
}

/// One rank: all of its processes together.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireRank {
    /// 0 is the script.
    pub launch: u32,
    pub rank: u32,
    /// The process that its launch began, and its name.
    pub pid: i32,
    pub name: String,
    pub processes: u32,
    /// Processors kept busy between the looks; `None`: it was not there at the first one.
    pub cpu_cores: Option<f64>,
    /// What is resident; what its processes share is in it once for each.
    pub memory_bytes: u64,
    pub threads: u32,
    /// The kernel's letter: of a thread that waits uninterruptibly, else of one that runs, else of its first one.
    pub state: String,
}

impl RanksTold {
    /// What a node can say; its words go to people's terminals.
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
    async fn what_a_node_tells_of_ranks_comes_through_and_what_none_tells_is_refused() {
        let rank =
            WireRank { launch: 1, rank: 3, pid: 7, name: "a.out".into(), cpu_cores: Some(0.5), state: "R".into(), ..WireRank::default() };
        let told = |ranks: Vec<WireRank>| RanksTold { over_ms: 1000, ranks, left_out: 0, unknown: 1 };
        let good = told(vec![rank.clone()]);
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &RanksAnswer::Told(good.clone())).await.unwrap();
        assert_eq!(frame::read::<RanksAnswer, _>(&mut bytes.as_slice()).await.unwrap(), RanksAnswer::Told(good.clone()));
        assert_eq!(good.clone().checked().unwrap(), good);
        for bad in [
            vec![WireRank { name: "a\u{1b}[2J".into(), ..rank.clone() }],
            vec![WireRank { cpu_cores: Some(f64::NAN), ..rank.clone() }],
            vec![rank; RANKS_MAX + 1],
        ] {
            assert!(told(bad).checked().is_err());
        }
    }
}
