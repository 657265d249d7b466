//! The metrics of the API on the network.

use lattice_telemetry::catalogue::serving as family;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters since the agent's start. Cloneable; all clones share them.
#[derive(Clone, Default)]
pub struct Counts(Arc<Inner>);

#[derive(Default)]
struct Inner {
    connections: AtomicU64,
    limited: [AtomicU64; Limited::ALL.len()],
    authentications: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
}

/// What a limit refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limited {
    /// A connection.
    Connections,
    /// A request of an address that presented too many wrong tokens.
    Failures,
    /// A request of an account, or of an address for a page that needs no token.
    Requests,
    /// A submission of an account.
    Submissions,
    /// A request of an account of a tenant whose accounts together send too many.
    Tenants,
}

impl Limited {
    const ALL: [Self; 5] = [Self::Connections, Self::Failures, Self::Requests, Self::Submissions, Self::Tenants];

    fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Failures => "failures",
            Self::Requests => "requests",
            Self::Submissions => "submissions",
            Self::Tenants => "tenants",
        }
    }
}

impl Counts {
    /// Counts a connection until the result is dropped.
    pub(super) fn open(&self) -> OpenConnection {
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }

    /// Counts what a limit refused.
    pub(super) fn limited(&self, what: Limited) {
        self.0.limited[what as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an attempt to authenticate. `kind`: of the token. `result`: `ok`, or why it failed.
    pub(super) fn authenticated(&self, kind: &'static str, result: &'static str) {
        *self.0.authentications.lock().entry((kind, result)).or_default() += 1;
    }
}

impl Collect for Counts {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        samples.count(&family::NETWORK_CONNECTIONS, &[], self.0.connections.load(Ordering::Relaxed));
        for what in Limited::ALL {
            samples.count(&family::API_RATE_LIMITED, &[what.name()], self.0.limited[what as usize].load(Ordering::Relaxed));
        }
        for ((kind, result), count) in &*self.0.authentications.lock() {
            samples.count(&family::API_AUTHENTICATIONS, &[kind, result], *count);
        }
    }
}

/// A counted connection.
pub(super) struct OpenConnection(Counts);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_is_exported() {
        let counts = Counts::default();
        let _open = counts.open();
        drop(counts.open());
        counts.limited(Limited::Submissions);
        counts.authenticated("token", "ok");
        counts.authenticated("token", "ok");
        let mut samples = Samples::default();
        counts.collect(&mut samples, Whose::Ours);
        let exported: Vec<String> = samples
            .families()
            .flat_map(|(family, all)| all.iter().map(move |one| format!("{} {:?} {:?}", family.name, one.labels, one.value)))
            .collect();
        assert_eq!(
            exported,
            [
                r#"lattice_api_authentications_total ["token", "ok"] Number(2.0)"#,
                r#"lattice_api_network_connections [] Number(1.0)"#,
                r#"lattice_api_rate_limited_total ["connections"] Number(0.0)"#,
                r#"lattice_api_rate_limited_total ["failures"] Number(0.0)"#,
                r#"lattice_api_rate_limited_total ["requests"] Number(0.0)"#,
                r#"lattice_api_rate_limited_total ["submissions"] Number(1.0)"#,
                r#"lattice_api_rate_limited_total ["tenants"] Number(0.0)"#,
            ]
        );
    }
}
