use super::*;
use lattice_runtime::shim::LogStream;
use std::fs::{self, OpenOptions};

struct Bench {
    dir: PathBuf,
    copier: Copier,
    /// The owner of the copier has these as well.
    copied: Vec<Arc<AtomicU64>>,
}

impl Bench {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("lattice-copier-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        Self { dir, copier: Copier::new(Arc::default()), copied: Vec::new() }
    }

    fn log(&self, rank: u32, text: &str) {
        let mut log = OpenOptions::new().append(true).create(true).open(self.dir.join(format!("{rank}.out"))).unwrap();
        log.write_all(text.as_bytes()).unwrap();
    }

    /// Copies the log of a rank to a file with this name.
    fn open(&mut self, rank: u32, name: &str, is_emptied: bool) -> Result<(), String> {
        self.log(rank, "");
        let log = Arc::new(File::open(self.dir.join(format!("{rank}.out"))).unwrap());
        let to = OutputFile { stream: LogStream::Out, option: "output", path: self.dir.join(name), is_emptied };
        let copied = Arc::<AtomicU64>::default();
        self.copied.push(Arc::clone(&copied));
        let logs = vec![NewLog { key: (1, rank, LogStream::Out), log, copied, to }];
        self.copier.open(logs, None).map(drop)
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap()
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[test]
fn logs_are_copied_as_they_grow_and_a_file_is_closed_with_its_last_log() {
    let mut bench = Bench::new("grow");
    fs::write(bench.dir.join("out"), "before\n").unwrap();
    bench.open(0, "out", false).unwrap();
    bench.open(1, "out", true).unwrap();
    assert_eq!(bench.copier.look(), Copied::Nothing);
    bench.log(0, "zero\n");
    bench.log(1, "one\n");
    assert_eq!(bench.copier.look(), Copied::Whole);
    assert_eq!(bench.file("out"), "before\nzero\none\n", "it was open already, so it was not emptied");
    bench.log(1, "late\n");
    bench.copier.catch_up(Which::Of { number: 1, rank: 1 }, true);
    assert_eq!((bench.file("out").lines().last(), bench.copier.targets.len()), (Some("late"), 1));
    bench.copier.catch_up(Which::All, true);
    assert_eq!((bench.copier.targets.len(), bench.copier.logs.len()), (0, 0));
    bench.open(0, "out", true).unwrap();
    bench.copier.look();
    assert_eq!(bench.file("out"), "zero\n", "its log is copied from the beginning");
}

#[test]
fn a_long_log_is_copied_in_turns_and_a_truncated_one_begins_anew() {
    let mut bench = Bench::new("long");
    let line = format!("{}\n", "x".repeat(99));
    bench.open(0, "out", true).unwrap();
    bench.log(0, &line.repeat(20_000));
    assert_eq!(bench.copier.look(), Copied::Part);
    assert!(bench.file("out").ends_with(&line), "a chunk ends with a line");
    bench.copier.catch_up(Which::All, false);
    assert_eq!(bench.file("out").len(), 2_000_000);
    File::options().write(true).open(bench.dir.join("0.out")).unwrap().set_len(0).unwrap();
    bench.log(0, "anew\n");
    bench.copier.look();
    assert!(bench.file("out").ends_with("x\nanew\n"));
}

#[test]
fn what_the_node_removed_from_a_log_is_reported_and_skipped() {
    let mut bench = Bench::new("hole");
    bench.open(0, "out", true).unwrap();
    let log = File::options().write(true).open(bench.dir.join("0.out")).unwrap();
    log.write_all_at(b"end\n", 1 << 20).unwrap();
    bench.copier.look();
    assert_eq!(bench.file("out"), "end\n");
    let failure = bench.copier.shared.failures.lock().unwrap().pop_front().unwrap();
    let why = "1048576 bytes were removed from the node's disk before they could be written; `lattice logs` has it";
    assert!(failure.why.ends_with(why), "{}", failure.why);
}

#[test]
fn a_file_that_cannot_be_written_is_tried_again_and_reported_once() {
    let mut bench = Bench::new("full");
    bench.open(0, "/dev/full", true).unwrap();
    bench.log(0, "text\n");
    for _ in 0..3 {
        assert_eq!(bench.copier.look(), Copied::Stuck);
    }
    bench.copier.catch_up(Which::All, false);
    let failures = bench.copier.shared.failures.lock().unwrap();
    let why = "some of its output may be missing in /dev/full: No space left on device (os error 28); `lattice logs` has it";
    assert_eq!(failures.iter().map(|failure| (failure.rank, failure.why.as_str())).collect::<Vec<_>>(), [(0, why)]);
}

#[test]
fn a_file_that_cannot_be_opened_says_by_which_option_it_was_named() {
    let mut bench = Bench::new("absent");
    let path = bench.dir.join("no/out");
    let why = format!("--output {}: No such file or directory (os error 2)", path.display());
    assert_eq!(bench.open(0, "no/out", true), Err(why));
    let input = bench.copier.open(Vec::new(), Some(&bench.dir)).unwrap_err();
    assert!(input.starts_with("--input ") && input.ends_with("is a directory"), "{input}");
}

#[test]
fn a_pipe_needs_a_reader_and_output_that_it_does_not_accept_is_reported_at_the_end() {
    let mut bench = Bench::new("pipe");
    let path = bench.dir.join("pipe");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let why = format!("--output {}: No such device or address (os error 6)", path.display());
    assert_eq!(bench.open(0, "pipe", true), Err(why));
    let reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    bench.open(0, "pipe", true).unwrap();
    bench.log(0, &"x\n".repeat(1 << 20));
    assert_eq!((bench.copier.look(), bench.copier.look()), (Copied::Whole, Copied::Stuck));
    bench.copier.catch_up(Which::Of { number: 1, rank: 0 }, false);
    assert!(bench.copier.shared.failures.lock().unwrap().is_empty(), "it may be read yet");
    bench.copier.catch_up(Which::All, false);
    let failure = bench.copier.shared.failures.lock().unwrap().pop_front().unwrap();
    assert!(failure.why.contains(": nobody reads it fast enough; "), "{}", failure.why);
    drop(reader);
}

#[test]
fn a_file_whose_opening_came_too_late_is_not_emptied() {
    let mut bench = Bench::new("late");
    fs::write(bench.dir.join("out"), "of another attempt\n").unwrap();
    bench.log(0, "");
    let log = Arc::new(File::open(bench.dir.join("0.out")).unwrap());
    let to = OutputFile { stream: LogStream::Out, option: "output", path: bench.dir.join("out"), is_emptied: true };
    let logs = vec![NewLog { key: (1, 0, LogStream::Out), log, copied: Arc::default(), to }];
    let (answer, answered) = std::sync::mpsc::sync_channel(1);
    drop(answered);
    bench.copier.handle(Request::Open { logs, input: None, answer });
    assert_eq!(bench.file("out"), "of another attempt\n");
    assert_eq!((bench.copier.logs.len(), bench.copier.targets.len()), (0, 0));
}

#[test]
fn a_system_call_on_a_file_of_the_user_is_marked_until_it_returns() {
    let mut bench = Bench::new("busy");
    let shared = Arc::clone(&bench.copier.shared);
    let since = || shared.busy_since_ms.load(Ordering::Relaxed);
    let (before, during) = (boottime_ms(), shared.while_busy(since));
    assert!((before.max(1)..=boottime_ms().max(1)).contains(&during), "{during}");
    assert_eq!(since(), 0);
    bench.open(0, "out", true).unwrap();
    bench.open(1, "/dev/full", true).unwrap();
    bench.log(0, "text\n");
    bench.log(1, "text\n");
    bench.copier.look();
    bench.copier.catch_up(Which::All, true);
    assert_eq!((bench.file("out").as_str(), since()), ("text\n", 0), "also after a call that failed");
}
