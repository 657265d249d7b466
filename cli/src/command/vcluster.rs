//! `lattice vcluster` and `lattice admin vcluster`.

use crate::failure::{Exit, Failure};
use crate::output::{Format, print, print_names};
use crate::session::{self, Session, answer};
use crate::shown::{AllocationJson, allocations_table, filled, folded, time};
use crate::table::Table;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_syntax::args::vcluster::{AdminVCluster, VClusterCommand, VClusterSettings};
use lattice_model::hostlist;

pub async fn run(session: &Session, command: VClusterCommand) -> Result<(), Failure> {
    let client = session.connect().await?;
    match command {
        VClusterCommand::List => list(session, &client).await,
        VClusterCommand::Queue(args) => queue(session, &client, args.name).await,
    }
}

/// Refuses documented options and commands that are not implemented, by name.
pub fn refuse_unbuilt(command: &AdminVCluster) -> Result<(), Failure> {
    match command.unbuilt() {
        None => Ok(()),
        Some(name) => {
            let what = format!("{name} is not built yet, and nothing was changed");
            Err(Failure::new(Exit::Refused, what)
                .hint("leave it out: a queue has one scheduler, hpc-backfill or interactive-fifo, and no settings of it"))
        }
    }
}

pub async fn administer(session: &Session, command: AdminVCluster) -> Result<(), Failure> {
    refuse_unbuilt(&command)?;
    let client = session.connect().await?;
    match command {
        AdminVCluster::Create(args) => {
            let name = args.name.get();
            let VClusterSettings { tenant, nodes, .. } = args.settings;
            let nodes = nodes.as_deref().map(host_list).transpose()?.unwrap_or_default();
            let tenant = tenant.map(tenant_or_all).unwrap_or_default();
            let request = v1::CreateVClusterRequest { name: name.clone(), scheduler: args.scheduler, tenant, nodes };
            answer(client.vclusters().create(request)).await?;
            show(session, &client, &name).await
        }
        AdminVCluster::SetConfig(args) => {
            let name = args.name.get();
            let VClusterSettings { tenant, nodes, .. } = args.settings;
            if tenant.is_none() && nodes.is_none() {
                return Err(Failure::usage("nothing to change").hint("give --tenant or --nodes"));
            }
            let nodes = nodes.as_deref().map(host_list).transpose()?;
            let request = v1::SetVClusterRequest {
                name: name.clone(),
                tenant: tenant.map(tenant_or_all),
                nodes: nodes.map(|nodes| v1::set_v_cluster_request::NodeSet { nodes }),
            };
            answer(client.vclusters().set_config(request)).await?;
            show(session, &client, &name).await
        }
        AdminVCluster::List => list(session, &client).await,
        AdminVCluster::Show(args) => show(session, &client, &args.get()).await,
        AdminVCluster::Delete(args) => {
            let name = args.get();
            answer(client.vclusters().delete(v1::DeleteVClusterRequest { name: name.clone() })).await?;
            match session.format() {
                Format::Table => print(&format!("vCluster {name} is deleted; its nodes belong to the default vCluster\n")),
                Format::Data(notation) => notation.print(&name),
                Format::Name => print_names([name.as_str()]),
            }
        }
        AdminVCluster::SetWeights(_) => unreachable!("refused above"),
    }
}

/// The tenant, or an empty text for `none`, which means all tenants.
fn tenant_or_all(tenant: String) -> String {
    if tenant == "none" { String::new() } else { tenant }
}

/// A hostlist, or `none`.
fn host_list(text: &str) -> Result<Vec<String>, Failure> {
    if text == "none" {
        return Ok(Vec::new());
    }
    let nodes = hostlist::expand(text).map_err(|e| Failure::usage(format!("--nodes: {e}")))?;
    Ok(nodes.iter().map(ToString::to_string).collect())
}

async fn list(session: &Session, client: &Client) -> Result<(), Failure> {
    let all = all(client).await?;
    match session.format() {
        Format::Table => print(&table(&all)),
        Format::Data(notation) => notation.print(&all.iter().map(json).collect::<Vec<_>>()),
        Format::Name => print_names(all.iter().map(|v| v.name.as_str())),
    }
}

async fn queue(session: &Session, client: &Client, name: String) -> Result<(), Failure> {
    let queue = answer(client.vclusters().queue(v1::VClusterQueueRequest { name })).await?;
    let left_out = (queue.waiting as usize).saturating_sub(queue.allocations.len());
    if left_out > 0 {
        session.note(&format!("{left_out} more allocations wait after these"));
    }
    match session.format() {
        Format::Table => print(&allocations_table(&queue.allocations, session::now(), true, session.table_size())),
        Format::Data(notation) => notation.print(&queue.allocations.iter().map(AllocationJson::from).collect::<Vec<_>>()),
        Format::Name => print_names(queue.allocations.iter().map(|a| a.id.as_str())),
    }
}

async fn all(client: &Client) -> Result<Vec<v1::VCluster>, Failure> {
    Ok(answer(client.vclusters().list(v1::ListVClustersRequest {})).await?.vclusters)
}

async fn show(session: &Session, client: &Client, name: &str) -> Result<(), Failure> {
    let found = all(client).await?.into_iter().find(|v| v.name == name);
    let missing = || Failure::new(Exit::NotFound, format!("vCluster {name:?} not found")).hint("`lattice vcluster list` shows them");
    let vcluster = found.ok_or_else(missing)?;
    match session.format() {
        Format::Table => print(&table(&[vcluster])),
        Format::Data(notation) => notation.print(&json(&vcluster)),
        Format::Name => print_names([vcluster.name.as_str()]),
    }
}

fn table(vclusters: &[v1::VCluster]) -> String {
    let mut table = Table::new(&["VCLUSTER", "SCHEDULER", "TENANT", "PENDING", "RUNNING", "SERVED BY", "NODES"]);
    for v in vclusters {
        let tenant = filled(&v.tenant).unwrap_or("any").to_owned();
        let nodes = if v.nodes.is_empty() { "the default's".to_owned() } else { folded(&v.nodes) };
        let (pending, running) = (v.pending.to_string(), v.running.to_string());
        table.row(vec![v.name.clone(), v.scheduler.clone(), tenant, pending, running, v.served_by.clone(), nodes]);
    }
    table.text(&[])
}

fn json(v: &v1::VCluster) -> serde_json::Value {
    serde_json::json!({
        "name": v.name, "scheduler": v.scheduler, "tenant": filled(&v.tenant), "nodes": v.nodes, "pending": v.pending,
        "running": v.running, "served_by": filled(&v.served_by), "created_by": filled(&v.created_by), "created_at": time(v.created_at_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_tenant_server_and_nodes_of_each_vcluster() {
        let default = v1::VCluster {
            name: "default".into(),
            scheduler: "hpc-backfill".into(),
            nodes: vec!["n1".into(), "n2".into()],
            running: 1,
            served_by: "n1".into(),
            ..Default::default()
        };
        let guests = v1::VCluster {
            name: "guests".into(),
            scheduler: "interactive-fifo".into(),
            tenant: "physics".into(),
            nodes: vec![],
            served_by: String::new(),
            ..default.clone()
        };
        let want = "\
VCLUSTER  SCHEDULER         TENANT   PENDING  RUNNING  SERVED BY  NODES
default   hpc-backfill      any      0        1        n1         n[1-2]
guests    interactive-fifo  physics  0        1        —          the default's
";
        assert_eq!(table(&[default, guests]), want);
        assert_eq!((tenant_or_all("none".into()), tenant_or_all("physics".into())), (String::new(), "physics".into()));
        assert_eq!(host_list("none").unwrap(), Vec::<String>::new());
        assert_eq!(host_list("n[1-2]").unwrap(), ["n1", "n2"]);
        assert!(host_list("n[1").unwrap_err().text().contains("--nodes"));
    }
}
