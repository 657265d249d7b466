//! `squeue`.

use super::cluster::{expanded, fetch_sizes};
use super::command_line::{Command, all_or_variable, or_variable};
use super::jobs::{REQUESTS_MAX, Wanted, add_task_nodes, expand, job_ids};
use super::steps;
use super::surroundings::{Surroundings, user_names};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Notation, print};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::slurm_args::squeue::Squeue;
use lattice_slurm::format::{FormatError, Layout, SortKey, sort_keys};
use lattice_slurm::job::Job;
use lattice_slurm::job_fields::{self, DETAIL_LETTERS, DETAIL_NAMES, JOB_FIELDS, OUTLOOK_LETTERS, sort};
use lattice_slurm::json;
use lattice_slurm::state::{JobState, States};
use lattice_slurm::step::{self, STEP_FIELDS};
use lattice_slurm::units::listed;
use std::ffi::OsString;
use std::time::Duration;
use tokio::task::JoinSet;

const SQUEUE: Command = Command("squeue");
/// Jobs whose details are requested one by one; for further jobs these columns are empty.
const DETAILS_MAX: usize = 256;

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    Box::pin(show(session, args)).await
}

async fn show(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(args) = SQUEUE.parse::<Squeue>(args)? else { return Ok(0) };
    let mut surroundings = Surroundings::read()?;
    SQUEUE.check_clusters(&args.common.clusters, &surroundings.compat)?;
    SQUEUE.refuse(!args.licenses.is_empty(), "-L", "Lattice has no licenses")?;
    if let Some(named) = &args.steps {
        return show_steps(session, &args, named, surroundings).await;
    }
    let layout = layout(&args)?;
    let is_data = args.data.json.is_some() || args.data.yaml.is_some();
    let shows_outlook = is_data || OUTLOOK_LETTERS.iter().any(|letter| layout.has(*letter));
    let keys = keys(&args, shows_outlook)?;
    let states = states(&args)?;
    let without_outlook = !shows_outlook && !keys.iter().any(|key| OUTLOOK_LETTERS.contains(&key.letter));
    let wanted = Wanted { without_outlook, ..wanted(&args, &surroundings)? };
    let nodes = expanded(&args.nodelist)?;
    let qos = listed(&all_or_variable(&args.qos, "SQUEUE_QOS"));
    let client = session.connect().await?;
    if is_data || layout.has('C') || layout.has_name("tres-alloc") || layout.has_name("cpus-per-task") {
        fetch_sizes(&client, &mut surroundings).await?;
    }
    loop {
        let found = Box::pin(wanted.fetch(&client, &states)).await?;
        let is_one = wanted.ids.as_ref().is_some_and(|ids| ids.len() == 1);
        if is_one && found.is_empty() && !states.is_empty() && args.iterate.is_none() {
            return Err(Failure::other("slurm_load_jobs error: Invalid job id specified"));
        }
        let found = if is_data || needs_details(&layout) { with_details(&client, found).await } else { found };
        let each = args.array || args.array_unique || std::env::var_os("SQUEUE_ARRAY").is_some();
        let mut jobs = expand(&client, found, &wanted, each).await?;
        jobs.retain(|job| states.has(job.state()) && args.reservation.as_ref().is_none_or(|name| job.allocation.reservation == *name));
        if is_data || !nodes.is_empty() || layout.has('N') || layout.has('R') || layout.has('B') {
            add_task_nodes(&client, &mut jobs).await?;
        }
        jobs.retain(|job| nodes.is_empty() || job.node_names().iter().any(|name| nodes.contains(name)));
        surroundings.with(|context| jobs.retain(|job| qos.is_empty() || qos.iter().any(|one| one == job.qos(context))));
        write(&args, &layout, &keys, &mut jobs, &surroundings)?;
        let Some(seconds) = args.iterate else {
            // The process ends now: the kernel frees the memory of thousands of jobs faster than their destructors.
            std::mem::forget(jobs);
            return Ok(0);
        };
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// `squeue --steps`, with a list of jobs or steps, or for all.
async fn show_steps(session: &Session, args: &Squeue, named: &str, mut surroundings: Surroundings) -> Result<u8, Failure> {
    let is_data = args.data.json.is_some() || args.data.yaml.is_some();
    SQUEUE.refuse(is_data, "--json with -s", "`lattice status JOB --steps -o json` has the steps of a job")?;
    SQUEUE.refuse(args.iterate.is_some(), "-i with -s", "it shows the steps once")?;
    SQUEUE.refuse(!args.states.is_empty() || args.start, "-t or --start with -s", "the steps that run are shown")?;
    SQUEUE.refuse(args.sort.is_some(), "-S with -s", "steps are in the order of their jobs and of their numbers")?;
    let named = job_ids(&[named.to_owned()])?;
    let mut wanted = Wanted { without_outlook: true, ..wanted(args, &surroundings)? };
    if !named.is_empty() {
        wanted.ids = Some(named.clone());
    }
    let (nodes, qos) = (expanded(&args.nodelist)?, listed(&all_or_variable(&args.qos, "SQUEUE_QOS")));
    let client = session.connect().await?;
    fetch_sizes(&client, &mut surroundings).await?;
    let layout = match (&args.long_format, &args.format) {
        (Some(names), _) => Layout::of_names(names, STEP_FIELDS),
        (None, format) => Layout::of_letters(format.as_deref().unwrap_or(step::DEFAULT), STEP_FIELDS),
    };
    let layout = layout.map_err(wrong_format)?;
    let mut found = steps::rows(&client, &wanted, &named).await?;
    found.retain(|row| {
        let is_reserved = args.reservation.as_ref().is_none_or(|name| row.job.allocation.reservation == *name);
        is_reserved && row.is_running() && (nodes.is_empty() || row.node_names().iter().any(|name| nodes.contains(name)))
    });
    surroundings.with(|context| {
        found.retain(|row| qos.is_empty() || qos.iter().any(|one| one == row.job.qos(context)));
        let mut text = if args.noheader { String::new() } else { layout.heading() + "\n" };
        for row in &found {
            layout.push_line(&mut text, row, context);
            text.push('\n');
        }
        print(&text)
    })?;
    Ok(0)
}

fn write(args: &Squeue, layout: &Layout<Job>, keys: &[SortKey], jobs: &mut [Job], surroundings: &Surroundings) -> Result<(), Failure> {
    let notation = if args.data.json.is_some() { Some(Notation::Json) } else { args.data.yaml.as_ref().map(|_| Notation::Yaml) };
    surroundings.with(|context| {
        sort(jobs, keys, context);
        if let Some(notation) = notation {
            return notation.print(&json::queue(jobs, "squeue", context));
        }
        let mut text = String::new();
        if args.iterate.is_some() {
            text = context.clock.text(context.clock.now_ms) + "\n";
        }
        if !args.noheader {
            text.push_str(&layout.heading());
            text.push('\n');
        }
        for job in jobs.iter() {
            layout.push_line(&mut text, job, context);
            text.push('\n');
        }
        print(&text)
    })
}

pub(super) fn wrong_format(error: FormatError) -> Failure {
    Failure::other(error.to_string()).hint("the reference page of Slurm's commands lists the fields")
}

fn layout(args: &Squeue) -> Result<Layout<Job>, Failure> {
    if let Some(names) = &args.long_format {
        return Layout::of_names(names, JOB_FIELDS).map_err(wrong_format);
    }
    let default = match (args.start, args.long) {
        (true, _) => job_fields::START,
        (false, true) => job_fields::LONG,
        (false, false) => job_fields::DEFAULT,
    };
    let is_default = args.format.is_none() && !args.long && !args.start;
    let given = if is_default { or_variable(None, "SQUEUE_FORMAT") } else { args.format.clone() };
    if let Some(names) = or_variable(None, "SQUEUE_FORMAT2").filter(|_| is_default && given.is_none()) {
        return Layout::of_names(&names, JOB_FIELDS).map_err(wrong_format);
    }
    Layout::of_letters(given.as_deref().unwrap_or(default), JOB_FIELDS).map_err(wrong_format)
}

/// The order of the rows. Without `--sort`, jobs are in the order of their starts with `--start`, else of the queue if that
/// is known, else of their numbers.
fn keys(args: &Squeue, shows_outlook: bool) -> Result<Vec<SortKey>, Failure> {
    let default = match (args.start, shows_outlook) {
        (true, _) => "S",
        (false, true) => job_fields::SORT,
        (false, false) => job_fields::SORT_BY_NUMBER,
    };
    let text = or_variable(args.sort.as_ref(), "SQUEUE_SORT");
    sort_keys(text.as_deref().unwrap_or(default), |letter| JOB_FIELDS.iter().any(|field| field.letter == Some(letter)))
        .map_err(wrong_format)
}

fn states(args: &Squeue) -> Result<States, Failure> {
    let given = listed(&all_or_variable(&args.states, "SQUEUE_STATES"));
    match (given.is_empty(), args.start) {
        (true, true) => States::parse(&[JobState::Pending.name().to_owned()]),
        (true, false) => Ok(States::unended()),
        (false, _) => States::parse(&given),
    }
    .map_err(|error| Failure::other(error.to_string()))
}

fn wanted(args: &Squeue, surroundings: &Surroundings) -> Result<Wanted, Failure> {
    let compat = &surroundings.compat;
    let users = if args.me { Vec::new() } else { user_names(listed(&all_or_variable(&args.user, "SQUEUE_USERS")))? };
    let ids = job_ids(&args.jobs)?;
    Ok(Wanted {
        ids: Some(ids).filter(|ids| !ids.is_empty()),
        only_own: args.me,
        users,
        names: listed(&all_or_variable(&args.name, "SQUEUE_NAMES")),
        vclusters: listed(&all_or_variable(&args.partition, "SQUEUE_PARTITION"))
            .iter()
            .map(|name| compat.vcluster_of(name).to_owned())
            .collect(),
        tenants: listed(&all_or_variable(&args.account, "SQUEUE_ACCOUNT")).iter().map(|name| compat.tenant_of(name).to_owned()).collect(),
        ..Wanted::default()
    })
}

/// Whether the columns need details that lists of jobs do not have.
fn needs_details(layout: &Layout<Job>) -> bool {
    DETAIL_LETTERS.iter().any(|letter| layout.has(*letter)) || DETAIL_NAMES.iter().any(|name| layout.has_name(name))
}

/// The same jobs, the first ones with their details.
async fn with_details(client: &Client, mut jobs: Vec<v1::Allocation>) -> Vec<v1::Allocation> {
    let ids: Vec<(usize, String)> = jobs.iter().take(DETAILS_MAX).map(|job| job.id.clone()).enumerate().collect();
    for some in ids.chunks(REQUESTS_MAX) {
        let mut requests = JoinSet::new();
        for (at, key) in some.iter().cloned() {
            let client = client.clone();
            requests.spawn(async move { (at, answer(client.allocations().get(v1::GetAllocationRequest { key, stale: false })).await) });
        }
        while let Some(done) = requests.join_next().await {
            // The user may see others' work only in the list.
            if let Ok((at, Ok(detailed))) = done
                && let Some(job) = jobs.get_mut(at)
            {
                *job = detailed;
            }
        }
    }
    jobs
}
