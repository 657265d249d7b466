//! `lattice top` without an allocation, as a person at a terminal sees it.

use crate::harness::{Group, JOB, World};
use crate::tty::Tty;
use lattice_lab::faults;
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::time::{Duration, Instant};

static CLUSTER_SCREEN: Group = Group::small("cluster_screen");

/// Longer than anything that the screen shows takes, also on a busy machine.
const SEEN_MAX: Duration = Duration::from_secs(60);
const ALTERNATE: &str = "\u{1b}[?1049h";
const USUAL: &str = "\u{1b}[?1049l";
const CURSOR: &str = "\u{1b}[?25h";

pub fn trials() -> Vec<Trial> {
    vec![
        CLUSTER_SCREEN.test("queue_nodes_filter_explanation_and_drain_by_keys_on_two_sizes", &[], by_keys),
        CLUSTER_SCREEN.test("the_screen_outlives_its_agent_and_says_that_it_is_gone", &[], outlives),
        CLUSTER_SCREEN.test("a_signal_restores_the_terminal", &[], signals),
        CLUSTER_SCREEN.test("it_is_refused_where_there_is_no_terminal", &[], refused),
    ]
}

/// The screen, put together from what the terminal received.
struct Watcher {
    tty: Tty,
    cells: Vec<Vec<char>>,
    row: usize,
    column: usize,
    received: String,
    /// The received part of an incomplete control sequence.
    rest: String,
}

impl Watcher {
    fn start(w: &World, node: &str, rows: u16, columns: u16) -> Self {
        let command = w.at(node).command(&["top", "--interval=1s"]);
        let tty = Tty::start_sized(command, rows, columns);
        let cells = vec![vec![' '; columns.into()]; rows.into()];
        Self { tty, cells, row: 0, column: 0, received: String::new(), rest: String::new() }
    }

    /// Waits until `is_so` is true for the screen.
    fn sees(&mut self, what: &str, is_so: impl Fn(&str) -> bool) {
        let until = Instant::now() + SEEN_MAX;
        loop {
            self.read();
            let text = self.text();
            if is_so(&text) {
                return;
            }
            assert!(Instant::now() < until, "waited in vain for {what}; the screen is\n{text}");
        }
    }

    fn shows(&mut self, piece: &str) {
        self.sees(piece, |text| text.contains(piece));
    }

    fn text(&self) -> String {
        self.cells.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned() + "\n").collect()
    }

    fn read(&mut self) {
        let output = self.tty.take_output();
        self.received.push_str(&output);
        let all = std::mem::take(&mut self.rest) + &output;
        let mut left = all.as_str();
        while let Some(c) = left.chars().next() {
            if c == '\u{1b}' {
                let Some(end) = left.char_indices().skip(2).find(|(_, c)| ('@'..='~').contains(c)).map(|(at, _)| at) else { break };
                self.control(&left[2..=end]);
                left = &left[end + 1..];
            } else {
                self.write(c);
                left = &left[c.len_utf8()..];
            }
        }
        self.rest = left.to_owned();
    }

    fn write(&mut self, c: char) {
        if let Some(cell) = self.cells.get_mut(self.row).and_then(|row| row.get_mut(self.column)) {
            *cell = c;
        }
        self.column += 1;
    }

    /// A sequence behind `ESC [`: the cursor is moved, or the screen is cleared; others do not matter here.
    fn control(&mut self, sequence: &str) {
        let (parameters, last) = sequence.split_at(sequence.len() - 1);
        match last {
            "H" => {
                let mut places = parameters.split(';').map(|place| place.parse::<usize>().unwrap_or(1) - 1);
                (self.row, self.column) = (places.next().unwrap_or(0), places.next().unwrap_or(0));
            }
            "J" => self.cells.iter_mut().for_each(|row| row.fill(' ')),
            _ => {}
        }
    }

    /// Checks that the program ended with this code and restored the terminal.
    fn ended_with(mut self, code: i32) {
        let last = self.tty.ended_with(code);
        self.received.push_str(&last);
        let left = self.received.rfind(USUAL).expect("the alternate screen was left");
        assert!(self.received.contains(ALTERNATE) && self.received.rfind(ALTERNATE).is_some_and(|entered| entered < left));
        assert!(self.received[..left].ends_with(CURSOR), "the cursor is shown");
    }
}

fn by_keys(w: &World) {
    let running = w.submit(&["--walltime=10m", "--job-name=runs-here", "--", "/bin/sleep", "600"]);
    w.running(&running);
    let waiting = w.submit(&["--walltime=10m", "--job-name=waits-there", "--nodes=3", "--", "/bin/true"]);
    let node = w.status(&running)["nodes"][0].as_str().unwrap().to_owned();
    for (rows, columns) in [(24, 80), (60, 200)] {
        let mut screen = Watcher::start(w, "n1", rows, columns);
        screen.sees("both allocations", |text| {
            let line = |id: &str, state: &str| text.lines().any(|line| line.contains(&id[..8]) && line.contains(state));
            line(&running, "Running") && line(&waiting, "Pending")
        });
        screen.shows("nodes 3/3 Ready");
        assert!(screen.text().lines().all(|line| line.chars().count() <= usize::from(columns)));

        screen.tty.types("/waits-there\r");
        screen.sees("only what waits", |text| text.contains("filter: waits-there") && !text.contains(&running[..8]));
        screen.tty.types("e");
        screen.sees("why it waits", |text| text.contains("Explanation of") && text.contains("waits-there is Pending"));
        screen.tty.types("q");
        screen.shows("filter: waits-there");
        screen.tty.types("\u{1b}");
        screen.shows("runs-here");

        screen.tty.types("2");
        screen.sees("the nodes", |text| ["n1", "n2", "n3"].iter().all(|node| text.lines().any(|line| line.starts_with(node))));
        screen.tty.types(&format!("/{node}\r"));
        screen.shows(&format!("filter: {node}"));
        screen.tty.types("dbad fan");
        screen.shows("drained? bad fan");
        screen.tty.types("\r");
        screen.sees("its drain", |text| text.lines().any(|line| line.starts_with(&node) && line.contains("Draining")));
        screen.tty.types("u");
        screen.shows("[y/n]");
        screen.tty.types("y");
        screen.sees("it Ready again", |text| text.lines().any(|line| line.starts_with(&node) && line.contains("Ready")));
        screen.tty.types("q");
        screen.ended_with(0);
    }
    w.ok(&["cancel", &waiting]);
    w.ok(&["cancel", &running]);
    w.ended(&running);
}

fn outlives(w: &World) {
    let mut screen = Watcher::start(w, "n3", 24, 80);
    screen.shows("nodes 3/3 Ready");
    screen.shows("no work waits or runs");
    faults::kill_node(&w.dir, "n3").unwrap();
    screen.shows("no refresh, trying again");
    screen.sees("its age", |text| text.contains(" s old"));
    faults::heal(&w.dir, JOB).unwrap();
    screen.sees("new states", |text| text.contains("nodes 3/3 Ready") && !text.contains("no refresh"));
    screen.tty.types("q");
    screen.ended_with(0);
}

fn signals(w: &World) {
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut screen = Watcher::start(w, "n1", 24, 80);
        screen.shows("nodes 3/3 Ready");
        assert!(screen.tty.is_raw());
        kill(Pid::from_raw(screen.tty.pid()), signal).unwrap();
        screen.ended_with(code);
    }
    // While the program is stopped, the shell's screen is shown; then it draws again, also in another size.
    let mut screen = Watcher::start(w, "n1", 24, 80);
    screen.shows("nodes 3/3 Ready");
    screen.tty.types("\u{1a}");
    w.wait("the terminal to be restored", || !screen.tty.is_raw());
    screen.tty.resize(30, 100);
    screen.cells = vec![vec![' '; 100]; 30];
    kill(Pid::from_raw(screen.tty.pid()), Signal::SIGCONT).unwrap();
    screen.sees("all of it again", |text| text.contains("nodes 3/3 Ready") && text.lines().nth(29).is_some_and(|line| !line.is_empty()));
    screen.tty.types("q");
    screen.ended_with(0);
}

fn refused(w: &World) {
    for (args, piece) in [
        (&["top"][..], "needs a terminal"),
        (&["top", "-o", "json"], "no format for programs"),
        (&["top", "--per-node"], "required"),
        (&["top", "@last", "--interval=5s"], "cannot be used with"),
    ] {
        let done = w.run(args);
        assert!(done.code() == 2 && done.err().contains(piece), "{args:?}: {} {}", done.code(), done.err());
    }
    assert!(w.run(&["top"]).err().contains("`lattice status`"), "with another way");
}
