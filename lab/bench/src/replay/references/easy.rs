//! EASY backfill: the first waiting job has a reservation, and others overtake it if they do not delay it. After A. W.
//! Mu'alem and D. G. Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the IBM
//! SP2 with backfilling", IEEE TPDS 12(6), 2001.

use crate::replay::simulation::{Cluster, Decisions, Scheduler};
use anyhow::Result;

/// See the module documentation.
pub struct Easy;

impl Scheduler for Easy {
    fn name(&self) -> &'static str {
        "EASY"
    }

    fn decide(&mut self, now_s: u64, cluster: &Cluster<'_>) -> Result<Decisions> {
        let mut free = cluster.free;
        let mut begin = Vec::new();
        // When each running job ends by its walltime, and its nodes.
        let mut ends: Vec<(u64, u32)> = cluster.running.iter().map(|running| (running.end_by_estimate_s(), running.job.nodes)).collect();
        let mut waiting = cluster.waiting.iter();
        let first = loop {
            match waiting.next() {
                Some(job) if job.nodes <= free => {
                    free -= job.nodes;
                    ends.push((now_s + job.estimate_s, job.nodes));
                    begin.push(job.index);
                }
                Some(job) => break job,
                None => return Ok(Decisions { begin, expected: Vec::new() }),
            }
        };
        let (start_s, mut spare) = reservation(first.nodes, free, ends);
        for job in waiting.filter(|job| job.nodes <= cluster.free) {
            let ends_before = now_s + job.estimate_s <= start_s;
            if job.nodes <= free && (ends_before || job.nodes <= spare) {
                free -= job.nodes;
                spare -= if ends_before { 0 } else { job.nodes };
                begin.push(job.index);
            }
        }
        Ok(Decisions { begin, expected: vec![(first.index, start_s)] })
    }
}

/// When this many nodes are free, and how many more are free then.
fn reservation(nodes: u32, free_now: u32, mut ends: Vec<(u64, u32)>) -> (u64, u32) {
    ends.sort_unstable();
    let free_at = |at_s: u64| free_now + ends.iter().take_while(|(end_s, _)| *end_s <= at_s).map(|(_, nodes)| nodes).sum::<u32>();
    let start_s = ends.iter().map(|(end_s, _)| *end_s).find(|end_s| free_at(*end_s) >= nodes);
    let start_s = start_s.expect("when all has ended, all nodes are free");
    (start_s, free_at(start_s) - nodes)
}
