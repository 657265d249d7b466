//! `lattice admin tenant`.

use crate::failure::{Exit, Failure};
use crate::output::{Format, print, print_names};
use crate::session::{Session, answer};
use crate::table::Table;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::quota_change::To;
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
            if request.max_nodes.is_none() && request.max_concurrent_allocations.is_none() {
                return Err(Failure::usage("nothing to change").hint("give --max-nodes or --max-concurrent-allocations"));
            }
            answer(client.admin().update_tenant(request.clone())).await?;
            show(session, &client, &request.name).await
        }
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
                Format::Table => print(&table(&tenants)),
                Format::Data(notation) => notation.print(&tenants.iter().map(json).collect::<Vec<_>>()),
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
    v1::TenantRequest {
        name: args.name.get(),
        max_nodes: change(args.max_nodes),
        max_concurrent_allocations: change(args.max_concurrent_allocations),
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
        Format::Table => print(&table(&[tenant])),
        Format::Data(notation) => notation.print(&json(&tenant)),
        Format::Name => print_names([tenant.name.as_str()]),
    }
}

fn table(tenants: &[v1::Tenant]) -> String {
    let limit = |limit: Option<u32>| limit.map_or_else(|| "none".to_owned(), |l| l.to_string());
    let mut table = Table::new(&["TENANT", "NODES", "MAX NODES", "ALLOCATIONS", "MAX CONCURRENT"]);
    for t in tenants {
        table.row(vec![
            t.name.clone(),
            t.nodes.to_string(),
            limit(t.max_nodes),
            t.allocations.to_string(),
            limit(t.max_concurrent_allocations),
        ]);
    }
    table.text(&[])
}

fn json(t: &v1::Tenant) -> serde_json::Value {
    serde_json::json!({
        "name": t.name, "max_nodes": t.max_nodes, "max_concurrent_allocations": t.max_concurrent_allocations,
        "nodes": t.nodes, "allocations": t.allocations,
    })
}
