//! What the handlers of the API and of requests of other agents need; created once at the start.

use crate::diagnosis_slots::DiagnosisSlots;
use lattice_agent_common::places::Places;
use lattice_agent_common::setup::Setup;
use lattice_allocation::handles::Handles;
use lattice_launch::Parents;
use lattice_machine::machine::Machine;
use lattice_membership::peers::Peers;
use lattice_membership::relay::Carried;
use lattice_observe::traces::Traces;
use lattice_output::growth::Growth;
use std::sync::Arc;

/// Shared by the tasks. It changes only through the handles that it holds.
pub struct Context {
    pub setup: Arc<Setup>,
    pub machine: Arc<Machine>,
    /// The handles of the tasks of allocations.
    pub work: Arc<Handles>,
    /// Records of work in debug mode and of audits.
    pub traces: Traces,
    /// Limits how many diagnoses of this node run at the same time.
    pub diagnosis_slots: DiagnosisSlots,
    /// The last known addresses of other nodes, for a start without the quorum.
    pub peers: Peers,
    /// Peers whose sessions this agent relays.
    pub carried: Carried,
    /// Growing log files.
    pub growth: Growth,
    /// The parents of this node's parts of launches whose head is another node.
    pub parents: Parents,
    /// Attached terminals, by user: those on this node, and those of its callers elsewhere.
    pub attached: Places,
}

/// What tasks hold.
pub type Shared = Arc<Context>;
