//! The requirements of each users' page, or why it cannot run.

/// What is done with a page.
pub enum Plan {
    Run(Page),
    /// It cannot run on a lab's cluster, for this reason.
    CannotRun(&'static str),
}

/// The requirements of a page's commands.
pub struct Page {
    /// An operator's commands that run before.
    pub before: &'static [&'static str],
    /// The submission for the page's id placeholders: options, and a script or a command.
    pub work: &'static str,
    /// The page whose script is `train.sh`; `None`: its own, or one that ends at once.
    pub script_of: Option<&'static str>,
    /// For a page about commands inside an allocation: the options of that allocation.
    pub inside: Option<&'static str>,
    /// The beginnings of commands that run until they are interrupted.
    pub endless: &'static [&'static str],
    /// The beginnings of commands that are left out, and why.
    pub but: &'static [(&'static str, &'static str)],
}

/// Programs that pages start: they succeed at once.
pub const PROGRAMS: [&str; 6] = ["program", "mpi_program", "simulate", "server", "worker", "open_mpi_program"];

/// The name that replaces `NAME`.
pub const VCLUSTER: &str = "documented";

const SLEEPS: &str = "--cores 1 -- sleep 300";

const fn page() -> Page {
    Page { before: &[], work: SLEEPS, script_of: None, inside: None, endless: &[], but: &[] }
}

pub const PAGES: [(&str, Plan); 30] = [
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
            ],
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
    ("mpirun", Plan::CannotRun("it needs an MPI; mpi and hatch test it")),
    (
        "network-domains",
        Plan::Run(Page {
            before: &["lattice admin network pool --start 2000 --end 2010 --grace 1m"],
            but: &[("lattice submit --constraint cxi ", "no node has Slingshot")],
            ..page()
        }),
    ),
    ("part-of-a-node", Plan::Run(Page { but: &[("lattice submit --cores 4 --mem 16G --gpus 1", "it needs GPUs")], ..page() })),
    ("preempt", Plan::Run(Page { work: "--checkpoint=signal train.sh", script_of: Some("checkpoint-by-signal"), ..page() })),
    ("queues-and-quotas", Plan::Run(Page { before: &["lattice admin vcluster create --name=documented --scheduler=fifo"], ..page() })),
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
    ("run-mpi", Plan::CannotRun("it needs an MPI; mpi and mpi4py test it")),
    ("run-ranks", Plan::Run(Page { inside: Some("-w n[1-2]"), ..page() })),
    ("services", Plan::CannotRun("it needs a fixed port of the machine and an HTTP server; services and probe test it")),
    ("software-environments", Plan::CannotRun("it needs an image and loop devices; uenv tests it")),
    ("submit", Plan::Run(page())),
    ("wait-and-follow", Plan::Run(Page { work: "--cores 1 -- sleep 3", endless: &["lattice status -w"], ..page() })),
];
