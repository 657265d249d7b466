//! `sstat`.

use super::command_line::Command;
use super::jobs::{AskedJob, job_ids};
use super::sacct::{form, wrong_field};
use super::steps;
use super::surroundings::Surroundings;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::print;
use lattice_cli_session::session::{Session, answer, now};
use lattice_cli_syntax::slurm_args::sstat::Sstat;
use lattice_slurm::array::rows;
use lattice_slurm::job_id::{Step, launch_of_step};
use lattice_slurm::listing::{Listing, help_format};
use lattice_slurm::sstat::{DEFAULT, PIDS, USAGE_FIELDS, Usage};
use lattice_slurm::state::JobState;
use std::ffi::OsString;

const SSTAT: Command = Command("sstat");

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    show(session, args).await
}

async fn show(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(args) = SSTAT.parse::<Sstat>(args)? else { return Ok(0) };
    if args.helpformat {
        print(&help_format(USAGE_FIELDS))?;
        return Ok(0);
    }
    let surroundings = Surroundings::read()?;
    SSTAT.check_clusters(&args.common.clusters, &surroundings.compat)?;
    let default = if args.pidformat { PIDS } else { DEFAULT };
    let fields = if args.format.is_empty() { default.to_owned() } else { args.format.join(",") };
    let listing = Listing::new(&fields, USAGE_FIELDS, form(&args.lines, "|")).map_err(wrong_field)?;
    let ids = job_ids(&[args.jobs, args.more_jobs].concat())?;
    if ids.is_empty() {
        return Err(Failure::other("You didn't give me any jobs to stat."));
    }
    let client = session.connect().await?;
    let mut text = if args.lines.noheader { String::new() } else { listing.heading() };
    let mut code = 0;
    for id in &ids {
        match usage(&client, id, listing.has("Pids")).await {
            Ok(usage) => surroundings.with(|context| text.push_str(&listing.line(&usage, context))),
            Err(failure) => {
                SSTAT.report(failure.what());
                code = 1;
            }
        }
    }
    print(&text)?;
    Ok(code)
}

/// The usage of a job, or of one of its launches, whose ranks are measured one by one.
async fn usage(client: &Client, id: &AskedJob, per_rank: bool) -> Result<Usage, Failure> {
    let number = id.number;
    if id.step == Some(Step::Extern) {
        return Err(Failure::other(format!("job {number} has no step extern")));
    }
    if id.tasks.is_some() {
        return Err(Failure::other(format!("job {number}: tasks of arrays are not measured one by one"))
            .hint("`lattice top ID` of the lane that runs it, which `lattice status 'ID[INDEX]'` shows, measures all of the lane"));
    }
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key: number.to_string(), stale: false })).await?;
    let key = allocation.id.clone();
    let job = rows(allocation, &[], false).into_iter().next();
    let job = job.filter(|job| job.state() == JobState::Running).ok_or_else(|| {
        Failure::other(format!("couldn't get steps for job {number}: it does not run now")).hint(format!("`sacct -j {number}` shows it"))
    })?;
    let step = id.step.filter(|step| *step != Step::Batch);
    let per_rank = per_rank || step.is_some();
    let top = answer(client.allocations().top(v1::TopRequest { key, duration_ms: 0, per_gpu: false, per_rank })).await?;
    if let Some(step) = step {
        let known = steps::find(client, &number.to_string(), step).await?;
        let launch = launch_of_step(step).unwrap_or_default();
        if let Some(node) = top.nodes.iter().find(|node| !node.ranks_error.is_empty()) {
            return Err(Failure::other(format!("node {} does not measure ranks: {}", node.node, node.ranks_error)));
        }
        let elapsed_ms = now().0.saturating_sub(known.began_at_ms);
        let usage = Usage::of_launch(format!("{number}.{}", known.step), launch, elapsed_ms, top.nodes);
        return usage.ok_or_else(|| {
            Failure::other(format!("step {} of job {number} has no ranks that run now", known.step))
                .hint(format!("`sacct -j {number}` shows how its steps ended"))
        });
    }
    Ok(Usage {
        id: format!("{number}.batch"),
        task_count: job.task_count(),
        elapsed_ms: job.elapsed_ms(now().0).unwrap_or(0),
        nodes: top.nodes,
    })
}
