//! `lattice vcluster` and `lattice admin vcluster`.

mod chart;
mod overview;
mod record;
mod settings;

use lattice_api::client::Client;
use lattice_api::json::VClusterJson;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{self, Session, answer};
use lattice_cli_session::shown::counts::nodes_wanted;
use lattice_cli_session::shown::{AllocationJson, allocations_table, filled, folded, job, short, work_name};
use lattice_cli_session::table::{Fit, Table, block};
use lattice_cli_syntax::args::vcluster::{AdminVCluster, Answer, VCluster, VClusterCommand, VClusterSettings};
use lattice_model::{Factor, Weight, hostlist};
use record::{all, find};

pub async fn run(session: &Session, args: VCluster) -> Result<(), Failure> {
    let command = args.into_command()?;
    let client = session.connect().await?;
    match command {
        VClusterCommand::List => list(session, &client).await,
        VClusterCommand::Queue(args) => queue(session, &client, args.name).await,
        VClusterCommand::Show(args) => overview::run(session, &client, &args.name).await,
    }
}

/// Refuses documented options and commands that are not implemented, by name.
pub fn refuse_unbuilt(command: &AdminVCluster) -> Result<(), Failure> {
    match command.unbuilt() {
        None => Ok(()),
        Some(name) => {
            let what = format!("{name} is not built yet, and nothing was changed");
            Err(Failure::new(Exit::Refused, what)
                .hint("leave it out: `lattice admin vcluster set-config --help` shows the settings that there are"))
        }
    }
}

pub async fn administer(session: &Session, command: AdminVCluster) -> Result<(), Failure> {
    refuse_unbuilt(&command)?;
    let client = session.connect().await?;
    match command {
        AdminVCluster::Create(args) => {
            let name = args.name.get();
            let VClusterSettings { tenant, nodes, cycle_interval, borrow, lend, .. } = args.settings;
            let nodes = nodes.as_deref().map(host_list).transpose()?.unwrap_or_default();
            let tenant = tenant.map(tenant_or_all).unwrap_or_default();
            let cycle_interval_ms = cycle_interval.unwrap_or_default();
            let request = v1::CreateVClusterRequest {
                name: name.clone(),
                scheduler: args.scheduler,
                tenant,
                nodes,
                cycle_interval_ms,
                borrows: borrow == Some(Answer::Yes),
                lend_ms: lend.unwrap_or_default(),
            };
            answer(client.vclusters().create(request)).await?;
            show(session, &client, &name).await
        }
        AdminVCluster::SetConfig(args) => {
            let name = args.name.get();
            let VClusterSettings { tenant, nodes, cycle_interval, borrow, lend, .. } = args.settings;
            if tenant.is_none() && nodes.is_none() && cycle_interval.is_none() && borrow.is_none() && lend.is_none() {
                return Err(Failure::usage("nothing to change").hint("give --tenant, --nodes, --cycle-interval, --borrow or --lend"));
            }
            let nodes = nodes.as_deref().map(host_list).transpose()?;
            let request = v1::SetVClusterRequest {
                name: name.clone(),
                tenant: tenant.map(tenant_or_all),
                nodes: nodes.map(|nodes| v1::set_v_cluster_request::NodeSet { nodes }),
                cycle_interval_ms: cycle_interval,
                borrows: borrow.map(|answer| answer == Answer::Yes),
                lend_ms: lend,
                expected_version: None,
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
        AdminVCluster::SetWeights(args) => {
            let weight = |(factor, weight): (Factor, Weight)| v1::Weight { factor: factor.name().to_owned(), weight: weight.value() };
            let weights: Vec<v1::Weight> = args.given().map(weight).collect();
            if weights.is_empty() && args.profile.is_none() {
                return Err(Failure::usage("nothing to change").hint("give --profile, or weights such as --fair-share 0.35"));
            }
            let profile = args.profile.unwrap_or_default();
            let name = args.name.get();
            let request = v1::SetWeightsRequest { name: name.clone(), profile, weights, expected_version: None };
            answer(client.vclusters().set_weights(request)).await?;
            show(session, &client, &name).await
        }
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
        Format::Table => print(&table(&all, session.table_size())),
        Format::Data(notation) => notation.print(&all.iter().map(VClusterJson::from).collect::<Vec<_>>()),
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

/// How the list of a queue is made narrower.
const QUEUE_FIT: Fit<'_> =
    Fit { left_out: &["CLASS", "JOB"], shortened: &[("NAME", 8), ("OWNER", 8)], wrapped: &[("REASON", 16)], left_out_last: &["NODES"] };

/// The waiting work of a vCluster, in order, with class, score, expected start and reason of each.
pub async fn explain_queue(session: &Session, name: String) -> Result<(), Failure> {
    let client = session.connect().await?;
    let queue = answer(client.vclusters().queue(v1::VClusterQueueRequest { name: name.clone() })).await?;
    match session.format() {
        Format::Table if queue.allocations.is_empty() => print(&format!("nothing waits in vCluster {name}\n")),
        Format::Table => print(&queue_table(&queue, session.table_size())),
        Format::Data(notation) => notation.print(&queue.allocations.iter().map(AllocationJson::from).collect::<Vec<_>>()),
        Format::Name => print_names(queue.allocations.iter().map(|a| a.id.as_str())),
    }
}

fn queue_table(queue: &v1::VClusterQueueResponse, size: TableSize) -> String {
    let mut table = Table::new(&["PLACE", "ID", "JOB", "NAME", "OWNER", "NODES", "CLASS", "SCORE", "REASON"]);
    for a in &queue.allocations {
        let place = if a.queue_position == 0 { String::new() } else { a.queue_position.to_string() };
        let class = a.class_in_queue.map(|class| class.to_string()).unwrap_or_default();
        let score = a.score.map(|score| format!("{score:.3}")).unwrap_or_default();
        let (owner, nodes) = (a.owner.clone(), nodes_wanted(a));
        table.row(vec![place, short(&a.id).to_owned(), job(a), work_name(a), owner, nodes, class, score, a.status_message.clone()]);
    }
    let left_out = (queue.waiting as usize).saturating_sub(queue.allocations.len());
    let text = table.on_screen(&["JOB", "OWNER", "CLASS", "SCORE", "REASON"], &QUEUE_FIT, size);
    if left_out > 0 { format!("{text}… and {left_out} more\n") } else { text }
}

async fn show(session: &Session, client: &Client, name: &str) -> Result<(), Failure> {
    let vcluster = find(client, name, "`lattice vcluster list` shows them").await?;
    match session.format() {
        Format::Table => {
            let mut pairs = settings::lines(&vcluster);
            pairs.push(("Work", format!("{} running, {} waiting", vcluster.running, vcluster.pending)));
            print(&block(&pairs))
        }
        Format::Data(notation) => notation.print(&VClusterJson::from(&vcluster)),
        Format::Name => print_names([vcluster.name.as_str()]),
    }
}

/// How the list of vClusters is made narrower.
const LIST_FIT: Fit<'_> = Fit {
    left_out: &[],
    shortened: &[("TENANT", 8), ("SERVED BY", 9), ("VCLUSTER", 12)],
    wrapped: &[("NODES", 12)],
    left_out_last: &["SERVED BY"],
};

fn table(vclusters: &[v1::VCluster], size: TableSize) -> String {
    let mut table = Table::new(&["VCLUSTER", "SCHEDULER", "TENANT", "PENDING", "RUNNING", "SERVED BY", "NODES"]);
    for v in vclusters {
        let tenant = filled(&v.tenant).unwrap_or("any").to_owned();
        let nodes = if v.nodes.is_empty() { "the default's".to_owned() } else { folded(&v.nodes) };
        let (pending, running) = (v.pending.to_string(), v.running.to_string());
        table.row(vec![v.name.clone(), v.scheduler.clone(), tenant, pending, running, v.served_by.clone(), nodes]);
    }
    table.on_screen(&[], &LIST_FIT, size)
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
        assert_eq!(table(&[default.clone(), guests], TableSize::default()), want);
        let nodes = (0..90).map(|n| format!("x1000c{n}s0b0n{n}")).collect();
        let wide = v1::VCluster { name: "v".repeat(60), tenant: "t".repeat(60), served_by: "x1000c0s0b0n3".into(), nodes, ..default };
        lattice_cli_session::table::assert_fits(&table(&[wide], lattice_cli_session::table::NARROW));
        assert_eq!((tenant_or_all("none".into()), tenant_or_all("physics".into())), (String::new(), "physics".into()));
        assert_eq!(host_list("none").unwrap(), Vec::<String>::new());
        assert_eq!(host_list("n[1-2]").unwrap(), ["n1", "n2"]);
        assert!(host_list("n[1").unwrap_err().text().contains("--nodes"));
    }
}
