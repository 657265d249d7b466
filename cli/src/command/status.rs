//! `lattice status`.

use crate::args::allocations::Status;
use crate::attempts::attempts_text;
use crate::failure::Failure;
use crate::listing;
use crate::output::{Format, print, print_names};
use crate::session::{Session, answer, now};
use crate::shown::{AllocationJson, allocation_block, allocations_table};
use crate::watch::{self, Watched};
use lattice_api::v1;
use lattice_api::v1::watch_request::What;

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
    let key = args.id.as_deref().map(|typed| session.key(typed)).transpose()?.unwrap_or_default();
    let until_ended = !key.is_empty();
    let wanted = v1::WatchedAllocations { key, all_users: args.all };
    let watched = Watched::Allocations { states: args.state, until_ended };
    watch::run(session, What::Allocations(wanted), watched).await
}

async fn one(session: &Session, typed: &str, stale: bool) -> Result<(), Failure> {
    let key = session.key(typed)?;
    let client = session.connect().await?;
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key, stale })).await?;
    listing::tell_age(session, allocation.age_ms);
    match session.format() {
        Format::Table => print(&(allocation_block(&allocation, now()) + &attempts_text(&allocation))),
        Format::Data(notation) => notation.print(&AllocationJson::from(&allocation)),
        Format::Name => print_names([allocation.id.as_str()]),
    }
}

async fn list(session: &Session, args: Status) -> Result<(), Failure> {
    let client = session.connect().await?;
    let states = args.state.iter().map(ToString::to_string).collect();
    let request = v1::ListAllocationsRequest { all_users: args.all, states, stale: args.stale, ..Default::default() };
    let listing::Found { allocations: mut found, more, age_ms } = listing::all(&client, request, args.limit as usize).await?;
    listing::tell_age(session, age_ms);
    found.sort_by(|a, b| (b.submitted_at_ms, &b.id).cmp(&(a.submitted_at_ms, &a.id)));
    match session.format() {
        Format::Table => print(&allocations_table(&found, now(), args.all, session.width()))?,
        Format::Data(notation) => notation.print(&found.iter().map(AllocationJson::from).collect::<Vec<_>>())?,
        Format::Name => print_names(found.iter().map(|a| a.id.as_str()))?,
    }
    if more {
        session.note(&format!("the newest {} are shown; --limit N shows more", args.limit));
    }
    Ok(())
}
