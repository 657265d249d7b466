//! What is replayed on the product's scheduler: a site, and its work.

use super::product::id;
use super::site::Site;
use super::workload::{Job, Workload};
use lattice_api::trace::{Request, Span, Wanted};
use lattice_model::AllocationId;
use lattice_model::spec::PREEMPTION_CLASS_DEFAULT;

/// See the module documentation. Times are in seconds.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: String,
    pub site: Site,
    /// In the order of submission.
    pub works: Vec<Work>,
    /// Notes about the work, for the reader.
    pub notes: Vec<String>,
}

/// An allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    pub id: AllocationId,
    pub request: Request,
    pub submitted_s: u64,
    /// How long it runs if it is not interrupted. At most as long as its walltime, unless it saved itself and continued.
    pub run_s: u64,
}

impl Scenario {
    /// The jobs of a workload: one user, no tenants, one queue.
    pub fn of(workload: &Workload) -> Self {
        let work = |job: &Job| Work {
            id: id(job.index),
            request: Request { walltime: Some(Span(job.estimate_s)), ..whole_nodes(job.nodes) },
            submitted_s: job.submitted_s,
            run_s: job.run_s,
        };
        Self {
            name: workload.name.clone(),
            site: Site::alike(workload.nodes),
            works: workload.jobs.iter().map(work).collect(),
            notes: workload.notes.clone(),
        }
    }

    /// The first and the last submission.
    pub fn span_s(&self) -> (u64, u64) {
        let times = || self.works.iter().map(|work| work.submitted_s);
        (times().min().unwrap_or(0), times().max().unwrap_or(0))
    }
}

/// A request for whole nodes with the defaults of a submission, without a walltime.
pub fn whole_nodes(nodes: u32) -> Request {
    Request {
        nodes,
        nodes_max: None,
        share: None,
        tasks_per_node: 1,
        gpus_per_task: 0,
        cpus_per_task: 0,
        constraints: Wanted::default(),
        walltime: None,
        tenant: String::new(),
        vcluster: String::new(),
        user: 0,
        priority: PREEMPTION_CLASS_DEFAULT,
        checkpoint: false,
        requeues: 0,
        nice: 0,
        deadline: None,
        walltime_min: None,
    }
}
