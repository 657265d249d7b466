//! `srun`: inside an allocation a launch, outside of one a job of its own. It runs what `lattice launch` runs.
//!
//! ```text
//!   srun's options ─▶ slurm::translate_with ─▶ words of `lattice launch` ─▶ Launch ─▶ command::launch
//!                                          └▶ what srun itself does ─▶ streams, step, programs
//! ```

mod programs;
mod step;
mod streams;

use super::arguments::texts;
use super::compat;
use crate::command::launch::{self, Srun};
use clap::Parser;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::linked;
use lattice_cli_session::output::print;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::launch::Launch;
use lattice_cli_syntax::args::{Cli, Command, Global};
use lattice_cli_syntax::compat::Compat;
use lattice_cli_syntax::flags::{Exclusive, Wireup};
use lattice_cli_syntax::later::Later;
use lattice_cli_syntax::slurm::{self, Arguments, OwnOptions, Translated, translate_with};
use lattice_slurm::commands::version_line;
use lattice_slurm::job_id::JobId;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The job's number, set by its agent.
const JOB_VARIABLE: &str = "SLURM_JOB_ID";
/// Variables that describe the allocation. Inside it they set no options: a launch has these values from the allocation
/// itself, and they could contradict an option on the command line.
const JOB_VARIABLES: [&str; 20] = [
    JOB_VARIABLE,
    "SLURM_JOBID",
    "SLURM_JOB_NAME",
    "SLURM_JOB_NUM_NODES",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_DISTRIBUTION",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_GRES",
    "SLURM_MEM_PER_NODE",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
    "SLURM_CPUS_PER_GPU",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_TIMELIMIT",
];
const USAGE: &str = "Usage: srun [OPTIONS...] PROGRAM [ARGUMENTS...]
       srun [OPTIONS...] --multi-prog FILE

Inside a job: starts the program as a step, on the nodes of the job.
Elsewhere: asks for nodes, waits for them, and runs the program there.

The options are those of Slurm's srun(1). What becomes of each is in the guide,
docs/reference/slurm-options.md; `lattice launch --help` shows the same command
with Lattice's own options.
";
/// The level of `srun`'s messages without -v and -Q, as ranks see it.
const SRUN_DEBUG_DEFAULT: u8 = 3;
const MPI_TYPES: &str = "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\n";

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let compat = compat::read()?;
    let ours = launch::own_allocation();
    let (args, environment) = (texts(args)?, variables(ours.is_some()));
    let Arguments { given, .. } = slurm::read_arguments(slurm::Command::Srun, "", &args)?;
    let given = [slurm::read_environment(slurm::Command::Srun, &environment), given].concat();
    if ours.is_some() || step::names_job(&given) {
        step::refuse_ranks_of_sockets(&given)?;
    }
    let Translated { words, notes, of_job, own, rest } = translate_with(slurm::Command::Srun, &args, &environment, &compat)?;
    if let Some(text) = information(&own) {
        print(&text)?;
        return Ok(0);
    }
    check_cluster(&own, &compat)?;
    let quiet = own.quiet > 0;
    let quieter = if quiet { Some(Session::new(&Global { quiet, ..Global::default() })?) } else { None };
    let session = quieter.as_ref().unwrap_or(session);
    notes.iter().for_each(|note| session.note(note));
    if rest.is_empty() {
        return Err(Failure::usage("No command given to execute."));
    }
    refuse_of_batch(&own)?;
    let other = other_allocation(&own, ours.as_deref())?;
    let is_inside = other.is_some() || ours.is_some();
    // A step has no share of its own.
    let words = if is_inside { words } else { [words, of_job].concat() };
    if is_inside {
        step::refuse_options(&words)?;
    }
    let mut launch = parse(&words, rest)?;
    launch.alloc = other;
    if !is_inside && launch.flags.vcluster.is_none() {
        launch.flags.vcluster = compat.default_partition.as_deref().map(|partition| compat.vcluster_of(partition).to_owned());
    }
    if own.exclusive && !is_inside {
        let flags = &mut launch.flags;
        // The job gets all of its nodes; the constraints of its words say how large they are.
        (flags.exclusive, flags.mem, flags.gpus, flags.amounts.mem_per_core) = (Some(Exclusive::Nodes), None, None, None);
    }
    set_own_options(&mut launch, &own)?;
    let dir = std::env::current_dir().map_err(|error| Failure::other(format!("cannot find the working directory: {error}")))?;
    let limit = if is_inside { step::restrict(session, &mut launch, &own, ours.as_deref()).await? } else { None };
    if own.multi_prog {
        programs::read(&mut launch, &dir)?;
    }
    let kills = own.kill_on_bad_exit.unwrap_or_else(|| is_mpi(&launch, &dir));
    (launch.flags.layout.kill_on_bad_exit, launch.flags.layout.no_kill_on_bad_exit) = (kills, !kills);
    let job = streams::job_values(is_inside && launch.alloc.is_none());
    streams::choose_input(&mut launch, &own, &dir, &job)?;
    let redirection = streams::redirection(&own, dir, job);
    let give_up_after = own.immediate_seconds.map(Duration::from_secs);
    Box::pin(launch::run_as(session, launch, Some(Srun { redirection, limit, give_up_after }))).await
}

/// The variables that set options, without those that describe the present allocation.
fn variables(is_inside: bool) -> BTreeMap<String, String> {
    let all = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, _)| !is_inside || !JOB_VARIABLES.contains(&name.as_str())).collect()
}

/// The text that is printed instead of a launch.
fn information(own: &OwnOptions) -> Option<String> {
    if own.version {
        return Some(version_line(env!("CARGO_PKG_VERSION")));
    }
    if own.help || own.usage {
        return Some(USAGE.to_owned());
    }
    (own.mpi.as_deref() == Some("list")).then(|| MPI_TYPES.to_owned())
}

fn check_cluster(own: &OwnOptions, compat: &Compat) -> Result<(), Failure> {
    match own.cluster.as_deref().filter(|cluster| *cluster != compat.cluster() && *cluster != "all") {
        None => Ok(()),
        Some(other) => Err(Failure::usage(format!("No cluster '{other}' known: this is cluster {}", compat.cluster()))
            .hint("leave --clusters out; LATTICE_ENDPOINT names an agent of another cluster")),
    }
}

/// Refuses options that only make sense for a job that nobody waits for.
fn refuse_of_batch(own: &OwnOptions) -> Result<(), Failure> {
    let given = [("--hold", own.hold), ("--test-only", own.test_only)].into_iter().find(|(_, given)| *given);
    match given {
        None => Ok(()),
        Some((option, _)) => {
            Err(Failure::usage(format!("{option} is not possible with srun, which waits for its program"))
                .hint(format!("use sbatch {option}")))
        }
    }
}

/// The options of `lattice launch` for these words, and its command.
fn parse(words: &[String], command: Vec<String>) -> Result<Launch, Failure> {
    let line = ["lattice", "launch"].map(str::to_owned).into_iter().chain(words.iter().cloned()).chain(["--".to_owned()]).chain(command);
    match Cli::try_parse_from(line) {
        Ok(Cli { command: Command::Launch(Later(launch)), .. }) => Ok(launch),
        Ok(_) => Err(Failure::other("the options are those of another command")),
        Err(error) => {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            Err(Failure::usage(first.trim_start_matches("error: ").replace('\n', " ")))
        }
    }
}

/// The allocation that `--jobid` names, if it is another one than that of this process.
fn other_allocation(own: &OwnOptions, ours: Option<&str>) -> Result<Option<String>, Failure> {
    let Some(typed) = own.jobid.as_deref().filter(|typed| !typed.is_empty()) else { return Ok(None) };
    if ours.is_some() && std::env::var(JOB_VARIABLE).is_ok_and(|number| number == typed) {
        return Ok(None);
    }
    let id = typed.parse::<JobId>().map_err(|error| Failure::usage(error.to_string()))?;
    id.key_with_task().map(Some).ok_or_else(|| Failure::usage(format!("--jobid={typed} names several jobs")))
}

/// Sets the options of a launch that `srun` has under other names.
fn set_own_options(launch: &mut Launch, own: &OwnOptions) -> Result<(), Failure> {
    // Programs that are started by srun read SLURM_PROCID and the like.
    launch.flags.layout.slurm_env = true;
    let log_level = SRUN_DEBUG_DEFAULT.saturating_add(own.verbose).saturating_sub(own.quiet);
    launch.flags.env.push(("SRUN_DEBUG".to_owned(), log_level.to_string()));
    launch.label |= own.label;
    launch.pty |= own.pty;
    if launch.label && launch.pty {
        return Err(Failure::usage("--label and --pty exclude each other"));
    }
    if launch.flags.chdir.is_none() {
        launch.flags.chdir.clone_from(&own.chdir);
    }
    if launch.flags.pmi.is_none() {
        launch.flags.pmi = own.mpi.as_deref().map(wireup).transpose()?;
    }
    Ok(())
}

/// `--mpi`: `pmix_v4` and the like are PMIx.
fn wireup(mpi: &str) -> Result<Wireup, Failure> {
    match mpi {
        "none" | "openmpi" => Ok(Wireup::None),
        "pmi" | "pmi1" | "pmi2" | "cray_shasta" => Ok(Wireup::Pmi),
        "auto" | "" => Ok(Wireup::Auto),
        pmix if pmix == "pmix" || pmix.starts_with("pmix_v") => Ok(Wireup::Pmix),
        other => Err(Failure::usage(format!("--mpi={other}: there is no such MPI type")).hint("`srun --mpi=list` lists them")),
    }
}

/// Whether the ranks are an MPI program: if one fails, the others would wait for it. The ranks of other programs continue
/// then, as in Slurm.
fn is_mpi(launch: &Launch, dir: &Path) -> bool {
    if matches!(launch.flags.pmi, Some(Wireup::Pmi | Wireup::Pmix)) {
        return true;
    }
    let env: HashMap<String, String> = std::env::var("PATH").ok().map(|path| ("PATH".to_owned(), path)).into_iter().collect();
    let dir: PathBuf = launch.flags.working_dir(dir);
    launch.command.first().is_some_and(|program| linked::is_mpi(program, &dir, &env))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn words_become_the_options_of_a_launch() {
        let launch = parse(&words("--nodes=2 --ntasks=4 --cpus-per-task=2"), words("./a -n 7 : x")).unwrap();
        assert_eq!((launch.flags.ranks, launch.flags.layout.cpus_per_task), (Some(4), Some(2)));
        assert_eq!(launch.command, words("./a -n 7 : x"));
        let refused = parse(&words("--nodes=x"), words("a")).err().unwrap().what();
        assert!(refused.contains("'x'") && !refused.contains("error:"), "{refused}");
    }

    #[test]
    fn what_srun_does_itself_is_set() {
        let own = OwnOptions { label: true, verbose: 2, mpi: Some("pmix_v5".into()), chdir: Some("/d".into()), ..OwnOptions::default() };
        let mut launch = parse(&[], words("a")).unwrap();
        set_own_options(&mut launch, &own).unwrap();
        assert!(launch.label && launch.flags.layout.slurm_env && is_mpi(&launch, Path::new("/")));
        assert_eq!((launch.flags.pmi, launch.flags.chdir.as_deref()), (Some(Wireup::Pmix), Some("/d")));
        assert_eq!(launch.flags.env, [("SRUN_DEBUG".to_owned(), "5".to_owned())]);
        let both = OwnOptions { label: true, pty: true, ..OwnOptions::default() };
        assert!(set_own_options(&mut launch, &both).is_err());
    }

    #[test]
    fn kinds_of_mpi_are_mapped() {
        let of = |mpi: &str| wireup(mpi).ok();
        assert_eq!(
            [of("pmi2"), of("none"), of("pmix"), of("pmix_v4"), of("x")],
            [Some(Wireup::Pmi), Some(Wireup::None), Some(Wireup::Pmix), Some(Wireup::Pmix), None]
        );
    }

    #[test]
    fn a_job_is_named_in_every_form() {
        let of = |typed: &str| {
            let own = OwnOptions { jobid: Some(typed.into()), ..OwnOptions::default() };
            other_allocation(&own, None).ok().flatten()
        };
        assert_eq!(
            [of("12"), of("12_7"), of(""), of("12_[1-2]"), of("x")],
            [Some("12".to_owned()), Some("12[7]".to_owned()), None, None, None]
        );
    }

    #[test]
    fn information_fits_eighty_columns() {
        assert!(USAGE.lines().all(|line| line.chars().count() <= 80));
        let list = OwnOptions { mpi: Some("list".into()), ..OwnOptions::default() };
        assert_eq!(information(&list).as_deref(), Some(MPI_TYPES));
        assert_eq!(information(&OwnOptions::default()), None);
    }
}
