//! How work is asked to save itself.

use crate::v1;
use lattice_model::spec::SpecError;
use lattice_model::{AskSignal, CheckpointPolicy};

/// Ways of the documents that are not built yet.
const LATER: [(&str, &str); 4] =
    [("auto", "--checkpoint=auto"), ("manual", "--checkpoint=manual"), ("grpc", "--checkpoint=grpc"), ("shmem", "--checkpoint=shmem")];

/// `signal`; `none` and nothing said are the same.
pub(super) fn to_model(given: Option<&v1::Checkpoint>) -> Result<Option<CheckpointPolicy>, SpecError> {
    let Some(v1::Checkpoint { strategy, port, signal }) = given else { return Ok(None) };
    let invalid = |why: String| SpecError::Invalid { field: "checkpoint", why };
    if let Some((_, field)) = LATER.iter().find(|(name, _)| name == strategy) {
        return Err(SpecError::NotBuilt { field });
    }
    match strategy.as_str() {
        "signal" if *port != 0 => Err(invalid("a port is for grpc".to_owned())),
        "signal" if signal.is_empty() => Ok(Some(CheckpointPolicy { signal: AskSignal::default() })),
        "signal" => Ok(Some(CheckpointPolicy {
            signal: signal.parse().map_err(|e: lattice_model::checkpoint::NoSuchSignal| invalid(e.to_string()))?,
        })),
        "none" if signal.is_empty() && *port == 0 => Ok(None),
        "none" | "" => Err(invalid("a signal or a port is for --checkpoint=signal or grpc".to_owned())),
        other => {
            let other: String = other.chars().take(40).collect();
            Err(invalid(format!("{other:?} is none of signal, none")))
        }
    }
}

pub(super) fn from_model(policy: Option<&CheckpointPolicy>) -> Option<v1::Checkpoint> {
    policy.map(|policy| v1::Checkpoint { strategy: "signal".to_owned(), port: 0, signal: policy.signal.name().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(strategy: &str, signal: &str) -> Result<Option<CheckpointPolicy>, SpecError> {
        to_model(Some(&v1::Checkpoint { strategy: strategy.to_owned(), port: 0, signal: signal.to_owned() }))
    }

    #[test]
    fn only_what_is_built_is_taken() {
        assert_eq!(of("signal", ""), Ok(Some(CheckpointPolicy { signal: AskSignal::Usr1 })));
        assert_eq!(of("signal", "sigusr2"), Ok(Some(CheckpointPolicy { signal: AskSignal::Usr2 })));
        assert_eq!((to_model(None), of("none", "")), (Ok(None), Ok(None)));
        for strategy in ["auto", "manual", "grpc", "shmem"] {
            assert!(matches!(of(strategy, ""), Err(SpecError::NotBuilt { field }) if field.ends_with(strategy)));
        }
        for (strategy, signal) in [("signal", "SIGKILL"), ("none", "SIGUSR1"), ("", ""), ("sometimes", "")] {
            assert!(matches!(of(strategy, signal), Err(SpecError::Invalid { field: "checkpoint", .. })), "{strategy} {signal}");
        }
    }
}
