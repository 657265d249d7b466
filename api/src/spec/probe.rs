//! Liveness probes.

use super::Duration;
use crate::v1;
use lattice_model::SpecError;
use lattice_model::probe::{FAILURES_DEFAULT, INITIAL_DELAY_SECONDS_DEFAULT, PERIOD_SECONDS_DEFAULT, TIMEOUT_SECONDS_DEFAULT};
use lattice_model::{LivenessProbe, ProbeCheck};

pub(super) fn to_model(probe: &v1::LivenessProbe) -> Result<LivenessProbe, SpecError> {
    let invalid = |why: String| SpecError::Invalid { field: "liveness-probe", why };
    let v1::LivenessProbe { probe_type, port, path, period_secs, initial_delay_secs, failure_threshold, timeout_secs } = probe;
    let check = match probe_type.as_str() {
        "tcp" if path.is_empty() => ProbeCheck::Tcp,
        "tcp" => return Err(invalid("a TCP probe has no path: leave it out, or use http".to_owned())),
        "http" => ProbeCheck::Http { path: if path.is_empty() { "/".to_owned() } else { path.clone() } },
        other => {
            let shown: String = other.chars().take(40).collect();
            return Err(invalid(format!("unknown kind of probe {shown:?}: use tcp or http")));
        }
    };
    let port = u16::try_from(*port).map_err(|_| invalid(format!("{port} is not a port: use 1 to 65535")))?;
    let seconds = |given: u32, default: u32| Duration::from_secs(if given == 0 { default } else { given }.into());
    Ok(LivenessProbe {
        check,
        port,
        initial_delay: Duration::from_secs(initial_delay_secs.unwrap_or(INITIAL_DELAY_SECONDS_DEFAULT).into()),
        period: seconds(*period_secs, PERIOD_SECONDS_DEFAULT),
        timeout: seconds(*timeout_secs, TIMEOUT_SECONDS_DEFAULT),
        failures_max: if *failure_threshold == 0 { FAILURES_DEFAULT } else { *failure_threshold },
    })
}

pub(super) fn from_model(probe: &LivenessProbe) -> v1::LivenessProbe {
    let seconds = |d: Duration| u32::try_from(d.as_secs()).unwrap_or(u32::MAX);
    let (probe_type, path) = match &probe.check {
        ProbeCheck::Tcp => ("tcp", String::new()),
        ProbeCheck::Http { path } => ("http", path.clone()),
    };
    v1::LivenessProbe {
        probe_type: probe_type.to_owned(),
        port: probe.port.into(),
        path,
        period_secs: seconds(probe.period),
        initial_delay_secs: Some(seconds(probe.initial_delay)),
        failure_threshold: probe.failures_max,
        timeout_secs: seconds(probe.timeout),
    }
}
