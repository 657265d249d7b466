//! What a row's text depends on besides the row.

use crate::time::Clock;
use lattice_cli_syntax::compat::Compat;
use lattice_model::Resources;
use std::collections::BTreeMap;

/// The site's names, the clock, and what other messages say.
pub struct Context<'a> {
    /// The site's names.
    pub compat: &'a Compat,
    /// The present time, and how times are written.
    pub clock: &'a Clock<'a>,
    /// The number of a user; `None`: this machine does not know the user.
    pub uid_of: &'a dyn Fn(&str) -> Option<u32>,
    /// The size of each node, as far as it was asked for.
    pub nodes: &'a BTreeMap<String, Resources>,
}

impl Context<'_> {
    /// The text of a user's number.
    pub fn uid_text(&self, user: &str) -> String {
        (self.uid_of)(user).map_or_else(|| user.to_owned(), |uid| uid.to_string())
    }
}
