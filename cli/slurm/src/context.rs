//! The data that a row's text needs besides the row itself.

use crate::time::Clock;
use lattice_cli_syntax::compat::Compat;
use lattice_model::Resources;
use std::collections::BTreeMap;

/// The site's names, the clock, and data from other answers.
pub struct Context<'a> {
    /// The site's names.
    pub compat: &'a Compat,
    /// The present time, and how times are written.
    pub clock: &'a Clock<'a>,
    /// The uid of a user; `None`: this machine does not know the user.
    pub uid_of: &'a dyn Fn(&str) -> Option<u32>,
    /// The size of each node, if it was requested.
    pub nodes: &'a BTreeMap<String, Resources>,
}

impl Context<'_> {
    /// A user's uid as text, or the name if the uid is unknown.
    pub fn uid_text(&self, user: &str) -> String {
        (self.uid_of)(user).map_or_else(|| user.to_owned(), |uid| uid.to_string())
    }
}
