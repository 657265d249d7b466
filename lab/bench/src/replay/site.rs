//! The cluster of a replay: nodes, tenants and vClusters.

use crate::ready_node::ready_node;
use lattice_model::constraint::CHECKPOINTS;
use lattice_model::{BudgetPeriod, DEFAULT_VCLUSTER, Node, Resources, Revision, SchedulerKind, SharePolicy, Tenant, Timestamp, VCluster};

const NODE_SIZE: Resources = Resources { cores: 64, memory_bytes: 256 << 30, gpus: 4 };

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Site {
    pub nodes: Vec<Node>,
    pub tenants: Vec<Tenant>,
    pub vclusters: Vec<VCluster>,
    /// Whose shares a node may hold at the same time.
    pub share_policy: SharePolicy,
    /// How far budgets look back.
    pub budget_period: BudgetPeriod,
    /// The bandwidth of the checkpoint store, in bytes per second; `None`: it is not known.
    pub checkpoint_bytes_per_second: Option<f64>,
}

impl Site {
    /// This many nodes of one kind, which belong to the default vCluster.
    pub fn alike(nodes: u32) -> Self {
        Self { nodes: (0..nodes).map(node).collect(), ..Self::default() }
    }

    /// The vCluster with this name. `default` always exists.
    pub fn vcluster(&self, name: &str) -> Option<VCluster> {
        let recorded = self.vclusters.iter().find(|vcluster| vcluster.name == name).cloned();
        recorded.or_else(|| (name == DEFAULT_VCLUSTER).then(|| vcluster(name, SchedulerKind::OF_DEFAULT)))
    }

    /// The same site with this vCluster in place of the one with its name.
    pub fn set_vcluster(&mut self, changed: VCluster) {
        self.vclusters.retain(|vcluster| vcluster.name != changed.name);
        self.vclusters.push(changed);
    }
}

/// A node of the usual kind.
pub fn node(number: u32) -> Node {
    let mut node = ready_node(number, NODE_SIZE);
    node.features.push(CHECKPOINTS.to_owned());
    node
}

/// A vCluster without nodes of its own and with the weights of its scheduler.
pub fn vcluster(name: &str, scheduler: SchedulerKind) -> VCluster {
    VCluster {
        name: name.to_owned(),
        scheduler,
        tenant: String::new(),
        nodes: 0,
        weights: None,
        cycle_interval_ms: 0,
        borrows: false,
        lend_ms: None,
        created_by: String::new(),
        created_at: Timestamp(0),
        revision: Revision(0),
    }
}
