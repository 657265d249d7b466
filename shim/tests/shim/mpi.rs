//! PMI, spoken by a shell script and by a real MPICH.

use crate::bed::{Bed, PATIENCE, Setting};
use lattice_model::launch::{PMI_PORT_ASKED, PMI_PORT_VARIABLE};
use lattice_model::{LaunchSpec, NodeRanks, RankOutcome};
use lattice_runtime::exits::{self, ExitRecord};
use lattice_runtime::shim::{FromShim, LogStream, ToShim};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

/// One request and its answer, as a shell rank speaks PMI-1.
const ASK: &str = "ask() { echo \"$*\" >&3; read -r answer <&3; }; ask cmd=init pmi_version=1 pmi_subversion=1; ";

fn aborted(seen: &[FromShim], launch: &LaunchSpec) -> Option<(i32, String)> {
    seen.iter().find_map(|m| match m {
        FromShim::Aborted { launch: id, code, why } if *id == launch.id => Some((*code, why.clone())),
        _ => None,
    })
}

const TERMINATED: RankOutcome = RankOutcome::Signalled { signal: 15 };

pub fn garbage() {
    let mut bed = Bed::ready(Setting::default());
    let other = bed.start_sh(1, 2, &format!("{ASK} echo up; sleep 1000"));
    (0..2).for_each(|rank| bed.wait_log(1, rank, "up"));
    for (number, garbage) in
        (2..).zip(["echo GET / HTTP >&3", "head -c 100000 /dev/zero >&3", "echo cmd=init pmi_version=3 pmi_subversion=0 >&3"])
    {
        // Rank 1 sleeps without a message; rank 0 ends.
        let launch = bed.start_sh(number, 2, &format!("[ $PMI_RANK = 0 ] && {{ {garbage}; }}; exec sleep 1000"));
        let (outcomes, seen) = bed.agent.outcomes(&launch);
        assert_eq!(outcomes, [TERMINATED; 2], "{garbage}");
        let (code, why) = aborted(&seen, &launch).unwrap_or_else(|| panic!("{garbage}: {seen:?}"));
        assert!(code == 1 && why.contains("rank 0"), "{why}");
        let record = ExitRecord::Aborted { launch: launch.id, code, why };
        assert!(exits::read(&bed.dir).unwrap().contains(&record));
    }
    assert_eq!(bed.scope().launch(1).processes().len(), 4, "two shells and two sleeps: the other launch lives");
    bed.reconnect();
    let replay = bed.agent.synced();
    assert_eq!((replay.iter().filter(|m| matches!(m, FromShim::Aborted { .. })).count(), aborted(&replay, &other)), (3, None));
    bed.end();
}

pub fn dead_rank() {
    let mut bed = Bed::ready(Setting::default());
    // A rank that has printed `up` ignores SIGTERM for ever.
    let script = format!(
        "trap '' TERM; {ASK} echo up; [ $PMI_RANK = 0 ] && {{ while [ ! -e $GO ]; do sleep 0.01; done; exit 3; }}; sleep 1000; sleep 1000"
    );
    let mut launch = bed.launch(1, 2, &["sh", "-c", &script]);
    let go = bed.scratch.join("go");
    launch.env.insert("GO".into(), go.display().to_string());
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    (0..2).for_each(|rank| bed.wait_log(1, rank, "up"));
    std::fs::write(go, "").unwrap();
    let begin = Instant::now();
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    assert_eq!(outcomes, [RankOutcome::Exited { code: 3 }, RankOutcome::Signalled { signal: 9 }]);
    let why = "rank 0 exited with code 3 between MPI_Init and MPI_Finalize".to_owned();
    assert_eq!(aborted(&seen, &launch), Some((3, why)), "{seen:?}");
    assert!(begin.elapsed() < PATIENCE);
    // An abort that a rank requests keeps its code.
    let launch = bed.start_sh(2, 2, &format!("{ASK} [ $PMI_RANK = 1 ] && {{ echo cmd=abort exitcode=7 >&3; exit 7; }}; exec sleep 1000"));
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    assert_eq!(outcomes[0], TERMINATED);
    assert_eq!(aborted(&seen, &launch).map(|a| a.0), Some(7));
    // A rank that never used PMI is an ordinary program: its end affects only itself.
    let launch = bed.start_sh(3, 2, "exit $PMI_RANK");
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    assert_eq!(outcomes, [RankOutcome::Exited { code: 0 }, RankOutcome::Exited { code: 1 }]);
    assert_eq!(aborted(&seen, &launch), None);
    bed.end();
}

/// The socket's end nearly always arrives before the process's end, so this repeats.
pub fn death_codes() {
    let mut bed = Bed::ready(Setting::default());
    let deaths = [
        ("exit 3", 3, "exited with code 3"),
        ("kill -KILL $$", 137, "ended with code 137 (128 + signal 9)"),
        ("exit 0", 1, "exited with code 0"),
        // An unread answer: the socket fails instead of ending.
        ("echo cmd=get_maxes >&3; exit 4", 4, "exited with code 4"),
    ];
    for (number, (death, code, how)) in (1..).zip(deaths.iter().cycle().take(20)) {
        let launch = bed.start_sh(number, 2, &format!("{ASK} [ $PMI_RANK = 1 ] && {{ {death}; }}; exec sleep 1000"));
        let (outcomes, seen) = bed.agent.outcomes(&launch);
        let why = format!("rank 1 {how} between MPI_Init and MPI_Finalize");
        assert_eq!(aborted(&seen, &launch), Some((*code, why.clone())), "{death}: {seen:?}");
        assert!(exits::read(&bed.dir).unwrap().contains(&ExitRecord::Aborted { launch: launch.id, code: *code, why }), "{death}");
        assert_eq!(outcomes[0], TERMINATED, "{death}");
    }
    bed.end();
}

pub fn closed_socket() {
    let mut bed = Bed::ready(Setting::default());
    // Before init, after finalize, and in an ordinary program a closed socket has no effect, now and later.
    let others = bed.start_sh(1, 2, "[ $PMI_RANK = 0 ] && exec 3>&-; echo up; exec sleep 1000");
    let done = bed.start_sh(2, 1, &format!("{ASK} ask cmd=finalize; exec 3>&-; echo up; exec sleep 1000"));
    (0..2).for_each(|rank| bed.wait_log(1, rank, "up"));
    bed.wait_log(2, 0, "up");
    let begin = Instant::now();
    let launch = bed.start_sh(3, 2, &format!("{ASK} [ $PMI_RANK = 1 ] && exec 3>&-; exec sleep 1000"));
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    let why = "rank 1 closed its PMI connection between MPI_Init and MPI_Finalize, and its process goes on".to_owned();
    assert_eq!(aborted(&seen, &launch), Some((1, why)), "{seen:?}");
    assert_eq!(outcomes, [TERMINATED; 2]);
    // The rank got its grace, and no more.
    let took = begin.elapsed();
    assert!((Duration::from_millis(200)..PATIENCE).contains(&took), "{took:?}");
    assert_eq!((aborted(&seen, &others), aborted(&seen, &done)), (None, None));
    assert_eq!(bed.scope().launch(1).processes().len() + bed.scope().launch(2).processes().len(), 3);
    // A rank that closed its socket without init enters no fence: others would wait for it for ever.
    let launch = bed.start_sh(4, 2, &format!("[ $PMI_RANK = 0 ] && {{ exec 3>&-; exec sleep 1000; }}; {ASK} ask cmd=barrier_in"));
    let (_, seen) = bed.agent.outcomes(&launch);
    let (code, why) = aborted(&seen, &launch).unwrap_or_else(|| panic!("{seen:?}"));
    assert!(code == 1 && why.starts_with("rank 0 closed its PMI connection without MPI_Init, and rank 1 waits"), "{why}");
    bed.end();
}

/// PMI-2's abort has no code. The aborting rank exits with one, or lives on.
pub fn abort_of_pmi_2() {
    let mut bed = Bed::ready(Setting::default());
    for (number, end, code) in [(1, "exit 7", 7), (2, "exit 0", 1), (3, "exec sleep 1000", 1)] {
        let abort =
            "echo cmd=init pmi_version=2 pmi_subversion=0 >&3; read -r answer <&3; printf '%-6d%s' 29 'cmd=abort;isworld=TRUE;msg=x;' >&3";
        let launch = bed.start_sh(number, 2, &format!("[ $PMI_RANK = 1 ] && {{ {abort}; {end}; }}; exec sleep 1000"));
        let (_, seen) = bed.agent.outcomes(&launch);
        let why = format!("rank 1 aborted the launch with code {code}: \"x\"");
        assert_eq!(aborted(&seen, &launch), Some((code, why)), "{end}: {seen:?}");
    }
    bed.end();
}

/// A rank without the descriptor connects by its port. A stranger cannot, and a second connection cannot either.
pub fn by_port(setting: Setting) {
    let mut bed = Bed::ready(setting);
    let connect = "exec 5<>/dev/tcp/${PMI_PORT%:*}/${PMI_PORT#*:}; ask() { echo \"$*\" >&5; read -r -u 5 answer; }";
    let wait = "while [ ! -e $GO ]; do sleep 0.01; done";
    // Rank 0 connects itself, rank 1 through a child.
    let script = format!(
        "[ -z \"$PMI_FD\" ] || exit 8; echo at $PMI_PORT; {wait}; life() {{ {connect}; ask cmd=initack pmiid=$PMI_RANK; read -r -u 5 size; read -r -u 5 rank; \
         read -r -u 5 debug; ask cmd=init pmi_version=1 pmi_subversion=1; (exec 6<>/dev/tcp/${{PMI_PORT%:*}}/${{PMI_PORT#*:}}) 2>/dev/null && echo twice; \
         ask cmd=barrier_in; ask cmd=finalize; echo $size $rank $answer; }}; if [ $PMI_RANK = 0 ]; then life; else (life); fi"
    );
    let mut launch = bed.launch(1, 2, &["bash", "-c", &script]);
    let go = bed.scratch.join("go");
    launch.env.insert("GO".into(), go.display().to_string());
    launch.env.insert(PMI_PORT_VARIABLE.into(), PMI_PORT_ASKED.into());
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    let began = Instant::now();
    for rank in 0..2 {
        bed.wait_log(1, rank, "at ");
        let log = bed.log(1, rank, LogStream::Out);
        for _ in 0..3 {
            let mut stranger = TcpStream::connect(log.trim().strip_prefix("at ").unwrap()).unwrap();
            stranger.set_read_timeout(Some(PATIENCE)).unwrap();
            let _ = stranger.write_all(b"cmd=init pmi_version=1 pmi_subversion=1\n");
            // The port closes with unread data, so the end may be a reset.
            let answered = stranger.read(&mut [0; 64]);
            assert!(matches!(&answered, Ok(0)) || answered.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset), "{answered:?}");
        }
    }
    // Each of the two ports paused once, and then for twice as long.
    let rests = Duration::from_millis(500);
    assert!(began.elapsed() >= rests, "strangers take no more of its time than that: six came in {:?}", began.elapsed());
    std::fs::write(go, "").unwrap();
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    let logs = || (0..2).map(|rank| bed.log(1, rank, LogStream::Out) + &bed.log(1, rank, LogStream::Err)).collect::<String>();
    assert_eq!(outcomes, [RankOutcome::Exited { code: 0 }; 2], "{seen:?} {}", logs());
    for rank in 0..2 {
        let (out, err) = (bed.log(1, rank, LogStream::Out), bed.log(1, rank, LogStream::Err));
        assert!(out.ends_with(&format!("\ncmd=set size=2 cmd=set rank={rank} cmd=finalize_ack rc=0\n")) && !out.contains("twice"), "{out}");
        let refused = format!("a connection to the PMI port of rank {rank} was refused: no process of the launch made it");
        assert_eq!(err.matches(&refused).count(), 1, "once: {err}");
    }
    // The death of a rank with a port counts like any rank's death.
    let mut launch = bed.launch(
        2,
        2,
        &["bash", "-c", &format!("{connect}; ask cmd=init pmi_version=1 pmi_subversion=1; [ $PMI_RANK = 1 ] && exit 3; exec sleep 1000")],
    );
    launch.env.insert(PMI_PORT_VARIABLE.into(), PMI_PORT_ASKED.into());
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    let (_, seen) = bed.agent.outcomes(&launch);
    let why = "rank 1 exited with code 3 between MPI_Init and MPI_Finalize".to_owned();
    assert_eq!(aborted(&seen, &launch), Some((3, why)), "{seen:?}");
    bed.end();
}

pub fn finalize_and_exit() {
    let mut bed = Bed::ready(Setting::default());
    for number in 1..=20 {
        // The rank does not even wait for the answer.
        let launch = bed.start_sh(number, 4, &format!("{ASK} echo cmd=finalize >&3; exit 0"));
        let (outcomes, seen) = bed.agent.outcomes(&launch);
        assert_eq!(outcomes, [RankOutcome::Exited { code: 0 }; 4], "{seen:?}");
        assert_eq!(aborted(&seen, &launch), None);
    }
    bed.end();
}

pub fn held_socket() {
    let mut bed = Bed::ready(Setting::default());
    let launch = bed.start_sh(1, 1, &format!("sleep 1000 & {ASK} ask cmd=finalize; exit 0"));
    assert_eq!(bed.agent.outcomes(&launch).0, [RankOutcome::Exited { code: 0 }]);
    let launch = bed.start_sh(2, 1, &format!("sleep 1000 & {ASK} exit 0"));
    let seen = bed.agent.until("Aborted", |m| matches!(m, FromShim::Aborted { .. }));
    let why = "rank 0 exited with code 0 between MPI_Init and MPI_Finalize".to_owned();
    assert_eq!(aborted(&seen, &launch), Some((1, why)));
    bed.end();
}

pub fn fence() {
    let mut bed = Bed::ready(Setting::default());
    let script = format!(
        "{ASK} ask cmd=get_my_kvsname; kvs=${{answer##*kvsname=}}; ask cmd=put kvsname=$kvs key=mine$PMI_RANK value=v$PMI_RANK; \
         ask cmd=barrier_in; ask cmd=get kvsname=$kvs key=mine2; echo \"$answer\"; ask cmd=finalize"
    );
    let mut launch = bed.launch(1, 2, &["sh", "-c", &script]);
    launch.nodes.push(NodeRanks { node: "n2".parse().unwrap(), first: 2, count: 1 });
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    let is_fence = |m: &FromShim| matches!(m, FromShim::Fence { number: 1, .. });
    let seen = bed.agent.until("a fence", is_fence);
    let Some(FromShim::Fence { blob, .. }) = seen.last().cloned() else { unreachable!("waited for") };
    // The agent dies meanwhile; its successor gets a replay.
    bed.reconnect();
    let replay = bed.agent.synced();
    assert!(replay.contains(&FromShim::Fence { launch: launch.id, number: 1, blob: blob.clone() }), "{replay:?}");
    // The other node's contribution, made by its own server.
    let job = lattice_pmi::Job {
        number: 1,
        kvsname: "k".into(),
        size: 3,
        first: 2,
        count: 1,
        ranks: vec![],
        appnums: vec![],
        mapping: "(vector,(0,1,2),(1,1,1))".into(),
        part: 1,
        nodes: vec![],
        runs: vec![],
    };
    let mut server = lattice_pmi::Server::new(job);
    let mut actions = Vec::new();
    let sent = b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=put kvsname=k key=mine2 value=v2\ncmd=barrier_in\n";
    server.handle(lattice_pmi::Event::Bytes { local: 0, data: sent }, &mut actions);
    let theirs = actions.into_iter().find_map(|a| match a {
        lattice_pmi::Action::Fence { number: 1, blob } => Some(blob),
        _ => None,
    });
    let merged = [blob, theirs.expect("the other node's part")].concat();
    bed.agent.send(&ToShim::FenceDone { launch: launch.id, number: 1, blob: merged });
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    assert_eq!(outcomes, [RankOutcome::Exited { code: 0 }; 2], "{seen:?}");
    for rank in 0..2 {
        assert!(bed.log(1, rank, LogStream::Out).contains("value=v2"));
    }
    bed.end();
}

pub fn abort_elsewhere() {
    let mut bed = Bed::ready(Setting::default());
    let launch = bed.start_sh(1, 2, &format!("{ASK} echo up; exec sleep 1000"));
    (0..2).for_each(|rank| bed.wait_log(1, rank, "up"));
    bed.agent.send(&ToShim::Abort { launch: launch.id, code: 3, why: "rank 9 died".into() });
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    assert_eq!((outcomes, aborted(&seen, &launch)), (vec![TERMINATED; 2], None));
    // A stop is not an abort either: ranks that we end die after init.
    let launch = bed.start_sh(2, 2, &format!("{ASK} echo up; exec sleep 1000"));
    (0..2).for_each(|rank| bed.wait_log(2, rank, "up"));
    bed.agent.send(&ToShim::Stop { why: lattice_runtime::shim::StopReason::Requested, grace_ms: 10_000 });
    let seen = bed.agent.until("Stopped", |m| matches!(m, FromShim::Stopped { .. }));
    assert_eq!(aborted(&seen, &launch), None);
    bed.quit();
}

const PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int rank, size, local, sum, token;
    MPI_Comm node;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &local);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    token = rank;
    MPI_Sendrecv_replace(&token, 1, MPI_INT, (rank + 1) % size, 0, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (argc > 1 && rank == 1) MPI_Abort(MPI_COMM_WORLD, atoi(argv[1]));
    if (argc > 1) MPI_Barrier(MPI_COMM_WORLD);
    printf("%d of %d, %d here, sum %d, from %d\n", rank, size, local, sum, token);
    MPI_Finalize();
    return rank == 3 ? 9 : 0;
}
"#;

pub fn mpich() {
    let mut bed = Bed::ready(Setting::default());
    let (source, program) = (bed.scratch.join("ring.c"), bed.scratch.join("ring"));
    std::fs::write(&source, PROGRAM).unwrap();
    let made = Command::new("mpicc.mpich").arg(&source).arg("-o").arg(&program).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let launch = bed.launch(1, 4, &[program.to_str().unwrap()]);
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    let (outcomes, seen) = bed.agent.outcomes(&launch);
    let zero = RankOutcome::Exited { code: 0 };
    let logs = || (0..4).map(|r| bed.log(1, r, LogStream::Err)).collect::<String>();
    assert_eq!(outcomes, [zero, zero, zero, RankOutcome::Exited { code: 9 }], "{seen:?} {}", logs());
    for rank in 0..4 {
        let from = (rank + 3) % 4;
        assert_eq!(bed.log(1, rank, LogStream::Out), format!("{rank} of 4, 4 here, sum 6, from {from}\n"));
    }
    let launch = bed.launch(2, 4, &[program.to_str().unwrap(), "7"]);
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    let (_, seen) = bed.agent.outcomes(&launch);
    assert_eq!(aborted(&seen, &launch).map(|a| a.0), Some(7), "{seen:?}");
    bed.end();
}
