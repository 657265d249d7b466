//! Identities: certificates of agents and members, the authority that issues them, and revocations.
//!
//! ```text
//!   ca ──issues──▶ identity (a name, a role, a serial number with its time) ◀── operator (tokens of people)
//!    │                 ▲
//!    ╰──▶ tls ──▶ credentials (in force, renewed) ──▶ connected (who is at the other end) ── revoked, refused
//! ```

pub mod ca;
pub mod connected;
pub mod credentials;
pub mod identity;
pub mod operator;
pub mod refused;
pub mod revoked;
pub mod tls;
