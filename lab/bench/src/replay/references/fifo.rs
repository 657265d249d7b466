//! First come, first served: no job begins before the jobs that were submitted earlier.

use crate::replay::simulation::{Cluster, Decisions, Scheduler};
use anyhow::Result;

/// See the module documentation.
pub struct Fifo;

impl Scheduler for Fifo {
    fn name(&self) -> &'static str {
        "FIFO"
    }

    fn decide(&mut self, _now_s: u64, cluster: &Cluster<'_>) -> Result<Decisions> {
        let mut free = cluster.free;
        let mut begin = Vec::new();
        for job in &cluster.waiting {
            if job.nodes > free {
                break;
            }
            free -= job.nodes;
            begin.push(job.index);
        }
        Ok(Decisions { begin, expected: Vec::new() })
    }
}
