//! `lattice status`.

use crate::failure::Failure;
use crate::last_stderr::LastStderr;
use crate::listing;
use crate::output::{Format, print, print_names};
use crate::session::{Session, answer, now};
use crate::shown::{AllocationJson, allocation_block, allocations_table, attempts_text, live_first};
use crate::watch::{self, Watched};
use lattice_api::allocation::{STATES, state_from_name};
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_cli_syntax::args::allocations::Status;
use lattice_model::AllocationState;

/// The most rows of a table if no limit was requested.
const TABLE_ROWS_MAX: usize = 100;

pub async fn run(session: &Session, args: Status) -> Result<(), Failure> {
    if args.watch {
        return watch(session, args).await;
    }
    match args.id {
        Some(typed) => one(session, &typed, args.stale).await,
        None => list(session, args).await,
    }
}

async fn watch(session: &Session, args: Status) -> Result<(), Failure> {
    let key = args.id.as_deref().map(|typed| session.resolve_key(typed)).transpose()?.unwrap_or_default();
    let until_ended = !key.is_empty();
    let wanted = v1::WatchedAllocations { key, all_users: args.all || args.filter.user.is_some() };
    let watched = Watched::Allocations { states: args.state, filter: args.filter, until_ended };
    watch::run(session, What::Allocations(wanted), watched).await
}

async fn one(session: &Session, typed: &str, stale: bool) -> Result<(), Failure> {
    let key = session.resolve_key(typed)?;
    let client = session.connect().await?;
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key, stale })).await?;
    listing::report_age(session, allocation.age_ms);
    let has_ended = state_from_name(&allocation.state).is_ok_and(|state| state.is_terminal());
    let last_stderr =
        if has_ended && session.format() != Format::Name { LastStderr::read(&client, &allocation).await } else { LastStderr::default() };
    match session.format() {
        Format::Table => print(&(allocation_block(&allocation, &last_stderr, now()) + &attempts_text(&allocation))),
        Format::Data(notation) => notation.print(&AllocationJson::of_one(&allocation, &last_stderr)),
        Format::Name => print_names([allocation.id.as_str()]),
    }
}

/// Lists allocations, living ones before ended ones. A table always has a limit; data and names only if one was
/// requested.
async fn list(session: &Session, args: Status) -> Result<(), Failure> {
    let client = session.connect().await?;
    let is_table = session.format() == Format::Table;
    let limit = match args.limit {
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
        node: args.filter.node.unwrap_or_default(),
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
        let found = listing::fetch_all(&client, of(&ended), limit.saturating_sub(listed.allocations.len())).await?;
        listed.allocations.extend(found.allocations);
        listed.more = found.more;
        listed.age_ms = listed.age_ms.max(found.age_ms);
    }
    listing::report_age(session, listed.age_ms);
    let mut found = listed.allocations;
    live_first(&mut found);
    listed.more |= found.len() > limit;
    found.truncate(limit);
    match session.format() {
        Format::Table => print(&allocations_table(&found, now(), args.all || filtered, session.table_size()))?,
        Format::Data(notation) => notation.print(&found.iter().map(AllocationJson::from).collect::<Vec<_>>())?,
        Format::Name => print_names(found.iter().map(|a| a.id.as_str()))?,
    }
    if listed.more {
        let shown = if limit == 1 { "1 is".to_owned() } else { format!("{limit} are") };
        session.note(&format!("{shown} shown, with unended work first; --limit N shows more, -o json shows all"));
    }
    Ok(())
}
