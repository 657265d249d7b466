//! An OpenID Connect provider whose tokens are accepted: the configuration's section `api.oidc`.

use super::setting::{SettingError, absolute, within};
use lattice_model::access::LOGIN_TENANTS_MAX;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

/// `api.oidc` of `agent.yaml`. See `docs/how-to/operators/log-people-in.md`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OidcSettings {
    /// The provider's issuer, exactly as its tokens name it: `https://HOST/…`. `http://` is
    /// accepted at a loopback address alone.
    pub issuer: String,
    /// The client as which `lattice login` logs people in.
    pub client_id: String,
    /// Audiences (`aud`) of which a token must name one; empty: `client_id`.
    pub audience: Vec<String>,
    /// The claim that is the name of the account; `None`: `preferred_username`.
    pub account_claim: Option<String>,
    /// Accounts of people whose claim is not the name: by `sub`, or by the claim's value. Wins over
    /// the claim.
    pub accounts: BTreeMap<String, String>,
    /// A program of the site that names the account, in place of claim and table: it gets the claims on its standard
    /// input, as JSON. It and the folders above it are owned by root, and not writable by others. Empty: none.
    pub account_hook: PathBuf,
    /// As whom the program runs, if the agent is root; never root.
    pub account_hook_user: String,
    /// Timeout of the program, in seconds; 1 to 60.
    pub account_hook_seconds: u64,
    /// How long an agent uses an answer again for the same token, in seconds; 1 to 300.
    pub account_hook_cache_seconds: u64,
    /// The claim that names the person's groups: a list of names, or one name.
    pub groups_claim: String,
    /// Tenants by group: a person counts as a member of the tenants of the groups in the token, for the calls
    /// with that token. At most 256.
    pub group_tenants: BTreeMap<String, String>,
    /// Algorithms of signatures; at least one.
    pub algorithms: Vec<SigningAlgorithm>,
    /// How far the clocks of provider and agent may differ, in seconds; 0 to 300.
    pub leeway_seconds: u64,
    /// Authorities of the provider's certificate, PEM; empty: those of the system.
    pub ca: PathBuf,
    /// Scopes that `lattice login` requests; `openid` is one of them.
    pub scopes: Vec<String>,
}

impl Default for OidcSettings {
    fn default() -> Self {
        Self {
            issuer: String::new(),
            client_id: String::new(),
            audience: Vec::new(),
            account_claim: None,
            accounts: BTreeMap::new(),
            account_hook: PathBuf::new(),
            account_hook_user: "nobody".to_owned(),
            account_hook_seconds: 5,
            account_hook_cache_seconds: 300,
            groups_claim: "groups".to_owned(),
            group_tenants: BTreeMap::new(),
            algorithms: vec![SigningAlgorithm::Rs256, SigningAlgorithm::Es256],
            leeway_seconds: 60,
            ca: PathBuf::new(),
            scopes: ["openid", "profile", "offline_access"].map(str::to_owned).into(),
        }
    }
}

/// An algorithm of a token's signature (RFC 7518). Those by a shared secret, and none at all, have
/// no name here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum SigningAlgorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl SigningAlgorithm {
    /// All of them.
    pub const ALL: [Self; 9] =
        [Self::Rs256, Self::Rs384, Self::Rs512, Self::Ps256, Self::Ps384, Self::Ps512, Self::Es256, Self::Es384, Self::EdDsa];

    /// Its name in configuration files and tokens.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }
}

impl fmt::Display for SigningAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why a section `api.oidc` is invalid.
#[derive(Debug, Error)]
pub enum OidcSettingsError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(
        "api.oidc.issuer: {0:?} is not https://HOST or https://HOST/PATH without parameters; http:// is accepted at a loopback address alone"
    )]
    Issuer(String),
    #[error("{0}: it must not be empty")]
    Empty(&'static str),
    #[error("api.oidc.scopes: openid is missing; without it the provider issues no token that names a person")]
    NoOpenId,
    #[error("{0}: the program of api.oidc.account_hook names every account: leave one of the two out")]
    OtherSource(&'static str),
    #[error("api.oidc.accounts: {given:?} is mapped to root, and no token may act as root: map it to another account")]
    Root { given: String },
}

impl OidcSettings {
    /// Checks the issuer, ranges and lists.
    pub fn validate(&self) -> Result<(), OidcSettingsError> {
        if !is_issuer(&self.issuer) {
            return Err(OidcSettingsError::Issuer(self.issuer.clone()));
        }
        let empty = |texts: &[String]| texts.iter().any(String::is_empty);
        let is_empty = [
            ("api.oidc.client_id", self.client_id.is_empty()),
            ("api.oidc.audience", empty(&self.audience)),
            ("api.oidc.account_claim", self.account_claim.as_ref().is_some_and(String::is_empty)),
            ("api.oidc.accounts", self.accounts.iter().any(|(given, account)| given.is_empty() || account.is_empty())),
            ("api.oidc.account_hook_user", self.account_hook_user.is_empty()),
            ("api.oidc.groups_claim", self.groups_claim.is_empty()),
            ("api.oidc.group_tenants", self.group_tenants.iter().any(|(group, tenant)| group.is_empty() || tenant.is_empty())),
            ("api.oidc.algorithms", self.algorithms.is_empty()),
            ("api.oidc.scopes", empty(&self.scopes)),
        ];
        if let Some((setting, _)) = is_empty.into_iter().find(|(_, is_empty)| *is_empty) {
            return Err(OidcSettingsError::Empty(setting));
        }
        if !self.scopes.iter().any(|scope| scope == "openid") {
            return Err(OidcSettingsError::NoOpenId);
        }
        if let Some((given, _)) = self.accounts.iter().find(|(_, account)| *account == "root") {
            return Err(OidcSettingsError::Root { given: given.clone() });
        }
        self.validate_hook()?;
        within("api.oidc.group_tenants", self.group_tenants.len() as u64, 0, LOGIN_TENANTS_MAX as u64)?;
        within("api.oidc.leeway_seconds", self.leeway_seconds, 0, 300)?;
        Ok(absolute("api.oidc.ca", &self.ca)?)
    }

    fn validate_hook(&self) -> Result<(), OidcSettingsError> {
        absolute("api.oidc.account_hook", &self.account_hook)?;
        within("api.oidc.account_hook_seconds", self.account_hook_seconds, 1, 60)?;
        within("api.oidc.account_hook_cache_seconds", self.account_hook_cache_seconds, 1, 300)?;
        let others = [("api.oidc.accounts", !self.accounts.is_empty()), ("api.oidc.account_claim", self.account_claim.is_some())];
        let other = others.into_iter().find(|(_, is_set)| *is_set && !self.account_hook.as_os_str().is_empty());
        other.map_or(Ok(()), |(setting, _)| Err(OidcSettingsError::OtherSource(setting)))
    }

    /// The claim that is the name of the account.
    pub fn account_claim(&self) -> &str {
        self.account_claim.as_deref().unwrap_or("preferred_username")
    }

    /// The audiences that are accepted.
    pub fn audience(&self) -> &[String] {
        if self.audience.is_empty() { std::slice::from_ref(&self.client_id) } else { &self.audience }
    }
}

/// Whether a text may be an issuer (OpenID Connect Discovery 1.0, section 3): no query, no
/// fragment, and nobody's password.
fn is_issuer(text: &str) -> bool {
    let (is_private, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        (None, None) => return false,
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let is_plain = !text.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '@' | '\\'));
    is_plain && !authority.is_empty() && (is_private || is_loopback(host_of(authority)))
}

/// The host of `HOST:PORT`, `[IPv6]:PORT`, or either without a port.
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Whether nothing that is sent to this host leaves the machine.
pub fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(more: &str) -> OidcSettings {
        let text = format!("{{issuer: \"https://idp.example.org/realms/hpc\", client_id: lattice{more}}}");
        lattice_model::config::parse("a.yaml", &text).unwrap()
    }

    #[test]
    fn issuer_and_client_are_enough() {
        let settings = parsed("");
        settings.validate().unwrap();
        assert_eq!(settings.audience(), ["lattice"]);
        assert_eq!(settings.algorithms, [SigningAlgorithm::Rs256, SigningAlgorithm::Es256]);
        assert_eq!((settings.account_claim(), settings.leeway_seconds), ("preferred_username", 60));
        assert_eq!(parsed(", audience: [a, b]").audience(), ["a", "b"]);
    }

    #[test]
    fn algorithms_are_read_by_their_names_and_shared_secrets_are_none() {
        for algorithm in SigningAlgorithm::ALL {
            assert_eq!(parsed(&format!(", algorithms: [{algorithm}]")).algorithms, [algorithm]);
        }
        for refused in ["none", "HS256", "rs256", "ES512"] {
            let text = format!("{{algorithms: [{refused}]}}");
            assert!(lattice_model::config::parse::<OidcSettings>("a.yaml", &text).is_err(), "{refused}");
        }
    }

    #[test]
    fn an_issuer_is_reached_by_tls_or_on_this_machine() {
        let is_valid = |issuer: &str| OidcSettings { issuer: issuer.to_owned(), ..parsed("") }.validate().is_ok();
        for issuer in ["https://a", "https://a:8443/b", "http://127.0.0.1:80/a", "http://localhost", "http://[::1]:9"] {
            assert!(is_valid(issuer), "{issuer}");
        }
        let refused =
            ["", "a", "ftp://a", "https://", "https:///a", "http://a", "http://localhost.a", "https://a?b", "https://a#b", "https://a@b"];
        for issuer in refused {
            assert!(!is_valid(issuer), "{issuer}");
        }
    }

    #[test]
    fn an_invalid_setting_is_refused_with_its_path() {
        let refused = |more: &str| parsed(more).validate().unwrap_err().to_string();
        assert_eq!(refused(", leeway_seconds: 301"), "api.oidc.leeway_seconds: 301 is not between 0 and 300");
        assert_eq!(refused(", algorithms: []"), "api.oidc.algorithms: it must not be empty");
        assert!(refused(", scopes: [profile]").starts_with("api.oidc.scopes: openid is missing"));
        assert!(refused(", accounts: {a: root}").starts_with("api.oidc.accounts: \"a\" is mapped to root"));
        assert_eq!(refused(", accounts: {a: \"\"}"), "api.oidc.accounts: it must not be empty");
        assert_eq!(refused(", groups_claim: \"\""), "api.oidc.groups_claim: it must not be empty");
        assert_eq!(refused(", group_tenants: {a: \"\"}"), "api.oidc.group_tenants: it must not be empty");
        let many: String = (0..=LOGIN_TENANTS_MAX).map(|number| format!("g{number}: t, ")).collect();
        assert_eq!(refused(&format!(", group_tenants: {{{many}}}")), "api.oidc.group_tenants: 257 is not between 0 and 256");
        assert_eq!(refused(", account_hook_seconds: 0"), "api.oidc.account_hook_seconds: 0 is not between 1 and 60");
        assert_eq!(refused(", account_hook_cache_seconds: 301"), "api.oidc.account_hook_cache_seconds: 301 is not between 1 and 300");
        assert!(refused(", account_hook: bin/accounts").starts_with("api.oidc.account_hook: "));
        let hook = ", account_hook: /usr/libexec/accounts";
        parsed(hook).validate().unwrap();
        assert!(refused(&format!("{hook}, accounts: {{a: alice}}")).starts_with("api.oidc.accounts: the program of"));
        assert!(refused(&format!("{hook}, account_claim: email")).starts_with("api.oidc.account_claim: the program of"));
        assert!(refused(", ca: ca.crt").starts_with("api.oidc.ca: "));
    }
}
