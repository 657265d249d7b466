//! `scancel`: cancels jobs, tasks of job arrays, and the jobs that match filters, or sends a signal to them.

mod chosen;
mod filter;
mod options;

use super::arguments;
use super::compat;
use super::steps;
use chosen::Chosen;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::message::write_message_line;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::tasks::index_runs;
use lattice_model::AllocationState;
use lattice_model::signal::WorkSignal;
use lattice_slurm::job_id::{JobId, Step};
use options::Options;
use std::ffi::OsString;
use std::io::{BufRead, Write};

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(mut options) = arguments::parse::<Options>("scancel", args)? else { return Ok(0) };
    options.read_environment(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let compat = compat::read()?;
    if let Some(other) = options.clusters.as_deref().filter(|cluster| *cluster != compat.cluster() && *cluster != "all") {
        return Err(Failure::usage(format!("No cluster '{other}' known: this is cluster {}", compat.cluster())));
    }
    if options.jobs.is_empty() && !options.has_filter() {
        return Err(Failure::usage("No job identification provided"));
    }
    let client = session.connect().await?;
    let mut exit = 0;
    let mut report = |job: &str, failure: &Failure| {
        write_message_line(format_args!("error: {}", kill_error(job, failure)));
        if let Failure::Reported { exit: Exit::Usage, hint: Some(hint), .. } = failure {
            write_message_line(format_args!("hint: {hint}"));
        }
        exit = 1;
    };
    for chosen in chosen::list(session, &client, &options, &compat).await? {
        let job = match chosen {
            Ok(job) => job,
            Err((typed, failure)) => {
                report(&typed, &failure);
                continue;
            }
        };
        if options.interactive && !confirm(&job)? {
            continue;
        }
        match end(&client, &options, &job).await {
            Ok(done) if options.verbose > 0 && !options.quiet => write_message_line(format_args!("job {}: {done}", job.id)),
            Ok(_) => {}
            Err(failure) => report(&job.id.to_string(), &failure),
        }
    }
    Ok(exit)
}

/// Slurm's text for a job that could not be cancelled.
fn kill_error(job: &str, failure: &Failure) -> String {
    let why = match failure {
        Failure::Reported { exit: Exit::NotFound, .. } => "Invalid job id specified".to_owned(),
        other => other.what(),
    };
    format!("Kill job error on job id {job}: {why}")
}

fn confirm(job: &Chosen) -> Result<bool, Failure> {
    let mut out = std::io::stdout();
    write!(out, "Cancel job_id={}{} [y/n]? ", job.id, job.about())?;
    out.flush()?;
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Failure::other(format!("cannot read the answer: {error}")))?;
    Ok(line.trim_start().starts_with(['y', 'Y']))
}

/// Cancels a job or signals it; returns what was done.
async fn end(client: &Client, options: &Options, job: &Chosen) -> Result<String, Failure> {
    let id = &job.id;
    if id.het.is_some_and(|component| component > 0) {
        return Err(Failure::new(Exit::NotFound, "there are no heterogeneous jobs"));
    }
    if options.signal.is_some() || options.batch {
        return signal(client, options, id).await;
    }
    if let Some(step) = id.step
        && !is_whole_job(client, id, step).await?
    {
        return end_step(client, id, step).await;
    }
    match &id.tasks {
        None => {
            let done = answer(client.allocations().cancel(v1::CancelRequest { key: id.key.clone() })).await?;
            Ok(if done.state == AllocationState::Cancelled.to_string() { "cancelled".to_owned() } else { format!("it was {}", done.state) })
        }
        Some(tasks) => {
            let request = v1::CancelTasksRequest { key: id.key.clone(), indices: index_runs(tasks) };
            let done = answer(client.allocations().cancel_tasks(request)).await?;
            Ok(format!("{} tasks cancelled, {} had ended", done.cancelled, done.ended))
        }
    }
}

/// Whether a step is the whole job: the launch of its command.
async fn is_whole_job(client: &Client, id: &JobId, step: Step) -> Result<bool, Failure> {
    if step != Step::Number(0) || id.tasks.is_some() {
        return Ok(false);
    }
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key: id.key.clone(), stale: false })).await?;
    Ok(allocation.script.is_empty() && !allocation.command.is_empty())
}

/// Ends one launch; the rest of the job continues.
async fn end_step(client: &Client, id: &JobId, step: Step) -> Result<String, Failure> {
    if id.tasks.is_some() {
        return Err(Failure::usage("a step of a task of a job array is not cancelled on its own").hint("cancel the task"));
    }
    if step == Step::Batch {
        return Err(Failure::usage("the script is not cancelled on its own")
            .hint(format!("`scancel {}` cancels the job; `scancel --batch --signal=TERM {}` signals its script", id.key, id.key)));
    }
    let found = steps::find(client, &id.key, step).await?;
    if found.ended_at_ms > 0 {
        return Err(Failure::other("Job/step already completing or completed"));
    }
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key: id.key.clone(), stale: false })).await?.id;
    answer(client.allocations().abort_launch(v1::AbortLaunchRequest { id: found.launch, allocation })).await?;
    Ok(format!("step {} is being ended", found.step))
}

/// Sends a signal: to the steps of a job, to its script (`--batch`), or to both (`--full`).
async fn signal(client: &Client, options: &Options, id: &JobId) -> Result<String, Failure> {
    let signal = match options.signal {
        Some(signal) => signal,
        None => "TERM".parse::<WorkSignal>().map_err(|error| Failure::usage(error.to_string()))?,
    };
    if id.tasks.is_some() {
        return Err(Failure::usage("a single task of a job array gets no signals").hint("cancel the task, or signal the whole job array"));
    }
    let targets: &[&str] = match (options.full, options.batch, id.step) {
        (_, _, Some(Step::Extern | Step::Number(_))) => {
            return Err(Failure::usage("a step gets no signal on its own")
                .hint(format!("`scancel {0}.N` ends a step; `scancel --signal={signal} {0}` signals all steps", id.key)));
        }
        (true, _, _) => &["script", "launches"],
        (false, true, _) | (false, false, Some(Step::Batch)) => &["script"],
        (false, false, None) => &["launches"],
    };
    let mut processes = 0;
    for to in targets {
        let request = v1::SignalRequest { key: id.key.clone(), signal: signal.number().into(), to: (*to).to_owned() };
        let response = answer(client.allocations().signal(request)).await?;
        let failed = response.nodes.iter().find(|node| !node.failed.is_empty());
        if let Some(node) = failed {
            return Err(Failure::other(format!("node {}: {}", node.node, node.failed)));
        }
        processes += response.nodes.iter().map(|node| u64::from(node.processes)).sum::<u64>();
    }
    Ok(format!("{signal} sent to {processes} processes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurms_text_for_a_job_that_does_not_exist() {
        let missing = Failure::new(Exit::NotFound, "there is no job 99");
        assert_eq!(kill_error("99", &missing), "Kill job error on job id 99: Invalid job id specified");
        let refused = Failure::new(Exit::Refused, "it is bob's");
        assert_eq!(kill_error("12_7", &refused), "Kill job error on job id 12_7: it is bob's");
    }
}
