//! The checkpoint settings.

use crate::v1;
use lattice_model::SpecError;
use lattice_model::checkpoint::EVERY_SECONDS;
use lattice_model::{Automatic, CheckpointMethod, CheckpointPolicy};
use std::num::NonZeroU16;

/// Documented strategies that are not implemented yet.
const LATER: [(&str, &str); 2] = [("manual", "--checkpoint=manual"), ("dmtcp", "--checkpoint=dmtcp")];

/// `signal`, `shmem`, `grpc`, or `auto`, which uses a signal. Without the message, and with `none`,
/// there are no checkpoints; an empty strategy is refused.
pub(super) fn to_model(given: Option<&v1::Checkpoint>) -> Result<Option<CheckpointPolicy>, SpecError> {
    let Some(v1::Checkpoint { strategy, port, signal, auto, every_ms }) = given else { return Ok(None) };
    if let Some((_, field)) = LATER.iter().find(|(name, _)| name == strategy) {
        return Err(SpecError::NotBuilt { field });
    }
    // With `every_ms`, "auto" means that interval. A client sends "auto" then, so that an agent that
    // does not know intervals refuses it.
    let automatic = automatic(*auto || (strategy == "auto" && *every_ms == 0), *every_ms)?;
    match strategy.as_str() {
        "signal" | "auto" | "shmem" if *port != 0 => Err(invalid("a port is only for --checkpoint=grpc".to_owned())),
        "signal" | "auto" if signal.is_empty() => Ok(Some(CheckpointPolicy { automatic, ..CheckpointPolicy::default() })),
        "signal" | "auto" => {
            let signal = signal.parse().map_err(|e: lattice_model::checkpoint::NoSuchSignal| invalid(e.to_string()))?;
            Ok(Some(CheckpointPolicy { automatic, ..CheckpointPolicy::by_signal(signal) }))
        }
        "shmem" | "grpc" if !signal.is_empty() => Err(invalid(format!("a signal is only for --checkpoint=signal, not {strategy}"))),
        "shmem" => Ok(Some(CheckpointPolicy { automatic, ..CheckpointPolicy::by(CheckpointMethod::SharedMemory) })),
        "grpc" => {
            let port = u16::try_from(*port).map_err(|_| invalid(format!("{port} is not a port: use 1 to 65535")))?;
            let port = NonZeroU16::new(port);
            Ok(Some(CheckpointPolicy { automatic, port, ..CheckpointPolicy::by(CheckpointMethod::Call) }))
        }
        "none" | "" if automatic.is_some() => Err(invalid("automatic checkpoints need a strategy, such as --checkpoint=signal".to_owned())),
        "" => Err(invalid("no strategy is given: signal, shmem, grpc, auto or none".to_owned())),
        "none" if signal.is_empty() && *port == 0 => Ok(None),
        "none" => Err(invalid("a signal is only for --checkpoint=signal, a port only for --checkpoint=grpc".to_owned())),
        other => {
            let other: String = other.chars().take(40).collect();
            Err(invalid(format!("{other:?} is not one of signal, shmem, grpc, auto, none")))
        }
    }
}

fn invalid(why: String) -> SpecError {
    SpecError::Invalid { field: "checkpoint", why }
}

/// When checkpoints are requested automatically.
fn automatic(weighed: bool, every_ms: u64) -> Result<Option<Automatic>, SpecError> {
    let (least, most) = EVERY_SECONDS;
    match (weighed, every_ms) {
        (false, 0) => Ok(None),
        (true, 0) => Ok(Some(Automatic::CostBased)),
        (true, _) => Err(invalid("checkpoints are requested when worthwhile (auto) or at an interval, not both".to_owned())),
        (false, every_ms) if every_ms % 1000 == 0 && (least..=most).contains(&(every_ms / 1000)) => {
            Ok(Some(Automatic::Every { seconds: every_ms / 1000 }))
        }
        (false, every_ms) => Err(invalid(format!("an interval of {every_ms} ms; it must be whole seconds, from 1 s to 30 days"))),
    }
}

pub(super) fn from_model(policy: Option<&CheckpointPolicy>) -> Option<v1::Checkpoint> {
    policy.map(|policy| {
        let signal = if policy.method.is_signal() { policy.signal.to_string() } else { String::new() };
        let (auto, every_ms) = match policy.automatic {
            None => (false, 0),
            Some(Automatic::CostBased) => (true, 0),
            Some(Automatic::Every { seconds }) => (false, seconds.saturating_mul(1000)),
        };
        v1::Checkpoint {
            strategy: policy.method.name().to_owned(),
            port: policy.port.map_or(0, |port| port.get().into()),
            signal,
            auto,
            every_ms,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{CheckpointSignal, SignalTo};

    fn of(strategy: &str, signal: &str) -> Result<Option<CheckpointPolicy>, SpecError> {
        to_model(Some(&v1::Checkpoint { strategy: strategy.to_owned(), signal: signal.to_owned(), ..Default::default() }))
    }

    #[test]
    fn a_strategy_is_converted_or_refused() {
        assert_eq!(of("signal", ""), Ok(Some(CheckpointPolicy::by_signal(CheckpointSignal::USR1))));
        assert_eq!(of("signal", "sigusr2"), Ok(Some(CheckpointPolicy::by_signal(CheckpointSignal::USR2))));
        let some = CheckpointSignal::of_number(37).unwrap().to(SignalTo::Ranks);
        assert_eq!(of("signal", "ranks:rtmin+3"), Ok(Some(CheckpointPolicy::by_signal(some))));
        assert_eq!((to_model(None), of("none", "")), (Ok(None), Ok(None)));
        for by in [CheckpointMethod::SharedMemory, CheckpointMethod::Call] {
            assert_eq!(of(by.name(), ""), Ok(Some(CheckpointPolicy::by(by))));
            assert!(matches!(of(by.name(), "SIGUSR1"), Err(SpecError::Invalid { field: "checkpoint", .. })));
            let often = v1::Checkpoint { strategy: by.name().to_owned(), every_ms: 1000, ..Default::default() };
            let every = Some(Automatic::Every { seconds: 1 });
            assert_eq!(to_model(Some(&often)), Ok(Some(CheckpointPolicy { automatic: every, ..CheckpointPolicy::by(by) })));
        }
        let at = |strategy: &str, port: u32| to_model(Some(&v1::Checkpoint { strategy: strategy.to_owned(), port, ..Default::default() }));
        assert_eq!(
            at("grpc", 65_535),
            Ok(Some(CheckpointPolicy { port: Some(NonZeroU16::MAX), ..CheckpointPolicy::by(CheckpointMethod::Call) }))
        );
        for (strategy, port) in
            [("grpc", 65_536), ("grpc", u32::MAX), ("signal", 9999), ("auto", 9999), ("shmem", 9999), ("none", 9999), ("", 9999)]
        {
            assert!(matches!(at(strategy, port), Err(SpecError::Invalid { field: "checkpoint", .. })), "{strategy} {port}");
        }
        assert!(matches!(of("manual", ""), Err(SpecError::NotBuilt { field: "--checkpoint=manual" })));
        assert!(matches!(of("dmtcp", ""), Err(SpecError::NotBuilt { field: "--checkpoint=dmtcp" })));
        for (strategy, signal) in
            [("signal", "SIGKILL"), ("signal", "9"), ("signal", "all:USR1"), ("none", "SIGUSR1"), ("", ""), ("sometimes", "")]
        {
            assert!(matches!(of(strategy, signal), Err(SpecError::Invalid { field: "checkpoint", .. })), "{strategy} {signal}");
        }
    }

    #[test]
    fn automatic_checkpoints_are_weighed_or_at_an_interval() {
        let of = |strategy: &str, auto: bool, every_ms: u64| {
            to_model(Some(&v1::Checkpoint { strategy: strategy.to_owned(), auto, every_ms, ..Default::default() }))
        };
        let automatic = |asked: Result<Option<CheckpointPolicy>, SpecError>| asked.unwrap().unwrap().automatic;
        assert_eq!(automatic(of("auto", false, 0)), Some(Automatic::CostBased));
        assert_eq!(automatic(of("signal", true, 0)), Some(Automatic::CostBased));
        assert_eq!(automatic(of("auto", false, 60_000)), Some(Automatic::Every { seconds: 60 }));
        assert_eq!(automatic(of("signal", false, 60_000)), Some(Automatic::Every { seconds: 60 }));
        assert_eq!(automatic(of("signal", false, 0)), None);
        let refused = [
            ("auto", true, 60_000),
            ("signal", true, 60_000),
            ("signal", false, 1),
            ("signal", false, 1500),
            ("none", true, 0),
            ("signal", false, u64::MAX),
        ];
        for (strategy, auto, every_ms) in refused {
            assert!(matches!(of(strategy, auto, every_ms), Err(SpecError::Invalid { .. })), "{strategy} {auto} {every_ms}");
        }
    }
}
