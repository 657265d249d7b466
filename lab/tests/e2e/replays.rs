//! The trace of a cluster: captured with the CLI, and replayed by the lab under several weights.

use crate::harness::{Folder, Group, JOB, NOBODY, World, lab};
use lattice_lab::lattice::text;
use lattice_lab::process::Finished;
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::Path;

static REPLAYS: Group = Group::small("replays");

pub fn trials() -> Vec<Trial> {
    vec![
        REPLAYS.test("a_captured_trace_is_replayed_under_the_weights_of_two_files", &[], captures_and_replays),
        REPLAYS.test("a_trace_is_put_into_the_object_store_of_the_agent", &[], stores),
        REPLAYS.test("a_trace_is_for_operators_and_replaces_no_file", &[], refuses),
    ]
}

fn path(folder: &Folder, name: &str) -> String {
    folder.0.join(name).display().to_string()
}

/// Captures the last day.
fn capture(w: &World, file: &str) -> String {
    w.ok(&["admin", "trace", "capture", "--days", "1", "--file", file])
}

fn replay(trace: &str, files: &[&str], more: &[&str]) -> Finished {
    lab(&[&["replay", "--no-build", trace, "--weights"], files, more].concat(), JOB)
}

/// The measures, except for the planning times.
fn measures(trace: &str, files: &[&str]) -> Value {
    let done = replay(trace, files, &["--json"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let mut value: Value = serde_json::from_str(&done.out()).unwrap();
    for replay in value["replays"].as_array_mut().unwrap() {
        assert!(replay.as_object_mut().unwrap().remove("effort").is_some());
    }
    value
}

fn captures_and_replays(w: &World) {
    let folder = Folder::new("replays");
    let (trace, fair, training) = (path(&folder, "t.jsonl"), path(&folder, "fair.yaml"), path(&folder, "training.yaml"));
    for walltime in ["2m", "3m"] {
        w.completed(&w.submit(&["--name", "secret-work", "-N", "2", "--walltime", walltime, "--", "/bin/sleep", "1"]));
    }
    let group = w.submit(&["--name", "secret-work", "--task-group=0-2", "--walltime", "2m", "--", "/bin/true"]);
    w.completed(&group);
    let lanes = w.ok(&["status", &group, "--lanes", "-o", "name"]);
    let waits = w.submit(&["--name", "secret-work", "--hold", "--walltime", "4m", "--", "/bin/true"]);
    let captured = w.run(&["admin", "trace", "capture", "--days", "1", "--file", &trace]);
    w.ok(&["cancel", &waits]);
    let printed = captured.out();
    assert_eq!(captured.code(), 0, "{}", captured.err());
    assert!(printed.contains(" submissions, ") && printed.contains("t.jsonl: "), "{printed}");
    assert!(captured.err().contains("1 submission held: left out"), "{}", captured.err());
    let text = std::fs::read_to_string(&trace).unwrap();
    assert!(text.lines().next().unwrap().contains("lattice-trace/1"), "{text}");
    assert!(["secret-work", "/bin/sleep", "root"].iter().all(|word| !text.contains(word)), "{text}");
    let of = |id: &str| text.lines().filter(|line| line.contains(id)).count();
    assert_eq!(of(&waits), 0, "it is held: {text}");
    assert_eq!((of(&group), lanes.lines().count()), (0, 3), "its lanes get nodes: {text}");
    assert!(lanes.lines().all(|lane| of(lane) > 0), "{lanes}{text}");
    let header = text.lines().next().unwrap();
    assert!(header.contains("\"budget_period_days\":90") && header.contains("\"checkpoint_bytes_per_second\":"), "{header}");

    std::fs::write(&fair, "default:\n  fair-share: 0.35\n").unwrap();
    std::fs::write(&training, "default:\n  profile: ml-training\n").unwrap();
    let drawings = path(&folder, "drawings");
    let done = replay(&trace, &[&fair, &training], &["--svg", &drawings]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let out = done.out();
    let names = out.lines().find(|line| line.starts_with("weights ")).unwrap_or_else(|| panic!("{out}"));
    let places: Vec<Option<usize>> = ["own", "fair.yaml", "training.yaml"].map(|name| names.find(name)).into();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{out}");
    assert!(out.contains("on 3 nodes") && out.contains("nodes in use, %"), "{out}");
    assert!(out.contains("use before the trace is not known"), "{out}");
    assert!(Path::new(&drawings).join("replay-waits.svg").exists());

    let first = measures(&trace, &[&fair, &training]);
    assert_eq!(first, measures(&trace, &[&fair, &training]), "the same trace and files give the same measures");
    assert!(first["replays"][0]["submitted"].as_u64().unwrap() >= 2, "{first}");

    std::fs::write(&fair, "nowhere:\n  fair-share: 0.35\n").unwrap();
    let refused = replay(&trace, &[&training, &fair], &[]);
    assert!(refused.code() != 0 && refused.out().is_empty(), "{}", refused.out());
    assert!(refused.err().contains("fair.yaml: nowhere: the trace has no such vCluster"), "{}", refused.err());
    std::fs::write(&trace, &text[..text.len() - 1]).unwrap();
    let refused = replay(&trace, &[&training], &[]);
    assert!(refused.code() != 0 && refused.err().contains("the last line is cut"), "{}", refused.err());
}

fn stores(w: &World) {
    const CAPTURE: [&str; 6] = ["admin", "trace", "capture", "--days", "1", "--store"];
    let folder = Folder::new("replays");
    w.completed(&w.submit(&["--walltime", "1m", "--", "/bin/true"]));
    let capture = || {
        let captured = w.lattice.json(&CAPTURE).unwrap_or_else(|e| panic!("{e:#}"));
        assert!(captured["file"].is_null() && captured["submitted"].as_u64() > Some(0), "{captured}");
        text(&captured, "url")
    };
    let urls = [capture(), capture()];
    assert_ne!(urls[0], urls[1]);
    let fair = path(&folder, "fair.yaml");
    std::fs::write(&fair, "default:\n  fair-share: 0.35\n").unwrap();
    for url in &urls {
        let file = url.strip_prefix("file://").unwrap_or_else(|| panic!("{url}"));
        let stored = std::fs::read_to_string(file).unwrap();
        assert!(stored.lines().next().unwrap().contains("lattice-trace/1") && stored.ends_with("}\n"), "{stored}");
        let refused = replay(url, &[&fair], &[]);
        assert!(refused.code() != 0 && refused.err().contains("is a URL, and only files are replayed"), "{}", refused.err());
    }
    let done = replay(urls[1].trim_start_matches("file://"), &[&fair], &[]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let objects = std::fs::read_dir(w.dir.join("objects/traces")).unwrap().map(|object| object.unwrap().file_name());
    let mut objects: Vec<String> = objects.map(|name| name.into_string().unwrap()).collect();
    objects.sort_unstable();
    let mut names: Vec<&str> = urls.iter().filter_map(|url| url.rsplit('/').next()).collect();
    names.sort_unstable();
    assert_eq!(objects, names, "nothing else is left there");
    let both = w.run(&[&CAPTURE[..], &["--file", "-"]].concat());
    assert_eq!((both.code(), both.out().as_str()), (2, ""), "{}", both.err());
    let nobody = w.run_as(NOBODY, &CAPTURE);
    assert!(nobody.code() == 4 && nobody.out().is_empty(), "{} {}{}", nobody.code(), nobody.out(), nobody.err());
}

fn refuses(w: &World) {
    let folder = Folder::new("replays");
    w.completed(&w.submit(&["--walltime", "1m", "--", "/bin/true"]));
    let trace = path(&folder, "t.jsonl");
    capture(w, &trace);
    let again = w.run(&["admin", "trace", "capture", "--days", "1", "--file", &trace]);
    assert!(again.code() == 4 && again.err().contains("exists already"), "{}", again.err());
    let nobody = w.run_as(NOBODY, &["admin", "trace", "capture", "--days", "1", "--file", "-"]);
    assert!(nobody.code() == 4 && nobody.out().is_empty(), "{} {}{}", nobody.code(), nobody.out(), nobody.err());
    let piped = w.run(&["admin", "trace", "capture", "--days", "1", "--file", "-"]);
    assert!(piped.code() == 0 && piped.out().lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{}", piped.out());
}
