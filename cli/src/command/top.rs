//! `lattice top`: the usage of an allocation; without an allocation, the cluster on one screen.

use super::explain;
use lattice_api::measurements::{Sum, TopJson, sources, summary};
use lattice_api::v1;
use lattice_cli_screen as cluster_screen;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, Width, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::top::Top;
use lattice_model::millis;
use lattice_model::time::Timestamp;
use value::{age_text, value_text};

mod gpus;
mod ranks;
pub(super) mod value;

pub async fn run(session: &Session, args: Top) -> Result<u8, Failure> {
    match &args.id {
        Some(id) => of_allocation(session, id, &args).await.map(|()| 0),
        None => {
            Box::pin(cluster_screen::run(session, args.interval, |allocation, explained| {
                explain::text(allocation, explained, TableSize::default())
            }))
            .await
        }
    }
}

async fn of_allocation(session: &Session, id: &str, args: &Top) -> Result<(), Failure> {
    let key = session.resolve_key(id)?;
    let client = session.connect().await?;
    let duration_ms = args.duration.map_or(0, millis);
    let per_gpu = args.per_gpu || matches!(session.format(), Format::Data(_));
    let top = answer(client.allocations().top(v1::TopRequest { key, duration_ms, per_gpu, per_rank: args.per_rank })).await?;
    refuse_unanswerable(args, &top)?;
    let summary = summary(&top.nodes);
    match session.format() {
        Format::Table if args.per_gpu => {
            print(&gpus::table(&top.nodes, session.table_size()))?;
            gpus::notes(&top.nodes).iter().for_each(|note| session.note(note));
        }
        Format::Table if args.per_rank => print(&ranks::text(&top.nodes, session.table_size()))?,
        Format::Table if args.wide || session.width() == Width::Wide => print(&wide(&top.nodes))?,
        Format::Table if args.per_node => print(&per_node(&top.nodes, session.table_size()))?,
        Format::Table => print(&summary_table(&summary, session.table_size()))?,
        Format::Data(notation) => notation.print(&TopJson::from(&top))?,
        Format::Name => print_names(top.nodes.iter().filter(|n| n.error.is_empty()).map(|n| n.node.as_str()))?,
    }
    if let Some(stored) = &top.stored {
        session.note(&store_note(stored));
    }
    if args.per_rank {
        ranks::notes(&top.nodes).iter().for_each(|note| session.note(note));
        if top.nodes.iter().all(|node| !node.ranks_error.is_empty()) {
            return Err(Failure::new(Exit::Unavailable, "no node of the allocation reported its ranks"));
        }
        return Ok(());
    }
    if let Some(why) = nothing_measured(&top.nodes) {
        session.note(why);
    }
    let unreachable: Vec<&v1::NodeUsage> = top.nodes.iter().filter(|node| !node.error.is_empty()).collect();
    for node in &unreachable {
        session.note(&format!("{} is not in these numbers: {}", node.node, node.error));
    }
    if !unreachable.is_empty() && unreachable.len() == top.nodes.len() {
        return Err(Failure::new(Exit::Unavailable, "no node of the allocation reported its usage"));
    }
    Ok(())
}

/// The note for an answer without any number although every node answered.
fn nothing_measured(nodes: &[v1::NodeUsage]) -> Option<&'static str> {
    let empty = nodes.iter().all(|node| node.error.is_empty() && node.measured.is_empty());
    empty.then_some("nothing is measured yet: agents measure once a second, and rates need two measurements")
}

/// Refuses, for ended work, options that only the agents of running work can answer.
fn refuse_unanswerable(args: &Top, top: &v1::TopResponse) -> Result<(), Failure> {
    let one_by_one = [(args.per_gpu, "--per-gpu", "GPU"), (args.per_rank, "--per-rank", "rank")];
    let ended = top.stored.as_ref().is_some_and(|stored| stored.ended);
    match one_by_one.into_iter().find(|(wanted, ..)| *wanted && ended) {
        Some((_, flag, what)) => {
            let why = format!("only the agents of running work know the numbers of each {what}, and this work has ended");
            Err(Failure::new(Exit::Refused, why).hint(format!("leave out {flag} to see all of them together")))
        }
        None => Ok(()),
    }
}

/// The note about the store: which numbers come from it, and their period; or why it has none.
fn store_note(stored: &v1::Stored) -> String {
    let v1::Stored { url, error, from_ms, until_ms, age_ms, ended } = stored;
    if !error.is_empty() {
        return format!("{error}: MEAN and MAX cover at most the last hour, which agents keep");
    }
    let which = if *ended { "the allocation has ended: these numbers are from" } else { "MEAN and MAX are from" };
    let newest = age_ms.map(|ms| format!(", whose newest sample is {} old", age_text(ms))).unwrap_or_default();
    format!("{which} the store at {url}{newest}, from {} to {}", Timestamp(*from_ms), Timestamp(*until_ms))
}

/// How a table of numbers is made to fit a narrow terminal.
const FIT: Fit<'_> = Fit { left_out: &["AGE", "SOURCE"], shortened: &[("METRIC", 16), ("NODE", 12)], wrapped: &[], left_out_last: &[] };

fn summary_table(sums: &[Sum], size: TableSize) -> String {
    let mut table = Table::new(&["METRIC", "NOW", "MEAN", "MAX", "NODES", "SOURCE", "AGE"]);
    for sum in sums {
        let shown = |value: Option<f64>| value.map(|value| value_text(value, &sum.unit)).unwrap_or_default();
        table.row(vec![
            sum.name.clone(),
            shown(Some(sum.now)),
            shown(sum.mean),
            shown(sum.max),
            sum.nodes.to_string(),
            sum.sources.join(","),
            age_text(sum.age_ms),
        ]);
    }
    table.on_screen(&[], &FIT, size)
}

fn per_node(nodes: &[v1::NodeUsage], size: TableSize) -> String {
    let mut table = Table::new(&["NODE", "METRIC", "NOW", "MEAN", "MAX", "SOURCE", "AGE"]);
    for node in nodes {
        for one in &node.measured {
            let shown = |value: Option<f64>| value.map(|value| value_text(value, &one.unit)).unwrap_or_default();
            table.row(vec![
                node.node.clone(),
                one.name.clone(),
                shown(Some(one.now)),
                shown(one.mean),
                shown(one.max),
                sources(one).collect::<Vec<_>>().join(","),
                age_text(node.age_ms),
            ]);
        }
    }
    table.on_screen(&[], &FIT, size)
}

/// A row for each node that answered, a column for each number that any node has.
fn wide(nodes: &[v1::NodeUsage]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for one in nodes.iter().flat_map(|node| &node.measured) {
        if !names.contains(&one.name.as_str()) {
            names.push(&one.name);
        }
    }
    let headings: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
    let headings: Vec<&str> = ["NODE"].into_iter().chain(headings.iter().map(String::as_str)).chain(["AGE"]).collect();
    let mut table = Table::new(&headings);
    for node in nodes.iter().filter(|node| node.error.is_empty()) {
        let value = |name: &&str| {
            let one = node.measured.iter().find(|one| one.name == **name);
            one.map(|one| value_text(one.now, &one.unit)).unwrap_or_default()
        };
        table.row(std::iter::once(node.node.clone()).chain(names.iter().map(value)).chain([age_text(node.age_ms)]).collect());
    }
    table.text(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, age_ms: u64, cores: f64, share: f64) -> v1::NodeUsage {
        let one = |name: &str, unit: &str, now: f64, mean: Option<f64>| v1::Measured {
            name: name.into(),
            unit: unit.into(),
            source: "cgroup2".into(),
            now,
            mean,
            max: mean,
            ..Default::default()
        };
        let measured = vec![one("cpu_cores", "cores", cores, Some(cores / 2.0)), one("pressure_cpu", "ratio", share, None)];
        v1::NodeUsage { node: name.into(), age_ms, measured, ..Default::default() }
    }

    #[test]
    fn amounts_are_summed_and_ratios_are_not() {
        let mut procfs = node("n2", 900, 2.0, 0.5);
        procfs.measured[0].source = "procfs".into();
        let unreachable = v1::NodeUsage { node: "n3".into(), error: "gone".into(), ..Default::default() };
        let nodes = [node("n1", 100, 1.5, 0.25), procfs, unreachable];
        let want = "\
METRIC        NOW         MEAN        MAX         NODES  SOURCE          AGE
cpu_cores     3.50 cores  1.75 cores  1.75 cores  2      cgroup2,procfs  0.9 s
pressure_cpu  50.0 %      —           —           2      cgroup2         0.9 s
";
        assert_eq!(summary_table(&summary(&nodes), TableSize::default()), want);
        let want = "\
NODE  METRIC        NOW         MEAN        MAX         SOURCE   AGE
n1    cpu_cores     1.50 cores  0.75 cores  0.75 cores  cgroup2  0.1 s
n1    pressure_cpu  25.0 %      —           —           cgroup2  0.1 s
n2    cpu_cores     2.00 cores  1.00 cores  1.00 cores  procfs   0.9 s
n2    pressure_cpu  50.0 %      —           —           cgroup2  0.9 s
";
        assert_eq!(per_node(&nodes, TableSize::default()), want);
        let want = "\
NODE  CPU_CORES   PRESSURE_CPU  AGE
n1    1.50 cores  25.0 %        0.1 s
n2    2.00 cores  50.0 %        0.9 s
";
        assert_eq!(wide(&nodes), want);
        let top = v1::TopResponse { allocation: "a".into(), duration_ms: 30_000, nodes: nodes.to_vec(), ..Default::default() };
        let json = serde_json::to_value(TopJson::from(&top)).unwrap();
        assert_eq!(json["summary"][0]["now"], 3.5);
        assert_eq!((&json["nodes"][2]["error"], &json["nodes"][2]["age_ms"]), (&"gone".into(), &serde_json::Value::Null));
    }

    #[test]
    fn an_answer_without_numbers_is_explained() {
        let empty = v1::NodeUsage { node: "n1".into(), ..Default::default() };
        assert!(nothing_measured(std::slice::from_ref(&empty)).is_some_and(|why| why.contains("yet")));
        assert_eq!(nothing_measured(&[empty, node("n2", 1, 1.0, 0.1)]), None);
        assert_eq!(nothing_measured(&[v1::NodeUsage { error: "gone".into(), ..Default::default() }]), None, "that is said by itself");
    }

    #[test]
    fn numbers_from_the_store_are_marked() {
        let mut usage = node("n1", 100, 1.5, 0.25);
        usage.measured.truncate(1);
        usage.measured[0].window_source = "store".into();
        let want = "\
METRIC     NOW         MEAN        MAX         NODES  SOURCE         AGE
cpu_cores  1.50 cores  0.75 cores  0.75 cores  1      cgroup2,store  0.1 s
";
        assert_eq!(summary_table(&summary(&[usage.clone()]), TableSize::default()), want);
        assert!(per_node(&[usage], TableSize::default()).lines().any(|line| line.contains("cgroup2,store")));
        let url = "http://vm:8428/".to_owned();
        let mut stored = v1::Stored { url, until_ms: 1000, age_ms: Some(2500), ended: true, ..Default::default() };
        let expected = "the allocation has ended: these numbers are from the store at http://vm:8428/, whose newest sample is 2.5 s old, \
                    from 1970-01-01T00:00:00.000Z to 1970-01-01T00:00:01.000Z";
        assert_eq!(store_note(&stored), expected);
        stored.error = "the store does not answer".into();
        assert_eq!(store_note(&stored), "the store does not answer: MEAN and MAX cover at most the last hour, which agents keep");
    }

    #[test]
    fn numbers_of_gpus_are_combined_by_their_kind() {
        let node = |busy: f64, watts: f64| {
            let one = |name: &str, unit: &str, now| v1::Measured { name: name.into(), unit: unit.into(), now, ..Default::default() };
            let measured = vec![
                one("gpu_utilization", "ratio", busy),
                one("gpu_utilization_min", "ratio", busy / 2.0),
                one("gpu_memory_ratio", "ratio", busy),
                one("gpu_power_draw", "W", watts),
            ];
            v1::NodeUsage { measured, ..Default::default() }
        };
        let sums = summary(&[node(1.0, 100.0), node(0.25, 50.0), node(0.25, 50.0)]);
        assert_eq!(sums.iter().map(|sum| sum.now).collect::<Vec<_>>(), [0.5, 0.125, 1.0, 200.0]);
        let of = |mean, max| v1::NodeUsage {
            measured: vec![v1::Measured { name: "gpu_utilization".into(), unit: "ratio".into(), mean, max, ..Default::default() }],
            ..Default::default()
        };
        let sums = summary(&[of(None, None), of(Some(1.0), Some(1.0)), of(Some(0.5), Some(0.75))]);
        assert_eq!((sums[0].mean, sums[0].max), (Some(0.75), Some(1.0)), "a mean of those that have one, and the most of any");
    }

    #[test]
    fn numbers_are_in_units_that_people_read() {
        for (value, unit, text) in [
            (1.0, "cores", "1.00 cores"),
            (0.123, "ratio", "12.3 %"),
            (12.4, "1/s", "12/s"),
            (3.0, "count", "3"),
            (2.0, "W", "2 W"),
            (61.0, "°C", "61 °C"),
            (1.41e9, "Hz", "1410 MHz"),
            (12.34, "J", "12.3 J"),
            (43_210.0, "J", "43.2 kJ"),
            (1.5e7, "J", "15.00 MJ"),
            (2.0, "furlongs", "2 furlongs"),
            (0.000_001_024, "seconds", "1.0 µs"),
            (0.0041, "seconds", "4.1 ms"),
            (17.2, "seconds", "17.2 s"),
        ] {
            assert_eq!(value_text(value, unit), text);
        }
    }
}
