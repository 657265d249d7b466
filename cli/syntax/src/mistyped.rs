//! Explains command lines that the parser refuses, if its own text is not enough: options of Slurm, and documented
//! commands and options that are not built. Also removes misleading tips of the parser.

use crate::UsageError;
use crate::args::Cli;
use crate::scaling::ScalingFlags;
use crate::slurm::{self, Rule, SlurmOption};
use crate::unbuilt::UnbuiltFlags;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use std::ffi::OsString;

/// Commands that accept the options of a submission.
const SUBMITTING_COMMANDS: [&str; 3] = ["submit", "launch", "session"];

/// The options of task groups, which only `submit` has.
const TASK_GROUP_OPTIONS: [&str; 4] = ["--task-group", "--array", "-a", "--max-failures"];

/// Names that other systems have for the bounds of a scaled service.
const REPLICA_OPTIONS: [&str; 3] = ["--replicas", "--min-replicas", "--max-replicas"];

/// Documented commands that are not built, each with the commands before it.
const UNBUILT_COMMANDS: [(&str, &str); 9] = [
    ("cache", "`lattice node status NODE` shows a node's images"),
    (
        "compat-aliases",
        "`lattice compat install --dir DIR` makes sbatch, srun, squeue and the others; or use `lattice submit` for sbatch, `lattice \
         status` for squeue, `lattice launch` for srun",
    ),
    ("admin accounting reconcile", "each end is stored once: `lattice admin accounting status` shows what waits, and what was dropped"),
    ("admin config", "members and agents read /etc/lattice/quorum.yaml and agent.yaml when they start: change these files"),
    ("admin backup", "on a member's machine, `lattice quorum backup` makes a backup and `lattice quorum verify` checks one"),
    ("admin federation", "there is one site: name another one's agent with --endpoint"),
    ("admin reserve", "`lattice admin reservation create NAME --nodes HOSTLIST --start TIME --duration TIME --user NAME`"),
    ("admin scheduler", "`lattice vcluster list` shows which agent serves each queue, `lattice vcluster queue NAME` what waits in one"),
    ("admin metrics", "every agent and member serves its metrics at /metrics: port 9103 of an agent, 9100 of a member"),
];

/// Documented options of any command that are not built.
const UNBUILT_OPTIONS: [(&str, &str); 4] = [
    ("--site", "there is one site: name another one's agent with --endpoint"),
    ("--tools-uenv", "an allocation has one image: name one that has the tools with --uenv"),
    ("--wrap", "a command line goes after --: `lattice submit -- sh -c 'COMMAND LINE'`"),
    ("--metric", "`lattice compare` has it; `lattice watch ID --metrics=NAME` shows only the numbers that are named"),
];

/// Options that are documented for every command, but built only for some commands or for none.
const UNBUILT_EVERYWHERE: [(&str, &str); 1] =
    [("--vcluster", "give it after a command that has it: `lattice submit --vcluster=NAME`, `lattice status --vcluster=NAME`")];

/// The explanation of a command line that could not be parsed; `None`: the parser's own text.
pub fn explain(error: &Error, typed: &[OsString]) -> Option<UsageError> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    if error.kind() == ErrorKind::InvalidSubcommand {
        return explain_unbuilt_command(&context(ContextKind::InvalidSubcommand)?, typed);
    }
    let option = context(ContextKind::InvalidArg)?;
    match error.kind() {
        // `lattice submit` has the format as `-o` alone.
        ErrorKind::InvalidValue if option.starts_with("--output") || option.starts_with("-o ") => {
            explain_file_as_format(&context(ContextKind::InvalidValue)?, typed)
        }
        ErrorKind::UnknownArgument => explain_unbuilt_option(&UNBUILT_OPTIONS, &option, "").or_else(|| {
            let command = typed.iter().skip(1).find_map(|word| SUBMITTING_COMMANDS.into_iter().find(|command| *word == **command));
            let is_before_command = typed.get(1).and_then(|first| first.to_str()).is_some_and(|first| first.starts_with('-'));
            match command {
                // After such a command it may be an option of Slurm.
                Some(command) if !is_before_command => Some(unknown_option(command, &option, context(ContextKind::SuggestedArg))),
                _ if option == "--config" => Some(
                    UsageError::new("--config: it is no option of a command, but stands before the command")
                        .with_hint("write `lattice --config=FILE status`; or set LATTICE_CONFIG"),
                ),
                // A short option after another command is a typing error: the parser explains it.
                _ if is_before_command || option.starts_with("--") => {
                    explain_unbuilt_option(&UNBUILT_EVERYWHERE, &option, " as an option of every command")
                }
                _ => None,
            }
        }),
        _ => None,
    }
}

/// A command that is not built. The parser did not know `word`, which is a command, or a subcommand of the commands
/// before it.
fn explain_unbuilt_command(word: &str, typed: &[OsString]) -> Option<UsageError> {
    let mut root = Cli::command();
    // Only a built command knows its subcommands.
    root.build();
    let (mut parent, mut whole) = (&root, String::new());
    let before = typed.iter().skip(1).take_while(|typed| **typed != *word);
    for name in before.filter_map(|typed| typed.to_str()) {
        if let Some(command) = parent.find_subcommand(name) {
            parent = command;
            whole.push_str(name);
            whole.push(' ');
        }
    }
    whole.push_str(word);
    let (command, hint) = UNBUILT_COMMANDS.into_iter().find(|(command, _)| *command == whole)?;
    Some(UsageError::new(format!("`lattice {command}` is not built yet")).with_hint(hint))
}

/// An option of one of the tables above, which is not built. `of_what` is added to the message.
fn explain_unbuilt_option(table: &[(&'static str, &'static str)], option: &str, of_what: &str) -> Option<UsageError> {
    let (option, hint) = table.iter().find(|(name, _)| *name == option)?;
    Some(UsageError::new(format!("{option} is not built yet{of_what}")).with_hint(*hint))
}

/// The explanation for a value of `--output` that looks like a file's name: in other systems `-o` names a file.
fn explain_file_as_format(value: &str, typed: &[OsString]) -> Option<UsageError> {
    let is_submission = typed.iter().any(|word| word == "submit");
    let to_file = format!("`lattice submit --output={value}` also writes what the job writes to a file of yours");
    let hint = if is_submission {
        to_file.as_str()
    } else if typed.get(1).is_some_and(|command| command == "audit") {
        "`lattice audit export --file=FILE` writes the bundle to a file"
    } else if typed.iter().any(|word| word == "accounting") {
        "`lattice admin accounting export --file=FILE` writes the records to a file"
    } else {
        "`lattice logs ID` shows what a job wrote; a script that begins with `exec >FILE 2>&1` writes a file itself"
    };
    value.contains(['.', '/', '%']).then(|| {
        let option = if is_submission { "-o" } else { "--output" };
        UsageError::new(format!("{option} {value}: -o is the format of this command's answer, as in -o json, and names no file"))
            .with_hint(hint)
    })
}

/// An option that a command does not have; `suggested`: a similar option that the parser knows.
fn unknown_option(command: &str, option: &str, suggested: Option<String>) -> UsageError {
    if command != "submit" && TASK_GROUP_OPTIONS.contains(&option) {
        return UsageError::new(format!("{option}: `lattice {command}` has no tasks: only a submission is a task group"))
            .with_hint("`lattice submit --task-group=0-99 SCRIPT` runs a script once for each index; the script may use `lattice launch`");
    }
    let scales = ScalingFlags::NAMES.contains(&option) || REPLICA_OPTIONS.contains(&option);
    if command != "submit" && scales {
        return UsageError::new(format!("{option}: `lattice {command}` has no replicas: only a submission is a scaled service"))
            .with_hint("`lattice submit --reactive --min-nodes=1 --max-nodes=8 SCRIPT` runs a script in 1 to 8 replicas");
    }
    let error = UsageError::new(format!("{option}: `lattice {command}` has no such option"));
    if scales {
        return error.with_hint("a scaled service has --reactive --min-nodes=N --max-nodes=M: replicas on a node each");
    }
    if let Some(hint) = slurm::find_option(option).and_then(hint_of_slurm) {
        return match hint {
            HintOfSlurm::Refused(remedy) => UsageError::new(format!("{option}: Slurm's option is not supported here")).with_hint(remedy),
            HintOfSlurm::Instead(hint) => error.with_hint(hint),
        };
    }
    match suggested.filter(|suggested| !UnbuiltFlags::NAMES.contains(&suggested.as_str())) {
        Some(meant) => error.with_hint(format!("did you mean {meant}?")),
        None => error.with_hint(format!("`lattice {command} --help` lists the options; options of your own program go after --")),
    }
}

/// What to do instead of an option of Slurm.
enum HintOfSlurm {
    /// It is refused in Slurm's commands as well.
    Refused(&'static str),
    /// It has another name here.
    Instead(String),
}

/// What to do instead of an option of Slurm; `None`: only Slurm's commands need it.
fn hint_of_slurm(option: &'static SlurmOption) -> Option<HintOfSlurm> {
    let instead = match (option.rule, option.long) {
        (Rule::Refused(remedy), _) => return Some(HintOfSlurm::Refused(remedy)),
        (Rule::Harmless(_), _) => "it does not change the job: leave it out".to_owned(),
        (Rule::Word(ours) | Rule::Plain(ours), _) => format!("use {ours}"),
        (Rule::Own(_, ""), _) => return None,
        (Rule::Own(_, remedy), _) => remedy.to_owned(),
        (Rule::By(_), "gres" | "gpus-per-node") => "use --gpus=N for each node, and --constraint gpu_type=KIND for their kind".to_owned(),
        (Rule::By(_), "mincpus") => "use --constraint=core_count>=N".to_owned(),
        (Rule::By(_), "ntasks-per-socket") => "use --cpu-bind=sockets and --constraint=socket_count>=N".to_owned(),
        (Rule::By(_), "use-min-nodes") => "write one number of nodes, such as -N 2".to_owned(),
        (Rule::By(_), "export") => "use --export and --env".to_owned(),
        (Rule::By(_), "qos") => "use --preemption-class".to_owned(),
        (Rule::By(_), "dependency") => {
            "use --depends-on=ID:success for afterok, ID:failure for afternotok, ID:any for afterany, ID:after for after, \
             ID:after+10m for after:ID+10, ID:corresponding for aftercorr, and singleton as it is"
                .to_owned()
        }
        (Rule::By(_), _) => {
            let ours: Vec<String> = slurm::names_of_sample(option);
            if ours.is_empty() { "it does not change the job: leave it out".to_owned() } else { format!("use {}", ours.join(" and ")) }
        }
    };
    Some(HintOfSlurm::Instead(instead))
}

/// Removes the tip to use an option that is refused anyway, and the tip to write `-- -u`, which would run a program
/// named `-u`.
pub fn remove_wrong_tips(mut error: Error) -> Error {
    let names_unbuilt = |value: &ContextValue| match value {
        ContextValue::String(option) => UnbuiltFlags::NAMES.contains(&option.as_str()),
        ContextValue::Strings(options) => options.iter().all(|option| UnbuiltFlags::NAMES.contains(&option.as_str())),
        _ => false,
    };
    if error.get(ContextKind::SuggestedArg).is_some_and(names_unbuilt) {
        error.remove(ContextKind::SuggestedArg);
    }
    if let Some(ContextValue::StyledStrs(tips)) = error.remove(ContextKind::Suggested) {
        let tips: Vec<_> = tips.into_iter().filter(|tip| !tip.to_string().contains("use '-- ")).collect();
        if !tips.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(tips));
        }
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn explanation(line: &str) -> Option<String> {
        let typed: Vec<OsString> = std::iter::once("lattice").chain(line.split(' ')).map(OsString::from).collect();
        let error = Cli::try_parse_from(&typed).err().unwrap_or_else(|| panic!("{line} was taken"));
        explain(&error, &typed).map(|error| format!("{error}\nhint: {}", error.hint.as_deref().unwrap_or_default()))
    }

    #[test]
    fn options_of_slurm_and_unbuilt_ones_are_explained_as_they_were_typed() {
        for (line, what, hint) in [
            ("submit -a 0-9 job.sh", "-a: `lattice submit` has no such option", "use --array"),
            ("launch --array=0-9 hostname", "--array: `lattice launch` has no tasks", "`lattice submit --task-group=0-99 SCRIPT`"),
            ("launch -N2 --task-group 0-9 hostname", "--task-group: `lattice launch` has no tasks", "the script may use `lattice launch`"),
            ("session --max-failures=1", "--max-failures: `lattice session` has no tasks", "`lattice submit --task-group=0-99 SCRIPT`"),
            ("submit --dependency=afterok:1 job.sh", "--dependency: `lattice submit` has no such option", "--depends-on=ID:success"),
            ("submit --gres=gpu:4 job.sh", "--gres: `lattice submit` has no such option", "use --gpus=N"),
            ("submit --licenses=x job.sh", "--licenses: Slurm's option is not supported here", "licenses are not counted"),
            ("submit --acctg-freq=30 job.sh", "--acctg-freq:", "leave it out"),
            ("submit --account ml job.sh", "--account: `lattice submit` has no such option", "use --tenant"),
            ("submit -p debug job.sh", "-p: `lattice submit` has no such option", "use --vcluster"),
            ("launch -N2 --account ml hostname", "--account: `lattice launch` has no such option", "use --tenant"),
            ("submit -u -- python3 a.py", "-u: `lattice submit` has no such option", "go after --"),
            ("submit --noodes=2 job.sh", "--noodes:", "did you mean --nodes?"),
            ("cache list", "`lattice cache` is not built yet", "node status"),
            ("admin accounting reconcile", "`lattice admin accounting reconcile` is not built yet", "accounting status"),
            ("submit --site=b job.sh", "--site is not built yet", "--endpoint"),
            ("launch --reactive hostname", "--reactive: `lattice launch` has no replicas", "`lattice submit --reactive --min-nodes=1"),
            ("session --max-nodes=4", "--max-nodes: `lattice session` has no replicas", "--max-nodes=8 SCRIPT`"),
            ("submit --replicas=4 job.sh", "--replicas: `lattice submit` has no such option", "--reactive --min-nodes=N"),
            ("submit --scale-targte=4 job.sh", "--scale-targte:", "did you mean --scale-target?"),
            ("submit --wrap=ls", "--wrap is not built yet", "sh -c"),
            ("launch --output=x.log hostname", "--output x.log: -o is the format", "lattice logs ID"),
            ("submit -o slurm-%j.out job.sh", "-o slurm-%j.out: -o is the format", "--output=slurm-%j.out"),
        ] {
            let explanation = explanation(line).unwrap_or_else(|| panic!("{line}"));
            assert!(
                explanation.starts_with(what) && explanation.contains("\nhint: ") && explanation.contains(hint),
                "{line}: {explanation}"
            );
        }
    }

    #[test]
    fn the_text_of_the_parser_is_used_if_it_is_enough() {
        for line in ["status -o jsno", "statsu", "submit --nodes=0 x", "node list --stat=x"] {
            assert_eq!(explanation(line), None, "{line}");
        }
    }

    fn refused(words: &[&str]) -> String {
        let line = std::iter::once("lattice").chain(words.iter().copied());
        remove_wrong_tips(Cli::try_parse_from(line).map(drop).unwrap_err()).to_string()
    }

    #[test]
    fn a_tip_names_nothing_that_does_not_help() {
        let unbuilt = refused(&["submit", "--sensitives", "x.sh"]);
        assert!(unbuilt.contains("unexpected argument '--sensitives'") && !unbuilt.contains("'--sensitive'"), "{unbuilt}");
        let letter = refused(&["submit", "-u", "x.sh"]);
        assert!(letter.contains("unexpected argument '-u'") && !letter.contains("-- -u"), "{letter}");
        let typo = refused(&["submit", "--waltime=1h", "x.sh"]);
        assert!(typo.contains("'--walltime'"), "a typing error is still helped: {typo}");
    }
}
