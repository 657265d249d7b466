//! The common parts of commands that show something: options, clusters, refusals.

use super::arguments;
use clap::Parser;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::message::{harmless, write_message};
use lattice_cli_session::output::print;
use lattice_cli_syntax::compat::Compat;
use lattice_cli_syntax::slurm_args::HasCommon;
use std::ffi::OsString;
use std::fmt::Display;

/// A command of Slurm.
#[derive(Clone, Copy, Debug)]
pub struct Command(pub &'static str);

/// `scontrol`, whose commands are in several files.
pub const SCONTROL: Command = Command("scontrol");

impl Command {
    /// The options. `None`: the help, the usage or the version was printed.
    ///
    /// # Errors
    /// They are not understood.
    pub fn parse<P: Parser + HasCommon>(self, args: &[OsString]) -> Result<Option<P>, Failure> {
        let Some(parsed) = arguments::parse::<P>(self.0, args)? else { return Ok(None) };
        if parsed.common().usage {
            print(&format!("{}\n", P::command().render_usage()))?;
            return Ok(None);
        }
        Ok(Some(parsed))
    }

    /// Refuses another cluster than this one.
    ///
    /// # Errors
    /// One of these is another cluster.
    pub fn check_clusters(self, clusters: &[String], compat: &Compat) -> Result<(), Failure> {
        let listed = lattice_slurm::units::listed(clusters);
        match listed.iter().find(|name| !name.eq_ignore_ascii_case("all") && *name != compat.cluster()) {
            Some(other) => Err(Failure::other(format!("No cluster '{other}' known by database."))
                .hint(format!("this is the cluster {}; leave -M out", compat.cluster()))),
            None => Ok(()),
        }
    }

    /// Refuses an option, if it is given.
    ///
    /// # Errors
    /// It is given.
    pub fn refuse(self, is_given: bool, option: &str, why: &str) -> Result<(), Failure> {
        if is_given { Err(Failure::other(format!("{option} is not possible: {why}"))) } else { Ok(()) }
    }

    /// Reports one failure; the command continues.
    pub fn report(self, what: impl Display) {
        write_message(harmless(&format!("{}: error: {what}\n", self.0)));
    }
}

/// The value of an option, or else of a variable of the environment.
pub fn or_variable(option: Option<&String>, variable: &str) -> Option<String> {
    option.cloned().or_else(|| std::env::var(variable).ok().filter(|value| !value.is_empty()))
}

/// The same for an option that may be given several times.
pub fn all_or_variable(options: &[String], variable: &str) -> Vec<String> {
    if options.is_empty() { or_variable(None, variable).into_iter().collect() } else { options.to_vec() }
}
