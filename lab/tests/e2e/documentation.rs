//! Runs the commands of the tutorial and of the how-to pages as they are written. The tutorial starts
//! its own cluster with `lattice dev`; the pages for users share one cluster, and those for operators
//! another one. [`pages`] lists what each page needs, and which cannot run.

mod markdown;
mod pages;
mod shell;

use crate::harness::{Folder, Group, JOB, Need, World, alone, binaries, close};
use lattice_lab::down;
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Identity};
use lattice_lab::up::{self, Options};
use libtest_mimic::Trial;
use markdown::Command;
use nix::sys::signal::Signal;
use pages::{Manual, OPERATORS, Page, Plan, USERS};
use serde_json::Value;
use shell::Shell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Four nodes, because some pages use four.
static USERS_CLUSTER: Group = Group { theme: "documentation", name: "documentation", nodes: 4, quorum: 1, tweak: |_| {} };
/// Three members, because a page removes two.
static OPERATORS_CLUSTER: Group =
    Group { theme: "documentation", name: "documentation-operators", nodes: 4, quorum: 3, tweak: as_operators_pages };

/// The directory of the tutorial's cluster; the test replaces it by its own directory.
const TUTORIAL_DIR: &str = "/tmp/lattice-tutorial";
/// The placeholders for an allocation's id in pages.
const ID_PLACEHOLDERS: [&str; 3] = ["ID", "ID1", "ID2"];
/// Commands that show the settings of the cluster, which every page must leave unchanged.
const SETTINGS: [&[&str]; 5] = [
    &["admin", "tenant", "list"],
    &["admin", "limits"],
    &["admin", "network", "pool"],
    &["vcluster", "list", "-o", "name"],
    &["node", "admit", "--list", "-o", "name"],
];

pub fn trials() -> Vec<Trial> {
    vec![
        alone("documentation::every_page_for_users_is_run_or_named_with_a_reason", &[], || all_pages_are_planned(&USERS)),
        alone("documentation::every_page_for_operators_is_run_or_named_with_a_reason", &[], || all_pages_are_planned(&OPERATORS)),
        USERS_CLUSTER.test("commands_of_the_pages_for_users_work", &[], |w| run_pages(w, &USERS)),
        OPERATORS_CLUSTER.test("commands_of_the_pages_for_operators_work", &[Need::Curl], |w| run_pages(w, &OPERATORS)),
        alone("documentation::commands_of_the_tutorial_work", &[], tutorial),
    ]
}

/// The configuration that pages for operators assume.
fn as_operators_pages(options: &mut Options) {
    options.node_admission = up::LISTED;
    "backup: \"file://{dir}/backups\"\n".clone_into(&mut options.member_lines);
    "hooks: {wipe: {program: /bin/true}}\nconformance: {components: [{name: site image, file: \"{run}/site-image\"}]}\n"
        .clone_into(&mut options.agent_lines);
}

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

fn read(page: &str) -> String {
    let path = docs().join(page);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Manual {
    fn read(&self, page: &str) -> String {
        read(&format!("{}/{page}.md", self.folder))
    }
}

fn all_pages_are_planned(manual: &Manual) {
    let files = std::fs::read_dir(docs().join(manual.folder)).unwrap();
    let files: BTreeSet<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let planned: BTreeSet<String> = manual.pages.iter().map(|(name, _)| format!("{name}.md")).collect();
    assert_eq!(
        files, planned,
        "left are the files, right the pages of lab/tests/e2e/documentation/{}: name each of them there",
        manual.plans
    );
    for (name, _) in manual.pages.iter().filter(|(_, plan)| matches!(plan, Plan::NoCommands)) {
        let there = markdown::commands(&manual.read(name));
        assert!(there.is_empty(), "{name}.md has commands now: plan them in lab/tests/e2e/documentation/{}: {there:?}", manual.plans);
    }
}

fn run_pages(w: &World, manual: &Manual) {
    let before = settings(w);
    for (name, plan) in manual.pages {
        let page = match plan {
            Plan::Run(page) => page,
            Plan::CannotRun(why) => {
                println!("not run: {name}.md: {why}");
                continue;
            }
            Plan::NoCommands => continue,
        };
        let folder = Folder::new("page");
        let shell = Shell::new(&folder.0, &binaries().dir, w.lattice.socket());
        let began = Instant::now();
        PageRun { w, name, page, shell, ids: BTreeMap::new() }.run(&manual.read(name));
        w.ok(&["cancel", "--all-mine"]);
        let cluster = w.cluster();
        w.wait(&format!("the work of {name}.md to be gone"), || down::leftovers(&cluster).is_empty());
        (page.restore)(w);
        up::wait_ready(&w.cluster(), JOB).unwrap_or_else(|e| panic!("after {name}.md: {e:#}"));
        process::until(JOB, || settings(w) == before);
        assert_eq!(settings(w), before, "left is what {name}.md leaves, right what was before it");
        println!("{name}.md: {:.1} s", began.elapsed().as_secs_f64());
    }
}

/// The settings of the cluster, and the holds of its nodes.
fn settings(w: &World) -> Vec<String> {
    let holds = |node: &Value| format!("{}: {}", text(node, "id"), node["holds"]);
    let nodes = w.lattice.json(&["nodes"]).unwrap_or_else(|e| panic!("{e:#}"));
    let nodes = nodes.as_array().unwrap().iter().map(holds);
    SETTINGS.into_iter().map(|command| w.ok(command)).chain(nodes).collect()
}

/// One page on the shared cluster.
struct PageRun<'a> {
    w: &'a World,
    name: &'a str,
    page: &'a Page,
    shell: Shell,
    /// The allocation that replaces each placeholder.
    ids: BTreeMap<&'static str, String>,
}

impl PageRun<'_> {
    fn run(mut self, markdown: &str) {
        for program in pages::PROGRAMS {
            self.shell.write_program(program, "#!/bin/sh\nexit 0\n");
        }
        self.shell.write_program("make-job", "#!/bin/sh\necho '#!/bin/sh'\n");
        for script in ["job.sh", "train.sh"] {
            self.shell.write_program(script, "#!/bin/sh\nsleep 0.1\n");
        }
        let script = self.page.script_of.map(|page| USERS.read(page)).and_then(|page| markdown::scripts(&page).pop());
        if let Some(script) = markdown::scripts(markdown).pop().or(script) {
            self.shell.write_program("train.sh", &script);
        }
        (self.page.prepare)(self.w);
        self.shell.ok("the cluster's folder", &format!("LAB={}", self.w.dir.display()));
        for command in self.page.before {
            self.shell.ok(&format!("before {}.md", self.name), command);
        }
        let all = markdown::commands(markdown);
        for (prefix, why) in self.page.but {
            assert!(all.iter().any(|c| c.text.starts_with(prefix)), "{}.md has no command {prefix:?} to leave out ({why})", self.name);
        }
        let left_out = |c: &Command| self.page.but.iter().any(|(prefix, _)| c.text.starts_with(prefix));
        let mut runs: Vec<Command> = all.into_iter().filter(|c| !left_out(c)).collect();
        assert!(!runs.is_empty(), "{}.md has no commands that are run", self.name);
        for (text, by) in self.page.replace {
            assert!(runs.iter().any(|c| c.text.contains(text)), "{}.md has no {text:?} to replace", self.name);
            runs.iter_mut().for_each(|c| c.text = c.text.replace(text, by));
        }
        match self.page.inside {
            Some(options) => self.run_inside(options, &runs),
            None => runs.iter().for_each(|command| self.command(command)),
        }
    }

    fn command(&mut self, command: &Command) {
        let mut words: Vec<String> = Vec::new();
        for word in command.text.split(' ') {
            let id = ID_PLACEHOLDERS.into_iter().find(|placeholder| *placeholder == word);
            words.push(match id {
                Some(placeholder) => self.allocation(placeholder, &command.text),
                None if word == "NAME" => pages::VCLUSTER.to_owned(),
                None => word.to_owned(),
            });
        }
        let (place, text) = (format!("{}.md:{}", self.name, command.line), words.join(" "));
        if self.page.endless.iter().any(|prefix| command.text.starts_with(prefix)) {
            self.shell.runs_until_interrupted(&place, &text);
        } else {
            let shown = self.shell.ok(&place, &text);
            command.assert_shape(&place, &shown);
        }
        if text.starts_with("lattice preempt ") {
            // Preempted work may still run for a moment, so later commands get new allocations.
            self.ids.clear();
        }
    }

    /// Runs all commands as the script of one allocation.
    fn run_inside(&self, options: &str, commands: &[Command]) {
        let commands: Vec<&str> = commands.iter().map(|command| command.text.as_str()).collect();
        self.shell.write_program("inside.sh", &format!("#!/bin/bash\nset -ex\n{}\n", commands.join("\n")));
        let place = format!("{}.md, inside an allocation", self.name);
        self.shell.ok(&place, &format!("lattice submit --wait {options} inside.sh || {{ code=$?; lattice logs @last; exit $code; }}"));
    }

    /// The allocation for this placeholder, in the state that the command needs.
    fn allocation(&mut self, placeholder: &'static str, command: &str) -> String {
        let submit = |work: &str| self.shell.ok(&format!("an allocation for {}.md", self.name), &format!("lattice submit -o name {work}"));
        let submit = |work: &str| submit(work).trim().to_owned();
        if command.starts_with("lattice hold ") {
            return submit("--wait-for-nodes --constraint no_such_feature -- true");
        }
        if command.starts_with("lattice resume ") {
            return submit("--hold -- true");
        }
        let there = self.ids.get(placeholder);
        let lives = |id: &&String| ["Pending", "Staging", "Running"].contains(&text(&self.w.status(id), "state").as_str());
        let id = there.filter(lives).cloned().unwrap_or_else(|| submit(self.page.work));
        if command.contains("--previous") {
            let attempts = || self.w.status(&id)["attempts"].as_array().map_or(0, Vec::len);
            self.w.wait("an attempt before the present one", || attempts() > 0);
        }
        self.w.running(&id);
        self.ids.insert(placeholder, id.clone());
        id
    }
}

/// The cluster of the tutorial, interrupted as by Ctrl-C at the latest when the test ends.
struct Dev(Identity);

impl Dev {
    fn start(words: &str, log: &Path) -> Self {
        let arguments: Vec<String> = words.split_whitespace().skip(1).map(str::to_owned).collect();
        Self(process::spawn_detached(&binaries().lattice(), &arguments, &[], log).unwrap())
    }

    fn interrupt(&self) -> bool {
        self.0.signal(Signal::SIGINT).unwrap();
        self.0.gone_within(JOB)
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        if !self.interrupt() {
            let _ = self.0.kill();
        }
    }
}

fn tutorial() {
    close();
    let folder = Folder::new("tutorial");
    let (dir, log) = (folder.0.join("dev"), folder.0.join("dev.log"));
    let page = read("tutorial.md").replace(TUTORIAL_DIR, &dir.to_string_lossy());
    let shell = Shell::new(&folder.0, &binaries().dir, &dir.join("agent.sock"));
    let mut dev = None;
    let commands = markdown::commands(&page);
    assert!(
        commands.iter().any(|command| command.text.starts_with("lattice dev ")),
        "tutorial.md starts no cluster: are its blocks `sh` or `console`?"
    );
    for (number, command) in commands.iter().enumerate() {
        let place = format!("tutorial.md:{}", command.line);
        // The last command removes what `lattice dev` made, after Ctrl-C.
        if number + 1 == commands.len() {
            let dev: Dev = dev.take().expect("the tutorial starts a cluster");
            assert!(dev.interrupt(), "`lattice dev` does not end after Ctrl-C: {}", process::tail(&log, 30));
        }
        if command.text.starts_with("cargo build ") {
            continue;
        }
        if command.text.starts_with("lattice dev ") {
            dev = Some(Dev::start(&command.text, &log));
            let is_ready = || shell.run("lattice nodes -o json", Duration::from_secs(15)).out().contains("\"Ready\"");
            assert!(process::until(JOB, is_ready), "{place}: no node is Ready: {}", process::tail(&log, 30));
            continue;
        }
        let shown = shell.ok(&place, &command.text);
        command.assert_shape(&place, &shown);
    }
    assert!(!dir.exists(), "the tutorial leaves {} behind", dir.display());
}
