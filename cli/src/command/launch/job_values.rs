//! The values for names of files, of the job in which `srun` runs.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::redirection::Redirection;
use lattice_cli_session::session::answer;
use lattice_model::TaskGroup;

/// Completes the values of the job. Requests from the agent only values that the names of files need and lack.
pub async fn complete(mut redirection: Redirection, client: &Client, key: &str) -> Result<Redirection, Failure> {
    if !redirection.lacks_number() && !redirection.lacks_job_name() {
        return Ok(redirection);
    }
    let allocation = get(client, key).await?;
    let job = redirection.job_mut();
    job.name.clone_from(&allocation.name);
    if job.number != 0 {
        return Ok(redirection);
    }
    if allocation.lane_of.is_empty() {
        (job.number, job.group) = (allocation.number, allocation.number);
        return Ok(redirection);
    }
    // A lane has no number: the task that it runs has one, after the number of its group.
    let group = get(client, &allocation.lane_of).await?;
    job.group = group.number;
    let position = TaskGroup::parse(&group.task_group).ok().and_then(|tasks| tasks.indices.ordinal_of(job.index?));
    let position = position.ok_or_else(|| {
        Failure::usage("the number of this task is not known, which a file's name needs (%j)")
            .hint("submit the job with --slurm-env, or use %A_%a in the name")
    })?;
    job.number = group.number + u64::from(position);
    Ok(redirection)
}

async fn get(client: &Client, key: &str) -> Result<v1::Allocation, Failure> {
    answer(client.allocations().get(v1::GetAllocationRequest { key: key.to_owned(), stale: false })).await
}
