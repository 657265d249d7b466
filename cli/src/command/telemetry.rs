//! `lattice telemetry`.

use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print, print_bytes, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{filled, short};
use lattice_cli_syntax::args::telemetry::Telemetry;
use lattice_model::duration::clock_text;
use lattice_model::{TelemetryMode, millis};
use std::time::Duration;
use uuid::Uuid;

pub async fn run(session: &Session, args: Telemetry) -> Result<(), Failure> {
    let key = session.resolve_key(&args.alloc)?;
    if args.read {
        return print_recorded(session, key, args.node.unwrap_or_default()).await;
    }
    let Some(mode) = args.mode else { return print_mode(session, key).await };
    let client = session.connect().await?;
    let duration_ms = args.duration.map_or(0, millis);
    let (id, mode) = (Uuid::new_v4().to_string(), mode.to_string());
    let set = answer(client.allocations().set_telemetry(v1::SetTelemetryRequest { key, id, mode, duration_ms })).await?;
    match session.format() {
        Format::Table => print(&confirmation_text(&set)),
        Format::Data(notation) => notation.print(&serde_json::json!({
            "id": set.id, "mode": set.mode, "duration_ms": (set.duration_ms > 0).then_some(set.duration_ms),
            "place": is_recorded(&set).then_some(&set.place), "store": filled(&set.store),
        })),
        Format::Name => print_names([set.id.as_str()]),
    }
}

/// Whether the mode records into the store.
fn is_recorded(set: &v1::SetTelemetryResponse) -> bool {
    set.mode != TelemetryMode::Prod.name()
}

fn confirmation_text(set: &v1::SetTelemetryResponse) -> String {
    let id = short(&set.id);
    if !is_recorded(set) {
        return format!("Allocation {id} is measured in {} mode\n", set.mode);
    }
    let time = match set.duration_ms {
        0 => "until its work ends".to_owned(),
        ms => format!("for {}", clock_text(Duration::from_millis(ms))),
    };
    let what = if set.mode == TelemetryMode::Audit.name() { "which files it opens and whom it connects to" } else { "every measurement" };
    let store = if set.store.is_empty() { "the log store of its nodes".to_owned() } else { set.store.clone() };
    format!("Allocation {id} is measured in {} mode {time}: {what} is kept as {} in {store}\n", set.mode, set.place)
}

/// Prints the recorded lines unchanged, in any format.
async fn print_recorded(session: &Session, key: String, node: String) -> Result<(), Failure> {
    let client = session.connect().await?;
    let mut pieces = answer(client.allocations().read_telemetry(v1::ReadTelemetryRequest { key, node })).await?;
    let mut any = false;
    while let Some(piece) = pieces.message().await? {
        any = true;
        print_bytes(&piece.lines)?;
    }
    if !any {
        session.note("nothing is in the store yet; agents write to it every logs.flush_seconds");
    }
    Ok(())
}

/// Prints the present mode of measurement.
async fn print_mode(session: &Session, key: String) -> Result<(), Failure> {
    let client = session.connect().await?;
    let allocation = answer(client.allocations().get(v1::GetAllocationRequest { key, stale: false })).await?;
    // The agent's text begins with the mode.
    let mode = allocation.telemetry.split(' ').next().filter(|mode| !mode.is_empty());
    let mode = mode.map_or_else(|| TelemetryMode::Prod.to_string(), str::to_owned);
    match session.format() {
        Format::Table if allocation.telemetry.is_empty() => {
            print(&format!("Allocation {} is measured in {mode} mode\n", short(&allocation.id)))
        }
        Format::Table => print(&format!("Allocation {} is measured in {}\n", short(&allocation.id), allocation.telemetry)),
        Format::Data(notation) => notation.print(&serde_json::json!({
            "id": allocation.id, "mode": mode, "telemetry": filled(&allocation.telemetry),
        })),
        Format::Name => print_names([allocation.id.as_str()]),
    }
}
