//! `scontrol create reservation …`, `scontrol update ReservationName=…` and `scontrol delete ReservationName=…`.

use crate::slurm::cluster::{fetch_nodes, fetch_reservations};
use crate::slurm::surroundings::{Surroundings, user_names};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::set_reservation_request::Names;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::print;
use lattice_cli_session::session::{Session, answer};
use lattice_model::{NodeId, hostlist};
use lattice_slurm::time::{Side, parse_limit};
use lattice_slurm::units::listed;

/// Flags that change nothing: running work always continues, and a reservation always names its nodes.
const HARMLESS_FLAGS: [&str; 2] = ["ignore_jobs", "spec_nodes"];

/// The `KEY=VALUE` pairs. The word `reservation` may precede them.
fn pairs(words: &[String]) -> Result<Pairs<'_>, Failure> {
    let words = match words {
        [kind, rest @ ..] if kind.eq_ignore_ascii_case("reservation") => rest,
        [kind, ..] if !kind.contains('=') => {
            return Err(Failure::other(format!("scontrol cannot create or delete a {kind} here, only reservations"))
                .hint("`lattice admin vcluster` changes queues, `lattice node remove` removes a node"));
        }
        words => words,
    };
    let keys = words.iter().map(|word| word.split_once('=').map(|(key, _)| key.to_ascii_lowercase()));
    let keys: Option<Vec<String>> = keys.collect();
    let keys = keys.ok_or_else(|| Failure::other("write KEY=VALUE, such as ReservationName=course Nodes=n[1-2]"))?;
    let values = words.iter().filter_map(|word| word.split_once('=')).map(|(_, value)| value);
    Ok(keys.into_iter().zip(values).collect())
}

/// Keys in lower case, with their values.
type Pairs<'a> = Vec<(String, &'a str)>;

/// The name of the reservation, and the other pairs.
fn named(pairs: Pairs<'_>) -> Result<(&str, Pairs<'_>), Failure> {
    let (names, others): (Pairs, Pairs) = pairs.into_iter().partition(|(key, _)| key == "reservationname" || key == "reservation");
    match names.as_slice() {
        [(_, name)] => Ok((*name, others)),
        _ => Err(Failure::other("give ReservationName= exactly once").hint("Lattice does not invent names of reservations")),
    }
}

pub async fn create(session: &Session, words: &[String], surroundings: &Surroundings) -> Result<u8, Failure> {
    let (name, changes) = named(pairs(words)?)?;
    let client = session.connect().await?;
    let mut request = request(&client, name, &changes, surroundings, None).await?;
    if request.end_ms.is_none() {
        return Err(Failure::other("Duration= or EndTime= is needed").hint("a reservation has an end, at most 365 days ahead"));
    }
    note_root(session, &mut request);
    request.maintenance = request.maintenance.or(Some(false));
    answer(client.reservations().create(request)).await?;
    print(&format!("Reservation created: {name}\n"))?;
    Ok(0)
}

pub async fn update(session: &Session, name: &str, changes: &[(String, &str)], surroundings: &Surroundings) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let all = fetch_reservations(&client).await?;
    let known = all.iter().find(|known| known.name == name);
    let start_ms = known.ok_or_else(|| Failure::other(format!("Reservation {name} not found")))?.start_ms;
    let mut request = request(&client, name, changes, surroundings, Some(start_ms)).await?;
    note_root(session, &mut request);
    answer(client.reservations().update(request)).await?;
    print("Reservation updated.\n")?;
    Ok(0)
}

pub async fn delete(session: &Session, words: &[String]) -> Result<u8, Failure> {
    let name = match words {
        [kind, name] if kind.eq_ignore_ascii_case("reservation") && !name.contains('=') => name.as_str(),
        words => match named(pairs(words)?)? {
            (name, others) if others.is_empty() => name,
            _ => return Err(Failure::other("delete accepts only ReservationName=NAME")),
        },
    };
    let client = session.connect().await?;
    answer(client.reservations().delete(v1::DeleteReservationRequest { name: name.to_owned() })).await?;
    Ok(0)
}

/// Removes `Users=root` from a maintenance reservation and prints a note. Slurm requires a user in each reservation, so
/// scripts for it name root.
fn note_root(session: &Session, request: &mut v1::SetReservationRequest) {
    if is_root_alone(request) {
        request.users = None;
        session.note("Users=root is ignored: during maintenance no work begins on these nodes, not even root's");
    }
}

fn is_root_alone(request: &v1::SetReservationRequest) -> bool {
    request.maintenance == Some(true) && request.users.as_ref().is_some_and(|users| users.names == ["root"])
}

/// The request that these pairs describe. `known_start_ms`: the start of a reservation that exists already.
async fn request(
    client: &Client,
    name: &str,
    changes: &[(String, &str)],
    surroundings: &Surroundings,
    known_start_ms: Option<u64>,
) -> Result<v1::SetReservationRequest, Failure> {
    let invalid = |key: &str, value: &str| Failure::other(format!("Invalid {key}: {value}"));
    let time = |value: &str| surroundings.with(|context| context.clock.parse(value, Side::Future));
    let mut request = v1::SetReservationRequest { name: name.to_owned(), ..Default::default() };
    let mut duration_ms = None;
    for (key, value) in changes {
        match key.as_str() {
            "starttime" => request.start_ms = Some(time(value).ok_or_else(|| invalid(key, value))?),
            "endtime" => request.end_ms = Some(time(value).ok_or_else(|| invalid(key, value))?),
            "duration" => {
                let seconds = parse_limit(value)
                    .filter(|seconds| *seconds > 0)
                    .ok_or_else(|| invalid(key, value).hint("give minutes, HH:MM:SS or D-HH:MM; every reservation has an end"))?;
                duration_ms = Some(seconds.saturating_mul(1000));
            }
            "nodes" if value.eq_ignore_ascii_case("all") => request.nodes = Some(all_nodes(client).await?),
            "nodes" => request.nodes = Some((*value).to_owned()),
            "users" | "user" => request.users = Some(Names { names: user_names(plain(key, value)?)? }),
            "accounts" | "account" => {
                let tenant = |account: String| surroundings.compat.tenant_of(&account).to_owned();
                request.tenants = Some(Names { names: plain(key, value)?.into_iter().map(tenant).collect() });
            }
            "flags" => request.maintenance = Some(is_maintenance(value)?),
            "comment" => request.comment = Some((*value).to_owned()),
            _ => {
                return Err(Failure::other(format!("{key}= is not supported"))
                    .hint("supported: StartTime, EndTime, Duration, Nodes (a hostlist), Users, Accounts, Flags=MAINT and Comment"));
            }
        }
    }
    if duration_ms.is_some() && request.end_ms.is_some() {
        return Err(Failure::other("Duration= and EndTime= exclude each other").hint("give one of them"));
    }
    if let Some(duration_ms) = duration_ms {
        let now_ms = surroundings.with(|context| context.clock.now_ms);
        let start_ms = *request.start_ms.get_or_insert(known_start_ms.unwrap_or(now_ms));
        request.end_ms = Some(start_ms.saturating_add(duration_ms));
    }
    Ok(request)
}

/// The names of a list. Refuses `+NAME` and `-NAME`, which would change an existing list.
fn plain(key: &str, value: &str) -> Result<Vec<String>, Failure> {
    let names = listed(&[value.to_owned()]);
    if names.iter().any(|name| name.starts_with(['-', '+'])) || names.is_empty() {
        return Err(Failure::other(format!("Invalid {key}: {value}")).hint("list everyone who may use the reservation, without + and -"));
    }
    Ok(names)
}

fn is_maintenance(flags: &str) -> Result<bool, Failure> {
    let mut is_maintenance = false;
    for flag in listed(&[flags.to_ascii_lowercase()]) {
        match flag.as_str() {
            "maint" => is_maintenance = true,
            harmless if HARMLESS_FLAGS.contains(&harmless) => {}
            _ => return Err(Failure::other(format!("Invalid Flags: {flag}")).hint("supported: MAINT, IGNORE_JOBS and SPEC_NODES")),
        }
    }
    Ok(is_maintenance)
}

async fn all_nodes(client: &Client) -> Result<String, Failure> {
    let nodes = fetch_nodes(client).await?;
    let ids: Vec<NodeId> = nodes.iter().filter_map(|node| node.id.parse().ok()).collect();
    Ok(hostlist::fold(&ids))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_kind_may_be_named_and_the_name_is_needed() {
        for line in ["reservation ReservationName=a Nodes=n1", "Reservation=a nodes=n1"] {
            let words = words(line);
            let (name, others) = named(pairs(&words).unwrap()).unwrap();
            assert_eq!((name, others), ("a", vec![("nodes".to_owned(), "n1")]), "{line}");
        }
        for line in ["reservation Nodes=n1", "partition PartitionName=x", "reservation a b"] {
            let words = words(line);
            assert!(pairs(&words).and_then(named).is_err(), "{line}");
        }
    }

    #[test]
    fn flags_and_names_that_mean_something_else_are_refused() {
        assert!(is_maintenance("MAINT,IGNORE_JOBS").unwrap() && !is_maintenance("SPEC_NODES").unwrap());
        assert!(is_maintenance("DAILY").is_err());
        assert_eq!(plain("users", "anna,bob").unwrap(), ["anna", "bob"]);
        let request = |maintenance: bool, users: &[&str]| v1::SetReservationRequest {
            users: Some(Names { names: users.iter().map(|user| (*user).to_owned()).collect() }),
            maintenance: Some(maintenance),
            ..Default::default()
        };
        assert!(is_root_alone(&request(true, &["root"])));
        assert!(!is_root_alone(&request(true, &["root", "anna"])) && !is_root_alone(&request(false, &["root"])));
        assert!(plain("users", "-anna").is_err() && plain("users", "").is_err());
    }
}
