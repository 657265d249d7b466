//! The users' pages.

use super::{Manual, Page, Plan, VCLUSTER, page};
use crate::network;

pub const USERS: Manual = Manual { folder: "how-to/users", plans: "pages/users.rs", pages: &PAGES };

const PAGES: [(&str, Plan); 39] = [
    ("after-other-work", Plan::Run(page())),
    ("another-machine", Plan::CannotRun("it needs the API on the network and a person; remote_cli tests it")),
    ("automatic-checkpoints", Plan::Run(Page { script_of: Some("checkpoint-by-signal"), ..page() })),
    (
        "change-work",
        // Shorter than before: only operators may lengthen a walltime.
        Plan::Run(Page { work: "--cores 1 --walltime 3h -- sh -c 'trap : USR1; while :; do sleep 0.1; done'", ..page() }),
    ),
    ("checkpoint-by-call", Plan::Run(page())),
    ("checkpoint-by-page", Plan::CannotRun("it needs the Python library; checkpoint_modes tests it")),
    ("checkpoint-by-signal", Plan::Run(page())),
    (
        "choose-nodes",
        Plan::Run(Page {
            but: &[
                ("lattice submit --constraint nvme_scratch ", "no node has NVMe"),
                ("lattice submit -C gpu_type=GH200", "no node has a GH200"),
                ("lattice submit -C 'gpu_type=GH200|", "no node has a GH200 or an H200"),
            ],
            ..page()
        }),
    ),
    (
        "dags",
        Plan::Run(Page {
            before: &["printf 'allocations:\\n- {name: preprocess, entrypoint: \"true\"}\\n\
                       - {name: train, entrypoint: \"true\", depends_on: [preprocess: success]}\\n' > workflow.yaml"],
            ..page()
        }),
    ),
    ("diagnose-a-hang", Plan::Run(page())),
    (
        "files",
        Plan::Run(Page {
            but: &[
                ("lattice submit --scratch-per-node 500GB ", "no node has as much scratch"),
                ("lattice submit --data-mount ", "the data is a site's"),
            ],
            ..page()
        }),
    ),
    (
        "follow-and-compare",
        Plan::Run(Page {
            endless: &["lattice watch "],
            but: &[("lattice compare ", "it needs a store for metrics, or work that has run for a window of 30 s")],
            ..page()
        }),
    ),
    ("from-slurm", Plan::Run(page())),
    ("gpus-and-binding", Plan::CannotRun("it needs GPUs")),
    ("interactive", Plan::CannotRun("it needs a terminal; attach and tty test it")),
    ("keep-every-sample", Plan::Run(page())),
    ("leases", Plan::Run(Page { endless: &["lattice lease list -w"], ..page() })),
    (
        "make-a-checkpoint",
        Plan::Run(Page {
            work: "--checkpoint=signal train.sh",
            script_of: Some("checkpoint-by-signal"),
            but: &[("lattice checkpoint rm ", "the last checkpoint of work that runs cannot be removed")],
            ..page()
        }),
    ),
    ("measure", Plan::Run(Page { but: &[("lattice top ID --per-gpu", "it needs GPUs")], ..page() })),
    ("mpirun", Plan::CannotRun("it needs an MPI; mpi and mpi_launchers test it")),
    (
        "network-domains",
        Plan::Run(Page {
            before: &["lattice admin network pool --start 2000 --end 2010 --grace 1m"],
            but: &[("lattice submit --constraint cxi ", "no node has Slingshot")],
            restore: network::restore_pool,
            ..page()
        }),
    ),
    ("output-files", Plan::Run(page())),
    ("part-of-a-node", Plan::Run(Page { but: &[("lattice submit --cores 4 --mem 16G --gpus 1", "it needs GPUs")], ..page() })),
    ("preempt", Plan::Run(Page { work: "--checkpoint=signal train.sh", script_of: Some("checkpoint-by-signal"), ..page() })),
    (
        "queues-and-quotas",
        Plan::Run(Page {
            before: &["lattice admin vcluster create --name=documented --scheduler=fifo"],
            restore: |w| {
                w.ok(&["admin", "vcluster", "delete", VCLUSTER]);
            },
            ..page()
        }),
    ),
    (
        "read-output",
        Plan::Run(Page {
            work: "--cores 1 -n 4 -- sh -c 'echo line; sleep 2'",
            but: &[("lattice logs --previous ", "it needs a second attempt; requeue.md has it")],
            ..page()
        }),
    ),
    ("record-files-and-connections", Plan::CannotRun("it needs a kernel that describes its types; opens tests it")),
    ("requeue", Plan::Run(Page { work: "--cores 1 -- sh -c 'echo began; sleep 300'", ..page() })),
    ("run-many-tasks", Plan::Run(page())),
    ("run-mpi", Plan::CannotRun("it needs an MPI; mpi and mpi4py test it")),
    ("run-ranks", Plan::Run(Page { inside: Some("-w n[1-2]"), ..page() })),
    (
        "scale-a-service",
        Plan::Run(Page {
            before: &["printf '#!/bin/sh\\nexec sleep 300\\n' > serve.sh; chmod +x serve.sh"],
            but: &[
                ("lattice logs ", "the replica may not have begun; scaled_services tests it"),
                ("lattice service lookup ", "no replica may run yet; scaled_services tests it"),
            ],
            ..page()
        }),
    ),
    ("services", Plan::CannotRun("it needs a fixed port of the machine and an HTTP server; services and probe test it")),
    ("software-environments", Plan::CannotRun("it needs an image and loop devices; uenv tests it")),
    ("start-times", Plan::Run(page())),
    ("submit", Plan::Run(page())),
    ("wait-and-follow", Plan::Run(Page { work: "--cores 1 -- sleep 3", endless: &["lattice status -w"], ..page() })),
    ("watch-the-cluster", Plan::CannotRun("it needs a person at a terminal; cluster_screen tests it")),
    ("what-ran", Plan::CannotRun("no agent of this cluster has an accounting store; accounting tests it")),
];
