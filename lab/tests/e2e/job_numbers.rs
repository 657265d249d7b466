//! Job numbers, which commands accept in place of ids, and the values of Slurm's variables.

use crate::harness::{Group, JOB, World, binaries, configure};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static JOB_NUMBERS: Group = Group::small("job_numbers");

pub fn trials() -> Vec<Trial> {
    vec![
        JOB_NUMBERS.test("a_job_is_named_by_its_number_everywhere", &[], named),
        JOB_NUMBERS.test("each_task_of_a_group_has_a_number_of_its_own", &[], tasks),
        JOB_NUMBERS.test("slurms_variables_have_the_numbers_also_by_the_sites_switch", &[], variables),
        JOB_NUMBERS.test("numbers_go_on_when_the_whole_quorum_was_down", &[], restarted),
    ]
}

fn job(w: &World, id: &str) -> u64 {
    w.status(id)["job"].as_u64().unwrap()
}

/// Submits an inline command; returns the id and the number, as a script would read them.
fn submit(w: &World, args: &[&str]) -> (String, u64) {
    let shown = w.ok(&[&["submit", "-o", "json"], args].concat());
    let submitted: Value = serde_json::from_str(&shown).unwrap_or_else(|e| panic!("{e}: {shown}"));
    (text(&submitted, "id"), submitted["job"].as_u64().unwrap())
}

fn named(w: &World) {
    let shown = w.ok(&["submit", "--hold", "--cores", "1", "--walltime=5m", "--", "/bin/true"]);
    let (short, number) = shown.trim().strip_prefix("Submitted allocation ").unwrap().split_once(" (job ").unwrap();
    let number = number.split(')').next().unwrap();
    let found = w.status(number);
    assert!(text(&found, "id").starts_with(short), "{shown}{found}");
    assert_eq!(found["job"].to_string(), number);
    let block = w.ok(&["status", number]);
    let line = block.lines().find(|line| line.starts_with("Job:")).unwrap_or_else(|| panic!("{block}"));
    assert_eq!(line.split_whitespace().last(), Some(number));

    let follows = w.submit(&["--depends-on", &format!("{number}:any"), "--cores", "1", "--", "/bin/true"]);
    assert_eq!(w.status(&follows)["dependencies"][0]["id"], found["id"]);
    w.ok(&["update", number, "--name", "renamed"]);
    assert_eq!(text(&w.status(number), "name"), "renamed");
    assert_eq!(w.ok(&["cancel", number]), format!("Allocation {short} is cancelled\n"));
    assert_eq!(text(&w.ended(number), "state"), "Cancelled");
    w.completed(&follows);
    let audited = w.lattice.json(&["audit", "query", "--job", number]).unwrap();
    let audited = audited.as_array().unwrap();
    assert!(!audited.is_empty() && audited.iter().all(|record| record["allocation"] == found["id"]), "{audited:?}");
    let unknown = w.run(&["audit", "query", "--job", "999999999"]);
    assert!(unknown.code() == 3 && unknown.err().contains("there is no job 999999999"), "{}", unknown.err());
    let task = w.run(&["audit", "query", "--job", "42[7]"]);
    assert!(task.code() == 2 && task.err().contains("name the job, 42"), "{}", task.err());
    let unknown = w.run(&["status", "999999999"]);
    assert!(unknown.code() == 3 && unknown.err().contains("there is no allocation 999999999"), "{}", unknown.err());
}

fn tasks(w: &World) {
    let says = "echo $SLURM_ARRAY_JOB_ID $SLURM_JOB_ID $SLURM_ARRAY_TASK_ID";
    let script = w.script("numbered.sh", &format!("#!/bin/sh\n#SBATCH --array=10-18:2\n#SBATCH --time=5\n{says}\n"));
    let (id, first) = submit(w, &["-q", &script]);
    w.completed(&id);
    for (ordinal, index) in [(0, 10), (2, 14), (4, 18)] {
        let number = first + ordinal;
        assert_eq!(w.ok(&["logs", &format!("{id}[{index}]")]), format!("{first} {number} {index}\n"));
        assert_eq!(text(&w.status(&number.to_string()), "id"), id);
    }
    assert_eq!(w.ok(&["logs", &(first + 3).to_string()]), format!("{first} {} 16\n", first + 3));
    let block = w.ok(&["status", &first.to_string()]);
    assert!(block.contains(&format!("{first} (its tasks: {first} to {})\n", first + 4)), "{block}");
    let (_, next) = submit(w, &["--hold", "--walltime=5m", "--task-group=0-3", "--", "/bin/true"]);
    assert_eq!(next, first + 5);

    let third = (next + 2).to_string();
    let refused = w.run(&["hold", &third]);
    assert!(refused.code() == 4 && refused.err().contains(&format!("job {third} is task 2 of task group ")), "{}", refused.err());
    assert!(w.ok(&["cancel", &third]).starts_with("Task 2 of task group "));
    assert_eq!(text(&w.lattice.json(&["status", &format!("{next}[2]")]).unwrap(), "state"), "Cancelled");
    let ended = w.ok(&["cancel", &format!("{next}[2]")]);
    assert!(ended.starts_with("Cancelled 0 tasks") && ended.contains("1 had ended before"), "{ended}");
    w.ok(&["cancel", &next.to_string()]);
    assert_eq!(text(&w.ended(&next.to_string()), "state"), "Cancelled");
}

fn variables(w: &World) {
    let lattice = binaries().lattice().display().to_string();
    let says = "$SLURM_JOB_ID $SLURM_JOBID $SLURM_JOB_PARTITION $SLURM_CPUS_ON_NODE $SLURM_JOB_CPUS_PER_NODE";
    let times = "test $SLURM_JOB_END_TIME -eq $((SLURM_JOB_START_TIME + 300)) && test -n \"$SLURM_CLUSTER_NAME\" && echo timed";
    let script = w.script("variables.sh", &format!("#!/bin/sh\necho {says}\n{times}\n{lattice} launch -n 1 sh -c 'echo {says}'\n"));
    let run = |more: &[&str]| {
        let (id, number) = submit(w, &[more, &["--cores", "1", "--walltime=5m", &script]].concat());
        w.ended(&id);
        (number, w.log(&id))
    };
    let (number, log) = run(&["--slurm-env"]);
    let line = format!("{number} {number} default 1 1\n");
    assert_eq!((log.matches(&line).count(), log.contains("timed\n")), (2, true), "{log}");

    let names = w.dir.join("slurm-names.yaml");
    std::fs::write(&names, "partition_mapping: {normal: default}\nqos_mapping: {low: 2}\n").unwrap();
    let before = configure(&w.dir, "n2", &format!("work: {{slurm_env: true, slurm_names: {}}}", names.display()));
    faults::restart_node(&w.dir, "n2").unwrap();
    w.wait("n2 to be ready", || w.lattice.nodes().is_ok_and(|nodes| nodes.iter().any(|(node, state)| node == "n2" && state == "Ready")));
    let (number, log) = run(&["-w", "n2"]);
    // The class by the site's name, the requested memory, and the pid of the script and of its rank.
    let says = "echo $SLURM_JOB_QOS $SLURM_MEM_PER_CPU $SLURM_MEM_PER_NODE; test $SLURM_TASK_PID = $$ && echo own";
    let more = w.script("more-variables.sh", &format!("#!/bin/sh\n{says}\n{lattice} launch -n 1 sh -c '{says}'\n"));
    let options = ["-w", "n2", "--mem-per-core=64M", "--cores=1", "--walltime=5m", "--preemption-class=2"];
    let (id, _) = submit(w, &[&options[..], &[&more]].concat());
    w.ended(&id);
    let log_of_more = w.log(&id);
    std::fs::write(w.dir.join("n2/agent.yaml"), before).unwrap();
    faults::restart_node(&w.dir, "n2").unwrap();
    assert_eq!(log.matches(&format!("{number} {number} normal 1 1\n")).count(), 2, "{log}");
    assert_eq!((log_of_more.matches("low 64\n").count(), log_of_more.matches("own\n").count()), (2, 2), "{log_of_more}");
}

fn restarted(w: &World) {
    let (id, number) = submit(w, &["--cores", "1", "--", "/bin/true"]);
    w.completed(&id);
    for member in w.cluster().members.iter().filter(|member| member.daemon.alive()) {
        faults::kill_member(&w.dir, member.id).unwrap();
    }
    faults::heal(&w.dir, JOB).unwrap();
    w.wait("the quorum to answer", || w.lattice.leader().is_ok_and(|leader| leader.is_some()) && w.lattice.nodes().is_ok());
    let (next, following) = submit(w, &["--cores", "1", "--", "/bin/true"]);
    assert_eq!((following, job(w, &id)), (number + 1, number));
    assert_eq!(text(&w.completed(&number.to_string()), "id"), id);
    w.completed(&next);
}
