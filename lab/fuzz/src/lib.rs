//! Fuzzing of the decoders that a stranger can reach. `docs/fuzzing.md` lists the targets.
//!
//! ```text
//!   valid messages ─┐
//!   stored corpus  ─┴▶ pick ─▶ mutate ─▶ decode ─▶ panicked? too much memory? too slow? ─▶ a finding, with its bytes
//!                       ▲                  │
//!                       └─ store ◀─ new edges of the code
//! ```
//!
//! A target is a unit test beside its decoder, because most decoders are private. `cargo test` runs the stored corpus
//! and a fixed number of mutations. `lab/fuzz/run` builds the same tests with LLVM's coverage counters and runs them
//! for the given time. libFuzzer would need public decoders, a C++ compiler, and a second build of everything.

mod compare;
mod corpus;
mod coverage;
mod input;
mod memory;
mod mutate;
mod watch;

pub use input::{Input, numbered, piece};

use corpus::Corpus;
use coverage::Seen;
use mutate::Random;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};
use watch::Watch;

/// Mutated inputs of each target in `cargo test`.
const TEST_RUNS: u64 = 2000;
/// Inputs are not made longer than this, in bytes, unless a valid message is.
const INPUT_BYTES_MAX: usize = 4096;
/// Memory that decoding one input may use at once, in bytes, unless the target sets another limit: serde reserves up to
/// 1 MiB for a list before its first value, and lists can be nested.
const MEMORY_BYTES_MAX: usize = 16 << 20;
/// Time limit for one input: a debug build on a busy machine is slow, but a decoder in an endless loop is slower.
const RUN_TIME_MAX: Duration = Duration::from_secs(10);
const REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Set by `lab/fuzz/run`: for how many seconds to run.
const SECONDS: &str = "LATTICE_FUZZ_SECONDS";
/// Set by `lab/fuzz/run`: the directory for inputs that fail.
const FINDINGS: &str = "LATTICE_FUZZ_FINDINGS";
/// If set, the stored corpus is replaced by the inputs found.
const KEEP: &str = "LATTICE_FUZZ_KEEP";

/// A decoder under test.
#[derive(Debug)]
pub struct Target {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    memory_bytes_max: usize,
}

impl Target {
    /// `name` is the name of its file in `lab/fuzz/corpus`; `seeds` are valid messages, from which mutation begins.
    pub fn new(name: &'static str, seeds: Vec<Vec<u8>>) -> Self {
        Self { name, seeds, memory_bytes_max: MEMORY_BYTES_MAX }
    }

    /// Sets another limit of the memory that decoding one input may use at once.
    #[must_use]
    pub fn memory_bytes_max(self, bytes: usize) -> Self {
        Self { memory_bytes_max: bytes, ..self }
    }

    /// Runs `decode` on many inputs.
    ///
    /// # Panics
    /// At the first input for which `decode` panics, uses too much memory or takes too long. The message contains the
    /// input.
    pub fn fuzz(self, mut decode: impl FnMut(&[u8])) {
        let seconds = std::env::var(SECONDS).ok().map(|text| text.parse().expect("LATTICE_FUZZ_SECONDS is a number"));
        let mut session = Session::new(&self);
        for seed in self.seeds.iter().cloned().chain(corpus::read(self.name)) {
            session.run(&seed, &mut decode);
            session.corpus.add(seed);
        }
        match seconds {
            None => (0..TEST_RUNS).for_each(|_| session.mutate_and_run(&mut decode)),
            Some(seconds) => session.run_for(Duration::from_secs(seconds), &mut decode),
        }
        if std::env::var_os(KEEP).is_some() {
            session.keep(&mut decode);
        }
    }
}

struct Session<'a> {
    target: &'a Target,
    corpus: Corpus,
    seen: Seen,
    random: Random,
    watch: Watch,
    input_bytes_max: usize,
    runs: u64,
}

impl<'a> Session<'a> {
    fn new(target: &'a Target) -> Self {
        // A test is the same each time; a longer fuzzing run takes another path each time.
        let seed = if std::env::var_os(SECONDS).is_some() { Random::seed_of_now() } else { 1 };
        let longest = target.seeds.iter().map(Vec::len).max().unwrap_or(0);
        Self {
            target,
            corpus: Corpus::default(),
            seen: Seen::default(),
            random: Random::new(seed),
            watch: Watch::start(target.name, std::env::var_os(FINDINGS).map(Into::into), RUN_TIME_MAX),
            input_bytes_max: INPUT_BYTES_MAX.max(2 * longest),
            runs: 0,
        }
    }

    fn run_for(&mut self, time: Duration, decode: &mut impl FnMut(&[u8])) {
        let begun = Instant::now();
        let mut reported = begun;
        while begun.elapsed() < time {
            for _ in 0..100 {
                self.mutate_and_run(decode);
            }
            if reported.elapsed() >= REPORT_INTERVAL {
                reported = Instant::now();
                self.report(begun);
            }
        }
        self.report(begun);
    }

    fn report(&self, begun: Instant) {
        let (name, runs, inputs, edges) = (self.target.name, self.runs, self.corpus.len(), self.seen.edges());
        let guided = if edges == 0 { ", without coverage" } else { "" };
        println!("{name}: {} s, {runs} runs, {inputs} inputs, {edges} edges{guided}", begun.elapsed().as_secs());
    }

    fn mutate_and_run(&mut self, decode: &mut impl FnMut(&[u8])) {
        let input = self.corpus.mutated(&mut self.random, self.input_bytes_max);
        if self.run(&input, decode) {
            self.corpus.add(input);
        }
    }

    /// Runs one input; returns whether it reached something new.
    fn run(&mut self, input: &[u8], decode: &mut impl FnMut(&[u8])) -> bool {
        self.runs += 1;
        self.watch.begin(input);
        coverage::clear();
        let (outcome, held) = memory::measured(|| catch_unwind(AssertUnwindSafe(|| decode(input))));
        self.watch.end();
        if outcome.is_err() {
            self.found("it panicked: see above", input);
        }
        if held > self.target.memory_bytes_max {
            self.found(&format!("it held {held} bytes, and may hold {}", self.target.memory_bytes_max), input);
        }
        self.seen.add()
    }

    fn found(&self, what: &str, input: &[u8]) -> ! {
        let place = self.watch.write_finding(input).map(|path| format!("\nwritten to {}", path.display())).unwrap_or_default();
        panic!("{}: {what}\ninput of {} bytes: {}{place}", self.target.name, input.len(), corpus::to_hex(input));
    }

    /// Stores the smallest inputs that reach what the seeds do not.
    fn keep(&mut self, decode: &mut impl FnMut(&[u8])) {
        assert!(self.seen.edges() > 0, "without coverage none can be chosen: run lab/fuzz/run");
        self.seen = Seen::default();
        for seed in &self.target.seeds {
            self.run(seed, decode);
        }
        let inputs = self.corpus.take_smallest_first();
        let kept = inputs.into_iter().filter(|input| self.run(input, decode)).collect();
        corpus::write(self.target.name, kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(target: Target, decode: impl FnMut(&[u8])) -> String {
        let panicked = catch_unwind(AssertUnwindSafe(|| target.fuzz(decode))).unwrap_err();
        panicked.downcast_ref::<String>().unwrap().clone()
    }

    #[test]
    fn a_decoder_that_panics_is_found_with_its_input() {
        let why = failure(Target::new("test", vec![vec![7; 3]]), |bytes| assert!(bytes.len() != 2));
        assert!(why.starts_with("test: it panicked: see above\ninput of 2 bytes: "), "{why}");
    }

    #[test]
    fn a_decoder_that_believes_a_length_is_found() {
        let why = failure(Target::new("test", vec![vec![0, 0, 0, 9]]), |bytes| {
            let Some(length) = bytes.first_chunk::<4>() else { return };
            drop(std::hint::black_box(Vec::<u8>::with_capacity(u32::from_be_bytes(*length) as usize)));
        });
        assert!(why.contains("bytes, and may hold 16777216"), "{why}");
    }

    #[test]
    fn a_decoder_that_refuses_passes() {
        let mut runs = 0;
        Target::new("test", vec![b"true".to_vec()]).fuzz(|_| runs += 1);
        assert_eq!(runs, TEST_RUNS + 1);
    }
}
