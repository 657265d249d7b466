//! Scaled services.

use crate::v1;
use lattice_model::checkpoint::{CheckpointSignal, NoSuchSignal, SignalTo};
use lattice_model::scaling::{Amount, Drain, NoAmount, NoSuchMetric, ScalePolicy, Scaling};
use lattice_model::{AllocationSpec, SpecError};

/// How a service scales, with defaults for what is not set.
///
/// # Errors
/// A metric, number or signal has a wrong syntax. Ranges are checked with the whole specification.
pub fn scaling_request(scaling: &v1::Scaling) -> Result<Scaling, SpecError> {
    let v1::Scaling { replicas_min, replicas_max, policy, drain } = scaling;
    Ok(Scaling {
        replicas_min: *replicas_min,
        replicas_max: *replicas_max,
        policy: policy.as_ref().map(policy_to_model).transpose()?,
        drain: drain.as_ref().map_or_else(|| Ok(Drain::default()), drain_to_model)?,
    })
}

fn policy_to_model(policy: &v1::ScalePolicy) -> Result<ScalePolicy, SpecError> {
    let v1::ScalePolicy { metric, target, interval_ms, up_window_ms, down_window_ms, down_threshold, cooldown_ms } = policy;
    let metric = metric.parse().map_err(|error: NoSuchMetric| invalid("scale-metric", error.to_string()))?;
    let usual = ScalePolicy::new(metric, amount("scale-target", target)?);
    let or = |given: u64, usual: u64| if given == 0 { usual } else { given };
    Ok(ScalePolicy {
        interval_ms: or(*interval_ms, usual.interval_ms),
        up_window_ms: or(*up_window_ms, usual.up_window_ms),
        down_window_ms: or(*down_window_ms, usual.down_window_ms),
        down_threshold: match down_threshold.as_str() {
            "" => usual.down_threshold,
            given => amount("scale-down-threshold", given)?,
        },
        cooldown_ms: or(*cooldown_ms, usual.cooldown_ms),
        ..usual
    })
}

fn amount(field: &'static str, text: &str) -> Result<Amount, SpecError> {
    text.parse().map_err(|error: NoAmount| invalid(field, error.to_string()))
}

fn drain_to_model(drain: &v1::Drain) -> Result<Drain, SpecError> {
    let v1::Drain { signal, grace_ms } = drain;
    let usual = Drain::default();
    Ok(Drain { signal: if signal.is_empty() { None } else { Some(signal_number(signal)?) }, grace_ms: grace_ms.unwrap_or(usual.grace_ms) })
}

/// A signal that a program can catch: it is asked to leave, and not stopped or killed.
fn signal_number(text: &str) -> Result<u8, SpecError> {
    let refuse = || {
        let given: String = text.chars().take(40).collect();
        invalid("drain-signal", format!("{given:?} is no signal that a program can catch, such as USR1, TERM or RTMIN+3"))
    };
    let signal: CheckpointSignal = text.parse().map_err(|_: NoSuchSignal| refuse())?;
    // `group:` and `ranks:` are for checkpoints.
    if signal.whom() != SignalTo::All {
        return Err(refuse());
    }
    u8::try_from(signal.number()).map_err(|_| refuse())
}

fn invalid(field: &'static str, why: String) -> SpecError {
    SpecError::Invalid { field, why }
}

/// Not a rule of the model: one node may be named there.
pub(super) fn check(model: &AllocationSpec) -> Result<(), SpecError> {
    if model.scaling.is_some() && !model.constraints.nodes.is_empty() {
        return Err(invalid("nodelist", "each replica is on another node: leave the list out, and use --constraint".to_owned()));
    }
    Ok(())
}

/// Encodes how a service scales.
pub(crate) fn from_model(scaling: &Scaling) -> v1::Scaling {
    let Scaling { replicas_min, replicas_max, policy, drain } = scaling;
    let signal_name = |number: u8| CheckpointSignal::of_number(number).map_or_else(|| number.to_string(), CheckpointSignal::name);
    v1::Scaling {
        replicas_min: *replicas_min,
        replicas_max: *replicas_max,
        policy: policy.as_ref().map(|policy| v1::ScalePolicy {
            metric: policy.metric.to_string(),
            target: policy.target.to_string(),
            interval_ms: policy.interval_ms,
            up_window_ms: policy.up_window_ms,
            down_window_ms: policy.down_window_ms,
            down_threshold: policy.down_threshold.to_string(),
            cooldown_ms: policy.cooldown_ms,
        }),
        drain: Some(v1::Drain { signal: drain.signal.map(signal_name).unwrap_or_default(), grace_ms: Some(drain.grace_ms) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::ScaleMetric;

    fn field(result: Result<Scaling, SpecError>) -> &'static str {
        match result {
            Err(SpecError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    fn given() -> v1::Scaling {
        let policy = v1::ScalePolicy { metric: "cpu_utilization".into(), target: "0.8".into(), ..Default::default() };
        v1::Scaling { replicas_min: 2, replicas_max: 6, policy: Some(policy), drain: None }
    }

    #[test]
    fn what_is_not_set_has_the_documented_default() {
        let scaling = scaling_request(&given()).unwrap();
        let policy = ScalePolicy::new(ScaleMetric::CpuUtilization, Amount(800_000));
        let wanted = Scaling { replicas_min: 2, replicas_max: 6, policy: Some(policy), drain: Drain { signal: None, grace_ms: 30_000 } };
        assert_eq!(scaling, wanted);
        let at_once = v1::Scaling { policy: None, drain: Some(v1::Drain { signal: "usr1".into(), grace_ms: Some(0) }), ..given() };
        let scaling = scaling_request(&at_once).unwrap();
        assert_eq!((scaling.policy.clone(), scaling.drain), (None, Drain { signal: Some(10), grace_ms: 0 }));
        assert_eq!(from_model(&scaling).drain, Some(v1::Drain { signal: "SIGUSR1".into(), grace_ms: Some(0) }));
    }

    #[test]
    fn a_wrong_text_is_refused_under_the_name_of_its_option() {
        let with = |change: fn(&mut v1::ScalePolicy)| {
            let mut scaling = given();
            change(scaling.policy.as_mut().unwrap());
            field(scaling_request(&scaling))
        };
        assert_eq!(with(|p| p.metric = "sum(q)".into()), "scale-metric");
        assert_eq!(with(|p| p.target = "100ms".into()), "scale-target");
        assert_eq!(with(|p| p.target = String::new()), "scale-target");
        assert_eq!(with(|p| p.down_threshold = "-1".into()), "scale-down-threshold");
        for signal in ["KILL", "STOP", "0", "ranks:USR1", "soon", "65"] {
            let drain = Some(v1::Drain { signal: signal.into(), grace_ms: None });
            assert_eq!(field(scaling_request(&v1::Scaling { drain, ..given() })), "drain-signal", "{signal}");
        }
    }
}
