//! Writes the guide page `docs/reference/slurm-options.md` from the table. The test below compares it with the file, or
//! writes the file.

use super::environment::{VARIABLES, WHOLE_NAMES, prefix};
use super::tests::beside;
use super::{Command, OPTIONS, Rule, SlurmOption, Takes, translate};
use crate::compat::Compat;
use std::fmt::Write;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/slurm-options.md");

/// If set, the test writes the page.
const WRITE_VARIABLE: &str = "LATTICE_WRITE_REFERENCE";

const HEAD: &str = "# Options of `sbatch`, `srun` and `salloc`

<!-- Made from cli/syntax/src/slurm by `LATTICE_WRITE_REFERENCE=1 cargo test -p lattice-cli-syntax guide`. -->

Every option of Slurm is in one of these tables; `#SBATCH` lines go through the same ones. An option
that is in none of them is refused. `b` is `sbatch`, `r` is `srun`, `a` is `salloc`. Options are read
as Slurm reads them: names may be shortened, the last of an option counts, the command line wins
over [variables](#variables), and those over a script's lines.

Without `--mem`, `--mem-per-cpu` or GPUs a job gets whole nodes. With one of them it gets that share
of each node, and with `-n`, `-c` or `--ntasks-per-node` also the cores of its ranks.
";

/// The options of a row, with its letter and its example.
fn shown(option: &SlurmOption) -> String {
    let letter = option.short.map(|letter| format!("`-{letter}`, ")).unwrap_or_default();
    let long = match option.takes {
        Takes::Nothing => format!("--{}", option.long),
        Takes::Perhaps if option.sample.is_empty() => format!("--{}", option.long),
        Takes::Value => format!("--{}={}", option.long, option.sample),
        Takes::Perhaps => format!("--{}[={}]", option.long, option.sample),
    };
    format!("{letter}`{long}`")
}

fn commands(option: &SlurmOption) -> String {
    let has = |command| option.is_of(command);
    [(Command::Sbatch, "b"), (Command::Srun, "r"), (Command::Salloc, "a")].iter().filter(|(c, _)| has(*c)).map(|(_, l)| *l).collect()
}

/// The translation of a row's example.
fn becomes(option: &SlurmOption) -> String {
    let command = Command::ALL.into_iter().find(|command| option.is_of(*command)).expect("each option has a command");
    let compat = Compat::parse("qos_mapping: {high: 7}").unwrap();
    let own = match option.takes {
        Takes::Value => format!("--{}={}", option.long, option.sample),
        Takes::Perhaps if !option.sample.is_empty() => format!("--{}={}", option.long, option.sample),
        Takes::Nothing | Takes::Perhaps => format!("--{}", option.long),
    };
    let args: Vec<String> = beside(option).split_whitespace().map(str::to_owned).chain([own]).collect();
    let words = translate(command, &args, &compat).unwrap().words;
    if words.is_empty() { "what happens in any case".to_owned() } else { format!("`{}`", words.join(" ")) }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    page += "\n## Honoured\n\n| option | of | becomes | remarks |\n|---|---|---|---|\n";
    for option in OPTIONS {
        let becomes = match option.rule {
            Rule::Word(_) | Rule::Plain(_) | Rule::By(_) => becomes(option),
            Rule::Own(..) => "done by the command itself".to_owned(),
            Rule::Harmless(_) | Rule::Refused(_) => continue,
        };
        let _ = writeln!(page, "| {} | {} | {} | {} |", cell(&shown(option)), commands(option), cell(&becomes), cell(option.remark));
    }
    page += "\n## Harmless\n\nThey change nothing that runs, and are ignored with a note.\n\n| option | of | why |\n|---|---|---|\n";
    for option in OPTIONS {
        if let Rule::Harmless(why) = option.rule {
            let _ = writeln!(page, "| {} | {} | {} |", cell(&shown(option)), commands(option), cell(why));
        }
    }
    page += "\n## Refused\n\n| option | of | instead |\n|---|---|---|\n";
    for option in OPTIONS {
        if let Rule::Refused(remedy) = option.rule {
            let _ = writeln!(page, "| {} | {} | {} |", cell(&shown(option)), commands(option), cell(remedy));
        }
    }
    page += "\nHeterogeneous jobs (`:` between options, `#SBATCH hetjob`) are refused: `lattice dag submit` runs jobs\nof several kinds.\n";
    page += "\n## Variables\n\nA variable that is set and not empty is its option; one of an option without a value counts unless it\nis `0`.\n\n| option | variables |\n|---|---|\n";
    let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
    for (end, long, bits) in VARIABLES {
        let names =
            Command::ALL.into_iter().filter(|command| bits & command.bit() != 0).map(|command| format!("`{}{end}`", prefix(command)));
        add(&mut rows, long, names.collect());
    }
    for (name, long, _) in WHOLE_NAMES {
        add(&mut rows, long, vec![format!("`{name}`")]);
    }
    rows.sort();
    for (long, names) in rows {
        let _ = writeln!(page, "| `--{long}` | {} |", names.join(", "));
    }
    page
}

fn add<'a>(rows: &mut Vec<(&'a str, Vec<String>)>, long: &'a str, names: Vec<String>) {
    match rows.iter_mut().find(|(known, _)| *known == long) {
        Some((_, known)) => known.extend(names),
        None => rows.push((long, names)),
    }
}

#[test]
fn the_guide_is_of_this_table() {
    let page = page();
    if std::env::var_os(WRITE_VARIABLE).is_some_and(|value| value == "1") {
        std::fs::write(FILE, &page).unwrap();
    }
    let file = std::fs::read_to_string(FILE).unwrap_or_default();
    assert!(file == page, "docs/reference/slurm-options.md is stale: {WRITE_VARIABLE}=1 cargo test -p lattice-cli-syntax guide");
}
