//! What the lab measures and simulates: benches beside peers, agents in virtual time, and the scheduler on traces.
//!
//! A package of its own, so that `lattice-lab demo` does not wait for its compiler: `lattice-lab bench`, `sim` and `replay`
//! build this package's program and become it.
//!
//! | module | content |
//! |---|---|
//! | [`bench`] | figures compared with peers or lower bounds in the same run |
//! | [`sim`] | thousands of agents' gossip, and their fences, in virtual time |
//! | [`replay`] | the scheduler under several weights, or beside reference schedulers, in virtual time |
//! | `chart` | curves as SVG |

pub mod bench;
mod chart;
mod ready_node;
pub mod replay;
pub mod sim;
