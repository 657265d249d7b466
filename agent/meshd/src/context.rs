//! What the handlers of the API and of requests of other agents need; created once at the start.

use crate::diagnosis_slots::DiagnosisSlots;
use lattice_accounting::Accounting;
use lattice_agent_common::setup::Setup;
use lattice_agent_common::user_quota::UserQuota;
use lattice_allocation::handles::Handles;
use lattice_launch::Parents;
use lattice_machine::machine::Machine;
use lattice_membership::relay::RelayedAgents;
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
    /// Peers whose sessions this agent relays.
    pub carried: RelayedAgents,
    /// Growing log files.
    pub growth: Growth,
    /// The parents of this node's parts of launches whose head is another node.
    pub parents: Parents,
    /// This agent's store of ended work, if it has the role for one.
    pub accounting: Accounting,
    /// Attached terminals, by user: those on this node, and those of its callers elsewhere.
    pub attached: UserQuota,
}

/// What tasks hold.
pub type Shared = Arc<Context>;
