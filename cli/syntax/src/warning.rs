//! `--signal [B:]SIGNAL[@SECONDS]`: a signal before the walltime ends.

use lattice_api::v1;
use lattice_model::signal::{UnknownSignal, WorkSignal};
use std::str::FromStr;
use thiserror::Error;

/// `--signal`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndWarning {
    /// The signal.
    pub signal: WorkSignal,
    /// How many seconds before the end of the walltime; `None`: as many as the server chooses.
    pub before_seconds: Option<u64>,
    /// Whether only the script gets it.
    pub script_only: bool,
}

/// Why the text is not a signal before the end of the walltime.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndWarningError {
    #[error(transparent)]
    Signal(#[from] UnknownSignal),
    #[error("{0:?} is not a number of seconds from 1 on, as in USR1@120")]
    Seconds(String),
    #[error("R: is for reservations, which do not overlap here: leave it out")]
    Reservation,
    #[error("{0}: is not B:, which sends the signal to the script alone")]
    Whom(String),
}

impl FromStr for EndWarning {
    type Err = EndWarningError;

    fn from_str(text: &str) -> Result<Self, EndWarningError> {
        let (whom, rest) = text.split_once(':').map_or((None, text), |(whom, rest)| (Some(whom), rest));
        let script_only = match whom {
            None => false,
            Some("B" | "b") => true,
            Some(whom) if whom.contains(['R', 'r']) => return Err(EndWarningError::Reservation),
            Some(whom) => return Err(EndWarningError::Whom(whom.chars().take(40).collect())),
        };
        let (signal, seconds) = rest.split_once('@').map_or((rest, None), |(signal, seconds)| (signal, Some(seconds)));
        let number = |text: &str| text.parse::<u64>().ok().filter(|seconds| *seconds > 0);
        let before = |text: &str| number(text).ok_or_else(|| EndWarningError::Seconds(text.chars().take(40).collect()));
        Ok(Self { signal: signal.parse()?, before_seconds: seconds.map(before).transpose()?, script_only })
    }
}

impl EndWarning {
    /// The signal as a message of the specification.
    pub fn to_message(&self) -> v1::EndWarning {
        let before_seconds = self.before_seconds.unwrap_or_default();
        v1::EndWarning { signal: self.signal.to_string(), before_seconds, script_only: self.script_only }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_receiver_and_a_time() {
        let read = |text: &str| {
            let warning = text.parse::<EndWarning>().map_err(|error| error.to_string())?.to_message();
            Ok::<_, String>((warning.signal, warning.before_seconds, warning.script_only))
        };
        assert_eq!(read("USR1"), Ok(("SIGUSR1".to_owned(), 0, false)));
        assert_eq!(read("B:USR1@120"), Ok(("SIGUSR1".to_owned(), 120, true)));
        assert_eq!(read("10@5"), Ok(("SIGUSR1".to_owned(), 5, false)));
        let refused = |text: &str| read(text).unwrap_err();
        assert_eq!(refused("R:USR1@5"), "R: is for reservations, which do not overlap here: leave it out");
        assert_eq!(refused("RB:USR1"), "R: is for reservations, which do not overlap here: leave it out");
        assert_eq!(refused("X:USR1"), "X: is not B:, which sends the signal to the script alone");
        for seconds in ["", "0", "-1", "1m"] {
            assert_eq!(refused(&format!("USR1@{seconds}")), format!("{seconds:?} is not a number of seconds from 1 on, as in USR1@120"));
        }
        assert!(refused("FOO@5").starts_with("\"FOO\" is not a signal"));
    }
}
