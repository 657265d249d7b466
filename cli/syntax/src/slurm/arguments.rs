//! Reads options as `getopt_long` does: `--name value`, `--name=value`, unique beginnings of names, `-n4`, `-n 4` and
//! clusters such as `-vQ`. They end at the first word that is not an option: the script or the program.

use super::option::{Command, SlurmOption, Takes};
use super::table::OPTIONS;
use crate::UsageError;

/// An option that was given.
#[derive(Clone)]
pub struct Given {
    /// Its row in the table.
    pub option: &'static SlurmOption,
    /// As it was written, such as `--gres=gpu:4` or `-N`.
    pub written: String,
    /// Its value.
    pub value: Option<String>,
    /// Where it was given, for messages: empty for a command line, else it ends with a blank.
    pub place: String,
}

impl Given {
    /// Whether it is of a command line, not of a variable or a script's line.
    pub fn is_typed(&self) -> bool {
        self.place.is_empty() && self.written.starts_with('-')
    }

    /// The option as messages show it.
    pub fn shown(&self) -> String {
        format!("{}{}", self.place, self.written)
    }
}

/// A command line, read.
#[derive(Default)]
pub struct Arguments {
    /// The options, in their order.
    pub given: Vec<Given>,
    /// The script or the program, and its arguments.
    pub rest: Vec<String>,
}

/// Reads the options of `command` in `words`; `place` begins each message.
///
/// # Errors
/// An option that the command does not have, or a value that is missing or not expected.
pub fn read_arguments(command: Command, place: &str, words: &[String]) -> Result<Arguments, UsageError> {
    let mut given = Vec::new();
    let mut next = 0;
    while let Some(word) = words.get(next) {
        next += 1;
        if word == "--" {
            break;
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, joined) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let option = find_long(command, name).map_err(|error| located(place, word, error))?;
            let value = match (option.takes, joined) {
                (Takes::Nothing, Some(_)) => return Err(no_value(place, word)),
                (Takes::Nothing | Takes::Perhaps, joined) => joined,
                (Takes::Value, Some(joined)) => Some(joined),
                (Takes::Value, None) => {
                    next += 1;
                    Some(words.get(next - 1).cloned().ok_or_else(|| value_missing(place, word))?)
                }
            };
            given.push(Given { option, written: word.clone(), value, place: place.to_owned() });
            continue;
        }
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            next -= 1;
            break;
        };
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            let option = find_short(command, letter).ok_or_else(|| located(place, word, unknown()))?;
            let joined = letters.as_str();
            let value = match option.takes {
                Takes::Nothing => None,
                Takes::Value if joined.is_empty() => {
                    next += 1;
                    Some(words.get(next - 1).cloned().ok_or_else(|| value_missing(place, word))?)
                }
                Takes::Perhaps if joined.is_empty() => None,
                Takes::Value | Takes::Perhaps => Some(joined.strip_prefix('=').unwrap_or(joined).to_owned()),
            };
            let takes_rest = !matches!(option.takes, Takes::Nothing);
            given.push(Given { option, written: word.clone(), value, place: place.to_owned() });
            if takes_rest {
                break;
            }
        }
    }
    Ok(Arguments { given, rest: words.get(next..).unwrap_or_default().to_vec() })
}

/// The option of any of the commands that a word such as `--gres=gpu:4`, `--gres` or `-N4` names.
pub fn find_option(word: &str) -> Option<&'static SlurmOption> {
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split('=').next().unwrap_or(long);
        return OPTIONS.iter().find(|option| option.long == name);
    }
    let letter = word.strip_prefix('-')?.chars().next()?;
    OPTIONS.iter().find(|option| option.short == Some(letter))
}

/// The option of a command with this whole name.
pub(super) fn find_exactly(command: Command, name: &str) -> Option<&'static SlurmOption> {
    OPTIONS.iter().find(|option| option.long == name && option.is_of(command))
}

fn find_short(command: Command, letter: char) -> Option<&'static SlurmOption> {
    OPTIONS.iter().find(|option| option.short == Some(letter) && option.is_of(command))
}

/// What is wrong with a word: the text that follows it in the message, and the hint.
struct Wrong {
    why: String,
    hint: String,
}

/// The option of a command with this name, or with the only name that begins with it.
fn find_long(command: Command, name: &str) -> Result<&'static SlurmOption, Wrong> {
    if let Some(option) = find_exactly(command, name) {
        return Ok(option);
    }
    let begin_so: Vec<_> = OPTIONS.iter().filter(|option| option.is_of(command) && option.long.starts_with(name)).collect();
    match begin_so.as_slice() {
        [option] if !name.is_empty() => Ok(*option),
        [_, _, ..] if !name.is_empty() => {
            let names: Vec<String> = begin_so.iter().map(|option| format!("--{}", option.long)).collect();
            Err(Wrong { why: "several options begin so".to_owned(), hint: format!("write one of {}", names.join(", ")) })
        }
        _ => Err(of_other_commands(name)),
    }
}

fn unknown() -> Wrong {
    Wrong {
        why: "there is no such option".to_owned(),
        hint: "an unknown option might change the job, so it is refused; docs/reference/slurm-options.md lists the options".to_owned(),
    }
}

/// The error for an option that this command does not have. It names other commands that have it.
fn of_other_commands(name: &str) -> Wrong {
    let commands: Vec<&str> =
        Command::ALL.into_iter().filter(|command| find_exactly(*command, name).is_some()).map(Command::name).collect();
    match commands.as_slice() {
        [] => unknown(),
        commands => Wrong { why: format!("it is an option of {}, not of this command", commands.join(" and ")), hint: unknown().hint },
    }
}

fn located(place: &str, word: &str, wrong: Wrong) -> UsageError {
    UsageError { what: format!("{place}{word}: {}", wrong.why), hint: Some(wrong.hint) }
}

fn value_missing(place: &str, word: &str) -> UsageError {
    UsageError { what: format!("{place}{word}: a value is needed"), hint: None }
}

fn no_value(place: &str, word: &str) -> UsageError {
    UsageError { what: format!("{place}{word}: this option has no value"), hint: Some("write the option alone".to_owned()) }
}
