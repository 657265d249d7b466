//! The parser of options, which is used again: to build it takes far longer than to read a line with it.
//!
//! A reader takes an idle parser, or builds one, and returns it afterwards. So no reader waits for another one.

use super::Line;
use clap::{Command, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many idle parsers are retained. Each has the texts of all options, some hundred kilobytes.
const IDLE_PARSERS_MAX: usize = 2;

static IDLE_PARSERS: Mutex<Vec<Command>> = Mutex::new(Vec::new());

fn idle_parsers() -> MutexGuard<'static, Vec<Command>> {
    IDLE_PARSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    /// Reads words such as `--nodes=4`. The same as [`clap::Parser::try_parse_from`], which builds a parser each time.
    ///
    /// # Errors
    /// As that function.
    pub(super) fn from_words<I, T>(words: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<OsString> + Clone,
    {
        let idle = idle_parsers().pop();
        let mut parser = idle.unwrap_or_else(Self::command);
        let read = match parser.try_get_matches_from_mut(words) {
            Ok(mut matches) => Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut parser)),
            Err(error) => Err(error),
        };
        let mut idle = idle_parsers();
        if idle.len() < IDLE_PARSERS_MAX {
            idle.push(parser);
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// The options, or the error's text: errors themselves cannot be compared.
    fn comparable(read: Result<Line, clap::Error>) -> Result<Line, String> {
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn a_parser_that_is_used_again_reads_as_a_new_one() {
        let lines: [&[&str]; 8] = [
            &["--nodes=4", "--walltime=2h", "--tag=a=1", "--tag=b=2"],
            &[],
            &["--nodse=4"],
            &["--nodes=many"],
            &["--walltime=2h", "--walltime=3h"],
            &["-N", "2", "--hold"],
            &["program"],
            &["--name=sim"],
        ];
        for words in lines.iter().chain(&lines) {
            let is_same = comparable(Line::from_words(words.iter())) == comparable(Line::try_parse_from(words.iter()));
            assert!(is_same, "{words:?}");
        }
        assert!(idle_parsers().len() <= IDLE_PARSERS_MAX);
    }
}
