//! The options that Slurm's commands handle themselves, instead of submitting them.

use super::value_error::ValueError;

/// The options of the command itself. The table says which of them a command has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnOptions {
    /// A command line that is the script.
    pub wrap: Option<String>,
    /// Print the job's number alone.
    pub parsable: bool,
    /// Wait for the end of the job, and exit with its code.
    pub wait: bool,
    /// Check the job and say when it could begin; submit nothing.
    pub test_only: bool,
    /// The job gets no nodes until it is released.
    pub hold: bool,
    /// How often `-Q` was given.
    pub quiet: u8,
    /// How often `-v` was given.
    pub verbose: u8,
    /// Begin each line of output with its rank.
    pub label: bool,
    /// Connect the terminal to the first rank.
    pub pty: bool,
    /// The program is a file of programs and their ranks.
    pub multi_prog: bool,
    /// Output is not buffered.
    pub unbuffered: bool,
    /// The allocation to run in.
    pub jobid: Option<String>,
    /// Get nodes, and return without a command.
    pub no_shell: bool,
    /// Where standard input comes from.
    pub input: Option<String>,
    /// Where standard output goes.
    pub output: Option<String>,
    /// Where standard error goes.
    pub error: Option<String>,
    /// `append` or `truncate`, for these files.
    pub open_mode: Option<String>,
    /// How ranks find each other.
    pub mpi: Option<String>,
    /// The directory to run in; it is an option of the job as well.
    pub chdir: Option<String>,
    /// The name of the cluster that was asked for.
    pub cluster: Option<String>,
    /// Give up if there are no nodes within this many seconds.
    pub immediate_seconds: Option<u64>,
    /// Whether a rank that fails ends the others.
    pub kill_on_bad_exit: Option<bool>,
    /// The signal that ends the command of `salloc` when its job ends; empty: SIGTERM.
    pub kill_command: Option<String>,
    /// Ring the terminal's bell when there are nodes.
    pub bell: bool,
    /// A step shares the cores of other steps.
    pub overlap: bool,
    /// A step gets cores of its own. For a job: whole nodes.
    pub exclusive: bool,
    /// The ranks may outnumber the cores.
    pub overcommit: bool,
    /// The number, from 0, of the first node of a step among those of its job.
    pub relative: Option<u32>,
    /// Show the help.
    pub help: bool,
    /// Show the usage.
    pub usage: bool,
    /// Show the version.
    pub version: bool,
}

/// The field of [`OwnOptions`] that an option of Slurm sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sets {
    Bell,
    Error,
    Exclusive,
    Help,
    Hold,
    Immediate,
    Input,
    JobId,
    KillCommand,
    KillOnBadExit,
    Label,
    Mpi,
    MultiProg,
    NoBell,
    NoShell,
    OpenMode,
    Output,
    Overcommit,
    Overlap,
    Parsable,
    Pty,
    Quiet,
    Relative,
    TestOnly,
    Unbuffered,
    Usage,
    Verbose,
    Version,
    Wait,
    Wrap,
}

impl Sets {
    /// Sets it. An optional value that is missing is empty.
    pub(super) fn apply(self, own: &mut OwnOptions, value: &str) -> Result<(), ValueError> {
        let text = || Some(value.to_owned());
        match self {
            Self::Bell => own.bell = true,
            Self::NoBell => own.bell = false,
            Self::Error => own.error = text(),
            Self::Exclusive => {
                if !matches!(value, "" | "1" | "yes") {
                    return Err(ValueError::not_honoured(value, "use --exclusive alone"));
                }
                own.exclusive = true;
            }
            Self::Help => own.help = true,
            Self::Hold => own.hold = true,
            Self::Immediate => own.immediate_seconds = Some(immediate(value)?),
            Self::Input => own.input = text(),
            Self::JobId => own.jobid = text(),
            Self::KillCommand => own.kill_command = text(),
            Self::KillOnBadExit => {
                own.kill_on_bad_exit = Some(match value {
                    "" | "1" => true,
                    "0" => false,
                    other => return Err(ValueError::Choice(other.to_owned(), "0 or 1")),
                });
            }
            Self::Label => own.label = true,
            Self::Mpi => own.mpi = text(),
            Self::MultiProg => own.multi_prog = true,
            Self::NoShell => own.no_shell = true,
            Self::OpenMode => match value {
                "append" | "a" => own.open_mode = Some("append".to_owned()),
                "truncate" | "t" => own.open_mode = Some("truncate".to_owned()),
                other => return Err(ValueError::Choice(other.to_owned(), "append or truncate")),
            },
            Self::Output => own.output = text(),
            Self::Overcommit => own.overcommit = true,
            Self::Overlap => own.overlap = true,
            Self::Parsable => own.parsable = true,
            Self::Pty => own.pty = true,
            Self::Quiet => own.quiet = own.quiet.saturating_add(1),
            Self::Relative => {
                own.relative = Some(value.parse().map_err(|_| ValueError::Number(value.to_owned(), "a node of the job, from 0"))?);
            }
            Self::TestOnly => own.test_only = true,
            Self::Unbuffered => own.unbuffered = true,
            Self::Usage => own.usage = true,
            Self::Verbose => own.verbose = own.verbose.saturating_add(1),
            Self::Version => own.version = true,
            Self::Wait => own.wait = true,
            Self::Wrap => own.wrap = text(),
        }
        Ok(())
    }
}

/// `--immediate`: without a value, at once.
fn immediate(value: &str) -> Result<u64, ValueError> {
    if value.is_empty() {
        return Ok(1);
    }
    value.parse().map_err(|_| ValueError::Number(value.to_owned(), "seconds"))
}
