//! The context of the texts of Slurm's commands: the site's names, the clock, the users of this machine, the nodes' sizes.

use super::compat;
use super::local_time::LocalZone;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::now;
use lattice_cli_syntax::compat::Compat;
use lattice_model::Resources;
use lattice_slurm::context::Context;
use lattice_slurm::time::Clock;
use nix::unistd::{Uid, User};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// The data that texts need besides the rows.
pub struct Surroundings {
    /// The site's names.
    pub compat: Compat,
    /// The sizes of nodes, if they were fetched.
    pub nodes: BTreeMap<String, Resources>,
    time_format: Option<String>,
    uids: RefCell<BTreeMap<String, Option<u32>>>,
}

impl Surroundings {
    /// Reads the site's names and the environment.
    ///
    /// # Errors
    /// The site's names cannot be read.
    pub fn read() -> Result<Self, Failure> {
        Ok(Self {
            compat: compat::read()?,
            nodes: BTreeMap::new(),
            time_format: std::env::var("SLURM_TIME_FORMAT").ok(),
            uids: RefCell::default(),
        })
    }

    /// Calls a function with this context, at the present time.
    pub fn with<T>(&self, f: impl FnOnce(&Context<'_>) -> T) -> T {
        let clock = Clock::new(now().0, &LocalZone, self.time_format.as_deref());
        let uid_of = |user: &str| self.uid_of(user);
        f(&Context { compat: &self.compat, clock: &clock, uid_of: &uid_of, nodes: &self.nodes })
    }

    fn uid_of(&self, user: &str) -> Option<u32> {
        if let Some(known) = self.uids.borrow().get(user) {
            return *known;
        }
        let found = User::from_name(user).ok().flatten().map(|user| user.uid.as_raw());
        self.uids.borrow_mut().insert(user.to_owned(), found);
        found
    }
}

/// The names of users, some of which may be given by their numbers.
///
/// # Errors
/// This machine has no user with one of the numbers.
pub fn user_names(listed: Vec<String>) -> Result<Vec<String>, Failure> {
    let name = |text: String| match text.parse::<u32>() {
        Ok(uid) => match User::from_uid(Uid::from_raw(uid)) {
            Ok(Some(user)) => Ok(user.name),
            Ok(None) | Err(_) => Err(Failure::other(format!("Invalid user: {text}"))),
        },
        Err(_) => Ok(text),
    };
    listed.into_iter().map(name).collect()
}

/// The calling user.
///
/// # Errors
/// This machine does not know the user.
pub fn own_name() -> Result<String, Failure> {
    let uid = nix::unistd::geteuid();
    let user = User::from_uid(uid).ok().flatten();
    user.map(|user| user.name).ok_or_else(|| Failure::other(format!("Invalid user: {uid}")))
}
