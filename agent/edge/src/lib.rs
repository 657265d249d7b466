//! The API on the network: TLS, who calls, limits, access log. Behind it are the same handlers as behind the socket.
//!
//! ```text
//!   TCP ─ connections ─ TLS ─ HTTP/2 or 1.1 ─ gate ──▶ public pages
//!         │ places            │ time limits   │ origin, token (identity), account (NSS), rates
//!         └ guarded_stream    └ activity      └──▶ /lattice.v1.*: gRPC,  /api/v1/*: REST ──▶ service
//! ```
//!
//! | task | ends | queues |
//! |---|---|---|
//! | [`Bound::serve`] | when the agent stops, and its connections have ended or are cut | |
//! | one per connection, at most `api.limits.connections` | with the connection; idle ones after a minute | |
//! | one per request of an HTTP/2 connection, at most 128 of one connection | with the answer | |
//! | one that reads changed certificates | when the agent stops | |
//! | one that reports why the identity provider's tokens cannot be checked | when the agent stops | |
//! | one that writes the access log, if there is one (a blocking thread) | when all connections have ended | lines 1024; more are counted |

#![forbid(unsafe_code)]

mod access_log;
mod activity;
mod answer_body;
mod answers;
mod bearer;
mod client_certificate;
mod connections;
mod counts;
mod gate;
mod guarded_stream;
mod known_tokens;
mod origins;
mod places;
mod public_pages;
mod rates;
mod request_body;
mod server;
mod tls;
mod unread_body;

pub use counts::Counts;
pub use server::{Bound, EdgeError, Parts};
pub use tls::{Certificate, certificate};
