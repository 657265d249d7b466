//! Ordinary jobs: their input and output.

use crate::harness::{Group, World, binaries, ms};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::collections::BTreeSet;

static JOBS: Group = Group::small("jobs");

pub fn trials() -> Vec<Trial> {
    vec![
        JOBS.test("a_command_runs_and_its_output_comes_back", &[], a_command),
        JOBS.test("exit_codes_and_both_streams_reach_the_user", &[], exit_codes),
        JOBS.test("followed_logs_give_the_programs_code", &[], followed_logs),
        JOBS.test("the_environment_is_exported_set_and_scrubbed", &[], environment),
        JOBS.test("ranks_know_who_they_are", &[], ranks),
        JOBS.test("a_script_asks_by_its_lines_and_launches_ranks", &[], script),
        JOBS.test("slurm_lines_are_understood", &[], sbatch_script),
        JOBS.test("slurm_lines_give_the_job_its_shape", &[], sbatch_shape),
        JOBS.test("slurm_lines_that_cannot_be_honoured_are_refused", &[], sbatch_refused),
        JOBS.test("what_no_node_can_ever_serve_is_refused_at_submission", &[], never_served),
        JOBS.test("another_agent_of_the_list_is_asked_when_the_nearest_is_dead", &[], endpoints),
        JOBS.test("launch_from_outside_submits_and_waits", &[], launch_outside),
        JOBS.test("work_that_fits_is_placed_at_its_submission_by_any_agent", &[], placed_at_once),
        JOBS.test("output_is_bytes_and_none_is_lost", &[], many_bytes),
        JOBS.test("short_ids_and_last_name_a_job", &[], names),
        JOBS.test("status_says_what_is_documented", &[], documented_status),
        JOBS.test("the_queue_is_first_come_first_served", &[], queue),
        JOBS.test("what_waits_for_the_same_nodes_is_claimed_once_each", &[], claimed_once),
        JOBS.test("more_nodes_than_there_are_stay_pending_and_explained", &[], too_many_nodes),
        JOBS.test("every_agent_answers_for_the_cluster", &[], every_agent),
        JOBS.test("the_machine_is_told_about", &[], machine_views),
        JOBS.test("nothing_is_left_of_ended_jobs", &[], World::assert_nothing_left),
    ]
}

fn a_command(w: &World) {
    let id = w.submit(&["--", "/bin/echo", "hello", "two  spaces"]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "hello two  spaces\n");
}

fn exit_codes(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", "echo out; echo err >&2; exit 7"]);
    let ended = w.ended(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "exit_code").as_str()), ("Failed", "7"), "{ended}");
    let log = w.run(&["logs", &id]);
    assert_eq!((log.out().as_str(), log.err().as_str()), ("out\n", "err\n"), "each stream goes where it came from");
    assert_eq!(w.ok(&["logs", "--stderr", &id]) + &w.ok(&["logs", "--stdout", &id]), "out\n", "--stderr goes to stderr");
    let id = w.submit(&["--", "/bin/sh", "-c", "kill -KILL $$"]);
    assert_eq!(text(&w.ended(&id), "exit_code"), "137");
}

fn followed_logs(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", "for i in 1 2 3; do echo line $i; sleep 0.2; done; exit 9"]);
    let log = w.run(&["logs", "-f", &id]);
    assert_eq!((log.out().as_str(), log.code()), ("line 1\nline 2\nline 3\n", 9), "{}", log.err());
    assert_eq!(text(&w.ended(&id), "exit_code"), "9");
}

fn environment(w: &World) {
    let mut command = w.lattice.command(&["submit", "-o", "name", "--env", "GIVEN=a=b", "--", "/usr/bin/env"]);
    command.envs([
        ("EXPORTED", "yes"),
        ("PMI_RANK", "outside"),
        ("PMIX_RANK", "outside"),
        ("SLURM_JOB_ID", "outside"),
        ("OMPI_MCA_ess", "outside"),
    ]);
    command.current_dir("/usr");
    let submitted = lattice_lab::process::run(&mut command, crate::harness::JOB).unwrap();
    let id = submitted.out().trim().to_owned();
    w.completed(&id);
    let log = w.ok(&["logs", &id]);
    let has = |line: &str| log.lines().any(|l| l == line);
    assert!(has("EXPORTED=yes") && has("GIVEN=a=b"), "{log}");
    assert!(!log.contains("=outside"), "somebody else's wire-up came through: {log}");
    assert!(
        has(&format!("LATTICE_ALLOC_ID={id}")) && has("LATTICE_NNODES=1") && has("LATTICE_NODE=n1") || log.contains("LATTICE_NODE=n"),
        "{log}"
    );
    let mut command = w.lattice.command(&["submit", "-o", "name", "--", "/bin/pwd"]);
    let submitted = lattice_lab::process::run(command.current_dir("/usr"), crate::harness::JOB).unwrap();
    let id = submitted.out().trim().to_owned();
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "/usr\n", "the working directory is kept");
}

fn ranks(w: &World) {
    let program = "echo $LATTICE_RANK/$LATTICE_NPROCS local $LATTICE_LOCAL_RANK/$LATTICE_LOCAL_SIZE on $LATTICE_NODE";
    let id = w.submit(&["--nodes", "3", "--tasks-per-node", "2", "--", "/bin/sh", "-c", program]);
    w.completed(&id);
    let log = w.ok(&["logs", &id]);
    let lines: BTreeSet<&str> = log.lines().collect();
    let nodes: Vec<String> = w.status(&id)["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    let expected: Vec<String> = (0..6).map(|rank| format!("{rank}/6 local {}/2 on {}", rank % 2, nodes[rank / 2])).collect();
    assert_eq!(lines, expected.iter().map(String::as_str).collect(), "block layout in the order of the nodes");
    let labelled = w.ok(&["logs", "--label", "--rank", "4", &id]);
    assert!(labelled.starts_with('4') && labelled.trim_end().ends_with(&expected[4]) && labelled.lines().count() == 1, "{labelled:?}");
}

fn script(w: &World) {
    let text_of = "#!/bin/sh\n#LATTICE nodes=2 --tasks-per-node=2\n#LATTICE --name=by-lines\n\necho script on $LATTICE_NODE with $1\nlattice launch --label sh -c 'echo rank $LATTICE_RANK'\nlattice launch -n 1 sh -c 'exit 6'\necho then $?\nexit 4\n";
    let script = w.script("job.sh", text_of);
    let path = format!("{}:/usr/bin:/bin", w.dir.join("bin").display());
    let id = w.submit(&["--env", &format!("PATH={path}"), &script, "argument"]);
    let ended = w.ended(&id);
    let log = w.log(&id);
    assert_eq!((text(&ended, "name").as_str(), text(&ended, "exit_code").as_str()), ("by-lines", "4"), "{ended}\n{log}");
    assert_eq!(ended["nodes"].as_array().unwrap().len(), 2);
    assert!(log.contains("with argument\n") && log.contains("then 6\n"), "{log}");
    for rank in 0..4 {
        assert!(log.contains(&format!("rank {rank}\n")), "{log}");
    }
}

fn sbatch_script(w: &World) {
    let script =
        w.script("slurm.sh", "#!/bin/sh\n#SBATCH --nodes=2\n#SBATCH --job-name=from-slurm\n#SBATCH --time=5\necho $LATTICE_NNODES nodes\n");
    let id = w.submit(&[&script]);
    let ended = w.completed(&id);
    assert_eq!((text(&ended, "name").as_str(), text(&ended, "walltime_seconds").as_str()), ("from-slurm", "300"), "minutes: {ended}");
    assert_eq!(w.ok(&["logs", &id]), "2 nodes\n");
}

/// `--ntasks` sets the ranks of launches without a number, on the named nodes and in the named directory.
fn sbatch_shape(w: &World) {
    let lines = "#SBATCH --ntasks=3 -N 2 -c 1 -w n2,n3 -D / --acctg-freq=30\n";
    let lattice = binaries().lattice().display().to_string();
    let work = "echo in $PWD: $SLURM_NTASKS tasks, $SLURM_TASKS_PER_NODE, from $SLURM_SUBMIT_DIR on $LATTICE_NODELIST\n\
                {lattice} launch sh -c 'echo rank $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME'\n";
    let script = w.script("shape.sh", &format!("#!/bin/sh\n{lines}{}", work.replace("{lattice}", &lattice)));
    let submitted = w.run(&["submit", "-q", "-o", "name", &script]);
    assert!(submitted.code() == 0 && submitted.err().contains("--acctg-freq=30 does not change the job"), "{}", submitted.err());
    let id = submitted.out().trim().to_owned();
    w.completed(&id);
    let mut lines: Vec<String> = w.log(&id).lines().map(str::to_owned).collect();
    lines.sort();
    let here = std::env::current_dir().unwrap();
    assert_eq!(
        lines,
        [
            format!("in /: 3 tasks, 2,1, from {} on n2,n3", here.display()),
            "rank 0 of 3 on n2".into(),
            "rank 1 of 3 on n2".into(),
            "rank 2 of 3 on n3".into()
        ]
    );
}

fn sbatch_refused(w: &World) {
    for line in ["--container=x", "--licenses=x", "--qos=none", "--mystery=1"] {
        let script = w.script("refused.sh", &format!("#!/bin/sh\n#SBATCH -N 1\n#SBATCH {line}\nexit 0\n"));
        let refused = w.run(&["submit", "-q", &script]);
        assert_eq!(refused.code(), 2, "{line}: {}", refused.err());
        assert!(refused.err().contains(&format!("refused.sh line 3: #SBATCH {line}: ")), "{}", refused.err());
        assert!(refused.err().contains("hint: "), "{}", refused.err());
    }
}

fn never_served(w: &World) {
    for (args, expected) in [
        (&["-N", "100"][..], "wants 100 nodes; this cluster has 3 that could ever serve it"),
        (&["--mem", "500000G"], "of memory; 500000.0 GiB are wanted"),
        (&["--gpus", "4"], "4 are wanted"),
        (&["-w", "n77"], "none of the nodes asked for (n77)"),
    ] {
        let refused = w.run(&[&["submit"], args, &["--", "/bin/true"]].concat());
        assert!(
            refused.code() == 4 && refused.err().contains(expected) && refused.err().contains("--wait-for-nodes"),
            "{args:?}: {}",
            refused.err()
        );
        let launched = w.run(&[&["launch"], args, &["/bin/true"]].concat());
        assert!(launched.code() == 125 && launched.err().contains(expected), "{args:?}: {}", launched.err());
    }
    let waits = w.run(&["submit", "-q", "-o", "name", "-N", "100", "--wait-for-nodes", "--", "/bin/true"]);
    assert!(waits.code() == 0 && waits.err().contains("warning: it waits until there are other nodes"), "{}", waits.err());
    let explained = w.ok(&["explain", waits.out().trim()]);
    assert!(explained.contains("wants 100 nodes; this cluster has 3 that could ever serve it"), "{explained}");
    w.ok(&["cancel", waits.out().trim()]);
}

fn endpoints(w: &World) {
    let (near, far) = (w.at("n1").socket().display().to_string(), w.at("n2").socket().display().to_string());
    faults::kill_node(&w.dir, "n1").unwrap();
    let done = w.run(&["--endpoint", &format!("unix:{near},unix:{far}"), "nodes", "-o", "name"]);
    let alone = w.run(&["--endpoint", &format!("unix:{near}"), "nodes"]);
    faults::start_node(&w.dir, "n1").unwrap();
    assert!(done.code() == 0 && done.out().contains("n3"), "{}", done.err());
    assert_eq!(alone.code(), 5, "{}", alone.err());
}

fn launch_outside(w: &World) {
    let both = "echo rank $LATTICE_RANK; echo err >&2; exit $((4 + LATTICE_RANK))";
    let done = w.run(&["launch", "-n", "2", "--no-kill-on-bad-exit", "--", "/bin/sh", "-c", both]);
    let lines: BTreeSet<String> = done.out().lines().map(str::to_owned).collect();
    assert_eq!(lines, ["rank 0", "rank 1"].map(str::to_owned).into(), "{}", done.err());
    assert_eq!(done.code(), 5, "the highest of the ranks' codes");
    assert!(done.err().contains("err\n"), "{}", done.err());
    assert_eq!(w.run(&["launch", "--", "/bin/sh", "-c", "kill -TERM $$"]).code(), 128 + 15);
    for _ in 0..5 {
        let quiet = w.run(&["launch", "--", "/bin/true"]);
        assert_eq!((quiet.code(), quiet.out().as_str(), quiet.err().as_str()), (0, "", ""), "a program without output has no messages");
    }
}

fn placed_at_once(w: &World) {
    // If one command submits and claims, both times are equal. One of these agents has the scheduler's lease.
    for node in ["n1", "n2", "n3"] {
        w.wait(&format!("{node} to place with one command what is submitted to it"), || {
            let id = w.at(node).ok(&["submit", "-o", "name", "--", "/bin/true"]).unwrap();
            let ended = w.completed(id.trim());
            ms(&ended, "claimed_at") == ms(&ended, "submitted_at")
        });
    }
}

fn many_bytes(w: &World) {
    // 6 MB of invalid UTF-8, without a line end, and identical in both runs.
    let id = w.submit(&[
        "--",
        "/bin/sh",
        "-c",
        "head -c 3000000 /dev/zero | tr '\\0' '\\377'; echo; head -c 3000000 /dev/zero | tr '\\0' '\\200'",
    ]);
    w.completed(&id);
    let bytes = w.run(&["logs", &id]).stdout;
    assert_eq!(bytes.len(), 6_000_001);
    assert!(bytes[..3_000_000].iter().all(|b| *b == 0xff) && bytes[3_000_000] == b'\n' && bytes[3_000_001..].iter().all(|b| *b == 0x80));
}

fn names(w: &World) {
    let id = w.submit(&["--name", "named", "--", "/bin/echo", "me"]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", "@last"]), "me\n");
    assert_eq!(w.ok(&["logs", &id[..8]]), "me\n");
    assert_eq!(w.ok(&["status", "@last", "-o", "name"]).trim(), id);
    assert_eq!(w.run(&["status", "00000000"]).code(), 3);
}

fn documented_status(w: &World) {
    let id = w.submit(&["--name", "shown", "--tasks-per-node", "2", "--", "/bin/true"]);
    w.completed(&id);
    let now = w.status(&id);
    for key in ["id", "name", "state", "reason", "nodes", "exit_code", "requeue_count", "submitted_at", "started_at", "ended_at"] {
        assert!(now.get(key).is_some(), "{key} is missing in {now}");
    }
    let times = ["submitted_at", "claimed_at", "started_at", "ended_at"].map(|key| ms(&now, key));
    assert!(times.is_sorted(), "{now}");
    let table = w.ok(&["status", "--all"]);
    assert!(table.contains("shown") && table.contains(&id[..8]), "{table}");
    let explained = w.ok(&["explain", &id]);
    assert!(explained.to_lowercase().contains("completed"), "{explained}");
}

fn queue(w: &World) {
    let ids: Vec<String> = (0..5).map(|_| w.submit(&["--nodes", "2", "--", "/bin/sleep", "0.3"])).collect();
    let ended: Vec<_> = ids.iter().map(|id| w.completed(id)).collect();
    let starts: Vec<u64> = ended.iter().map(|a| ms(a, "started_at")).collect();
    assert!(starts.is_sorted(), "first come, first served: {starts:?}");
    // Each needs two of the three nodes, so no two of them run at once.
    for pair in ended.windows(2) {
        assert!(ms(&pair[0], "ended_at") <= ms(&pair[1], "started_at"), "{} {}", pair[0], pair[1]);
    }
}

/// Twelve jobs wait while no node accepts work. One of them is cancelled before the nodes are back, and
/// another at that moment.
fn claimed_once(w: &World) {
    w.ok(&["node", "cordon", "n[1-3]", "--reason", "the test's"]);
    let ids: Vec<String> = std::thread::scope(|scope| {
        let submitting: Vec<_> = (0..12).map(|_| scope.spawn(|| w.submit(&["--cores", "1", "--", "/bin/true"]))).collect();
        submitting.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| text(&w.status(id), "state") == "Pending"));
    let [early, late, others @ ..] = &ids[..] else { panic!("{ids:?}") };
    w.ok(&["cancel", early]);
    std::thread::scope(|scope| {
        let cancelling = scope.spawn(|| w.run(&["cancel", late]));
        w.ok(&["node", "uncordon", "n[1-3]"]);
        assert_eq!(cancelling.join().unwrap().code(), 0);
    });
    let claims = |id: &str| {
        let records = w.lattice.json(&["audit", "query", "--alloc", id, "--type", "allocation-claimed"]).unwrap();
        records.as_array().unwrap().len()
    };
    for id in others {
        w.completed(id);
        assert_eq!(claims(id), 1, "{id}");
    }
    assert_eq!((text(&w.ended(early), "state").as_str(), claims(early)), ("Cancelled", 0));
    // It may have begun, and even ended, before the cancellation was committed.
    let now = w.ended(late);
    assert!(["Cancelled", "Completed"].contains(&text(&now, "state").as_str()) && claims(late) <= 1, "{now}");
}

fn too_many_nodes(w: &World) {
    let id = w.submit(&["--nodes", "9", "--wait-for-nodes", "--", "/bin/true"]);
    w.wait("the reason", || w.ok(&["explain", &id]).contains('9'));
    let explained = w.ok(&["explain", &id]);
    assert!(explained.contains("Pending") || explained.contains("pending"), "{explained}");
    assert_eq!(text(&w.status(&id), "state"), "Pending");
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    // Work behind an allocation that cannot run is not blocked for ever.
    let busy = w.submit(&["--nodes", "3", "--", "/bin/sleep", "60"]);
    w.running(&busy);
    let waits = w.submit(&["--", "/bin/true"]);
    w.wait("each node's reason", || ["n1", "n2", "n3"].iter().all(|n| w.ok(&["explain", &waits]).contains(n)));
    w.ok(&["cancel", &busy]);
    w.completed(&waits);
}

fn every_agent(w: &World) {
    let id = w.submit(&["--nodes", "3", "--", "/bin/sh", "-c", "echo $LATTICE_NODE"]);
    w.completed(&id);
    for node in ["n2", "n3"] {
        let log: BTreeSet<String> = w.at(node).ok(&["logs", &id]).unwrap().lines().map(str::to_owned).collect();
        assert_eq!(log, ["n1", "n2", "n3"].map(str::to_owned).into(), "asked at {node}");
    }
    let id = w.at("n3").ok(&["submit", "-o", "name", "--", "/bin/true"]).unwrap();
    w.completed(id.trim());
}

fn machine_views(w: &World) {
    let nodes = w.ok(&["nodes"]);
    assert!(["n1", "n2", "n3"].iter().all(|n| nodes.contains(n)) && nodes.contains("Ready"), "{nodes}");
    assert!(w.ok(&["node", "status"]).contains("n1"));
    let members = w.ok(&["gossip", "members"]);
    w.wait("gossip to know all", || ["n2", "n3"].iter().all(|n| w.ok(&["gossip", "members"]).contains(n)));
    assert!(!members.is_empty());
    assert!(w.ok(&["quorum", "status"]).contains("leader"));
    let verified = w.run(&["audit", "verify"]);
    assert_eq!(verified.code(), 0, "{}", verified.err());
    let doctor = w.run(&["doctor"]);
    let output = doctor.out() + &doctor.err();
    let lines: Vec<&str> = output.lines().filter(|l| !l.trim().is_empty()).collect();
    let honest = |line: &&str| ["ok ", "unsupported ", "degraded ", "missing "].iter().any(|health| line.starts_with(health));
    assert!(lines.len() >= 17 && lines.iter().all(honest), "an honest line for each subject: {output}");
    assert!(output.contains("log store"), "{output}");
}
