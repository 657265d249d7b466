//! Open MPI: ranks that find each other by PMIx, across agents.

use crate::harness::{Folder, Group, JOB, Need, World, binaries, configure, machine, ms};
use crate::layout;
use crate::mpi::found_over_kills;
use lattice_lab::lattice::text;
use lattice_lab::{faults, process};
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Debian's `nobody`.
const STRANGER: u32 = 65_534;

static PMIX: Group = Group::large("pmix");
/// Its nodes lose the program that serves PMIx.
static LOSING: Group = Group { theme: "pmix", name: "losing-pmix", nodes: 2, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        PMIX.test("an_open_mpi_program_is_one_world_across_nodes", &[Need::OpenMpi, Need::Mpich], world),
        PMIX.test("a_rank_that_aborts_or_dies_brings_it_down_and_a_server_too", &[Need::OpenMpi], brought_down),
        PMIX.test("agents_are_killed_while_ranks_wait_in_a_fence", &[Need::OpenMpi], killed_agents),
        PMIX.test("open_mpi_programs_find_names_on_other_nodes", &[Need::OpenMpi], names),
        PMIX.test("what_ranks_publish_is_found_on_other_nodes_while_agents_are_killed", &[Need::OpenMpi], published),
        PMIX.test("what_a_rank_puts_is_got_elsewhere_without_a_fence_while_agents_are_killed", &[Need::OpenMpi], direct_modex),
        PMIX.test("ranks_that_want_to_know_are_told_of_a_death_on_another_node", &[Need::OpenMpi], deaths),
        PMIX.test("what_cannot_be_is_refused", &[], refused),
        LOSING.test("open_mpi_is_one_world_without_an_option_and_fails_in_words_where_there_is_no_pmix", &[Need::OpenMpi], by_default),
    ]
}

fn compiler() -> &'static Path {
    machine().open_mpicc.as_ref().expect("it is needed")
}

/// The program, and the command of a rank. Two nodes of the cluster are one host here, so they must not use the same
/// shared memory, and there is no interface except the loopback.
pub fn rank(w: &World, what: &str) -> [String; 3] {
    rank_of(w, "world", include_str!("pmix/world.c"), what)
}

fn rank_of(w: &World, name: &str, source: &str, what: &str) -> [String; 3] {
    let (file, program) = (w.dir.join(format!("{name}.c")), w.dir.join(name));
    if !program.exists() {
        std::fs::write(&file, source).unwrap();
        let done = process::run(Command::new(compiler()).args(["-O1", "-o"]).arg(&program).arg(&file), JOB).unwrap();
        assert_eq!(done.code(), 0, "{}", done.err());
    }
    let variables = "OMPI_MCA_btl_vader_backing_directory=$PMIX_SERVER_TMPDIR OMPI_MCA_btl_tcp_if_include=lo";
    ["/bin/sh".to_owned(), "-c".to_owned(), format!("{variables} exec {} {what}", program.display())]
}

fn with<'a>(options: &[&'a str], rank: &'a [String; 3]) -> Vec<&'a str> {
    options.iter().copied().chain(["--"]).chain(rank.iter().map(String::as_str)).collect()
}

/// Every rank's line of a world.
fn lines(ranks: u32, beside: u32) -> Vec<String> {
    let sum = ranks * (ranks + 1) / 2;
    let line = |rank| format!("rank {rank} of {ranks}, {beside} on its node, sum {sum}, after rank {}", (rank + ranks - 1) % ranks);
    (0..ranks).map(line).collect()
}

fn sorted(log: &str) -> Vec<String> {
    let mut lines: Vec<String> = log.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn world(w: &World) {
    let rank = rank(w, "world");
    let id = w.submit(&with(&["--nodes", "2", "--tasks-per-node", "2", "--pmi=pmix"], &rank));
    w.completed(&id);
    assert_eq!(sorted(&w.ok(&["logs", "--stdout", &id])), lines(4, 2));
    // With `auto`, programs of each MPI find the interface that they need.
    let done = w.run(&with(&["launch", "-N", "1", "-n", "3", "--pmi=auto"], &rank));
    assert_eq!((done.code(), sorted(&done.out())), (0, lines(3, 3)), "{}", done.err());
    let ring = w.ring().program().to_string_lossy().into_owned();
    let done = w.run(&["launch", "-N", "2", "-n", "4", "--pmi=auto", "--", &ring, "3", "1"]);
    assert_eq!((done.code(), done.out().lines().count()), (0, 12), "{}", done.err());
    // Distributed ranks, and two programs in one world.
    let folder = Folder::new("pmix-places");
    let program = layout::compiled(&folder.0, compiler()).to_string_lossy().into_owned();
    let (id, nodes) = layout::held(w);
    let places = ["launch", "--alloc", &id, "--pmi=pmix", "--env", "OMPI_MCA_btl=tcp,self", "--env", "OMPI_MCA_btl_tcp_if_include=lo"];
    let two = ["-n", "2", "-m", "cyclic", "--", &program, "a", ":", "-n", "3", &program, "b"];
    let programs = |rank| if rank < 2 { (0, " a") } else { (1, " b") };
    assert_eq!(layout::lines(&w.run(&[&places[..], &two].concat())), layout::expected(&nodes, "01201", programs));
    // The first node coordinates the launch and has no rank of it.
    let list = format!("{},{},{}", nodes[2], nodes[1], nodes[2]);
    let without_first = layout::lines(&w.run(&[&places[..], &["-w", &list, "--", &program]].concat()));
    assert_eq!(without_first, layout::expected(&nodes, "212", |_| (0, "")));
    w.ok(&["cancel", &id]);
    w.ended(&id);
    // An allocation sets `--pmi` once for all its launches, also in its script; ordinary programs are not affected.
    let script = w.script(
        "pmix.sh",
        &format!(
            "#!/bin/sh\n#LATTICE --pmi=pmix\n{0}/lattice launch -n 2 -- /bin/sh -c 'echo ${{PMIX_RANK}} ${{PMI_FD:-none}}' && \
             {0}/lattice launch --pmi=none -n 1 -- /bin/sh -c 'echo ${{PMIX_RANK:-none}} ${{PMI_FD:-none}}'\n",
            w.dir.join("bin").display()
        ),
    );
    let id = w.submit(&["--nodes", "2", &script]);
    w.completed(&id);
    assert_eq!(sorted(&w.ok(&["logs", "--stdout", &id])), ["0 none", "1 none", "none none"]);
    w.assert_nothing_left();
    assert_no_directories(&id);
}

/// The directories of ranks and PMIx servers are removed.
fn assert_no_directories(id: &str) {
    let names = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let left: Vec<String> = names.filter(|name| name.starts_with(&format!("lattice-pmix-{}-", &id[..8]))).collect();
    assert_eq!(left, Vec::<String>::new());
}

/// One rank misbehaves; the others wait for ever. The launch must end within 2 s.
fn ended_by(w: &World, deed: &str) -> Value {
    ended_of(w, &rank(w, deed))
}

fn ended_of(w: &World, rank: &[String; 3]) -> Value {
    let id = w.submit(&with(&["--nodes", "2", "--tasks-per-node", "2", "--pmi=pmix"], rank));
    let ended = w.ended(&id);
    let log = w.log(&id);
    let at = log.lines().find_map(|l| l.strip_prefix("rank 3 misbehaves at ")?.strip_suffix(" ms")?.parse::<u64>().ok());
    let took = ms(&ended, "ended_at").saturating_sub(at.unwrap_or_else(|| panic!("{ended}\n{log}")));
    assert!(took <= 2_000, "brought down {took} ms after the deed, which is more than 2 s");
    assert_eq!(text(&ended, "state"), "Failed", "{ended}");
    w.assert_nothing_left();
    assert_no_directories(&id);
    ended
}

fn brought_down(w: &World) {
    let ended = ended_by(w, "abort");
    assert_eq!(text(&ended, "exit_code"), "7");
    assert!(text(&ended, "reason").contains("rank 3 aborted the launch with code 7"), "{ended}");
    let ended = ended_by(w, "die");
    assert_eq!(text(&ended, "exit_code"), "137");
    assert!(text(&ended, "reason").contains("rank 3 ended with code 137"), "{ended}");
    // As with mpirun, an exit code of 0 without finalize is no success.
    let ended = ended_by(w, "leave");
    assert_eq!(text(&ended, "exit_code"), "1");
    assert!(text(&ended, "reason").contains("rank 3 exited with code 0 between MPI_Init and MPI_Finalize"), "{ended}");
    // Below a shell that lives on, nobody sees the process end.
    let under_shell = rank(w, "die").map(|word| word.replace("exec ", "").replace(" die", " die; sleep 1000"));
    let ended = ended_of(w, &under_shell);
    assert!(text(&ended, "reason").contains("rank 3 lost its connection to the PMIx server"), "{ended}");
    killed_server(w);
}

/// A world whose last rank joins when `go` exists, after all others have joined. Returns the id and the port of that
/// rank's server.
fn waiting(w: &World, go: &Path) -> (String, String) {
    let id = w.submit(&with(&["--nodes", "2", "--tasks-per-node", "2", "--pmi=pmix"], &rank(w, &format!("late {}", go.display()))));
    w.wait_log(&id, "the others wait");
    let is_served = || matches!(servers(&id).as_slice(), [one, other] if has_a_rank(*one) && has_a_rank(*other));
    w.wait("a rank at each of two servers", is_served);
    let log = w.log(&id);
    let server = log.lines().find(|line| line.contains("served at")).unwrap();
    (id, server.rsplit(':').next().unwrap().to_owned())
}

/// The PMIx servers of this allocation. Other clusters on this machine may have some as well.
fn servers(id: &str) -> Vec<i32> {
    let program = binaries().dir.join("lattice-pmix");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter(|p| std::fs::read_link(p.path().join("exe")).is_ok_and(|exe| exe == program));
    let pids = pids.filter(|p| std::fs::read_to_string(p.path().join("cgroup")).is_ok_and(|cgroup| cgroup.contains(id)));
    pids.filter_map(|p| p.file_name().to_string_lossy().parse().ok()).collect()
}

/// Whether a client is connected to the server, by the kernel's table of connections: state 01 is an established one, and the
/// tenth field is its inode.
fn has_a_rank(server: i32) -> bool {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let stand = table.lines().map(|l| l.split_ascii_whitespace().collect::<Vec<_>>()).filter(|words| words.get(3) == Some(&"01"));
    let inodes: Vec<String> = stand.filter_map(|words| words.get(9).map(|inode| format!("socket:[{inode}]"))).collect();
    let open = std::fs::read_dir(format!("/proc/{server}/fd")).into_iter().flatten().flatten();
    open.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|to| inodes.iter().any(|inode| to.as_os_str() == inode.as_str()))
}

fn killed_server(w: &World) {
    let (id, port) = waiting(w, &w.dir.join("pmix-never"));
    // Another user of the machine is disconnected, without an effect. (1: end of input; greater: it had to wait.)
    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && read -t 20 -r line <&3");
    let stranger = Command::new("bash").args(["-c", &connect]).uid(STRANGER).status().unwrap();
    assert_eq!(stranger.code(), Some(1), "{stranger}");
    kill(Pid::from_raw(servers(&id)[0]), Signal::SIGKILL).unwrap();
    let ended = w.ended(&id);
    assert_eq!(text(&ended, "state"), "Failed", "{ended}");
    assert!(text(&ended, "reason").contains("the PMIx server of this node is gone"), "{ended}");
    w.assert_nothing_left();
    assert_no_directories(&id);
}

fn killed_agents(w: &World) {
    let go = w.dir.join("pmix-go");
    let (id, _) = waiting(w, &go);
    let nodes = w.status(&id)["nodes"].clone();
    let nodes: Vec<String> = nodes.as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    // First the head's agent, then the other's; then both are down when the last rank joins.
    for node in &nodes {
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    for node in &nodes {
        faults::kill_node(&w.dir, node).unwrap();
    }
    std::fs::write(&go, "").unwrap();
    for node in &nodes {
        faults::start_node(&w.dir, node).unwrap();
    }
    w.completed(&id);
    let log = w.ok(&["logs", "--stdout", &id]);
    let worlds: Vec<String> = sorted(&log).into_iter().filter(|l| l.starts_with("rank ")).collect();
    assert_eq!(worlds, lines(4, 2), "{log}");
    w.assert_nothing_left();
    assert_no_directories(&id);
}

/// A program that uses only PMIx, with the machine's library.
fn client(w: &World, name: &str, source: &str) -> String {
    let (file, program) = (w.dir.join(format!("{name}.c")), w.dir.join(name));
    std::fs::write(&file, source).unwrap();
    std::fs::write(w.dir.join("files.h"), include_str!("pmix/files.h")).unwrap();
    let flags = process::run(Command::new("pkg-config").args(["--cflags", "--libs", "pmix"]), JOB).unwrap().out();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-o"]).arg(&program).arg(&file).args(flags.split_whitespace());
    let done = process::run(&mut cc, JOB).unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
    program.to_string_lossy().into_owned()
}

fn names(w: &World) {
    let rank = rank_of(w, "names", include_str!("pmix/names.c"), "");
    let done = w.run(&with(&["launch", "-N", "2", "-n", "2", "--pmi=pmix"], &rank));
    assert_eq!((done.code(), done.out().matches(" knows").count()), (0, 2), "{} {}", done.out(), done.err());
}

fn published(w: &World) {
    let program = client(w, "publish", include_str!("pmix/publish.c"));
    let id = found_over_kills(w, 2, &["--pmi=pmix"], &program);
    assert_no_directories(&id);
}

fn direct_modex(w: &World) {
    let program = client(w, "modex", include_str!("pmix/modex.c"));
    let folder = Folder::new("modex");
    let at = |file: &str| folder.0.join(file);
    let id = w.submit(&["--nodes", "2", "--pmi=pmix", "--", &program, &folder.0.to_string_lossy()]);
    w.wait("the first rank to ask", || at("asks.0").exists());
    let nodes = w.status(&id)["nodes"].clone();
    let nodes: Vec<String> = nodes.as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    for node in &nodes {
        faults::kill_node(&w.dir, node).unwrap();
    }
    std::fs::write(at("put"), "").unwrap();
    w.wait("the other one to put it while nobody carries it", || at("has.1").exists());
    for node in nodes.iter().rev() {
        faults::start_node(&w.dir, node).unwrap();
    }
    w.wait("the first rank to get it", || at("got.0").exists());
    std::fs::write(at("go"), "").unwrap();
    w.completed(&id);
    assert_eq!(w.log(&id).matches(" is over").count(), 2, "{}", w.log(&id));
    w.assert_nothing_left();
    assert_no_directories(&id);
}

/// The last of four ranks dies: before its init, while no agent can forward the report; and after its init, which ends
/// the launch.
fn deaths(w: &World) {
    let program = client(w, "deaths", include_str!("pmix/deaths.c"));
    let folder = Folder::new("deaths");
    let at = |file: &str| folder.0.join(file);
    let all = |what: &str| (0..3).all(|rank| at(&format!("{what}.{rank}")).exists());
    let start = |how: &str| {
        let submit = ["--nodes", "2", "--tasks-per-node", "2", "--pmi=pmix", "--no-kill-on-bad-exit", "--", &program];
        let id = w.submit(&[&submit[..], &[&folder.0.to_string_lossy(), how]].concat());
        w.wait("all others to listen", || all("listens"));
        id
    };
    let expected_lines = |code: u32| (0..3).map(|rank| format!("rank {rank} hears that 3 ended with {code}")).collect::<Vec<_>>();

    let id = start("before");
    let nodes = w.status(&id)["nodes"].clone();
    let nodes: Vec<String> = nodes.as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    for node in &nodes {
        faults::kill_node(&w.dir, node).unwrap();
    }
    std::fs::write(at("die"), "").unwrap();
    w.wait("the rank beside it to hear", || at("heard.2").exists());
    assert!(!at("heard.0").exists() && !at("heard.1").exists(), "nobody could tell the other node");
    for node in &nodes {
        faults::start_node(&w.dir, node).unwrap();
    }
    w.wait("all to hear", || all("heard"));
    std::fs::write(at("go"), "").unwrap();
    assert_eq!(text(&w.ended(&id), "exit_code"), "5");
    assert_eq!(sorted(&w.ok(&["logs", "--stdout", &id])), expected_lines(5));

    for entry in std::fs::read_dir(&folder.0).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let id = start("inside");
    std::fs::write(at("die"), "").unwrap();
    assert_eq!(text(&w.ended(&id), "exit_code"), "137");
    assert_eq!(sorted(&w.ok(&["logs", "--stdout", &id])), expected_lines(137));
    w.assert_nothing_left();
    assert_no_directories(&id);
}

fn by_default(w: &World) {
    let variables = ["--env", "OMPI_MCA_btl=tcp,self", "--env", "OMPI_MCA_btl_tcp_if_include=lo"];
    rank(w, "world");
    let program = w.dir.join("world").to_string_lossy().into_owned();
    let launch = || w.run(&[&["launch", "-N", "2", "-n", "4"], &variables[..], &["--", &program, "world"]].concat());
    let done = launch();
    assert_eq!((done.code(), sorted(&done.out())), (0, lines(4, 2)), "{}", done.err());
    // A program below a shell is served as well, and a plain one starts no server.
    let below = w.run(&[&["launch", "-N", "2", "-n", "4"], &variables[..], &["--", "/bin/sh", "-c", &format!("{program} world")]].concat());
    assert_eq!((below.code(), sorted(&below.out())), (0, lines(4, 2)), "{}", below.err());
    let served = |program: &[&str]| w.ok(&[&["launch", "-N", "2", "-n", "2", "--"], program].concat()).matches("PMIX_RANK=").count();
    assert_eq!((served(&["/bin/sh", "-c", "env"]), served(&["/usr/bin/printenv"])), (2, 0));

    // The programs of these nodes are in a directory without lattice-pmix.
    let folder = w.dir.join("without-pmix");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(binaries().dir.join("lattice-shim"), folder.join("lattice-shim")).unwrap();
    for node in ["n1", "n2"] {
        configure(&w.dir, node, &format!("shim: {:?}", folder.join("lattice-shim")));
        faults::kill_node(&w.dir, node).unwrap();
        faults::start_node(&w.dir, node).unwrap();
    }
    let done = launch();
    assert_ne!(done.code(), 0, "{}", done.out());
    assert!(!done.out().contains("of 1"), "nothing runs as a world of its own: {}", done.out());
    let stderr = done.err();
    assert!(
        stderr.contains("cannot serve PMIx, which Open MPI needs")
            && stderr.contains("install lattice-pmix")
            && stderr.contains("--pmi=pmix"),
        "{stderr}"
    );
    assert_eq!(w.run(&["launch", "-N", "2", "-n", "2", "--", "/bin/true"]).code(), 0, "others need none");
}

fn refused(w: &World) {
    let done = w.run(&["launch", "--env", "LATTICE_PMI=pmi3", "--", "/bin/true"]);
    assert_ne!(done.code(), 0);
    assert!(done.err().contains("LATTICE_PMI=pmi3: give pmi (pmi1, pmi2), pmix, auto or none"), "{}", done.err());
    let done = w.run(&["launch", "--pmi=pmi3", "--", "/bin/true"]);
    assert_eq!(done.code(), 2, "{}", done.err());
}
