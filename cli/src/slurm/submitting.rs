//! The common parts of the commands that submit: their variables and session.

use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::Global;
use lattice_cli_syntax::args::output::Output;
use lattice_cli_syntax::slurm::Given;
use lattice_slurm::commands::version_line;
use std::collections::BTreeMap;

/// This process's variables.
pub fn variables() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))).collect()
}

/// A session whose answers are text, whatever the user's settings say. `quiet`: without notes.
pub fn session(quiet: bool) -> Result<Session, Failure> {
    Session::new(&Global { quiet, output: Some(Output::Table), ..Global::default() })
}

/// The information that is printed instead of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Information {
    Version,
    Usage,
}

impl Information {
    /// The information that these options ask for.
    pub fn of(given: &[Given]) -> Option<Self> {
        given.iter().find_map(|given| match given.option.long {
            "version" => Some(Self::Version),
            "help" | "usage" => Some(Self::Usage),
            _ => None,
        })
    }

    /// Its text; `usage` is that of the command.
    pub fn text(self, usage: &str) -> String {
        match self {
            Self::Version => version_line(env!("CARGO_PKG_VERSION")),
            Self::Usage => usage.to_owned(),
        }
    }
}
