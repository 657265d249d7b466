//! Expressions over features, as Slurm's `--constraint` has them.
//!
//! ```text
//!   a&b  a,b        each node has both          (a|b)&c      parentheses
//!   a|b             each node has one of them   [a|b]        all nodes have the same one
//!   a*2&b*4         2 nodes with a, 4 others with b; (a&b)*2 and brackets around them are possible
//! ```

use crate::constraint::GPU_TYPE;
use crate::feature::{FEATURES_MAX, is_feature};
use crate::feature_choice::{ALTERNATIVES_MAX, FeatureChoice, FeatureCount, FeatureSet, OPERATORS, Together};
use thiserror::Error;

/// Largest size of an expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 4096;
/// How deep parentheses may be nested.
const DEPTH_MAX: usize = 8;
/// Constraints that are no features: an expression cannot contain them.
const NOT_FEATURES: [&str; 10] = [
    "allow_cxl_memory",
    "core_count",
    "gpu_count",
    "memory_gb",
    "memory_policy",
    "prefer_local_memory",
    "prefer_same_numa",
    "require_conformance",
    "require_unified_memory",
    "socket_count",
];

/// What an expression asks of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expression {
    /// Features that each node must have.
    pub features: FeatureSet,
    /// What else it asks for.
    pub choice: Option<FeatureChoice>,
}

/// The text is not an expression.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("at character {at}: {problem}")]
pub struct ExpressionError {
    /// Where, in characters from 1.
    pub at: usize,
    /// What is wrong there, and what to write instead.
    pub problem: Problem,
}

/// What is wrong in an expression.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// No feature where one is expected.
    #[error("a feature such as nvme_scratch is expected")]
    Missing,
    /// A character that has no meaning there.
    #[error("{0:?} is not expected: join features with & or |")]
    Unexpected(char),
    /// A parenthesis or bracket that is not closed.
    #[error("this {0:?} is never closed")]
    Unclosed(char),
    /// `a|b&c`.
    #[error("& after | can mean two things: write a|(b&c), or (a|b)&c")]
    Mixed,
    /// `!a`.
    #[error("! is not supported: name the features that are wanted, and leave nodes out with --exclude")]
    Negation,
    /// Not a feature.
    #[error("{0:?} is not a feature: give a word such as nvme_scratch, or gpu_type=GH200")]
    Word(String),
    /// An amount or a preference.
    #[error("{0} is not a feature: join it with & or a comma to the whole, as in '(a|b)&memory_gb>=512'")]
    Amount(String),
    /// `a*x`.
    #[error("a number of nodes is expected after *, as in a*2")]
    Count,
    /// `(a|b)*2`, `a*2*3`.
    #[error("only a feature, or features in parentheses with & between them, can have a number of nodes")]
    CountOf,
    /// `a*2|b`, `(a*2|b)&c`.
    #[error("a part with a number of nodes cannot be an alternative: join it with &, as in a*2&b*4")]
    CountInAlternative,
    /// `[a|b]|c`, `[[a|b]&c]`.
    #[error("[...] cannot be an alternative or inside of another [...]: join it with &, as in [a|b]&c")]
    BracketInside,
    /// `[a|b]&c*2`.
    #[error("numbers of nodes and [a|b] are not possible together: give one of them")]
    SameAndCounted,
    /// Too many alternatives.
    #[error("more than {ALTERNATIVES_MAX} alternatives; parentheses multiply them")]
    TooMany,
    /// Too many features in an alternative.
    #[error("more than {FEATURES_MAX} features together")]
    TooManyFeatures,
    /// Too many parentheses inside of each other.
    #[error("more than {DEPTH_MAX} parentheses inside of each other")]
    TooDeep,
    /// The whole is too long.
    #[error("the expression has more than {EXPRESSION_BYTES_MAX} bytes")]
    TooLong,
    /// The whole is too long once products are multiplied out.
    #[error("multiplied out, the expression has more than {EXPRESSION_BYTES_MAX} bytes: name fewer features in parentheses")]
    TooLongMultiplied,
}

/// Parses an expression. An empty one asks for nothing.
///
/// # Errors
/// The first place that is wrong.
pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    if text.len() > EXPRESSION_BYTES_MAX {
        return Err(parser.error(0, Problem::TooLong));
    }
    parser.skip_blanks();
    if parser.peek().is_none() {
        return Ok(Expression::default());
    }
    let meaning = parser.expression()?;
    match parser.peek() {
        Some(other) => Err(parser.error(parser.at, Problem::Unexpected(other))),
        None => meaning.finish().map_err(|problem| parser.error(0, problem)),
    }
}

/// The request of a part: each node has one set of `any_of`, and all have the same one of `same`.
struct Meaning {
    /// Not empty. One empty set asks for nothing.
    any_of: Vec<FeatureSet>,
    /// Likewise.
    same: Vec<FeatureSet>,
    counts: Vec<FeatureCount>,
}

impl Meaning {
    fn feature(feature: String) -> Self {
        Self { any_of: vec![FeatureSet::from([feature])], same: vec![FeatureSet::new()], counts: Vec::new() }
    }

    /// Whether it asks only for features of each node.
    fn is_of_each_node(&self) -> bool {
        self.same.len() == 1 && self.counts.is_empty()
    }

    fn and(self, other: Self) -> Result<Self, Problem> {
        let (any_of, same) = (product(&self.any_of, &other.any_of)?, product(&self.same, &other.same)?);
        let counts = [self.counts, other.counts].concat();
        if counts.len() > ALTERNATIVES_MAX {
            return Err(Problem::TooMany);
        }
        if same.len() > 1 && !counts.is_empty() {
            return Err(Problem::SameAndCounted);
        }
        Ok(Self { any_of, same, counts })
    }

    fn or(self, other: Self) -> Result<Self, Problem> {
        if !self.counts.is_empty() || !other.counts.is_empty() {
            return Err(Problem::CountInAlternative);
        }
        if !self.is_of_each_node() || !other.is_of_each_node() {
            return Err(Problem::BracketInside);
        }
        let mut any_of = self.any_of;
        any_of.extend(other.any_of);
        Ok(Self { any_of: distinct(any_of.into_iter())?, ..self })
    }

    /// The meaning of this part in brackets.
    fn bracketed(self) -> Result<Self, Problem> {
        if self.same.len() > 1 {
            return Err(Problem::BracketInside);
        }
        if self.any_of.len() == 1 {
            return Ok(self);
        }
        if !self.counts.is_empty() {
            return Err(Problem::SameAndCounted);
        }
        Ok(Self { any_of: vec![FeatureSet::new()], same: self.any_of, counts: Vec::new() })
    }

    /// The meaning of this part for this many nodes.
    fn counted(self, nodes: u32) -> Result<Self, Problem> {
        if !self.is_of_each_node() {
            return Err(Problem::CountOf);
        }
        match <[FeatureSet; 1]>::try_from(self.any_of) {
            Ok([features]) => {
                let counts = vec![FeatureCount { nodes, features }];
                Ok(Self { any_of: vec![FeatureSet::new()], same: self.same, counts })
            }
            Err(_) => Err(Problem::CountOf),
        }
    }

    fn finish(self) -> Result<Expression, Problem> {
        let (mut features, mut choice) = (FeatureSet::new(), FeatureChoice::default());
        if self.any_of.len() == 1 {
            features.extend(self.any_of.into_iter().flatten());
        } else {
            choice.any_of = self.any_of;
        }
        if self.same.len() == 1 {
            features.extend(self.same.into_iter().flatten());
        } else {
            choice.together = Some(Together::Same(self.same));
        }
        if !self.counts.is_empty() {
            choice.together = Some(Together::Counted(self.counts));
        }
        if features.len() > FEATURES_MAX {
            return Err(Problem::TooManyFeatures);
        }
        // The choice is also sent and shown as a text, which must be readable again.
        if choice.to_string().len() > EXPRESSION_BYTES_MAX {
            return Err(Problem::TooLongMultiplied);
        }
        Ok(Expression { features, choice: Some(choice).filter(|choice| *choice != FeatureChoice::default()) })
    }
}

/// Each set of `one` united with each set of `other`.
fn product(one: &[FeatureSet], other: &[FeatureSet]) -> Result<Vec<FeatureSet>, Problem> {
    distinct(one.iter().flat_map(|a| other.iter().map(move |b| a | b)))
}

/// Each set once, within the bounds. Takes no further set once they are too many.
fn distinct(sets: impl Iterator<Item = FeatureSet>) -> Result<Vec<FeatureSet>, Problem> {
    let mut all: Vec<FeatureSet> = Vec::new();
    for set in sets {
        if set.len() > FEATURES_MAX {
            return Err(Problem::TooManyFeatures);
        }
        if !all.contains(&set) {
            all.push(set);
        }
        if all.len() > ALTERNATIVES_MAX {
            return Err(Problem::TooMany);
        }
    }
    Ok(all)
}

struct Parser<'t> {
    text: &'t str,
    /// The position of the next byte.
    at: usize,
    depth: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Skips this many bytes and the blanks behind them.
    fn skip(&mut self, bytes: usize) {
        self.at += bytes;
        self.skip_blanks();
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    /// The problem at this byte.
    fn error(&self, at: usize, problem: Problem) -> ExpressionError {
        ExpressionError { at: self.text[..at].chars().count() + 1, problem }
    }

    /// Parts with operators between them, from the left to the right.
    fn expression(&mut self) -> Result<Meaning, ExpressionError> {
        let mut meaning = self.part()?;
        let mut is_alternative = false;
        loop {
            let at = self.at;
            let joined = match self.peek() {
                Some('&' | ',') if is_alternative => return Err(self.error(at, Problem::Mixed)),
                Some('&' | ',') => {
                    self.skip(1);
                    let next = self.part()?;
                    meaning.and(next)
                }
                Some('|') => {
                    is_alternative = true;
                    self.skip(1);
                    let next = self.part()?;
                    meaning.or(next)
                }
                Some(_) | None => return Ok(meaning),
            };
            meaning = joined.map_err(|problem| self.error(at, problem))?;
        }
    }

    /// A feature, or parentheses or brackets, and perhaps a number of nodes.
    fn part(&mut self) -> Result<Meaning, ExpressionError> {
        let start = self.at;
        let mut meaning = match self.peek() {
            None => return Err(self.error(start, Problem::Missing)),
            Some('!') => return Err(self.error(start, Problem::Negation)),
            Some('(') => self.enclosed('(', ')')?,
            Some('[') => self.enclosed('[', ']')?.bracketed().map_err(|problem| self.error(start, problem))?,
            Some(operator) if OPERATORS.contains(&operator) => return Err(self.error(start, Problem::Unexpected(operator))),
            Some(_) => self.feature()?,
        };
        while self.peek() == Some('*') {
            self.skip(1);
            let (at, rest) = (self.at, self.rest());
            let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let nodes = rest[..digits].parse::<u32>().ok().filter(|nodes| *nodes > 0);
            let nodes = nodes.ok_or_else(|| self.error(at, Problem::Count))?;
            self.skip(digits);
            meaning = meaning.counted(nodes).map_err(|problem| self.error(start, problem))?;
        }
        Ok(meaning)
    }

    fn enclosed(&mut self, open: char, close: char) -> Result<Meaning, ExpressionError> {
        let start = self.at;
        if self.depth == DEPTH_MAX {
            return Err(self.error(start, Problem::TooDeep));
        }
        self.depth += 1;
        self.skip(1);
        let meaning = self.expression()?;
        self.depth -= 1;
        match self.peek() {
            Some(found) if found == close => {
                self.skip(1);
                Ok(meaning)
            }
            Some(other) => Err(self.error(self.at, Problem::Unexpected(other))),
            None => Err(self.error(start, Problem::Unclosed(open))),
        }
    }

    /// A word, or `key=value`; `:` may replace `=`.
    fn feature(&mut self) -> Result<Meaning, ExpressionError> {
        let (start, rest) = (self.at, self.rest());
        let len = rest.find(OPERATORS).unwrap_or(rest.len());
        let word = rest[..len].trim_end();
        let (key, value) = word.split_once(['=', ':']).map_or((word, None), |(key, value)| (key.trim(), Some(value.trim())));
        if NOT_FEATURES.contains(&key) || word.contains(['<', '>']) {
            return Err(self.error(start, Problem::Amount(word.chars().take(40).collect())));
        }
        let feature = value.map_or_else(|| key.to_owned(), |value| format!("{key}={value}"));
        // Only values of this key are features, not the key alone, as in a list of constraints.
        if !is_feature(&feature) || feature == GPU_TYPE {
            return Err(self.error(start, Problem::Word(word.chars().take(40).collect())));
        }
        self.skip(len);
        Ok(Meaning::feature(feature))
    }
}

#[cfg(test)]
mod tests;
