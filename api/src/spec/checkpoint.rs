//! How work is asked to save itself.

use crate::v1;
use lattice_model::spec::SpecError;
use lattice_model::{AskBy, CheckpointPolicy};

/// Ways of the documents that are not built yet.
const LATER: [(&str, &str); 2] = [("auto", "--checkpoint=auto"), ("manual", "--checkpoint=manual")];

/// `signal`, `shmem`, `grpc`; `none` and nothing said are the same.
pub(super) fn to_model(given: Option<&v1::Checkpoint>) -> Result<Option<CheckpointPolicy>, SpecError> {
    let Some(v1::Checkpoint { strategy, port, signal }) = given else { return Ok(None) };
    let invalid = |why: String| SpecError::Invalid { field: "checkpoint", why };
    if let Some((_, field)) = LATER.iter().find(|(name, _)| name == strategy) {
        return Err(SpecError::NotBuilt { field });
    }
    match strategy.as_str() {
        "signal" | "shmem" if *port != 0 => Err(invalid("a port is for grpc".to_owned())),
        "signal" if signal.is_empty() => Ok(Some(CheckpointPolicy::default())),
        "signal" => {
            let signal = signal.parse().map_err(|e: lattice_model::checkpoint::NoSuchSignal| invalid(e.to_string()))?;
            Ok(Some(CheckpointPolicy::by_signal(signal)))
        }
        "shmem" | "grpc" if !signal.is_empty() => Err(invalid(format!("a signal is for --checkpoint=signal, not {strategy}"))),
        "shmem" => Ok(Some(CheckpointPolicy::by(AskBy::SharedMemory))),
        // The application calls, on its agent's socket: nothing says how it would be called on a port of its own.
        "grpc" if *port != 0 => Err(SpecError::NotBuilt { field: "--checkpoint-port" }),
        "grpc" => Ok(Some(CheckpointPolicy::by(AskBy::Call))),
        "none" if signal.is_empty() && *port == 0 => Ok(None),
        "none" | "" => Err(invalid("a signal is for --checkpoint=signal, a port for --checkpoint=grpc".to_owned())),
        other => {
            let other: String = other.chars().take(40).collect();
            Err(invalid(format!("{other:?} is none of signal, shmem, grpc, none")))
        }
    }
}

pub(super) fn from_model(policy: Option<&CheckpointPolicy>) -> Option<v1::Checkpoint> {
    policy.map(|policy| {
        let signal = if policy.by.is_signal() { policy.signal.name().to_owned() } else { String::new() };
        v1::Checkpoint { strategy: policy.by.name().to_owned(), port: 0, signal }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::AskSignal;

    fn of(strategy: &str, signal: &str) -> Result<Option<CheckpointPolicy>, SpecError> {
        to_model(Some(&v1::Checkpoint { strategy: strategy.to_owned(), port: 0, signal: signal.to_owned() }))
    }

    #[test]
    fn only_what_is_built_is_taken() {
        assert_eq!(of("signal", ""), Ok(Some(CheckpointPolicy::by_signal(AskSignal::Usr1))));
        assert_eq!(of("signal", "sigusr2"), Ok(Some(CheckpointPolicy::by_signal(AskSignal::Usr2))));
        assert_eq!((to_model(None), of("none", "")), (Ok(None), Ok(None)));
        for by in [AskBy::SharedMemory, AskBy::Call] {
            assert_eq!(of(by.name(), ""), Ok(Some(CheckpointPolicy::by(by))));
            assert!(matches!(of(by.name(), "SIGUSR1"), Err(SpecError::Invalid { field: "checkpoint", .. })));
        }
        let at_a_port = v1::Checkpoint { strategy: "grpc".to_owned(), port: 9999, signal: String::new() };
        assert_eq!(to_model(Some(&at_a_port)), Err(SpecError::NotBuilt { field: "--checkpoint-port" }));
        for strategy in ["auto", "manual"] {
            assert!(matches!(of(strategy, ""), Err(SpecError::NotBuilt { field }) if field.ends_with(strategy)));
        }
        for (strategy, signal) in [("signal", "SIGKILL"), ("none", "SIGUSR1"), ("", ""), ("sometimes", "")] {
            assert!(matches!(of(strategy, signal), Err(SpecError::Invalid { field: "checkpoint", .. })), "{strategy} {signal}");
        }
    }
}
