//! How the node's GPUs stand, and what the node offers because of that. `agent::gpus` finds it out.

use lattice_api::v1;
use lattice_model::Resources;
use lattice_node::device_health::GpuStanding;
use std::collections::BTreeMap;

/// What work may have of the node, and ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    pub size: Resources,
    pub features: Vec<String>,
}

/// How the GPUs stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuStandings {
    /// The version of the table by which they are judged.
    pub policy: String,
    /// By what each goes by.
    pub gpus: BTreeMap<String, GpuStanding>,
    /// Why one is not offered yet with which nothing is the matter.
    pub waits: BTreeMap<String, String>,
    /// How often NVIDIA's driver reported which error of which GPU.
    pub xids: BTreeMap<(String, u32), u64>,
}

impl GpuStandings {
    /// What is the matter with it, or why it is not offered; empty where nothing is.
    pub fn why(&self, key: &str) -> String {
        let why = self.gpus.get(key).map(GpuStanding::why).unwrap_or_default();
        if why.is_empty() { self.waits.get(key).map(|why| format!("not offered yet: {why}")).unwrap_or_default() } else { why }
    }

    /// Whether anything is on the bus of which no driver tells, or that is new.
    pub fn has_newcomers(&self) -> bool {
        !self.waits.is_empty()
    }

    /// Whether it is on the bus and its driver has it.
    pub fn is_there(&self, key: &str) -> bool {
        self.gpus.get(key).is_none_or(|standing| standing.lost.is_none())
    }

    pub fn is_allocatable(&self, key: &str) -> bool {
        self.gpus.get(key).is_none_or(GpuStanding::is_allocatable) && !self.waits.contains_key(key)
    }

    /// As the API has them.
    pub fn shown(&self) -> Vec<v1::GpuStanding> {
        let shown = self.gpus.iter().map(|(key, standing)| {
            let mut detail = match self.waits.get(key) {
                Some(why) if standing.is_allocatable() => format!("not offered yet: {why}"),
                Some(_) | None => standing.why(),
            };
            // Some of it is a driver's.
            detail.retain(|c| !c.is_control());
            v1::GpuStanding {
                bus: key.clone(),
                there: standing.lost.is_none(),
                healthy: standing.is_healthy(),
                allocatable: self.is_allocatable(key),
                detail,
            }
        });
        shown.collect()
    }
}
