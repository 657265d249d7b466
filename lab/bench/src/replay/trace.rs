//! Reads the trace of a cluster ([`lattice_api::trace`]), strictly: a file that is cut, contradicts itself or has
//! anything unknown to the format is refused with the number of the line.

use super::scenario::{Scenario, Work};
use super::site::{Site, vcluster};
use crate::ready_node::ready_node;
use anyhow::{Context, Result, bail, ensure};
use lattice_api::trace::{Complete, FORMAT, Header, Line, NodeLine, Span, Submit, TRACE_BYTES_MAX, TenantLine, VClusterLine};
use lattice_model::constraint::{FEATURE_BYTES_MAX, FEATURES_MAX};
use lattice_model::count::counted;
use lattice_model::preemption::CLASS_MAX;
use lattice_model::spec::NODES_MAX;
use lattice_model::tenant::WHOLE_CLUSTER_PPM;
use lattice_model::vcluster::is_name;
use lattice_model::{
    AllocationId, BudgetPeriod, Conformance, DEFAULT_VCLUSTER, Factor, Node, Resources, SchedulerKind, SharePolicy, Tenant, VCluster,
    Weight,
};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Read};

/// The most lines of a file.
const LINES_MAX: u64 = 10_000_000;
/// Bytes of a line at most.
const LINE_LEN_MAX: u64 = 64 << 10;
/// Names of nodes in the constraints of all work at most.
const NODE_NAMES_MAX: usize = 10_000_000;
const TENANTS_MAX: usize = 10_000;
const VCLUSTERS_MAX: usize = 1000;
/// Bytes of a name of a tenant or of a group of nodes at most.
const NAME_BYTES_MAX: usize = 128;
/// By how much time may go back from one event to the next, in milliseconds: leaders have clocks of their own.
const BACK_MS_MAX: u64 = 60_000;
/// The longest that work may run, in seconds: ten years, for services.
const RUN_S_MAX: u64 = 10 * 366 * 86_400;

/// Reads a file; an error names it and the line.
pub fn read(mut from: impl BufRead, name: &str) -> Result<Scenario> {
    let mut reading = Reading::default();
    let (mut bytes, mut read_bytes) = (Vec::new(), 0_u64);
    for number in 1_u64.. {
        bytes.clear();
        let at = || format!("{name}, line {number}");
        from.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut bytes).with_context(at)?;
        if bytes.is_empty() {
            break;
        }
        let len = bytes.len() as u64;
        read_bytes += len;
        ensure!(number <= LINES_MAX, "{name}: more than {LINES_MAX} lines; capture fewer days");
        ensure!(read_bytes <= TRACE_BYTES_MAX, "{name}: larger than 1 GiB; capture fewer days");
        ensure!(
            bytes.ends_with(b"\n"),
            "{}: {}",
            at(),
            if len < LINE_LEN_MAX { "the last line is cut" } else { "longer than 65536 bytes" }
        );
        let line = serde_json::from_slice(&bytes).with_context(at)?;
        reading.line(line).with_context(at)?;
    }
    reading.scenario(name)
}

/// How far a file has been read.
#[derive(Default)]
struct Reading {
    header: Option<Header>,
    tenants: BTreeMap<String, Tenant>,
    vclusters: BTreeMap<String, VCluster>,
    nodes: BTreeMap<String, Node>,
    index: BTreeMap<AllocationId, usize>,
    works: Vec<Traced>,
    /// How many names of nodes the constraints of all work have.
    node_names: usize,
    latest_ms: u64,
}

/// A submission, and its end.
struct Traced {
    work: Work,
    end: End,
}

/// What the trace says of the end of work.
enum End {
    /// Nothing.
    Open,
    /// It ended without having run.
    NeverRan,
    Ran,
}

impl Reading {
    fn line(&mut self, line: Line) -> Result<()> {
        ensure!(self.header.is_some() || matches!(line, Line::Header(_)), "the first line is not the header");
        match line {
            Line::Header(header) => self.header(header),
            Line::Tenant(line) => self.tenant(line),
            Line::Vcluster(line) => self.vcluster(line),
            Line::Node(line) => self.node(line),
            Line::Submit(line) => self.submit(line),
            Line::Complete(line) => self.complete(line),
        }
    }

    fn header(&mut self, header: Header) -> Result<()> {
        ensure!(self.header.is_none(), "a second header");
        ensure!(header.format == FORMAT, "the format is {:?}; this version reads {FORMAT}", clipped(&header.format));
        ensure!(header.from <= header.until, "`from` is after `until`");
        header.share_policy.as_deref().map(policy).transpose()?;
        header.budget_period_days.map(budget_period).transpose()?;
        let is_rate = header.checkpoint_bytes_per_second.is_none_or(|rate| rate.is_finite() && rate >= 1.0);
        ensure!(is_rate, "checkpoint_bytes_per_second is less than 1");
        self.header = Some(header);
        Ok(())
    }

    fn tenant(&mut self, line: TenantLine) -> Result<()> {
        ensure!(self.tenants.len() < TENANTS_MAX, "more than {TENANTS_MAX} tenants");
        has_name("the tenant's name", &line.name)?;
        ensure!(!self.tenants.contains_key(&line.name), "tenant {:?} a second time", line.name);
        let target_ppm = line.fair_share_target_ppm.unwrap_or(0);
        ensure!(target_ppm <= WHOLE_CLUSTER_PPM, "fair_share_target_ppm: {target_ppm} is more than {WHOLE_CLUSTER_PPM}, the whole cluster");
        let class = line.class_max.unwrap_or(0);
        ensure!(class <= CLASS_MAX, "class_max: {class} is more than {CLASS_MAX}");
        let tenant = Tenant {
            name: line.name.clone(),
            max_nodes: line.max_nodes,
            max_concurrent_allocations: line.max_concurrent_allocations,
            fair_share_target_ppm: line.fair_share_target_ppm,
            burst_allowance_percent: line.burst_allowance_percent,
            gpu_hours_budget: line.gpu_hours_budget,
            node_hours_budget: line.node_hours_budget,
            class_max: line.class_max,
            ..Tenant::default()
        };
        self.tenants.insert(line.name, tenant);
        Ok(())
    }

    fn vcluster(&mut self, line: VClusterLine) -> Result<()> {
        ensure!(self.vclusters.len() < VCLUSTERS_MAX, "more than {VCLUSTERS_MAX} vClusters");
        ensure!(is_name(&line.name), "{:?} cannot name a vCluster", clipped(&line.name));
        ensure!(!self.vclusters.contains_key(&line.name), "vCluster {:?} a second time", line.name);
        let scheduler: SchedulerKind = line.scheduler.parse()?;
        let mut read = vcluster(&line.name, scheduler);
        (read.borrows, read.lend_ms) = (line.borrows, line.lends.map(|span| span.0.saturating_mul(1000)));
        if !line.weights.is_empty() {
            let profile = scheduler.profile().with_context(|| format!("weights: {scheduler} has no score"))?;
            let mut weights = profile.weights();
            for (factor_name, value) in line.weights {
                let factor = Factor::ALL.into_iter().find(|factor| factor.name() == factor_name);
                let factor = factor.with_context(|| format!("weights: {:?} is no factor", clipped(&factor_name)))?;
                weights.set(factor, Weight::new(value).with_context(|| format!("weights: {factor_name}"))?);
            }
            read.weights = Some(weights);
        }
        self.vclusters.insert(line.name, read);
        Ok(())
    }

    fn node(&mut self, line: NodeLine) -> Result<()> {
        ensure!(self.nodes.len() < NODES_MAX as usize, "more than {NODES_MAX} nodes");
        let fits = line.features.len() <= FEATURES_MAX && line.features.iter().all(|feature| feature.len() <= FEATURE_BYTES_MAX);
        ensure!(fits, "more than {FEATURES_MAX} features, or one of more than {FEATURE_BYTES_MAX} bytes");
        for (what, group) in [("topology_group", &line.topology_group), ("conformance_group", &line.conformance_group)] {
            group.as_ref().map_or(Ok(()), |group| has_name(what, group))?;
        }
        ensure!(line.locality.is_valid(), "locality: more domains or links than a node registers");
        let home = line.vcluster.filter(|name| name != DEFAULT_VCLUSTER).unwrap_or_default();
        ensure!(home.is_empty() || is_name(&home), "{:?} cannot name a vCluster", clipped(&home));
        let same = |fingerprint| Conformance { components: BTreeMap::new(), fingerprint, drift: None, stale: false };
        let size = Resources { cores: line.cores, memory_bytes: line.memory_bytes, gpus: line.gpus };
        let name = line.node.to_string();
        let node = Node {
            id: line.node,
            features: line.features,
            topology_group: line.topology_group,
            locality: line.locality,
            conformance: line.conformance_group.map(same),
            home,
            ..ready_node(0, size)
        };
        match self.nodes.entry(name) {
            Entry::Occupied(known) => bail!("node {:?} a second time", known.key()),
            Entry::Vacant(free) => {
                free.insert(node);
            }
        }
        Ok(())
    }

    fn submit(&mut self, line: Submit) -> Result<()> {
        self.at(line.ts.0.0)?;
        line.alloc.spec().validate()?;
        self.node_names += line.alloc.constraints.nodes.len() + line.alloc.constraints.excluded.len();
        ensure!(
            self.node_names <= NODE_NAMES_MAX,
            "more than {NODE_NAMES_MAX} names of nodes in the constraints up to here; capture fewer days"
        );
        match self.index.entry(line.alloc_id) {
            Entry::Occupied(_) => bail!("{} is submitted a second time", line.alloc_id),
            Entry::Vacant(free) => {
                free.insert(self.works.len());
            }
        }
        let work = Work { id: line.alloc_id, request: line.alloc, submitted_s: line.ts.0.0 / 1000, run_s: 0 };
        self.works.push(Traced { work, end: End::Open });
        Ok(())
    }

    fn complete(&mut self, line: Complete) -> Result<()> {
        self.at(line.ts.0.0)?;
        let index = self.index.get(&line.alloc_id).with_context(|| format!("{} ends, and was not submitted", line.alloc_id))?;
        let read = self.works.get_mut(*index).context("a submission is lost")?;
        match read.end {
            End::Open => {}
            End::NeverRan | End::Ran => bail!("{} ends a second time", line.alloc_id),
        }
        read.end = match line.duration {
            None => End::NeverRan,
            Some(Span(run_s)) => {
                ensure!(run_s <= RUN_S_MAX, "duration: more than ten years");
                read.work.run_s = run_s;
                End::Ran
            }
        };
        Ok(())
    }

    /// Checks and records the time of an event.
    fn at(&mut self, at_ms: u64) -> Result<()> {
        let back_ms = self.latest_ms.saturating_sub(at_ms);
        ensure!(back_ms <= BACK_MS_MAX, "the time is {} s before that of an event above", back_ms / 1000);
        self.latest_ms = self.latest_ms.max(at_ms);
        Ok(())
    }

    fn scenario(self, name: &str) -> Result<Scenario> {
        let header = self.header.with_context(|| format!("{name} is empty: a trace begins with its header"))?;
        ensure!(!self.nodes.is_empty(), "{name} has no node");
        let mut site = Site {
            nodes: self.nodes.into_values().collect(),
            tenants: self.tenants.into_values().collect(),
            vclusters: self.vclusters.into_values().collect(),
            share_policy: header.share_policy.as_deref().map(policy).transpose()?.unwrap_or_default(),
            budget_period: header.budget_period_days.map(budget_period).transpose()?.unwrap_or_default(),
            checkpoint_bytes_per_second: header.checkpoint_bytes_per_second,
        };
        let mut homes: BTreeMap<&str, u32> = BTreeMap::new();
        for node in site.nodes.iter().filter(|node| !node.home.is_empty()) {
            *homes.entry(&node.home).or_insert(0) += 1;
        }
        for vcluster in &mut site.vclusters {
            vcluster.nodes = homes.get(vcluster.name.as_str()).copied().unwrap_or(0);
        }
        let known: BTreeSet<&str> = site.vclusters.iter().map(|vcluster| vcluster.name.as_str()).collect();
        if let Some(unknown) = homes.keys().find(|home| !known.contains(*home)) {
            bail!("{name}: a node belongs to vCluster {unknown:?}, which has no line");
        }
        let (works, counted) = replayable(self.works, header.until.0.0 / 1000);
        ensure!(!works.is_empty(), "{name} has no work that ran or waits");
        let mut notes = vec![
            format!("captured from {} to {}, complete from {} on", header.from.0, header.until.0, header.complete_from.0),
            "use before the trace is not known: budgets and fair shares begin at zero".to_owned(),
        ];
        notes.extend(counted);
        Ok(Scenario { name: name.to_owned(), site, works, notes })
    }
}

/// The work that is replayed, in the order of submission, and notes on oddities. `until_s`: the end of the trace.
fn replayable(traced: Vec<Traced>, until_s: u64) -> (Vec<Work>, Vec<String>) {
    let (mut works, mut never_ran, mut open, mut over, mut continued) = (Vec::with_capacity(traced.len()), 0_u64, 0, 0, 0);
    for Traced { mut work, end } in traced {
        match end {
            End::Ran => {}
            End::NeverRan => {
                never_ran += 1;
                continue;
            }
            End::Open => {
                open += 1;
                work.run_s = work.request.walltime.map_or(until_s.saturating_sub(work.submitted_s), |walltime| walltime.0);
            }
        }
        if let Some(Span(walltime_s)) = work.request.walltime.filter(|walltime| walltime.0 < work.run_s) {
            if work.request.checkpoint {
                continued += 1;
            } else {
                over += 1;
                work.run_s = walltime_s;
            }
        }
        works.push(work);
    }
    works.sort_by_key(|work| work.submitted_s);
    let odd = [
        (never_ran, "ended without having run: left out"),
        (open, "had not ended: replayed for the walltime, or without one to the end of the trace"),
        (over, "ran for longer than the walltime: ended there"),
        (continued, "with checkpoints ran for longer than one walltime: replayed without a break"),
    ];
    let notes = odd.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{} {what}", counted(count, "submission")));
    (works, notes.collect())
}

fn has_name(what: &str, name: &str) -> Result<()> {
    ensure!((1..=NAME_BYTES_MAX).contains(&name.len()), "{what} has {} bytes; 1 to {NAME_BYTES_MAX} are possible", name.len());
    Ok(())
}

fn budget_period(days: u32) -> Result<BudgetPeriod> {
    BudgetPeriod::of_days(days).context("budget_period_days")
}

fn policy(name: &str) -> Result<SharePolicy> {
    SharePolicy::from_name(name)
        .with_context(|| format!("share_policy: {:?} is not one of {}", clipped(name), SharePolicy::NAMES.join(", ")))
}

/// The beginning of a text from the file.
fn clipped(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::trace::Moment;
    use lattice_model::Locality;
    use lattice_model::{Profile, Timestamp};
    use proptest::prelude::*;

    const HEADER: &str = concat!(
        r#"{"type":"header","format":"lattice-trace/1","from":"2026-03-01T00:00:00Z","#,
        r#""until":"2026-03-02T00:00:00Z","complete_from":"2026-03-01T00:00:00Z"}"#
    );
    const NODE: &str = r#"{"type":"node","node":"n1","cores":4,"memory_bytes":1024,"gpus":1}"#;
    const ID: &str = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";

    fn submit(id: &str, at: &str, more: &str) -> String {
        format!(r#"{{"type":"submit","ts":"2026-03-01T{at}Z","alloc_id":"{id}","alloc":{{"nodes":1,"user":1,"priority":5{more}}}}}"#)
    }

    fn complete(at: &str, duration: &str) -> String {
        format!(r#"{{"type":"complete","ts":"2026-03-01T{at}Z","alloc_id":"{ID}"{duration}}}"#)
    }

    fn text(lines: &[&str]) -> String {
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    fn error(lines: &[&str]) -> String {
        format!("{:#}", read(text(lines).as_bytes(), "t.jsonl").unwrap_err())
    }

    #[test]
    fn a_trace_is_read_with_its_site_and_what_is_odd_is_counted() {
        let other = ["2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88", "3f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88"];
        let header = HEADER.replace('}', r#","budget_period_days":30,"checkpoint_bytes_per_second":1e9}"#);
        let saves_itself = "4f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
        let lines: [&str; 12] = [
            &header,
            r#"{"type":"tenant","name":"physics","fair_share_target_ppm":500000}"#,
            r#"{"type":"vcluster","name":"batch","scheduler":"hpc-backfill","weights":{"fair-share":0.35},"lends":"2h"}"#,
            r#"{"type":"node","node":"n2","cores":4,"memory_bytes":1024,"vcluster":"batch","conformance_group":"a","topology_group":"g"}"#,
            NODE,
            &submit(ID, "00:00:01", r#","walltime":"1h","tenant":"physics","tasks_per_node":4,"cpus_per_task":1"#),
            &submit(other[0], "00:00:02", ""),
            &submit(other[1], "00:00:03", ""),
            &submit(saves_itself, "00:00:04", r#","walltime":"1h","checkpoint":true"#),
            &complete("02:00:01", r#","duration":"2h","exit":0"#),
            &complete("02:00:02", "").replace(ID, other[1]),
            &complete("03:00:04", r#","duration":"3h""#).replace(ID, saves_itself),
        ];
        let scenario = read(text(&lines).as_bytes(), "t.jsonl").unwrap();
        let runs: Vec<_> = scenario.works.iter().map(|work| (work.submitted_s % 86_400, work.run_s)).collect();
        assert_eq!(runs, [(1, 3600), (2, 86_398), (4, 10_800)]);
        assert_eq!((scenario.site.budget_period.days(), scenario.site.checkpoint_bytes_per_second), (30, Some(1e9)));
        assert_eq!((scenario.works[0].request.tasks_per_node, scenario.works[1].request.tasks_per_node), (4, 1));
        assert_eq!(scenario.works[0].request.tenant, "physics");
        let batch = scenario.site.vcluster("batch").unwrap();
        assert_eq!((batch.nodes, batch.lend_ms), (1, Some(7_200_000)));
        let weights = batch.weights.unwrap();
        assert_eq!(weights.get(Factor::FairShare).value(), 0.35);
        assert_eq!(weights.get(Factor::WaitTime), Profile::HpcBatch.weights().get(Factor::WaitTime));
        assert_eq!(scenario.site.nodes.iter().map(|node| node.home.as_str()).collect::<Vec<_>>(), ["", "batch"]);
        let want = [
            "captured from 2026-03-01T00:00:00.000Z to 2026-03-02T00:00:00.000Z, complete from 2026-03-01T00:00:00.000Z on",
            "use before the trace is not known: budgets and fair shares begin at zero",
            "1 submission ended without having run: left out",
            "1 submission had not ended: replayed for the walltime, or without one to the end of the trace",
            "1 submission ran for longer than the walltime: ended there",
            "1 submission with checkpoints ran for longer than one walltime: replayed without a break",
        ];
        assert_eq!(scenario.notes, want);
    }

    #[test]
    fn what_is_cut_or_contradicts_itself_is_refused_with_its_line() {
        let first = submit(ID, "00:10:00", "");
        let whole = text(&[HEADER, NODE, &first]);
        let cut = format!("{:#}", read(&whole.as_bytes()[..whole.len() - 1], "t.jsonl").unwrap_err());
        assert_eq!(cut, "t.jsonl, line 3: the last line is cut");
        let cases: [(&[&str], &str); 15] = [
            (&[&HEADER.replace('}', ",\"budget_period_days\":0}")], "line 1: budget_period_days: "),
            (&[&HEADER.replace('}', ",\"checkpoint_bytes_per_second\":0.0}")], "line 1: checkpoint_bytes_per_second is less than 1"),
            (&[HEADER, NODE, &complete("00:00:01", "")], "line 3: 1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88 ends, and was not submitted"),
            (&[HEADER, NODE, &first, &complete("00:08:59", "")], "line 4: the time is 61 s before that of an event above"),
            (
                &[HEADER, NODE, &first, &complete("00:11:00", ""), &complete("00:12:00", "")],
                "line 5: 1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88 ends a second time",
            ),
            (&[HEADER, NODE, &first, &first], "line 4: 1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88 is submitted a second time"),
            (&[HEADER, r#"{"type":"restart"}"#], "line 2: unknown variant `restart`"),
            (&[NODE], "line 1: the first line is not the header"),
            (&[HEADER, HEADER], "line 2: a second header"),
            (&[HEADER, NODE, NODE], "line 3: node \"n1\" a second time"),
            (&[&HEADER.replace("trace/1", "trace/9")], "line 1: the format is \"lattice-trace/9\"; this version reads lattice-trace/1"),
            (&[HEADER, NODE, &first.replace("\"nodes\":1", "\"nodes\":0")], "line 3: nodes"),
            (
                &[HEADER, r#"{"type":"vcluster","name":"b","scheduler":"hpc-backfill","weights":{"luck":1.0}}"#],
                "line 2: weights: \"luck\" is no factor",
            ),
            (
                &[HEADER, r#"{"type":"vcluster","name":"b","scheduler":"hpc-backfill","weights":{"energy":-1.0}}"#],
                "line 2: weights: energy: a weight is a number",
            ),
            (&[HEADER, &NODE.replace("}", ",\"vcluster\":\"b\"}"), &first], "t.jsonl: a node belongs to vCluster \"b\", which has no line"),
        ];
        for (lines, want) in cases {
            let got = error(lines);
            assert!(got.contains(want), "{got:?} does not have {want:?}");
        }
        assert_eq!(error(&[]), "t.jsonl is empty: a trace begins with its header");
        assert_eq!(error(&[HEADER, &" ".repeat(70_000)]), "t.jsonl, line 2: longer than 65536 bytes");
        // Within a minute, clocks of several leaders may differ.
        assert!(read(text(&[HEADER, NODE, &first, &complete("00:09:30", ",\"duration\":\"5s\"")]).as_bytes(), "t").is_ok());
    }

    #[test]
    fn a_trace_that_was_written_is_read() {
        let at = Moment(Timestamp(1_772_704_812_034));
        let header = Header {
            format: FORMAT.to_owned(),
            from: at,
            until: at,
            complete_from: at,
            share_policy: None,
            budget_period_days: Some(7),
            checkpoint_bytes_per_second: Some(1_000_000_000.0),
        };
        let request = super::super::scenario::whole_nodes(1);
        let alloc_id: AllocationId = ID.parse().unwrap();
        let node = NodeLine {
            node: "n1".parse().unwrap(),
            cores: 4,
            memory_bytes: 1,
            gpus: 0,
            features: vec![],
            topology_group: None,
            conformance_group: None,
            vcluster: None,
            locality: Locality::default(),
        };
        let lines = [
            Line::Header(header),
            Line::Node(node),
            Line::Submit(Submit { ts: at, alloc_id, alloc: request.clone() }),
            Line::Complete(Complete { ts: at, alloc_id, duration: Some(Span(7)), exit: None }),
        ];
        let written: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        let scenario = read(written.as_bytes(), "t").unwrap();
        assert_eq!(scenario.works, [Work { id: alloc_id, request, submitted_s: 1_772_704_812, run_s: 7 }]);
    }

    #[test]
    fn the_names_of_nodes_in_constraints_are_bounded() {
        let line = submit(ID, "00:00:01", r#","constraints":{"nodes":["n1"]}"#);
        let read = |node_names| {
            let mut reading = Reading { node_names, ..Reading::default() };
            reading.line(serde_json::from_str(HEADER).unwrap()).unwrap();
            reading.line(serde_json::from_str(&line).unwrap())
        };
        assert!(read(NODE_NAMES_MAX - 1).is_ok());
        let refused = read(NODE_NAMES_MAX).unwrap_err().to_string();
        assert_eq!(refused, "more than 10000000 names of nodes in the constraints up to here; capture fewer days");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes[..], "t");
            let _ = read([HEADER.as_bytes(), &b"\n"[..], &bytes[..]].concat().as_slice(), "t");
        }
    }
}
