//! The context in which a command is applied, and the ways in which it changes the ledger.

use super::outcome::Changed;
use super::state::{Domain, DomainKey, Ledger};
use lattice_ledger_state::allocation_index::AllocationFacts;
use lattice_ledger_state::names::NamePlace;
use lattice_ledger_state::node_index::NodeFacts;
use lattice_ledger_state::user_usage::Counts;
use lattice_model::access_token::TokenId;
use lattice_model::{
    Allocation, AllocationId, AuditAction, AuditRecord, LaneOf, Node, NodeId, ParentFacts, ReplicaOf, Revision, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One command's time and revision, and its effects so far.
pub(super) struct ApplyContext {
    pub(super) revision: Revision,
    pub(super) at: Timestamp,
    pub(super) audit: Vec<AuditRecord>,
    pub(super) changed: Changed,
    /// The token with which the command was requested over the network.
    pub(super) token: Option<TokenId>,
    /// Tenants that count a submission's owner as a member by its login.
    pub(super) login_tenants: BTreeSet<String>,
    /// The counts of allocations before this command changed them; `None`: the allocation did not
    /// exist.
    pub(super) before: BTreeMap<AllocationId, Option<Counts>>,
    /// The indexed facts of records that this command has changed since the last update of the indexes;
    /// `None`: the record did not exist.
    pub(super) nodes_before: BTreeMap<NodeId, Option<NodeFacts>>,
    pub(super) allocations_before: BTreeMap<AllocationId, Option<AllocationFacts>>,
    pub(super) domains_before: BTreeMap<DomainKey, Option<Arc<Domain>>>,
    /// The facts of allocations that others depend on, before this command changed them.
    pub(super) parents_before: BTreeMap<AllocationId, ParentFacts>,
    /// The places of allocations among those of their user and name before this command changed them;
    /// `None`: they had none.
    pub(super) names_before: BTreeMap<AllocationId, Option<NamePlace>>,
    /// Lanes of task groups that this command may have changed since their groups learned of it.
    pub(super) lanes: BTreeMap<AllocationId, LaneOf>,
    /// Replicas of scaled services that this command may have changed since their services learned of it.
    pub(super) replicas: BTreeMap<AllocationId, ReplicaOf>,
    /// Task groups and scaled services that this command may have changed since their lanes or replicas
    /// were created or ended.
    pub(super) groups: BTreeSet<AllocationId>,
}

impl ApplyContext {
    pub(super) fn new(revision: Revision, at: Timestamp) -> Self {
        Self {
            revision,
            at,
            audit: Vec::new(),
            changed: Changed::default(),
            token: None,
            login_tenants: BTreeSet::new(),
            before: BTreeMap::new(),
            nodes_before: BTreeMap::new(),
            allocations_before: BTreeMap::new(),
            domains_before: BTreeMap::new(),
            parents_before: BTreeMap::new(),
            names_before: BTreeMap::new(),
            lanes: BTreeMap::new(),
            replicas: BTreeMap::new(),
            groups: BTreeSet::new(),
        }
    }
}

/// The subject of an audit record.
#[derive(Default)]
pub(super) struct Subject<'a> {
    pub(super) allocation: Option<AllocationId>,
    pub(super) node: Option<&'a NodeId>,
}

impl Ledger {
    /// The text is hashed into the chain: a member that applies its log again must produce the same
    /// text, in every version.
    pub(super) fn record(&mut self, context: &mut ApplyContext, actor: &str, action: AuditAction, about: Subject<'_>, detail: String) {
        let owner = about.allocation.and_then(|id| self.allocations.get(&id)).map(|a| a.owner.name.as_str());
        let token = context.token;
        let record = self.audit.link(context.revision, context.at, actor, token, action, about.allocation, owner, about.node, detail);
        context.audit.push(record);
    }

    /// The allocation, to be changed by this command.
    pub(super) fn allocation_mut(&mut self, context: &mut ApplyContext, id: AllocationId) -> Option<&mut Allocation> {
        self.note_before(context, id);
        let allocation = Arc::make_mut(self.allocations.get_mut(&id)?);
        allocation.revision = context.revision;
        context.changed.record(id);
        Some(allocation)
    }

    /// The allocation and the rank of its share on this node: this command may change only the
    /// share's phase and the usage, because watchers get nothing else. `None`: it has no share there.
    pub(super) fn share_mut(&mut self, context: &mut ApplyContext, id: AllocationId, node: &NodeId) -> Option<(&mut Allocation, u32)> {
        let known = self.allocations.get(&id)?;
        let rank = known.shares.rank_of(node)?;
        context.changed.share(id, known.revision, rank);
        self.usage_mut(context, id).map(|allocation| (allocation, rank))
    }

    /// The allocation: this command may change only its usage.
    pub(super) fn usage_mut(&mut self, context: &mut ApplyContext, id: AllocationId) -> Option<&mut Allocation> {
        context.changed.usage(id, self.allocations.get(&id)?.revision);
        self.note_before(context, id);
        let allocation = Arc::make_mut(self.allocations.get_mut(&id)?);
        allocation.revision = context.revision;
        Some(allocation)
    }

    /// The node, to be changed by this command.
    pub(super) fn node_mut(&mut self, context: &mut ApplyContext, id: &NodeId) -> Option<&mut Node> {
        self.note_node(context, id);
        let node = Arc::make_mut(self.nodes.get_mut(id)?);
        node.revision = context.revision;
        context.changed.nodes.insert(id.clone());
        Some(node)
    }
}
