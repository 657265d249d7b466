//! Command lines that cannot be read, where more can be said of them than the parser knows: Slurm's options, and what they are here.

use crate::directives::sbatch::{self, Rule};
use crate::failure::Failure;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::ffi::OsString;

/// Commands that take the options of a submission.
const SUBMITTING: [&str; 3] = ["submit", "launch", "session"];
/// Options that are refused by name where they are given, so that nobody is led to them.
const UNBUILT: [&str; 9] =
    ["--intent", "--view", "--image", "--topology", "--reactive", "--depends-on", "--telemetry", "--task-group", "--sensitive"];

/// What to say of a command line that was not read; `None`: what the parser says.
pub fn explain(error: &Error, typed: &[OsString]) -> Option<Failure> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    let option = context(ContextKind::InvalidArg)?;
    match error.kind() {
        ErrorKind::InvalidValue if option.starts_with("--output") => format_or_file(&context(ContextKind::InvalidValue)?),
        ErrorKind::UnknownArgument => {
            let command = typed.iter().skip(1).find_map(|word| SUBMITTING.into_iter().find(|command| *word == **command))?;
            Some(unknown(command, &option, context(ContextKind::SuggestedArg)))
        }
        _ => None,
    }
}

/// `-o` of other systems names a file.
fn format_or_file(value: &str) -> Option<Failure> {
    value.contains(['.', '/', '%']).then(|| {
        Failure::usage(format!("--output {value}: -o is the format of this command's answer, as in -o json, and names no file"))
            .hint("`lattice logs ID` shows what a job wrote; into a file of its own it writes with `exec >FILE 2>&1` in its script")
    })
}

/// An option that a command has not; `suggested`: what the parser knows that is like it.
pub fn unknown(command: &str, option: &str, suggested: Option<String>) -> Failure {
    let failure = Failure::usage(format!("{option}: `lattice {command}` has no such option"));
    if let (Some(known), _) = sbatch::look_up(option) {
        return match known.rule {
            Rule::Refused(remedy) => Failure::usage(format!("{option}: Slurm's option is not honoured here")).hint(remedy),
            Rule::Harmless(_) => failure.hint("it changes nothing of what runs: leave it out"),
            Rule::Value(ours) | Rule::Plain(ours) => failure.hint(format!("say {ours}")),
            Rule::Time => failure.hint("say --walltime"),
            Rule::Memory => failure.hint("say --mem"),
            Rule::Gres | Rule::GpusPerNode => failure.hint("say --gpus=N, of each node, and their kind with --constraint gpu_type=KIND"),
            Rule::Export => failure.hint("say --export and --env"),
        };
    }
    match suggested.filter(|suggested| !UNBUILT.contains(&suggested.as_str())) {
        Some(meant) => failure.hint(format!("did you mean {meant}?")),
        None => failure
            .hint(format!("`lattice {command} --help` lists the options; what begins with a dash and is the program's own goes after --")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::Parser;

    fn told(line: &str) -> Option<String> {
        let typed: Vec<OsString> = std::iter::once("lattice").chain(line.split(' ')).map(OsString::from).collect();
        let error = Cli::try_parse_from(&typed).err().unwrap_or_else(|| panic!("{line} was taken"));
        explain(&error, &typed).map(|failure| failure.text())
    }

    #[test]
    fn what_slurm_has_is_answered_in_the_words_that_were_written() {
        for (line, what, hint) in [
            ("submit --array=0-9 job.sh", "error: --array: Slurm's option is not honoured here", "job arrays are not built yet"),
            ("submit --dependency=afterok:1 job.sh", "error: --dependency: Slurm's", "dependencies are not built yet"),
            ("submit --gres=gpu:4 job.sh", "error: --gres: `lattice submit` has no such option", "say --gpus=N"),
            ("submit --account ml job.sh", "error: --account: `lattice submit` has no such option", "say --tenant"),
            ("submit -p debug job.sh", "error: -p: `lattice submit` has no such option", "say --vcluster"),
            ("submit --mail-type=END job.sh", "error: --mail-type:", "leave it out"),
            ("submit -u -- python3 a.py", "error: -u: `lattice submit` has no such option", "goes after --"),
            ("submit --noodes=2 job.sh", "error: --noodes:", "did you mean --nodes?"),
            ("session --signal=USR1", "error: --signal:", "--checkpoint-signal"),
            ("submit --output=x.log job.sh", "error: --output x.log: -o is the format", "lattice logs ID"),
            ("submit -o slurm-%j.out job.sh", "error: --output slurm-%j.out: -o is the format", "exec >FILE"),
        ] {
            let told = told(line).unwrap_or_else(|| panic!("{line}"));
            assert!(told.starts_with(what) && told.contains("\nhint: ") && told.contains(hint), "{line}: {told}");
            assert!(!told.contains("--task-group") && !told.contains("--reactive"), "{line}: {told}");
        }
    }

    #[test]
    fn the_parser_speaks_where_it_knows_as_much() {
        for line in ["status -o jsno", "statsu", "submit --nodes=0 x", "node list --stat=x"] {
            assert_eq!(told(line), None, "{line}");
        }
    }
}
