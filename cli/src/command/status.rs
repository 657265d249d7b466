//! `lattice status`.

mod order;

use lattice_api::allocation::{STATES, state_from_name};
use lattice_api::client::Client;
use lattice_api::json::JobStepsJson;
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::last_stderr::LastStderr;
use lattice_cli_session::listing;
use lattice_cli_session::output::{Format, Width, print, print_names};
use lattice_cli_session::session::{Session, answer, now};
use lattice_cli_session::shown::{
    AllocationJson, TaskJson, TasksJson, allocation_block, allocations_table, attempts_text, count_by_state, counts_table, fold,
    group_text, is_scaled, lanes_table, lines_table, live_first, living_replicas_first, range_name, replicas_table, service_text, short,
    steps_table, task_block, tasks_table,
};
use lattice_cli_session::tasks::{Numbered, fetch_task, find_numbered};
use lattice_cli_session::terminal;
use lattice_cli_session::watch::{self, Watched};
use lattice_cli_syntax::args::allocations::Status;
use lattice_cli_syntax::tasks::OneTarget;
use lattice_cli_syntax::time::parse_past;
use lattice_model::AllocationState;

/// The most rows of a table if no limit was requested.
const TABLE_ROWS_MAX: usize = 100;
/// The most ranges of tasks that an agent sends.
const TASK_RANGES_MAX: u32 = 10_000;

pub async fn run(session: &Session, args: Status) -> Result<(), Failure> {
    if args.watch {
        return watch(session, args).await;
    }
    let of_all = args.tasks || args.lanes || args.replicas;
    match args.id {
        Some(OneTarget { task: Some(_), .. }) if of_all => {
            Err(Failure::usage("--tasks, --lanes and --replicas are about a whole task group or service")
                .hint("leave the index behind the id out"))
        }
        Some(OneTarget { key, task: Some(index) }) => {
            let key = session.resolve_key(&key)?;
            let client = session.connect().await?;
            match find_numbered(&client, key, index, args.stale).await? {
                Numbered::Task { key, index } if args.steps => {
                    Err(Failure::usage("a task has no steps of its own: see its lane").hint(format!(
                        "`lattice status '{}[{index}]'` shows its lane, and `lattice status LANE --steps` the lane's steps",
                        short(&key)
                    )))
                }
                Numbered::Replica { key } if args.steps => steps(session, key).await,
                Numbered::Task { key, index } => Box::pin(task(session, &client, &key, index, args.stale)).await,
                Numbered::Replica { key } => one(session, &client, key, args.stale).await,
            }
        }
        Some(OneTarget { key, task: None }) if args.tasks => Box::pin(tasks(session, &key, args.stale)).await,
        Some(OneTarget { key, task: None }) if args.lanes => Box::pin(lanes(session, &key, args.stale)).await,
        Some(OneTarget { key, task: None }) if args.replicas => Box::pin(replicas(session, &key, args.stale)).await,
        Some(OneTarget { key, task: None }) if args.steps => steps(session, session.resolve_key(&key)?).await,
        Some(OneTarget { key, task: None }) => {
            let key = session.resolve_key(&key)?;
            one(session, &session.connect().await?, key, args.stale).await
        }
        None => list(session, args).await,
    }
}

/// One task of a task group.
async fn task(session: &Session, client: &Client, key: &str, index: u32, stale: bool) -> Result<(), Failure> {
    let task = fetch_task(client, key, index, stale).await?;
    match session.format() {
        Format::Table => print(&task_block(&task)),
        Format::Data(notation) => notation.print(&TaskJson::of(&task.group, task.index, &task.known)),
        Format::Name => print_names([task.name().as_str()]),
    }
}

/// The tasks of a task group.
async fn tasks(session: &Session, typed: &str, stale: bool) -> Result<(), Failure> {
    let request = v1::GetTasksRequest { key: session.resolve_key(typed)?, index: None, limit: TASK_RANGES_MAX, stale };
    let found = answer(session.connect().await?.allocations().get_tasks(request)).await?;
    match session.format() {
        Format::Table => print(&tasks_table(&found.ranges, found.truncated, session.table_size()))?,
        Format::Data(notation) => notation.print(&TasksJson::from(&found))?,
        Format::Name => {
            let names: Vec<String> = found.ranges.iter().map(|range| range_name(&found.id, range)).collect();
            print_names(names.iter().map(String::as_str))?;
        }
    }
    if found.truncated {
        let id = short(&found.id);
        session
            .note(&format!("there are more ranges of tasks than these {}; `lattice status '{id}[INDEX]'` shows one", found.ranges.len()));
    }
    Ok(())
}

/// The script and the launches of an allocation.
async fn steps(session: &Session, key: String) -> Result<(), Failure> {
    let found = answer(session.connect().await?.allocations().list_steps(v1::ListStepsRequest { key })).await?;
    match session.format() {
        Format::Table => print(&steps_table(&found.steps, now(), session.table_size()))?,
        Format::Data(notation) => notation.print(&JobStepsJson::from(&found))?,
        Format::Name => print_names(found.steps.iter().map(|step| step.step.as_str()))?,
    }
    let launches = found.steps.iter().filter(|step| !step.is_entry).count() as u64;
    if let Some(totals) = found.totals.filter(|totals| totals.begun > launches) {
        let v1::JobStepTotals { begun, completed, failed, cancelled } = totals;
        session.note(&format!(
            "the newest {launches} launches are shown, of {begun}: {completed} completed, {failed} failed, {cancelled} were cancelled"
        ));
    }
    if !found.note.is_empty() {
        session.note(&found.note);
    }
    Ok(())
}

/// The lanes of a task group, by their number.
async fn lanes(session: &Session, typed: &str, stale: bool) -> Result<(), Failure> {
    let key = session.resolve_key(typed)?;
    let client = session.connect().await?;
    let group = answer(client.allocations().get(v1::GetAllocationRequest { key, stale })).await?;
    if group.task_group.is_empty() {
        let id = short(&group.id);
        return Err(Failure::new(Exit::Refused, format!("allocation {id} is no task group: it has no lanes"))
            .hint(format!("`lattice status {id}` shows it")));
    }
    let request = v1::ListAllocationsRequest { lanes_of: group.id, all_users: true, stale, ..Default::default() };
    let most = if session.format() == Format::Table { TABLE_ROWS_MAX } else { usize::MAX };
    let mut found = listing::fetch_all(&client, request, most).await?;
    listing::report_age(session, found.age_ms);
    found.allocations.sort_by_key(|lane| lane.lane_number);
    match session.format() {
        Format::Table => print(&lanes_table(&found.allocations, now(), session.table_size()))?,
        Format::Data(notation) => notation.print(&found.allocations.iter().map(AllocationJson::from).collect::<Vec<_>>())?,
        Format::Name => print_names(found.allocations.iter().map(|lane| lane.id.as_str()))?,
    }
    if found.more {
        session.note(&format!("the newest {TABLE_ROWS_MAX} are shown; -o json shows all"));
    }
    Ok(())
}

/// The replicas of a service: living ones by their number, then ended ones.
async fn replicas(session: &Session, typed: &str, stale: bool) -> Result<(), Failure> {
    let key = session.resolve_key(typed)?;
    let client = session.connect().await?;
    let service = answer(client.allocations().get(v1::GetAllocationRequest { key, stale })).await?;
    if !is_scaled(&service) {
        let id = short(&service.id);
        return Err(Failure::new(Exit::Refused, format!("allocation {id} is no scaled service: it has no replicas"))
            .hint(format!("`lattice status {id}` shows it")));
    }
    let (live, ended): (Vec<AllocationState>, Vec<_>) = STATES.into_iter().partition(|state| !state.is_terminal());
    let of = |states: &[AllocationState]| v1::ListAllocationsRequest {
        lanes_of: service.id.clone(),
        all_users: true,
        stale,
        states: states.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    // The number of living replicas is bounded; there may be many more ended ones.
    let mut found = listing::fetch_all(&client, of(&live), usize::MAX).await?;
    let most = if session.format() == Format::Table { TABLE_ROWS_MAX } else { usize::MAX };
    let before = listing::fetch_all(&client, of(&ended), most.saturating_sub(found.allocations.len())).await?;
    found.allocations.extend(before.allocations);
    listing::report_age(session, found.age_ms.max(before.age_ms));
    living_replicas_first(&mut found.allocations);
    match session.format() {
        Format::Table => print(&replicas_table(&found.allocations, now(), session.table_size()))?,
        Format::Data(notation) => notation.print(&found.allocations.iter().map(AllocationJson::from).collect::<Vec<_>>())?,
        Format::Name => print_names(found.allocations.iter().map(|replica| replica.id.as_str()))?,
    }
    if before.more {
        session.note("earlier replicas, which have ended, are not shown; -o json shows all");
    }
    Ok(())
}

async fn watch(session: &Session, args: Status) -> Result<(), Failure> {
    let key = match &args.id {
        Some(OneTarget { key, task: Some(index) }) => {
            let resolved = session.resolve_key(key)?;
            match find_numbered(&session.connect().await?, resolved, *index, false).await? {
                Numbered::Replica { key } => key,
                Numbered::Task { .. } => {
                    return Err(Failure::usage("one task of a task group cannot be watched")
                        .hint(format!("`lattice logs -f '{key}[{index}]'` follows it to its end")));
                }
            }
        }
        Some(OneTarget { key, task: None }) => session.resolve_key(key)?,
        None => String::new(),
    };
    let until_ended = !key.is_empty();
    let is_screen = !until_ended && session.format() == Format::Table && terminal::is_screen();
    let owners = args.all || args.filter.user.is_some();
    let wanted = v1::WatchedAllocations { key, all_users: owners };
    let watched = Watched::Allocations { states: args.state, filter: args.filter, until_ended };
    if is_screen {
        return Box::pin(watch::screen::run(session, What::Allocations(wanted), watched, owners)).await;
    }
    watch::run(session, What::Allocations(wanted), watched).await
}

async fn one(session: &Session, client: &Client, key: String, stale: bool) -> Result<(), Failure> {
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key, stale })).await?;
    listing::report_age(session, allocation.age_ms);
    let has_ended = state_from_name(&allocation.state).is_ok_and(|state| state.is_terminal());
    // A task group and its lanes have no output of their own, because each task has its own. A scaled service has none
    // either, because its replicas have their own.
    let has_output = allocation.task_group.is_empty() && allocation.lane_of.is_empty() && !is_scaled(&allocation);
    let last_stderr = if has_ended && has_output && session.format() != Format::Name {
        LastStderr::read(client, &allocation).await
    } else {
        LastStderr::default()
    };
    match session.format() {
        Format::Table => {
            let block = allocation_block(&allocation, &last_stderr, now());
            print(&(block + &group_text(&allocation) + &service_text(&allocation) + &attempts_text(&allocation, session.table_size())))
        }
        Format::Data(notation) => notation.print(&AllocationJson::of_one(&allocation, &last_stderr.lines)),
        Format::Name => print_names([allocation.id.as_str()]),
    }
}

/// Lists allocations, living ones before ended ones. A table always has a limit; data and names only if one was
/// requested.
async fn list(session: &Session, args: Status) -> Result<(), Failure> {
    let since_ms = args.since.as_deref().map(|text| parse_past("--since", text, now())).transpose()?;
    let client = session.connect().await?;
    let is_table = session.format() == Format::Table;
    // Neither the agent's order nor a limit is of use before these are applied.
    let needs_all = args.count || !args.sort.is_empty() || since_ms.is_some();
    let limit = match args.limit {
        None if args.count => usize::MAX,
        Some(limit) => limit as usize,
        None if is_table => TABLE_ROWS_MAX,
        None => usize::MAX,
    };
    let filtered = args.filter.user.is_some();
    let request = v1::ListAllocationsRequest {
        all_users: args.all || filtered,
        stale: args.stale,
        user: args.filter.user.unwrap_or_default(),
        name: args.filter.name.unwrap_or_default(),
        vcluster: args.filter.vcluster.unwrap_or_default(),
        tenant: args.filter.tenant.unwrap_or_default(),
        project: args.filter.project.unwrap_or_default(),
        node: args.filter.node.unwrap_or_default(),
        tags: args.filter.tags.into_iter().collect(),
        ..Default::default()
    };
    let (live, ended): (Vec<AllocationState>, Vec<_>) =
        STATES.into_iter().filter(|state| args.state.is_empty() || args.state.contains(state)).partition(|state| !state.is_terminal());
    let of = |states: &[AllocationState]| v1::ListAllocationsRequest {
        states: states.iter().map(ToString::to_string).collect(),
        ..request.clone()
    };
    let mut listed = listing::Listing::default();
    if !live.is_empty() {
        // Without a limit: the queue can be sorted only as a whole, and the agent lists the newest first.
        listed = listing::fetch_all(&client, of(&live), usize::MAX).await?;
    }
    if !ended.is_empty() {
        let most = if needs_all { usize::MAX } else { limit.saturating_sub(listed.allocations.len()) };
        let found = listing::fetch_all(&client, of(&ended), most).await?;
        listed.allocations.extend(found.allocations);
        listed.more = found.more;
        listed.age_ms = listed.age_ms.max(found.age_ms);
    }
    listing::report_age(session, listed.age_ms);
    let mut found = listed.allocations;
    found.retain(|a| since_ms.is_none_or(|since_ms| order::is_since(a, since_ms)));
    if args.count {
        return print_counts(session, &found);
    }
    live_first(&mut found);
    order::sort(&mut found, &args.sort, now());
    listed.more |= found.len() > limit;
    found.truncate(limit);
    match session.format() {
        Format::Table if session.width() == Width::Terse && terminal::is_screen() && !args.each => {
            let lines = fold(&found);
            print(&lines_table(&lines, now(), args.all || filtered, session.table_size()))?;
            if lines.len() < found.len() {
                session.note("×N stands for N that wait alike, of which the first is named; --each shows each of them");
            }
        }
        Format::Table => print(&allocations_table(&found, now(), args.all || filtered, session.table_size()))?,
        Format::Data(notation) => notation.print(&found.iter().map(AllocationJson::from).collect::<Vec<_>>())?,
        Format::Name => print_names(found.iter().map(|a| a.id.as_str()))?,
    }
    if listed.more {
        let shown = if limit == 1 { "1 is".to_owned() } else { format!("{limit} are") };
        let first = if args.sort.is_empty() { ", with unended work first" } else { "" };
        session.note(&format!("{shown} shown{first}; --limit N shows more, -o json shows all"));
    }
    Ok(())
}

/// How many there are in each state.
fn print_counts(session: &Session, allocations: &[v1::Allocation]) -> Result<(), Failure> {
    let counts = count_by_state(allocations);
    match session.format() {
        Format::Table => print(&counts_table(&counts, session.table_size())),
        Format::Data(notation) => notation.print(&counts),
        Format::Name => print_names(counts.iter().map(|count| count.state.as_str())),
    }
}
