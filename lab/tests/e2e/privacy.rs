//! With `private: true` a user sees neither the names nor the owners of other users' jobs. `nobody` has a job, and
//! `daemon` tries to see it.

use crate::harness::{DAEMON, Group, NOBODY, World};
use crate::watches::Watching;
use lattice_lab::lattice::text;
use lattice_lab::process::Finished;
use libtest_mimic::Trial;
use serde_json::Value;

static PRIVACY: Group =
    Group { theme: "privacy", name: "private", nodes: 3, quorum: 1, tweak: |options| options.agent_lines = "private: true\n".to_owned() };

pub fn trials() -> Vec<Trial> {
    vec![
        PRIVACY.test("a_user_sees_where_others_jobs_run_but_not_whose_they_are", &[], looked_at),
        PRIVACY.test("a_watch_shows_no_more_than_a_list", &[], watched),
        PRIVACY.test("work_of_root_sees_neither_names_nor_owners_of_other_jobs", &[], from_within),
    ]
}

/// The job's name and its owner, which must not be visible.
const NAME: &str = "merger";
const OWNER: &str = "nobody";

fn hidden_job(w: &World) -> String {
    let submitted = w.run_as(NOBODY, &["submit", "-o", "name", "--name", NAME, "-w", "n1", "--", "/bin/sleep", "600"]);
    assert_eq!(submitted.code(), 0, "{}", submitted.err());
    let id = submitted.out().trim().to_owned();
    w.running(&id);
    id
}

fn end(w: &World, id: &str) {
    w.ok(&["cancel", id]);
    w.ended(id);
}

/// Whether the text contains the job's name or its owner. One health finding contains the word "nobody" as well.
fn names_it(text: &str) -> bool {
    text.contains(NAME) || text.replace("nobody keeps the kernel's clock", "").contains(OWNER)
}

/// Runs a command as `daemon`. Its output must contain neither the job's name nor its owner.
fn seen(w: &World, args: &[&str]) -> Finished {
    let done = w.run_as(DAEMON, args);
    let all = done.out() + &done.err();
    assert!(!names_it(&all), "{args:?}: {all}");
    done
}

fn the_one<'a>(list: &'a Value, id: &str) -> &'a Value {
    let all = list.as_array().or_else(|| list["allocations"].as_array()).unwrap_or_else(|| panic!("{list}"));
    all.iter().find(|a| a["id"] == id).unwrap_or_else(|| panic!("{id} is not in {list}"))
}

fn looked_at(w: &World) {
    let id = hidden_job(w);
    let list: Value = serde_json::from_str(&seen(w, &["status", "--all", "-o", "json"]).out()).unwrap();
    let shown = the_one(&list, &id);
    assert_eq!((text(shown, "state"), &shown["nodes"]), ("Running".to_owned(), &serde_json::json!(["n1"])));
    assert!(["name", "owner", "tenant", "reason", "status_message"].iter().all(|field| shown[field].is_null()), "{shown}");
    assert!(!shown["started_at"].is_null(), "{shown}");
    let table = seen(w, &["status", "--all", "-o", "wide"]).out();
    let row = table.lines().find(|line| line.starts_with(&id[..8])).unwrap_or_else(|| panic!("{table}"));
    assert!(row.split_whitespace().nth(2) == Some("—") && row.contains("Running") && row.contains("n1"), "{row}");

    for filter in [["--name", NAME], ["--user", OWNER]] {
        let found = w.run_as(DAEMON, &[&["status", "--all", "-o", "name"], &filter[..]].concat());
        assert_eq!((found.code(), found.out().as_str()), (0, ""), "{filter:?} finds nothing of others: {}", found.err());
    }
    for command in ["status", "explain", "logs", "top", "cancel"] {
        let refused = seen(w, &[command, &id]);
        assert!(refused.code() == 4 && refused.err().contains("belongs to another user"), "{command}: {}", refused.err());
    }
    for condition in ["any", "mutex"] {
        let depends = seen(w, &["submit", "--depends-on", &format!("{id}:{condition}"), "--", "/bin/true"]);
        assert!(depends.code() == 3 && depends.err().contains("it does not exist, or it ended"), "{condition}: {}", depends.err());
    }
    let status: Value = serde_json::from_str(&seen(w, &["node", "status", "-o", "json"]).out()).unwrap();
    let local = the_one(&status, &id);
    assert!(local["name"].is_null() && local["owner"].is_null() && !local["phase"].is_null(), "{local}");
    for more in [&["nodes", "-o", "json"][..], &["node", "list", "-o", "wide"], &["session", "list", "--all"]] {
        assert_eq!(seen(w, more).code(), 0, "{more:?}");
    }

    // Waiting work is hidden like running work.
    let waits = w.run_as(NOBODY, &["submit", "-o", "name", "--name", NAME, "-w", "n1", "--", "/bin/true"]).out().trim().to_owned();
    w.wait("the queue", || seen(w, &["vcluster", "queue", "-o", "name"]).out() == format!("{waits}\n"));
    let queue: Value = serde_json::from_str(&seen(w, &["vcluster", "queue", "-o", "json"]).out()).unwrap();
    let shown = the_one(&queue, &waits);
    assert!(["name", "owner", "tenant", "status_message", "score"].iter().all(|field| shown[field].is_null()), "{shown}");
    for more in [&["vcluster", "queue", "-o", "wide"][..], &["explain", "--queue"], &["vcluster", "default", "-o", "json"]] {
        assert!(seen(w, more).out().contains(&waits[..8]), "{more:?}");
    }
    let chart = seen(w, &["vcluster", "default"]).out();
    assert!([&id, &waits].iter().all(|id| chart.contains(&format!("\n{}  —  ", &id[..8]))), "{chart}");
    let own = w.run_as(NOBODY, &["vcluster", "default"]).out();
    assert!(own.contains(NAME) && w.ok(&["vcluster", "default"]).contains(NAME), "{own}");
    w.ok(&["cancel", &waits]);

    // The owner and operators see everything.
    let own: Value = serde_json::from_str(&w.run_as(NOBODY, &["status", "--all", "-o", "json"]).out()).unwrap();
    let all: Value = serde_json::from_str(&w.ok(&["status", "--all", "--name", NAME, "-o", "json"])).unwrap();
    for list in [own, all] {
        let full = the_one(&list, &id);
        assert_eq!((text(full, "name"), text(full, "owner")), (NAME.to_owned(), OWNER.to_owned()));
    }
    end(w, &id);
}

fn watched(w: &World) {
    let watching = Watching::begin(w, "hidden", &["status", "--all", "--watch", "-o", "json"], Some(DAEMON));
    let id = hidden_job(w);
    let is_seen = |state: &str| {
        let lines = watching.lines();
        lines.iter().any(|line| line.to_string().contains(&id) && line.to_string().contains(state))
    };
    w.wait("the watch to show that it runs", || is_seen("Running"));
    end(w, &id);
    w.wait("the watch to show its end", || is_seen("Cancelled"));
    for line in watching.lines() {
        assert!(!names_it(&line.to_string()), "{line}");
    }
}

fn from_within(w: &World) {
    let id = hidden_job(w);
    let lattice = w.dir.join("bin/lattice");
    let body = format!("{} status --all -o json", lattice.display());
    let looks = w.submit(&["-w", "n2", "--", "/bin/sh", "-c", &body]);
    w.completed(&looks);
    let log = w.ok(&["logs", &looks]);
    assert!(log.contains(&id) && !names_it(&log), "{log}");
    end(w, &id);
}
