//! Where the ranks of `srun` read their input, and where their output goes.

use lattice_cli_session::failure::Failure;
use lattice_cli_session::feeder;
use lattice_cli_session::redirection::{Redirection, Target};
use lattice_cli_syntax::args::launch::Launch;
use lattice_cli_syntax::slurm::OwnOptions;
use lattice_model::Stdin;
use lattice_slurm::file_name::{FileName, JobValues, RankValues};
use nix::unistd::{User, getuid};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The values of the job that are known without a request. `ours`: it is the job of this process.
pub fn job_values(ours: bool) -> JobValues {
    let variable = |name: &str| if ours { std::env::var(name).ok() } else { None };
    let number = |name: &str| variable(name).and_then(|text| text.parse::<u64>().ok());
    let of_job = number("SLURM_JOB_ID").unwrap_or_default();
    JobValues {
        number: of_job,
        group: number("SLURM_ARRAY_JOB_ID").unwrap_or(of_job),
        index: variable("LATTICE_TASK_INDEX").and_then(|text| text.parse().ok()),
        user: User::from_uid(getuid()).ok().flatten().map_or_else(|| getuid().to_string(), |user| user.name),
        name: variable("SLURM_JOB_NAME").unwrap_or_default(),
        nodes: Vec::new(),
    }
}

/// Chooses the ranks that read standard input; a file becomes the standard input of this process. As in Slurm, all ranks
/// read by default.
pub fn choose_input(launch: &mut Launch, own: &OwnOptions, dir: &Path, job: &JobValues) -> Result<(), Failure> {
    if launch.pty {
        return match own.input.as_deref() {
            None | Some("all" | "none" | "0") => Ok(()),
            Some(other) => Err(Failure::usage(format!("--pty: the terminal is the input, so --input={other} cannot be used"))),
        };
    }
    launch.stdin = match own.input.as_deref() {
        // Work that may run again cannot read standard input again.
        None if launch.flags.requeue.is_some() => None,
        None => Some(if feeder::has_input_for_srun() { Stdin::All } else { Stdin::None }),
        Some("all") => Some(Stdin::All),
        Some("none") => Some(Stdin::None),
        Some(text) => match text.parse() {
            Ok(rank) => Some(Stdin::Rank(rank)),
            Err(_) => {
                read_from(text, dir, job)?;
                Some(Stdin::All)
            }
        },
    };
    Ok(())
}

fn read_from(text: &str, dir: &Path, job: &JobValues) -> Result<(), Failure> {
    let name = FileName::parse(text);
    if name.is_split() || name.needs_step() {
        return Err(Failure::usage(format!("--input={text}: the ranks of a launch read one file"))
            .hint("let each rank open its own file: sh -c './program < in.$SLURM_PROCID'"));
    }
    if name.needs_number() && job.number == 0 {
        return Err(Failure::usage(format!("--input={text}: the job has no number yet")).hint("name the file without %j"));
    }
    let path = dir.join(name.resolve(job, &RankValues { step: 0, rank: 0, node: "" }));
    let cannot = |error: std::io::Error| Failure::usage(format!("cannot read --input={text}, {}: {error}", path.display()));
    let file = File::open(&path).map_err(cannot)?;
    nix::unistd::dup2_stdin(&file).map_err(|error| cannot(error.into()))
}

/// Where output goes; `None`: to this process's own streams. Without `-e`, errors go where output goes.
pub fn redirection(own: &OwnOptions, dir: PathBuf, job: JobValues) -> Option<Redirection> {
    let target = |given: &Option<String>| given.as_deref().filter(|text| !text.is_empty()).map(Target::parse);
    let (stdout, stderr) = (target(&own.output), target(&own.error));
    if stdout.is_none() && stderr.is_none() {
        return None;
    }
    let stdout = stdout.unwrap_or(Target::Own);
    let stderr = stderr.unwrap_or_else(|| stdout.clone());
    let append = own.open_mode.as_deref().is_some_and(|mode| mode.starts_with('a'));
    Some(Redirection::new(stdout, stderr, append, own.label, dir, job))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::label::Source;
    use lattice_cli_session::redirection::Route;

    #[test]
    fn errors_go_where_output_goes_unless_they_have_a_target() {
        let routes = |output: Option<&str>, error: Option<&str>| {
            let own = OwnOptions { output: output.map(str::to_owned), error: error.map(str::to_owned), ..OwnOptions::default() };
            let to = redirection(&own, "/d".into(), JobValues::default())?;
            Some([false, true].map(|stderr| to.route(&Source { launch: 1, rank: 0, stderr })))
        };
        assert_eq!(routes(None, None), None);
        assert_eq!(routes(Some("f"), None), Some([Route::File, Route::File]));
        assert_eq!(routes(Some("none"), Some("all")), Some([Route::Nowhere, Route::Own]));
        assert_eq!(routes(None, Some("1")), Some([Route::Own, Route::Nowhere]));
    }

    #[test]
    fn an_input_of_each_rank_is_refused_with_a_remedy() {
        for name in ["in.%t", "in.%N", "in.%J"] {
            let refused = read_from(name, Path::new("/"), &JobValues::default()).unwrap_err();
            assert!(refused.text().contains("SLURM_PROCID"), "{}", refused.text());
        }
        assert!(read_from("in.%j", Path::new("/"), &JobValues::default()).unwrap_err().text().contains("without %j"));
        assert!(read_from("/no/such/file", Path::new("/"), &JobValues::default()).unwrap_err().text().contains("cannot read"));
    }
}
