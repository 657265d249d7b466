//! `sbatch`: submits a script, and prints its job's number.
//!
//! ```text
//!   options, SBATCH_... variables, #SBATCH lines ─▶ read_for_sbatch ─▶ specification ─▶ the same request as `lattice submit`
//! ```

mod test_only;

use super::arguments::texts;
use super::compat;
use super::submitting::{self, Information};
use crate::command::{submit, wait};
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::print;
use lattice_cli_session::request::{self, Program, STDIN};
use lattice_cli_session::session::Session;
use lattice_cli_syntax::directives;
use lattice_cli_syntax::slurm::{self, Arguments, OwnOptions};
use std::ffi::{OsStr, OsString};

const USAGE: &str = "Usage: sbatch [OPTIONS...] SCRIPT [ARGUMENTS...]
       sbatch [OPTIONS...] --wrap COMMAND

Submits a script, or a command line, and prints the job's number. Without a
script it is read from standard input. What the job writes goes into
slurm-NUMBER.out in the directory of the submission, unless --output names
another file.

The options are those of Slurm's sbatch(1). What becomes of each is in the
guide, docs/reference/slurm-options.md.
";
/// The name of a script from standard input, and of a command line.
const STDIN_NAME: &str = "sbatch";
const WRAP_NAME: &str = "wrap";

pub async fn run(_session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let args = texts(args)?;
    let environment = submitting::variables();
    let Arguments { given, rest } = slurm::read_arguments(slurm::Command::Sbatch, "", &args)?;
    let wrap = given.iter().rfind(|given| given.option.long == "wrap").and_then(|given| given.value.clone());
    if let Some(information) = Information::of(&given) {
        return print(&information.text(USAGE)).map(|()| 0);
    }
    let (name, text, arguments) = script(wrap, rest)?;
    let compat = compat::read()?;
    let (asked, own) = directives::read_for_sbatch(&name, &text, &given, &environment, &compat)?;
    let session = submitting::session(own.quiet > 0)?;
    asked.warnings.iter().for_each(|note| session.note(note));
    let wait_for_nodes = asked.flags.wait_for_nodes;
    let spec = submit::specify(&session, &asked, Program::Script { name, text, args: arguments }, own.hold && !own.test_only)?;
    let client = session.connect().await?;
    if own.test_only {
        return Box::pin(test_only::run(&session, &client, spec, wait_for_nodes, &compat)).await;
    }
    let submitted = Box::pin(submit::submit_numbered(&session, &client, spec, wait_for_nodes)).await?;
    print(&answer(submitted.number, &own))?;
    if own.wait { Box::pin(wait::until_ended(&session, &submitted.id)).await } else { Ok(0) }
}

/// The text that is printed after a submission.
fn answer(number: u64, own: &OwnOptions) -> String {
    match (own.parsable, own.cluster.as_deref(), own.quiet) {
        (true, Some(cluster), _) => format!("{number};{cluster}\n"),
        (true, None, _) => format!("{number}\n"),
        (false, _, 0) => format!("Submitted batch job {number}\n"),
        (false, _, _) => String::new(),
    }
}

/// The name, the text and the arguments of the script.
fn script(wrap: Option<String>, rest: Vec<String>) -> Result<(String, String, Vec<String>), Failure> {
    if let Some(command) = wrap {
        if !rest.is_empty() {
            return Err(Failure::usage("Script arguments are not permitted with --wrap option.")
                .hint("write the whole command line as the value of --wrap, in quotes"));
        }
        return Ok((WRAP_NAME.to_owned(), format!("#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{command}\n"), rest));
    }
    let mut rest = rest.into_iter();
    let file = rest.next();
    if file.as_deref() == Some(":") {
        return Err(Failure::usage("heterogeneous jobs are not supported, and the job would be different without it")
            .hint(slurm::NOT_HETEROGENEOUS));
    }
    let arguments: Vec<String> = rest.collect();
    let path = file.as_deref().unwrap_or(STDIN);
    let of_program =
        |failure: Failure| Failure::usage(failure.what()).hint("a program is submitted as `sbatch --wrap 'PROGRAM ARGUMENTS'`");
    let (name, text) = request::read_text(OsStr::new(path), &arguments).map_err(of_program)?;
    if !text.starts_with("#!") {
        return Err(Failure::usage(
            "This does not look like a batch script: its first line must begin with #! and the path of an interpreter.",
        )
        .hint("for instance: #!/bin/sh"));
    }
    if text.lines().next().is_some_and(|line| line.ends_with('\r')) || text.contains("\r\n") {
        return Err(Failure::usage("The batch script has DOS line breaks (\\r\\n) instead of UNIX line breaks (\\n).")
            .hint("`dos2unix` converts it"));
    }
    Ok((if path == STDIN { STDIN_NAME.to_owned() } else { name }, text, arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_printed_as_scripts_parse_it() {
        let own = |parsable, cluster: Option<&str>, quiet| OwnOptions {
            parsable,
            cluster: cluster.map(str::to_owned),
            quiet,
            ..OwnOptions::default()
        };
        assert_eq!(answer(12, &own(false, None, 0)), "Submitted batch job 12\n");
        assert_eq!(answer(12, &own(false, None, 1)), "");
        assert_eq!(answer(12, &own(true, None, 0)), "12\n");
        assert_eq!(answer(12, &own(true, Some("lattice"), 1)), "12;lattice\n");
    }

    #[test]
    fn a_command_line_is_a_script_and_other_files_are_refused() {
        let (name, text, args) = script(Some("echo a; echo b".to_owned()), Vec::new()).unwrap();
        assert_eq!((name.as_str(), args.len()), ("wrap", 0));
        assert!(text.starts_with("#!/bin/sh\n") && text.ends_with("\necho a; echo b\n"), "{text}");
        assert!(script(Some("true".to_owned()), vec!["x".to_owned()]).is_err());
        for (contents, expected) in [("echo\n", "does not look like a batch script"), ("#!/bin/sh\r\n", "DOS line breaks")] {
            let path = std::env::temp_dir().join(format!("lattice-sbatch-{}", uuid::Uuid::new_v4()));
            std::fs::write(&path, contents).unwrap();
            let refused = script(None, vec![path.to_string_lossy().into_owned()]);
            std::fs::remove_file(&path).unwrap();
            let text = refused.err().unwrap().text();
            assert!(text.contains(expected), "{text}");
        }
        assert!(script(None, vec![":".to_owned()]).err().unwrap().text().contains("heterogeneous"));
    }
}
