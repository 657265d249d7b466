//! What every command of the CLI uses: the settings, the connection to an agent, and what is printed.
//!
//! ```text
//!   settings (flags > environment > ~/.config/lattice/config.yaml) ──▶ session ──▶ any agent
//!                                                          request ─────▲    │ answers
//!                         table, shown, progress ──▶ output, message ◀───────┴──▶ follow, watch
//! ```
//!
//! Data goes to stdout, messages to stderr; the exit codes are in [`failure::Exit`].

// `eprintln!` panics when stderr is closed: see `message`.
#![deny(clippy::print_stderr)]

pub mod colour;
pub mod exits;
pub mod failure;
pub mod feeder;
pub mod follow;
pub mod interrupts;
pub mod keyboard;
pub mod label;
pub mod last;
pub mod last_stderr;
pub mod linked;
pub mod listing;
pub mod local_clock;
pub mod login;
pub mod message;
pub mod node_list;
pub mod operator;
pub mod output;
pub mod progress;
pub mod rank_files;
pub mod received;
pub mod redirection;
pub mod request;
pub mod retries;
pub mod session;
pub mod settings;
pub mod shown;
pub mod table;
pub mod tasks;
pub mod terminal;
pub mod typist;
pub mod waiting;
pub mod watch;
