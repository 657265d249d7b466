//! The options in a script's `#LATTICE` and `#SBATCH` lines.
//!
//! They are read up to the first line that is neither a comment nor blank. `#LATTICE` lines take the options of
//! `lattice submit`, as `--nodes=4`, `nodes=4` or `-N 4`; an unknown option is an error. One table
//! ([`sbatch::OPTIONS`]) translates `#SBATCH` lines: an option that would change the job and is not supported is an
//! error, and the few options that do not change the job cause a warning. If both set an option, `#LATTICE` wins. A
//! script with `#SBATCH` lines gets Slurm's variables (`--slurm-env`).

pub(crate) mod sbatch;
mod slurm_values;
pub mod words;

use crate::UsageError;
use crate::flags::SubmitFlags;
use crate::scaling::ScalingFlags;
use crate::tasks::TaskFlags;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ColorChoice, Parser};
use words::split_words;

/// The options of a script's lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// The options.
    pub flags: SubmitFlags,
    /// Its tasks, if it is to be a task group.
    pub tasks: TaskFlags,
    /// How it scales, if it is to be a service that does.
    pub scaling: ScalingFlags,
    /// Warnings about ignored options, for people.
    pub warnings: Vec<String>,
}

/// The options of one line, or of a step of a DAG.
#[derive(Clone, Parser, Default)]
#[command(no_binary_name = true, disable_help_flag = true, color = ColorChoice::Never)]
pub(crate) struct Line {
    #[command(flatten)]
    pub(crate) flags: SubmitFlags,
    #[command(flatten)]
    pub(crate) tasks: TaskFlags,
    #[command(flatten)]
    pub(crate) scaling: ScalingFlags,
}

impl Line {
    /// Merges the options of two lines: a value of `self` wins over one of `under`.
    fn merge_over(self, mut under: Self) -> Self {
        // `--walltime` and `--reactive` exclude each other: `self` decides.
        if self.scaling.reactive {
            under.flags.walltime = None;
        } else if self.flags.walltime.is_some() {
            under.scaling = ScalingFlags::default();
        }
        Self {
            flags: self.flags.merge_over(under.flags),
            tasks: self.tasks.merge_over(under.tasks),
            scaling: self.scaling.merge_over(under.scaling),
        }
    }
}

impl Directives {
    /// The options of a submission, or of a step of a DAG, with those of its script: a value of the former wins.
    pub fn under(self, flags: SubmitFlags, tasks: TaskFlags, scaling: ScalingFlags) -> (SubmitFlags, TaskFlags, ScalingFlags) {
        let of_script = Line { flags: self.flags, tasks: self.tasks, scaling: self.scaling };
        let Line { flags, tasks, scaling } = Line { flags, tasks, scaling }.merge_over(of_script);
        (flags, tasks, scaling)
    }
}

/// Reads the lines of the script `name`.
///
/// # Errors
/// An unknown or unsupported option, or an invalid value. The error names its line and a remedy.
pub fn read(name: &str, script: &str) -> Result<Directives, UsageError> {
    let (mut lattice, mut slurm) = (Line::default(), Line::default());
    let mut warnings = Vec::new();
    for (index, line) in script.lines().enumerate() {
        let place = format!("{name} line {}", index + 1);
        let line = line.trim_end();
        if !(line.trim_start().is_empty() || line.trim_start().starts_with('#')) {
            break;
        }
        if let Some(rest) = strip_marker(line, "#LATTICE") {
            let given = split_words(rest).map_err(|why| UsageError::new(format!("{place}: #LATTICE: {why}")))?;
            lattice = parse(&place, "#LATTICE", add_dashes(given))?.merge_over(lattice);
        } else if let Some(rest) = strip_marker(line, "#SBATCH") {
            let given = split_words(rest).map_err(|why| UsageError::new(format!("{place}: #SBATCH: {why}")))?;
            let refused = |error: UsageError| UsageError { what: format!("{place}: #SBATCH {}", error.what), ..error };
            let translated = sbatch::translate(&given).map_err(refused)?;
            let ignored = |option: &String| format!("{place}: #SBATCH {option} does not change the job, and is ignored");
            warnings.extend(translated.ignored.iter().map(ignored));
            slurm = parse(&place, "#SBATCH", translated.words)?.merge_over(slurm);
            slurm.flags.layout.slurm_env = true;
        }
    }
    let Line { flags, tasks, scaling } = lattice.merge_over(slurm);
    Ok(Directives { flags, tasks, scaling, warnings })
}

/// The rest of a line that begins with this marker as a separate word.
fn strip_marker<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    line.strip_prefix(marker).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

/// Adds dashes: `nodes=4 name=x` becomes `--nodes=4 --name=x`. A line that begins with a dash is not changed.
fn add_dashes(mut words: Vec<String>) -> Vec<String> {
    let Some(first) = words.first().filter(|first| !first.starts_with('-')) else { return words };
    let pairs = first.contains('=');
    for (index, word) in words.iter_mut().enumerate() {
        if index == 0 || (pairs && word.contains('=') && !word.starts_with('-')) {
            word.insert_str(0, "--");
        }
    }
    words
}

pub(crate) fn parse(place: &str, marker: &str, words: Vec<String>) -> Result<Line, UsageError> {
    Line::try_parse_from(&words).map_err(|error| {
        let context = |kind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            Some(ContextValue::Strings(texts)) => texts.first().cloned(),
            _ => None,
        };
        if error.kind() == ErrorKind::UnknownArgument {
            let option = context(ContextKind::InvalidArg).unwrap_or_default();
            let unknown = UsageError::new(format!("{place}: {marker} {option}: there is no such option"));
            return match context(ContextKind::SuggestedArg) {
                Some(meant) => unknown.with_hint(format!("did you mean {meant}?")),
                None => unknown.with_hint("`lattice submit --help` lists the options"),
            };
        }
        let text = error.to_string();
        let first_line = text.lines().next().unwrap_or_default();
        UsageError::new(format!("{place}: {marker}: {}", first_line.strip_prefix("error: ").unwrap_or(first_line)))
    })
}

#[cfg(test)]
mod tests;
