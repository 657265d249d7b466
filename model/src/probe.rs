//! Liveness probes: how the health of a service is checked.

use crate::spec_error::SpecError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Default number of seconds between two probes.
pub const PERIOD_SECONDS_DEFAULT: u32 = 30;
/// Default number of seconds before the first probe.
pub const INITIAL_DELAY_SECONDS_DEFAULT: u32 = 10;
/// Default timeout of a probe, in seconds.
pub const TIMEOUT_SECONDS_DEFAULT: u32 = 5;
/// Default number of consecutive failures after which the allocation is ended.
pub const FAILURES_DEFAULT: u32 = 3;
/// The longest period and initial delay.
const DAY: Duration = Duration::from_secs(86_400);
/// Longest timeout of a probe.
const TIMEOUT_MAX: Duration = Duration::from_secs(300);
/// Largest accepted number of consecutive failures.
const FAILURES_MAX: u32 = 1000;
/// Largest length of a path, in bytes.
const PATH_BYTES_MAX: usize = 1024;

/// A probe of a port of the node itself (127.0.0.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LivenessProbe {
    /// The kind of check.
    pub check: ProbeCheck,
    /// The port, at least 1.
    pub port: u16,
    /// Time from the beginning of Running to the first probe.
    pub initial_delay: Duration,
    /// Time from the start of one probe to the start of the next.
    pub period: Duration,
    /// Timeout of one probe.
    pub timeout: Duration,
    /// Number of consecutive failures that end the allocation, at least 1.
    pub failures_max: u32,
}

/// What one probe does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProbeCheck {
    /// Opens a TCP connection.
    Tcp,
    /// Sends a GET request; a status from 200 to 399 is a success.
    Http {
        /// Begins with `/`.
        path: String,
    },
}

impl LivenessProbe {
    /// Checks the range and syntax of all fields.
    ///
    /// # Errors
    /// [`SpecError::Invalid`] for `liveness-probe`.
    pub fn validate(&self) -> Result<(), SpecError> {
        let refuse = |why: String| Err(SpecError::Invalid { field: "liveness-probe", why });
        if self.port == 0 {
            return refuse("a port from 1 to 65535 is needed".to_owned());
        }
        if let ProbeCheck::Http { path } = &self.check {
            let visible = path.bytes().all(|b| (0x21..=0x7e).contains(&b));
            if !path.starts_with('/') || !visible || path.len() > PATH_BYTES_MAX {
                return refuse(format!("an HTTP path begins with / and has at most {PATH_BYTES_MAX} visible ASCII characters"));
            }
        }
        if self.period < Duration::from_secs(1) || self.period > DAY {
            return refuse("its period is 1 second to 1 day".to_owned());
        }
        if self.initial_delay > DAY {
            return refuse("its initial delay is at most 1 day".to_owned());
        }
        if self.timeout < Duration::from_secs(1) || self.timeout > TIMEOUT_MAX {
            return refuse(format!("its timeout is 1 to {} seconds", TIMEOUT_MAX.as_secs()));
        }
        if !(1..=FAILURES_MAX).contains(&self.failures_max) {
            return refuse(format!("1 to {FAILURES_MAX} failures in a row are possible"));
        }
        Ok(())
    }
}

impl fmt::Display for LivenessProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.check {
            ProbeCheck::Tcp => write!(f, "TCP connect to 127.0.0.1:{}", self.port),
            ProbeCheck::Http { path } => write!(f, "HTTP GET 127.0.0.1:{}{path}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> LivenessProbe {
        LivenessProbe {
            check: ProbeCheck::Http { path: "/healthz".into() },
            port: 8080,
            initial_delay: Duration::ZERO,
            period: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            failures_max: 3,
        }
    }

    #[test]
    fn each_range_is_kept() {
        assert_eq!(probe().validate(), Ok(()));
        assert_eq!(probe().to_string(), "HTTP GET 127.0.0.1:8080/healthz");
        let changes: [fn(&mut LivenessProbe); 8] = [
            |p| p.port = 0,
            |p| p.check = ProbeCheck::Http { path: "healthz".into() },
            |p| p.check = ProbeCheck::Http { path: "/a HTTP/1.1\r\nHost: x".into() },
            |p| p.check = ProbeCheck::Http { path: format!("/{}", "a".repeat(PATH_BYTES_MAX)) },
            |p| p.period = Duration::ZERO,
            |p| p.timeout = Duration::from_secs(301),
            |p| p.failures_max = 0,
            |p| p.initial_delay = Duration::from_secs(86_401),
        ];
        for change in changes {
            let mut changed = probe();
            change(&mut changed);
            assert!(matches!(changed.validate(), Err(SpecError::Invalid { field: "liveness-probe", .. })), "{changed:?}");
        }
    }
}
