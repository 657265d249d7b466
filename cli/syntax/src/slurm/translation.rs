//! Translates the options that were given, each by its rule, and then all of them together.

use super::arguments::Given;
use super::combination;
use super::option::{Around, Command, Meaning, Rule, ValueError};
use super::own::OwnOptions;
use crate::UsageError;
use crate::compat::Compat;
use std::collections::BTreeMap;

/// Options of which only the last counts, whichever of a row it is.
const EXCLUDING: [&[&str]; 3] = [&["mem", "mem-per-cpu", "mem-per-gpu"], &["gres", "gpus-per-node"], &["nodefile", "nodelist"]];

/// The options of `lattice submit` that one option became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The option as it was written, and where.
    pub shown: String,
    /// What it became.
    pub words: Vec<String>,
}

/// All options of a job, translated.
#[derive(Default)]
pub struct Job {
    /// What each option became, in their order.
    pub pieces: Vec<Piece>,
    /// Of `srun`: options that only a job of its own needs, and a step in an allocation does not.
    pub of_job: Vec<String>,
    /// What a person should know.
    pub notes: Vec<String>,
    /// What the command itself does.
    pub own: OwnOptions,
    /// The options that set `own`.
    pub own_given: Vec<Given>,
}

impl Job {
    /// The options of `lattice submit`.
    pub fn words(&self) -> Vec<String> {
        self.pieces.iter().flat_map(|piece| piece.words.iter().cloned()).collect()
    }

    /// The value of an option of `lattice submit`.
    pub(super) fn value_of(&self, ours: &str) -> Option<&str> {
        let words = self.pieces.iter().flat_map(|piece| &piece.words);
        words.filter_map(|word| word.strip_prefix(ours)?.strip_prefix('=')).next_back()
    }

    /// Whether an option of `lattice submit` without a value was given.
    pub(super) fn has_plain(&self, ours: &str) -> bool {
        self.pieces.iter().any(|piece| piece.words.iter().any(|word| word == ours))
    }
}

/// Translates the options that `command` was given: what comes later wins. `environment` has the values of variables that
/// `--export` only names.
///
/// # Errors
/// The first option that cannot be honoured, or that has a wrong value.
pub fn translate_job(command: Command, all: &[Given], environment: &BTreeMap<String, String>, compat: &Compat) -> Result<Job, UsageError> {
    let counting = last_of_each(all);
    let around = Around { compat, environment };
    let mut job = Job::default();
    for given in &counting {
        let value = given.value.as_deref().unwrap_or_default();
        let refused = |why: ValueError| refusal(given, &why);
        let words = match given.option.rule {
            Rule::Word(ours) => vec![format!("{ours}={value}")],
            Rule::Plain(ours) => vec![ours.to_owned()],
            Rule::By(translate) => {
                let Meaning { words, note } = translate(value, around).map_err(refused)?;
                job.notes.extend(note.map(|note| format!("{}: {note}", given.shown())));
                words
            }
            Rule::Own(sets, _) => {
                sets.apply(&mut job.own, value).map_err(refused)?;
                job.own_given.push(given.clone());
                continue;
            }
            Rule::Harmless(_) => {
                job.notes.push(format!("{} does not change the job, and is ignored", given.shown()));
                continue;
            }
            Rule::Refused(remedy) => {
                let what = format!("{}: it is not supported, and the job would be different without it", given.shown());
                return Err(UsageError { what, hint: Some(remedy.to_owned()) });
            }
        };
        if given.option.long == "chdir" {
            job.own.chdir = given.value.clone();
        }
        job.pieces.push(Piece { shown: given.shown(), words });
    }
    combination::complete(command, &counting, &mut job)?;
    Ok(job)
}

/// The error for a value of an option.
pub(super) fn refusal(given: &Given, why: &ValueError) -> UsageError {
    UsageError { what: format!("{}: {why}", given.shown()), hint: why.remedy().map(str::to_owned) }
}

/// The options without those that a later one replaces. Those of the command itself may be counted.
fn last_of_each(all: &[Given]) -> Vec<Given> {
    let replaces = |later: &Given, earlier: &Given| {
        let (later, earlier) = (later.option.long, earlier.option.long);
        later == earlier || EXCLUDING.iter().any(|group| group.contains(&later) && group.contains(&earlier))
    };
    let counts = |place: usize, given: &Given| {
        matches!(given.option.rule, Rule::Own(..)) || !all.iter().skip(place + 1).any(|later| replaces(later, given))
    };
    all.iter().enumerate().filter(|&(place, given)| counts(place, given)).map(|(_, given)| given.clone()).collect()
}
