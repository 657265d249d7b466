//! Files of a user that the output of their work is also written to, and the patterns in their names.
//!
//! A pattern is a percent sign, perhaps a number of digits, and a letter: `%4t` is the rank with at least four digits.
//! The letters are Slurm's. A name that begins with a backslash has no patterns, and the backslash is no part of it.

use crate::spec_error::SpecError;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Longest pattern of a file's name, in bytes.
pub const FILE_PATTERN_BYTES_MAX: usize = 1024;

/// The letters of patterns.
const LETTERS: &str = "jJAaxuNnts%";
/// The most digits to which a number is padded.
const PAD_DIGITS_MAX: usize = 10;
/// `%a` of work that is no task, as in Slurm.
const NO_INDEX: u32 = u32::MAX - 1;
/// `%s` of a script, as in Slurm.
const SCRIPT_STEP: &str = "batch";

/// Patterns of file names; see `OutputFiles` of the API. A relative name begins at the working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFiles {
    /// Where standard output is written; empty: to no file.
    #[serde(default)]
    pub stdout: String,
    /// Where standard error is written; empty: where `stdout` goes.
    #[serde(default)]
    pub stderr: String,
    /// The standard input of the script, or of all ranks of a command; empty: none.
    #[serde(default)]
    pub stdin: String,
    /// Whether each attempt adds to the files; otherwise they are emptied first.
    #[serde(default)]
    pub append: bool,
}

/// The values of the patterns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameFacts<'a> {
    /// `%j`: the job number of the work, or of the task.
    pub job: u64,
    /// `%A`: the job number of the task group; for other work its own.
    pub group: u64,
    /// `%a`: the index of the task.
    pub index: Option<u32>,
    /// `%x`: the name of the work.
    pub name: &'a str,
    /// `%u`: its user.
    pub user: &'a str,
    /// `%N`: the node.
    pub node: &'a str,
    /// `%n`: the number of the node in the allocation, from 0.
    pub node_index: u32,
    /// `%t`: the rank, from 0.
    pub rank: u32,
    /// `%s`: the number of the launch, from 0; `None`: it is the script.
    pub step: Option<u32>,
}

/// A part of a name.
enum Piece<'a> {
    Text(&'a str),
    Pattern {
        letter: char,
        digits: usize,
    },
    /// A percent sign that begins no pattern, with what follows it up to the letter.
    Unknown(&'a str),
}

impl OutputFiles {
    /// Checks the names, and that they have only known patterns.
    ///
    /// # Errors
    /// Names the first option with a bad value.
    pub fn validate(&self) -> Result<(), SpecError> {
        for (field, name) in [("output", &self.stdout), ("error", &self.stderr), ("input", &self.stdin)] {
            let invalid = |why| SpecError::Invalid { field, why };
            if name.len() > FILE_PATTERN_BYTES_MAX {
                return Err(invalid(format!("the name has {} bytes; at most {FILE_PATTERN_BYTES_MAX} are possible", name.len())));
            }
            if name.chars().any(char::is_control) {
                return Err(invalid("a file's name without NUL and control characters is needed".to_owned()));
            }
            let unknown = pieces(name).find_map(|piece| match piece {
                Piece::Unknown(text) => Some(text),
                Piece::Text(_) | Piece::Pattern { .. } => None,
            });
            if let Some(text) = unknown {
                let known: Vec<String> = LETTERS.chars().map(|letter| format!("%{letter}")).collect();
                return Err(invalid(format!("{text:?} is no pattern; there are {}, and %% is a percent sign", known.join(" "))));
            }
        }
        if self.append && self.stdout.is_empty() && self.stderr.is_empty() {
            let why = "it needs a file that is written to: give --output or --error as well".to_owned();
            return Err(SpecError::Invalid { field: "open-mode", why });
        }
        Ok(())
    }

    /// The name of the file for standard error; empty: none.
    pub fn stderr(&self) -> &str {
        if self.stderr.is_empty() { &self.stdout } else { &self.stderr }
    }

    /// How many bytes it adds to a specification.
    pub fn bytes(&self) -> usize {
        self.stdout.len() + self.stderr.len() + self.stdin.len() + 16
    }
}

impl NameFacts<'_> {
    /// The name with its patterns replaced. A slash in the name of the work becomes an underscore.
    pub fn resolve(&self, name: &str) -> String {
        let mut resolved = String::with_capacity(name.len());
        for piece in pieces(name) {
            match piece {
                Piece::Text(text) | Piece::Unknown(text) => resolved.push_str(text),
                Piece::Pattern { letter, digits } => self.replace(letter, digits, &mut resolved),
            }
        }
        resolved
    }

    fn replace(&self, letter: char, digits: usize, resolved: &mut String) {
        let mut number = |number: u64| {
            // Writing to a string cannot fail.
            let _ = write!(resolved, "{number:0digits$}");
        };
        match letter {
            'j' => number(self.job),
            'J' => {
                number(self.job);
                if let Some(step) = self.step {
                    let _ = write!(resolved, ".{step}");
                }
            }
            'A' => number(self.group),
            'a' => number(self.index.unwrap_or(NO_INDEX).into()),
            'n' => number(self.node_index.into()),
            't' => number(self.rank.into()),
            's' => match self.step {
                Some(step) => number(step.into()),
                None => resolved.push_str(SCRIPT_STEP),
            },
            'x' => resolved.push_str(&self.name.replace('/', "_")),
            'u' => resolved.push_str(self.user),
            'N' => resolved.push_str(self.node),
            _ => resolved.push('%'),
        }
    }
}

/// Whether a name has a pattern with one of these letters.
pub fn has_pattern(name: &str, letters: &[char]) -> bool {
    pieces(name).any(|piece| matches!(piece, Piece::Pattern { letter, .. } if letters.contains(&letter)))
}

/// The parts of a name.
fn pieces(name: &str) -> impl Iterator<Item = Piece<'_>> {
    // Slurm's manual shows two backslashes: its readers type one or two.
    let plain = name.strip_prefix('\\').map(|rest| rest.strip_prefix('\\').unwrap_or(rest));
    let mut rest = plain.unwrap_or(name);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = if plain.is_some() { rest.len() } else { rest.find('%').unwrap_or(rest.len()) };
        if at > 0 {
            let (text, after) = rest.split_at(at);
            rest = after;
            return Some(Piece::Text(text));
        }
        let behind = &rest[1..];
        let padding = behind.len() - behind.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let letter = behind[padding..].chars().next();
        let (pattern, after) = rest.split_at(1 + padding + letter.map_or(0, char::len_utf8));
        rest = after;
        Some(match letter.filter(|letter| LETTERS.contains(*letter)) {
            Some(letter) => {
                let digits = behind[..padding].parse().unwrap_or(if padding == 0 { 0 } else { PAD_DIGITS_MAX });
                Piece::Pattern { letter, digits: PAD_DIGITS_MAX.min(digits) }
            }
            None => Piece::Unknown(pattern),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANK: NameFacts<'static> =
        NameFacts { job: 128, group: 120, index: Some(8), name: "my/job", user: "ada", node: "n7", node_index: 1, rank: 5, step: Some(0) };

    #[test]
    fn patterns_are_replaced_as_in_slurm() {
        for (name, resolved) in [
            ("out", "out"),
            ("slurm-%j.out", "slurm-128.out"),
            ("%J", "128.0"),
            ("%A_%a", "120_8"),
            ("%x-%u", "my_job-ada"),
            ("%N/%n/%t", "n7/1/5"),
            ("%4t.%3a", "0005.008"),
            ("%04t", "0005"),
            ("%1j", "128"),
            ("%99t", "0000000005"),
            ("%99999999999999999999999t", "0000000005"),
            ("%5N", "n7"),
            ("%s", "0"),
            ("100%%", "100%"),
            ("ü%tü", "ü5ü"),
            ("\\%j", "%j"),
            ("\\\\%j", "%j"),
            ("a\\%j", "a\\128"),
        ] {
            assert_eq!(RANK.resolve(name), resolved, "{name}");
        }
        let script = NameFacts { index: None, rank: 0, step: None, ..RANK };
        assert_eq!(script.resolve("%j %J %s %a"), "128 128 batch 4294967294");
    }

    #[test]
    fn a_name_shows_what_it_differs_by() {
        assert!(has_pattern("a.%3t", &['t', 'N']));
        assert!(!has_pattern("a.%%t", &['t', 'N']));
        assert!(!has_pattern("\\a.%t", &['t', 'N']));
    }

    #[test]
    fn bad_names_are_refused_by_the_option_that_has_them() {
        let refused = |files: OutputFiles| files.validate().map_err(|error| error.to_string());
        let of = |stdout: &str| OutputFiles { stdout: stdout.to_owned(), ..OutputFiles::default() };
        for good in ["", "a", "/dev/null", "%4t", "%x.%j.%s%%", "\\%q"] {
            assert_eq!(refused(of(good)), Ok(()), "{good}");
        }
        let unknown = "is no pattern; there are %j %J %A %a %x %u %N %n %t %s %%, and %% is a percent sign";
        assert_eq!(refused(of("%q")), Err(format!("output: \"%q\" {unknown}")));
        assert_eq!(refused(of("a%")), Err(format!("output: \"%\" {unknown}")));
        assert_eq!(refused(of("%12ü")), Err(format!("output: \"%12ü\" {unknown}")));
        let error = OutputFiles { stderr: "a\nb".to_owned(), ..OutputFiles::default() };
        assert_eq!(refused(error), Err("error: a file's name without NUL and control characters is needed".to_owned()));
        let input = OutputFiles { stdin: "x".repeat(1025), ..OutputFiles::default() };
        assert_eq!(refused(input), Err("input: the name has 1025 bytes; at most 1024 are possible".to_owned()));
        let append = OutputFiles { append: true, stdin: "a".to_owned(), ..OutputFiles::default() };
        let why = "open-mode: it needs a file that is written to: give --output or --error as well";
        assert_eq!(refused(append), Err(why.to_owned()));
    }

    #[test]
    fn errors_go_where_the_output_goes_unless_they_have_a_file() {
        let mut files = OutputFiles { stdout: "a".to_owned(), ..OutputFiles::default() };
        assert_eq!(files.stderr(), "a");
        files.stderr = "b".to_owned();
        assert_eq!(files.stderr(), "b");
    }
}
