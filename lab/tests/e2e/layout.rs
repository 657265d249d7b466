//! Placement of ranks, their programs, and their variables, across three agents, as real ranks see them.

use crate::harness::{Folder, Group, JOB, Need, World, machine};
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

static LAYOUT: Group = Group::large("layout");

const PLACES_C: &str = include_str!("layout/places.c");
/// Far less than the duration of a sleeping rank, and far more than ending it takes.
const END_TIME_MAX: Duration = Duration::from_secs(15);

pub fn trials() -> Vec<Trial> {
    vec![
        LAYOUT.test("mpi_sees_ranks_where_they_were_dealt_to", &[Need::Mpich], places),
        LAYOUT.test("a_failed_rank_ends_the_others_or_not_and_each_end_is_reported", &[], bad_ends),
        LAYOUT.test("ranks_have_files_and_slurms_variables_of_their_own", &[], own),
    ]
}

/// A running allocation of all three nodes, and the nodes in its order.
pub fn held(w: &World) -> (String, Vec<String>) {
    let id = w.submit(&["--nodes", "3", "--", "/bin/sleep", "300"]);
    w.running(&id);
    let nodes = w.status(&id)["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    (id, nodes)
}

/// The program that prints its place, made with one MPI's compiler.
pub fn compiled(dir: &Path, mpicc: &Path) -> PathBuf {
    let (source, program) = (dir.join("places.c"), dir.join("places"));
    std::fs::write(&source, PLACES_C).unwrap();
    let done = process::run(Command::new(mpicc).args(["-O1", "-o"]).arg(&program).arg(&source), JOB).unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
    program
}

/// The expected output, where each digit of `of` is the index in `nodes` of the next rank's node. `programs`: number
/// and arguments of a rank's program.
pub fn expected(nodes: &[String], of: &str, programs: impl Fn(usize) -> (u32, &'static str)) -> BTreeSet<String> {
    let places: Vec<usize> = of.bytes().map(|b| usize::from(b - b'0')).collect();
    let line = |(rank, place): (usize, &usize)| {
        let there: Vec<usize> = (0..places.len()).filter(|r| places[*r] == *place).collect();
        let local = there.iter().position(|r| *r == rank).unwrap();
        let there: String = there.iter().map(|r| format!(" {r}")).collect();
        let (app, arguments) = programs(rank);
        format!("{rank}/{} app {app} on {} local {local} of{there}{arguments}", places.len(), nodes[*place])
    };
    places.iter().enumerate().map(line).collect()
}

pub fn lines(done: &Finished) -> BTreeSet<String> {
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().lines().map(str::to_owned).collect()
}

fn places(w: &World) {
    let folder = Folder::new("places");
    let program = compiled(&folder.0, &machine().mpicc.clone().unwrap()).to_string_lossy().into_owned();
    let (id, nodes) = held(w);
    let launch = |args: &[&str]| w.run(&[&["launch", "--alloc", &id], args, &["--", &program]].concat());
    let one = |_| (0, "");
    for (args, of) in [
        (&["-n", "5"][..], "00112"),
        (&["-n", "5", "-m", "cyclic"], "01201"),
        (&["-n", "7", "--distribution=plane=2"], "0011220"),
        (&["-N", "2", "--tasks-per-node", "2", "-m", "cyclic"], "0101"),
        (&["-w", &format!("{},{},{}", nodes[2], nodes[0], nodes[2])], "202"),
        // The first node coordinates the launch and has no rank of it.
        (&["-w", &format!("{},{},{}", nodes[2], nodes[1], nodes[2])], "212"),
    ] {
        assert_eq!(lines(&launch(args)), expected(&nodes, of, one), "{args:?}");
    }
    // Two programs form one world, whichever nodes their ranks are on.
    let two = ["launch", "--alloc", &id, "-n", "2", "-m", "cyclic", "--", &program, "a", ":", "-n", "3", &program, "b", ":"];
    let programs = |rank| if rank < 2 { (0, " a") } else { (1, " b :") };
    assert_eq!(lines(&w.run(&two)), expected(&nodes, "01201", programs));
    w.ok(&["cancel", &id]);
    w.ended(&id);
    // A new job: with a number of ranks that does not divide evenly, and with two programs.
    let job = w.run(&["launch", "-N", "3", "-n", "1", "-m", "cyclic", "--", &program, "a", ":", "-n", "3", &program, "b", ":"]);
    let all = lines(&job);
    let nodes: Vec<String> = (0..3)
        .map(|rank| {
            let line = all.iter().find(|l| l.starts_with(&format!("{rank}/4 "))).unwrap_or_else(|| panic!("{all:?}"));
            line.split(" on ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
        })
        .collect();
    assert_eq!(nodes.iter().collect::<BTreeSet<_>>().len(), 3, "{all:?}");
    assert_eq!(all, expected(&nodes, "0120", |rank| if rank == 0 { (0, " a") } else { (1, " b :") }));
    w.assert_nothing_left();
}

fn bad_ends(w: &World) {
    let (id, nodes) = held(w);
    let launch =
        |args: &[&str], script: &str| w.run(&[&["launch", "--alloc", &id, "-n", "3"], args, &["--", "/bin/sh", "-c", script]].concat());
    let folder = Folder::new("exits");
    let table = folder.0.join("exits.json");
    // Rank 1 waits for the others, because a rank that has not begun when another one fails never begins.
    let up = folder.0.join("up").display().to_string();
    let script = format!(
        "[ $LATTICE_RANK = 1 ] || {{ touch {up}-$LATTICE_RANK; exec sleep 300; }}
         until [ -e {up}-0 ] && [ -e {up}-2 ]; do sleep 0.05; done; exit 5"
    );
    let began = Instant::now();
    let done = launch(&[&format!("--exit-table={}", table.display()), "-o", "json"], &script);
    assert_eq!(done.code(), 5, "{}", done.err());
    assert!(done.err().contains(&format!("rank 1 on {} exited with code 5", nodes[1])), "{}", done.err());
    assert!(began.elapsed() < END_TIME_MAX, "the others were not brought down: {:?}", began.elapsed());
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(&table).unwrap()).unwrap();
    let row = |rank: usize, ended: &str, code: u32| json!({"rank": rank, "node": nodes[rank], "ended": ended, "code": code});
    assert_eq!(rows, json!([row(0, "signalled", 143), row(1, "exited", 5), row(2, "signalled", 143)]));
    // If a rank fails before the others have begun, they are reported as not started, and no node as lost.
    for _ in 0..4 {
        let done = launch(&[&format!("--exit-table={}", table.display()), "-o", "json"], "[ $LATTICE_RANK = 1 ] && exit 5; exec sleep 300");
        let rows: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&table).unwrap()).unwrap();
        let ends: Vec<_> = rows.iter().map(|end| (end["ended"].as_str().unwrap(), end["code"].as_u64().unwrap())).collect();
        let known = |end: &(&str, u64)| [("signalled", 143), ("not_started", 126)].contains(end);
        assert!(done.code() == 5 && ends[1] == ("exited", 5) && known(&ends[0]) && known(&ends[2]), "{ends:?} {}", done.err());
    }
    // With the option the others continue.
    let done = launch(&["--no-kill-on-bad-exit", "--exit-table"], "[ $LATTICE_RANK = 1 ] && exit 5; sleep 1; echo lived");
    assert_eq!((done.code(), done.out().as_str()), (5, "lived\nlived\n"), "{}", done.err());
    let ends: Vec<String> = done.err().lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let end = |rank: usize, code: u32| format!("{rank} {} code {code}", nodes[rank]);
    assert_eq!(ends, ["RANK NODE END".to_owned(), end(0, 0), end(1, 5), end(2, 0)]);
    // Contradictory options, or options that contradict the allocation, are refused with the reason.
    let (all, elsewhere) = (nodes.join(","), format!("{},{}", nodes[1], nodes[2]));
    for (args, why) in [
        (&["--tasks-per-node", "1", "-N", "2"][..], "2 nodes × 1 task per node are 2 ranks, not the 3"),
        (&["-N", "9", "-n", "9"], "nodes: 9 given; the allocation has 3"),
        (&["-w", "n77,n77,n77"], "n77 is none of the allocation's nodes"),
        (&["-w", &all, "-n", "2"], "it places 3 ranks, and -n requests 2"),
        (&["-c", "60000"], "ask for fewer with --cpus-per-task"),
        (&["-m", "diagonal"], "none of block, cyclic, plane=N"),
    ] {
        let args: Vec<&str> = if args.contains(&"-n") { args.to_vec() } else { [&["-n", "3"], args].concat() };
        let done = w.run(&[&["launch", "--alloc", &id], args.as_slice(), &["--", "/bin/true"]].concat());
        assert!(done.code() != 0 && done.err().contains(why), "{args:?}: {} {}", done.code(), done.err());
    }
    let json = format!("--exit-table={}", table.display());
    let without_first = ["launch", "--alloc", &id, "-w", &elsewhere, "--no-kill-on-bad-exit", &json, "-o", "json", "--"];
    let done = w.run(&[&without_first[..], &["/bin/sh", "-c", "exit $LATTICE_RANK"]].concat());
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(&table).unwrap()).unwrap();
    let row = |rank: usize| json!({"rank": rank, "node": nodes[rank + 1], "ended": "exited", "code": rank});
    assert_eq!((done.code(), rows), (1, json!([row(0), row(1)])), "{}", done.err());
    w.ok(&["cancel", &id]);
    w.ended(&id);
    // Without --alloc, -w names the nodes that the new job requests.
    let done = w.run(&["launch", "-w", "n2", "--", "/bin/sh", "-c", "echo $LATTICE_NODE"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "n2\n"), "{}", done.err());
    // A new job gives the same reason, and none if its ranks have exited by themselves.
    let done = w.run(&["launch", "-N", "3", "-n", "3", "--", "/bin/sh", "-c", "[ $LATTICE_RANK = 1 ] && kill -SEGV $$; exec sleep 300"]);
    let why = |node: &String| format!("lattice: the launch was ended: rank 1 on {node} was killed by signal 11\n");
    let reasons: Vec<String> =
        done.err().lines().filter(|line| line.contains("the launch was ended")).map(|line| format!("{line}\n")).collect();
    assert!(done.code() == 139 && reasons.len() == 1 && nodes.iter().any(|node| reasons[0] == why(node)), "{} {}", done.code(), done.err());
    let done = w.run(&["launch", "--", "/bin/sh", "-c", "exit 5"]);
    assert!(done.code() == 5 && !done.err().contains("the launch was ended"), "{} {}", done.code(), done.err());
}

fn own(w: &World) {
    let folder = Folder::new("per-rank");
    let script = "echo rank $LATTICE_RANK; echo err $LATTICE_RANK >&2; echo end";
    let mut command = w.lattice.command(&["launch", "-q", "-N", "3", "-n", "4", "-o", "per-rank", "--", "/bin/sh", "-c", script]);
    let done = process::run(command.current_dir(&folder.0), JOB).unwrap();
    assert_eq!((done.code(), done.out().as_str(), done.err().as_str()), (0, "", ""));
    let mut found: Vec<(String, String)> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name.split_once("-1.").unwrap_or_else(|| panic!("{name}")).1.to_owned(), std::fs::read_to_string(&path).unwrap())
        })
        .collect();
    found.sort();
    let files = (0..4).flat_map(|r| [(format!("{r}.err"), format!("err {r}\n")), (format!("{r}.out"), format!("rank {r}\nend\n"))]);
    assert_eq!(found, files.collect::<Vec<_>>());

    let variables = "echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $SLURM_NNODES $SLURM_TASKS_PER_NODE $SLURM_JOB_NODELIST \
                     $((SLURM_JOB_ID > 0)) $SLURM_DISTRIBUTION, $SLURMD_NODENAME = $LATTICE_NODE";
    let script = w.script(
        "slurm.sh",
        &format!(
            "#!/bin/sh\n#LATTICE --nodes=3 --slurm-env\necho script $SLURM_NNODES $SLURM_PROCID\n{} launch -n 4 -m cyclic sh -c '{variables}'\n",
            w.dir.join("bin/lattice").display()
        ),
    );
    let id = w.submit(&[&script]);
    w.completed(&id);
    let log = w.ok(&["logs", &id]);
    let common = "4 3 2,1(x2) n[1-3] 1 cyclic";
    assert_eq!(log.lines().count(), 5, "{log}");
    for (rank, place) in ["0 0 0", "1 0 1", "2 0 2", "3 1 0"].iter().enumerate() {
        let line = log.lines().find(|l| l.starts_with(place)).unwrap_or_else(|| panic!("rank {rank}: {log}"));
        let (line_start, node) = line.split_once(" cyclic, ").unwrap_or_else(|| panic!("{line}"));
        assert_eq!(format!("{line_start} cyclic"), format!("{place} {common}"));
        assert!(node.split_once(" = ").is_some_and(|(a, b)| a == b), "{line}");
    }
    assert!(log.lines().any(|l| l == "script 3 0"), "{log}");
    // Work that did not request Slurm's variables has none.
    let done = w.run(&["launch", "-n", "2", "--", "/bin/sh", "-c", "env | grep -c ^SLURM || true"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "0\n0\n"), "{}", done.err());
}
