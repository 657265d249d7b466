//! The store of ended work, and the sinks that get what it has.

use super::oidc::is_loopback;
use super::setting::is_plain;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// `accounting` of `agent.yaml`, for an agent with that role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccountingSettings {
    /// The database: `sqlite:///ABSOLUTE/FILE` on a local disk, or `postgres://USER@HOST:PORT/DATABASE`
    /// with the parameters of libpq (`?sslmode=verify-full&sslrootcert=FILE`). Required with the role
    /// `accounting`; else it is not used.
    pub store: String,
    /// A file of mode 0600 with the password of the PostgreSQL user; empty: the server needs none.
    pub password_file: PathBuf,
    /// A server of the site that gets every record, see [`HttpSinkSettings`].
    pub http_sink: HttpSinkSettings,
    /// A file of this machine that gets every record, see [`FileSinkSettings`].
    pub file_sink: FileSinkSettings,
}

/// `accounting.http_sink` of `agent.yaml`: records are posted to a server, in batches, until it accepts them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HttpSinkSettings {
    /// `https://HOST/…`; `http://` only to this machine itself. Empty: there is no such sink.
    pub url: String,
    /// A file of mode 0600 of root, or of the agent's user, with the key of the signatures: at least 16 bytes.
    /// Required with `url`. It is read at each delivery.
    pub key_file: PathBuf,
    /// Certificates of the authorities that may vouch for the server, as PEM; empty: those that this machine trusts.
    pub ca: PathBuf,
    /// The most records in one request: 1 to 1000.
    pub batch_records: u32,
    /// How long an answer is waited for, in seconds: 1 to 300.
    pub timeout_seconds: u64,
}

impl Default for HttpSinkSettings {
    fn default() -> Self {
        Self { url: String::new(), key_file: PathBuf::new(), ca: PathBuf::new(), batch_records: 500, timeout_seconds: 30 }
    }
}

/// `accounting.file_sink` of `agent.yaml`: records are appended to a file, each as a line of JSON.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FileSinkSettings {
    /// The file, which is created with mode 0600; empty: there is no such sink.
    pub path: PathBuf,
    /// A file of this size is renamed before more is written, in MiB: 1 to 65536. Its new name ends with the number
    /// of its last record. The agent removes none.
    pub rotate_mib: u64,
}

impl Default for FileSinkSettings {
    fn default() -> Self {
        Self { path: PathBuf::new(), rotate_mib: 64 }
    }
}

/// Which database a store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAddress {
    /// A file.
    Sqlite(PathBuf),
    /// A server: its URL, without a password.
    Postgres(String),
}

/// Why a section `accounting` is invalid.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum AccountingSettingsError {
    #[error("accounting.store: the role accounting needs it: sqlite:///var/lib/lattice/accounting.db, or postgres://USER@HOST/DATABASE")]
    NoStore,
    #[error("accounting.store: {store:?} names no database: write sqlite:///ABSOLUTE/FILE or postgres://USER@HOST/DATABASE")]
    Store { store: String },
    // Without the URL: the password must not reach a log.
    #[error("accounting.store: it contains a password: write it into a file of mode 0600, and name that in accounting.password_file")]
    Password,
    #[error("accounting.password_file: {} must be an absolute path", path.display())]
    PasswordFile { path: PathBuf },
    // Without the URL: there may be a secret in it.
    #[error(
        "accounting.http_sink.url: it must be https://HOST/… (http:// only for this machine itself), without a user and without spaces"
    )]
    SinkUrl,
    #[error("accounting.http_sink.key_file is missing: name a file of mode 0600 with the key that signs the batches")]
    NoSinkKey,
    #[error("{setting}: {} must be an absolute path of a file, without \"..\"", path.display())]
    SinkPath { setting: &'static str, path: PathBuf },
    #[error("{setting}: {value} is not between {min} and {max}")]
    SinkNumber { setting: &'static str, value: u64, min: u64, max: u64 },
}

impl AccountingSettings {
    /// Checks the form of what is set. `has_role`: whether this agent has the role.
    pub fn validate(&self, has_role: bool) -> Result<(), AccountingSettingsError> {
        if has_role || !self.store.is_empty() {
            self.address()?;
        }
        let path = &self.password_file;
        if !path.as_os_str().is_empty() && !is_plain(path) {
            return Err(AccountingSettingsError::PasswordFile { path: path.clone() });
        }
        self.http_sink.validate()?;
        self.file_sink.validate()
    }

    /// The database.
    ///
    /// # Errors
    /// [`AccountingSettingsError`]: the setting names none.
    pub fn address(&self) -> Result<StoreAddress, AccountingSettingsError> {
        let unknown = || AccountingSettingsError::Store { store: self.store.clone() };
        if self.store.is_empty() {
            return Err(AccountingSettingsError::NoStore);
        }
        if let Some(path) = self.store.strip_prefix("sqlite://") {
            let path = Path::new(path);
            let is_file = is_plain(path) && path.file_name().is_some();
            return is_file.then(|| StoreAddress::Sqlite(path.to_owned())).ok_or_else(unknown);
        }
        let rest = ["postgres://", "postgresql://"].iter().find_map(|scheme| self.store.strip_prefix(scheme));
        let rest = rest.filter(|rest| !rest.is_empty());
        let Some(rest) = rest else { return Err(self.unknown_without_password()) };
        let (before_parameters, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let user = before_parameters.rsplit_once('@').map_or("", |(user, _)| user);
        if user.contains(':') || parameters.split('&').any(|parameter| parameter.starts_with("password=")) {
            return Err(AccountingSettingsError::Password);
        }
        Ok(StoreAddress::Postgres(self.store.clone()))
    }

    /// The refusal of a store of another kind, which may contain a password, too.
    fn unknown_without_password(&self) -> AccountingSettingsError {
        let scheme = self.store.split([':', '@']).next().unwrap_or_default();
        AccountingSettingsError::Store { store: scheme.to_owned() }
    }
}

impl HttpSinkSettings {
    fn validate(&self) -> Result<(), AccountingSettingsError> {
        if !self.url.is_empty() && !is_sink_url(&self.url) {
            return Err(AccountingSettingsError::SinkUrl);
        }
        if !self.url.is_empty() && self.key_file.as_os_str().is_empty() {
            return Err(AccountingSettingsError::NoSinkKey);
        }
        file_path("accounting.http_sink.key_file", &self.key_file)?;
        file_path("accounting.http_sink.ca", &self.ca)?;
        within("accounting.http_sink.batch_records", self.batch_records.into(), 1, 1000)?;
        within("accounting.http_sink.timeout_seconds", self.timeout_seconds, 1, 300)
    }
}

impl FileSinkSettings {
    fn validate(&self) -> Result<(), AccountingSettingsError> {
        file_path("accounting.file_sink.path", &self.path)?;
        within("accounting.file_sink.rotate_mib", self.rotate_mib, 1, 65_536)
    }
}

/// Whether nobody on the way can read what is posted there.
fn is_sink_url(url: &str) -> bool {
    let (is_private, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (None, Some(rest)) => (false, rest),
        (None, None) => return false,
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_plain = !url.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '#' | '\\')) && !authority.contains('@');
    is_plain && !host.is_empty() && (is_private || is_loopback(host))
}

fn file_path(setting: &'static str, path: &Path) -> Result<(), AccountingSettingsError> {
    let is_file = is_plain(path) && path.file_name().is_some();
    if path.as_os_str().is_empty() || is_file { Ok(()) } else { Err(AccountingSettingsError::SinkPath { setting, path: path.to_owned() }) }
}

fn within(setting: &'static str, value: u64, min: u64, max: u64) -> Result<(), AccountingSettingsError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(AccountingSettingsError::SinkNumber { setting, value, min, max }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(store: &str) -> Result<StoreAddress, AccountingSettingsError> {
        AccountingSettings { store: store.to_owned(), ..AccountingSettings::default() }.address()
    }

    #[test]
    fn a_store_is_a_file_or_a_server() {
        assert_eq!(address("sqlite:///var/lib/a.db"), Ok(StoreAddress::Sqlite("/var/lib/a.db".into())));
        for url in ["postgres://lattice@db/lattice", "postgresql:///lattice?host=/run/pg", "postgres://u@[::1]:5433/d?sslmode=require"] {
            assert_eq!(address(url), Ok(StoreAddress::Postgres(url.to_owned())));
        }
        for bad in ["sqlite://a.db", "sqlite:///", "sqlite:///a/../b", "mysql://db/x", "postgres://", "a.db"] {
            assert!(matches!(address(bad), Err(AccountingSettingsError::Store { .. })), "{bad}");
        }
    }

    #[test]
    fn a_password_in_the_url_is_refused_and_not_shown() {
        for url in ["postgres://u:geheim@db/x", "postgres://u@db/x?password=geheim", "postgres://u@db/x?sslmode=require&password=geheim"] {
            let refused = address(url).unwrap_err();
            assert!(refused == AccountingSettingsError::Password && !refused.to_string().contains("geheim"), "{refused}");
        }
        for url in ["mysql://u:geheim@db/x", "u:geheim@db/x", "postgres:u:geheim@db/x"] {
            assert!(!address(url).unwrap_err().to_string().contains("geheim"));
        }
    }

    #[test]
    fn only_the_role_needs_a_store() {
        let none = AccountingSettings::default();
        assert_eq!((none.validate(false), none.validate(true)), (Ok(()), Err(AccountingSettingsError::NoStore)));
        let relative = AccountingSettings { password_file: "here".into(), ..none };
        assert!(matches!(relative.validate(false), Err(AccountingSettingsError::PasswordFile { .. })));
    }

    #[test]
    fn a_sink_is_a_private_url_with_a_key_or_a_file() {
        let http = |url: &str, key: &str| HttpSinkSettings { url: url.to_owned(), key_file: key.into(), ..HttpSinkSettings::default() };
        for url in ["https://billing.example.org/lattice?v=1", "https://[2001:db8::1]:8443", "http://127.0.0.1:9/x", "http://localhost"] {
            assert_eq!(http(url, "/etc/key").validate(), Ok(()), "{url}");
        }
        for url in ["http://billing.example.org", "ftp://h/x", "https://", "https://u:geheim@h/x", "https://h/a b", "https://h#x"] {
            let refused = http(url, "/etc/key").validate().unwrap_err();
            assert!(refused == AccountingSettingsError::SinkUrl && !refused.to_string().contains("geheim"), "{url}");
        }
        assert_eq!(http("https://h/x", "").validate(), Err(AccountingSettingsError::NoSinkKey));
        assert!(matches!(http("https://h/x", "key").validate(), Err(AccountingSettingsError::SinkPath { .. })));
        let many = HttpSinkSettings { batch_records: 1001, ..HttpSinkSettings::default() };
        let text = "accounting.http_sink.batch_records: 1001 is not between 1 and 1000";
        assert_eq!(many.validate().unwrap_err().to_string(), text);
        let file = |path: &str| FileSinkSettings { path: path.into(), ..FileSinkSettings::default() }.validate();
        assert_eq!((file(""), file("/var/log/lattice/accounting.jsonl")), (Ok(()), Ok(())));
        assert!(file("accounting.jsonl").is_err() && file("/").is_err());
    }
}
