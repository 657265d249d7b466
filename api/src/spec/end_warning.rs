//! A signal some time before the walltime ends.

use crate::v1;
use lattice_model::end_warning::BEFORE_DEFAULT;
use lattice_model::signal::{UnknownSignal, WorkSignal};
use lattice_model::{EndWarning, SpecError};
use std::time::Duration;

/// Decodes it; the model checks it against the walltime.
pub(super) fn to_model(warning: &v1::EndWarning) -> Result<EndWarning, SpecError> {
    let v1::EndWarning { signal, before_seconds, script_only } = warning;
    let unknown = |unknown: UnknownSignal| SpecError::Invalid { field: "signal", why: unknown.to_string() };
    let signal: WorkSignal = signal.parse().map_err(unknown)?;
    let before = if *before_seconds == 0 { BEFORE_DEFAULT } else { Duration::from_secs(*before_seconds) };
    Ok(EndWarning { signal: signal.number().into(), before, script_only: *script_only })
}

/// Encodes it.
pub(super) fn from_model(warning: &EndWarning) -> v1::EndWarning {
    let EndWarning { signal, before, script_only } = warning;
    let name = signal.to_string().parse::<WorkSignal>().map_or_else(|_| signal.to_string(), |signal| signal.to_string());
    v1::EndWarning { signal: name, before_seconds: before.as_secs(), script_only: *script_only }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_a_name_or_a_number_and_a_usual_time() {
        let read = |signal: &str, before_seconds| {
            to_model(&v1::EndWarning { signal: signal.to_owned(), before_seconds, script_only: true })
                .map(|warning| (warning.signal, warning.before.as_secs(), warning.script_only))
        };
        assert_eq!(read("USR1", 0), Ok((10, 60, true)));
        assert_eq!(read("10", 90), Ok((10, 90, true)));
        assert_eq!(read("sigkill", 1), Ok((9, 1, true)));
        assert!(matches!(read("FOO", 1), Err(SpecError::Invalid { field: "signal", .. })));
    }

    #[test]
    fn what_is_encoded_is_decoded_again() {
        for signal in [1, 9, 10, 19, 37, 64] {
            let warning = EndWarning { signal, before: Duration::from_secs(120), script_only: false };
            assert_eq!(to_model(&from_model(&warning)), Ok(warning), "{signal}");
        }
    }
}
