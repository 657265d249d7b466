//! `lattice vcluster NAME`: the settings of one queue, and its plan as a chart.

use super::chart::{Plan, Row, Span};
use super::record::find;
use super::settings;
use lattice_api::client::Client;
use lattice_api::json::VClusterJson;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::listing;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{self, Session, answer};
use lattice_cli_session::shown::counts::{node_count, nodes_wanted};
use lattice_cli_session::shown::{AllocationJson, filled, short};
use lattice_cli_session::table::block;
use lattice_model::AllocationState;
use lattice_model::time::Timestamp;
use serde::Serialize;
use std::collections::BTreeSet;

/// Largest number of rows of the chart for running and for waiting work. `-o json` has no such limit.
const RUNNING_ROWS_MAX: usize = 10;
const WAITING_ROWS_MAX: usize = 10;

/// The hint for an unknown name, which may be a mistyped command.
const NOT_FOUND_HINT: &str = "`lattice vcluster list` shows the vClusters, `lattice vcluster --help` the commands";

pub async fn run(session: &Session, client: &Client, name: &str) -> Result<(), Failure> {
    let vcluster = find(client, name, NOT_FOUND_HINT).await?;
    match session.format() {
        Format::Table => {
            let overview = Overview::fetch(client, vcluster).await?;
            print(&format!("{}\n{}", overview.settings(), overview.plan().chart()))
        }
        Format::Data(notation) => notation.print(&OverviewJson::from(&Overview::fetch(client, vcluster).await?)),
        Format::Name => print_names([vcluster.name.as_str()]),
    }
}

/// A queue and its work at one time.
struct Overview {
    vcluster: v1::VCluster,
    now: Timestamp,
    /// Work that has nodes, sorted by its end; services are last.
    running: Vec<v1::Allocation>,
    /// Work that waits, the next to begin first.
    waiting: Vec<v1::Allocation>,
    /// How many more allocations wait that are not in `waiting`.
    waiting_left_out: usize,
}

impl Overview {
    async fn fetch(client: &Client, vcluster: v1::VCluster) -> Result<Self, Failure> {
        // The queue is read first: work that begins between the two answers is then in both, not in none.
        let queue = answer(client.vclusters().queue(v1::VClusterQueueRequest { name: vcluster.name.clone() })).await?;
        let request = v1::ListAllocationsRequest {
            all_users: true,
            states: [AllocationState::Staging, AllocationState::Running].iter().map(ToString::to_string).collect(),
            vcluster: vcluster.name.clone(),
            ..Default::default()
        };
        let running = listing::fetch_all(client, request, usize::MAX).await?.allocations;
        Ok(Self::of(vcluster, queue, running, session::now()))
    }

    fn of(vcluster: v1::VCluster, queue: v1::VClusterQueueResponse, mut running: Vec<v1::Allocation>, now: Timestamp) -> Self {
        let waiting_left_out = (queue.waiting as usize).saturating_sub(queue.allocations.len());
        running.sort_by_cached_key(|a| (end_ms(a, now).unwrap_or(u64::MAX), a.id.clone()));
        let waiting = {
            let begun: BTreeSet<&str> = running.iter().map(|a| a.id.as_str()).collect();
            queue.allocations.into_iter().filter(|a| !begun.contains(a.id.as_str())).collect()
        };
        Self { vcluster, now, running, waiting, waiting_left_out }
    }

    /// The settings in lines, and the amount of work now.
    fn settings(&self) -> String {
        let waiting = self.waiting.len() + self.waiting_left_out;
        let mut pairs = settings::lines(&self.vcluster);
        pairs.extend([("Work", format!("{} running, {waiting} waiting", self.running.len())), ("Now", self.now.to_string())]);
        block(&pairs)
    }

    fn plan(&self) -> Plan {
        let row = |a: &v1::Allocation, nodes: String, span| Row { id: short(&a.id).to_owned(), name: a.name.clone(), nodes, span };
        let running = self.running.iter().take(RUNNING_ROWS_MAX);
        let running = running.map(|a| row(a, node_count(a), Span::Runs { end_ms: end_ms(a, self.now) }));
        let waiting = self.waiting.iter().take(WAITING_ROWS_MAX).map(|a| row(a, nodes_wanted(a), expected(a)));
        Plan {
            now: self.now,
            rows: running.chain(waiting).collect(),
            running_left_out: self.running.len().saturating_sub(RUNNING_ROWS_MAX),
            waiting_left_out: self.waiting.len().saturating_sub(WAITING_ROWS_MAX) + self.waiting_left_out,
        }
    }
}

/// When the walltime of work with nodes ends, counted from now while its nodes are being prepared. `None`: a service.
fn end_ms(a: &v1::Allocation, now: Timestamp) -> Option<u64> {
    after_walltime_ms(a, if a.started_at_ms == 0 { now.0 } else { a.started_at_ms })
}

fn after_walltime_ms(a: &v1::Allocation, start_ms: u64) -> Option<u64> {
    (a.walltime_seconds > 0).then(|| start_ms.saturating_add(a.walltime_seconds.saturating_mul(1000)))
}

/// The planned time of work that waits, or why there is none.
fn expected(a: &v1::Allocation) -> Span {
    match a.expected_start_ms {
        Some(start_ms) => Span::Planned { start_ms, end_ms: after_walltime_ms(a, start_ms) },
        None => Span::Unknown { reason: filled(&a.status_message).unwrap_or("when it starts is not known").to_owned() },
    }
}

/// The JSON; its fields are documented and stable.
#[derive(Serialize)]
struct OverviewJson {
    vcluster: VClusterJson,
    at: String,
    running: Vec<AllocationJson>,
    waiting: Vec<AllocationJson>,
    waiting_left_out: usize,
}

impl From<&Overview> for OverviewJson {
    fn from(overview: &Overview) -> Self {
        Self {
            vcluster: VClusterJson::from(&overview.vcluster),
            at: overview.now.to_string(),
            running: overview.running.iter().map(AllocationJson::from).collect(),
            waiting: overview.waiting.iter().map(AllocationJson::from).collect(),
            waiting_left_out: overview.waiting_left_out,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_772_704_812_034);
    const HOUR_MS: u64 = 3_600_000;

    fn vcluster() -> v1::VCluster {
        v1::VCluster {
            name: "small".into(),
            scheduler: "hpc-backfill".into(),
            nodes: vec!["n2".into(), "n3".into()],
            served_by: "n1".into(),
            ..Default::default()
        }
    }

    /// Work that began an hour ago. Without hours of walltime it is a service.
    fn running(id: &str, walltime_hours: u64) -> v1::Allocation {
        v1::Allocation {
            id: id.into(),
            name: "sleeper".into(),
            state: "Running".into(),
            nodes: vec!["n2".into(), "n3".into()],
            nodes_requested: 1,
            nodes_requested_max: 2,
            walltime_seconds: walltime_hours * 3600,
            started_at_ms: NOW.0 - HOUR_MS,
            ..Default::default()
        }
    }

    fn waiting(id: &str, expected_start_ms: Option<u64>) -> v1::Allocation {
        v1::Allocation {
            id: id.into(),
            name: "behind".into(),
            state: "Pending".into(),
            nodes_requested: 1,
            nodes_requested_max: 2,
            walltime_seconds: 3600,
            expected_start_ms,
            status_message: "behind 7 in its queue".into(),
            ..Default::default()
        }
    }

    fn overview(running: Vec<v1::Allocation>, allocations: Vec<v1::Allocation>, waiting: u32) -> Overview {
        Overview::of(vcluster(), v1::VClusterQueueResponse { allocations, waiting }, running, NOW)
    }

    #[test]
    fn the_chart_lists_running_work_by_its_end_and_then_the_queue() {
        // `begins` got its nodes between the two answers, and they are being prepared.
        let begins = v1::Allocation { started_at_ms: 0, ..running("22222222-b", 1) };
        let running = vec![running("44444444-d", 0), running("33333333-c", 3), begins];
        let waits = vec![waiting("22222222-b", None), waiting("55555555-e", Some(NOW.0 + HOUR_MS)), waiting("66666666-f", None)];
        let found = overview(running, waits, 3);
        let want = "\
ID        NAME     NODES  now         +30m        +1h         +1h30m      +2h
22222222  sleeper  2      ========================
33333333  sleeper  2      ================================================
44444444  sleeper  2      =====================================================>
55555555  behind   1-2                            ------------------------
66666666  behind   1-2    behind 7 in its queue
= runs, - is planned, > goes on or has no end; a text: why no start is known
";
        assert_eq!(found.plan().chart(), want);
        let json = serde_json::to_value(OverviewJson::from(&found)).unwrap();
        let ids = |list: &str| json[list].as_array().unwrap().iter().map(|a| a["id"].as_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(ids("running"), ["22222222-b", "33333333-c", "44444444-d"]);
        assert_eq!(ids("waiting"), ["55555555-e", "66666666-f"]);
        assert_eq!((&json["vcluster"]["name"], &json["waiting_left_out"]), (&"small".into(), &0.into()));
        assert_eq!((&json["at"], &json["waiting"][0]["name"]), (&"2026-03-05T10:00:12.034Z".into(), &serde_json::Value::Null));
    }

    #[test]
    fn a_long_queue_has_ten_rows_of_each_and_says_how_many_are_left_out() {
        let ids: Vec<String> = (10..22).map(|n| n.to_string()).collect();
        let runs = ids.iter().map(|id| running(id, 2)).collect();
        let found = overview(runs, (30..45).map(|n| waiting(&n.to_string(), None)).collect(), 1015);
        let plan = found.plan();
        let shown: Vec<&str> = plan.rows.iter().map(|row| row.id.as_str()).collect();
        let want: Vec<String> = (10..20).chain(30..40).map(|n| n.to_string()).collect();
        assert_eq!(shown, want);
        assert_eq!((plan.running_left_out, plan.waiting_left_out), (2, 1005));
        assert!(found.settings().contains("\nWork:       12 running, 1015 waiting\n"), "{}", found.settings());
    }

    #[test]
    fn the_settings_end_with_work_and_time() {
        let want = "\
vCluster:   small
Scheduler:  hpc-backfill
Tenant:     any
Nodes:      n[2-3] (2)
Served by:  n1
Work:       0 running, 0 waiting
Now:        2026-03-05T10:00:12.034Z
";
        assert_eq!(overview(vec![], vec![], 0).settings(), want);
    }
}
