//! Options that are put together when they are needed. `lattice` is started for every launch, and most of its own time went into the
//! options of commands that were not given.

use clap::builder::Resettable;
use clap::error::Error;
use clap::{ArgMatches, Args, Command, FromArgMatches, Id};

/// The same options, made once their command is the one that was given, or its help is asked for.
pub struct Later<T>(pub T);

/// Adds the options, which are made after the command has its description: a comment on their struct must not replace it.
fn keep_about(command: Command, augment: impl FnOnce(Command) -> Command) -> Command {
    let (about, long_about) = (command.get_about().cloned(), command.get_long_about().cloned());
    let command = augment(command).long_about(long_about.map_or(Resettable::Reset, Resettable::Value));
    command.about(about.map_or(Resettable::Reset, Resettable::Value))
}

impl<T: Args> Args for Later<T> {
    fn augment_args(command: Command) -> Command {
        command.defer(|command| keep_about(command, T::augment_args))
    }

    fn augment_args_for_update(command: Command) -> Command {
        command.defer(|command| keep_about(command, T::augment_args_for_update))
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
