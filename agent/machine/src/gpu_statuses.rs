//! The state of the node's GPUs, and the resources that the node offers. The agent's `gpus` task
//! determines both.

use lattice_api::v1;
use lattice_model::{Locality, Resources};
use lattice_node::device_health::GpuStatus;
use std::collections::BTreeMap;

/// The resources that work may have of the node, how they are wired, and the features that it may
/// require.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub size: Resources,
    pub features: Vec<String>,
    /// A summary of the wiring of the offered resources.
    pub locality: Locality,
}

/// The state of the GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuStatuses {
    /// Version of the error table that decides about the GPUs.
    pub policy: String,
    /// By GPU key.
    pub gpus: BTreeMap<String, GpuStatus>,
    /// By GPU key, why a GPU is not offered yet: no driver reports it, or it is new.
    pub waits: BTreeMap<String, String>,
    /// How often NVIDIA's driver reported each error, by GPU and error number.
    pub xids: BTreeMap<(String, u32), u64>,
}

impl GpuStatuses {
    /// The GPU's problem, or why it is not offered; empty: there is no problem, and it is offered.
    pub fn why(&self, key: &str) -> String {
        let why = self.gpus.get(key).map(GpuStatus::why).unwrap_or_default();
        if why.is_empty() { self.waits.get(key).map(|why| format!("not offered yet: {why}")).unwrap_or_default() } else { why }
    }

    /// Whether the bus has a GPU that is new, or that no driver reports.
    pub fn has_newcomers(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Whether the GPU is on the bus and its driver has not lost it. An unknown GPU counts as present.
    pub fn is_present(&self, key: &str) -> bool {
        self.gpus.get(key).is_none_or(|status| status.lost.is_none())
    }

    pub fn is_allocatable(&self, key: &str) -> bool {
        self.gpus.get(key).is_none_or(GpuStatus::is_allocatable) && !self.waits.contains_key(key)
    }

    /// The GPUs in the form of the API.
    pub fn shown(&self) -> Vec<v1::GpuStatus> {
        let shown = self.gpus.iter().map(|(key, status)| {
            let mut detail = match self.waits.get(key) {
                Some(why) if status.is_allocatable() => format!("not offered yet: {why}"),
                Some(_) | None => status.why(),
            };
            // Part of this text may come from a driver.
            detail.retain(|c| !c.is_control());
            v1::GpuStatus {
                bus: key.clone(),
                present: status.lost.is_none(),
                healthy: status.is_healthy(),
                allocatable: self.is_allocatable(key),
                detail,
            }
        });
        shown.collect()
    }
}
