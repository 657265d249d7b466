//! What people see at a terminal: lists, colours, one screen that is redrawn, completion, manual pages, settings.

use crate::harness::{Folder, Group, NOBODY, World};
use crate::tty::Tty;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

static PEOPLE: Group = Group::small("people");

pub fn trials() -> Vec<Trial> {
    vec![
        PEOPLE.test("lists_fit_on_a_terminal_of_80_columns", &[], lists),
        PEOPLE.test("states_have_colours_on_a_terminal_alone", &[], colours),
        PEOPLE.test("a_list_is_counted_sorted_folded_and_cut_by_time", &[], selections),
        PEOPLE.test("a_watched_list_is_one_screen_on_a_terminal_and_lines_in_a_pipe", &[], watched),
        PEOPLE.test("bash_completes_what_the_cluster_has_and_the_user_may_see", &[], completion),
        PEOPLE.test("manual_pages_of_all_commands_are_written", &[], manual),
        PEOPLE.test("options_before_the_command_choose_settings_and_talk", &[], settings),
    ]
}

/// The output of a command on a terminal of 80 columns.
fn on_terminal(mut command: Command) -> String {
    command.env_remove("COLUMNS");
    Tty::start_sized(command, 24, 80).ended_with(0)
}

/// Its lines, without the messages on stderr, which a terminal breaks.
fn table_lines(shown: &str) -> Vec<&str> {
    shown.lines().map(|line| line.trim_end_matches('\r')).filter(|line| !line.starts_with("lattice: ")).collect()
}

fn lists(w: &World) {
    let long = "a-name-that-is-much-longer-than-any-column-of-a-narrow-terminal";
    let runs = w.submit(&["-N", "3", "--walltime=1h", "--name", long, "--", "/bin/sleep", "600"]);
    let held = w.submit(&["--hold", "--walltime=100h", "--name", long, "--", "/bin/true"]);
    w.running(&runs);
    for args in [
        &["status"][..],
        &["status", "--all"],
        &["nodes"],
        &["node", "list"],
        &["node", "history", "n1"],
        &["vcluster", "list"],
        &["vcluster", "queue", "default"],
        &["explain", "--queue"],
        &["usage"],
        &["checkpoint", "list", &runs],
        &["service", "list"],
        &["network", "list"],
        &["lease", "list"],
        &["dag", "list"],
        &["session", "list"],
        &["admin", "tenant", "list"],
        &["admin", "role", "list"],
        &["gossip", "members"],
        &["gossip", "keys"],
        &["quorum", "members"],
        &["audit", "query", "--limit", "20"],
    ] {
        let shown = on_terminal(w.lattice.command(args));
        for line in table_lines(&shown) {
            assert!(line.chars().count() <= 80, "{args:?}: {line:?} in\n{shown}");
        }
        assert!(!shown.contains('\u{1b}'), "NO_COLOR is set: {args:?} {shown:?}");
    }
    let wide = on_terminal(w.lattice.command(&["status", "-o", "wide"]));
    assert!(wide.contains(long), "{wide}");
    let narrow = on_terminal(w.lattice.command(&["nodes"]));
    assert!(!narrow.contains("FEATURES") && on_terminal(w.lattice.command(&["nodes", "-o", "wide"])).contains("FEATURES"), "{narrow}");
    let piped = w.ok(&["status"]);
    assert!(piped.contains(long), "a pipe has no width: {piped}");
    w.ok(&["cancel", &runs, &held]);
    w.ended(&runs);
}

fn colours(w: &World) {
    const GREEN: &str = "\u{1b}[32mReady\u{1b}[0m";
    let coloured = |args: &[&str], set: &[(&str, &str)]| {
        let mut command = w.lattice.command(args);
        command.env_remove("NO_COLOR").envs(set.iter().copied());
        on_terminal(command)
    };
    let nodes = coloured(&["nodes"], &[]);
    assert!(nodes.contains(GREEN), "{nodes:?}");
    for line in table_lines(&nodes.replace("\u{1b}[32m", "").replace("\u{1b}[0m", "")) {
        assert!(line.chars().count() <= 80 && !line.contains('\u{1b}'), "{line:?}");
    }
    assert!(!coloured(&["--no-color", "nodes"], &[]).contains('\u{1b}'));
    assert!(!coloured(&["nodes"], &[("NO_COLOR", "1")]).contains('\u{1b}'));
    let dir = Folder::new("colour");
    let file = dir.0.join("config.yaml").display().to_string();
    std::fs::write(&file, "color: false\n").unwrap();
    assert!(!coloured(&["nodes"], &[("LATTICE_CONFIG", file.as_str())]).contains('\u{1b}'));
    let mut piped = w.lattice.command(&["nodes"]);
    let piped = piped.env_remove("NO_COLOR").env("TERM", "xterm").output().unwrap();
    assert!(piped.status.success() && !piped.stdout.contains(&0x1b));
}

fn selections(w: &World) {
    let tag = ["--tag", "for=selections"];
    let held = |name: &str, walltime: &str| {
        w.submit(&[&["--hold", "--walltime", walltime, "--name", name][..], &tag, &["--", "/bin/true"]].concat())
    };
    let (c, a, b) = (held("c", "3h"), held("a", "1h"), held("b", "2h"));
    let ended = w.submit(&[&["--name", "z"][..], &tag, &["--", "/bin/true"]].concat());
    w.completed(&ended);
    let data = |args: &[&str]| -> Value { w.lattice.json(&[&["status"], &tag[..], args].concat()).unwrap_or_else(|e| panic!("{e:#}")) };
    let want = json!([
        { "state": "Pending", "allocations": 3, "nodes": 3 },
        { "state": "Completed", "allocations": 1, "nodes": null },
    ]);
    assert_eq!(data(&["--count"]), want);
    let names = |args: &[&str]| -> Vec<String> { data(args).as_array().unwrap().iter().map(|one| text(one, "name")).collect() };
    assert_eq!(names(&["--sort", "name"]), ["a", "b", "c", "z"]);
    assert_eq!(names(&["--sort=-name"]), ["z", "c", "b", "a"]);
    assert_eq!(names(&["--sort=-walltime", "--state=pending"]), ["c", "b", "a"]);
    assert_eq!(names(&["--sort=-name", "--limit=2"]), ["z", "c"], "it is sorted before it is cut");
    assert_eq!(names(&["--since", "1h"]).len(), 4);
    assert_eq!(names(&["--since", "2999-01-01T00:00:00Z"]), Vec::<String>::new());
    let same = [held("alike", "1h"), held("alike", "1h"), held("alike", "1h")];
    let shown = on_terminal(w.lattice.command(&["status", "--name", "alike"]));
    assert!(shown.contains(" ×3 ") && shown.contains("--each"), "{shown}");
    let each = on_terminal(w.lattice.command(&["status", "--name", "alike", "--each"]));
    assert!(!each.contains('×') && same.iter().all(|id| each.contains(&id[..8])), "{each}");
    let piped = w.ok(&["status", "--name", "alike"]);
    assert!(same.iter().all(|id| piped.contains(&id[..8])), "{piped}");
    w.ok(&["cancel", &a, &b, &c, &same[0], &same[1], &same[2]]);
}

fn watched(w: &World) {
    let id = w.submit(&["--hold", "--name", "watched", "--", "/bin/sleep", "600"]);
    let mut tty = Tty::start_sized(w.lattice.command(&["status", "--name", "watched", "--watch"]), 24, 80);
    tty.sees("\u{1b}[2J\u{1b}[H");
    tty.sees("1 Pending");
    tty.sees(&id[..8]);
    w.ok(&["resume", &id]);
    tty.sees("1 Running");
    w.ok(&["cancel", &id]);
    tty.sees("1 Cancelled");
    drop(tty);
    let second = w.submit(&["--name", "watched", "--", "/bin/true"]);
    let lines = w.ok(&["status", &second, "--watch"]);
    assert!(lines.starts_with("ID ") && lines.contains("Completed") && !lines.contains('\u{1b}'), "{lines}");
}

/// Bash's completions of the last of these words for this user, by the script of `lattice completion bash`.
fn offered(w: &World, uid: u32, words: &[&str]) -> Vec<String> {
    let script = w.ok(&["completion", "bash"]);
    let (last, before) = (words.len() - 1, words[words.len() - 2]);
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let ask = format!(
        "\nregistered=$(complete -p lattice)\nregistered=${{registered#*-F }}\nCOMP_WORDS=({})\nCOMP_CWORD={last}\n\
         ${{registered%% *}} lattice '{}' '{before}'\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        quoted.join(" "),
        words[last],
    );
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile"]).env_clear().uid(uid).gid(uid).current_dir("/").env("HOME", "/nonexistent");
    command.env("PATH", format!("{}:/usr/bin:/bin", w.dir.join("bin").display()));
    command.env("LATTICE_ENDPOINT", format!("unix:{}", w.lattice.socket().display()));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all((script + &ask).as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && errors.is_empty(), "{words:?}: {errors}");
    String::from_utf8(done.stdout).unwrap().lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

fn completion(w: &World) {
    // Ids of the account's own work are completed, and no others.
    let submitted = w.run_as(NOBODY, &["submit", "-o", "name", "--hold", "--name", "mine", "--", "/bin/true"]);
    assert_eq!(submitted.code(), 0, "{}", submitted.err());
    let mine = submitted.out().trim().to_owned();
    let theirs = w.submit(&["--hold", "--name", "theirs", "--", "/bin/true"]);
    let short = mine[..8].to_owned();
    // A busy machine may need longer than a user waits.
    w.wait("an id to be completed", || offered(w, NOBODY, &["lattice", "cancel", &mine[..4]]).contains(&short));
    let all = offered(w, NOBODY, &["lattice", "logs", ""]);
    assert!(!all.iter().any(|value| value.starts_with(&theirs[..8])), "{all:?}");
    w.wait("nodes to be completed", || offered(w, NOBODY, &["lattice", "node", "drain", "n"]) == ["n1", "n2", "n3"]);
    w.wait("a vCluster to be completed", || offered(w, NOBODY, &["lattice", "submit", "--vcluster", "=", "def"]) == ["default"]);
    w.ok(&["admin", "tenant", "create", "completed"]);
    w.wait("a tenant to be completed", || offered(w, 0, &["lattice", "submit", "--tenant", "compl"]) == ["completed"]);
    w.ok(&["admin", "tenant", "delete", "completed"]);
    assert_eq!(offered(w, NOBODY, &["lattice", "--endpoint", "unix:/nonexistent/agent.sock", "cancel", &mine[..4]]), Vec::<String>::new());
    w.ok(&["cancel", &mine, &theirs]);
}

fn manual(w: &World) {
    let dir = Folder::new("man");
    w.ok(&["man", "--dir", &dir.0.display().to_string()]);
    for name in ["lattice", "lattice-submit", "lattice-node-drain", "lattice-admin-tenant-create"] {
        let page = std::fs::read_to_string(dir.0.join(format!("{name}.1"))).unwrap();
        for mark in [&format!(".TH {name} 1 ")[..], ".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
            assert!(page.contains(mark), "{name}: {mark}: {page}");
        }
    }
    assert_eq!(w.ok(&["man"]), std::fs::read_to_string(dir.0.join("lattice.1")).unwrap());
    let missing = w.run(&["man", "--dir", "/nonexistent/man1"]);
    assert!(missing.code() == 1 && missing.err().contains("the directory must exist"), "{}", missing.err());
}

fn settings(w: &World) {
    let verbose = w.run(&["-v", "nodes"]);
    assert_eq!(verbose.code(), 0);
    assert!(verbose.err().contains(" answers, after ") && verbose.err().contains("ListNodesResponse after "), "{}", verbose.err());
    assert_eq!(w.run(&["nodes"]).err(), "");
    let dir = Folder::new("settings");
    let file = dir.0.join("own.yaml").display().to_string();
    std::fs::write(&file, "output: name\n").unwrap();
    let want = "n1\nn2\nn3\n";
    assert_eq!(w.ok(&["--config", &file, "nodes"]), want);
    let by_variable = w.lattice.command(&["nodes"]).env("LATTICE_CONFIG", &file).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&by_variable.stdout), want);
    let missing = w.run(&["--config", "/nonexistent.yaml", "nodes"]);
    assert!(missing.code() == 2 && missing.err().contains("there is no file /nonexistent.yaml"), "{}", missing.err());
    let misplaced = w.run(&["-t", "physics", "nodes"]);
    assert!(misplaced.code() == 2 && misplaced.err().contains("not about one tenant"), "{}", misplaced.err());
    let id = w.submit(&["--hold", "--", "/bin/true"]);
    assert!(!w.ok(&["--tenant", "nobody-has-it", "status", "-o", "name"]).contains(&id));
    w.ok(&["cancel", &id]);
}
