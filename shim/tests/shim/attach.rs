//! Programs on terminals.

use crate::bed::{Bed, PATIENCE, Setting, eventually, nobody};
use lattice_model::RankOutcome;
use lattice_runtime::pty::{self, Modes, Size};
use lattice_runtime::shim::{FromShim, LogStream, ToShim};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs;
use std::os::fd::AsFd;
use std::time::Instant;

/// A terminal with a simulated person, who remembers all output.
struct Person {
    terminal: Option<pty::Terminal>,
    shown: String,
}

impl Person {
    fn new() -> Self {
        let size = Size { rows: 33, columns: 99 };
        let terminal = pty::open(&nobody(), size, Modes { echo: true, cooked_output: true }).unwrap();
        Self { terminal: Some(terminal), shown: String::new() }
    }

    fn terminal(&self) -> &pty::Terminal {
        self.terminal.as_ref().unwrap()
    }

    fn types(&self, text: &str) {
        assert_eq!(nix::unistd::write(&self.terminal().master, text.as_bytes()), Ok(text.len()));
    }

    /// Reads until `text` was shown, and forgets the output before it.
    fn sees(&mut self, text: &str) {
        let began = Instant::now();
        loop {
            if let Some(at) = self.shown.find(text) {
                self.shown.drain(..at + text.len());
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{text:?} was not shown, but {:?}", self.shown);
            let master = &self.terminal.as_ref().unwrap().master;
            poll(&mut [PollFd::new(master.as_fd(), PollFlags::POLLIN)], PollTimeout::from(100u8)).unwrap();
            let mut chunk = [0; 4096];
            match nix::unistd::read(master, &mut chunk) {
                Ok(n) => self.shown.push_str(&String::from_utf8_lossy(&chunk[..n])),
                Err(Errno::EAGAIN) => {}
                Err(errno) => panic!("{errno} while {text:?} was waited for, after {:?}", self.shown),
            }
        }
    }
}

fn attach(bed: &Bed, session: u64, person: &Person, argv: &[&str]) -> ToShim {
    ToShim::Attach {
        session,
        tty: person.terminal().path.clone(),
        argv: argv.iter().map(|a| (*a).to_owned()).collect(),
        env: vec![("PATH".into(), "/usr/bin:/bin".into()), ("PS1".into(), "ready> ".into()), ("WHO".into(), bed.config.owner.name.clone())],
        working_dir: "/tmp".into(),
    }
}

fn begin(bed: &mut Bed, session: u64, argv: &[&str]) -> Person {
    let person = Person::new();
    let message = attach(bed, session, &person, argv);
    bed.agent.send(&message);
    bed.agent.until("AttachStarted", |m| *m == FromShim::AttachStarted { session });
    person
}

fn end_of(bed: &mut Bed, session: u64) -> (RankOutcome, Option<String>) {
    let seen = bed.agent.until("AttachEnded", |m| matches!(m, FromShim::AttachEnded { session: of, .. } if *of == session));
    let Some(FromShim::AttachEnded { outcome, why, .. }) = seen.into_iter().next_back() else { unreachable!("it was waited for") };
    (outcome, why)
}

pub fn terminal() {
    let mut bed = Bed::ready(Setting::default());
    let script = "tty; stty size; id -u; pwd; echo $WHO; grep -o 'work/attach-.*' /proc/self/cgroup; \
                  cut -d' ' -f6,8 /proc/$$/stat; echo $$; echo on-tty > /dev/tty; exit 7";
    let mut person = begin(&mut bed, 1, &["sh", "-c", script]);
    person.sees(&format!("{}\r\n33 99\r\n", person.terminal().path.display()));
    person.sees(&format!("{}\r\n/tmp\r\n{}\r\nwork/attach-1\r\n", bed.config.owner.uid, bed.config.owner.name));
    person.sees("on-tty\r\n");
    assert_eq!(end_of(&mut bed, 1), (RankOutcome::Exited { code: 7 }, None));
    assert!(!bed.scope().attached(1).path().exists(), "its cgroup went with it");
    // Nothing of it is on disk, because nobody would need a report.
    assert_eq!(lattice_runtime::exits::read(&bed.dir).unwrap(), []);
    bed.end();
}

/// Whether a process is a `sleep` that runs, in the foreground of its terminal (proc(5): comm, state, pgrp, tpgid).
fn has_terminal_and_sleeps(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let Some((_, fields)) = stat.split_once("(sleep) ") else { return false };
    let fields: Vec<&str> = fields.split(' ').collect();
    fields[0] == "S" && fields[2] == fields[5]
}

pub fn keys() {
    let mut bed = Bed::ready(Setting::default());
    let mut person = begin(&mut bed, 5, &["sh", "-i"]);
    person.sees("ready> ");
    let in_foreground = |bed: &Bed| {
        // The shell prints the resumed command before it gives it the terminal: only then do keys reach it.
        eventually("sleep to have the terminal", || bed.scope().attached(1).processes().into_iter().any(has_terminal_and_sleeps));
    };
    person.types("sleep 1000; echo interrupted $?\n");
    in_foreground(&bed);
    person.types("\x03");
    person.sees("^C");
    person.sees("ready> ");
    person.types("echo $(($? + 1000))\n");
    person.sees("\r\n1130\r\n");
    person.types("sleep 1000\n");
    in_foreground(&bed);
    person.types("\x1a");
    person.sees("Stopped");
    person.sees("ready> ");
    person.types("fg\n");
    person.sees("\nsleep 1000");
    in_foreground(&bed);
    person.types("\x1c");
    person.sees("Quit");
    person.sees("ready> ");
    pty::set_size(person.terminal().master.as_fd(), Size { rows: 50, columns: 132 }).unwrap();
    person.types("stty size\n");
    person.sees("\r\n50 132\r\n");
    person.types("exit 4\n");
    assert_eq!(end_of(&mut bed, 5), (RankOutcome::Exited { code: 4 }, None));
    bed.end();
}

pub fn hang_up() {
    let mut bed = Bed::ready(Setting::default());
    let mut person = begin(&mut bed, 1, &["sh", "-c", "echo up; sleep 1000; sleep 1000"]);
    person.sees("up");
    let kept = begin(&mut bed, 2, &["sleep", "1000"]);
    // As when the agent dies: nobody holds the master any more.
    person.terminal = None;
    assert_eq!(end_of(&mut bed, 1), (RankOutcome::Signalled { signal: libc::SIGHUP as u8 }, None));
    // The shim replays what it knows to the next agent.
    bed.reconnect();
    let messages = bed.agent.synced();
    assert!(messages.contains(&FromShim::AttachStarted { session: 2 }), "{messages:?}");
    assert!(messages.iter().any(|m| matches!(m, FromShim::AttachEnded { session: 1, .. })), "{messages:?}");
    // A repeated request does not start either of them again.
    for (session, living) in [(1, false), (2, true)] {
        let message = attach(&bed, session, &kept, &["sh", "-c", "echo again"]);
        bed.agent.send(&message);
        let answer = bed.agent.next().unwrap();
        assert_eq!(matches!(answer, FromShim::AttachStarted { session: 2 }), living, "{answer:?}");
        assert_eq!(matches!(answer, FromShim::AttachEnded { session: 1, .. }), !living, "{answer:?}");
    }
    bed.end();
}

pub fn not_started() {
    let mut bed = Bed::ready(Setting::default());
    for (session, (argv, code, expected)) in
        (1..).zip([(&["no-such-program"][..], 127, "no-such-program: command not found"), (&["/etc/passwd"], 126, "/etc/passwd")])
    {
        let person = Person::new();
        let message = attach(&bed, session, &person, argv);
        bed.agent.send(&message);
        let (outcome, why) = end_of(&mut bed, session);
        assert_eq!(outcome, RankOutcome::NotStarted { code });
        assert!(why.as_ref().is_some_and(|why| why.contains(expected)), "{why:?}");
    }
    let ours = lattice_model::Principal { name: "root".into(), uid: 0, gid: 0, groups: vec![] };
    let theirs = pty::open(&ours, Size::default(), Modes { echo: true, cooked_output: true }).unwrap();
    for (session, tty, expected) in [(8, theirs.path.clone(), "belongs to somebody else"), (9, "/dev/null".into(), "no terminal")] {
        bed.agent.send(&ToShim::Attach { session, tty, argv: vec!["true".into()], env: vec![], working_dir: "/".into() });
        let (outcome, why) = end_of(&mut bed, session);
        assert_eq!(outcome, RankOutcome::NotStarted { code: 126 });
        assert!(why.as_ref().is_some_and(|why| why.contains(expected)), "{why:?}");
    }
    bed.end();
}

/// An idle interactive shell ignores SIGTERM; it must not delay the end.
fn ends_with_the_allocation(setting: Setting) {
    let mut bed = Bed::ready(setting);
    let mut person = begin(&mut bed, 1, &["sh", "-i"]);
    person.sees("ready> ");
    let began = Instant::now();
    bed.agent.send(&ToShim::Stop { why: lattice_runtime::shim::StopReason::Requested, grace_ms: 60_000 });
    bed.agent.until("Stopped", |m| matches!(m, FromShim::Stopped { .. }));
    assert!(began.elapsed() < PATIENCE, "without the grace");
    let message = attach(&bed, 2, &person, &["true"]);
    bed.agent.send(&message);
    let (_, why) = end_of(&mut bed, 2);
    assert!(why.unwrap().contains("being ended"));
    bed.quit();
}

pub fn stop() {
    ends_with_the_allocation(Setting::default());
}

pub fn stop_without_scope() {
    ends_with_the_allocation(Setting { without_scope: true, ..Setting::default() });
}

pub fn launch() {
    let mut bed = Bed::ready(Setting::default());
    let script = "[ $LATTICE_RANK = 1 ] && exec sleep 1000; stty size; read a; echo \"got $a\"; \
                  trap 'stty size' WINCH; until read b; do :; done; echo \"then $b\"; sleep 1000; echo no";
    let mut launch = bed.launch(3, 2, &["sh", "-c", script]);
    launch.pty = Some(Size { rows: 33, columns: 99 });
    let typed = |text: &str| ToShim::Typed { launch: launch.id, bytes: text.as_bytes().to_vec() };
    bed.agent.send(&ToShim::StartLaunch { launch: launch.clone() });
    bed.wait_log(3, 0, "33 99\r\n");
    bed.agent.send(&typed("one\n"));
    bed.wait_log(3, 0, "one\r\ngot one\r\n");
    // The agent disconnects; the terminal stays.
    bed.reconnect();
    bed.agent.send(&ToShim::Resized { launch: launch.id, size: Size { rows: 50, columns: 132 } });
    bed.wait_log(3, 0, "50 132\r\n");
    bed.agent.send(&typed("two\n"));
    bed.wait_log(3, 0, "then two\r\n");
    // Rank 1 has no terminal, and the key does not end it.
    assert_eq!(bed.log(3, 1, LogStream::Out), "");
    let comm = |pid: i32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    eventually("both to sleep", || bed.scope().launch(3).processes().iter().filter(|pid| comm(**pid) == "sleep\n").count() == 2);
    bed.agent.send(&typed("\x03"));
    let ended = bed.agent.until("RankEnded", |m| matches!(m, FromShim::RankEnded { .. })).pop().unwrap();
    assert_eq!(ended, FromShim::RankEnded { launch: launch.id, rank: 0, outcome: RankOutcome::Signalled { signal: libc::SIGINT as u8 } });
    assert!(bed.log(3, 0, LogStream::Out).ends_with("^C"), "what was shown is logged by then");
    bed.agent.send(&typed("to nobody\n"));
    bed.end();
}
