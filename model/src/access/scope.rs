//! Scopes: which part of an account's rights a token gives.

use super::{Reach, Rule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// One scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// Reads what every user may read: methods that change nothing.
    Read,
    /// Submits work and acts on the account's own work, as a user without roles.
    Work,
    /// Everything that the account may do, its roles included.
    Admin,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 3] = [Self::Read, Self::Work, Self::Admin];

    /// The name that users type and read.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Work => "work",
            Self::Admin => "admin",
        }
    }

    fn allows(self, rule: &Rule) -> bool {
        match self {
            Self::Read => !rule.changes && rule.user != Reach::Nothing,
            Self::Work => rule.changes && rule.user != Reach::Nothing,
            Self::Admin => true,
        }
    }
}

/// The scopes of a token; at least one. Shown and typed as `read,work`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scopes(BTreeSet<Scope>);

/// A text that names no scopes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{given:?} is not a list of scopes: write read, work or admin, several with commas")]
pub struct ScopesError {
    /// The text.
    pub given: String,
}

impl Scopes {
    /// Every scope: those of a person who logged in.
    pub fn all() -> Self {
        Self(Scope::ALL.into())
    }

    /// The scopes of a program that works as its account: roles do not count.
    pub fn work() -> Self {
        Self([Scope::Read, Scope::Work].into())
    }

    /// Whether a method with this row may be called at all; the account's rights are checked as well.
    pub fn allow(&self, rule: &Rule) -> bool {
        self.0.iter().any(|scope| scope.allows(rule))
    }

    /// Whether roles of the account count.
    pub fn open_roles(&self) -> bool {
        self.0.contains(&Scope::Admin)
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.iter().map(|scope| scope.name()).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for Scopes {
    type Err = ScopesError;

    fn from_str(text: &str) -> Result<Self, ScopesError> {
        let scope = |name: &str| Scope::ALL.into_iter().find(|scope| scope.name() == name.trim());
        let scopes: Option<BTreeSet<Scope>> = text.split(',').map(scope).collect();
        scopes.map(Self).ok_or_else(|| ScopesError { given: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::rule;
    use super::*;

    #[test]
    fn a_scope_opens_the_methods_of_its_kind_and_admin_all() {
        let of = |scopes: &str, method: &str| scopes.parse::<Scopes>().unwrap().allow(rule(method).unwrap());
        let methods = ["AllocationService/Get", "AllocationService/Submit", "AdminService/GrantRole", "AdminService/ExportAudit"];
        assert_eq!(methods.map(|method| of("read", method)), [true, false, false, false]);
        assert_eq!(methods.map(|method| of("work", method)), [false, true, false, false]);
        assert_eq!(methods.map(|method| of("work,read", method)), [true, true, false, false]);
        assert_eq!(methods.map(|method| of("admin", method)), [true; 4]);
    }

    #[test]
    fn scopes_are_read_as_they_are_shown_and_nothing_else_is_read() {
        assert_eq!("work, read".parse::<Scopes>().unwrap().to_string(), "read,work");
        assert_eq!(Scopes::all().to_string().parse(), Ok(Scopes::all()));
        for text in ["", "read,", "all", "READ"] {
            assert_eq!(text.parse::<Scopes>(), Err(ScopesError { given: text.to_owned() }));
        }
        assert!(Scopes::all().open_roles() && !"read,work".parse::<Scopes>().unwrap().open_roles());
    }
}
