//! How work is kept from GPUs that are not its own.

use lattice_model::topology::GpuTopology;
use lattice_model::{AllocationId, Assignment};
use lattice_node::Local;
use lattice_quorum::pack::with_causes;
use lattice_runtime::cgroup::controllers::{Controller, Controllers};
use lattice_runtime::cgroup::devices::{self, Device};
use lattice_runtime::cgroup::limits::Limits;
use lattice_runtime::cgroup::{Scope, Slice};
use std::collections::BTreeSet;

/// What this node can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceFilter {
    /// A BPF program on each scope.
    Bpf,
    /// The controller `devices` of cgroup version 1.
    V1,
    /// Nothing, and why.
    None { why: String },
}

impl DeviceFilter {
    /// Tries it: a scope is made, filtered and removed.
    pub fn find(slice: Option<&Slice>, controllers: &Controllers) -> Self {
        match slice.ok_or_else(|| "there is no cgroup v2 tree".to_owned()).and_then(tried) {
            Ok(()) => Self::Bpf,
            Err(_) if controllers.place(Controller::Devices).is_some() => Self::V1,
            Err(why) => Self::None { why },
        }
    }

    /// What is amiss, where there are GPUs to be kept apart.
    pub fn shortcoming(&self, gpus: &GpuTopology) -> Option<String> {
        match self {
            Self::None { why } if !gpus.gpus.is_empty() => Some(format!(
                "GPU device filter: work can open GPUs that are not its own. {why}; give the agent CAP_BPF and CAP_NET_ADMIN, or \
                 let cgroup_v1_controllers name devices where that hierarchy is mounted"
            )),
            Self::None { .. } | Self::Bpf | Self::V1 => None,
        }
    }

    /// Puts it before an allocation's work, or into its limits.
    pub fn apply(&self, scope: Option<&Scope>, denied: BTreeSet<Device>, limits: &mut Limits) -> Result<(), String> {
        match (self, scope) {
            _ if denied.is_empty() => Ok(()),
            (Self::Bpf, Some(scope)) => {
                devices::keep_out(&scope.work(), &denied).map_err(|e| format!("device filter: {}", with_causes(&e)))
            }
            (Self::V1, _) => {
                limits.denied_devices = denied;
                Ok(())
            }
            (Self::Bpf | Self::None { .. }, _) => Ok(()),
        }
    }
}

fn tried(slice: &Slice) -> Result<(), String> {
    let scope = slice.create_scope(AllocationId(uuid::Uuid::new_v4())).map_err(|e| with_causes(&e))?;
    let done = devices::keep_out(&scope.work(), &[(0, 0)].into()).map_err(|e| with_causes(&e));
    scope.whole().remove().map_err(|e| with_causes(&e))?;
    done
}

/// What an allocation's work must not open here.
pub fn denied(gpus: &GpuTopology, assignment: Option<&Assignment>) -> BTreeSet<Device> {
    let files = assignment.map(|a| a.denied(gpus)).unwrap_or_default();
    files.into_iter().map(|f| (f.major, f.minor)).collect()
}

/// Keeps the work that is here from GPUs that came since it was begun. Blocking. An error says why it may open them.
pub fn keep_from_newcomers(locals: &[Local], filter: &DeviceFilter, slice: Option<&Slice>, gpus: &GpuTopology) -> Result<(), String> {
    let filter = match (filter, slice) {
        (DeviceFilter::Bpf, Some(slice)) => slice,
        // Nothing is kept from anybody, which is said elsewhere.
        (DeviceFilter::None { .. }, _) => return Ok(()),
        // What is begun from now on knows of them.
        (DeviceFilter::Bpf | DeviceFilter::V1, _) if locals.iter().all(|local| local.assignment.is_none()) => return Ok(()),
        (DeviceFilter::Bpf | DeviceFilter::V1, _) => {
            return Err(
                "work that runs here could open it: cgroup version 1 takes no filter anew; it is offered when that work is over".to_owned()
            );
        }
    };
    for local in locals.iter().filter(|local| local.assignment.is_some()) {
        let work = filter.scope(local.share.allocation).work();
        // What has no scope yet is given its filter with it.
        if work.path().exists() {
            devices::keep_out(&work, &denied(gpus, local.assignment.as_ref()))
                .map_err(|e| format!("device filter: {}", with_causes(&e)))?;
        }
    }
    Ok(())
}
