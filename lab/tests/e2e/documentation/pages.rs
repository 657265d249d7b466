//! The requirements of each how-to page, or why it cannot run.

mod operators;
mod users;

pub use operators::OPERATORS;
pub use users::USERS;

use crate::harness::World;

/// The pages of one kind of reader.
pub struct Manual {
    /// Their folder below `docs`.
    pub folder: &'static str,
    /// The file of `pages` below `lab/tests/e2e/documentation`.
    pub plans: &'static str,
    pub pages: &'static [(&'static str, Plan)],
}

/// What is done with a page.
pub enum Plan {
    Run(Page),
    /// It cannot run on a lab's cluster, for this reason.
    CannotRun(&'static str),
    /// It has no commands: it shows settings and explains them.
    NoCommands,
}

/// The requirements of a page's commands.
pub struct Page {
    /// Preparations that no command makes.
    pub prepare: fn(&World),
    /// An operator's commands that run after `prepare`. `$LAB` is the cluster's folder.
    pub before: &'static [&'static str],
    /// Names and files of a site in the page's commands, and what replaces each.
    pub replace: &'static [(&'static str, &'static str)],
    /// The submission for the page's id placeholders: options, and a script or a command.
    pub work: &'static str,
    /// If the page has no script: the users' page whose script is `train.sh`; `None`: a script that only sleeps 0.1 s.
    pub script_of: Option<&'static str>,
    /// For a page about commands inside an allocation: the options of that allocation.
    pub inside: Option<&'static str>,
    /// The beginnings of commands that run until they are interrupted.
    pub endless: &'static [&'static str],
    /// The beginnings of commands that are left out, and why.
    pub but: &'static [(&'static str, &'static str)],
    /// Restores the cluster once the page's work is gone.
    pub restore: fn(&World),
}

/// Programs that the pages start. Each is replaced by a script that succeeds at once.
pub const PROGRAMS: [&str; 6] = ["program", "mpi_program", "simulate", "server", "worker", "open_mpi_program"];

/// The name that replaces `NAME`.
pub const VCLUSTER: &str = "documented";

const SLEEPS: &str = "--cores 1 -- sleep 300";

const fn page() -> Page {
    Page {
        prepare: |_| {},
        before: &[],
        replace: &[],
        work: SLEEPS,
        script_of: None,
        inside: None,
        endless: &[],
        but: &[],
        restore: |_| {},
    }
}
