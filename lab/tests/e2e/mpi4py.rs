//! Python programs over MPI, with the packaged MPICH and Open MPI 5: started by us, and by their own `mpirun`.

use crate::harness::{JOB, Need, World, machine};
use crate::mpi::WIDE;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub fn trials() -> Vec<Trial> {
    vec![
        WIDE.test("mpi4py_with_mpich_is_one_world_across_nodes", &[Need::Mpi4py, Need::Hosts], mpich),
        WIDE.test("mpi4py_with_open_mpi_5_is_one_world_across_nodes", &[Need::Mpi4py, Need::Hosts], open_mpi),
        WIDE.test("mpirun_of_open_mpi_5_runs_mpi4py_over_all_nodes", &[Need::Mpi4py, Need::Hosts], mpirun),
    ]
}

/// The command of a rank; an exception without `MPI_Abort` ends all ranks as well.
fn rank(w: &World, made: Option<&Path>, what: &str) -> Vec<String> {
    let python = made.expect("it is needed").join("bin/python").to_string_lossy().into_owned();
    let program = w.script("world.py", include_str!("mpi4py/world.py"));
    [&python, "-m", "mpi4py", &program, what].map(str::to_owned).to_vec()
}

/// On four nodes, each with its own network: every kind of exchange, then an abort by one rank.
fn world(w: &World, made: Option<&Path>, library: &str, abort: &str) {
    let launch = |what: &str| {
        let rank = rank(w, made, what);
        let words = ["launch", "-N", "4", "--tasks-per-node", "2", "--"].into_iter();
        w.run_for(&words.chain(rank.iter().map(String::as_str)).collect::<Vec<_>>(), 3 * JOB)
    };
    let done = launch("2");
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    assert!(done.out().starts_with(&format!("8 ranks, 2 a node, {library}")), "{}", done.out());
    let done = launch(abort);
    assert_eq!(done.code(), 7, "{}{}", done.out(), done.err());
    let id = w.ok(&["status", "--limit", "1", "-o", "name"]);
    let reason = text(&w.status(id.trim()), "reason");
    assert!(reason.contains("rank 7 aborted the launch with code 7"), "{reason}");
    w.assert_nothing_left();
}

fn mpich(w: &World) {
    world(w, machine().mpi4py_mpich.as_deref(), "MPICH Version: ", "abort");
}

fn open_mpi(w: &World) {
    world(w, machine().mpi4py_open.as_deref(), "Open MPI v5.", "abort-beside-a-barrier");
}

fn mpirun(w: &World) {
    let made = machine().mpi4py_open.as_deref();
    let program = |name: &str| made.expect("it is needed").join("bin").join(name).to_string_lossy().into_owned();
    // PRRTE's daemons tell hosts apart by name and by their directory for files; here all are one machine.
    let host = w.script(
        "host.sh",
        "#!/bin/sh\nexport TMPDIR=${0%/*}/$LATTICE_NODE-tmp\nmkdir -p $TMPDIR\nexec unshare -u sh -c 'hostname $LATTICE_NODE && exec \"$@\"' sh \"$@\"\n",
    );
    let daemon = w.script("prted.sh", &format!("#!/bin/sh\nexec {host} {} \"$@\"\n", program("prted")));
    for script in [&host, &daemon] {
        std::fs::set_permissions(script, Permissions::from_mode(0o755)).unwrap();
    }
    let line = |what: &str| format!("{host} {} {}", program("mpirun"), rank(w, made, what).join(" "));
    let script = format!(
        "#!/bin/sh\nexport OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1\n\
         export PRTE_MCA_prte_launch_agent={daemon}\n{}\necho \"code $?\"\n{}\n",
        line("2"),
        line("abort")
    );
    let id = w.submit(&["--nodes", "4", "--tasks-per-node", "2", &w.script("mpirun-5.sh", &script)]);
    let now = w.lattice.ended_within(&id, 3 * JOB).unwrap_or_else(|error| panic!("{error:#}\n{}", w.log(&id)));
    let log = w.log(&id);
    assert!(log.contains("8 ranks, 2 a node, Open MPI v5.") && log.contains("code 0"), "{now}\n{log}");
    assert_eq!((text(&now, "state").as_str(), text(&now, "exit_code").as_str()), ("Failed", "7"), "{now}\n{log}");
    w.assert_nothing_left();
}
