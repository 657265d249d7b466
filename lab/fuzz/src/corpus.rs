//! Inputs in memory, and those stored in the repository. A target's file has one in each line, in hexadecimal.

use crate::mutate::{self, Random};
use std::fmt::Write;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

/// Size limit of one target's file, in bytes.
const FILE_BYTES_MAX: usize = 8 * 1024;
/// Once in this many inputs an empty one is mutated: it reaches inputs that no valid message leads to.
const EMPTY_INTERVAL: usize = 64;

/// The inputs from which new ones are made.
#[derive(Debug, Default)]
pub struct Corpus(Vec<Vec<u8>>);

impl Corpus {
    pub fn add(&mut self, input: Vec<u8>) {
        self.0.push(input);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn take_smallest_first(&mut self) -> Vec<Vec<u8>> {
        let mut inputs = std::mem::take(&mut self.0);
        inputs.sort_by_key(Vec::len);
        inputs
    }

    /// A new input.
    pub fn mutated(&self, random: &mut Random, bytes_max: usize) -> Vec<u8> {
        let pick = |random: &mut Random| self.0.get(random.below(self.0.len().max(1))).map_or(&[][..], Vec::as_slice);
        let mut input = if random.below(EMPTY_INTERVAL) == 0 { Vec::new() } else { pick(random).to_vec() };
        for _ in 0..=random.below(5) {
            let other = pick(random);
            mutate::mutate(&mut input, other, random);
        }
        input.truncate(bytes_max);
        input
    }
}

fn file(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "corpus", name].iter().collect()
}

/// The stored inputs of a target; empty if it has no file.
pub fn read(name: &str) -> Vec<Vec<u8>> {
    let file = file(name);
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.unwrap_or_else(|error| panic!("{}: {error}", file.display())),
    };
    let input = |line: &str| from_hex(line).unwrap_or_else(|| panic!("{}: {line:?} is not hexadecimal", file.display()));
    text.lines().map(input).collect()
}

/// Replaces the stored inputs of a target by the first of these that fit into its file.
pub fn write(name: &str, inputs: Vec<Vec<u8>>) {
    let mut text = String::new();
    for line in inputs.iter().map(|input| to_hex(input)).filter(|line| !line.is_empty()) {
        if text.len() + line.len() < FILE_BYTES_MAX {
            text += &line;
            text.push('\n');
        }
    }
    fs::write(file(name), text).unwrap_or_else(|error| panic!("writing the corpus of {name}: {error}"));
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect())?
}
