//! The API on the network: where it listens, with which certificate, whose tokens it accepts, and its limits.

use super::oidc::{OidcSettings, OidcSettingsError};
use super::setting::{SettingError, absolute, within};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use thiserror::Error;

/// `api` of `agent.yaml`. Without `listen`, users reach this agent by its socket alone.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiSettings {
    /// Address on which the API is served over TLS, an IP address and port; needs the role `api`.
    /// Empty: it is not served.
    pub listen: String,
    /// The certificate for it, PEM, the server's own first; empty, with `tls_key`: the agent's own,
    /// which the cluster's authority issued. Both are read again when they change.
    pub tls_cert: PathBuf,
    /// The key of `tls_cert`, PEM, mode 0600.
    pub tls_key: PathBuf,
    /// Authorities, PEM: each connection must then present a certificate of one of them, besides
    /// the token. Empty: none is needed.
    pub client_ca: PathBuf,
    /// Whether certificates of service accounts, which the cluster's authority issued, say who calls.
    pub client_certificates: ClientCertificates,
    /// Origins of web pages that may call, such as `https://portal.example.org`. Requests of pages
    /// of all other origins are refused.
    pub origins: Vec<String>,
    /// The identity provider whose tokens are accepted, besides those of the cluster.
    pub oidc: Option<OidcSettings>,
    /// Limits of callers.
    pub limits: ApiLimits,
    /// The access log, a file with a JSON object a line; empty: none is written.
    pub access_log: PathBuf,
    /// Size in bytes at which the access log is renamed and a new one begun; four older ones stay.
    /// 64 KiB to 1 TiB.
    pub access_log_bytes_max: u64,
    /// Share of requests that is in the access log; 0 to 1. Requests that may change something are all in it, if they are
    /// of an account or have a wrong token.
    pub access_log_read_sample: f64,
}

/// Whether certificates of service accounts say who calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientCertificates {
    /// They do not: each call needs a token.
    #[default]
    Off,
    /// A program with one needs no token.
    Allowed,
    /// Each connection needs one; a token may come besides.
    Required,
}

/// Limits of callers on the network, at this agent.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiLimits {
    /// Requests of one account a second, on average; 1 to 100,000. The same holds for an address
    /// that asks for what needs no token.
    pub requests_per_second: u32,
    /// Requests of one account at once; 1 to 1,000,000.
    pub burst: u32,
    /// Requests a second of all accounts of one tenant together, on average; 0: no limit; at most 100,000. An account
    /// counts to its default tenant, and to each with members of which it is one.
    pub tenant_requests_per_second: u32,
    /// Requests of all accounts of one tenant at once, if there is that limit; 1 to 1,000,000.
    pub tenant_burst: u32,
    /// Submissions of one account a minute, and at once; 1 to 1,000,000.
    pub submissions_per_minute: u32,
    /// Connections of one address (IPv6: of one /64 network); 1 to `connections`.
    pub connections_per_address: u32,
    /// All connections; 1 to 100,000.
    pub connections: u32,
    /// Streams of one account: logs, watches, terminals and the like; 1 to 10,000.
    pub streams_per_user: u32,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            listen: String::new(),
            tls_cert: PathBuf::new(),
            tls_key: PathBuf::new(),
            client_ca: PathBuf::new(),
            client_certificates: ClientCertificates::Off,
            origins: Vec::new(),
            oidc: None,
            limits: ApiLimits::default(),
            access_log: PathBuf::new(),
            access_log_bytes_max: 64 << 20,
            access_log_read_sample: 0.01,
        }
    }
}

impl Default for ApiLimits {
    fn default() -> Self {
        Self {
            requests_per_second: 50,
            burst: 200,
            tenant_requests_per_second: 0,
            tenant_burst: 2000,
            submissions_per_minute: 600,
            connections_per_address: 64,
            connections: 4096,
            streams_per_user: 64,
        }
    }
}

/// Why a section `api` is invalid.
#[derive(Debug, Error)]
pub enum ApiSettingsError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    Oidc(#[from] OidcSettingsError),
    #[error("api.tls_cert and api.tls_key belong together: set both, or neither to use the agent's own certificate")]
    HalfCertificate,
    #[error("api.client_certificates uses the cluster's authority, and api.client_ca another one: set only one of the two")]
    TwoAuthorities,
    #[error("api.origins: {origin:?} is not an origin: write it as browsers do, https://HOST or https://HOST:PORT in lower case")]
    Origin { origin: String },
    #[error("api.access_log_read_sample: {value} is not between 0 and 1")]
    ReadSample { value: f64 },
}

impl ApiSettings {
    /// Where the API is served on the network; `None`: nowhere.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listen.parse().ok()
    }

    /// Checks address, paths, origins and ranges.
    pub fn validate(&self) -> Result<(), ApiSettingsError> {
        if !self.listen.is_empty() && self.address().is_none() {
            let refused = SettingError::Address { setting: "api.listen".to_owned(), value: self.listen.clone() };
            return Err(refused.into());
        }
        for (setting, path) in [
            ("api.tls_cert", &self.tls_cert),
            ("api.tls_key", &self.tls_key),
            ("api.client_ca", &self.client_ca),
            ("api.access_log", &self.access_log),
        ] {
            absolute(setting, path)?;
        }
        if self.tls_cert.as_os_str().is_empty() != self.tls_key.as_os_str().is_empty() {
            return Err(ApiSettingsError::HalfCertificate);
        }
        if !self.client_ca.as_os_str().is_empty() && self.client_certificates != ClientCertificates::Off {
            return Err(ApiSettingsError::TwoAuthorities);
        }
        if let Some(origin) = self.origins.iter().find(|origin| !is_origin(origin)) {
            return Err(ApiSettingsError::Origin { origin: origin.clone() });
        }
        if let Some(oidc) = &self.oidc {
            oidc.validate()?;
        }
        within("api.access_log_bytes_max", self.access_log_bytes_max, 64 << 10, 1 << 40)?;
        if !(0.0..=1.0).contains(&self.access_log_read_sample) {
            return Err(ApiSettingsError::ReadSample { value: self.access_log_read_sample });
        }
        Ok(self.limits.validate()?)
    }
}

impl ApiLimits {
    fn validate(&self) -> Result<(), SettingError> {
        within("api.limits.requests_per_second", self.requests_per_second.into(), 1, 100_000)?;
        within("api.limits.burst", self.burst.into(), 1, 1_000_000)?;
        within("api.limits.tenant_requests_per_second", self.tenant_requests_per_second.into(), 0, 100_000)?;
        within("api.limits.tenant_burst", self.tenant_burst.into(), 1, 1_000_000)?;
        within("api.limits.submissions_per_minute", self.submissions_per_minute.into(), 1, 1_000_000)?;
        within("api.limits.connections", self.connections.into(), 1, 100_000)?;
        within("api.limits.connections_per_address", self.connections_per_address.into(), 1, self.connections.into())?;
        within("api.limits.streams_per_user", self.streams_per_user.into(), 1, 10_000)
    }
}

/// Whether a text may be an origin as browsers send it (RFC 6454, section 6.2).
fn is_origin(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_host = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '.' | '-' | ':' | '[' | ']');
    rest.is_some_and(|rest| !rest.is_empty() && rest.chars().all(is_host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let settings: ApiSettings = lattice_model::config::parse("a.yaml", text).unwrap();
        settings.validate().unwrap_err().to_string()
    }

    #[test]
    fn service_accounts_present_certificates_of_the_clusters_authority_alone() {
        for (text, mode) in [
            ("{}", ClientCertificates::Off),
            ("{client_certificates: \"off\"}", ClientCertificates::Off),
            ("{client_certificates: allowed}", ClientCertificates::Allowed),
            ("{client_certificates: required}", ClientCertificates::Required),
        ] {
            let settings: ApiSettings = lattice_model::config::parse("a.yaml", text).unwrap();
            settings.validate().unwrap();
            assert_eq!(settings.client_certificates, mode, "{text}");
        }
        assert!(refused("{client_certificates: allowed, client_ca: /etc/ca.crt}").ends_with("set only one of the two"));
    }

    #[test]
    fn the_defaults_serve_nothing_and_an_address_is_enough() {
        let settings = ApiSettings::default();
        settings.validate().unwrap();
        assert_eq!(settings.address(), None);
        let settings: ApiSettings = lattice_model::config::parse("a.yaml", "{listen: \"0.0.0.0:50051\"}").unwrap();
        settings.validate().unwrap();
        assert_eq!(settings.address(), Some("0.0.0.0:50051".parse().unwrap()));
    }

    #[test]
    fn an_invalid_setting_is_refused_by_its_path() {
        assert!(refused("{listen: \"here:1\"}").starts_with("api.listen: \"here:1\" is not an IP address and port"));
        assert!(refused("{tls_cert: /a}").starts_with("api.tls_cert and api.tls_key belong together"));
        assert!(refused("{client_ca: a}").starts_with("api.client_ca: a must be an absolute path"));
        assert_eq!(refused("{limits: {burst: 0}}"), "api.limits.burst: 0 is not between 1 and 1000000");
        assert_eq!(
            refused("{limits: {connections: 8, connections_per_address: 9}}"),
            "api.limits.connections_per_address: 9 is not between 1 and 8"
        );
        assert_eq!(refused("{access_log_read_sample: 1.5}"), "api.access_log_read_sample: 1.5 is not between 0 and 1");
    }

    #[test]
    fn an_origin_is_written_as_browsers_send_it() {
        for origin in ["https://a", "https://portal.example.org:8443", "http://127.0.0.1:80", "https://[::1]"] {
            assert!(is_origin(origin), "{origin}");
        }
        for origin in ["", "*", "null", "a", "https://", "https://a/", "https://A", "https://a b", "ftp://a", "https://u@a"] {
            assert!(!is_origin(origin), "{origin}");
        }
        assert!(refused("{origins: [\"*\"]}").starts_with("api.origins: \"*\" is not an origin"));
    }
}
