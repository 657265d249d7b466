//! Generates `docs/reference/cli/` from the definitions of the commands: a page for each command, and `README.md` with
//! all of them. The test below compares the pages with the files, or writes the files.

use clap::{Arg, Command, CommandFactory};
use lattice_cli_syntax::args::Cli;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The directory of the pages.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/cli");

/// If set, the test writes the pages.
const WRITE_VARIABLE: &str = "LATTICE_WRITE_REFERENCE";

const GENERATED_NOTE: &str =
    "<!-- Made from cli/syntax/src/args by `LATTICE_WRITE_REFERENCE=1 cargo test -p lattice-cli reference`. -->\n\n";

/// Columns of help texts that are not reformatted.
const TEXT_COLUMNS_MAX: usize = 100;

/// Each page by its file name.
fn pages() -> BTreeMap<String, String> {
    let mut lattice = Cli::command();
    lattice.build();
    let index = index(&lattice);
    let commands = lattice.get_subcommands_mut().filter(|command| is_shown(command));
    let mut pages: BTreeMap<String, String> = commands.map(page).collect();
    pages.insert("README.md".to_owned(), index);
    pages
}

fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// All commands, with the options of each.
fn index(lattice: &Command) -> String {
    let mut page = format!("# The commands of `lattice`\n\n{GENERATED_NOTE}");
    page += "`lattice COMMAND --help` shows the same. How to name an allocation: see\n[submit work](../../how-to/users/submit.md). Exit codes: [exit codes](../exit-codes.md).\n\n";
    page += "| command | what it does |\n|---|---|\n";
    for command in lattice.get_subcommands().filter(|command| is_shown(command)) {
        let name = command.get_name();
        let _ = writeln!(page, "| [`{name}`]({name}.md) | {} |", cell(&about(command)));
    }
    page += "\n## Options of every command\n\n";
    page += &arguments(lattice.get_arguments().filter(|arg| arg.is_global_set()));
    page += "\n## Options before the command\n\n";
    page += &arguments(lattice.get_arguments().filter(|arg| !arg.is_global_set()));
    page.trim_end().to_owned() + "\n"
}

fn page(command: &mut Command) -> (String, String) {
    let file = format!("{}.md", command.get_name());
    let title = command.get_bin_name().unwrap_or_default().to_owned();
    let mut page = format!("# {title}\n\n{GENERATED_NOTE}");
    body(command, &mut page);
    (file, page.trim_end().to_owned() + "\n")
}

/// A command's purpose, usage and options, and then its own commands.
fn body(command: &mut Command, page: &mut String) {
    let _ =
        writeln!(page, "{}\n", paragraphs(&command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default()));
    let has_own_help = command.is_disable_help_flag_set();
    let _ =
        writeln!(page, "```text\n{}\n```\n", command.render_usage().to_string().trim_start_matches("Usage: ").replace("\n       ", "\n"));
    if has_own_help {
        let _ =
            writeln!(page, "Its options belong to another program: `{} --help` shows them.\n", command.get_bin_name().unwrap_or_default());
    } else {
        *page += &arguments(command.get_arguments().filter(|arg| !arg.is_global_set()));
    }
    if let Some(text) = command.get_after_long_help().or(command.get_after_help()) {
        let lines: Vec<String> = text.to_string().trim_end().lines().map(wrapped).collect();
        let _ = writeln!(page, "```text\n{}\n```\n", lines.join("\n"));
    }
    for below in command.get_subcommands_mut().filter(|below| is_shown(below)) {
        let _ = writeln!(page, "## {}\n", below.get_bin_name().unwrap_or_default());
        body(below, page);
    }
}

fn about(command: &Command) -> String {
    let aliases: Vec<&str> = command.get_visible_aliases().collect();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    if aliases.is_empty() { about } else { format!("{about} (also `{}`)", aliases.join("`, `")) }
}

/// A table of options and arguments; empty if there are none.
fn arguments<'a>(all: impl Iterator<Item = &'a Arg>) -> String {
    let shown = all.filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()));
    let rows: Vec<String> = shown.map(row).collect();
    if rows.is_empty() { String::new() } else { format!("| option | meaning |\n|---|---|\n{}\n", rows.concat()) }
}

fn row(arg: &Arg) -> String {
    let long = arg.to_string();
    let names = match arg.get_short().filter(|_| arg.get_long().is_some()) {
        Some(short) => format!("`-{short}`, `{long}`"),
        None => format!("`{long}`"),
    };
    let mut meaning = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    if arg.get_action().takes_values() {
        let values = arg.get_possible_values();
        let named: Vec<String> = values.iter().filter(|value| !value.is_hide_set()).map(value).collect();
        if !named.is_empty() {
            let _ = write!(meaning, ". {}", named.join("; "));
        }
        let defaults: Vec<String> = arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
        if defaults.iter().any(|default| !default.is_empty()) {
            let _ = write!(meaning, " [default: {}]", defaults.join(", "));
        }
    }
    format!("| {} | {} |\n", cell(&names), cell(&meaning))
}

fn value(value: &clap::builder::PossibleValue) -> String {
    let help = value.get_help().map(|help| format!(": {help}")).unwrap_or_default();
    format!("`{}`{help}", value.get_name())
}

/// One line, without characters that end a cell.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Prose: each paragraph wrapped.
fn paragraphs(text: &str) -> String {
    text.split("\n\n").map(|paragraph| wrapped(&cell(paragraph))).collect::<Vec<_>>().join("\n\n")
}

/// Splits a line into lines of at most this many columns, all with the indent of the first.
fn wrapped(line: &str) -> String {
    let indent = &line[..line.len() - line.trim_start().len()];
    let mut lines = vec![String::new()];
    // White space between words is kept, for texts with columns.
    for word in line.trim_start().split_inclusive(' ') {
        let last = lines.last_mut().expect("there is one from the beginning");
        if !last.is_empty() && indent.len() + last.chars().count() + word.trim_end().chars().count() > TEXT_COLUMNS_MAX {
            lines.push(word.to_owned());
        } else {
            last.push_str(word);
        }
    }
    lines.iter().map(|line| format!("{indent}{}", line.trim_end())).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_pages_in_docs_are_of_these_commands() {
    let pages = pages();
    if std::env::var_os(WRITE_VARIABLE).is_some_and(|value| value == "1") {
        let _ = std::fs::remove_dir_all(FOLDER);
        std::fs::create_dir_all(FOLDER).unwrap();
        for (name, page) in &pages {
            std::fs::write(format!("{FOLDER}/{name}"), page).unwrap();
        }
    }
    let files = std::fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let files: BTreeMap<String, String> =
        files.map(|name| (name.clone(), std::fs::read_to_string(format!("{FOLDER}/{name}")).unwrap())).collect();
    let stale: Vec<&String> = files.keys().chain(pages.keys()).filter(|name| files.get(*name) != pages.get(*name)).collect();
    assert!(stale.is_empty(), "docs/reference/cli is stale ({stale:?}): {WRITE_VARIABLE}=1 cargo test -p lattice-cli reference");
}

#[test]
fn a_long_line_is_broken_between_words_and_keeps_its_indent() {
    let long = format!("  {} end", "word  word ".repeat(12).trim_end());
    let text = wrapped(&long);
    assert!(text.lines().count() == 2 && text.lines().all(|l| l.starts_with("  ") && l.chars().count() <= TEXT_COLUMNS_MAX), "{text}");
    assert!(text.starts_with("  word  word word  word") && text.ends_with(" end"), "{text}");
    assert_eq!(wrapped(""), "");
}
