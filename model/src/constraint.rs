//! Hard requirements for an allocation's nodes, besides the resources that it claims.

use crate::conformance::Conformance;
use crate::count::{counted, is_or_are};
pub use crate::feature::{FEATURE_BYTES_MAX, FEATURES_MAX, has, is_feature};
use crate::feature_choice::{FeatureChoice, Together};
use crate::hostlist;
use crate::ids::NodeId;
use crate::node::Node;
use crate::resources::bytes_text;
use crate::spec_error::SpecError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Feature: the node's scratch is on an NVMe disk of its own.
pub const NVME_SCRATCH: &str = "nvme_scratch";
/// Feature: the node has GPUs.
pub const GPU: &str = "gpu";
/// Feature: the node's processors and GPUs share one memory.
pub const UNIFIED_MEMORY: &str = "unified_memory";
/// Feature key `gpu_type=<model>`: one for each GPU model in the node.
pub const GPU_TYPE: &str = "gpu_type";
/// Feature: the node has a CXI device (Slingshot), so a network domain's VNI can take effect.
pub const CXI: &str = "cxi";
/// Feature: the node serves PMIx. Work with `--pmi=pmix` runs only on such nodes.
pub const PMIX: &str = "pmix";
/// Feature: the node's shims end work when its run lease lapses. Work with `--on-isolation=stop`
/// runs only on such nodes.
pub const RUN_LEASE: &str = "run_lease";
/// Feature: the node's agent makes checkpoints. Work with `--checkpoint` runs only on such nodes.
pub const CHECKPOINTS: &str = "checkpoints";
/// Feature: the node's agent stores every sample of work that is measured in debug mode in an
/// object store; see [`crate::telemetry`].
pub const TELEMETRY_DEBUG: &str = "telemetry_debug";
/// Feature: the node can record which files work opens and which addresses it connects to.
pub const TELEMETRY_AUDIT: &str = "telemetry_audit";

/// What an allocation asks of its nodes. A node that does not meet a constraint is not used, except
/// for [`Constraints::same_numa`], which is a preference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Constraints {
    /// Features that each node must have; see [`has`].
    pub features: BTreeSet<String>,
    /// Alternatives of features, and features of a number of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Box<FeatureChoice>>,
    /// Number of cores that each node must have, whether or not others use them.
    #[serde(skip_serializing_if = "is_zero")]
    pub cores: u32,
    /// Number of sockets that each node must have.
    #[serde(skip_serializing_if = "is_zero")]
    pub sockets: u32,
    /// Number of GPUs that each node must have, whether or not others use them.
    pub gpus: u32,
    /// Bytes of main memory that each node must have; with `cxl_memory`, that behind CXL counts.
    pub memory_bytes: u64,
    /// Whether all nodes must be in one conformance group.
    pub conformance: bool,
    /// The exact nodes, all of them; empty: any node.
    pub nodes: BTreeSet<NodeId>,
    /// Nodes that it does not get.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<NodeId>,
    /// From how many topology groups its nodes may come.
    pub topology: Topology,
    /// Whether it prefers nodes with a memory domain that is large enough, and on a node the cores
    /// and GPUs of one domain.
    pub same_numa: bool,
    /// Whether the work may use memory behind CXL. For whole nodes only.
    pub cxl_memory: bool,
}

/// From how many topology groups (parts of the network) the nodes of an allocation may come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Topology {
    /// From as few as the free nodes allow.
    #[default]
    Any,
    /// From as few as the nodes of the cluster allow: it waits for nodes of one group, or, if none is
    /// large enough, of as few groups as possible.
    Tight,
    /// From at most this many, at least 1: it waits for such nodes.
    AtMost(u32),
    /// From any, but the nodes follow each other in the cluster's list by their names: it waits for such nodes.
    Contiguous,
}

impl Topology {
    /// The names that users write, beside a number.
    pub const NAMES: [&'static str; 3] = ["any", "tight", "contiguous"];

    /// The value with this name, or with this number.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "any" => Some(Self::Any),
            "tight" => Some(Self::Tight),
            "contiguous" => Some(Self::Contiguous),
            number => number.parse().ok().filter(|groups| *groups > 0).map(Self::AtMost),
        }
    }
}

/// The name or number that users write.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str(Self::NAMES[0]),
            Self::Tight => f.write_str(Self::NAMES[1]),
            Self::AtMost(groups) => groups.fmt(f),
            Self::Contiguous => f.write_str(Self::NAMES[2]),
        }
    }
}

impl Constraints {
    /// Whether there are no constraints.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The constraint that `node` does not meet, for people; `None`: it meets all.
    pub fn lacked_by(&self, node: &Node) -> Option<String> {
        let unknown = self.conformance && node.conformance.as_ref().and_then(Conformance::group).is_none();
        self.never_met_by(node)
            .or_else(|| unknown.then(|| "has not reported the fingerprint of its configuration, or too long ago".to_owned()))
    }

    /// What its nodes must have together, if there is such a requirement.
    pub fn together(&self) -> Option<&Together> {
        self.choice.as_deref()?.together.as_ref()
    }

    /// Why `node` is unwanted: it is excluded by its name, or its features fit no alternative.
    pub fn unwanted(&self, node: &Node) -> Option<String> {
        if self.excluded.contains(&node.id) {
            return Some("is excluded by --exclude".to_owned());
        }
        self.choice.as_deref().and_then(|choice| choice.lacked_by(&node.features))
    }

    /// As [`Self::lacked_by`], but only for properties that do not change with the node's state:
    /// name, features and size.
    pub fn never_met_by(&self, node: &Node) -> Option<String> {
        if !self.nodes.is_empty() && !self.nodes.contains(&node.id) {
            return Some(format!("is none of the nodes asked for ({})", hostlist::fold(&self.nodes)));
        }
        if let Some(feature) = self.features.iter().find(|wanted| !has(&node.features, wanted)) {
            return Some(format!("lacks the feature {feature}"));
        }
        if let Some(why) = self.unwanted(node) {
            return Some(why);
        }
        let size = &node.size;
        if self.cores > size.cores {
            return Some(format!("has {}; {} {} wanted", counted(size.cores, "core"), self.cores, is_or_are(self.cores)));
        }
        let sockets = node.locality.sockets;
        if self.sockets > sockets {
            return Some(format!("has {}; {} {} wanted", counted(sockets, "known socket"), self.sockets, is_or_are(self.sockets)));
        }
        if self.gpus > size.gpus {
            return Some(format!("has {}; {} {} wanted", counted(size.gpus, "GPU"), self.gpus, is_or_are(self.gpus)));
        }
        self.short_of_memory(node)
    }

    fn short_of_memory(&self, node: &Node) -> Option<String> {
        let (local, far, wanted) = (node.size.memory_bytes, node.locality.cxl_memory_bytes, self.memory_bytes);
        let all = local.saturating_add(far);
        if wanted <= if self.cxl_memory { all } else { local } {
            return None;
        }
        let has = match (far, self.cxl_memory) {
            (0, _) => format!("has {} of memory", bytes_text(local)),
            (_, true) => format!("has {} of memory, {} of it behind CXL", bytes_text(all), bytes_text(far)),
            (_, false) => format!("has {} of memory, and {} behind CXL for work with allow_cxl_memory", bytes_text(local), bytes_text(far)),
        };
        Some(format!("{has}; {} is wanted", bytes_text(wanted)))
    }

    /// Checks the syntax of all fields.
    ///
    /// # Errors
    /// [`SpecError::Invalid`] for `constraint`.
    pub fn validate(&self) -> Result<(), SpecError> {
        let refuse = |why: String| Err(SpecError::Invalid { field: "constraint", why });
        if self.features.len() > FEATURES_MAX {
            return refuse(format!("{} features; at most {FEATURES_MAX} can be asked for", self.features.len()));
        }
        if let Some(bad) = self.features.iter().find(|feature| !is_feature(feature)) {
            let bad = bad.chars().take(40).collect::<String>();
            return refuse(format!("{bad:?} is not a feature: give a word such as {NVME_SCRATCH}"));
        }
        if let Some(both) = self.excluded.iter().find(|node| self.nodes.contains(node)) {
            let why = format!("{both} is one of the nodes asked for (--nodelist): take it out of one of the lists");
            return Err(SpecError::Invalid { field: "exclude", why });
        }
        match &self.choice {
            Some(choice) => choice.validate().or_else(|invalid| refuse(invalid.to_string())),
            None => Ok(()),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_behind_cxl_counts_for_work_that_allows_it() {
        const GIB: u64 = 1 << 30;
        let near = crate::test_builders::node("n1", crate::NodeState::Ready);
        let locality = crate::Locality { cxl_memory_bytes: 2 * GIB, ..crate::Locality::default() };
        let far = Node { locality, ..near.clone() };
        let lacks = |node: &Node, memory_bytes: u64, cxl_memory: bool| {
            Constraints { memory_bytes, cxl_memory, ..Constraints::default() }.never_met_by(node)
        };
        assert_eq!([lacks(&near, GIB, false), lacks(&near, GIB, true), lacks(&far, 3 * GIB, true)], [None, None, None]);
        for (node, wanted, allowed, why) in [
            (&near, 2, true, "has 1.0 GiB of memory; 2.0 GiB is wanted"),
            (&far, 2, false, "has 1.0 GiB of memory, and 2.0 GiB behind CXL for work with allow_cxl_memory; 2.0 GiB is wanted"),
            (&far, 4, true, "has 3.0 GiB of memory, 2.0 GiB of it behind CXL; 4.0 GiB is wanted"),
        ] {
            assert_eq!(lacks(node, wanted * GIB, allowed).as_deref(), Some(why));
        }
    }
}
