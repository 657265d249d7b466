//! Work on all nodes of a cluster whose agents are killed in each phase: while nodes prepare, while
//! it runs, and while they release their shares. It ends as promised, each rank ran once in each
//! attempt, and nothing of it is left.

use crate::harness::{Folder, Group, World, ended};
use crate::tree::narrow;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

static WIDE: Group = Group { theme: "wide", name: "tree", nodes: 7, quorum: 1, tweak: narrow };
const NODES: [&str; 7] = ["n1", "n2", "n3", "n4", "n5", "n6", "n7"];
/// The node whose agent the CLI uses: it has no failpoint.
const CALLER: &str = "n1";
/// The failpoints at which an agent dies before its node is prepared.
const STARTING: [&str; 3] = ["preparing-written", "shim-started", "prepared-report-unsent"];
/// The failpoints at which an agent dies during an end. The first one is the head's: it must have
/// reported the end, or the other nodes would not end their parts.
const ENDING: [&str; 3] = ["released-report-unsent", "undoing-written", "stopping-written"];

pub fn trials() -> Vec<Trial> {
    vec![
        WIDE.test("agents_killed_before_their_nodes_are_prepared_prepare_them", &[], starting),
        WIDE.test("all_agents_killed_while_it_runs_end_nothing", &[], running),
        WIDE.test("agents_killed_while_they_release_their_shares_release_them", &[], ending),
        WIDE.test("a_lost_node_requeues_it_or_fails_it_with_the_node_as_reason", &[], lost),
    ]
}

/// Work on all nodes that records each of its runs, and ends with 7 once the file `go` exists.
struct Wide<'a> {
    w: &'a World,
    folder: Folder,
    id: String,
}

impl<'a> Wide<'a> {
    fn submit(w: &'a World, more: &[&str]) -> Self {
        let folder = Folder::new("wide-job");
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let (ran, go) = (folder.0.join("ran"), folder.0.join("go"));
        let body = format!(
            "echo $LATTICE_NODE $LATTICE_REQUEUE_COUNT >> {}; while [ ! -e {} ]; do sleep 0.05; done; exit 7",
            ran.display(),
            go.display()
        );
        let id = w.submit(&[&["--nodes", "7"][..], more, &["--", "/bin/sh", "-c", &body]].concat());
        Self { w, folder, id }
    }

    /// The nodes on which ranks of this attempt began, in order; a node once for each of its ranks.
    fn ran(&self, attempt: u32) -> Vec<String> {
        let ran = fs::read_to_string(self.folder.0.join("ran")).unwrap_or_default();
        let suffix = format!(" {attempt}");
        let mut nodes: Vec<String> = ran.lines().filter_map(|line| line.strip_suffix(&suffix)).map(str::to_owned).collect();
        nodes.sort();
        nodes
    }

    fn wait_until_all_run(&self, attempt: u32) {
        self.w.wait(&format!("a rank on each node in attempt {attempt}"), || self.ran(attempt).len() >= NODES.len());
    }

    fn go(&self) {
        fs::write(self.folder.0.join("go"), "").unwrap();
    }

    /// Checks that the work ends with its own code after this many requeues.
    fn ends_with_7(&self, requeues: u32) {
        let over = self.w.ended(&self.id);
        let has = ["state", "exit_code", "requeue_count"].map(|key| text(&over, key));
        assert_eq!(has, ["Failed".to_owned(), "7".to_owned(), requeues.to_string()], "{over}");
        for attempt in 0..=requeues {
            assert_eq!(self.ran(attempt), NODES, "attempt {attempt}");
        }
        self.assert_gone();
    }

    /// Checks that its shares are free, and that nothing of it is left on any node.
    fn assert_gone(&self) {
        let w = self.w;
        w.wait("its shares to be free", || w.lattice.json(&["nodes"]).is_ok_and(|nodes| !nodes.to_string().contains(&self.id)));
        for node in NODES {
            let agent = w.at(node);
            w.wait(&format!("{node} to have no allocation and no pending report"), || {
                let status = agent.json(&["node", "status"]);
                status.is_ok_and(|s| s["allocations"] == serde_json::json!([]) && s["reports_pending"] == 0)
            });
        }
        w.assert_nothing_left();
        w.completed(&w.submit(&["--nodes", "7", "--", "/bin/true"]));
    }
}

/// Kills the agents of these nodes, and starts each again so that it dies at its failpoint.
fn arm(w: &World, points: &[(String, &str)]) {
    for (node, point) in points {
        faults::kill_node(&w.dir, node).unwrap();
        faults::begin_node(&w.dir, node, &[], &[("LATTICE_FAILPOINT", point)]).unwrap();
    }
}

fn log(w: &World, node: &str) -> PathBuf {
    w.cluster().node(node).unwrap().daemon.log.clone()
}

/// Waits until each of these agents has died at its failpoint.
fn die(w: &World, points: &[(String, &str)]) {
    let alive = |node: &str| w.cluster().node(node).unwrap().daemon.alive();
    w.wait("each agent to come to its failpoint", || points.iter().all(|(node, _)| !alive(node)));
    for (node, point) in points {
        let log = fs::read_to_string(log(w, node)).unwrap();
        assert!(log.contains(&format!("failpoint {point}: this process kills itself")), "{node} died, and not at {point}: {log}");
    }
}

/// Starts the agents of these nodes, all at once.
fn begin<'a>(w: &World, nodes: impl Iterator<Item = &'a str>) {
    for node in nodes {
        faults::begin_node(&w.dir, node, &[], &[]).unwrap();
    }
}

fn starting(w: &World) {
    let nodes = NODES.into_iter().filter(|node| *node != CALLER).map(str::to_owned);
    let points: Vec<(String, &str)> = nodes.zip(STARTING.into_iter().cycle()).collect();
    arm(w, &points);
    let wide = Wide::submit(w, &[]);
    die(w, &points);
    let now = w.status(&wide.id);
    assert_eq!(text(&now, "state"), "Staging", "{now}");
    assert!(wide.ran(0).is_empty(), "a rank began before all nodes were prepared: {:?}", wide.ran(0));
    begin(w, points.iter().map(|(node, _)| node.as_str()));
    wide.wait_until_all_run(0);
    wide.go();
    wide.ends_with_7(0);
}

fn running(w: &World) {
    let wide = Wide::submit(w, &[]);
    wide.wait_until_all_run(0);
    let before = w.status(&wide.id);
    for node in NODES {
        faults::kill_node(&w.dir, node).unwrap();
    }
    begin(w, NODES.into_iter());
    w.wait("the caller's agent to answer", || w.lattice.ok(&["node", "status"]).is_ok());
    let now = w.status(&wide.id);
    assert_eq!((text(&now, "state").as_str(), &now["epoch"]), ("Running", &before["epoch"]), "{now}");
    wide.go();
    wide.ends_with_7(0);
}

fn ending(w: &World) {
    let wide = Wide::submit(w, &[]);
    wide.wait_until_all_run(0);
    let now = w.status(&wide.id);
    let nodes = now["nodes"].as_array().unwrap().iter().map(|node| node.as_str().unwrap().to_owned());
    let points: Vec<(String, &str)> = nodes.zip(ENDING.into_iter().cycle()).filter(|(node, _)| node != CALLER).collect();
    arm(w, &points);
    wide.go();
    die(w, &points);
    // It has ended, and the nodes have not given their shares back.
    let over = w.status(&wide.id);
    assert!(ended(&over), "{over}");
    let next = w.submit(&["--nodes", "7", "--", "/bin/true"]);
    assert_eq!(text(&w.status(&next), "state"), "Pending");
    begin(w, points.iter().map(|(node, _)| node.as_str()));
    w.completed(&next);
    wide.ends_with_7(0);
}

fn lost(w: &World) {
    let lose = |wide: &Wide<'_>| {
        wide.wait_until_all_run(0);
        let runs = faults::lose_node(&w.dir, "n7").unwrap();
        assert!(matches!(&runs[..], [run] if run.starts_with(&wide.id)), "{runs:?}");
        faults::start_node(&w.dir, "n7").unwrap();
    };
    let wide = Wide::submit(w, &[]);
    lose(&wide);
    wide.wait_until_all_run(1);
    wide.go();
    wide.ends_with_7(1);

    let wide = Wide::submit(w, &["--requeue=never"]);
    lose(&wide);
    let over = w.ended(&wide.id);
    assert!(text(&over, "state") == "Failed" && text(&over, "reason").starts_with("node_lost n7: "), "{over}");
    assert_eq!((wide.ran(0), wide.ran(1)), (NODES.map(str::to_owned).to_vec(), vec![]));
    wide.assert_gone();
}
