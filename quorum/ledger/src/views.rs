//! Read access to the ledger.

use super::job_numbers;
use super::{AuditHead, Holding, Ledger};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::{
    Allocation, AllocationId, AllocationState, DesiredList, DesiredShare, Generation, Node, NodeId, NodeState, Revision, Timestamp,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use uuid::Uuid;

/// Smallest number of hexadecimal digits of an id prefix.
const PREFIX_DIGITS_MIN: usize = 4;
/// Number of digits of an id as it is shown. Fewer digits mean a job number, if it was assigned.
const SHORT_ID_DIGITS: usize = 8;
/// Largest number of candidates listed for an ambiguous prefix.
pub(super) const CANDIDATES_MAX: usize = 8;

/// Filters for a list of allocations, besides owners and states; a field that is `None` matches
/// everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListFilter {
    /// Their owner's name.
    pub user: Option<String>,
    /// Their own name.
    pub name: Option<String>,
    /// The vCluster whose queue they are or were in.
    pub vcluster: Option<String>,
    pub tenant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// A node of their current or latest claim.
    pub node: Option<NodeId>,
    /// Tags that they have, with these values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// Which lanes of task groups and replicas of scaled services the list has.
    pub lanes: WantedLanes,
}

/// Which lanes and replicas a list of allocations has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WantedLanes {
    /// None.
    #[default]
    LeftOut,
    /// All of them, among everything else.
    All,
    /// Those of this task group or scaled service, and nothing else.
    Of(AllocationId),
}

/// A position in the list of all allocations, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListCursor {
    pub submitted_at: Timestamp,
    pub id: AllocationId,
}

/// A position in the sequence of changes: everything up to `revision` is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WatchCursor {
    /// The generation: revisions of another generation are unrelated.
    pub generation: Generation,
    pub revision: Revision,
}

impl Ledger {
    /// The cluster's name; empty before the bootstrap.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Increases when the quorum is recovered from a backup.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The log index of the last command.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The time of the last command; 0: none was applied.
    pub fn time(&self) -> Timestamp {
        self.time
    }

    /// The position of this state in the sequence of changes.
    pub fn place(&self) -> WatchCursor {
        WatchCursor { generation: self.generation, revision: self.revision }
    }

    /// The audit chain's head.
    pub fn audit_head(&self) -> &AuditHead {
        &self.audit
    }

    /// SHA-256 over the whole state, in hexadecimal digits. Replicas that applied the same commands
    /// have the same hash.
    pub fn hash(&self) -> Result<String, rmp_serde::encode::Error> {
        let mut hex = String::with_capacity(64);
        for byte in Sha256::digest(rmp_serde::to_vec_named(self)?) {
            write!(hex, "{byte:02x}").expect("writing to a string cannot fail");
        }
        Ok(hex)
    }

    /// One node.
    pub fn node(&self, id: &NodeId) -> Option<&Arc<Node>> {
        self.nodes.get(id)
    }

    /// All nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    /// The number of nodes.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes that are Down, by name.
    pub fn nodes_down(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.node_index.down.iter().filter_map(|id| self.nodes.get(id))
    }

    /// The nodes that changed at this revision or later, the latest first.
    pub fn nodes_changed_since(&self, revision: Revision) -> impl Iterator<Item = &Arc<Node>> {
        let changed = self.node_index.by_revision.iter().rev().take_while(move |(at, _)| *at >= revision);
        changed.filter_map(|(_, id)| self.nodes.get(id))
    }

    /// One allocation.
    pub fn allocation(&self, id: AllocationId) -> Option<&Arc<Allocation>> {
        self.allocations.get(&id)
    }

    /// All allocations in memory, by id.
    pub fn allocations(&self) -> impl Iterator<Item = &Arc<Allocation>> {
        self.allocations.values()
    }

    /// The holdings of a node.
    pub fn holdings(&self, node: &NodeId) -> &[Holding] {
        self.holdings.of(node)
    }

    /// The allocations that have not ended and had other nodes before.
    pub fn moved_allocations(&self) -> impl Iterator<Item = AllocationId> + '_ {
        self.allocation_index.moved.iter().copied()
    }

    /// Everything that `node` must do.
    pub fn desired(&self, node: &NodeId) -> DesiredList {
        let mut shares: Vec<DesiredShare> = Vec::new();
        let (live, over): (Vec<_>, Vec<_>) = self.holdings(node).iter().partition(|h| self.is_live(h.allocation, h.epoch));
        for held in live {
            let Some(allocation) = self.allocations.get(&held.allocation) else { continue };
            let mut spec = allocation.spec.spread_over(u32::try_from(allocation.shares.len()).unwrap_or(u32::MAX));
            // Nodes use it in the names of the places where they store things.
            allocation.stored_project().clone_into(&mut spec.project);
            shares.push(DesiredShare {
                allocation: allocation.id,
                epoch: allocation.epoch,
                owner: allocation.owner.clone(),
                state: allocation.state,
                resources: held.resources,
                nodes: allocation.shares.list().node_list(),
                spec,
                vni: held.vni,
                requeue_count: allocation.requeue_count,
                run_lease_ms: held.run_lease_ms,
                restore: allocation.checkpoint.as_deref().cloned().filter(|c| c.epoch < allocation.epoch),
                preempt: allocation.preemption.as_deref().cloned().filter(|order| order.stands() && allocation.head() == Some(node)),
                telemetry: allocation.telemetry.as_deref().cloned(),
                lane: allocation.lane,
                replica: allocation.replica.as_deref().copied(),
                parents: self.parent_outputs(allocation),
                number: self.shown_number(allocation),
                cores: allocation.shares.list().core_runs(),
                started_at: allocation.started_at,
            });
        }
        shares.sort_by_key(|s| s.allocation);
        let leaving = over.iter().map(|h| (h.allocation, h.epoch)).collect();
        let (generation, revision, wipe) = (self.generation, self.revision, self.wipe_due(node));
        DesiredList { generation, revision, shares, wipe, leaving }
    }

    /// The allocation with this job number, with this id, or the only one whose id has this prefix of at
    /// least 4 hexadecimal digits. The number of a task means its group. A text of 8 digits or more that is the
    /// number of one and a prefix of another is refused. Fewer digits are always the job number, if it was ever
    /// assigned.
    pub fn find(&self, key: &str) -> Result<&Arc<Allocation>, Refusal> {
        let Some(number) = job_numbers::parse(key) else { return self.find_by_id(key) };
        let numbered = self.find_number(number);
        // Some ids begin with the digits of a short number: the number must still mean its job.
        if key.len() < SHORT_ID_DIGITS && number <= self.jobs() {
            return numbered.ok_or_else(|| self.no_such_allocation(key));
        }
        let by_id = if key.len() < PREFIX_DIGITS_MIN { None } else { Some(self.find_by_id(key)) };
        match (numbered, by_id) {
            (None, None) => Err(self.no_such_allocation(key)),
            (None, Some(by_id)) => by_id,
            (Some(numbered), None | Some(Err(Refusal::NoSuchAllocation { .. }))) => Ok(numbered),
            (Some(numbered), Some(Ok(other))) if numbered.id == other.id => Ok(numbered),
            (Some(numbered), Some(Ok(other))) => {
                Err(Refusal::NumberOrId { key: key.to_owned(), numbered: numbered.id, candidates: vec![other.id.to_string()] })
            }
            (Some(numbered), Some(Err(Refusal::AmbiguousAllocation { candidates, .. }))) => {
                Err(Refusal::NumberOrId { key: key.to_owned(), numbered: numbered.id, candidates })
            }
            (Some(_), Some(Err(other))) => Err(other),
        }
    }

    fn find_by_id(&self, key: &str) -> Result<&Arc<Allocation>, Refusal> {
        let no_id = || Refusal::NoSuchAllocation { key: key.chars().take(64).collect(), forgotten: None };
        let none = || self.no_such_allocation(key.chars().take(64).collect::<String>());
        let (first, last) = id_range(key)?.ok_or_else(no_id)?;
        let mut found = self.allocations.range(AllocationId(first)..=AllocationId(last));
        let first = found.next().ok_or_else(none)?.1;
        let others: Vec<String> = found.take(CANDIDATES_MAX - 1).map(|(id, _)| id.to_string()).collect();
        if others.is_empty() {
            return Ok(first);
        }
        let candidates = std::iter::once(first.id.to_string()).chain(others).collect();
        Err(Refusal::AmbiguousAllocation { key: key.to_owned(), candidates })
    }

    /// The newest `limit` allocations of this user in these states that pass the filter, after this
    /// position. `None` or empty means all users, all states, and the beginning of the list.
    pub fn list(
        &self,
        uid: Option<u32>,
        states: &[AllocationState],
        limit: usize,
        before: Option<ListCursor>,
        filter: &ListFilter,
    ) -> Vec<Arc<Allocation>> {
        let place = |a: &Arc<Allocation>| ListCursor { submitted_at: a.submitted_at, id: a.id };
        let wanted = |a: &&Arc<Allocation>| {
            uid.is_none_or(|uid| a.owner.uid == uid)
                && (states.is_empty() || states.contains(&a.shown_state()))
                && before.is_none_or(|before| place(a) < before)
                && self.is_let_through(filter, a)
        };
        let mut found: Vec<&Arc<Allocation>> = self.allocations.values().filter(wanted).collect();
        if limit > 0 && limit < found.len() {
            // Sort only the part that is returned.
            found.select_nth_unstable_by_key(limit - 1, |a| std::cmp::Reverse(place(a)));
            found.truncate(limit);
        }
        found.sort_unstable_by_key(|a| std::cmp::Reverse(place(a)));
        found.into_iter().cloned().collect()
    }

    fn is_let_through(&self, filter: &ListFilter, a: &Allocation) -> bool {
        let ListFilter { user, name, vcluster, tenant, project, node, tags, lanes } = filter;
        let is_wanted = match *lanes {
            WantedLanes::LeftOut => a.lane.is_none() && a.replica.is_none(),
            WantedLanes::All => true,
            WantedLanes::Of(group) => {
                a.lane.is_some_and(|lane| lane.group == group) || a.replica.as_deref().is_some_and(|replica| replica.service == group)
            }
        };
        is_wanted
            && user.as_ref().is_none_or(|user| a.owner.name == *user)
            && name.as_ref().is_none_or(|name| a.spec.name == *name)
            && vcluster.as_ref().is_none_or(|vcluster| self.queue_of(&a.spec.vcluster) == vcluster)
            && tenant.as_ref().is_none_or(|tenant| a.spec.tenant == *tenant)
            && project.as_ref().is_none_or(|project| a.spec.project == *project)
            && node.as_ref().is_none_or(|node| a.shares.rank_of(node).is_some())
            && tags.iter().all(|(tag, value)| a.spec.tags.get(tag) == Some(value))
    }

    /// The number of nodes in each state.
    pub fn node_counts(&self) -> Vec<(NodeState, u32)> {
        self.node_index.states.iter().map(|(state, count)| (*state, *count)).collect()
    }

    /// The number of nodes with a failed wipe, and of nodes whose time limit for drift has passed.
    pub fn nodes_amiss(&self) -> [u32; 2] {
        [self.node_index.failed_wipes, self.node_index.drifts_over]
    }

    /// The number of allocations in each state.
    pub fn allocation_counts(&self) -> Vec<(AllocationState, u32)> {
        self.allocation_index.states.iter().map(|(state, count)| (*state, *count)).collect()
    }
}

/// The first and the last id with this prefix of at least 4 hexadecimal digits; `None`: no id has it.
pub(super) fn id_range(key: &str) -> Result<Option<(Uuid, Uuid)>, Refusal> {
    let digits: String = key.chars().filter(|c| *c != '-').collect();
    if digits.len() > 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Ok(None);
    }
    if digits.len() < PREFIX_DIGITS_MIN {
        return Err(Refusal::Malformed { why: format!("{key:?}: give at least {PREFIX_DIGITS_MIN} hexadecimal digits of the id") });
    }
    let bound = |fill: char| {
        let text: String = digits.chars().chain(std::iter::repeat(fill)).take(32).collect();
        Uuid::try_parse(&text).ok()
    };
    Ok(bound('0').zip(bound('f')))
}
