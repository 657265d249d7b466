//! What the API's handlers and the answers to other agents need, made once at the start.

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

/// Shared by the tasks. Nothing in it changes but through the handles that it holds.
pub struct Context {
    pub setup: Arc<Setup>,
    pub machine: Arc<Machine>,
    /// What the tasks of allocations have.
    pub work: Arc<Handles>,
    /// What is kept of work in debug mode.
    pub traces: Traces,
    /// How many may find out at once what is the matter with this node.
    pub diagnosis_slots: DiagnosisSlots,
    /// Where other nodes were, for a start without the quorum.
    pub peers: Peers,
    /// Peers whose sessions this agent carries.
    pub carried: Carried,
    /// Growing log files.
    pub growth: Growth,
    /// Who speaks to this node's parts of launches that are headed elsewhere.
    pub parents: Parents,
    /// Attached terminals, by user: those on this node, and those of its callers elsewhere.
    pub attached: Places,
}

/// What tasks hold.
pub type Shared = Arc<Context>;
