//! Checkpoints: how work is asked to save itself, and the reference to the latest complete
//! checkpoint in the quorum's record.

use crate::ids::{CheckpointId, Epoch};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use thiserror::Error;

/// Default time that work has for a checkpoint, in milliseconds.
pub const DEADLINE_MS_DEFAULT: u64 = 10 * 60 * 1000;
/// The shortest and the longest time for a checkpoint, in milliseconds.
pub const DEADLINE_MS: (u64, u64) = (1_000, 24 * 60 * 60 * 1000);

/// The checkpoint settings of a submission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointPolicy {
    /// The signal that requests a checkpoint (for [`CheckpointMethod::Signal`]), and its receivers.
    pub signal: CheckpointSignal,
    /// How a checkpoint is requested.
    #[serde(default, skip_serializing_if = "CheckpointMethod::is_signal")]
    pub method: CheckpointMethod,
    /// For [`CheckpointMethod::Call`]: the work's port on 127.0.0.1 of its node, where its agent calls it;
    /// `None`: the work calls its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<NonZeroU16>,
    /// When checkpoints are requested automatically, besides the one before the walltime ends;
    /// `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic: Option<Automatic>,
}

impl CheckpointPolicy {
    /// Checkpoints are requested by this signal.
    pub fn by_signal(signal: CheckpointSignal) -> Self {
        Self { signal, ..Self::default() }
    }

    /// Checkpoints are requested in another way.
    pub fn by(method: CheckpointMethod) -> Self {
        Self { method, ..Self::default() }
    }
}

/// How work is asked to save itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckpointMethod {
    /// By a signal; the work answers with a file.
    #[default]
    Signal,
    /// By a memory page shared between the work and its node's agent; the work answers there as
    /// well.
    SharedMemory,
    /// By a call. Either the work calls its node's agent and waits: the reply is the request, and
    /// the work reports by further calls. Or the work listens on a port: the agent calls it, and
    /// the reply is the report.
    Call,
}

impl CheckpointMethod {
    /// All ways.
    pub const ALL: [Self; 3] = [Self::Signal, Self::SharedMemory, Self::Call];

    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::SharedMemory => "shmem",
            Self::Call => "grpc",
        }
    }

    /// Whether this is `Signal`, the one way that every version with checkpoints supports.
    pub fn is_signal(&self) -> bool {
        *self == Self::Signal
    }
}

/// When checkpoints are requested automatically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Automatic {
    /// When the expected benefit exceeds the cost.
    CostBased,
    /// This many seconds after the latest checkpoint, or after the start.
    Every { seconds: u64 },
}

/// The shortest and the longest [`Automatic::Every`], in seconds.
pub const EVERY_SECONDS: (u64, u64) = (1, 30 * 24 * 3600);

/// How long before the end of its walltime work is asked to save itself, in milliseconds. If its
/// latest checkpoint took `took_ms`: twice that, plus ten seconds for variation between
/// checkpoints, but at most half of the walltime. If unknown: five minutes, but at most a tenth of
/// the walltime.
pub fn walltime_lead_ms(walltime_ms: u64, took_ms: Option<u64>) -> u64 {
    match took_ms {
        Some(took_ms) => took_ms.saturating_mul(2).saturating_add(WALLTIME_LEAD_MS_SPARE).min(walltime_ms / 2),
        None => WALLTIME_LEAD_MS_DEFAULT.min(walltime_ms / 10),
    }
}

/// Used for work that has not saved itself yet.
const WALLTIME_LEAD_MS_DEFAULT: u64 = 5 * 60 * 1000;
/// Added to the estimate.
const WALLTIME_LEAD_MS_SPARE: u64 = 10_000;

/// The checkpoint from which an allocation starts when it next runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRef {
    /// Its id.
    pub id: CheckpointId,
    /// The epoch under which it was made.
    pub epoch: Epoch,
    /// The step reported by the application, if any.
    pub step: Option<u64>,
    /// Total size of its files over all nodes, in bytes.
    pub bytes: u64,
}

/// A signal that requests a checkpoint, and its receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub struct CheckpointSignal {
    number: u8,
    to: SignalTo,
}

/// Which processes of an allocation's work on a node receive the signal; only processes that catch
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalTo {
    /// All processes.
    #[default]
    All,
    /// The process groups that the agent created: the script's, and each rank's. Not processes that
    /// left them, such as daemons.
    Group,
    /// Each rank itself, but no process that a rank started; if not every rank catches the signal,
    /// none receives it. If no rank is alive: the script.
    Ranks,
}

impl SignalTo {
    /// All values.
    pub const ALL: [Self; 3] = [Self::All, Self::Group, Self::Ranks];

    /// The prefix that users write before the signal.
    fn prefix(self) -> &'static str {
        match self {
            Self::All => "",
            Self::Group => "group:",
            Self::Ranks => "ranks:",
        }
    }
}

/// The stored form. The original signals keep their original form, so that every member and agent
/// that knows checkpoints can read them.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Written {
    Usr1,
    Usr2,
    Hup,
    Int,
    Alrm,
    Term,
    Other { number: u8, to: SignalTo },
}

impl From<CheckpointSignal> for Written {
    fn from(signal: CheckpointSignal) -> Self {
        match signal {
            CheckpointSignal::USR1 => Self::Usr1,
            CheckpointSignal::USR2 => Self::Usr2,
            CheckpointSignal::HUP => Self::Hup,
            CheckpointSignal::INT => Self::Int,
            CheckpointSignal::ALRM => Self::Alrm,
            CheckpointSignal::TERM => Self::Term,
            CheckpointSignal { number, to } => Self::Other { number, to },
        }
    }
}

impl TryFrom<Written> for CheckpointSignal {
    type Error = NoSuchSignal;

    fn try_from(written: Written) -> Result<Self, NoSuchSignal> {
        match written {
            Written::Usr1 => Ok(Self::USR1),
            Written::Usr2 => Ok(Self::USR2),
            Written::Hup => Ok(Self::HUP),
            Written::Int => Ok(Self::INT),
            Written::Alrm => Ok(Self::ALRM),
            Written::Term => Ok(Self::TERM),
            Written::Other { number, to } => {
                Self::of_number(number).map(|signal| signal.to(to)).ok_or_else(|| NoSuchSignal(number.to_string()))
            }
        }
    }
}

/// The named signals that can be caught, with their numbers, which are the same on every
/// architecture that agents run on.
const NAMES: [(u8, &str); 29] = [
    (1, "HUP"),
    (2, "INT"),
    (3, "QUIT"),
    (4, "ILL"),
    (5, "TRAP"),
    (6, "ABRT"),
    (7, "BUS"),
    (8, "FPE"),
    (10, "USR1"),
    (11, "SEGV"),
    (12, "USR2"),
    (13, "PIPE"),
    (14, "ALRM"),
    (15, "TERM"),
    (16, "STKFLT"),
    (17, "CHLD"),
    (18, "CONT"),
    (20, "TSTP"),
    (21, "TTIN"),
    (22, "TTOU"),
    (23, "URG"),
    (24, "XCPU"),
    (25, "XFSZ"),
    (26, "VTALRM"),
    (27, "PROF"),
    (28, "WINCH"),
    (29, "IO"),
    (30, "PWR"),
    (31, "SYS"),
];
/// The first and the last real-time signal for programs: the C library reserves 32 and 33.
const REAL_TIME: (u8, u8) = (34, 64);

impl CheckpointSignal {
    pub const USR1: Self = Self::all(10);
    pub const USR2: Self = Self::all(12);
    pub const HUP: Self = Self::all(1);
    pub const INT: Self = Self::all(2);
    pub const ALRM: Self = Self::all(14);
    /// Work that is being ended receives TERM too; only the checkpoint request file tells the two
    /// cases apart.
    pub const TERM: Self = Self::all(15);

    const fn all(number: u8) -> Self {
        Self { number, to: SignalTo::All }
    }

    /// This signal to all processes; `None`: it cannot be caught, or the C library reserves it.
    pub fn of_number(number: u8) -> Option<Self> {
        let (first, last) = REAL_TIME;
        let named = NAMES.iter().any(|(of, _)| *of == number);
        (named || (first..=last).contains(&number)).then_some(Self::all(number))
    }

    /// The same signal to other receivers.
    pub fn to(self, to: SignalTo) -> Self {
        Self { to, ..self }
    }

    /// Its number on every architecture that agents run on.
    pub fn number(self) -> i32 {
        self.number.into()
    }

    /// Its receivers.
    pub fn whom(self) -> SignalTo {
        self.to
    }

    /// The usual name.
    pub fn name(self) -> String {
        let named = NAMES.iter().find(|(number, _)| *number == self.number).map(|(_, name)| format!("SIG{name}"));
        named.unwrap_or_else(|| match self.number.saturating_sub(REAL_TIME.0) {
            0 => "SIGRTMIN".to_owned(),
            above => format!("SIGRTMIN+{above}"),
        })
    }
}

impl Default for CheckpointSignal {
    fn default() -> Self {
        Self::USR1
    }
}

/// The form that users write.
impl fmt::Display for CheckpointSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}{}", self.to.prefix(), self.name()))
    }
}

/// This signal cannot request a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not a signal that can request a checkpoint: give one that a program can catch, such as SIGUSR2, TERM, RTMIN+3 or 37, after `group:` or \
     `ranks:` if not all processes shall receive it"
)]
pub struct NoSuchSignal(pub String);

impl FromStr for CheckpointSignal {
    type Err = NoSuchSignal;

    /// `[group:|ranks:]SIGNAL`, where SIGNAL is a name, with or without `SIG`, in any case, or a
    /// number.
    fn from_str(text: &str) -> Result<Self, NoSuchSignal> {
        let upper = text.to_ascii_uppercase();
        let (to, signal) = match upper.split_once(':') {
            None => (SignalTo::All, upper.as_str()),
            Some(("GROUP", signal)) => (SignalTo::Group, signal),
            Some(("RANKS", signal)) => (SignalTo::Ranks, signal),
            Some(_) => (SignalTo::All, ""),
        };
        let found = number_of(signal).and_then(Self::of_number).map(|signal| signal.to(to));
        found.ok_or_else(|| NoSuchSignal(text.chars().take(40).collect()))
    }
}

/// The number of a signal given by name in upper case or by number.
pub(crate) fn number_of(text: &str) -> Option<u8> {
    let digits = |text: &str| if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse::<u8>().ok() } else { None };
    if let Some(number) = digits(text) {
        return Some(number);
    }
    let plain = text.strip_prefix("SIG").unwrap_or(text);
    let (first, last) = REAL_TIME;
    let real_time = match (plain.strip_prefix("RTMIN"), plain.strip_prefix("RTMAX")) {
        (Some(""), _) => Some(first),
        (_, Some("")) => Some(last),
        (Some(above), _) => above.strip_prefix('+').and_then(digits).and_then(|above| first.checked_add(above)),
        (_, Some(below)) => below.strip_prefix('-').and_then(digits).and_then(|below| last.checked_sub(below)),
        (None, None) => return NAMES.iter().find(|(_, name)| *name == plain).map(|(number, _)| *number),
    };
    real_time.filter(|number| (first..=last).contains(number))
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

    /// All valid signals.
    fn signals() -> impl Iterator<Item = CheckpointSignal> {
        (0..=u8::MAX).filter_map(CheckpointSignal::of_number)
    }

    #[test]
    fn every_signal_that_a_program_can_catch_is_read_as_it_is_written() {
        // 1 to 31 except KILL and STOP, and 34 to 64.
        assert_eq!(signals().count(), 29 + 31);
        for signal in signals() {
            for to in SignalTo::ALL {
                let signal = signal.to(to);
                assert_eq!(signal.to_string().parse(), Ok(signal));
                assert_eq!(signal.to_string().to_lowercase().replacen("sig", "", 1).parse(), Ok(signal));
                assert_eq!(format!("{}{}", to.prefix(), signal.number()).parse(), Ok(signal));
            }
        }
        for (text, number) in [("USR1", 10), ("rtmin", 34), ("SIGRTMIN+3", 37), ("RTMAX", 64), ("rtmax-14", 50), ("WINCH", 28)] {
            assert_eq!(text.parse::<CheckpointSignal>().unwrap().number(), number, "{text}");
        }
        assert_eq!("ranks:usr2".parse(), Ok(CheckpointSignal::USR2.to(SignalTo::Ranks)));
    }

    #[test]
    fn uncatchable_and_unknown_signals_are_refused() {
        let bad = [
            "",
            "SIG",
            "KILL",
            "SIGSTOP",
            "9",
            "19",
            "0",
            "32",
            "33",
            "65",
            "256",
            "-1",
            "+10",
            "1O",
            "RTMIN+31",
            "RTMIN-1",
            "RTMAX-31",
            "RTMIN+",
            "RTMIN++1",
            "RTMIN+999",
            "SIGSIGUSR1",
            "CLD",
            "all:USR1",
            "ranks:",
            "ranks:KILL",
            "ranks:group:USR1",
            "USR1:ranks",
            "rank:USR1",
        ];
        for text in bad {
            assert_eq!(text.parse::<CheckpointSignal>(), Err(NoSuchSignal(text.to_owned())));
        }
        let long = "x".repeat(1000).parse::<CheckpointSignal>().unwrap_err();
        assert!(long.to_string().len() < 300);
    }
}
