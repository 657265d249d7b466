//! Signals that users send to their work, by name or number.

use crate::checkpoint::{self, CheckpointSignal};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Signals that no program can catch.
const UNCATCHABLE: [(u8, &str); 2] = [(9, "KILL"), (19, "STOP")];

/// A signal for work: any signal that a program can catch, or KILL or STOP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkSignal(u8);

impl WorkSignal {
    /// Its number on every architecture that agents run on.
    pub fn number(self) -> u8 {
        self.0
    }
}

/// The usual name.
impl fmt::Display for WorkSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uncatchable = UNCATCHABLE.iter().find(|(number, _)| *number == self.0).map(|(_, name)| format!("SIG{name}"));
        let name = uncatchable.or_else(|| CheckpointSignal::of_number(self.0).map(CheckpointSignal::name));
        f.pad(&name.unwrap_or_else(|| self.0.to_string()))
    }
}

/// There is no such signal.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a signal: give its name or number, such as USR1, SIGTERM, STOP, CONT, RTMIN+3 or 10")]
pub struct UnknownSignal(pub String);

impl FromStr for WorkSignal {
    type Err = UnknownSignal;

    /// A name, with or without `SIG`, in any case, or a number.
    fn from_str(text: &str) -> Result<Self, UnknownSignal> {
        let upper = text.to_ascii_uppercase();
        let short = upper.strip_prefix("SIG").unwrap_or(&upper);
        let uncatchable =
            UNCATCHABLE.iter().find(|(number, name)| *name == short || number.to_string() == upper).map(|(number, _)| *number);
        let known = uncatchable.or_else(|| checkpoint::number_of(&upper).filter(|number| CheckpointSignal::of_number(*number).is_some()));
        known.map(Self).ok_or_else(|| UnknownSignal(text.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_read_by_name_and_by_number() {
        let read = |text: &str| text.parse::<WorkSignal>().map(|signal| (signal.number(), signal.to_string())).ok();
        for text in ["USR1", "sigusr1", "10"] {
            assert_eq!(read(text), Some((10, "SIGUSR1".into())), "{text}");
        }
        for text in ["kill", "SIGKILL", "9"] {
            assert_eq!(read(text), Some((9, "SIGKILL".into())), "{text}");
        }
        assert_eq!((read("STOP"), read("CONT")), (Some((19, "SIGSTOP".into())), Some((18, "SIGCONT".into()))));
        assert_eq!(read("RTMIN+3"), Some((37, "SIGRTMIN+3".into())));
        for text in ["", "0", "65", "32", "FOO", "-9", "group:USR1"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
