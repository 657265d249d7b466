//! `lattice completion`: prints a completion script for a shell. It is generated from the definition of the command
//! line, without what `--help` hides.

use crate::failure::Failure;
use crate::output::print;
use clap::builder::Resettable;
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use lattice_cli_syntax::args::Cli;
use lattice_cli_syntax::args::completion::Completion;

pub fn run(args: &Completion) -> Result<(), Failure> {
    print(&script(args.shell))
}

fn script(shell: Shell) -> String {
    let mut all = Cli::command();
    all.build();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut without_hidden(&all), "lattice", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The generators also offer hidden options and commands, so they get a definition without any.
fn without_hidden(command: &Command) -> Command {
    // A name must be static. There are some two hundred, leaked once in a process that ends soon.
    let name: &'static str = command.get_name().to_owned().leak();
    let aliases = command.get_visible_aliases().map(|alias| &*alias.to_owned().leak());
    // Building the definition adds these, so they must not be added twice.
    let is_added = |name: &str| name == "help" || name == "version";
    Command::new(name)
        .about(command.get_about().cloned().unwrap_or_default())
        .version(command.get_version().map(|_| env!("CARGO_PKG_VERSION")))
        .disable_help_flag(command.is_disable_help_flag_set())
        .visible_aliases(aliases)
        .args(command.get_arguments().filter(|arg| !arg.is_hide_set() && !is_added(arg.get_id().as_str())).map(on_its_own))
        .subcommands(command.get_subcommands().filter(|c| !c.is_hide_set() && !is_added(c.get_name())).map(without_hidden))
}

/// Its relations to other options may refer to hidden ones.
fn on_its_own(arg: &Arg) -> Arg {
    let arg = arg.clone().conflicts_with(Resettable::Reset).overrides_with(Resettable::Reset);
    arg.requires(Resettable::Reset).required_unless_present(Resettable::Reset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn each_shell_gets_what_help_shows_and_nothing_hidden() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for shown in ["submit", "undrain", "walltime", "uncordon"] {
                assert!(script.contains(shown), "{shell}: {shown}");
            }
            for hidden in ["no-color", "memory-gb"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
        }
    }
}
