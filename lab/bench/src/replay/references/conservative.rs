//! Conservative backfill: when a job is submitted, it gets the earliest start that delays no job before it. After an early
//! end, each job moves to an earlier start if it can, in the order of submission, and never to a later one. Following
//! A. W. Mu'alem and D. G. Feitelson, IEEE TPDS 12(6), 2001.

use super::profile::Profile;
use crate::replay::simulation::{Cluster, Decisions, Scheduler};
use anyhow::Result;
use std::collections::BTreeMap;

/// The starts of the jobs that wait, in seconds.
#[derive(Default)]
pub struct Conservative {
    starts_s: BTreeMap<usize, u64>,
}

impl Scheduler for Conservative {
    fn name(&self) -> &'static str {
        "conservative"
    }

    fn decide(&mut self, now_s: u64, cluster: &Cluster<'_>) -> Result<Decisions> {
        let mut profile = Profile::new(now_s, cluster.nodes);
        for running in &cluster.running {
            profile.take(now_s, running.end_by_estimate_s() - now_s, running.job.nodes);
        }
        for job in &cluster.waiting {
            if let Some(start_s) = self.starts_s.get(&job.index) {
                profile.take(*start_s, job.estimate_s, job.nodes);
            }
        }
        let mut decisions = Decisions::default();
        for job in &cluster.waiting {
            if let Some(start_s) = self.starts_s.remove(&job.index) {
                profile.give_back(start_s, job.estimate_s, job.nodes);
            }
            let start_s = profile.earliest(job.nodes, job.estimate_s);
            profile.take(start_s, job.estimate_s, job.nodes);
            if start_s == now_s {
                decisions.begin.push(job.index);
            } else {
                self.starts_s.insert(job.index, start_s);
                decisions.expected.push((job.index, start_s));
            }
        }
        Ok(decisions)
    }
}
