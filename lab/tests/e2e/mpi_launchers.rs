//! The `mpirun` of MPI libraries inside an allocation, across its nodes, with our launcher in place of ssh.

use crate::harness::{Group, NOBODY, Need, World, machine};
use lattice_lab::demo::Lines;
use lattice_lab::image::Ring;
use lattice_lab::lattice::text;
use lattice_lab::process;
use libtest_mimic::Trial;
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

static MPI_LAUNCHERS: Group = Group::large("mpi_launchers");

pub fn trials() -> Vec<Trial> {
    vec![
        MPI_LAUNCHERS.test("mpiexec_of_mpich_runs_over_all_nodes", &[Need::Mpich], mpich),
        MPI_LAUNCHERS.test("mpirun_of_open_mpi_runs_over_all_nodes", &[Need::OpenMpi], open_mpi),
        MPI_LAUNCHERS.test("what_it_started_ends_with_it_and_with_the_allocation", &[Need::Mpich], ended),
        MPI_LAUNCHERS.test("the_launcher_carries_what_it_is_given_and_refuses_what_cannot_be", &[], launcher),
    ]
}

fn submit(w: &World, name: &str, script: &str) -> String {
    let script = w.script(name, &format!("#!/bin/sh\n{script}"));
    w.submit(&["--nodes", "3", "--tasks-per-node", "2", &script])
}

/// A script that sets `LATTICE_NODE` from its cgroup: Hydra gives every rank the environment of `mpiexec`.
fn here(w: &World) -> String {
    let node = "sed -n 's|^0::.*/\\(n[0-9]\\)/workload.slice/.*|\\1|p' /proc/self/cgroup";
    format!("/bin/sh {}", w.script("here.sh", &format!("export LATTICE_NODE=$({node})\nexec \"$@\"\n")))
}

/// The rest of the log's line after this text.
fn rest_of_line(log: &str, before: &str) -> String {
    let found = log.lines().find_map(|line| line.strip_prefix(before));
    found.unwrap_or_else(|| panic!("no {before:?} in the log:\n{log}")).to_owned()
}

/// Checks for a complete ring of six ranks on three nodes.
fn one_world(log: &str) {
    let mut lines = Lines::default();
    let rings = || log.lines().filter(|line| line.starts_with("rank "));
    rings().for_each(|line| lines.take(line));
    lines.complete(6, 5).unwrap_or_else(|e| panic!("{e}:\n{log}"));
    let nodes: BTreeSet<&str> = rings().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(nodes, BTreeSet::from(["n1", "n2", "n3"]), "{log}");
}

fn mpich(w: &World) {
    let ring = format!("{} {}", here(w), w.ring().program().display());
    // The last one finds no file, and every rank calls MPI_Abort(9).
    let script = format!(
        "echo \"hosts $HYDRA_HOST_FILE\"\nRING_LOCAL_SIZE=2 mpiexec.hydra {ring} 5 1\necho \"code $?\"\n\
         mpiexec.hydra -n 3 -ppn 1 {} sh -c 'echo \"told ${{LATTICE_RANK-nothing}} $PMI_SIZE $LATTICE_NODE\"' | sort\n\
         mpiexec.hydra {ring} 5 1 /nonexistent/file x\n",
        here(w)
    );
    let id = submit(w, "mpich.sh", &script);
    let now = w.ended(&id);
    let log = w.log(&id);
    assert_eq!((text(&now, "state").as_str(), text(&now, "exit_code").as_str()), ("Failed", "9"), "{now}\n{log}");
    assert_eq!(rest_of_line(&log, "code "), "0", "{log}");
    one_world(&log);
    let reported: Vec<&str> = log.lines().filter(|line| line.starts_with("told ")).collect();
    assert_eq!(reported, ["told nothing 3 n1", "told nothing 3 n2", "told nothing 3 n3"], "{log}");
    w.assert_nothing_left();
    let hosts = rest_of_line(&log, "hosts ");
    w.wait("its hostfile to be gone", || !Path::new(&hosts).exists());
}

fn open_mpi(w: &World) {
    let ring = w.dir.join("ring-open-mpi");
    let compiler = machine().open_mpicc.as_ref().expect("checked before");
    let ring = Ring::compile(compiler, &ring).unwrap_or_else(|e| panic!("{e:#}")).display().to_string();
    // All nodes are one machine here, which may have no network except the loopback, and one namespace for
    // shared-memory files. Each PRRTE daemon removes the files of others of the same run at its start, because a real
    // machine has only one.
    let daemon = w.script("daemon.sh", "#!/bin/sh\nTMPDIR=${0%/*}/$LATTICE_NODE-tmp\nmkdir -p $TMPDIR\nexport TMPDIR\nexec orted \"$@\"\n");
    std::fs::set_permissions(&daemon, Permissions::from_mode(0o755)).unwrap();
    let script = format!(
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=tcp,self OMPI_MCA_orte_launch_agent={daemon}\n\
         export OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo\n\
         mpirun.openmpi {ring} 5 1\necho \"code $?\"\nmpirun.openmpi {ring} 5 1 /nonexistent/file x\n"
    );
    let id = submit(w, "open-mpi.sh", &script);
    let now = w.ended(&id);
    let log = w.log(&id);
    assert_eq!((text(&now, "state").as_str(), text(&now, "exit_code").as_str()), ("Failed", "9"), "{now}\n{log}");
    assert_eq!(rest_of_line(&log, "code "), "0", "{log}");
    one_world(&log);
    w.assert_nothing_left();
}

/// The number of processes with this argument in their command line.
fn with_argument(argument: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    processes.filter(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())).count()
}

fn ended(w: &World) {
    let ring = format!("{} {}", here(w), w.ring().program().display());
    let rounds = "1000017";
    let script = format!(
        "mpiexec.hydra {ring} {rounds} 20 &\necho \"first $!\"\nwait\nmpiexec.hydra {ring} {rounds} 20 &\necho second\nwait\nsleep 60\n"
    );
    let id = submit(w, "ended.sh", &script);
    w.wait_log(&id, "line 2 on n3");
    // Six ranks, and mpiexec itself.
    assert_eq!(with_argument(rounds), 7, "{}", w.log(&id));
    let first: i32 = rest_of_line(&w.log(&id), "first ").parse().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first), nix::sys::signal::Signal::SIGKILL).unwrap();
    // A killed mpirun leaves nothing on the other nodes; the script continues.
    w.wait_log(&id, "second");
    let again = || w.log(&id).lines().filter(|line| line.starts_with("rank ") && line.contains(" line 2 on ")).count() > 6;
    w.wait("the second world", again);
    w.wait("the first world to be gone", || with_argument(rounds) == 7);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
    assert_eq!(with_argument(rounds), 0);
}

fn launcher(w: &World) {
    let script = "\
        l=$HYDRA_LAUNCHER_EXEC\n\
        $l -x -p 22 n3 'echo \"on $LATTICE_NODE\"; echo \"err ${PMI_FD-none}\" >&2;' exit 5; echo \"code $?\"\n\
        $l n2 'exec sleep 1000019' & p=$!\n\
        echo ready; read -r go < fifo; kill $p; wait $p; echo \"ended $?\"\n\
        $l n9 true; echo \"other $?\"\n\
        $l -l nosuchuser n2 true; echo \"user $?\"\n\
        $l n2; echo \"shell $?\"\n\
        exec sleep 60\n";
    let fifo = w.dir.join("launcher.fifo");
    let _ = std::fs::remove_file(&fifo);
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let id = submit(w, "launcher.sh", &script.replace("< fifo", &format!("< {}", fifo.display())));
    w.wait_log(&id, "ready");
    w.wait("what was launched", || with_argument("1000019") == 1);
    std::fs::write(&fifo, "go\n").unwrap();
    std::fs::remove_file(&fifo).unwrap();
    w.wait_log(&id, "shell ");
    let log = w.log(&id);
    assert_eq!(
        (rest_of_line(&log, "on "), rest_of_line(&log, "err "), rest_of_line(&log, "code ")),
        ("n3".into(), "none".into(), "5".into()),
        "{log}"
    );
    assert_eq!(rest_of_line(&log, "ended "), "143", "{log}");
    assert_eq!(
        (rest_of_line(&log, "other "), rest_of_line(&log, "user "), rest_of_line(&log, "shell ")),
        ("125".into(), "125".into(), "2".into()),
        "{log}"
    );
    assert!(log.contains("n9 is not one of the allocation's nodes (n[1-3])") && log.contains("nosuchuser"), "{log}");
    w.wait("what was launched to be gone", || with_argument("1000019") == 0);
    // A link may be anywhere. Another user is refused, outside of an allocation and inside another user's.
    let link = w.dir.join("bin/lattice-mpi-launcher");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink("lattice", &link).unwrap();
    let as_nobody = |allocation: Option<&str>| {
        let mut command = w.lattice.clone().with_program(&link).command(&["n2", "true"]);
        command.uid(NOBODY).gid(NOBODY).current_dir(w.dir.join(format!("home-{NOBODY}"))).env("HOME", "/").env_remove("LATTICE_ALLOC_ID");
        if let Some(id) = allocation {
            command.env("LATTICE_ALLOC_ID", id).env("LATTICE_NODELIST", "n1,n2,n3");
        }
        let done = process::run(&mut command, crate::harness::JOB).unwrap();
        (done.code(), done.err())
    };
    let (code, why) = as_nobody(None);
    assert!(code == 125 && why.contains("in no allocation") && why.contains("hint: run mpirun in a script"), "{code}: {why}");
    let (code, why) = as_nobody(Some(&id));
    assert!(code == 125 && why.contains("belongs to root"), "{code}: {why}");
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}
