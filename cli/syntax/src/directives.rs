//! The options in a script's `#LATTICE` and `#SBATCH` lines.
//!
//! They are read up to the first line that is neither a comment nor blank. `#LATTICE` lines take the options of
//! `lattice submit`, as `--nodes=4`, `nodes=4` or `-N 4`; an unknown option is an error. The table of
//! [`crate::slurm`] translates `#SBATCH` lines: an option that would change the job and is not supported is an error, and
//! the few options that do not change the job cause a warning. If both set an option, `#LATTICE` wins. A script with
//! `#SBATCH` lines gets Slurm's variables (`--slurm-env`).
//!
//! `sbatch` reads the same lines, together with its command line and its variables ([`read_for_sbatch`]).
//!
//! `--walltime`, `--service` and `--reactive` contradict each other. Two such `#LATTICE` lines are refused. Otherwise a
//! warning names the one that wins and the one that is left out.

mod option_parser;
pub mod words;

use crate::UsageError;
use crate::compat::Compat;
use crate::flags::SubmitFlags;
use crate::scaling::{LEAVE_ONE_OUT, SERVICE_OR_REACTIVE, ScalingFlags};
use crate::slurm::{self, Given, Job, OwnOptions, Piece, Rule};
use crate::tasks::TaskFlags;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ColorChoice, Parser};
use std::collections::BTreeMap;
use words::split_words;

/// The file of a job of `sbatch` that names none, and of each task of an array.
const OUTPUT_FILE: &str = "--output=slurm-%j.out";
const OUTPUT_FILE_OF_TASK: &str = "--output=slurm-%A_%a.out";

/// The options of a script's lines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// The script's name, for messages.
    pub name: String,
    /// The options.
    pub flags: SubmitFlags,
    /// Its tasks, if it is to be a task group.
    pub tasks: TaskFlags,
    /// How it scales, if it is to be a service that does.
    pub scaling: ScalingFlags,
    /// Warnings about options that are ignored or left out, for people.
    pub warnings: Vec<String>,
}

/// The options of one line, or of a step of a DAG.
#[derive(Clone, Parser, Default, PartialEq, Eq)]
#[command(no_binary_name = true, disable_help_flag = true, color = ColorChoice::Never)]
pub(crate) struct Line {
    #[command(flatten)]
    pub(crate) flags: SubmitFlags,
    #[command(flatten)]
    pub(crate) tasks: TaskFlags,
    #[command(flatten)]
    pub(crate) scaling: ScalingFlags,
}

/// An option that says how long work lasts. Any two of them contradict each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifetime {
    Walltime,
    Service,
    Reactive,
}

impl Lifetime {
    fn option(self) -> &'static str {
        match self {
            Self::Walltime => "--walltime",
            Self::Service => "--service",
            Self::Reactive => "--reactive",
        }
    }

    /// Why these two cannot both be given.
    fn contradiction(self, other: Self) -> String {
        match (self, other) {
            (Self::Walltime, endless) | (endless, Self::Walltime) => format!("--walltime ends the work, {} has no end", endless.option()),
            (Self::Service | Self::Reactive, Self::Service | Self::Reactive) => SERVICE_OR_REACTIVE.to_owned(),
        }
    }
}

impl Line {
    /// Whether it has no option.
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The options that say how long it lasts.
    fn lifetimes(&self) -> Vec<Lifetime> {
        let given = [
            (Lifetime::Walltime, self.flags.walltime.is_some()),
            (Lifetime::Service, self.flags.service),
            (Lifetime::Reactive, self.scaling.reactive),
        ];
        given.into_iter().filter(|(_, set)| *set).map(|(lifetime, _)| lifetime).collect()
    }

    /// Removes the options of `under` that contradict `self`. Returns a warning about each; `of` names the lines of
    /// `under`.
    fn leave_out(&self, under: &mut Self, of: &str) -> Vec<String> {
        let given = self.lifetimes();
        let Some(winner) = given.first() else { return Vec::new() };
        let mut warnings = Vec::new();
        for lifetime in under.lifetimes().into_iter().filter(|lifetime| !given.contains(lifetime)) {
            let mut its_options = "";
            match lifetime {
                Lifetime::Walltime => under.flags.walltime = None,
                Lifetime::Service => under.flags.service = false,
                Lifetime::Reactive => {
                    under.scaling = ScalingFlags::default();
                    its_options = ", with its options,";
                }
            }
            warnings.push(format!("{} is given: {} of {of}{its_options} is left out", winner.option(), lifetime.option()));
        }
        warnings
    }

    /// Merges the options of two lines: a value of `self` wins over one of `under`.
    fn merge_over(self, under: Self) -> Self {
        Self {
            flags: self.flags.merge_over(under.flags),
            tasks: self.tasks.merge_over(under.tasks),
            scaling: self.scaling.merge_over(under.scaling),
        }
    }
}

impl Directives {
    /// The options of a submission, or of a step of a DAG, with those of its script: a value of the former wins.
    #[must_use]
    pub fn under(self, flags: SubmitFlags, tasks: TaskFlags, scaling: ScalingFlags) -> Self {
        let Self { name, flags: of_script, tasks: tasks_of_script, scaling: scaling_of_script, mut warnings } = self;
        let mut of_script = Line { flags: of_script, tasks: tasks_of_script, scaling: scaling_of_script };
        let given = Line { flags, tasks, scaling };
        warnings.extend(given.leave_out(&mut of_script, &name));
        let Line { flags, tasks, scaling } = given.merge_over(of_script);
        Self { name, flags, tasks, scaling, warnings }
    }
}

/// Reads the lines of the script `name`, for `lattice submit`. `compat` has the site's names of Slurm.
///
/// # Errors
/// An unknown or unsupported option, an invalid value, or two lines that contradict each other. The error names its
/// line and a remedy.
pub fn read(name: &str, script: &str, compat: &Compat) -> Result<Directives, UsageError> {
    let Lines { lattice, slurm, has_slurm } = lines(name, script)?;
    let (mut slurm, mut warnings) = if has_slurm {
        let job = slurm::translate_job(slurm::Command::Sbatch, &slurm, &BTreeMap::new(), compat)?;
        let mut line = parse_pieces(name, &job.pieces)?;
        line.flags.layout.slurm_env = true;
        (line, warnings_of(job)?)
    } else {
        (Line::default(), Vec::new())
    };
    warnings.extend(lattice.leave_out(&mut slurm, &format!("the #SBATCH lines of {name}")));
    let Line { flags, tasks, scaling } = lattice.merge_over(slurm);
    Ok(Directives { name: name.to_owned(), flags, tasks, scaling, warnings })
}

/// The warnings about `#SBATCH` lines that another command than `sbatch` submits.
fn warnings_of(job: Job) -> Result<Vec<String>, UsageError> {
    let mut warnings = job.notes;
    for given in &job.own_given {
        match given.option.rule {
            Rule::Own(_, remedy) if !remedy.is_empty() => {
                let what = format!("{}: it is an option of the submitting command", given.shown());
                return Err(UsageError::new(what).with_hint(remedy));
            }
            _ if ["quiet", "verbose"].contains(&given.option.long) => {
                warnings.push(format!("{} does not change the job, and is ignored", given.shown()));
            }
            _ => {}
        }
    }
    Ok(warnings)
}

/// Reads the lines of the script `name`, the options `given` to `sbatch`, and its variables. The command line wins over
/// `#LATTICE` lines, `#LATTICE` lines over variables, and variables over `#SBATCH` lines. A job that names no output
/// file gets Slurm's default one.
///
/// # Errors
/// As [`read`].
pub fn read_for_sbatch(
    name: &str,
    script: &str,
    given: &[Given],
    environment: &BTreeMap<String, String>,
    compat: &Compat,
) -> Result<(Directives, OwnOptions), UsageError> {
    let sbatch = slurm::Command::Sbatch;
    let Lines { lattice, slurm: mut under, .. } = lines(name, script)?;
    under.extend(slurm::read_environment(sbatch, environment));
    let all: Vec<Given> = under.iter().chain(given).cloned().collect();
    let job = slurm::translate_job(sbatch, &all, environment, compat)?;
    let is_array = job.value_of("--array").is_some() || lattice.tasks != TaskFlags::default();
    let mut defaults = Vec::new();
    if job.value_of("--output").is_none() {
        defaults.push((if is_array { OUTPUT_FILE_OF_TASK } else { OUTPUT_FILE }).to_owned());
    }
    if let Some(partition) = compat.default_partition.as_deref().filter(|_| job.value_of("--vcluster").is_none()) {
        defaults.push(format!("--vcluster={}", compat.vcluster_of(partition)));
    }
    let defaults = Piece { shown: "the site's defaults".to_owned(), words: defaults, is_typed: false };
    let mut warnings = job.notes;
    let pieces: Vec<Piece> = std::iter::once(defaults).chain(job.pieces).collect();
    let mut line = if lattice.is_empty() {
        parse_pieces(name, &pieces)?
    } else {
        let (typed, others): (Vec<Piece>, Vec<Piece>) = pieces.into_iter().partition(|piece| piece.is_typed);
        let over = parse_pieces(name, &typed)?;
        let mut under = parse_pieces(name, &others)?;
        let mut lattice = lattice;
        warnings.extend(lattice.leave_out(&mut under, &format!("the #SBATCH lines of {name}")));
        warnings.extend(over.leave_out(&mut lattice, name));
        warnings.extend(over.leave_out(&mut under, name));
        over.merge_over(lattice).merge_over(under)
    };
    line.flags.layout.slurm_env = true;
    let Line { flags, tasks, scaling } = line;
    Ok((Directives { name: name.to_owned(), flags, tasks, scaling, warnings }, job.own))
}

/// Parses options of `lattice submit` into which the options of a command of Slurm were translated.
///
/// # Errors
/// A value is wrong.
pub fn parse_words(command: &str, words: &[String]) -> Result<SubmitFlags, UsageError> {
    Line::from_words(words).map(|line| line.flags).map_err(|error| explained(command, &error))
}

/// The lines of a script.
struct Lines {
    /// The options of its `#LATTICE` lines.
    lattice: Line,
    /// The options of its `#SBATCH` lines.
    slurm: Vec<Given>,
    /// Whether it has `#SBATCH` lines, even if all of them are empty.
    has_slurm: bool,
}

fn lines(name: &str, script: &str) -> Result<Lines, UsageError> {
    let mut lines = Lines { lattice: Line::default(), slurm: Vec::new(), has_slurm: false };
    let mut lifetime: Option<(Lifetime, usize)> = None;
    for (index, line) in script.lines().enumerate() {
        let place = format!("{name} line {}", index + 1);
        let line = line.trim_end();
        if !(line.trim_start().is_empty() || line.trim_start().starts_with('#')) {
            break;
        }
        if let Some(rest) = strip_marker(line, "#LATTICE") {
            let given = split_words(rest).map_err(|why| UsageError::new(format!("{place}: #LATTICE: {why}")))?;
            let line = parse(&place, "#LATTICE", add_dashes(given))?;
            for given in line.lifetimes() {
                let (first, number) = *lifetime.get_or_insert((given, index + 1));
                if first != given {
                    let place = if number == index + 1 { place } else { format!("{name} lines {number} and {}", index + 1) };
                    let what = format!("{place}: #LATTICE: {}", first.contradiction(given));
                    return Err(UsageError::new(what).with_hint(LEAVE_ONE_OUT));
                }
            }
            lines.lattice = line.merge_over(lines.lattice);
        } else if let Some(rest) = strip_marker(line, "#SBATCH") {
            let words = split_words(rest).map_err(|why| UsageError::new(format!("{place}: #SBATCH: {why}")))?;
            lines.slurm.extend(slurm_line(&place, &words)?);
            lines.has_slurm = true;
        }
    }
    Ok(lines)
}

/// The options of one `#SBATCH` line.
fn slurm_line(place: &str, words: &[String]) -> Result<Vec<Given>, UsageError> {
    if let [word @ ("hetjob" | "packjob")] = words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        let what = format!("{place}: #SBATCH {word}: it is not supported, and the job would be different without it");
        return Err(UsageError::new(what).with_hint(slurm::NOT_HETEROGENEOUS));
    }
    let slurm::Arguments { given, rest } = slurm::read_arguments(slurm::Command::Sbatch, &format!("{place}: #SBATCH "), words)?;
    match rest.first() {
        None => Ok(given),
        Some(word) => Err(UsageError::new(format!("{place}: #SBATCH {word}: there is no such option"))
            .with_hint("an option begins with a dash: write --name=VALUE")),
    }
}

/// Parses the translated options of Slurm. An error names the option as it was written.
fn parse_pieces(name: &str, pieces: &[Piece]) -> Result<Line, UsageError> {
    let all: Vec<&String> = pieces.iter().flat_map(|piece| &piece.words).collect();
    let error = match Line::from_words(&all) {
        Ok(line) => return Ok(line),
        Err(error) => error,
    };
    for piece in pieces {
        if let Err(error) = Line::from_words(&piece.words) {
            return Err(explained(&piece.shown, &error));
        }
    }
    // Each option is valid alone, but they contradict each other.
    Err(explained(name, &error))
}

/// The parser's error, as the first line of its text.
fn explained(subject: &str, error: &clap::Error) -> UsageError {
    let text = error.to_string();
    let first_line = text.lines().next().unwrap_or_default();
    UsageError::new(format!("{subject}: {}", first_line.strip_prefix("error: ").unwrap_or(first_line)))
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
    Line::from_words(&words).map_err(|error| {
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
        explained(&format!("{place}: {marker}"), &error)
    })
}

#[cfg(test)]
mod tests;
