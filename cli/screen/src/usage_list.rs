//! The list of used hours and of vClusters.

use super::columns::{Column, List, Row, Tone};
use super::filter::Filter;
use super::snapshot::{OwnUsage, Snapshot};
use lattice_api::v1;
use lattice_cli_session::shown::queue;
use lattice_model::usage::HOUR_MS;

const COLUMNS: &[Column] = &[
    Column { name: "OF", rank: 0, least: 12 },
    Column { name: "RUNNING", rank: 0, least: 0 },
    Column { name: "PENDING", rank: 0, least: 0 },
    Column { name: "DAYS", rank: 2, least: 0 },
    Column { name: "NODE-HOURS", rank: 4, least: 0 },
    Column { name: "GPU-HOURS", rank: 3, least: 0 },
    Column { name: "BUDGET", rank: 5, least: 0 },
    Column { name: "SCHEDULER", rank: 1, least: 8 },
];

/// The user and the tenant with their hours, then each vCluster with its work.
pub fn usage_list(snapshot: &Snapshot, filter: &Filter) -> List {
    let own = snapshot.usage.value.iter().map(own_row);
    let queues = snapshot.work.value.vclusters.iter().map(queue_row);
    let mut rows: Vec<Row> = own.chain(queues).collect();
    rows.retain(|row| filter.matches(row.cells.iter().map(String::as_str)));
    List { columns: COLUMNS, rows }
}

fn own_row(OwnUsage { of, usage }: &OwnUsage) -> Row {
    let nothing = String::new;
    let budget = usage.budget_percent.map(|percent| format!("{percent} %")).unwrap_or_default();
    let tone = match usage.budget_percent {
        Some(100..) => Tone::Bad,
        Some(80..) => Tone::Waits,
        Some(_) | None => Tone::Plain,
    };
    let (days, nodes, gpus) = (usage.days.to_string(), hours_text(usage.node_ms), hours_text(usage.gpu_ms));
    let cells = vec![format!("{} {}", of.name(), usage.name), nothing(), nothing(), days, nodes, gpus, budget, nothing()];
    Row { key: String::new(), cells, tone }
}

fn queue_row(v: &v1::VCluster) -> Row {
    let nothing = String::new;
    let (running, pending) = (v.running.to_string(), v.pending.to_string());
    let name = format!("vCluster {}", queue(&v.name));
    let cells = vec![name, running, pending, nothing(), nothing(), nothing(), nothing(), v.scheduler.clone()];
    Row { key: String::new(), cells, tone: Tone::Plain }
}

/// Hours with two decimals, rounded down as in `lattice usage`.
fn hours_text(ms: u64) -> String {
    let hundredths = u128::from(ms) * 100 / u128::from(HOUR_MS);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
