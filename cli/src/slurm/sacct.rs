//! `sacct`: from the quorum's list, which has work that ended recently, and from the accounting store, where a site has one.

use super::cluster::{expanded, fetch_sizes};
use super::command_line::{Command, or_variable};
use super::jobs::{Wanted, add_task_nodes, expand, job_ids};
use super::steps::{self, StepsOfJobs};
use super::surroundings::{Surroundings, user_names};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Notation, print};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::slurm_args::Lines;
use lattice_cli_syntax::slurm_args::sacct::Sacct;
use lattice_model::history::{JOBS_MAX, PAGE_LEN_MAX};
use lattice_slurm::account::{self, ACCOUNT_FIELDS, Line, lines};
use lattice_slurm::job::{Job, Part};
use lattice_slurm::json;
use lattice_slurm::listing::{Form, InvalidField, Listing, help_format};
use lattice_slurm::state::States;
use lattice_slurm::time::{Side, parse_limit};
use lattice_slurm::units::listed;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::RangeInclusive;

const SACCT: Command = Command("sacct");
/// The most ended jobs of the store in one answer.
const RECORDS_MAX: usize = 1_000_000;

pub async fn run(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    Box::pin(show(session, args)).await
}

/// The time that is asked about.
struct Window {
    from_ms: u64,
    until_ms: u64,
}

async fn show(session: &Session, args: &[OsString]) -> Result<u8, Failure> {
    let Some(args) = SACCT.parse::<Sacct>(args)? else { return Ok(0) };
    if args.helpformat {
        print(&help_format(ACCOUNT_FIELDS))?;
        return Ok(0);
    }
    let mut surroundings = Surroundings::read()?;
    SACCT.check_clusters(&args.common.clusters, &surroundings.compat)?;
    refuse(&args)?;
    let listing = listing(&args)?;
    let states = match listed(&args.state) {
        given if given.is_empty() => States::all(),
        given => States::parse(&given).map_err(|error| Failure::other(error.to_string()))?,
    };
    let window = surroundings.with(|context| {
        let time = |option: &str, text: &Option<String>| match text {
            Some(text) => {
                let at = context.clock.parse(text, Side::Past).map(Some);
                at.ok_or_else(|| Failure::other(format!("{option}: Invalid time specification (pos=0): {text}")))
            }
            None => Ok(None),
        };
        let (start, end) = (time("--starttime", &args.starttime)?, time("--endtime", &args.endtime)?);
        let today = context.clock.parse("today", Side::Past).unwrap_or(0);
        let default = match (args.jobs.is_empty(), args.state.is_empty()) {
            (false, _) => 0,
            (true, false) => context.clock.now_ms,
            (true, true) => today,
        };
        let (from_ms, until_ms) = (start.unwrap_or(default), end.unwrap_or(context.clock.now_ms));
        if until_ms < from_ms {
            return Err(Failure::other("Start time requested is after end time."));
        }
        // The quorum's clock may be ahead of this one: what has just been submitted is part of "until now".
        let until_ms = if until_ms < context.clock.now_ms { until_ms } else { u64::MAX };
        Ok::<_, Failure>(Window { from_ms, until_ms })
    })?;
    let is_data = args.data.json.is_some() || args.data.yaml.is_some();
    let shows_outlook = is_data || listing.has("Reason") || listing.has("Priority") || !args.reason.is_empty();
    let wanted = Wanted { without_outlook: !shows_outlook, ..wanted(&args, &surroundings)? };
    let client = session.connect().await?;
    fetch_sizes(&client, &mut surroundings).await?;
    let found = Box::pin(wanted.fetch(&client, &States::all())).await?;
    let known: BTreeSet<String> = found.iter().map(|a| a.id.clone()).collect();
    let mut jobs = expand(&client, found, &wanted, false).await?;
    if is_data || listing.has("NodeList") {
        add_task_nodes(&client, &mut jobs).await?;
    }
    if states.has_final() {
        jobs.extend(recorded(&client, &wanted, &window, &known).await?);
    }
    choose(&mut jobs, &args, &states, &window, &surroundings)?;
    jobs.sort_by_key(|job| (job.base_number(), job.number(), job.task().is_some()));
    if args.batch_script {
        return scripts(&client, &jobs).await;
    }
    let steps = if args.allocations { StepsOfJobs::new() } else { steps::fetch(&client, &jobs).await? };
    let lines = lines(jobs, !args.allocations, |job| match job.part {
        Part::Whole => steps.get(&job.allocation.id).cloned(),
        Part::Task(_) | Part::Waiting { .. } => None,
    });
    surroundings.with(|context| {
        let notation = if args.data.json.is_some() { Some(Notation::Json) } else { args.data.yaml.as_ref().map(|_| Notation::Yaml) };
        if let Some(notation) = notation {
            return notation.print(&json::accounts(&lines, context));
        }
        let mut text = if args.lines.noheader { String::new() } else { listing.heading() };
        lines.iter().filter(|line| wants_step(&wanted, line)).for_each(|line| text.push_str(&listing.line(line, context)));
        print(&text)
    })?;
    Ok(0)
}

/// Whether a line is of a step that was asked for, or of a job that was asked for as a whole.
fn wants_step(wanted: &Wanted, line: &Line) -> bool {
    let Some(ids) = &wanted.ids else { return true };
    let of_job = |number: u64| number == line.job.base_number() || number == line.job.number();
    ids.iter().filter(|id| of_job(id.number)).any(|id| id.step.is_none_or(|step| line.step.as_ref().is_some_and(|row| row.is(step))))
}

fn refuse(args: &Sacct) -> Result<(), Failure> {
    SACCT.refuse(!args.associations.is_empty(), "-x", "Lattice has no associations; -A and -u choose accounts and users")?;
    SACCT.refuse(args.completion || args.file.is_some(), "-c and -f", "there is no file of ended jobs")?;
    SACCT.refuse(!args.constraints.is_empty(), "-C", "the constraints of ended jobs are not kept")?;
    SACCT.refuse(args.env_vars, "--env-vars", "the environment of jobs is not kept")?;
    SACCT.refuse(!args.flags.is_empty(), "-F", "which scheduler started a job is not kept")?;
    SACCT.refuse(!args.group.is_empty(), "-g", "groups of users are not recorded; choose users with -u")?;
    SACCT.refuse(args.truncate, "-T", "times are shown as they were")?;
    SACCT.refuse(!args.wckeys.is_empty(), "-W", "Lattice has no wckeys; `lattice history --tag` chooses by tags")?;
    SACCT.refuse(args.batch_script && args.jobs.is_empty(), "-B", "it needs a job: -j NUMBER")
}

pub(super) fn wrong_field(error: InvalidField) -> Failure {
    Failure::other(error.to_string()).hint("--helpformat lists the fields")
}

/// The form of lines for these options.
pub(super) fn form(lines: &Lines, delimiter: &str) -> Form {
    match lines.parsable || lines.parsable2 {
        true => Form::Separated { delimiter: delimiter.to_owned(), ends: !lines.parsable2 },
        false => Form::Columns,
    }
}

fn listing(args: &Sacct) -> Result<Listing<Line>, Failure> {
    let given = (!args.format.is_empty()).then(|| args.format.join(","));
    let default = match (args.brief, args.long) {
        (true, _) => account::BRIEF.to_owned(),
        (false, true) => account::LONG.to_owned(),
        (false, false) => or_variable(None, "SACCT_FORMAT").unwrap_or_else(|| account::DEFAULT.to_owned()),
    };
    let form = form(&args.lines, &args.delimiter);
    Listing::new(&given.unwrap_or(default), ACCOUNT_FIELDS, form).map_err(wrong_field)
}

fn wanted(args: &Sacct, surroundings: &Surroundings) -> Result<Wanted, Failure> {
    let compat = &surroundings.compat;
    let ids = job_ids(&args.jobs)?;
    let users = user_names(listed(&args.user))?;
    let is_root = nix::unistd::geteuid().is_root();
    let only_own = users.is_empty() && !args.allusers && !is_root && ids.is_empty();
    Ok(Wanted {
        ids: Some(ids).filter(|ids| !ids.is_empty()),
        only_own,
        users,
        names: listed(&args.name),
        vclusters: listed(&args.partition).iter().map(|name| compat.vcluster_of(name).to_owned()).collect(),
        tenants: listed(&args.accounts).iter().map(|name| compat.tenant_of(name).to_owned()).collect(),
        ..Wanted::default()
    })
}

/// Ended work of the accounting store that the quorum does not have any more. Empty without a store.
async fn recorded(client: &Client, wanted: &Wanted, window: &Window, known: &BTreeSet<String>) -> Result<Vec<Job>, Failure> {
    let status = answer(client.accounting().status(v1::AccountingStatusRequest {})).await;
    if !status.is_ok_and(|status| status.is_on) {
        return Ok(Vec::new());
    }
    let one = |names: &[String]| match names {
        [one] => one.clone(),
        _ => String::new(),
    };
    let mut request = v1::HistoryRequest {
        all_users: !wanted.only_own,
        user: if wanted.only_own { String::new() } else { one(&wanted.users) },
        tenant: one(&wanted.tenants),
        vcluster: one(&wanted.vclusters),
        name: one(&wanted.names),
        from_ms: window.from_ms,
        limit: PAGE_LEN_MAX,
        jobs: wanted.ids.as_ref().filter(|ids| ids.len() <= JOBS_MAX).into_iter().flatten().map(|id| id.number).collect(),
        ..Default::default()
    };
    let mut jobs = Vec::new();
    loop {
        let page = match answer(client.accounting().history(request.clone())).await {
            // Ordinary users may ask for their own work alone.
            Err(failure) if request.all_users && failure.exit() == Exit::Refused as u8 => {
                request.all_users = false;
                continue;
            }
            page => page?,
        };
        let is_last = page.work.is_empty() || page.next_page_token.is_empty() || jobs.len() >= RECORDS_MAX;
        for record in page.work {
            let number = record.job;
            if number > 0 && !known.contains(&record.id) {
                let job = Job::of_record(record, number);
                if wanted.wants(&job.allocation) {
                    jobs.push(job);
                }
            }
        }
        if is_last {
            return Ok(jobs);
        }
        request.page_token = page.next_page_token;
    }
}

/// Keeps the jobs that all further options want.
fn choose(jobs: &mut Vec<Job>, args: &Sacct, states: &States, window: &Window, surroundings: &Surroundings) -> Result<(), Failure> {
    let nodes = expanded(&args.nodelist)?;
    let (qos, reasons) = (listed(&args.qos), listed(&args.reason));
    let node_counts = range("--nnodes", args.nnodes.as_deref())?;
    let cpu_counts = range("--ncpus", args.ncpus.as_deref())?;
    let limit = |option: &str, text: &Option<String>| match text {
        Some(text) => parse_limit(text).map(Some).ok_or_else(|| Failure::other(format!("{option}: Invalid time limit: {text}"))),
        None => Ok(None),
    };
    let least = limit("--timelimit-min", &args.timelimit_min)?;
    let most = limit("--timelimit-max", &args.timelimit_max)?.or(least);
    surroundings.with(|context| {
        jobs.retain(|job| {
            let within = |seconds: u64| least.is_none_or(|least| (least..=most.unwrap_or(least)).contains(&seconds));
            let ended_before = job.ended_ms().is_some_and(|ended| ended < window.from_ms);
            states.has(job.state())
                && !ended_before
                && job.allocation.submitted_at_ms <= window.until_ms
                && (nodes.is_empty() || job.node_names().iter().any(|name| nodes.contains(name)))
                && (qos.is_empty() || qos.iter().any(|one| one == job.qos(context)))
                && (reasons.is_empty() || reasons.iter().any(|one| one == job.reason(context.clock.now_ms)))
                && node_counts.as_ref().is_none_or(|range| range.contains(&u64::from(job.node_count())))
                && cpu_counts.as_ref().is_none_or(|range| range.contains(&job.cpus(context)))
                && (least.is_none() || job.limit_seconds().is_some_and(within))
        });
    });
    Ok(())
}

/// `MIN` or `MIN-MAX`.
fn range(option: &str, text: Option<&str>) -> Result<Option<RangeInclusive<u64>>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    match (least.parse::<u64>(), most.parse::<u64>()) {
        (Ok(least), Ok(most)) => Ok(Some(least..=most)),
        _ => Err(Failure::other(format!("{option}: {text:?} is no number and no range of numbers"))),
    }
}

/// `sacct -B`.
async fn scripts(client: &Client, jobs: &[Job]) -> Result<u8, Failure> {
    let mut shown = BTreeSet::new();
    for job in jobs.iter().filter(|job| job.recorded.is_none()) {
        if !shown.insert(job.base_number()) {
            continue;
        }
        let request = v1::GetAllocationRequest { key: job.allocation.id.clone(), stale: false };
        let script = answer(client.allocations().get(request)).await?.script;
        let title = format!("Batch Script for {}", job.base_number());
        let text = if script.is_empty() { "NONE".to_owned() } else { script };
        print(&format!("{title}\n{}\n{}\n", "-".repeat(80), text.trim_end_matches('\n')))?;
    }
    Ok(0)
}
