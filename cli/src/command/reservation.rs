//! `lattice admin reservation`.

use lattice_api::client::Client;
use lattice_api::json::ReservationJson;
use lattice_api::v1;
use lattice_api::v1::set_reservation_request::Names;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::local_clock::local_clock;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::table::{Fit, Table, block};
use lattice_cli_syntax::args::reservation::{CreateReservation, ReservationCommand, ReservedFor, UpdateReservation};
use lattice_cli_syntax::start_times::StartTime;
use lattice_model::count::counted;
use lattice_model::millis;
use lattice_model::time::Timestamp;

pub async fn run(session: &Session, command: ReservationCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        ReservationCommand::Create(args) => {
            let request = creation(args)?;
            answer(client.reservations().create(request.clone())).await?;
            show(session, &client, &request.name).await
        }
        ReservationCommand::Update(args) => {
            let request = update(&client, args).await?;
            if request == (v1::SetReservationRequest { name: request.name.clone(), ..Default::default() }) {
                let hint = "give --nodes, --start, --end, --duration, --tenant, --user, --maintenance or --comment";
                return Err(Failure::usage("nothing to change").hint(hint));
            }
            answer(client.reservations().update(request.clone())).await?;
            show(session, &client, &request.name).await
        }
        ReservationCommand::Delete(args) => {
            let name = args.name;
            let deleted = answer(client.reservations().delete(v1::DeleteReservationRequest { name: name.clone() })).await?;
            match session.format() {
                Format::Table => print(&deleted_text(&name, deleted.waiting)),
                Format::Data(notation) => notation.print(&serde_json::json!({ "name": name, "waiting": deleted.waiting })),
                Format::Name => print_names([name.as_str()]),
            }
        }
        ReservationCommand::Show(args) => show(session, &client, &args.name).await,
        ReservationCommand::List => {
            let all = list(&client).await?;
            match session.format() {
                Format::Table => print(&table(&all, session.table_size())),
                Format::Data(notation) => notation.print(&all.iter().map(ReservationJson::from).collect::<Vec<_>>()),
                Format::Name => print_names(all.iter().map(|r| r.name.as_str())),
            }
        }
    }
}

fn resolved(flag: &str, time: Option<StartTime>) -> Result<Option<u64>, Failure> {
    let clock = local_clock();
    time.map(|time| Ok(time.resolve(flag, &clock)?.0)).transpose()
}

fn names(given: Vec<String>) -> Option<Names> {
    (!given.is_empty()).then_some(Names { names: given })
}

fn creation(args: CreateReservation) -> Result<v1::SetReservationRequest, Failure> {
    let ReservedFor { tenants, users, maintenance } = args.subjects;
    let start_ms = resolved("--start", Some(args.start))?;
    let end_ms = match args.duration {
        Some(duration) => start_ms.map(|start_ms| start_ms.saturating_add(millis(duration))),
        None => resolved("--end", args.end)?,
    };
    Ok(v1::SetReservationRequest {
        name: args.name,
        nodes: Some(args.nodes),
        start_ms,
        end_ms,
        tenants: names(tenants),
        users: names(users),
        maintenance: Some(maintenance),
        comment: args.comment,
        expected_version: None,
    })
}

/// Given tenants and users replace those of the reservation; maintenance replaces all of them.
async fn update(client: &Client, args: UpdateReservation) -> Result<v1::SetReservationRequest, Failure> {
    let ReservedFor { tenants, users, maintenance } = args.subjects;
    let start_ms = resolved("--start", args.start)?;
    let end_ms = match args.duration {
        Some(duration) => {
            let start_ms = match start_ms {
                Some(start_ms) => start_ms,
                None => find(client, &args.name).await?.start_ms,
            };
            Some(start_ms.saturating_add(millis(duration)))
        }
        None => resolved("--end", args.end)?,
    };
    let has_subjects = !tenants.is_empty() || !users.is_empty();
    let replaced = |given: Vec<String>| (maintenance || has_subjects).then_some(Names { names: given });
    Ok(v1::SetReservationRequest {
        name: args.name,
        nodes: args.nodes,
        start_ms,
        end_ms,
        tenants: replaced(tenants),
        users: replaced(users),
        maintenance: (maintenance || has_subjects).then_some(maintenance),
        comment: args.comment,
        expected_version: None,
    })
}

async fn list(client: &Client) -> Result<Vec<v1::Reservation>, Failure> {
    Ok(answer(client.reservations().list(v1::ListReservationsRequest {})).await?.reservations)
}

async fn find(client: &Client, name: &str) -> Result<v1::Reservation, Failure> {
    let missing =
        || Failure::new(Exit::NotFound, format!("there is no reservation {name:?}")).hint("`lattice admin reservation list` shows them");
    list(client).await?.into_iter().find(|r| r.name == name).ok_or_else(missing)
}

async fn show(session: &Session, client: &Client, name: &str) -> Result<(), Failure> {
    let reservation = find(client, name).await?;
    match session.format() {
        Format::Table => print(&details(&reservation)),
        Format::Data(notation) => notation.print(&ReservationJson::from(&reservation)),
        Format::Name => print_names([reservation.name.as_str()]),
    }
}

fn deleted_text(name: &str, waiting: u32) -> String {
    let rest = match waiting {
        0 => String::new(),
        1 => "; 1 allocation waited for it, and gets no nodes any more".to_owned(),
        many => format!("; {} waited for it, and get no nodes any more", counted(many, "allocation")),
    };
    format!("Reservation {name} is deleted{rest}\n")
}

/// How the list is made narrower.
const FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("NAME", 8), ("NODES", 9), ("FOR", 11)], wrapped: &[], left_out_last: &[] };

fn table(all: &[v1::Reservation], size: TableSize) -> String {
    let mut table = Table::new(&["NAME", "STATE", "START", "END", "NODES", "FOR"]);
    for r in all {
        let (start, end) = (minute(r.start_ms), minute(r.end_ms));
        table.row(vec![r.name.clone(), r.state.clone(), start, end, r.nodes.clone(), subjects(r)]);
    }
    table.on_screen(&[], &FIT, size)
}

/// A time in whole minutes, such as `2026-03-05T10:00Z`.
fn minute(ms: u64) -> String {
    format!("{}Z", Timestamp(ms).to_string().chars().take(16).collect::<String>())
}

fn subjects(r: &v1::Reservation) -> String {
    if r.maintenance {
        return "maintenance".to_owned();
    }
    // If the site hides names, the answer has only the caller's own.
    if r.tenants.is_empty() && r.users.is_empty() {
        return "others".to_owned();
    }
    let tenants = r.tenants.iter().map(|tenant| format!("tenant {tenant}"));
    tenants.chain(r.users.iter().map(|user| format!("user {user}"))).collect::<Vec<_>>().join(", ")
}

fn details(r: &v1::Reservation) -> String {
    block(&[
        ("Reservation", r.name.clone()),
        ("State", r.state.clone()),
        ("Nodes", format!("{} ({})", r.nodes, r.node_count)),
        ("Start", Timestamp(r.start_ms).to_string()),
        ("End", Timestamp(r.end_ms).to_string()),
        ("For", subjects(r)),
        ("Comment", r.comment.clone()),
        ("Allocations", format!("{} with nodes, {} waiting", r.running, r.waiting)),
        ("Created by", r.created_by.clone()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::output::Width;

    fn reservation() -> v1::Reservation {
        v1::Reservation {
            name: "course".into(),
            nodes: "n[1-2]".into(),
            node_count: 2,
            start_ms: 1_772_704_800_000,
            end_ms: 1_772_712_000_000,
            tenants: vec!["physics".into()],
            users: vec!["anna".into()],
            state: "Pending".into(),
            ..Default::default()
        }
    }

    #[test]
    fn reservations_are_a_table_that_fits_into_80_columns() {
        let size = TableSize { width: Width::Terse, columns: Some(80) };
        let maintenance = v1::Reservation { name: "fans".into(), maintenance: true, nodes: "n3".into(), ..reservation() };
        let shown = table(&[reservation(), maintenance.clone()], TableSize::default());
        assert!(shown.contains("course  Pending  2026-03-05T10:00Z  2026-03-05T12:00Z  n[1-2]"), "{shown}");
        assert!(shown.contains("tenant physics, user anna") && shown.contains("maintenance"), "{shown}");
        let long = v1::Reservation { name: "r".repeat(64), nodes: "n1,".repeat(99), ..maintenance };
        let text = table(&[long], size);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn a_deletion_says_what_waits() {
        assert_eq!(deleted_text("a", 0), "Reservation a is deleted\n");
        assert_eq!(deleted_text("a", 2), "Reservation a is deleted; 2 allocations waited for it, and get no nodes any more\n");
    }
}
