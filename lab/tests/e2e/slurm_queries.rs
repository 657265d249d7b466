//! Slurm's commands that show and change jobs and nodes, called by their names as scripts call them.

use crate::harness::{Group, JOB, World};
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use serde_json::Value;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

static QUERIES: Group = Group::small("slurm_queries");

pub fn trials() -> Vec<Trial> {
    vec![
        QUERIES.test("squeue_shows_what_waits_and_runs_in_slurms_columns", &[], queue),
        QUERIES.test("sacct_has_ended_jobs_with_and_without_steps", &[], accounts),
        QUERIES.test("arrays_are_folded_and_unfolded", &[], arrays),
        QUERIES.test("sinfo_and_scontrol_show_nodes_and_drain_them", &[], nodes),
        QUERIES.test("scontrol_holds_changes_and_describes_jobs", &[], changes),
        QUERIES.test("what_cannot_be_done_is_refused_with_code_1", &[], refusals),
    ]
}

/// Runs a command of Slurm through a link to `lattice` with its name.
fn slurm(w: &World, name: &str, args: &[&str]) -> Finished {
    let folder: PathBuf = w.dir.join("slurm-names");
    std::fs::create_dir_all(&folder).unwrap();
    let like = w.lattice.command::<&str>(&[]);
    let link = folder.join(name);
    if !link.exists() {
        symlink(like.get_program(), &link).unwrap();
    }
    let mut command = Command::new(&link);
    command.args(args).env("LATTICE_ENDPOINT", format!("unix:{}", w.lattice.socket().display()));
    command.env_remove("SLURM_TIME_FORMAT").env_remove("LATTICE_COMPAT");
    let finished = process::run(&mut command, JOB).unwrap();
    assert!(!finished.timed_out, "`{name} {}` hangs", args.join(" "));
    finished
}

/// The same, which must succeed; returns its output.
fn ok(w: &World, name: &str, args: &[&str]) -> String {
    let finished = slurm(w, name, args);
    assert_eq!(finished.code(), 0, "{name} {args:?}: {}{}", finished.out(), finished.err());
    finished.out()
}

/// The job number of an allocation.
fn number(w: &World, id: &str) -> String {
    let number = w.status(id)["job"].as_u64().unwrap_or_else(|| panic!("{id} has no job number"));
    number.to_string()
}

fn queue(w: &World) {
    let running = w.submit(&["--cores=1", "--walltime=1h", "--name=query-run", "--", "/bin/sleep", "600"]);
    let held = w.submit(&["--cores=1", "--walltime=1h", "--name=query-held", "--hold", "--", "/bin/true"]);
    w.running(&running);
    let (running_number, held_number) = (number(w, &running), number(w, &held));
    let listed = ok(w, "squeue", &["-n", "query-run,query-held"]);
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines[0], "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)");
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(cells(lines[1])[..5], [held_number.as_str(), "default", "query-he", "root", "PD"], "{listed}");
    assert_eq!(cells(lines[1]).last().unwrap(), "(JobHeldUser)");
    assert_eq!(cells(lines[2])[..5], [running_number.as_str(), "default", "query-ru", "root", "R"], "{listed}");
    // The queries of Parsl, PSI/J, ReFrame and Snakemake.
    let both = format!("{running_number},{held_number}");
    let asked = ok(w, "squeue", &["--noheader", "--format=%i %t", "--job", &both, "-S", "-t"]);
    assert_eq!(asked, format!("{running_number} R\n{held_number} PD\n"));
    let asked = ok(w, "squeue", &["-O", "JobArrayID,StateCompact,Reason", "-t", "all", "--me"]);
    assert!(asked.lines().any(|line| cells(line) == [running_number.as_str(), "R", "None"]), "{asked}");
    assert!(asked.lines().skip(1).all(|line| cells(line).len() == 3), "{asked}");
    let asked = ok(w, "squeue", &["-h", "-j", &running_number, "-o", "%i|%T|%N|%r"]);
    assert!(asked.starts_with(&format!("{running_number}|RUNNING|n")) && asked.ends_with("|None\n"), "{asked}");
    let asked = ok(w, "squeue", &["--format=%i|%T", "--states=all", "--noheader", "--name", "query-run"]);
    assert_eq!(asked, format!("{running_number}|RUNNING\n"));
    let data: Value = serde_json::from_str(&ok(w, "squeue", &["--json", "-j", &running_number])).unwrap();
    assert_eq!((&data["jobs"][0]["job_state"][0], data["jobs"][0]["job_id"].to_string()), (&"RUNNING".into(), running_number.clone()));
    assert_eq!(ok(w, "squeue", &["-h", "-u", "daemon"]), "");
    let measured = ok(w, "sstat", &["-n", "-P", "-o", "JobID,NTasks", "-j", &running_number]);
    assert_eq!(measured, format!("{running_number}.batch|1\n"));
    let waiting = ok(w, "sprio", &["-h", "-j", &held_number, "-o", "%i %Y %r"]);
    assert_eq!(waiting, format!("{held_number} 0 default\n"));
}

fn accounts(w: &World) {
    let good = w.submit(&["--cores=1", "--name=query-good", "--", "/bin/true"]);
    let bad = w.submit(&["--cores=1", "--name=query-bad", "--", "/bin/sh", "-c", "exit 3"]);
    let stopped = w.submit(&["--cores=1", "--name=query-stopped", "--hold", "--walltime=1h", "--", "/bin/true"]);
    w.completed(&good);
    w.ended(&bad);
    w.ok(&["cancel", &stopped]);
    w.ended(&stopped);
    let [good, bad, stopped] = [good, bad, stopped].map(|id| number(w, &id));
    let all = format!("{good},{bad},{stopped}");
    let short = ok(w, "sacct", &["-X", "-n", "-P", "-o", "JobID,State,ExitCode", "-j", &all]);
    assert_eq!(short, format!("{good}|COMPLETED|0:0\n{bad}|FAILED|3:0\n{stopped}|CANCELLED by 0|0:0\n"));
    let steps = ok(w, "sacct", &["--parsable2", "-o", "JobID,State,NodeList", "-j", &good, "-j", &bad]);
    let ids: Vec<&str> = steps.lines().map(|line| line.split('|').next().unwrap()).collect();
    assert_eq!(ids, ["JobID", &good, &format!("{good}.0"), &bad, &format!("{bad}.0")], "{steps}");
    let parsl = ok(w, "sacct", &["-X", "--noheader", "--format=jobid,state%20", "--job", &stopped]);
    assert_eq!(parsl.split_whitespace().take(2).collect::<Vec<_>>(), [stopped.as_str(), "CANCELLED"]);
    let snakemake = ["-X", "--parsable2", "--clusters", "all", "--noheader", "--format=JobIdRaw,State", "--starttime", "now-2days"];
    let snakemake = ok(w, "sacct", &[&snakemake[..], &["--endtime", "now", "--name", "query-bad"]].concat());
    assert_eq!(snakemake.lines().last(), Some(format!("{bad}|FAILED").as_str()));
    let data: Value = serde_json::from_str(&ok(w, "sacct", &["--json", "-j", &bad])).unwrap();
    assert_eq!(data["jobs"][0]["exit_code"]["return_code"]["number"], 3, "{data}");
    assert_eq!(ok(w, "sacct", &["-n", "-X", "-s", "TO", "-j", &all]), "");
    let heading = ok(w, "sacct", &["-X", "-j", &good]);
    assert!(
        heading.starts_with("JobID           JobName  Partition    Account  AllocCPUS      State ExitCode \n------------ "),
        "{heading}"
    );
}

fn arrays(w: &World) {
    let id = w.submit(&["--hold", "--cores=1", "--walltime=5m", "--name=query-array", "--task-group=0-3%2", "--", "/bin/true"]);
    let base = number(w, &id);
    assert_eq!(ok(w, "squeue", &["-h", "-o", "%i", "-j", &base]), format!("{base}_[0-3%2]\n"));
    let unfolded: String = (0..4).map(|index| format!("{base}_{index}\n")).collect();
    assert_eq!(ok(w, "squeue", &["-h", "-r", "-o", "%i", "-j", &base, "-S", "i"]), unfolded);
    assert_eq!(ok(w, "squeue", &["-h", "-o", "%i %K", "-j", &format!("{base}_2")]), format!("{base}_2 2\n"));
    // A task also has a number of its own. Several `%` are one, as programs write them.
    let third = (base.parse::<u64>().unwrap() + 2).to_string();
    assert_eq!(ok(w, "squeue", &["-h", "-o", "%%i|%%T|%%N|%%r", "-j", &third]), format!("{base}_2|PENDING||JobHeldUser\n"));
    // For this many jobs, one query replaces a query for each.
    let many: Vec<String> = (0..20).map(|index| format!("{base}_{}", index % 4)).collect();
    assert_eq!(ok(w, "squeue", &["-h", "-o", "%i", "-j", &many.join(",")]), unfolded);
    ok(w, "scontrol", &["release", &base]);
    w.ended(&id);
    let ended: String = (0..4).map(|index| format!("{base}_{index}|COMPLETED\n")).collect();
    assert_eq!(ok(w, "sacct", &["-X", "-n", "-P", "-o", "JobID,State", "-j", &base]), ended);
}

fn nodes(w: &World) {
    let names = ok(w, "scontrol", &["show", "hostnames", "n[1-3,7]"]);
    assert_eq!((names.as_str(), ok(w, "scontrol", &["show", "hostlist", "n3,n1,n2"]).as_str()), ("n1\nn2\nn3\nn7\n", "n[3,1-2]\n"));
    assert_eq!(ok(w, "scontrol", &["show", "hostlistsorted", "n3,n1,n2"]), "n[1-3]\n");
    assert_eq!(ok(w, "sinfo", &["-o", "%P"]), "PARTITION\ndefault*\n");
    assert!(ok(w, "sinfo", &[]).starts_with("PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\ndefault*"));
    assert_eq!(ok(w, "sinfo", &["-h", "-N", "-o", "%N %R"]), "n1 default\nn2 default\nn3 default\n");
    ok(w, "scontrol", &["update", "NodeName=n3", "State=DRAIN", "Reason=bad fan"]);
    w.wait("n3 to be drained", || ok(w, "sinfo", &["-h", "-n", "n3", "-o", "%T %E"]) == "drained bad fan\n");
    let reasons = ok(w, "sinfo", &["-h", "-R"]);
    assert!(reasons.starts_with("bad fan ") && reasons.trim_end().ends_with("n3"), "{reasons}");
    let shown = ok(w, "scontrol", &["-a", "show", "-o", "nodes", "n3"]);
    assert!(shown.starts_with("NodeName=n3 ") && shown.contains(" State=IDLE+DRAIN ") && shown.contains(" Partitions=default "), "{shown}");
    ok(w, "scontrol", &["update", "NodeName=n3", "State=RESUME"]);
    w.wait("n3 to be idle", || ok(w, "sinfo", &["-h", "-n", "n3", "-o", "%t"]) == "idle\n");
    let partitions = ok(w, "scontrol", &["-a", "show", "-o", "partitions"]);
    assert!(partitions.starts_with("PartitionName=default ") && partitions.contains(" Default=YES "), "{partitions}");
    assert!(ok(w, "scontrol", &["show", "config"]).contains("\nMinJobAge               = "));
    let data: Value = serde_json::from_str(&ok(w, "sinfo", &["--json"])).unwrap();
    assert_eq!(data["sinfo"][0]["partition"]["name"], "default", "{data}");
    assert!(ok(w, "scontrol", &["ping"]).ends_with(" is UP\n"));
    assert!(ok(w, "sshare", &["-n", "-P"]).lines().all(|line| line.split('|').count() == 7));
    assert_eq!(ok(w, "sacctmgr", &["-n", "-P", "show", "cluster", "format=cluster"]), "lattice\n");
    assert_eq!(ok(w, "sacctmgr", &["-P", "list", "user", "format=defaultqos"]), "DefaultQOS\nnormal\n");
}

fn changes(w: &World) {
    let files = format!("--output={}/%x-%j.out", w.dir.display());
    let id = w.submit(&["--cores=1", "--walltime=1h", "--hold", "--name=query-change", &files, "--", "/bin/true"]);
    let job = number(w, &id);
    ok(w, "scontrol", &["update", &format!("JobId={job}"), "TimeLimit=30", "JobName=query-changed", "Priority=TOP"]);
    let between = slurm(w, "scontrol", &["update", &format!("JobId={job}"), "Priority=100"]);
    assert!(between.code() == 1 && between.err().contains("Priority=TOP puts it first"), "{}", between.err());
    let shown = ok(w, "scontrol", &["show", "job", &job]);
    for piece in [
        "JobName=query-changed\n",
        "TimeLimit=00:30:00",
        " Nice=-10000 ",
        "JobState=PENDING Reason=JobHeldUser",
        "Partition=default\n",
        &format!("StdOut={}/query-changed-{job}.out\n", w.dir.display()),
    ] {
        assert!(shown.contains(piece), "{piece}: {shown}");
    }
    ok(w, "scontrol", &["release", &job]);
    w.completed(&id);
    assert_eq!(ok(w, "scontrol", &["show", "reservations"]), "No reservations in the system\n");
}

fn refusals(w: &World) {
    for (name, args, piece) in [
        ("squeue", &["-j", "99999999"][..], "squeue: error: slurm_load_jobs error: Invalid job id specified"),
        ("squeue", &["-o", "%i %§"], "squeue: error: Invalid format specification"),
        ("squeue", &["-t", "sleeping"], "squeue: error: Invalid job state specified: sleeping"),
        ("squeue", &["-M", "other"], "squeue: error: No cluster 'other' known by database."),
        ("squeue", &["--colour"], "squeue: error: unexpected argument '--colour' found"),
        ("sacct", &["-o", "Colour"], "sacct: error: Invalid field requested: \"Colour\""),
        ("scontrol", &["suspend", "12"], "scontrol: hint: `lattice preempt --hold JOB`"),
        ("scontrol", &["update", "NodeName=n1", "State=DRAIN"], "scontrol: error: You must specify a reason"),
        ("sstat", &[], "sstat: error: You didn't give me any jobs to stat."),
        ("sinfo", &["-t", "sleepy"], "sinfo: error: Invalid format specification: sleepy"),
    ] {
        let refused = slurm(w, name, args);
        assert!(refused.code() == 1 && refused.err().contains(piece), "{name} {args:?}: {} {}", refused.code(), refused.err());
    }
    assert!(ok(w, "squeue", &["-V"]).starts_with("slurm "));
}
