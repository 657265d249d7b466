//! `lattice admin tenant`.

use super::tenant_member;
use lattice_api::client::Client;
use lattice_api::json::TenantJson;
use lattice_api::v1;
use lattice_api::v1::hours_change;
use lattice_api::v1::quota_change::To;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, Width, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::table::{Fit, Table, block};
use lattice_cli_syntax::args::tenant::{Quota, SetTenant, TenantCommand};

pub async fn run(session: &Session, command: TenantCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        TenantCommand::Create(args) => {
            let request = request(args);
            answer(client.admin().create_tenant(request.clone())).await?;
            show(session, &client, &request.name).await
        }
        TenantCommand::Update(args) => {
            let request = request(args);
            if request == (v1::TenantRequest { name: request.name.clone(), ..v1::TenantRequest::default() }) {
                let hint = "give --max-nodes, --max-concurrent-allocations, --fair-share-target, --burst-allowance, \
                            --gpu-hours-budget, --node-hours-budget or --class-max";
                return Err(Failure::usage("nothing to change").hint(hint));
            }
            answer(client.admin().update_tenant(request.clone())).await?;
            show(session, &client, &request.name).await
        }
        TenantCommand::Member(args) => tenant_member::run(session, &client, args.command).await,
        TenantCommand::Show(args) => show(session, &client, &args.name.get()).await,
        TenantCommand::Delete(args) => {
            let name = args.get();
            answer(client.admin().delete_tenant(v1::DeleteTenantRequest { name: name.clone() })).await?;
            match session.format() {
                Format::Table => print(&format!("Tenant {name} is deleted\n")),
                Format::Data(notation) => notation.print(&name),
                Format::Name => print_names([name.as_str()]),
            }
        }
        TenantCommand::List => {
            let tenants = list(&client).await?;
            match session.format() {
                Format::Table => print(&table(&tenants, session.table_size())),
                Format::Data(notation) => notation.print(&tenants.iter().map(TenantJson::from).collect::<Vec<_>>()),
                Format::Name => print_names(tenants.iter().map(|t| t.name.as_str())),
            }
        }
    }
}

fn request(args: SetTenant) -> v1::TenantRequest {
    let change = |quota: Option<Quota>| {
        let to = match quota? {
            Quota::Unlimited => To::Unlimited(true),
            Quota::AtMost(limit) => To::AtMost(limit),
        };
        Some(v1::QuotaChange { to: Some(to) })
    };
    let hours = |budget: Option<Quota<u64>>| {
        let to = match budget? {
            Quota::Unlimited => hours_change::To::Unlimited(true),
            Quota::AtMost(hours) => hours_change::To::AtMost(hours),
        };
        Some(v1::HoursChange { to: Some(to) })
    };
    v1::TenantRequest {
        name: args.name.get(),
        max_nodes: change(args.max_nodes),
        max_concurrent_allocations: change(args.max_concurrent_allocations),
        fair_share_target_ppm: change(args.fair_share_target),
        burst_allowance_percent: change(args.burst_allowance),
        gpu_hours_budget: hours(args.gpu_hours_budget),
        node_hours_budget: hours(args.node_hours_budget),
        class_max: change(args.class_max),
        expected_version: None,
    }
}

async fn list(client: &Client) -> Result<Vec<v1::Tenant>, Failure> {
    Ok(answer(client.admin().list_tenants(v1::ListTenantsRequest {})).await?.tenants)
}

async fn show(session: &Session, client: &Client, name: &str) -> Result<(), Failure> {
    let found = list(client).await?.into_iter().find(|t| t.name == name);
    let missing = || Failure::new(Exit::NotFound, format!("there is no tenant {name:?}")).hint("`lattice admin tenant list` shows them");
    let tenant = found.ok_or_else(missing)?;
    match session.format() {
        Format::Table => print(&details(&tenant)),
        Format::Data(notation) => notation.print(&TenantJson::from(&tenant)),
        Format::Name => print_names([tenant.name.as_str()]),
    }
}

/// How the list is made narrower.
const FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("TENANT", 12)], wrapped: &[], left_out_last: &[] };

fn table(tenants: &[v1::Tenant], size: TableSize) -> String {
    const QUOTAS: [&str; 5] = ["TENANT", "NODES", "MAX NODES", "ALLOCATIONS", "MAX CONCURRENT"];
    const SOFT: [&str; 5] = ["FAIR SHARE", "BURST", "GPU-HOURS", "NODE-HOURS", "MAX CLASS"];
    let mut table = match size.width {
        Width::Terse => Table::new(&QUOTAS),
        Width::Wide => Table::new(&[QUOTAS, SOFT].concat()),
    };
    for t in tenants {
        let mut cells = vec![
            t.name.clone(),
            t.nodes.to_string(),
            text_or_none(t.max_nodes),
            t.allocations.to_string(),
            text_or_none(t.max_concurrent_allocations),
        ];
        if size.width == Width::Wide {
            cells.extend(soft(t));
        }
        table.row(cells);
    }
    table.on_screen(&[], &FIT, size)
}

/// Its share, allowance, budgets and class.
fn soft(t: &v1::Tenant) -> [String; 5] {
    [
        text_or_none(t.fair_share_target_ppm.map(|ppm| scaled(ppm, 6))),
        text_or_none(t.burst_allowance_percent.map(|percent| scaled(percent, 2))),
        text_or_none(t.gpu_hours_budget),
        text_or_none(t.node_hours_budget),
        text_or_none(t.class_max),
    ]
}

fn details(t: &v1::Tenant) -> String {
    let [fair_share, burst, gpu_hours, node_hours, class] = soft(t);
    block(&[
        ("Tenant", t.name.clone()),
        ("Nodes", format!("{} (at most: {})", t.nodes, text_or_none(t.max_nodes))),
        ("Allocations with nodes", format!("{} (at most: {})", t.allocations, text_or_none(t.max_concurrent_allocations))),
        ("Fair share", fair_share),
        ("Burst allowance", burst),
        ("GPU-hours budget", gpu_hours),
        ("Node-hours budget", node_hours),
        ("Highest class", class),
    ])
}

fn text_or_none(limit: Option<impl ToString>) -> String {
    limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string())
}

/// A number with this many decimals, without zeros at its end: 150000 with 6 is `0.15`.
fn scaled(number: u32, decimals: usize) -> String {
    let digits = format!("{number:0>width$}", width = decimals + 1);
    let (whole, part) = digits.split_at(digits.len() - decimals);
    format!("{whole}.{part}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_shown_as_they_are_typed() {
        let shown = [(150_000, 6), (0, 6), (1_000_000, 6), (1, 6), (150, 2), (100, 2), (105, 2), (100_000, 2)];
        let shown = shown.map(|(number, decimals)| scaled(number, decimals));
        assert_eq!(shown, ["0.15", "0", "1", "0.000001", "1.5", "1", "1.05", "1000"]);
    }

    #[test]
    fn a_tenant_is_shown_with_its_share_and_budgets() {
        let tenant = v1::Tenant {
            name: "physics".into(),
            max_nodes: Some(200),
            nodes: 7,
            fair_share_target_ppm: Some(150_000),
            burst_allowance_percent: Some(150),
            gpu_hours_budget: Some(100_000),
            class_max: Some(7),
            ..v1::Tenant::default()
        };
        let want = "TENANT   NODES  MAX NODES  ALLOCATIONS  MAX CONCURRENT\nphysics  7      200        0            none\n";
        assert_eq!(table(std::slice::from_ref(&tenant), TableSize::default()), want);
        let wide = table(std::slice::from_ref(&tenant), TableSize { width: Width::Wide, columns: Some(80) });
        assert!(wide.ends_with("0.15        1.5    100000     none        7\n"), "{wide}");
        let long = v1::Tenant { name: "t".repeat(128), max_nodes: Some(u32::MAX), ..tenant.clone() };
        lattice_cli_session::table::assert_fits(&table(&[long], lattice_cli_session::table::NARROW));
        let details = details(&tenant);
        for line in ["Nodes:                   7 (at most: 200)", "Fair share:              0.15", "Highest class:           7"] {
            assert!(details.contains(line), "{details}");
        }
        assert_eq!(serde_json::json!(TenantJson::from(&tenant))["fair_share_target"], 0.15);
    }
}
