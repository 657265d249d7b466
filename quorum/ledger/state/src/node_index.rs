//! Look-ups over all nodes, mainly for the leader's clocks. Not part of the replicated state:
//! derived from the nodes when a snapshot is read, and then updated with each changed node.

use imbl::{OrdMap, OrdSet};
use lattice_model::{HoldKind, Node, NodeId, NodeState, Revision, Timestamp};

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeIndex {
    /// All nodes, in the order of their latest change.
    pub by_revision: OrdSet<(Revision, NodeId)>,
    /// How many nodes are in each state; states without nodes are absent.
    pub states: OrdMap<NodeState, u32>,
    pub down: OrdSet<NodeId>,
    /// Booting nodes, with the time when the boot began.
    pub booting: OrdSet<(Timestamp, NodeId)>,
    /// The ends of holds, and the deadlines of nodes that are Draining.
    pub hold_ends: OrdSet<(Timestamp, NodeId)>,
    /// When each drift began whose time limit has not passed: for nodes without sensitive work since
    /// then, and for other nodes.
    pub drifts: OrdSet<(Timestamp, NodeId)>,
    pub sensitive_drifts: OrdSet<(Timestamp, NodeId)>,
    /// How many nodes have a failed wipe, and how many a drift whose time limit has passed.
    pub failed_wipes: u32,
    pub drifts_over: u32,
    /// The nodes that belong to each vCluster except `default`.
    pub homes: OrdMap<String, OrdSet<NodeId>>,
    /// Nodes that a recovery waits for and that may run work now.
    pub waited_for: OrdSet<NodeId>,
}

/// The facts of one node that the index needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    revision: Revision,
    state: NodeState,
    booting_since: Option<Timestamp>,
    hold_ends: Vec<Timestamp>,
    drift: Option<NodeDrift>,
    has_failed_wipe: bool,
    home: String,
    is_waited_for: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeDrift {
    Lasts { since: Timestamp, sensitive: bool },
    Over,
}

impl NodeFacts {
    /// The facts of this node; `is_awaited`: a recovery waits for its report.
    pub fn of(node: &Node, is_awaited: bool) -> Self {
        let deadlines = node.hold(HoldKind::Drain).filter(|_| node.state == NodeState::Draining).and_then(|hold| hold.deadline);
        let mut hold_ends: Vec<Timestamp> = node.holds.iter().filter_map(|hold| hold.until).chain(deadlines).collect();
        hold_ends.sort_unstable();
        hold_ends.dedup();
        let drift =
            node.conformance.as_ref().and_then(|now| now.drift.as_ref()).map(|drift| {
                if drift.overdue { NodeDrift::Over } else { NodeDrift::Lasts { since: drift.since, sensitive: drift.sensitive } }
            });
        Self {
            revision: node.revision,
            state: node.state,
            booting_since: (node.state == NodeState::Booting).then_some(node.state_since),
            hold_ends,
            drift,
            has_failed_wipe: node.wipe.as_ref().is_some_and(|wipe| wipe.failed.is_some()),
            home: node.home.clone(),
            is_waited_for: is_awaited && !node.state.is_away(),
        }
    }
}

impl NodeIndex {
    /// Adds a node.
    pub fn add(&mut self, id: &NodeId, facts: &NodeFacts) {
        self.by_revision.insert((facts.revision, id.clone()));
        *self.states.entry(facts.state).or_default() += 1;
        if facts.state == NodeState::Down {
            self.down.insert(id.clone());
        }
        if let Some(since) = facts.booting_since {
            self.booting.insert((since, id.clone()));
        }
        for end in &facts.hold_ends {
            self.hold_ends.insert((*end, id.clone()));
        }
        match facts.drift {
            Some(NodeDrift::Lasts { since, sensitive: false }) => drop(self.drifts.insert((since, id.clone()))),
            Some(NodeDrift::Lasts { since, sensitive: true }) => drop(self.sensitive_drifts.insert((since, id.clone()))),
            Some(NodeDrift::Over) => self.drifts_over += 1,
            None => {}
        }
        self.failed_wipes += u32::from(facts.has_failed_wipe);
        if !facts.home.is_empty() {
            self.homes.entry(facts.home.clone()).or_default().insert(id.clone());
        }
        if facts.is_waited_for {
            self.waited_for.insert(id.clone());
        }
    }

    /// Removes a node with these facts.
    pub fn remove(&mut self, id: &NodeId, facts: &NodeFacts) {
        self.by_revision.remove(&(facts.revision, id.clone()));
        match self.states.get_mut(&facts.state) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) | None => drop(self.states.remove(&facts.state)),
        }
        self.down.remove(id);
        if let Some(since) = facts.booting_since {
            self.booting.remove(&(since, id.clone()));
        }
        for end in &facts.hold_ends {
            self.hold_ends.remove(&(*end, id.clone()));
        }
        match facts.drift {
            Some(NodeDrift::Lasts { since, sensitive: false }) => drop(self.drifts.remove(&(since, id.clone()))),
            Some(NodeDrift::Lasts { since, sensitive: true }) => drop(self.sensitive_drifts.remove(&(since, id.clone()))),
            Some(NodeDrift::Over) => self.drifts_over = self.drifts_over.saturating_sub(1),
            None => {}
        }
        self.failed_wipes = self.failed_wipes.saturating_sub(u32::from(facts.has_failed_wipe));
        if let Some(at_home) = self.homes.get_mut(&facts.home) {
            at_home.remove(id);
            if at_home.is_empty() {
                self.homes.remove(&facts.home);
            }
        }
        self.waited_for.remove(id);
    }
}
