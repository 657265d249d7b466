//! `lattice lease`.

use lattice_api::client::Client;
use lattice_api::json::ListedLeaseJson;
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::lease_token;
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_session::watch::{self, Watched};
use lattice_cli_syntax::args::lease::{LeaseCommand, LeaseRevoke};
use lattice_model::millis;
use std::time::Duration;

pub async fn run(session: &Session, command: LeaseCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        LeaseCommand::Grant(args) => {
            let ttl_ms = millis(args.ttl);
            let lease = answer(client.leases().grant(v1::GrantLeaseRequest { name: args.name, ttl_ms })).await?;
            show(session, &lease)
        }
        LeaseCommand::Renew(args) => {
            let lease = answer(client.leases().renew(v1::RenewLeaseRequest { name: args.name, token: args.token })).await?;
            show(session, &lease)
        }
        LeaseCommand::Release(args) => {
            answer(client.leases().release(v1::ReleaseLeaseRequest { name: args.name, token: args.token })).await?;
            Ok(())
        }
        LeaseCommand::Revoke(args) => revoke(session, &client, args).await,
        LeaseCommand::List(args) if args.watch => watch::run(session, What::Leases(v1::WatchedLeases {}), Watched::Leases).await,
        LeaseCommand::List(args) => {
            let mut leases = list(&client).await?;
            leases.retain(|l| !args.problem || !l.problem.is_empty());
            match session.format() {
                Format::Table => print(&table(&leases, session.table_size())),
                Format::Data(notation) => notation.print(&leases.iter().map(ListedLeaseJson::from).collect::<Vec<_>>()),
                Format::Name => print_names(leases.iter().map(|l| l.name.as_str())),
            }
        }
    }
}

async fn list(client: &Client) -> Result<Vec<v1::Lease>, Failure> {
    Ok(answer(client.leases().list(v1::ListLeasesRequest {})).await?.leases)
}

/// Revokes the named leases, or all whose holder has a problem. The token limits it to the listed grant, not a later one.
async fn revoke(session: &Session, client: &Client, args: LeaseRevoke) -> Result<(), Failure> {
    let leases = list(client).await?;
    let wanted: Vec<&v1::Lease> = if args.problem {
        leases.iter().filter(|l| !l.problem.is_empty()).collect()
    } else {
        let find = |name: &String| {
            let missing = || Failure::new(Exit::NotFound, format!("there is no lease {name}")).hint("`lattice lease list` shows them");
            leases.iter().find(|l| l.name == *name).ok_or_else(missing)
        };
        args.names.iter().map(find).collect::<Result<_, _>>()?
    };
    for lease in &wanted {
        answer(client.leases().revoke(v1::RevokeLeaseRequest { name: lease.name.clone(), token: lease.token })).await?;
    }
    match session.format() {
        Format::Table => {
            wanted.iter().try_for_each(|l| print(&format!("Revoked {} (token {}, {})\n", l.name, lease_token(l), holder_text(l))))
        }
        Format::Data(notation) => notation.print(&wanted.iter().copied().map(ListedLeaseJson::from).collect::<Vec<_>>()),
        Format::Name => print_names(wanted.iter().map(|l| l.name.as_str())),
    }
}

/// With `-o name` only the token, for use in scripts.
fn show(session: &Session, lease: &v1::Lease) -> Result<(), Failure> {
    match session.format() {
        Format::Table => print(&format!("Lease {}: token {}, renew it within {}\n", lease.name, lease_token(lease), time(lease.ttl_ms))),
        Format::Data(notation) => notation.print(&ListedLeaseJson::from(lease)),
        Format::Name => print_names([lease_token(lease).as_str()]),
    }
}

/// How the list is made narrower.
const FIT: Fit<'_> =
    Fit { left_out: &[], shortened: &[("USER", 8), ("HOLDER", 10), ("NAME", 16)], wrapped: &[("PROBLEM", 16)], left_out_last: &[] };

fn table(leases: &[v1::Lease], size: TableSize) -> String {
    let mut table = Table::new(&["NAME", "TOKEN", "HOLDER", "USER", "ENDS IN", "PROBLEM"]);
    for l in leases {
        let left = l.left_ms.map(time).unwrap_or_default();
        table.row(vec![l.name.clone(), lease_token(l), l.holder.clone(), l.user.clone(), left, l.problem.clone()]);
    }
    table.on_screen(&["PROBLEM"], &FIT, size)
}

fn holder_text(lease: &v1::Lease) -> String {
    if lease.user.is_empty() { format!("agent of {}", lease.holder) } else { format!("{} at {}", lease.user, lease.holder) }
}

/// Milliseconds for people: `1.5s`.
pub fn time(ms: u64) -> String {
    let seconds = Duration::from_millis(ms).as_secs_f64();
    format!("{seconds:.1}s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_of_the_holder_has_its_column() {
        let good = v1::Lease {
            name: "build".into(),
            holder: "n1".into(),
            user: "ada".into(),
            token: Some(7),
            ttl_ms: 30_000,
            left_ms: Some(29_540),
            problem: String::new(),
        };
        let agents = v1::Lease { name: "scheduler/default".into(), user: String::new(), token: None, left_ms: None, ..good.clone() };
        let want = "NAME               TOKEN  HOLDER  USER  ENDS IN\n\
                    build              7      n1      ada   29.5s\n\
                    scheduler/default  —      n1      —     —\n";
        assert_eq!(table(&[good.clone(), agents], TableSize::default()), want);
        let bad = v1::Lease { problem: "its holder is not registered".into(), ..good };
        assert!(table(std::slice::from_ref(&bad), TableSize::default()).contains("not registered"));
        let wide = v1::Lease { name: "l".repeat(128), holder: "h".repeat(64), user: "u".repeat(64), token: Some(u64::MAX), ..bad };
        lattice_cli_session::table::assert_fits(&table(&[wide], lattice_cli_session::table::NARROW));
    }
}
