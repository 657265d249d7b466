//! The daemons' logs, as a log collector reads them.

use crate::harness::{Folder, JOB, alone, binaries, close, fresh_dir, lab_program};
use lattice_lab::cluster::Cluster;
use lattice_lab::down::Guard;
use lattice_lab::lattice::Lattice;
use lattice_lab::process::{self, until};
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub fn trials() -> Vec<Trial> {
    vec![
        alone("daemon_logs::each_line_is_an_object_with_the_documents_fields", &[], objects),
        alone("daemon_logs::a_form_that_there_is_not_and_a_bad_configuration_are_said", &[], refused),
    ]
}

/// Every line of a log; each must be an object of this component and node.
fn lines(log: &Path, component: &str, node: &str) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap();
    // The last line may be incomplete.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let lines: Vec<Value> = whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
    for line in &lines {
        let text = |key: &str| line[key].as_str().unwrap_or_else(|| panic!("no {key}: {line}"));
        assert!(text("timestamp").ends_with('Z') && text("timestamp").contains('T'), "{line}");
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&text("level")), "{line}");
        assert!(!text("message").is_empty(), "{line}");
        assert_eq!((text("component"), text("node_id")), (component, node), "{line}");
    }
    lines
}

fn objects() {
    close();
    binaries();
    let dir = fresh_dir("objects");
    let guard = Guard::new(&dir);
    let mut up = Command::new(lab_program());
    up.args(["up", "--no-build", "--nodes", "1", "--quorum", "1", "--dir"]).arg(&dir);
    // Healthy allocations are logged only at level debug.
    up.env("LATTICE_LOG_FORMAT", "json").env("LATTICE_LOG", "info,openraft=off,lattice_allocation=debug");
    let done = process::run(&mut up, Duration::from_secs(60)).unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
    let cluster = Cluster::load(&dir).unwrap();
    let lattice = Lattice::to(&cluster, "n1").unwrap();
    let id = lattice.ok(&["submit", "-o", "name", "--cores", "1", "--", "true"]).unwrap().trim().to_owned();
    lattice.ended_within(&id, JOB).unwrap();
    let logs = [(&cluster.nodes[0].daemon.log, "agent", "n1"), (&cluster.members[0].daemon.log, "quorum", "member-1")];
    let all = || logs.map(|(log, component, node)| lines(log, component, node));
    for lines in all() {
        assert!(lines.iter().any(|line| line["message"] == "ready"), "{lines:#?}");
    }
    let of_work = |line: &Value| line["allocation_id"] == id.as_str();
    let is_logged = until(JOB, || all()[0].iter().any(of_work));
    assert!(is_logged && all()[0].iter().all(|line| line["allocation"].is_null()), "{:#?}", all()[0]);
    guard.down(JOB).unwrap();
}

fn refused() {
    let folder = Folder::new("forms");
    let config = folder.0.join("agent.yaml");
    fs::write(&config, "node_idd: n1\n").unwrap();
    for name in ["lattice-agent", "lattice-quorum"] {
        let program = || Command::new(binaries().dir.join(name));
        let run = |variable: &str, value: &str| {
            let mut command = program();
            process::run(command.arg("--config").arg(&config).env(variable, value), JOB).unwrap()
        };
        let unknown = run("LATTICE_LOG_FORMAT", "xml");
        assert!(unknown.code() == 1 && unknown.err().contains("`text` or `json`"), "{}", unknown.err());
        let unknown = run("LATTICE_LOG", "info,,openraft=loud");
        assert!(unknown.code() == 1 && unknown.err().contains("LATTICE_LOG is \"info,,openraft=loud\": "), "{}", unknown.err());
        let help = process::run(program().arg("--help"), JOB).unwrap().out();
        assert!(["LATTICE_LOG  ", "LATTICE_LOG_FORMAT  "].iter().all(|variable| help.contains(variable)), "{help}");
        let bad = run("LATTICE_LOG_FORMAT", "json");
        let line: Value = serde_json::from_str(&bad.err()).unwrap_or_else(|e| panic!("{e}: {}", bad.err()));
        assert!(bad.code() == 1 && line["level"] == "ERROR" && line["error"].to_string().contains("node_idd"), "{line}");
    }
}
