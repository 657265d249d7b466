//! `lattice status`.

use crate::args::Status;
use crate::failure::Failure;
use crate::output::{Format, print, print_json, print_names};
use crate::session::{Session, answer, now};
use crate::shown::{AllocationJson, allocation_block, allocations_table};
use lattice_api::v1;

pub async fn run(session: &Session, args: Status) -> Result<(), Failure> {
    match args.id {
        Some(typed) => one(session, &typed).await,
        None => list(session, args).await,
    }
}

async fn one(session: &Session, typed: &str) -> Result<(), Failure> {
    let key = session.key(typed)?;
    let client = session.connect().await?;
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key })).await?;
    match session.format() {
        Format::Table => print(&allocation_block(&allocation, now())),
        Format::Json => print_json(&AllocationJson::from(&allocation)),
        Format::Name => print_names([allocation.id.as_str()]),
    }
}

async fn list(session: &Session, args: Status) -> Result<(), Failure> {
    let client = session.connect().await?;
    let request =
        v1::ListAllocationsRequest { all_users: args.all, states: args.state.iter().map(ToString::to_string).collect(), limit: args.limit };
    let mut found = answer(client.allocations().list(request)).await?.allocations;
    found.sort_by(|a, b| (b.submitted_at_ms, &b.id).cmp(&(a.submitted_at_ms, &a.id)));
    match session.format() {
        Format::Table => print(&allocations_table(&found, now(), args.all))?,
        Format::Json => print_json(&found.iter().map(AllocationJson::from).collect::<Vec<_>>())?,
        Format::Name => print_names(found.iter().map(|a| a.id.as_str()))?,
    }
    if u32::try_from(found.len()).is_ok_and(|count| count >= args.limit) {
        session.note(&format!("the newest {} are shown; --limit N shows more", args.limit));
    }
    Ok(())
}
