//! `lattice network` and `lattice admin network`.

use super::service::tenant;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_session::table::{Fit, Table, block};
use lattice_cli_syntax::args::network::{NetworkCommand, SetGrace, VniPool};
use lattice_model::duration::clock_text;
use lattice_model::millis;
use std::time::Duration;

pub async fn run(session: &Session, command: NetworkCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        NetworkCommand::List(args) => {
            let request = v1::ListNetworkDomainsRequest { tenant: tenant(session, args), name: String::new() };
            let domains = answer(client.admin().list_network_domains(request)).await?.domains;
            match session.format() {
                Format::Table => print(&table(&domains, session.table_size())),
                Format::Data(notation) => notation.print(&domains.iter().map(json).collect::<Vec<_>>()),
                Format::Name => print_names(domains.iter().map(|d| d.name.as_str())),
            }
        }
        NetworkCommand::Status(args) => {
            let request = v1::ListNetworkDomainsRequest { tenant: tenant(session, args.of), name: args.name };
            // Domains of several tenants may have the same name.
            let domains = answer(client.admin().list_network_domains(request)).await?.domains;
            match session.format() {
                Format::Table => print(&domains.iter().map(details).collect::<Vec<_>>().join("\n")),
                Format::Data(notation) => notation.print(&domains.iter().map(json).collect::<Vec<_>>()),
                Format::Name => print_names(domains.iter().flat_map(|d| &d.members).map(String::as_str)),
            }
        }
    }
}

pub async fn pool(session: &Session, args: VniPool) -> Result<(), Failure> {
    let client = session.connect().await?;
    let VniPool { start, end, grace } = args;
    let pool = if (start, end, grace) == (None, None, None) {
        answer(client.admin().get_vni_pool(v1::GetVniPoolRequest {})).await?
    } else {
        let grace_ms = grace.map(millis);
        answer(client.admin().set_vni_pool(v1::SetVniPoolRequest { start, end, grace_ms })).await?
    };
    let size = (pool.end + 1).saturating_sub(pool.start);
    match session.format() {
        Format::Table => print(&block(&[
            ("VNIs", format!("{} to {}", pool.start, pool.end)),
            ("In use", format!("{} of {size}", pool.used)),
            ("Outside", if pool.outside == 0 { String::new() } else { format!("{} domains keep numbers of a former pool", pool.outside) }),
            ("Grace", clock(pool.grace_ms)),
        ])),
        Format::Data(notation) => notation.print(&serde_json::json!({
            "start": pool.start, "end": pool.end, "size": size, "used": pool.used, "outside": pool.outside,
            "grace_seconds": pool.grace_ms / 1000,
        })),
        Format::Name => print_names([format!("{}-{}", pool.start, pool.end).as_str()]),
    }
}

pub async fn set_grace(session: &Session, args: SetGrace) -> Result<(), Failure> {
    let client = session.connect().await?;
    let tenant = args.tenant.unwrap_or_else(|| session.settings.tenant.clone());
    let request = v1::SetNetworkGraceRequest { tenant, name: args.domain.clone(), grace_ms: millis(args.grace) };
    answer(client.admin().set_network_grace(request)).await?;
    match session.format() {
        Format::Table => print(&format!("{} keeps its VNI for {} without work\n", args.domain, clock(millis(args.grace)))),
        Format::Data(notation) => notation.print(&serde_json::json!({ "name": args.domain, "grace_seconds": args.grace.as_secs() })),
        Format::Name => print_names([args.domain.as_str()]),
    }
}

/// How the list is made narrower.
const FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("TENANT", 8), ("DOMAIN", 16)], wrapped: &[("STATE", 12)], left_out_last: &[] };

fn table(domains: &[v1::NetworkDomain], size: TableSize) -> String {
    let mut table = Table::new(&["DOMAIN", "TENANT", "VNI", "ALLOCATIONS", "STATE"]);
    for d in domains {
        table.row(vec![d.name.clone(), d.tenant.clone(), d.vni.to_string(), d.members.len().to_string(), state(d)]);
    }
    table.on_screen(&["TENANT"], &FIT, size)
}

fn details(d: &v1::NetworkDomain) -> String {
    block(&[
        ("Domain", d.name.clone()),
        ("Tenant", d.tenant.clone()),
        ("VNI", d.vni.to_string()),
        ("State", state(d)),
        ("Grace", clock(d.grace_ms)),
        ("Allocations", d.members.iter().map(|id| short(id)).collect::<Vec<_>>().join(",")),
        ("Still on", d.nodes.join(",")),
    ])
}

fn state(d: &v1::NetworkDomain) -> String {
    d.left_ms.map_or_else(|| d.state.clone(), |left| format!("{}, {} left", d.state, clock(left)))
}

fn clock(ms: u64) -> String {
    clock_text(Duration::from_millis(ms))
}

fn json(d: &v1::NetworkDomain) -> serde_json::Value {
    serde_json::json!({
        "name": d.name, "tenant": d.tenant, "vni": d.vni, "state": d.state, "left_seconds": d.left_ms.map(|ms| ms / 1000),
        "grace_seconds": d.grace_ms / 1000, "allocations": d.members, "nodes": d.nodes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_shown_with_the_rest_of_their_grace() {
        let id = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".to_owned();
        let domain = v1::NetworkDomain {
            tenant: "physics".into(),
            name: "ml".into(),
            vni: 1000,
            members: vec![id.clone(), id],
            state: "active".into(),
            left_ms: None,
            nodes: vec![],
            grace_ms: 300_000,
        };
        let idle = v1::NetworkDomain {
            name: "eval".into(),
            vni: 1001,
            members: vec![],
            state: "grace".into(),
            left_ms: Some(272_900),
            nodes: vec!["n7".into()],
            ..domain.clone()
        };
        let want = "\
DOMAIN  TENANT   VNI   ALLOCATIONS  STATE
ml      physics  1000  2            active
eval    physics  1001  0            grace, 00:04:32 left
";
        assert_eq!(table(&[domain, idle.clone()], TableSize::default()), want);
        let wide = v1::NetworkDomain { name: "d".repeat(64), tenant: "t".repeat(64), ..idle.clone() };
        lattice_cli_session::table::assert_fits(&table(&[wide], lattice_cli_session::table::NARROW));
        let want =
            "Domain:    eval\nTenant:    physics\nVNI:       1001\nState:     grace, 00:04:32 left\nGrace:     00:05:00\nStill on:  n7\n";
        assert_eq!(details(&idle), want);
    }
}
