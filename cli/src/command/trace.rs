//! `lattice admin trace capture`: what the cluster knows of its work, as a trace (see [`lattice_api::trace`]).
//!
//! ```text
//!   ListTracedWork, page by page ─▶ Captured ─▶ lines in the order of time ─▶ a file that appears when it is complete
//!   vClusters, tenants, nodes ────▶                                       └─▶ StoreTrace: the agent's object store
//! ```

mod target;

use lattice_api::client::Client;
use lattice_api::trace::{Complete, FORMAT, Header, Line, Moment, NodeLine, Span, Submit, TRACE_BYTES_MAX, TenantLine, VClusterLine};
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, print};
use lattice_cli_session::session::{Session, answer, answer_within, now};
use lattice_cli_syntax::args::trace::CaptureTrace;
use lattice_model::count::counted;
use lattice_model::{AllocationId, DEFAULT_VCLUSTER, NodeId, Timestamp};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;
use target::Target;

/// Allocations of one page.
const PAGE_LEN: u32 = 1000;
const DAY_MS: u64 = 86_400_000;
/// Bytes of the trace in one message to the agent.
const PIECE_BYTES: usize = 60 << 10;
/// How long the agent may take to store the trace.
const STORE_TIMEOUT: Duration = Duration::from_secs(600);

pub async fn capture(session: &Session, args: CaptureTrace) -> Result<(), Failure> {
    let until = now();
    let from = Timestamp(until.0.saturating_sub(u64::from(args.days) * DAY_MS));
    let target = if args.store { None } else { Some(Target::of(&args.file.unwrap_or_else(|| default_file(from)))?) };
    let client = session.connect().await?;
    let captured = Captured::fetch(&client, (from, until)).await?;
    if captured.work.is_empty() {
        let hint = "nothing was written; --days N looks back further, as far as the quorum remembers";
        let what = match captured.held {
            0 => format!("no work was submitted since {from}"),
            held => format!("all work submitted since {from} is held: {} left out", counted(held, "submission")),
        };
        return Err(Failure::new(Exit::NotFound, what).hint(hint));
    }
    let (site, unschedulable_nodes) = site_lines(&client).await?;
    let mut lines = vec![captured.header()];
    lines.extend(site);
    lines.extend(captured.events()?);
    let place = match target {
        None => Place::Store { url: store(&client, &lines).await? },
        Some(target) => {
            target.write(|out| write_lines(&lines, out))?;
            target.file().map_or(Place::Stdout, |file| Place::File(file.display().to_string()))
        }
    };
    report(session, &captured, unschedulable_nodes, &place)
}

/// Where a captured trace is.
enum Place {
    Stdout,
    File(String),
    Store { url: String },
}

impl Place {
    fn file(&self) -> Option<&str> {
        match self {
            Self::File(file) => Some(file),
            Self::Stdout | Self::Store { .. } => None,
        }
    }

    fn url(&self) -> Option<&str> {
        match self {
            Self::Store { url } => Some(url),
            Self::Stdout | Self::File(_) => None,
        }
    }
}

fn write_lines(lines: &[Line], out: &mut dyn Write) -> io::Result<()> {
    for line in lines {
        serde_json::to_writer(&mut *out, line)?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// Sends the trace to the agent, which has the credentials of its object store. Returns the URL of the object.
async fn store(client: &Client, lines: &[Line]) -> Result<String, Failure> {
    let mut text = Vec::new();
    write_lines(lines, &mut text)?;
    if text.len() as u64 > TRACE_BYTES_MAX {
        return Err(Failure::new(Exit::Usage, "the trace is larger than 1 GiB").hint("capture fewer days"));
    }
    let count = text.len().div_ceil(PIECE_BYTES);
    let pieces = (0..count).map(move |number| {
        let lines = text.chunks(PIECE_BYTES).nth(number).unwrap_or_default().to_vec();
        v1::StoreTraceRequest { lines, is_last: number + 1 == count }
    });
    let mut admin = client.admin();
    Ok(answer_within(STORE_TIMEOUT, admin.store_trace(tokio_stream::iter(pieces))).await?.url)
}

fn default_file(from: Timestamp) -> PathBuf {
    let day: String = from.to_string().chars().take_while(|c| *c != 'T').collect();
    format!("lattice-trace-{day}.jsonl").into()
}

/// What the quorum knows of the work of a period.
struct Captured {
    from: Timestamp,
    until: Timestamp,
    /// See [`Header::complete_from`].
    complete_from: Timestamp,
    share_policy: String,
    /// The period of the tenants' budgets; 0: unknown.
    budget_period_days: u32,
    /// The rate of the checkpoint store; `None`: unknown.
    checkpoint_bytes_per_second: Option<f64>,
    /// How much work is left out because it is or was held: the time when it could begin is unknown.
    held: usize,
    /// The last submission first.
    work: Vec<v1::TracedWork>,
}

impl Captured {
    async fn fetch(client: &Client, (from, until): (Timestamp, Timestamp)) -> Result<Self, Failure> {
        let mut request = v1::ListTracedWorkRequest { limit: PAGE_LEN, page_token: String::new() };
        let mut all = Vec::new();
        let checkpoint_bytes_per_second = loop {
            let page = answer(client.admin().list_traced_work(request.clone())).await?;
            // A page that has only task groups shows no work, but more pages may follow.
            let is_last = page.next_page_token.is_empty();
            all.extend(page.work);
            if is_last {
                break page.checkpoint_bytes_per_second;
            }
            request.page_token = page.next_page_token;
        };
        // Read after the list, so that it includes work that was forgotten meanwhile.
        let limits = answer(client.admin().get_limits(v1::GetLimitsRequest {})).await?;
        let v1::Limits { share_policy, budget_period_days, ended, .. } = limits;
        all.retain(|work| work.submitted_at_ms >= from.0);
        let (held, work): (Vec<_>, Vec<_>) = all.into_iter().partition(|work| work.held);
        Ok(Self {
            from,
            until,
            complete_from: complete_from(ended.unwrap_or_default().forgotten_until_ms).max(from),
            share_policy,
            budget_period_days,
            checkpoint_bytes_per_second,
            held: held.len(),
            work,
        })
    }

    fn header(&self) -> Line {
        let format = FORMAT.to_owned();
        Line::Header(Header {
            format,
            from: Moment(self.from),
            until: Moment(self.until),
            complete_from: Moment(self.complete_from),
            share_policy: Some(self.share_policy.clone()).filter(|policy| !policy.is_empty()),
            budget_period_days: Some(self.budget_period_days).filter(|days| *days > 0),
            checkpoint_bytes_per_second: self.checkpoint_bytes_per_second,
        })
    }

    /// Submissions and ends in the order of time.
    fn events(&self) -> Result<Vec<Line>, Failure> {
        // Users have numbers in the order of their first submission.
        let mut users: BTreeMap<u32, u32> = BTreeMap::new();
        let mut events: Vec<(u64, u8, Line)> = Vec::with_capacity(2 * self.work.len());
        for work in self.work.iter().rev() {
            let of_work = |why: String| Failure::other(format!("allocation {}: {why}", work.id));
            let alloc_id: AllocationId = work.id.parse().map_err(|e: lattice_model::ids::IdError| of_work(e.to_string()))?;
            let next = u32::try_from(users.len()).unwrap_or(u32::MAX).saturating_add(1);
            let user = *users.entry(work.uid).or_insert(next);
            let alloc = lattice_api::trace::request(work, user).map_err(|e| of_work(e.to_string()))?;
            let submit = Submit { ts: Moment(Timestamp(work.submitted_at_ms)), alloc_id, alloc };
            events.push((work.submitted_at_ms, 0, Line::Submit(submit)));
            if work.ended_at_ms > 0 {
                // Rounded up, so that work that ran has a duration.
                let duration = work.ran_ms.map(|ms| Span(ms.div_ceil(1000)));
                // The quorum's clock may have gone back between submission and end.
                let at_ms = work.ended_at_ms.max(work.submitted_at_ms);
                let complete = Complete { ts: Moment(Timestamp(at_ms)), alloc_id, duration, exit: work.exit_code };
                events.push((at_ms, 1, Line::Complete(complete)));
            }
        }
        events.sort_by_key(|(at_ms, kind, _)| (*at_ms, *kind));
        Ok(events.into_iter().map(|(_, _, line)| line).collect())
    }
}

/// The time from which on all submitted work is in the trace: the quorum has forgotten only work that ended before. 0: it
/// has forgotten none.
fn complete_from(forgotten_until_ms: u64) -> Timestamp {
    Timestamp(if forgotten_until_ms == 0 { 0 } else { forgotten_until_ms.saturating_add(1) })
}

/// Tenants, vClusters and nodes, and how many nodes are left out.
async fn site_lines(client: &Client) -> Result<(Vec<Line>, usize), Failure> {
    let tenants = answer(client.admin().list_tenants(v1::ListTenantsRequest {})).await?.tenants;
    let vclusters = answer(client.vclusters().list(v1::ListVClustersRequest {})).await?.vclusters;
    let nodes = super::nodes::list(client).await?;
    let mut lines: Vec<Line> = tenants.into_iter().map(tenant_line).collect();
    lines.extend(vclusters.into_iter().map(vcluster_line));
    let (of_nodes, unschedulable) = node_lines(nodes)?;
    lines.extend(of_nodes);
    Ok((lines, unschedulable))
}

/// The nodes that take work, and how many take none, as login nodes do.
fn node_lines(nodes: Vec<v1::Node>) -> Result<(Vec<Line>, usize), Failure> {
    let (schedulable, others): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| node.schedulable);
    let lines = schedulable.into_iter().map(node_line).collect::<Result<Vec<_>, _>>()?;
    Ok((lines, others.len()))
}

fn tenant_line(tenant: v1::Tenant) -> Line {
    Line::Tenant(TenantLine {
        name: tenant.name,
        fair_share_target_ppm: tenant.fair_share_target_ppm,
        burst_allowance_percent: tenant.burst_allowance_percent,
        max_nodes: tenant.max_nodes,
        max_concurrent_allocations: tenant.max_concurrent_allocations,
        gpu_hours_budget: tenant.gpu_hours_budget,
        node_hours_budget: tenant.node_hours_budget,
        class_max: tenant.class_max.map(|class| u8::try_from(class).unwrap_or(u8::MAX)),
    })
}

fn vcluster_line(vcluster: v1::VCluster) -> Line {
    let weights = vcluster.weights.into_iter().filter(|_| vcluster.weights_set).map(|v1::Weight { factor, weight }| (factor, weight));
    Line::Vcluster(VClusterLine {
        name: vcluster.name,
        scheduler: vcluster.scheduler,
        weights: weights.collect(),
        borrows: vcluster.borrows,
        lends: Some(vcluster.lend_ms).filter(|ms| *ms > 0).map(|ms| Span(ms.div_ceil(1000))),
    })
}

fn node_line(node: v1::Node) -> Result<Line, Failure> {
    let name: NodeId = node.id.parse().map_err(|e: lattice_model::ids::IdError| Failure::other(format!("a node's name: {e}")))?;
    let locality = lattice_api::node::locality(&node);
    Ok(Line::Node(NodeLine {
        node: name,
        cores: node.cores,
        memory_bytes: node.memory_bytes,
        gpus: node.gpus,
        features: node.features,
        topology_group: Some(node.topology_group).filter(|group| !group.is_empty()),
        conformance_group: node.conformance.filter(|report| !report.stale).map(|report| report.fingerprint),
        locality,
        vcluster: Some(node.vcluster).filter(|name| name != DEFAULT_VCLUSTER),
    }))
}

/// Reports the contents of the trace, and what it lacks: as data only if the trace itself is not on stdout.
fn report(session: &Session, captured: &Captured, unschedulable_nodes: usize, place: &Place) -> Result<(), Failure> {
    let Captured { from, until, complete_from, held, work, .. } = captured;
    let ended = work.iter().filter(|work| work.ended_at_ms > 0).count();
    let what = format!("{}, {}", counted(work.len(), "submission"), counted(ended, "end"));
    let when = format!("from {from} to {until}");
    if complete_from > from {
        session.note(&format!("complete from {complete_from} on:"));
        session.note("the quorum may have forgotten work that ended before");
    }
    session.note("work that was submitted before is left out, even if it ran then");
    for line in left_out(*held, unschedulable_nodes) {
        session.note(&line);
    }
    let Some(name) = place.file().or(place.url()) else {
        session.note(&what);
        session.note(&when);
        return Ok(());
    };
    match session.format() {
        Format::Table => print(&format!("{name}: {what}\n{when}\n")),
        Format::Name => print(&format!("{name}\n")),
        Format::Data(notation) => notation.print(&serde_json::json!({
            "file": place.file(), "url": place.url(), "from": from.to_string(), "until": until.to_string(),
            "complete_from": complete_from.to_string(), "submitted": work.len(), "ended": ended,
            "held_left_out": held, "unschedulable_nodes_left_out": unschedulable_nodes,
        })),
    }
}

/// What the trace leaves out although the quorum has it.
fn left_out(held: usize, unschedulable_nodes: usize) -> Vec<String> {
    let all = [(held, "submission", "held: left out"), (unschedulable_nodes, "node", "with schedulable: false, for no work: left out")];
    all.into_iter().filter(|(count, ..)| *count > 0).map(|(count, noun, what)| format!("{} {what}", counted(count, noun))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(uid: u32, submitted_at_ms: u64, ended_at_ms: u64, ran_ms: Option<u64>) -> v1::TracedWork {
        v1::TracedWork {
            id: format!("1f0c9a4e-5b7d-4c39-9a54-{submitted_at_ms:012}"),
            uid,
            tenant: "physics".into(),
            resources: Some(v1::ResourceRequest { nodes: 2, ..Default::default() }),
            lifecycle: Some(v1::Lifecycle { walltime_seconds: 60, ..Default::default() }),
            submitted_at_ms,
            ended_at_ms,
            ran_ms,
            exit_code: ran_ms.map(|_| 0),
            ..Default::default()
        }
    }

    fn captured(work: Vec<v1::TracedWork>) -> Captured {
        Captured {
            from: Timestamp(0),
            until: Timestamp(10_000),
            complete_from: Timestamp(0),
            share_policy: String::new(),
            budget_period_days: 30,
            checkpoint_bytes_per_second: Some(1e9),
            held: 0,
            work,
        }
    }

    #[test]
    fn events_are_in_the_order_of_time_and_users_are_numbers() {
        // As the quorum lists them: the last submission first.
        let all = captured(vec![work(65_534, 3000, 0, None), work(1007, 2000, 2000, None), work(65_534, 1000, 4001, Some(1500))]);
        let lines = all.events().unwrap();
        let texts: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        let kinds: Vec<(bool, &str)> =
            texts.iter().map(|text| (text.contains("\"submit\""), &text[text.find("ts\":\"").unwrap() + 5..][17..19])).collect();
        assert_eq!(kinds, [(true, "01"), (true, "02"), (false, "02"), (true, "03"), (false, "04")]);
        let users: Vec<u32> = lines
            .iter()
            .filter_map(|line| match line {
                Line::Submit(submit) => Some(submit.alloc.user),
                Line::Header(_) | Line::Tenant(_) | Line::Vcluster(_) | Line::Node(_) | Line::Complete(_) => None,
            })
            .collect();
        assert_eq!(users, [1, 2, 1]);
        assert!(texts.iter().all(|text| !text.contains("65534") && !text.contains("1007")), "{texts:?}");
        assert!(texts[4].contains("\"duration\":\"2s\",\"exit\":0"), "{}", texts[4]);
        assert!(!texts[2].contains("duration"), "it never ran: {}", texts[2]);
        assert!(captured(vec![v1::TracedWork { id: "x".into(), ..work(1, 1, 0, None) }]).events().is_err());
    }

    #[test]
    fn the_header_says_by_what_the_scheduler_decides() {
        let text = serde_json::to_string(&captured(vec![]).header()).unwrap();
        assert!(text.ends_with(r#","budget_period_days":30,"checkpoint_bytes_per_second":1000000000.0}"#), "{text}");
    }

    #[test]
    fn nodes_that_take_no_work_are_left_out_and_counted() {
        let node = |id: &str, schedulable| v1::Node { id: id.into(), cores: 4, schedulable, ..Default::default() };
        let (lines, unschedulable) = node_lines(vec![node("login1", false), node("n1", true), node("login2", false)]).unwrap();
        let text = serde_json::to_string(&lines).unwrap();
        assert_eq!((lines.len(), unschedulable), (1, 2));
        assert!(text.contains("n1") && !text.contains("login"), "{text}");
        assert_eq!(left_out(0, 2), ["2 nodes with schedulable: false, for no work: left out"]);
        assert_eq!(left_out(3, 1), ["3 submissions held: left out", "1 node with schedulable: false, for no work: left out"]);
        assert_eq!(left_out(1, 0), ["1 submission held: left out"]);
    }

    #[test]
    fn work_submitted_after_the_last_forgotten_end_is_complete() {
        assert_eq!([0, 700].map(complete_from), [Timestamp(0), Timestamp(701)]);
    }

    #[test]
    fn a_site_is_written_without_defaults() {
        let weight = v1::Weight { factor: "fair-share".into(), weight: 0.35 };
        let vcluster = v1::VCluster { name: "batch".into(), scheduler: "hpc-backfill".into(), weights: vec![weight], ..Default::default() };
        let text = |line: Line| serde_json::to_string(&line).unwrap();
        assert_eq!(text(vcluster_line(vcluster.clone())), r#"{"type":"vcluster","name":"batch","scheduler":"hpc-backfill"}"#);
        let set = v1::VCluster { weights_set: true, lend_ms: 7_200_000, ..vcluster };
        assert!(text(vcluster_line(set)).ends_with(r#""weights":{"fair-share":0.35},"lends":"7200s"}"#));
        let node = v1::Node { id: "n1".into(), cores: 4, memory_bytes: 1 << 30, vcluster: "default".into(), ..Default::default() };
        assert_eq!(text(node_line(node).unwrap()), r#"{"type":"node","node":"n1","cores":4,"memory_bytes":1073741824}"#);
        assert!(default_file(Timestamp(1_772_704_812_034)).ends_with("lattice-trace-2026-03-05.jsonl"));
    }
}
