//! `sprio`.

use super::command_line::{Command, or_variable};
use super::jobs::{Wanted, job_ids};
use super::squeue::wrong_format;
use super::surroundings::{Surroundings, user_names};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::explain_response::ScoreTerm;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::print;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::slurm_args::sprio::Sprio;
use lattice_slurm::array::rows;
use lattice_slurm::format::{Layout, SortKey, sort_keys};
use lattice_slurm::job::Job;
use lattice_slurm::job_fields::sort;
use lattice_slurm::sprio::{DEFAULT, LONG, NORMALIZED, PRIORITY_FIELDS, Priority};
use lattice_slurm::state::{JobState, States};
use lattice_slurm::units::listed;
use std::ffi::OsString;

const SPRIO: Command = Command("sprio");
/// How many jobs get their factors, by one request each: the jobs that are served first.
const JOBS_MAX: usize = 256;

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    Box::pin(show(session, args)).await
}

async fn show(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(args) = SPRIO.parse::<Sprio>(args)? else { return Ok(0) };
    let surroundings = Surroundings::read()?;
    let compat = &surroundings.compat;
    SPRIO.check_clusters(&args.common.clusters, compat)?;
    let default = match (args.norm, args.long) {
        (true, _) => NORMALIZED,
        (false, true) => LONG,
        (false, false) => DEFAULT,
    };
    let format = or_variable(args.format.as_ref(), "SPRIO_FORMAT");
    let layout = Layout::of_letters(format.as_deref().unwrap_or(default), PRIORITY_FIELDS).map_err(wrong_format)?;
    let keys = sort_keys(args.sort.as_deref().unwrap_or("i"), |letter| "iruyYN".contains(letter)).map_err(wrong_format)?;
    // The same fields have other letters in squeue.
    let of_squeue = |letter: char| match letter {
        'r' => 'P',
        'y' | 'Y' => 'p',
        'N' => 'y',
        letter => letter,
    };
    let keys: Vec<SortKey> = keys.into_iter().map(|key| SortKey { letter: of_squeue(key.letter), ..key }).collect();
    let ids = job_ids(&args.jobs)?;
    let vclusters: Vec<String> = listed(&args.partition).iter().map(|name| compat.vcluster_of(name).to_owned()).collect();
    let client = session.connect().await?;
    let priorities = if args.weights {
        weights(&client, &vclusters, &surroundings).await?
    } else {
        let users = user_names(listed(&args.user))?;
        let wanted = Wanted { ids: Some(ids).filter(|ids| !ids.is_empty()), users, vclusters, ..Default::default() };
        let waiting = States::parse(&[JobState::Pending.name().to_owned()]).map_err(|error| Failure::other(error.to_string()))?;
        let found = Box::pin(wanted.fetch(&client, &waiting)).await?;
        let mut jobs: Vec<Job> = found.into_iter().flat_map(|a| rows(a, &[], false)).collect();
        jobs.retain(|job| job.state() == JobState::Pending);
        surroundings.with(|context| sort(&mut jobs, &keys, context));
        explained(session, &client, jobs, &surroundings).await?
    };
    let mut text = if args.noheader { String::new() } else { layout.heading() + "\n" };
    surroundings.with(|context| {
        for priority in &priorities {
            text.push_str(&layout.line(priority, context));
            text.push('\n');
        }
    });
    print(&text)?;
    Ok(0)
}

/// The jobs with the factors of their scores.
async fn explained(session: &Session, client: &Client, jobs: Vec<Job>, surroundings: &Surroundings) -> Result<Vec<Priority>, Failure> {
    if jobs.len() > JOBS_MAX {
        session.note(&format!("the first {JOBS_MAX} of {} jobs are shown; -j, -u and -p choose", jobs.len()));
    }
    let mut rows = Vec::new();
    for job in jobs.into_iter().take(JOBS_MAX) {
        let asked = answer(client.allocations().explain(v1::ExplainRequest { key: job.allocation.id.clone() })).await;
        // The job may have ended, or may not be the caller's.
        let terms = asked.map(|explained| explained.score).unwrap_or_default();
        let partition = surroundings.with(|context| job.partition(context).to_owned());
        rows.push(Priority { job: Some(job), partition, terms });
    }
    Ok(rows)
}

/// The weights of each partition's scores.
async fn weights(client: &Client, wanted: &[String], surroundings: &Surroundings) -> Result<Vec<Priority>, Failure> {
    let listed = answer(client.vclusters().list(v1::ListVClustersRequest {})).await?;
    let of = |vcluster: v1::VCluster| {
        let term = |weight: v1::Weight| ScoreTerm { factor: weight.factor, weight: weight.weight, value: 0.0, known: true };
        let partition = surroundings.compat.partition_of(&vcluster.name).to_owned();
        Priority { job: None, partition, terms: vcluster.weights.into_iter().map(term).collect() }
    };
    Ok(listed.vclusters.into_iter().filter(|one| wanted.is_empty() || wanted.contains(&one.name)).map(of).collect())
}
