//! The settings of telemetry: the same block in the agent's and in the member's configuration.

use crate::push::{self, Store};
use crate::query::Query;
use crate::serve::{Token, TokenError};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// The requirement's ports.
pub const AGENT_PORT: u16 = 9103;
pub const QUORUM_PORT: u16 = 9100;

/// `telemetry:` in a configuration. Unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetrySettings {
    /// Where `/metrics` is served, an IP address and port. Default: the address of an agent's mesh or a member's
    /// service, with the requirement's port (9103 an agent, 9100 a member); empty: nowhere.
    pub metrics_listen: Option<String>,
    /// The file with the token (mode 0600) that a scraper shows to see the series of allocations; empty: they are shown to nobody
    /// there, and only pushed.
    pub metrics_token_file: PathBuf,
    /// The store that everything is pushed to by Prometheus's remote write: `http://HOST:8428` of VictoriaMetrics, or the whole
    /// address of another's receiver. Without a user, a password or a token in it. Empty: nothing is pushed.
    pub tsdb_endpoint: String,
    /// The file with the token for the store (mode 0600); empty: none.
    pub tsdb_token_file: PathBuf,
    /// Authorities that the store's certificate is checked with, in PEM; empty: the system's.
    pub tsdb_ca: PathBuf,
    /// How often everything is pushed, in seconds. 1 to 3,600.
    pub prod_interval_seconds: u64,
    /// Bytes on the disk that may wait for the store; the oldest are dropped for more. 64 KiB to 1 TiB. The default
    /// holds about ten hours of a node with 50 allocations. A disk with less free space stores less.
    pub tsdb_buffer_bytes_max: u64,
}

impl Default for TelemetrySettings {
    fn default() -> Self {
        Self {
            metrics_listen: None,
            metrics_token_file: PathBuf::new(),
            tsdb_endpoint: String::new(),
            tsdb_token_file: PathBuf::new(),
            tsdb_ca: PathBuf::new(),
            prod_interval_seconds: 30,
            tsdb_buffer_bytes_max: 64 << 20,
        }
    }
}

/// Settings that make no sense.
#[derive(Debug, Error)]
pub enum TelemetrySettingsError {
    #[error("telemetry.metrics_listen: {0:?} is not an IP address and port, such as 127.0.0.1:9103; empty switches it off")]
    Listen(String),
    #[error("telemetry.{field}: {value} is not between {min} and {max}")]
    OutOfRange { field: &'static str, value: u64, min: u64, max: u64 },
    #[error(transparent)]
    Endpoint(#[from] push::EndpointError),
}

impl TelemetrySettings {
    /// Checks forms and ranges.
    pub fn validate(&self) -> Result<(), TelemetrySettingsError> {
        if let Some(listen) = self.metrics_listen.as_ref().filter(|text| !text.is_empty()) {
            listen.parse::<SocketAddr>().map_err(|_| TelemetrySettingsError::Listen(listen.clone()))?;
        }
        let within = |field, value, min, max| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(TelemetrySettingsError::OutOfRange { field, value, min, max }) }
        };
        within("prod_interval_seconds", self.prod_interval_seconds, 1, 3600)?;
        within("tsdb_buffer_bytes_max", self.tsdb_buffer_bytes_max, 64 << 10, 1 << 40)?;
        if !self.tsdb_endpoint.is_empty() {
            push::write_url(&self.tsdb_endpoint)?;
        }
        Ok(())
    }

    /// Where `/metrics` is served; `None`: nowhere. `default_listen`: the default address.
    pub fn listen(&self, default_listen: SocketAddr) -> Option<SocketAddr> {
        match self.metrics_listen.as_deref() {
            None => Some(default_listen),
            Some(text) => text.parse().ok(),
        }
    }

    /// The scrapers' token, where there is one.
    pub fn token(&self) -> Result<Option<Token>, TokenError> {
        if self.metrics_token_file.as_os_str().is_empty() { Ok(None) } else { Token::read(&self.metrics_token_file).map(Some) }
    }

    /// Where the store answers PromQL. `address`: the setting; empty: the address for pushing, if that is
    /// VictoriaMetrics's (no path of its own). `None`: it is not known.
    pub fn query(&self, address: &str) -> Result<Option<Query>, push::StoreError> {
        let own = || push::address(&self.tsdb_endpoint).is_ok_and(|url| url.path() == "/");
        let address = match address {
            "" if self.tsdb_endpoint.is_empty() || !own() => return Ok(None),
            "" => &self.tsdb_endpoint,
            given => given,
        };
        Query::new(address, &self.tsdb_token_file, &self.tsdb_ca).map(Some)
    }

    /// The store, where one is configured.
    pub fn store(&self) -> Result<Option<Store>, push::StoreError> {
        if self.tsdb_endpoint.is_empty() {
            return Ok(None);
        }
        Store::new(&self.tsdb_endpoint, &self.tsdb_token_file, &self.tsdb_ca).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_documents_port_and_empty_is_off() {
        let with_listen =
            |listen: Option<&str>| TelemetrySettings { metrics_listen: listen.map(str::to_owned), ..TelemetrySettings::default() };
        let default_listen = SocketAddr::from(([10, 0, 0, 1], AGENT_PORT));
        assert_eq!(with_listen(None).listen(default_listen), Some(default_listen));
        assert_eq!(with_listen(Some("")).listen(default_listen), None);
        assert_eq!(with_listen(Some("[::1]:7")).listen(default_listen), Some("[::1]:7".parse().unwrap()));
        for (text, good) in [("", true), ("127.0.0.1:9103", true), ("9103", false), ("localhost:9103", false)] {
            assert_eq!(with_listen(Some(text)).validate().is_ok(), good, "{text}");
        }
    }

    #[test]
    fn ranges_and_addresses_are_checked() {
        let base = TelemetrySettings::default();
        assert!(base.validate().is_ok());
        assert!(TelemetrySettings { prod_interval_seconds: 0, ..base.clone() }.validate().is_err());
        assert!(TelemetrySettings { tsdb_buffer_bytes_max: 1, ..base.clone() }.validate().is_err());
        for (text, good) in [("http://vm:8428", true), ("vm:8428", false), ("ftp://vm", false), ("https://a/b/api/v1/push", true)] {
            assert_eq!(TelemetrySettings { tsdb_endpoint: text.to_owned(), ..base.clone() }.validate().is_ok(), good, "{text}");
        }
    }
}
