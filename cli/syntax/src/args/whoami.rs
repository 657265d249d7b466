//! `lattice whoami`.

use clap::Args;

const WHOAMI_EXAMPLES: &str = "Examples:
  lattice whoami
      your account, your roles, your tenants, and the tenant of your work that
      names none
  lattice whoami --can
      every method of the API, and for whose work and tenants you may call it
  lattice whoami --can -o name
      only the methods that you may call

REACH of a method: \"own\": for what is yours; \"tenant\": also for what belongs to
the tenants of which you are an admin; \"all\": for everybody's, or the method is
about nobody in particular; \"no\": not at all. CHANGES: whether it changes
anything.

Inside an allocation, its id is shown too: a program there may do less than its
user. What an operator's certificate permits is not shown: it belongs to no
account.";

#[derive(Args)]
#[command(after_help = WHOAMI_EXAMPLES)]
pub struct WhoAmI {
    /// Show what you may do
    #[arg(long)]
    pub can: bool,
}
