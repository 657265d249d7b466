//! Who is alive: SWIM membership by [foca], driven from outside.
//!
//! ```text
//!                    ┌──────────────────────── Core ────────────────────────┐
//!   Datagram ──▶ seal::Opener ──▶ wire ──▶ foca ──▶ view ──▶ News ──▶ agent
//!   Timer    ──▶ suspicion ────────────▶     │  ▲
//!   Join, SetFact, SetKeys, Leave, Return ─▶ │  └── sync: records pulled from a random peer
//!                                            ▼
//!            Datagram ◀── seal::Sealer ◀── wire        Timer ◀── armed by the caller
//! ```
//!
//! [`Core::handle`] takes one [`Event`] and appends [`Output`]s: datagrams to send, timers to arm,
//! news. The crate has no socket, clock, thread or source of randomness: the same seed and the same
//! events give the same outputs, byte for byte, and `tests/` runs a hundred cores in virtual time.
//!
//! What is sent:
//! * foca's own messages (probes, gossip), which also carry member updates and [`Fact`]s;
//! * pulls and records ([`sync`](crate) messages): foca alone spreads *changes*; a newcomer, or a
//!   node that lost a few datagrams, catches up on members and facts by comparing its view with a
//!   random peer's.
//!
//! Every datagram is sealed (see `seal.rs`). A datagram that cannot be opened is counted in
//! [`Counters`] and changes no state.
//!
//! All nodes seal with one key, so an attacker who controls a node can send in every other node's
//! name. The attacker cannot silence any node: no core accepts a life ahead of its clock, and if
//! others have a life of a node that it never published, it takes a later one (`core/lives.rs`).
//!
//! Suspicion works as in Lifeguard (`suspicion.rs`): it ends sooner when several nodes found the
//! same suspect silent, and a node that was slow itself probes more slowly and waits longer.
//!
//! Gossip can stop placement on a node. It never kills work and never releases ownership.

#![forbid(unsafe_code)]

mod config;
mod core;
mod counters;
mod fact;
mod fact_book;
#[cfg(test)]
mod fuzz;
mod keyring;
mod known;
mod malformed;
mod peer;
mod replay;
mod rows;
mod seal;
mod streams;
mod suspicion;
mod sync;
mod table;
mod view;
mod wire;

pub use crate::core::{Core, Event, Output, Token};
pub use config::{Config, ConfigError, LIFE_AHEAD_MS_MAX, PACKET_BYTES_MAX, PACKET_BYTES_MIN};
pub use counters::{Counters, Refusals};
pub use fact::{FACT_BYTES_MAX, Fact, FactError};
pub use keyring::{KEYS_MAX, Key, KeyError, Keyring, KeyringError};
pub use known::Known;
pub use peer::Identity;
pub use seal::SEAL_BYTES;
pub use view::{Liveness, Member, News};
