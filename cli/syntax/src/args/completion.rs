//! `lattice completion`.

use clap::Args;
use clap_complete::Shell;

const COMPLETION_EXAMPLES: &str = "Examples:
  lattice completion bash > ~/.local/share/bash-completion/completions/lattice
      needs the package bash-completion; without it:
      source <(lattice completion bash)
  lattice completion zsh > ~/.zfunc/_lattice
  lattice completion fish > ~/.config/fish/completions/lattice.fish

A new shell then completes the names of commands and options (zsh: with ~/.zfunc
in its fpath), and by asking the agent: your allocations and job numbers, nodes,
vClusters, tenants and services. An agent that does not answer within half a
second is not waited for, and a login is never renewed for a completion.";

#[derive(Args)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub struct Completion {
    /// The shell: bash, zsh, fish, elvish or powershell
    #[arg(value_enum, hide_possible_values = true)]
    pub shell: Shell,
}
