//! `#SBATCH` options in our words (documents, "Compatibility API": command mapping).

use lattice_model::duration::{self, BareNumber};

/// One line, translated.
pub struct Translated {
    /// Options of `lattice submit`, or what is wrong with a value.
    pub words: Result<Vec<String>, String>,
    /// Options that are not known, as they were written.
    pub unknown: Vec<String>,
}

/// How an option of Slurm is said here.
#[derive(Clone, Copy)]
enum Ours {
    /// The same value under this name.
    Value(&'static str),
    /// A time, minutes where it is a bare number.
    Time,
    /// Without a value.
    Plain(&'static str),
}

/// `--array` and `--dependency` change what runs and when, so they are translated although the server refuses them so far.
const KNOWN: [(&str, Option<char>, Ours); 13] = [
    ("nodes", Some('N'), Ours::Value("--nodes")),
    ("ntasks-per-node", None, Ours::Value("--tasks-per-node")),
    ("time", Some('t'), Ours::Time),
    ("job-name", Some('J'), Ours::Value("--name")),
    ("uenv", None, Ours::Value("--uenv")),
    ("account", Some('A'), Ours::Value("--tenant")),
    ("constraint", Some('C'), Ours::Value("--constraint")),
    ("partition", Some('p'), Ours::Value("--vcluster")),
    ("requeue", None, Ours::Plain("--requeue=on_node_failure")),
    ("no-requeue", None, Ours::Plain("--requeue=never")),
    ("export", None, Ours::Value("--export")),
    ("array", Some('a'), Ours::Value("--task-group")),
    ("dependency", Some('d'), Ours::Value("--depends-on")),
];

/// Translates the words of one line.
pub fn translate(words: &[String]) -> Translated {
    let mut translated = Translated { words: Ok(Vec::new()), unknown: Vec::new() };
    let mut rest = words.iter().peekable();
    while let Some(word) = rest.next() {
        let (known, mut value) = look_up(word);
        let mut next_is_value = || rest.peek().is_some_and(|next| !next.starts_with('-'));
        let Some(ours) = known else {
            translated.unknown.push(word.clone());
            // Its value, where that stands apart.
            if value.is_none() && word.starts_with('-') && next_is_value() {
                rest.next();
            }
            continue;
        };
        if value.is_none() && !matches!(ours, Ours::Plain(_)) && next_is_value() {
            value = rest.next().cloned();
        }
        if let Ok(out) = &mut translated.words {
            match said(ours, value, word) {
                Ok(option) => out.push(option),
                Err(why) => translated.words = Err(why),
            }
        }
    }
    translated
}

fn said(ours: Ours, value: Option<String>, word: &str) -> Result<String, String> {
    let value = || value.ok_or_else(|| format!("{word}: a value is needed"));
    match ours {
        Ours::Value(name) => Ok(format!("{name}={}", value()?)),
        Ours::Time => {
            let time = duration::parse(&value()?, BareNumber::Minutes).map_err(|error| format!("{word}: {error}"))?;
            Ok(format!("--walltime={}s", time.as_secs()))
        }
        Ours::Plain(option) => Ok(option.to_owned()),
    }
}

/// The option that a word is, with the value that is joined to it.
fn look_up(word: &str) -> (Option<Ours>, Option<String>) {
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long, None),
        };
        return (KNOWN.iter().find(|(known, ..)| *known == name).map(|known| known.2), value);
    }
    let mut chars = word.chars();
    let letter = if chars.next() == Some('-') { chars.next() } else { None };
    let joined = chars.as_str();
    let value = (letter.is_some() && !joined.is_empty()).then(|| joined.strip_prefix('=').unwrap_or(joined).to_owned());
    (KNOWN.iter().find(|(_, short, _)| letter.is_some() && *short == letter).map(|known| known.2), value)
}
