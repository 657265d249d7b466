//! Asks for the steps of jobs.

use super::jobs::{AskedJob, REQUESTS_MAX, Wanted, expand};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::message::write_message_line;
use lattice_cli_session::session::answer;
use lattice_slurm::account::has_steps;
use lattice_slurm::job::{Job, Part};
use lattice_slurm::job_id::Step;
use lattice_slurm::state::States;
use lattice_slurm::step::StepRow;
use std::collections::BTreeMap;
use tokio::task::JoinSet;

/// Jobs whose steps are requested, one request each. Further jobs have only the step of the script.
pub const JOBS_ASKED_MAX: usize = 256;

/// The steps of jobs, by the ids of Lattice.
pub type StepsOfJobs = BTreeMap<String, Vec<v1::JobStep>>;

/// The steps of one job.
///
/// # Errors
/// The agent refuses or does not answer, or the job is an array.
pub async fn fetch_one(client: &Client, key: &str) -> Result<v1::ListStepsResponse, Failure> {
    answer(client.allocations().list_steps(v1::ListStepsRequest { key: key.to_owned() })).await
}

/// The steps of the first [`JOBS_ASKED_MAX`] of these jobs that have begun. A job that the caller may not see, or that
/// the quorum does not have any more, is left out.
///
/// # Errors
/// The agent does not answer.
pub async fn fetch(client: &Client, jobs: &[Job]) -> Result<StepsOfJobs, Failure> {
    let is_asked = |job: &&Job| job.part == Part::Whole && job.recorded.is_none() && has_steps(job);
    let mut keys: Vec<String> = jobs.iter().filter(is_asked).map(|job| job.allocation.id.clone()).collect();
    if keys.len() > JOBS_ASKED_MAX {
        write_message_line(format_args!("steps are shown of {JOBS_ASKED_MAX} jobs of {}: name the jobs, or their user", keys.len()));
        keys.truncate(JOBS_ASKED_MAX);
    }
    let mut found = StepsOfJobs::new();
    for some in keys.chunks(REQUESTS_MAX) {
        let mut requests = JoinSet::new();
        for key in some.iter().cloned() {
            let client = client.clone();
            requests.spawn(async move {
                let steps = fetch_one(&client, &key).await;
                (key, steps)
            });
        }
        while let Some(done) = requests.join_next().await {
            let (key, steps) = done.map_err(|error| Failure::other(error.to_string()))?;
            match steps {
                Ok(steps) => drop(found.insert(key, steps.steps)),
                Err(failure) if [Exit::Refused as u8, Exit::NotFound as u8].contains(&failure.exit()) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(found)
}

/// The step of a job by its number in Slurm's count.
///
/// # Errors
/// As [`fetch_one`], or there is no such step.
pub async fn find(client: &Client, key: &str, step: Step) -> Result<v1::JobStep, Failure> {
    let name = match step {
        Step::Batch => "batch".to_owned(),
        Step::Extern => return Err(Failure::new(Exit::NotFound, "there are no extern steps")),
        Step::Number(number) => number.to_string(),
    };
    let steps = fetch_one(client, key).await?.steps;
    let found = steps.into_iter().find(|known| known.step == name);
    found.ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("job {key} has no step {name}")).hint(format!("`scontrol show step {key}` lists them"))
    })
}

/// The rows of the steps of wanted jobs: of the named jobs and steps, or of all that run.
///
/// # Errors
/// The agent refuses or does not answer.
pub async fn rows(client: &Client, wanted: &Wanted, named: &[AskedJob]) -> Result<Vec<StepRow>, Failure> {
    let states = if named.is_empty() { States::unended() } else { States::all() };
    let allocations = Box::pin(wanted.fetch(client, &states)).await?;
    let mut jobs = expand(client, allocations, wanted, false).await?;
    jobs.sort_by_key(|job| (job.base_number(), job.number()));
    let mut steps = fetch(client, &jobs).await?;
    let mut rows = Vec::new();
    for job in jobs {
        let of_job = steps.remove(&job.allocation.id).unwrap_or_default();
        rows.extend(of_job.into_iter().map(|step| StepRow { job: job.clone(), step }));
    }
    rows.retain(|row| named.is_empty() || named.iter().any(|id| id.number == row.job.number() && id.step.is_none_or(|step| row.is(step))));
    Ok(rows)
}
