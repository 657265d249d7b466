//! `lattice login` and `lattice logout`.

use clap::{Args, ValueEnum};

const LOGIN_EXAMPLES: &str = "Examples:
  lattice login --server https://cluster.example.org:50051
      a browser opens, and you log in at your organization's identity provider
  lattice login --server cluster.example.org --flow device
      on a machine without a browser: you type a code into one elsewhere
  lattice login --server cluster.example.org --flow manual
      you copy the address of the page at which a browser elsewhere ends

Later commands with --endpoint (or endpoint in config.yaml) of this server use
the login, and renew it when it ends. It is kept in tokens.json beside
config.yaml, which only you may read. A cluster whose certificates are of an
authority of its own needs that authority's file: ca in config.yaml, or
LATTICE_CA.

On a machine of the cluster no login is needed: its agent knows you by your
account. A program uses a token of its own instead, in LATTICE_TOKEN.";

const LOGOUT_EXAMPLES: &str = "Examples:
  lattice logout --server cluster.example.org
      the login is removed here, and ended at the identity provider if possible";

/// How a user proves who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flow {
    /// A browser on this machine
    Browser,
    /// A code to be typed into a browser on any machine
    Device,
    /// The address of a browser's page, copied from any machine
    Manual,
}

#[derive(Args)]
#[command(after_help = LOGIN_EXAMPLES)]
pub struct Login {
    /// The agent to log in at: https://host:port [default: the first of --endpoint]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// How you prove who you are [default: browser if there is one here, else device if possible, else manual]
    #[arg(long, value_enum, value_name = "FLOW")]
    pub flow: Option<Flow>,
}

#[derive(Args)]
#[command(after_help = LOGOUT_EXAMPLES)]
pub struct Logout {
    /// The agent to log out from: https://host:port [default: the first of --endpoint]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
}
