//! `lattice man`: pages for `man`, made from the definition of the command line, without what `--help` hides.

use clap::builder::{Resettable, StyledStr};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::print_bytes;
use lattice_cli_syntax::args::Cli;
use lattice_cli_syntax::args::man::Man as Args;
use std::collections::BTreeMap;
use std::io;

/// The page of `lattice` itself.
const MAIN: &str = "lattice.1";

pub fn run(args: &Args) -> Result<(), Failure> {
    let pages = pages()?;
    let Some(dir) = &args.dir else { return print_bytes(pages.get(MAIN).map(Vec::as_slice).unwrap_or_default()) };
    for (name, page) in &pages {
        let path = dir.join(name);
        std::fs::write(&path, page).map_err(|error| {
            Failure::other(format!("cannot write {}: {error}", path.display())).hint("the directory must exist and be writable")
        })?;
    }
    Ok(())
}

/// Each page by its file name, such as `lattice-node-drain.1`.
fn pages() -> Result<BTreeMap<String, Vec<u8>>, Failure> {
    let mut lattice = Cli::command().disable_help_subcommand(true);
    lattice.build();
    let mut pages = BTreeMap::new();
    add(&lattice, "lattice", &mut pages)?;
    Ok(pages)
}

/// Adds the page of a command, and those of the commands below it.
fn add(command: &Command, name: &str, pages: &mut BTreeMap<String, Vec<u8>>) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::other(format!("cannot make the page {name}: {error}"));
    let mut page = Vec::new();
    let mut shown =
        command.clone().display_name(name).after_help(Resettable::<StyledStr>::Reset).after_long_help(Resettable::<StyledStr>::Reset);
    if shown.find_subcommand("help").is_some() {
        shown = shown.mut_subcommand("help", |help| help.hide(true));
    }
    // The page has no date: two quotation marks are an empty argument.
    let manual = Man::new(shown).title(name).date("\"\"").source(SOURCE).manual("Lattice");
    manual.render(&mut page).map_err(failed)?;
    if let Some(notes) = command.get_after_long_help().or(command.get_after_help()) {
        let mut section = Roff::new();
        section.control("SH", ["NOTES"]).control("nf", []);
        for line in notes.to_string().trim_end().lines() {
            section.text([roman(line)]);
        }
        section.control("fi", []).to_writer(&mut page).map_err(failed)?;
    }
    pages.insert(format!("{name}.1"), page);
    let mut shown = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    shown.try_for_each(|below| add(below, &format!("{name}-{}", below.get_name()), pages))
}

/// The program and the version that a page names.
const SOURCE: &str = concat!("lattice ", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_that_help_shows_has_a_page() {
        let pages = pages().unwrap_or_else(|failure| panic!("{}", failure.text()));
        for name in [MAIN, "lattice-submit.1", "lattice-node-drain.1", "lattice-admin-role-grant.1", "lattice-completion.1"] {
            let page = String::from_utf8_lossy(&pages[name]);
            let title = name.trim_end_matches(".1");
            assert!(page.contains(&format!(".TH {title} 1 \"\" ")), "{name}: {page}");
            assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
        }
        let submit = String::from_utf8_lossy(&pages["lattice-submit.1"]);
        assert!(submit.contains("walltime") && !submit.contains("sensitive"), "what is hidden is not in it");
        let completion = String::from_utf8_lossy(&pages["lattice-completion.1"]);
        assert!(completion.contains(".SH NOTES\n.nf\nExamples:\n"), "examples keep their lines: {completion}");
        assert!(!pages.contains_key("lattice-metrics.1") && !pages.contains_key("lattice-help.1"));
    }
}
