//! `srun`, `scancel`, `sattach` and `sbcast`, called by the links that `lattice compat install` makes.

use crate::harness::{Group, JOB, World};
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

static SLURM_LAUNCHES: Group = Group::small("slurm_launches");

pub fn trials() -> Vec<Trial> {
    vec![
        SLURM_LAUNCHES.test("the_links_are_made_once_and_foreign_files_stay", &[], installed),
        SLURM_LAUNCHES.test("srun_outside_is_a_job_with_its_output_its_files_and_its_code", &[], outside),
        SLURM_LAUNCHES.test("srun_in_a_job_is_a_step_on_the_nodes_that_were_asked_for", &[], inside),
        SLURM_LAUNCHES.test("scancel_ends_and_signals_jobs_tasks_and_what_filters_find", &[], cancelled),
        SLURM_LAUNCHES.test("steps_are_listed_with_their_ends_and_one_is_cancelled_alone", &[], steps),
        SLURM_LAUNCHES.test("sattach_follows_a_step_until_it_ends", &[], attached),
        SLURM_LAUNCHES.test("sbcast_brings_a_file_to_every_node_of_the_job", &[], broadcast),
    ]
}

/// The directory of the links.
fn links(w: &World) -> PathBuf {
    let dir = w.dir.join("slurm-links");
    std::fs::create_dir_all(&dir).unwrap();
    w.ok(&["compat", "install", "--dir", dir.to_str().unwrap()]);
    dir
}

/// A command of Slurm.
fn command(w: &World, name: &str, args: &[&str]) -> Command {
    w.lattice.clone().with_program(&links(w).join(name)).command(args)
}

fn finished(mut command: Command) -> Finished {
    let done = process::run(&mut command, JOB).unwrap();
    assert!(!done.timed_out, "it hangs; so far: {}{}", done.out(), done.err());
    done
}

fn slurm(w: &World, name: &str, args: &[&str]) -> Finished {
    finished(command(w, name, args))
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn number(w: &World, id: &str) -> String {
    w.status(id)["job"].as_u64().unwrap_or_else(|| panic!("{id} has no job number")).to_string()
}

/// An empty directory for the files of a test.
fn files(w: &World, name: &str) -> PathBuf {
    let dir = w.dir.join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn installed(w: &World) {
    let dir = files(w, "slurm-foreign");
    std::fs::write(dir.join("squeue"), "of Slurm").unwrap();
    let dir_text = dir.to_str().unwrap();
    let refused = w.run(&["compat", "install", "--dir", dir_text]);
    assert!(refused.code() == 4 && refused.err().contains("of these names: squeue\nhint: "), "{}", refused.err());
    assert!(w.ok(&["compat", "install", "--dir", dir_text, "--force"]).contains(": 14 are new\n"));
    assert!(w.ok(&["compat", "install", "--dir", dir_text]).contains(": 0 are new\n"));
    assert_eq!(w.ok(&["compat", "uninstall", "--dir", dir_text]), format!("Removed 14 links in {dir_text}\n"));
    let version = slurm(w, "srun", &["--version"]);
    assert!(version.code() == 0 && version.out().starts_with("slurm "), "{}", version.out());
    assert!(slurm(w, "srun", &["--mpi=list"]).out().contains("pmix"));
}

fn outside(w: &World) {
    let labelled = slurm(w, "srun", &["-n", "3", "-l", "sh", "-c", "echo rank $LATTICE_RANK"]);
    assert_eq!(sorted(&labelled.out()), ["0: rank 0", "1: rank 1", "2: rank 2"], "{}", labelled.err());
    let failed = slurm(w, "srun", &["sh", "-c", "exit 3"]);
    assert_eq!((failed.code(), failed.err().as_str()), (3, "srun: error: task 0: Exited with exit code 3\n"));
    let killed = slurm(w, "srun", &["sh", "-c", "kill -KILL $$"]);
    assert!(killed.code() == 137 && killed.err().ends_with("srun: error: task 0: Killed\n"), "{}", killed.err());
    let nothing = slurm(w, "srun", &["-n", "2"]);
    assert_eq!((nothing.code(), nothing.err().as_str()), (1, "srun: error: No command given to execute.\n"));
    let bound = slurm(w, "srun", &["-n", "2", "--ntasks-per-socket=2", "--sockets-per-node=1", "echo", "rank"]);
    assert_eq!((bound.code(), bound.out().as_str()), (0, "rank\nrank\n"), "{}", bound.err());
    let of_many = slurm(w, "srun", &["-N", "1", "-n", "100", "--ntasks-per-socket=1", "true"]);
    assert!(of_many.code() == 1 && of_many.err().contains("100 are wanted"), "{} {}", of_many.code(), of_many.err());
    let wrong = slurm(w, "srun", &["-N", "x", "true"]);
    assert!(wrong.code() == 1 && wrong.err().starts_with("srun: error: "), "{} {}", wrong.code(), wrong.err());

    let dir = files(w, "srun-outside");
    let run = |args: &[&str]| {
        let mut srun = command(w, "srun", args);
        srun.current_dir(&dir);
        let done = finished(srun);
        assert_eq!((done.code(), done.out().as_str()), (0, ""), "{args:?}: {}", done.err());
    };
    run(&["-n", "2", "-J", "sim", "-o", "%x-%2t-%n.out", "-e", "all.err", "sh", "-c", "echo rank $LATTICE_RANK; echo bad >&2"]);
    assert_eq!(read(&dir.join("sim-00-0.out")), "rank 0\n");
    assert_eq!(read(&dir.join("sim-01-0.out")), "rank 1\n");
    assert_eq!(read(&dir.join("all.err")), "bad\nbad\n");
    run(&["-o", "none", "echo", "unseen"]);
    std::fs::write(dir.join("in.txt"), "of a file\n").unwrap();
    run(&["-n", "2", "-i", "in.txt", "-o", "both.txt", "cat"]);
    assert_eq!(read(&dir.join("both.txt")), "of a file\nof a file\n");
    run(&["-n", "2", "-o", "job-%j.out", "true"]);
    let names: Vec<String> =
        std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
    let is_numbered = |name: &String| {
        let digits = name.strip_prefix("job-").and_then(|rest| rest.strip_suffix(".out")).unwrap_or_default();
        digits.parse::<u64>().is_ok_and(|number| number > 0)
    };
    assert!(names.iter().any(is_numbered), "{names:?}");
}

fn inside(w: &World) {
    let dir = files(w, "srun-inside");
    std::fs::write(dir.join("programs.conf"), "# ranks\n0,3 echo task %t\n1-2 echo offset %o\n").unwrap();
    let bin = links(w).display().to_string();
    let body = format!(
        "cd {dir}\n\
         {bin}/srun -l sh -c 'echo step $SLURM_STEP_ID' > steps\n\
         {bin}/srun --multi-prog programs.conf > programs\n\
         {bin}/srun -n 3 sh -c 'exit $LATTICE_RANK' 2> failed; echo $? > failed-code\n\
         {bin}/srun -n 2 -o 'of-%s-%t.out' echo hello\n\
         {bin}/srun -N 1 -r 0 -n 2 sh -c 'echo $LATTICE_NODE' > relative\n\
         echo in | {bin}/srun -N 1 -r 1 -n 2 sh -c 'cat; echo $LATTICE_NODE $SLURM_NODEID $SLURM_STEP_NUM_NODES' > elsewhere\n\
         {bin}/srun -w ${{LATTICE_NODELIST##*,}} -n 1 sh -c 'exit 5' 2> named; echo $? > named-code\n\
         {bin}/srun -n 1 -N 2 true 2> fewer\n\
         {bin}/srun -n 1 -t 0:02 sleep 60 2> limit; echo $? > limit-code\n\
         {bin}/srun -n 1 --exclude n9 true 2> excluded; echo $? > excluded-code\n\
         {bin}/srun -n 2 --ntasks-per-socket=1 true 2> sockets; echo $? > sockets-code\n\
         {bin}/srun --jobid=$SLURM_JOB_ID -n 1 echo same > same\n",
        dir = dir.display()
    );
    let script = w.script("srun-inside.sh", &format!("#!/bin/sh\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=2\n#SBATCH --time=5\n{body}"));
    let id = w.submit(&[&script]);
    let nodes = w.completed(&id)["nodes"].clone();
    let content = |name: &str| read(&dir.join(name));
    assert_eq!(sorted(&content("steps")), ["0: step 0", "1: step 0", "2: step 0", "3: step 0"]);
    assert_eq!(sorted(&content("programs")), ["offset 0", "offset 1", "task 0", "task 3"]);
    let failed = content("failed");
    assert_eq!(content("failed-code"), "2\n", "{failed}");
    let of_rank = |rank: u32, code: u32| failed.contains(&format!(": task {rank}: Exited with exit code {code}\n"));
    assert!(failed.starts_with("srun: error: n") && of_rank(1, 1) && of_rank(2, 2), "{failed}");
    assert_eq!(content("of-3-0.out") + &content("of-3-1.out"), "hello\nhello\n");
    let first = nodes[0].as_str().unwrap();
    assert_eq!(content("relative"), format!("{first}\n{first}\n"));
    // The job's first node coordinates these steps and has none of their ranks.
    let second = nodes[1].as_str().unwrap();
    let on_second = format!("{second} 0 1");
    assert_eq!(sorted(&content("elsewhere")), ["in", "in", &on_second, &on_second]);
    assert_eq!(content("named-code"), "5\n", "{}", content("named"));
    assert!(content("named").contains(&format!("{second}: task 0: Exited with exit code 5")), "{}", content("named"));
    assert_eq!(content("fewer"), "srun: Warning: can't run 1 processes on 2 nodes, setting nnodes to 1\n");
    assert_eq!(content("limit-code"), "143\n", "{}", content("limit"));
    assert!(content("limit").contains("srun: the time limit of the step is over\n"), "{}", content("limit"));
    assert_eq!(content("excluded-code"), "1\n");
    assert!(content("excluded").contains("srun: hint: "), "{}", content("excluded"));
    assert_eq!(content("sockets-code"), "1\n");
    assert!(content("sockets").contains("--ntasks-per-socket=1 is not possible for a step inside a job"), "{}", content("sockets"));
    assert_eq!(content("same"), "same\n");
}

fn cancelled(w: &World) {
    let script = w.script("scancel.sh", "#!/bin/sh\n#SBATCH --time=5\nsleep 300\n");
    let group = w.submit(&["--cores", "1", "--task-group=1-3%1", &script]);
    let job = number(w, &group);
    let scancel = |args: &[&str]| {
        let done = slurm(w, "scancel", args);
        assert_eq!((done.code(), done.out() + &done.err()), (0, String::new()), "{args:?}");
    };
    scancel(&[&format!("{job}_[2-3]")]);
    for index in [2, 3] {
        assert_eq!(text(&w.lattice.json(&["status", &format!("{group}[{index}]")]).unwrap(), "state"), "Cancelled");
    }
    scancel(&[&job]);
    assert_eq!(text(&w.ended(&group), "state"), "Cancelled");
    scancel(&["-Q", &job]);
    let missing = slurm(w, "scancel", &["999999999"]);
    let text_of_slurm = "scancel: error: Kill job error on job id 999999999: Invalid job id specified\n";
    assert_eq!((missing.code(), missing.err().as_str()), (1, text_of_slurm));
    assert_eq!(slurm(w, "scancel", &[]).code(), 1, "nothing is named");

    let caught =
        w.script("caught.sh", "#!/bin/sh\n#SBATCH --time=5\ntrap 'echo caught; exit 0' USR1\necho ready\nwhile :; do sleep 0.1; done\n");
    let signalled = w.submit(&["--cores", "1", &caught]);
    w.wait_log(&signalled, "ready");
    let step = slurm(w, "scancel", &[&format!("{}.0", number(w, &signalled))]);
    assert!(step.code() == 1 && step.err().contains(".0: Invalid job id specified"), "{}", step.err());
    let script_alone = slurm(w, "scancel", &[&format!("{}.batch", number(w, &signalled))]);
    assert!(script_alone.code() == 1 && script_alone.err().contains("the script is not cancelled on its own"), "{}", script_alone.err());
    scancel(&["--batch", "--signal", "SIGUSR1", &number(w, &signalled)]);
    w.completed(&signalled);
    assert!(w.log(&signalled).contains("caught"));

    let named = w.submit(&["--cores", "1", "--name", "to-cancel", &script]);
    let other = w.submit(&["--cores", "1", "--name", "to-keep", &script]);
    scancel(&["--me", "--name", "to-cancel"]);
    assert_eq!(text(&w.ended(&named), "state"), "Cancelled");
    assert_ne!(text(&w.status(&other), "state"), "Cancelled");
    scancel(&[&number(w, &other)]);
}

/// The steps of an allocation: number, name, state and exit code.
fn listed(w: &World, id: &str) -> Vec<(String, String, String, Value)> {
    let found = w.lattice.json(&["status", id, "--steps"]).unwrap();
    let of = |step: &Value| (text(step, "step"), text(step, "name"), text(step, "state"), step["exit_code"].clone());
    found["steps"].as_array().unwrap().iter().map(of).collect()
}

fn steps(w: &World) {
    let dir = files(w, "steps");
    let bin = links(w).display().to_string();
    let go = dir.join("go").display().to_string();
    let body = format!(
        "cd {dir}\n\
         {bin}/srun -n 2 true\n\
         {bin}/srun -n 3 sh -c 'exit 3' 2> failed\n\
         {bin}/srun -n 1 sh -c 'echo number $SLURM_STEP_ID $SLURM_STEPID; exec sleep 300' 2> cancelled; echo $? > cancelled-code\n\
         while [ ! -e {go} ]; do sleep 0.1; done\n",
        dir = dir.display()
    );
    let script = w.script("steps.sh", &format!("#!/bin/sh\n#SBATCH -N 2\n#SBATCH --ntasks-per-node=2\n#SBATCH --time=5\n{body}"));
    let id = w.submit(&["--name", "of-steps", &script]);
    let job = number(w, &id);
    w.wait_log(&id, "number 2 2");
    let row = |step: &str, name: &str, state: &str, code: Value| (step.to_owned(), name.to_owned(), state.to_owned(), code);
    let begun = [
        row("batch", "batch", "Running", Value::Null),
        row("0", "true", "Completed", 0.into()),
        row("1", "sh", "Failed", 3.into()),
        row("2", "sh", "Running", Value::Null),
    ];
    w.wait("its steps to be recorded", || listed(w, &id) == begun);
    let ok = |name: &str, args: &[&str]| {
        let done = slurm(w, name, args);
        assert_eq!(done.code(), 0, "{name} {args:?}: {}", done.err());
        done.out()
    };
    assert_eq!(ok("squeue", &["-s", "-h", "-o", "%i %j %A", "-j", &job]), format!("{job}.batch batch 1\n{job}.2 sh 1\n"));
    assert_eq!(ok("squeue", &["-h", "-o", "%i %t", &format!("-s{job}.2")]), format!("{job}.2 RUNNING\n"));
    let shown = ok("scontrol", &["show", "-o", "step", &format!("{job}.1")]);
    assert!(shown.starts_with(&format!("StepId={job}.1 ")) && shown.contains("State=FAILED") && shown.contains("ExitCode=3:0"), "{shown}");
    assert!(shown.contains(" Tasks=3 Name=sh "), "{shown}");
    let none = slurm(w, "scontrol", &["show", "step", &format!("{job}.9")]);
    assert!(none.code() == 1 && none.err().contains("it has no such step"), "{}", none.err());
    assert_eq!(ok("sstat", &["-n", "-P", "-o", "JobID,NTasks", "-j", &format!("{job}.2")]), format!("{job}.2|1\n"));
    let over = slurm(w, "sstat", &["-n", "-j", &format!("{job}.1")]);
    assert!(over.code() == 1 && over.err().contains("has no ranks that run now"), "{}", over.err());

    assert_eq!(ok("scancel", &[&format!("{job}.2")]), "");
    w.wait("the step to be cancelled", || listed(w, &id).last() == Some(&row("2", "sh", "Cancelled", 130.into())));
    let again = slurm(w, "scancel", &[&format!("{job}.2")]);
    assert!(again.code() == 1 && again.err().contains("Job/step already completing or completed"), "{}", again.err());
    assert_eq!(text(&w.status(&id), "state"), "Running");
    std::fs::write(&go, "").unwrap();
    w.completed(&id);
    assert_ne!(read(&dir.join("cancelled-code")), "0\n");
    // The node has removed the allocation; its head still has the record.
    w.wait("the nodes to be free", || listed(w, &id).first() == Some(&row("batch", "batch", "Completed", 0.into())));
    let accounted = ok("sacct", &["-n", "-P", "-o", "JobID,JobName,State,ExitCode,NTasks", "-j", &job]);
    let want = format!(
        "{job}|of-steps|COMPLETED|0:0|\n{job}.batch|batch|COMPLETED|0:0|1\n{job}.0|true|COMPLETED|0:0|2\n\
         {job}.1|sh|FAILED|3:0|3\n{job}.2|sh|CANCELLED|130:0|1\n"
    );
    assert_eq!(accounted, want);
    assert_eq!(ok("sacct", &["-n", "-P", "-o", "JobID", "-j", &format!("{job}.1")]), format!("{job}.1\n"));
    assert_eq!(ok("squeue", &["-s", "-h", "-j", &job]), "");
}

fn attached(w: &World) {
    let dir = files(w, "sattach");
    let (bin, go) = (links(w).display().to_string(), dir.join("go").display().to_string());
    let step = format!("echo begins; while [ ! -e {go} ]; do sleep 0.1; done; echo ends");
    let script = w.script("sattach.sh", &format!("#!/bin/sh\n#SBATCH --time=5\n{bin}/srun -n 1 sh -c '{step}'\nsleep 300\n"));
    let id = w.submit(&["--cores", "1", &script]);
    w.wait_log(&id, "begins");
    let mut follower = command(w, "sattach", &["-l", &format!("{}.0", number(w, &id))]).stdout(Stdio::piped()).spawn().unwrap();
    std::fs::write(&go, "").unwrap();
    let ended = process::until(JOB, || follower.try_wait().unwrap().is_some());
    if !ended {
        follower.kill().unwrap();
    }
    let shown = follower.wait_with_output().unwrap();
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(ended, "it goes on behind the end of the step: {shown}");
    assert_eq!(shown, "0: begins\n0: ends\n");
    assert_eq!(text(&w.status(&id), "state"), "Running");
    let no_step = slurm(w, "sattach", &[&number(w, &id)]);
    assert!(no_step.code() == 1 && no_step.err().contains("name a step"), "{}", no_step.err());
    w.ok(&["cancel", &id]);
}

fn broadcast(w: &World) {
    let dir = files(w, "sbcast");
    let (bin, dest) = (links(w).display().to_string(), dir.join("there").display().to_string());
    let large = vec![b'x'; 300_000];
    std::fs::write(dir.join("source"), &large).unwrap();
    std::fs::write(dir.join("other"), "other\n").unwrap();
    let body = format!(
        "cd {dir}\n\
         chmod 750 source\n\
         {bin}/sbcast source {dest} || exit 1\n\
         {bin}/srun --ntasks-per-node=1 wc -c {dest} > sizes\n\
         {bin}/sbcast other {dest} 2> exists; echo $? > exists-code\n\
         stat -c %a {dest} > mode\n\
         {bin}/sbcast -f other {dest} || exit 1\n",
        dir = dir.display()
    );
    let script = w.script("sbcast.sh", &format!("#!/bin/sh\n#SBATCH -N 2\n#SBATCH --time=5\n{body}"));
    let id = w.submit(&[&script]);
    w.completed(&id);
    let content = |name: &str| read(&dir.join(name));
    assert_eq!(content("sizes"), format!("300000 {dest}\n300000 {dest}\n"));
    assert_eq!((content("exists-code").as_str(), content("mode").as_str(), content("there").as_str()), ("1\n", "750\n", "other\n"));
    assert!(content("exists").contains("File exists"), "{}", content("exists"));
    let outside = slurm(w, "sbcast", &["/etc/hostname", &dest]);
    assert!(outside.code() == 1 && outside.err().contains("Need a job id"), "{}", outside.err());
}
