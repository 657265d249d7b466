//! DAGs: a file of steps is submitted at once, and its steps run in their order.

use crate::harness::{Folder, Group, NOBODY, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;

static DAGS: Group = Group::large("dags");

pub fn trials() -> Vec<Trial> {
    vec![
        DAGS.test("the_steps_of_a_file_run_in_their_order_and_a_failure_takes_its_branch", &[], pipeline),
        DAGS.test("what_is_no_graph_is_refused_as_a_whole", &[], refused),
        DAGS.test("a_dry_run_shows_the_graph_and_submits_nothing", &[], dry_run),
        DAGS.test("a_thousand_steps_are_one_submission", &[], thousand),
        DAGS.test("a_cancelled_dag_begins_nothing_more_and_only_its_owner_cancels_it", &[], cancelled),
        DAGS.test("a_leaders_death_lets_each_step_begin_once", &[], leader_killed),
    ]
}

/// Files in which steps write what they do, and for which they wait.
struct Files(Folder);

impl Files {
    fn new() -> Self {
        Self(Folder::new("dags"))
    }

    fn path(&self, name: &str) -> String {
        self.0.0.join(name).to_string_lossy().into_owned()
    }

    fn writes(&self, line: &str) -> String {
        format!("echo {line} >> {}", self.path("lines"))
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.path("lines")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn waits(&self, gate: &str) -> String {
        format!("while ! test -e {}; do sleep 0.05; done", self.path(gate))
    }

    fn open(&self, gate: &str) {
        fs::write(self.path(gate), "").unwrap();
    }

    /// A file with these steps; returns its path.
    fn workflow(&self, name: &str, steps: &[String]) -> String {
        let path = self.path(&format!("{name}.yaml"));
        fs::write(&path, format!("name: {name}\nallocations:\n{}", steps.concat())).unwrap();
        path
    }
}

/// A step that runs this shell command.
fn step(name: &str, body: &str, on: &[&str]) -> String {
    let mut text = format!("  - name: {name}\n    entrypoint: [/bin/sh, -c, {}]\n    walltime: 5m\n    requeue: never\n", json!(body));
    if !on.is_empty() {
        text += "    depends_on:\n";
        on.iter().for_each(|edge| writeln!(text, "      - {edge}").unwrap());
    }
    text
}

fn submit(w: &World, file: &str) -> String {
    let id = w.ok(&["dag", "submit", "-o", "name", file]);
    id.trim().to_owned()
}

/// Members that apply a thousand ends at once, on a machine that does other things too, may not answer in time.
fn dag(w: &World, id: &str) -> Value {
    let mut found = None;
    w.wait("an answer about the DAG", || {
        let done = w.run(&["dag", "status", id, "-o", "json"]);
        assert!([0, 5].contains(&done.code()), "{}", done.err());
        found = (done.code() == 0).then(|| serde_json::from_str(&done.out()).unwrap());
        found.is_some()
    });
    found.unwrap()
}

fn ended(w: &World, id: &str) -> Value {
    w.wait("the DAG to end", || text(&dag(w, id), "state") != "Running");
    dag(w, id)
}

fn step_of<'a>(dag: &'a Value, name: &str) -> &'a Value {
    dag["steps"].as_array().unwrap().iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no {name}: {dag}"))
}

fn pipeline(w: &World) {
    let files = Files::new();
    let file = files.workflow(
        "training-pipeline",
        &[
            // The order of the file does not matter.
            step("evaluate", &files.writes("evaluate"), &["train: success"]),
            step("notify-failure", &files.writes("notify"), &["train: failure"]),
            step("clean", &files.writes("clean"), &["{ref: evaluate, condition: any}"]),
            step("train", &format!("{}; {}; exit 3", files.waits("go"), files.writes("train")), &["preprocess"]),
            step("preprocess", &files.writes("preprocess"), &[]),
        ],
    );
    let said = w.ok(&["dag", "submit", &file]);
    assert!(said.starts_with("Submitted DAG ") && said.ends_with(" (training-pipeline) with 5 steps\n"), "{said}");
    let listed = w.lattice.json(&["dag", "list", "--state=running"]).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["counts"]["failed"]), (&"training-pipeline".into(), &0.into()), "{listed}");
    let id = text(&listed[0], "id");

    let train = text(step_of(&dag(w, &id), "train"), "allocation");
    w.running(&train);
    let graph = w.ok(&["dag", "status", &id[..8], "--graph"]);
    let indent = " ".repeat("preprocess [Completed] → train [Running]".chars().count());
    let wanted =
        format!("preprocess [Completed] → train [Running] → evaluate [Pending] → clean [Pending]\n{indent} ↘ notify-failure [Pending]\n");
    assert_eq!(graph, wanted);
    let now = w.status(&train);
    assert_eq!((text(&now, "dag"), text(&now, "dag_step")), (id.clone(), "train".to_owned()));
    assert!(w.ok(&["status", &train]).contains(&format!("{}, step train\n", &id[..8])));
    let dot = w.ok(&["dag", "show", &id, "-o", "dot"]);
    assert!(dot.contains("  \"train\" -> \"notify-failure\" [label=\"failure\"];\n"), "{dot}");

    files.open("go");
    let over = ended(w, &id);
    assert_eq!(
        (text(&over, "state").as_str(), &over["counts"]["failed"]),
        ("Completed", &1.into()),
        "notify-failure was there for it: {over}"
    );
    let evaluate = step_of(&over, "evaluate");
    assert_eq!(evaluate["not_needed"], true, "{over}");
    let reason = format!("dependency_unmet: success of {} (train), which is Failed", &train[..8]);
    assert_eq!((text(evaluate, "state").as_str(), text(evaluate, "reason")), ("Cancelled", reason));
    let mut lines = files.lines();
    lines[2..].sort();
    assert_eq!(lines, ["preprocess", "train", "clean", "notify"]);
    let shown = w.ok(&["dag", "show", &id]);
    assert!(shown.contains("success of train") && shown.contains("any of evaluate"), "{shown}");
    for args in [&["dag", "list"][..], &["dag", "status", &id], &["dag", "show", &id]] {
        let narrow = w.lattice.command(args).env("COLUMNS", "80").output().unwrap();
        let shown = String::from_utf8(narrow.stdout).unwrap();
        assert!(shown.contains("train") && shown.lines().all(|line| line.chars().count() <= 80), "{args:?}: {shown}");
    }
    let audit = w.ok(&["audit", "query", "--type", "DagSubmitted"]);
    assert!(audit.contains(&format!("DAG {id} (training-pipeline) with 5 steps")), "{audit}");
}

fn refused(w: &World) {
    let files = Files::new();
    let before = w.lattice.allocations().unwrap().len();
    let says = |name: &str, steps: &[String], code: i32, piece: &str| {
        for args in [vec!["dag", "submit"], vec!["dag", "submit", "--dry-run"]] {
            let file = files.workflow(name, steps);
            let refused = w.run(&[&args[..], &[file.as_str()]].concat());
            assert!(refused.code() == code && refused.err().contains(piece), "{name}: {} {}", refused.code(), refused.err());
        }
    };
    let cycle = [step("a", "true", &["c"]), step("b", "true", &["a: any"]), step("c", "true", &["b"])];
    says("cycle", &cycle, 2, "error: the DAG is refused: these steps depend on each other: a -> b -> c -> a\n");
    let faults = [step("train", "true", &[]), step("train", "true", &[]), step("eval", "true", &["trian", "nowhere"])];
    says(
        "faults",
        &faults,
        2,
        "error: the DAG is refused for 3 reasons:\n  2 steps are named \"train\": give each a name of its own\n  \
         step \"eval\" depends on \"trian\", which is no step of this DAG and no known allocation; did you mean \"train\"?\n  \
         step \"eval\" depends on \"nowhere\", which is no step of this DAG and no known allocation\n",
    );
    let unknown = [format!("{}    nodse: 4\n", step("a", "true", &[]))];
    says("unknown", &unknown, 2, "unknown.yaml line 7: step a --nodse: there is no such option\nhint: did you mean --nodes?\n");
    let large = [format!("{}    nodes: 2000\n", step("a", "true", &[])), step("b", "true", &[])];
    says("large", &large, 2, "step \"a\": no nodes of this cluster could ever serve it");
    // Comparing such texts with each other would take minutes.
    let (long, other) = ("x".repeat(200_000), "y".repeat(200_000));
    let name = "error: the DAG is refused: step 1: a name has 1 to 128 bytes without control characters\n";
    says("long", &[step(&long, "true", &[]), step("b", "true", &[&other])], 2, name);
    let reference = "error: the DAG is refused: step 2 depends on a text of 200000 bytes; names and ids have 1 to 128 bytes\n";
    says("text", &[step("a", "true", &[]), step("b", "true", &[&other])], 2, reference);
    let count = "error: the DAG is refused: step 2 depends on 257 others; at most 256 are possible\n";
    says("many", &[step("a", "true", &[]), step("b", "true", &["a"; 257])], 2, count);
    let file = files.workflow("env", &[step("a", "true", &[])]);
    let with_env = w.lattice.command(&["dag", "submit", file.as_str()]).env("LARGE", "x".repeat(70_000)).output().unwrap();
    let said = String::from_utf8(with_env.stderr).unwrap();
    assert_eq!(with_env.status.code(), Some(2), "{said}");
    assert!(said.contains("error: the environment of the steps has ") && said.contains("; 65536 are possible\nhint: unset "), "{said}");

    w.ok(&["admin", "limits", "--dag-size", "2"]);
    let three = files.workflow("three", &["a", "b", "c"].map(|name| step(name, "true", &[])));
    let over = w.run(&["dag", "submit", &three]);
    w.ok(&["admin", "limits", "--dag-size", "1000"]);
    assert!(over.code() == 4 && over.err().contains("DAG exceeds maximum size (3 allocations, limit: 2)"), "{}", over.err());
    assert!(over.err().contains("lattice admin limits --dag-size N"), "{}", over.err());
    assert_eq!(w.lattice.allocations().unwrap().len(), before, "nothing was submitted");
    assert_eq!(w.run(&["dag", "status", "ffffffff"]).code(), 3);
}

fn dry_run(w: &World) {
    let files = Files::new();
    let before = w.lattice.allocations().unwrap().len();
    let file = files.workflow("dry", &[step("a", "true", &[]), step("b", "true", &["a"])]);
    let shown = w.ok(&["dag", "submit", "--dry-run", &file]);
    assert_eq!(shown, "Nothing was submitted; this would be submitted:\ndry with 2 steps\na [Pending] → b [Pending]\n");
    assert_eq!(w.lattice.allocations().unwrap().len(), before);
}

/// In each of ten layers one step runs, and 99 steps wait for a failure that does not come.
fn thousand(w: &World) {
    let files = Files::new();
    let layer = |number: usize| {
        let success = number.checked_sub(1).map(|before| format!("first-{before}: success"));
        let on: Vec<&str> = success.iter().map(String::as_str).collect();
        let first = step(&format!("first-{number}"), &files.writes(&number.to_string()), &on);
        let failure = format!("first-{number}: failure");
        let others = (0..99).map(|other| step(&format!("other-{number}-{other}"), "true", &[failure.as_str()]));
        std::iter::once(first).chain(others).collect::<String>()
    };
    let layers: Vec<String> = (0..10).map(layer).collect();
    let id = submit(w, &files.workflow("thousand", &layers));
    assert_eq!(dag(w, &id)["steps"].as_array().unwrap().len(), 1000);
    let over = ended(w, &id);
    assert_eq!((text(&over, "state").as_str(), &over["counts"]["not_needed"]), ("Completed", &990.into()), "{}", over["counts"]);
    assert_eq!(files.lines(), (0..10).map(|number| number.to_string()).collect::<Vec<_>>());
    let alone = step_of(&over, "other-9-98");
    assert_eq!((text(alone, "state").as_str(), &alone["not_needed"]), ("Cancelled", &true.into()));
}

fn cancelled(w: &World) {
    let files = Files::new();
    let steps = [
        step("first", &format!("{}; {}", files.writes("first"), files.waits("never")), &[]),
        step("always", &files.writes("always"), &["first: any"]),
        step("then", &files.writes("then"), &["first: success"]),
        step("alarm", &files.writes("alarm"), &["then: failure"]),
    ];
    let id = submit(w, &files.workflow("cancelled", &steps));
    w.wait("the first step to run", || files.lines() == ["first"]);
    let other = w.run_as(NOBODY, &["dag", "cancel", &id]);
    assert!(other.code() == 4 && other.err().contains(&format!("DAG {} belongs to ", &id[..8])), "{} {}", other.code(), other.err());
    assert_eq!(w.run_as(NOBODY, &["dag", "status", &id]).code(), 4);
    assert_eq!(text(&dag(w, &id), "state"), "Running");
    assert_eq!(w.ok(&["dag", "cancel", &id[..8]]), format!("DAG {} is cancelled: 4 steps had not ended\n", &id[..8]));
    let over = ended(w, &id);
    assert_eq!((text(&over, "state").as_str(), &over["counts"]["cancelled"]), ("Cancelled", &4.into()), "{over}");
    for name in ["first", "always", "then", "alarm"] {
        assert!(text(step_of(&over, name), "reason").starts_with("cancelled by "), "{name}: {over}");
    }
    assert_eq!(w.ok(&["dag", "cancel", &id]), format!("DAG {} had ended before: it is Cancelled\n", &id[..8]));
    assert_eq!(files.lines(), ["first"]);
    let audit = w.ok(&["audit", "query", "--type", "DagCancelRequested"]);
    assert!(audit.contains(&format!("DAG {id} (cancelled), 4 steps not ended")), "{audit}");
}

fn leader_killed(w: &World) {
    let files = Files::new();
    let mut steps = vec![step("first", &files.waits("go"), &[])];
    let names = ["a", "b", "c", "d"];
    steps.extend(names.map(|name| step(name, &files.writes(name), &["first"])));
    steps.push(step("last", &files.writes("last"), &names));
    let id = submit(w, &files.workflow("leader", &steps));
    w.running(&text(step_of(&dag(w, &id), "first"), "allocation"));
    let leader = w.leader();
    files.open("go");
    faults::kill_member(&w.dir, leader).unwrap();
    w.wait("the DAG to end", || w.lattice.json(&["dag", "status", &id]).is_ok_and(|dag| dag["state"] != "Running"));
    faults::start_member(&w.dir, leader).unwrap();
    let over = dag(w, &id);
    assert_eq!(text(&over, "state"), "Completed", "{over}");
    let mut lines = files.lines();
    assert_eq!(lines.pop().as_deref(), Some("last"));
    lines.sort();
    assert_eq!(lines, names, "each of them once");
    for name in names {
        let of = w.status(&text(step_of(&over, name), "allocation"));
        assert_eq!((&of["attempt"], &of["requeue_count"]), (&1.into(), &0.into()), "{of}");
    }
}
