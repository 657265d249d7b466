//! Checkpoints: how work is asked to save itself, and the one that the quorum knows as its last.

use crate::ids::{CheckpointId, Epoch};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use thiserror::Error;

/// How long work has for a checkpoint where nobody says otherwise, in milliseconds.
pub const DEADLINE_MS_DEFAULT: u64 = 10 * 60 * 1000;
/// The shortest and the longest such time, in milliseconds.
pub const DEADLINE_MS: (u64, u64) = (1_000, 24 * 60 * 60 * 1000);

/// What an allocation says of its checkpoints at its submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointPolicy {
    /// The signal that asks for one, where a signal does.
    pub signal: AskSignal,
    /// What asks.
    #[serde(default, skip_serializing_if = "AskBy::is_signal")]
    pub by: AskBy,
    /// Of [`AskBy::Call`]: the port of its own on its node's 127.0.0.1 at which its agent calls it; `None`: it calls its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<NonZeroU16>,
    /// When it is asked without anybody's request, besides before its walltime ends; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic: Option<Automatic>,
}

impl CheckpointPolicy {
    /// Asked by this signal.
    pub fn by_signal(signal: AskSignal) -> Self {
        Self { signal, ..Self::default() }
    }

    /// Asked in another way.
    pub fn by(by: AskBy) -> Self {
        Self { by, ..Self::default() }
    }

    /// Asked in a call to this port of its own.
    pub fn at_port(port: NonZeroU16) -> Self {
        Self { by: AskBy::Call, port: Some(port), ..Self::default() }
    }
}

/// What asks work to save itself. A new one is known to no older member, and to no older agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskBy {
    /// A signal; the answer is a file.
    #[default]
    Signal,
    /// A page of memory that the work and its node's agent share, the answer as well.
    SharedMemory,
    /// The answer to a call of the work to its node's agent, in which it waits, what it says being calls as well; or, where it has a port
    /// of its own, a call of the agent to that, what it says being the answer.
    Call,
}

impl AskBy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Signal, Self::SharedMemory, Self::Call];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::SharedMemory => "shmem",
            Self::Call => "grpc",
        }
    }

    /// The first one, which every version that knows checkpoints knows.
    pub fn is_signal(&self) -> bool {
        *self == Self::Signal
    }
}

/// When work is asked to save itself without anybody's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Automatic {
    /// Where that is worth more than it costs.
    Weighed,
    /// So many seconds after its last checkpoint, or after it began.
    Every { seconds: u64 },
}

/// The shortest and the longest [`Automatic::Every`], in seconds.
pub const EVERY_SECONDS: (u64, u64) = (1, 30 * 24 * 3600);

/// How long before the end of its walltime work is asked to save itself, in milliseconds, where its last checkpoint took `took_ms`:
/// twice as long, and ten seconds for what changes between two of them, within the second half of the walltime. Where that is not known,
/// five minutes, and not more than a tenth of the walltime.
pub fn walltime_lead_ms(walltime_ms: u64, took_ms: Option<u64>) -> u64 {
    match took_ms {
        Some(took_ms) => took_ms.saturating_mul(2).saturating_add(WALLTIME_LEAD_MS_SPARE).min(walltime_ms / 2),
        None => WALLTIME_LEAD_MS_DEFAULT.min(walltime_ms / 10),
    }
}

/// Of work that has not saved itself yet.
const WALLTIME_LEAD_MS_DEFAULT: u64 = 5 * 60 * 1000;
/// Added to what is estimated.
const WALLTIME_LEAD_MS_SPARE: u64 = 10_000;

/// The checkpoint that an allocation begins from when it runs again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRef {
    /// Which.
    pub id: CheckpointId,
    /// The epoch under which it was made.
    pub epoch: Epoch,
    /// The step that the application told, where it told one.
    #[serde(default)]
    pub step: Option<u64>,
    /// Bytes of its files, over all nodes.
    pub bytes: u64,
}

/// A signal that can ask for a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskSignal {
    /// 10.
    #[default]
    Usr1,
    /// 12.
    Usr2,
    /// 1.
    Hup,
    /// 2.
    Int,
    /// 14.
    Alrm,
    /// 15: work that is ended gets it as well, and cannot tell the two apart but by the request that lies there.
    Term,
}

impl AskSignal {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Usr1, Self::Usr2, Self::Hup, Self::Int, Self::Alrm, Self::Term];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Hup => "SIGHUP",
            Self::Int => "SIGINT",
            Self::Alrm => "SIGALRM",
            Self::Term => "SIGTERM",
        }
    }

    /// Its number on every architecture that agents run on.
    pub fn number(self) -> i32 {
        match self {
            Self::Usr1 => 10,
            Self::Usr2 => 12,
            Self::Hup => 1,
            Self::Int => 2,
            Self::Alrm => 14,
            Self::Term => 15,
        }
    }
}

impl fmt::Display for AskSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No signal of this name can ask for a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no signal that can ask for a checkpoint; {list} are", list = AskSignal::ALL.map(AskSignal::name).join(", "))]
pub struct NoSuchSignal(pub String);

impl FromStr for AskSignal {
    type Err = NoSuchSignal;

    /// With or without `SIG`, in any case.
    fn from_str(text: &str) -> Result<Self, NoSuchSignal> {
        let upper = text.to_ascii_uppercase();
        let plain = upper.strip_prefix("SIG").unwrap_or(&upper);
        let found = Self::ALL.into_iter().find(|signal| signal.name().strip_prefix("SIG") == Some(plain));
        found.ok_or_else(|| NoSuchSignal(text.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_asked_in_time_before_its_walltime_and_not_for_most_of_it() {
        assert_eq!(walltime_lead_ms(24 * 3_600_000, None), 300_000);
        assert_eq!(walltime_lead_ms(24 * 3_600_000, Some(60_000)), 130_000);
        assert_eq!(walltime_lead_ms(2 * 3_600_000, Some(20 * 60_000)), 41 * 60_000 - 50_000);
        assert_eq!(walltime_lead_ms(60_000, Some(60_000)), 30_000);
        assert_eq!(walltime_lead_ms(60_000, None), 6_000);
        assert_eq!(walltime_lead_ms(u64::MAX, Some(u64::MAX)), u64::MAX / 2);
        assert_eq!(walltime_lead_ms(0, None), 0);
    }

    #[test]
    fn signals_are_read_with_and_without_their_prefix() {
        for signal in AskSignal::ALL {
            assert_eq!(signal.name().parse(), Ok(signal));
            assert_eq!(signal.name()[3..].to_lowercase().parse(), Ok(signal));
        }
        for bad in ["", "SIG", "KILL", "SIGSTOP", "10"] {
            assert!(bad.parse::<AskSignal>().is_err(), "{bad}");
        }
    }
}
