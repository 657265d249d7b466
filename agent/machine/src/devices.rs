//! Denies each allocation's work the GPUs that are not assigned to it.

use lattice_model::topology::GpuTopology;
use lattice_model::{AllocationId, Assignment, with_causes};
use lattice_node::Local;
use lattice_runtime::cgroup::controllers::{Controller, Controllers};
use lattice_runtime::cgroup::devices::{self, Device, FilterError};
use lattice_runtime::cgroup::limits::Limits;
use lattice_runtime::cgroup::{CgroupError, Scope, Slice};
use std::collections::BTreeSet;
use thiserror::Error;

/// The means by which this node denies devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceFilter {
    /// A BPF program on each scope.
    Bpf,
    /// The controller `devices` of cgroup version 1.
    V1,
    /// There is no such means; `why` is text for people.
    None { why: String },
}

/// Why work could not be denied the GPUs that are not assigned to it.
#[derive(Debug, Error)]
pub enum DeviceFilterError {
    #[error("device filter: {}", with_causes(.0))]
    KeepOut(#[source] FilterError),
    #[error("running work could open it, and cgroup version 1 cannot deny it that; the GPU is offered when that work has ended")]
    CannotChange,
}

/// Why a scope cannot be filtered here.
#[derive(Debug, Error)]
enum NoFilter {
    #[error("there is no cgroup v2 tree")]
    NoTree,
    #[error("{}", with_causes(.0))]
    Scope(#[from] CgroupError),
    #[error("{}", with_causes(.0))]
    KeepOut(#[from] FilterError),
}

impl DeviceFilter {
    /// Finds the means. Tries BPF on a scope that it creates and removes; if that fails, uses the
    /// controller of cgroup version 1, if this node has it.
    pub fn find(slice: Option<&Slice>, controllers: &Controllers) -> Self {
        match slice.ok_or(NoFilter::NoTree).and_then(tried) {
            Ok(()) => Self::Bpf,
            Err(_) if controllers.place(Controller::Devices).is_some() => Self::V1,
            Err(error) => Self::None { why: error.to_string() },
        }
    }

    /// What to report if this node has GPUs and no means to deny them.
    pub fn shortcoming(&self, gpus: &GpuTopology) -> Option<String> {
        match self {
            Self::None { why } if !gpus.gpus.is_empty() => Some(format!(
                "GPU device filter: work can open GPUs that are not its own. {why}; give the agent CAP_BPF and CAP_NET_ADMIN, or \
                 let cgroup.v1_controllers name devices where that hierarchy is mounted"
            )),
            Self::None { .. } | Self::Bpf | Self::V1 => None,
        }
    }

    /// Attaches the filter to an allocation's scope (BPF), or adds the devices to the work's limits
    /// (version 1). Without a means it does nothing.
    pub fn apply(&self, scope: Option<&Scope>, denied: BTreeSet<Device>, limits: &mut Limits) -> Result<(), DeviceFilterError> {
        match (self, scope) {
            _ if denied.is_empty() => Ok(()),
            (Self::Bpf, Some(scope)) => devices::keep_out(&scope.work(), &denied).map_err(DeviceFilterError::KeepOut),
            (Self::V1, _) => {
                limits.denied_devices = denied;
                Ok(())
            }
            (Self::Bpf | Self::None { .. }, _) => Ok(()),
        }
    }
}

fn tried(slice: &Slice) -> Result<(), NoFilter> {
    let scope = slice.create_scope(AllocationId(uuid::Uuid::new_v4()))?;
    let done = devices::keep_out(&scope.work(), &[(0, 0)].into());
    scope.whole().remove()?;
    Ok(done?)
}

/// The devices that an allocation's work must not open here.
pub fn denied(gpus: &GpuTopology, assignment: Option<&Assignment>) -> BTreeSet<Device> {
    let files = assignment.map(|a| a.denied(gpus)).unwrap_or_default();
    files.into_iter().map(|f| (f.major, f.minor)).collect()
}

/// Denies running work the GPUs that appeared after it started. Blocks. An error says why the work
/// may open them.
pub fn keep_from_newcomers(
    locals: &[Local],
    filter: &DeviceFilter,
    slice: Option<&Slice>,
    gpus: &GpuTopology,
) -> Result<(), DeviceFilterError> {
    let filter = match (filter, slice) {
        (DeviceFilter::Bpf, Some(slice)) => slice,
        // This node denies no devices at all, which [`DeviceFilter::shortcoming`] reports.
        (DeviceFilter::None { .. }, _) => return Ok(()),
        // No work has an assignment yet: work that starts later is denied these GPUs from its
        // start.
        (DeviceFilter::Bpf | DeviceFilter::V1, _) if locals.iter().all(|local| local.assignment.is_none()) => return Ok(()),
        (DeviceFilter::Bpf | DeviceFilter::V1, _) => {
            return Err(DeviceFilterError::CannotChange);
        }
    };
    for local in locals.iter().filter(|local| local.assignment.is_some()) {
        let work = filter.scope(local.share.allocation).work();
        // Work without a scope gets its filter when the scope is created.
        if work.path().exists() {
            devices::keep_out(&work, &denied(gpus, local.assignment.as_ref())).map_err(DeviceFilterError::KeepOut)?;
        }
    }
    Ok(())
}
