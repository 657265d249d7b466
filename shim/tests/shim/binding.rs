//! Ranks that run on their own processors and see only their own GPUs.

use crate::bed::{Bed, Setting};
use lattice_model::binding::{CpuBind, PlacedGpu, RankBinding};
use lattice_model::topology::{Core, GpuVendor};
use lattice_model::{Placement, RankOutcome};
use lattice_runtime::shim::{FromShim, LogStream, REFUSED_CODE, ToShim};

/// Two processors of this machine (the same one twice if it has only one), with a GPU near each.
fn placement() -> Placement {
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let ours: Vec<u32> = (0u32..1024).filter(|cpu| allowed.is_set(*cpu as usize).unwrap_or(false)).collect();
    let core = |node: u32, cpu: u32| Core { cpus: vec![cpu], package: 0, numa_node: node };
    let gpu = |id: &str, node| PlacedGpu { id: id.to_owned(), vendor: GpuVendor::Simulated, numa_node: Some(node) };
    Placement {
        cores: vec![core(0, ours[0]), core(1, *ours.last().unwrap())],
        gpus: vec![gpu("A", 1), gpu("B", 0)],
        memory_nodes: [].into(),
        vendors: [GpuVendor::Simulated].into(),
    }
}

const SCRIPT: &str = "grep Cpus_allowed_list /proc/self/status; echo $LATTICE_SIMULATED_VISIBLE_DEVICES";

pub fn places() {
    let mut bed = Bed::ready(Setting { placement: Some(placement()), ..Setting::default() });
    let mut launch = bed.launch(1, 2, &["sh", "-c", SCRIPT]);
    launch.env.insert("LATTICE_SIMULATED_VISIBLE_DEVICES".to_owned(), "everything".to_owned());
    launch.binding = RankBinding { cpu_bind: CpuBind::Cores, gpus_per_task: 1, ..RankBinding::default() };
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::Exited { code: 0 }; 2]);
    for (rank, own) in [(0, "B"), (1, "A")] {
        let cpu = placement().cores[rank as usize].cpus[0];
        assert_eq!(bed.log(1, rank, LogStream::Out), format!("Cpus_allowed_list:\t{cpu}\n{own}\n"));
    }
    // Without a request, all of the allocation's; the same for the script.
    let all = bed.start_sh(2, 1, SCRIPT);
    bed.agent.outcomes(&all);
    assert!(bed.log(2, 0, LogStream::Out).ends_with("\nA,B\n"), "{}", bed.log(2, 0, LogStream::Out));
    let text = format!("#!/bin/sh\n{SCRIPT}\n");
    bed.agent.send(&ToShim::StartScript {
        text,
        args: vec![],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        working_dir: "/".into(),
    });
    bed.agent.until("ScriptEnded", |m| matches!(m, FromShim::ScriptEnded { .. }));
    assert!(bed.log(0, 0, LogStream::Out).ends_with("\nA,B\n"), "{}", bed.log(0, 0, LogStream::Out));
    bed.end();
}

pub fn impossible() {
    let mut bed = Bed::ready(Setting { placement: Some(placement()), ..Setting::default() });
    let mut launch = bed.launch(1, 3, &["true"]);
    launch.binding.gpus_per_task = 1;
    bed.agent.send(&ToShim::StartLaunch { launch });
    match bed.agent.next() {
        Some(FromShim::Aborted { code: REFUSED_CODE, why, .. }) => assert!(why.contains("--gpus"), "{why}"),
        other => panic!("{other:?}"),
    }
    bed.end();
}
