//! `lattice completion`: prints a script by which a shell completes command lines of `lattice`, and answers that script.
//!
//! ```text
//!   shell ── LATTICE_COMPLETE=bash lattice -- WORDS… ─▶ definition of the command line, without what --help hides
//!                                                        └ values of the cluster: see `live`
//! ```
//!
//! An answer never has an error message: the user has not finished typing.

mod live;

use clap::builder::Resettable;
use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::engine::complete;
use clap_complete::env::{CompleteEnv, Shells};
use clap_complete::{PathCompleter, Shell};
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{print, print_bytes};
use lattice_cli_syntax::args::Cli;
use lattice_cli_syntax::args::completion::Completion;
use live::Source;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// Names the shell that asks.
const VARIABLE: &str = "LATTICE_COMPLETE";

const NAME: &str = "lattice";

/// How the function of the script for bash ends.
const BASH_FUNCTION_END: &str = "\n    fi\n}\n";

/// The same, with the option that makes bash quote values such as `my script.sh`. Without such values the option is not
/// set, because bash then also adds a slash to each value that is a directory.
const QUOTING_BASH_FUNCTION_END: &str = r#"
    fi
    if [[ "${COMPREPLY[*]-}" == *[\ \&\;\|\(\)\<\>\$\'\"\`\*\?\!]* ]]; then
        compopt -o filenames 2> /dev/null
    fi
}
"#;

pub fn run(args: &Completion) -> Result<(), Failure> {
    print(&script(args.shell)?)
}

/// The script runs `lattice` as the shell finds it in `PATH`.
fn script(shell: Shell) -> Result<String, Failure> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let known = shells.completer(&name).ok_or_else(|| Failure::usage(format!("there is no completion for {name}")))?;
    let mut script = Vec::new();
    known
        .write_registration(VARIABLE, NAME, NAME, NAME, &mut script)
        .map_err(|error| Failure::other(format!("cannot write the script: {error}")))?;
    let script = String::from_utf8_lossy(&script).into_owned();
    Ok(if shell == Shell::Bash { script.replacen(BASH_FUNCTION_END, QUOTING_BASH_FUNCTION_END, 1) } else { script })
}

/// Answers a shell that asks for completions; `None`: this process was not called by one.
pub fn answer_shell() -> Option<ExitCode> {
    // `0` means off, as with every program that makes completions in this way.
    let shell = std::env::var_os(VARIABLE).filter(|shell| !shell.is_empty() && shell != "0")?;
    let args: Vec<OsString> = std::env::args_os().collect();
    let words: Vec<OsString> = args.iter().skip_while(|arg| *arg != "--").skip(1).cloned().collect();
    let source = Source::of(&words);
    let dir = std::env::current_dir().ok();
    let done = if shell == "bash" && !words.is_empty() {
        answer_bash(words, &source, dir.as_deref())
    } else {
        let answer = CompleteEnv::with_factory(|| definition(&source)).var(VARIABLE).bin(NAME).completer(NAME);
        answer.try_complete(args, dir.as_deref()).map(drop).map_err(io::Error::other)
    };
    Some(if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn answer_bash(words: Vec<OsString>, source: &Source, dir: Option<&Path>) -> io::Result<()> {
    let index = std::env::var("_CLAP_COMPLETE_INDEX").ok().and_then(|index| index.parse().ok()).unwrap_or_default();
    let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
    let (mut words, index) = without_equals_signs(words, index);
    if let Some(typed) = words.get_mut(index) {
        *typed = without_backslashes(typed);
    }
    let found = complete(&mut definition(source), words, index, dir)?;
    let values: Vec<String> = found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect();
    print_bytes(values.join(&separator).as_bytes()).map_err(|failure| io::Error::other(failure.what()))
}

/// Bash makes three words of `--option=value`. Without the second one they mean the same.
fn without_equals_signs(words: Vec<OsString>, index: usize) -> (Vec<OsString>, usize) {
    let (mut kept, mut kept_index) = (Vec::<OsString>::new(), index);
    for (at, word) in words.into_iter().enumerate() {
        let is_after_option = kept.last().is_some_and(|before| before.as_encoded_bytes().starts_with(b"--"));
        if word == "=" && is_after_option && at != index {
            kept_index -= usize::from(at < index);
        } else {
            kept.push(word);
        }
    }
    (kept, kept_index)
}

/// A word as bash would pass it to the command: bash gives the unfinished one as it was typed, `my\ scr`.
fn without_backslashes(word: &OsStr) -> OsString {
    let Some(text) = word.to_str() else { return word.to_owned() };
    let (mut plain, mut typed) = (String::new(), text.chars());
    while let Some(c) = typed.next() {
        plain.push(if c == '\\' { typed.next().unwrap_or(c) } else { c });
    }
    plain.into()
}

/// The command line as the shell completes it.
fn definition(source: &Source) -> Command {
    let mut all = Cli::command();
    all.build();
    without_hidden(&all, &[], source)
}

/// The engine also offers hidden options and commands if nothing else fits, so it gets a definition without them.
/// `path`: the names of the commands before it, without `lattice`, and its own.
fn without_hidden(command: &Command, path: &[&str], source: &Source) -> Command {
    // A name must be static. There are some two hundred, leaked once in a process that ends soon.
    let name: &'static str = command.get_name().to_owned().leak();
    let aliases = command.get_visible_aliases().map(|alias| &*alias.to_owned().leak());
    // Building the definition adds these, so they must not be added twice.
    let is_added = |name: &str| name == "help" || name == "version";
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_added(arg.get_id().as_str()));
    let below = command.get_subcommands().filter(|below| !below.is_hide_set() && !is_added(below.get_name()));
    Command::new(name)
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().map(|_| env!("CARGO_PKG_VERSION")))
        .disable_help_flag(command.is_disable_help_flag_set())
        .visible_aliases(aliases)
        .args(args.map(|arg| with_values(on_its_own(arg), path, source)))
        .subcommands(below.map(|below| without_hidden(below, &[path, &[below.get_name()]].concat(), source)))
}

/// Removes the relations to other options, which may be hidden.
fn on_its_own(arg: &Arg) -> Arg {
    let arg = arg.clone().conflicts_with(Resettable::Reset).overrides_with(Resettable::Reset);
    arg.requires(Resettable::Reset).required_unless_present(Resettable::Reset)
}

/// Adds the completion of its values to an option or argument.
fn with_values(arg: Arg, path: &[&str], source: &Source) -> Arg {
    if let Some(subject) = live::subject(path, arg.get_id().as_str()) {
        return arg.add(source.completer(subject));
    }
    let id = arg.get_id().as_str().to_owned();
    let value_name = arg.get_value_names().and_then(|names| names.first()).map(|name| name.as_str().to_owned()).unwrap_or_default();
    match (id.as_str(), value_name.as_str()) {
        ("uenv", _) => arg.add(clap_complete::ArgValueCompleter::new(PathCompleter::any().filter(is_image))),
        ("script", _) | (_, "FILE") => arg.value_hint(ValueHint::FilePath),
        (_, "DIR") => arg.value_hint(ValueHint::DirPath),
        _ => arg,
    }
}

/// Whether a software environment may be this file.
fn is_image(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "squashfs" || extension == "sqfs")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    /// The completions of the last word, without a cluster.
    fn offered(line: &str) -> Vec<String> {
        let words: Vec<OsString> = std::iter::once(NAME).chain(line.split(' ')).map(OsString::from).collect();
        let source = Source::of(&["lattice", "--endpoint", "unix:/nonexistent/agent.sock"].map(OsString::from));
        let last = words.len() - 1;
        let found = complete(&mut definition(&source), words, last, None).unwrap_or_default();
        found.iter().map(|candidate| candidate.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_help_shows_is_completed_and_nothing_hidden() {
        assert_eq!(offered("sub"), ["submit"]);
        assert_eq!(offered("node uncord"), ["uncordon"]);
        assert_eq!(offered("submit --wallt"), ["--walltime", "--walltime-min"]);
        assert_eq!(offered("status -o js"), ["json"]);
        assert_eq!(offered("status --no-col"), ["--no-color"]);
        assert_eq!(offered("submit --sensi"), Vec::<String>::new());
        assert_eq!(offered("metri"), Vec::<String>::new());
    }

    #[test]
    fn without_an_agent_there_are_no_values_and_no_errors() {
        for line in ["cancel 1", "node drain n", "submit --vcluster d", "admin tenant show p"] {
            assert_eq!(offered(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn each_shell_has_a_script_that_calls_lattice() {
        for shell in Shell::value_variants() {
            let script = script(*shell).unwrap_or_else(|failure| panic!("{shell}: {}", failure.text()));
            assert!(script.contains(VARIABLE) && script.contains(NAME), "{shell}: {script}");
        }
    }

    #[test]
    fn bash_quotes_values_that_need_it() {
        let script = script(Shell::Bash).unwrap_or_else(|failure| panic!("{}", failure.text()));
        assert!(script.contains("compopt -o filenames"), "the end of the function has changed: {script}");
        // Names of others' services are among the values: bash replaces an unquoted `!cd` by a command of its history.
        assert!(script.contains(r"\?\!]*"), "{script}");
        assert_eq!(without_backslashes(OsStr::new(r"my\ scr")), "my scr");
        assert_eq!(without_backslashes(OsStr::new(r"a\")), r"a\");
    }

    #[test]
    fn an_equals_sign_of_bash_is_no_word() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let kept = |line: &str, index| without_equals_signs(words(line), index);
        assert_eq!(kept("lattice status --state = pen", 4), (words("lattice status --state pen"), 3));
        assert_eq!(kept("lattice status --state =", 3), (words("lattice status --state ="), 3));
        assert_eq!(kept("lattice cancel 1f", 2), (words("lattice cancel 1f"), 2));
    }
}
