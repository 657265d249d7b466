//! The store of ended work.

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
}

impl AccountingSettings {
    /// Checks the form of what is set. `has_role`: whether this agent has the role.
    pub fn validate(&self, has_role: bool) -> Result<(), AccountingSettingsError> {
        if has_role || !self.store.is_empty() {
            self.address()?;
        }
        let path = &self.password_file;
        if path.as_os_str().is_empty() || is_plain(path) {
            Ok(())
        } else {
            Err(AccountingSettingsError::PasswordFile { path: path.clone() })
        }
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
}
