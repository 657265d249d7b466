//! Translates the options that were given, each by its rule, and then all of them together.

use super::arguments::Given;
use super::combination;
use super::job::{Job, Piece, refusal};
use super::option::{Around, Command, Meaning, Rule, SlurmOption};
use super::value_error::ValueError;
use crate::UsageError;
use crate::compat::Compat;
use std::collections::BTreeMap;

/// Rows of options that exclude each other: only the last given option of a row counts.
const EXCLUDING: [&[&str]; 4] =
    [&["mem", "mem-per-cpu", "mem-per-gpu"], &["gres", "gpus-per-node"], &["nodefile", "nodelist"], &["nice", "priority"]];

/// Translates the options that `command` was given: later options win. `environment` has the values of variables that
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
        match given.option.long {
            "chdir" => job.own.chdir = given.value.clone(),
            "clusters" => job.own.cluster = given.value.clone(),
            _ => {}
        }
        job.pieces.push(Piece { shown: given.shown(), words, is_typed: given.is_typed() });
    }
    combination::complete(command, &counting, &mut job)?;
    Ok(job)
}

/// The names of the options into which the sample of a row is translated, for a site that maps no names.
pub fn names_of_sample(option: &SlurmOption) -> Vec<String> {
    let Rule::By(translate) = option.rule else { return Vec::new() };
    let (compat, environment) = (Compat::default(), BTreeMap::new());
    let words = translate(option.sample, Around { compat: &compat, environment: &environment }).unwrap_or_default().words;
    words.iter().map(|word| word.split('=').next().unwrap_or(word).to_owned()).collect()
}

/// The options without those that a later one replaces. All options of the command itself stay, because some are counted.
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
