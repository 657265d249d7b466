//! The configuration of `srun --multi-prog`: which ranks run which program.

use lattice_model::TaskIndices;
use thiserror::Error;

/// One line: the ranks, and their program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    /// `None`: all ranks that no other line names (`*`).
    ranks: Option<TaskIndices>,
    argv: Vec<String>,
}

/// The programs of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiProg {
    lines: Vec<Line>,
}

/// Consecutive ranks with the same command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// How many ranks.
    pub ranks: u32,
    /// Their program and its arguments.
    pub argv: Vec<String>,
}

/// The configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum MultiProgError {
    /// A line does not begin with a list of ranks.
    #[error("line {0}: {1:?} are no ranks: write 0, 1-3, 0,4-6 or *")]
    Ranks(usize, String),
    /// A line has no program.
    #[error("line {0}: No executable program specified for these tasks")]
    NoProgram(usize),
    /// A quote has no end.
    #[error("line {0}: a quote is not closed")]
    Quote(usize),
    /// Two lines name the same rank.
    #[error("task {0} is in two lines")]
    Twice(u32),
    /// No line names this rank.
    #[error("No executable program specified for task {0}")]
    Missing(u32),
    /// No line names any rank.
    #[error("it names no program")]
    Empty,
    /// The number of ranks cannot be known.
    #[error("it has a line for all other tasks (*), so -n must give their number")]
    NeedsNumber,
}

impl MultiProg {
    /// Parses the configuration.
    ///
    /// # Errors
    /// A line has another form, or two lines name the same rank.
    pub fn parse(text: &str) -> Result<Self, MultiProgError> {
        // A backslash continues a line.
        let joined = text.replace("\\\n", " ");
        let mut lines = Vec::new();
        for (at, line) in joined.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (ranks, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let argv = split_words(rest).ok_or(MultiProgError::Quote(at))?;
            if argv.is_empty() {
                return Err(MultiProgError::NoProgram(at));
            }
            let list = |text: &str| TaskIndices::parse(text).map_err(|_| MultiProgError::Ranks(at, text.to_owned()));
            lines.push(Line { ranks: if ranks == "*" { None } else { Some(list(ranks)?) }, argv });
        }
        if lines.is_empty() { Err(MultiProgError::Empty) } else { Ok(Self { lines }) }
    }

    /// The programs of `ranks` ranks, in the order of ranks; `None`: as many ranks as it names. `more`: arguments that
    /// each program also gets.
    ///
    /// # Errors
    /// A rank has no program or two, or the number of ranks is not known.
    pub fn parts(&self, ranks: Option<u32>, more: &[String]) -> Result<Vec<Part>, MultiProgError> {
        let named = self.lines.iter().filter_map(|line| line.ranks.as_ref()).map(TaskIndices::last).max();
        let has_rest = self.lines.iter().any(|line| line.ranks.is_none());
        let ranks = match (ranks, named) {
            (Some(ranks), _) => ranks,
            (None, Some(last)) if !has_rest => last.saturating_add(1),
            (None, _) => return Err(MultiProgError::NeedsNumber),
        };
        let mut parts: Vec<Part> = Vec::new();
        for rank in 0..ranks {
            let argv: Vec<String> = self.argv(rank)?.into_iter().chain(more.iter().cloned()).collect();
            match parts.last_mut() {
                Some(last) if last.argv == argv => last.ranks += 1,
                Some(_) | None => parts.push(Part { ranks: 1, argv }),
            }
        }
        Ok(parts)
    }

    fn argv(&self, rank: u32) -> Result<Vec<String>, MultiProgError> {
        let mut of_rank = self.lines.iter().filter_map(|line| Some((line, line.ranks.as_ref()?.ordinal_of(rank)?)));
        let rest = || self.lines.iter().find(|line| line.ranks.is_none()).map(|line| (line, rank));
        let (line, offset) = of_rank.next().or_else(rest).ok_or(MultiProgError::Missing(rank))?;
        if of_rank.next().is_some() {
            return Err(MultiProgError::Twice(rank));
        }
        let resolve = |word: &String| word.replace("%t", &rank.to_string()).replace("%o", &offset.to_string());
        let (program, arguments) = line.argv.split_first().ok_or(MultiProgError::Missing(rank))?;
        Ok(std::iter::once(program.clone()).chain(arguments.iter().map(resolve)).collect())
    }
}

/// Words between spaces; quotes, single or double, keep spaces. `None`: a quote has no end.
fn split_words(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, space) if space.is_whitespace() => words.extend(word.take()),
            (Some(_) | None, _) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str, ranks: Option<u32>) -> Result<Vec<String>, String> {
        let config = MultiProg::parse(text).map_err(|error| error.to_string())?;
        let parts = config.parts(ranks, &[]).map_err(|error| error.to_string())?;
        Ok(parts.iter().map(|part| format!("{}*{}", part.ranks, part.argv.join(" "))).collect())
    }

    #[test]
    fn the_example_of_slurms_manual() {
        let text = "# srun -n8 -l --multi-prog silly.conf\n4-6       hostname\n1,7       echo  task:%t\n0,2-3     echo  offset:%o\n";
        let expected = ["1*echo offset:0", "1*echo task:1", "1*echo offset:1", "1*echo offset:2", "3*hostname", "1*echo task:7"];
        assert_eq!(parts(text, Some(8)).unwrap(), expected);
        assert_eq!(parts(text, None).unwrap(), expected, "it names all of its ranks");
    }

    #[test]
    fn the_rest_has_a_program_too_and_quotes_keep_spaces() {
        assert_eq!(parts("0 ./server\n* ./worker %t\n", Some(3)).unwrap(), ["1*./server", "1*./worker 1", "1*./worker 2"]);
        let config = MultiProg::parse("0-1 sh -c 'echo \"a b\"' \\\n ''\n").unwrap();
        let parts = config.parts(None, &["more".to_owned()]).unwrap();
        let argv = ["sh", "-c", "echo \"a b\"", "", "more"].map(str::to_owned).to_vec();
        assert_eq!(parts, [Part { ranks: 2, argv }]);
    }

    #[test]
    fn what_is_incomplete_or_contradicts_itself_is_refused() {
        assert_eq!(parts("0 a\n", Some(2)).unwrap_err(), "No executable program specified for task 1");
        assert_eq!(parts("0-1 a\n1 b\n", None).unwrap_err(), "task 1 is in two lines");
        assert_eq!(parts("* a\n", None).unwrap_err(), "it has a line for all other tasks (*), so -n must give their number");
        assert_eq!(parts("# nothing\n\n", None).unwrap_err(), "it names no program");
        assert_eq!(parts("\n0\n", None).unwrap_err(), "line 2: No executable program specified for these tasks");
        assert!(parts("x a\n", None).unwrap_err().contains("line 1: \"x\" are no ranks"));
        assert_eq!(parts("0 'a\n", None).unwrap_err(), "line 1: a quote is not closed");
    }
}
