//! Options that are built only for the command that was given. `lattice` is started for every launch, and building the
//! options of all commands took most of its time.

use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};

/// Options that are built when their command was given or its help was requested.
pub struct Later<T>(pub T);

/// Adds the options, and keeps the command's own description: a struct that is flattened into `T` replaces it by the
/// struct's doc comment.
fn augment<T: Args>(command: Command) -> Command {
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    let mut command = T::augment_args(command).long_about(None);
    if let Some(about) = about {
        command = command.about(about);
    }
    match long_about {
        Some(long_about) => command.long_about(long_about),
        None => command,
    }
}

impl<T: Args> Args for Later<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(augment::<T>)
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(T::augment_args_for_update)
    }

    fn group_id() -> Option<Id> {
        T::group_id()
    }
}

impl<T: FromArgMatches> FromArgMatches for Later<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches(matches).map(Self)
    }

    fn from_arg_matches_mut(matches: &mut ArgMatches) -> Result<Self, Error> {
        T::from_arg_matches_mut(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches(matches)
    }

    fn update_from_arg_matches_mut(&mut self, matches: &mut ArgMatches) -> Result<(), Error> {
        self.0.update_from_arg_matches_mut(matches)
    }
}

#[cfg(test)]
mod tests {
    use crate::args::Cli;
    use clap::CommandFactory;

    /// `submit` and `session` flatten a struct that has a doc comment.
    #[test]
    fn a_command_keeps_its_own_description() {
        let before = Cli::command();
        let mut built = before.clone();
        built.build();
        for command in before.get_subcommands() {
            let name = command.get_name();
            let about = |command: &clap::Command| command.get_about().map(ToString::to_string);
            assert_eq!(built.find_subcommand(name).and_then(about), about(command), "{name}");
        }
    }
}
