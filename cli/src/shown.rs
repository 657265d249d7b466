//! Allocations and nodes as JSON and as columns. The JSON's fields are documented and stay.

use crate::attempts::AttemptJson;
use crate::output::Width;
use crate::table::{NOTHING, Table, block};
use lattice_api::v1;
use lattice_model::count::counted;
use lattice_model::duration::clock_text;
use lattice_model::hostlist;
use lattice_model::resources::{Resources, bytes_text};
use lattice_model::time::Timestamp;
use lattice_model::{DEFAULT_VCLUSTER, HoldKind, NodeId};
use serde::Serialize;
use std::time::Duration;

/// An allocation as JSON. Times are RFC 3339 in UTC, null where there is none.
#[derive(Serialize)]
pub struct AllocationJson<'a> {
    id: &'a str,
    name: &'a str,
    state: &'a str,
    reason: Option<&'a str>,
    owner: &'a str,
    nodes: &'a [String],
    nodes_wanted: u32,
    tasks_per_node: u32,
    exit_code: Option<i32>,
    requeue_count: u32,
    /// The number of its present or last claim, 1 for the first.
    attempt: Option<u32>,
    /// Its claims that are over.
    attempts: Vec<AttemptJson<'a>>,
    /// `None`: a service, without any.
    walltime_seconds: Option<u64>,
    submitted_at: Option<String>,
    claimed_at: Option<String>,
    started_at: Option<String>,
    ended_at: Option<String>,
    tenant: Option<&'a str>,
    vcluster: Option<&'a str>,
    uenv: Option<&'a str>,
    uenv_sha256: Option<&'a str>,
    epoch: u64,
    share: Option<AmountJson>,
    network_domain: Option<&'a str>,
    vni: Option<u32>,
    /// What of the domain is not enforced; where one allocation was asked for.
    network_note: Option<&'a str>,
    on_isolation: Option<&'a str>,
    /// Which of its nodes are not heard, and what settles it; where one allocation was asked for.
    isolation_note: Option<&'a str>,
    expose: Vec<ExposedJson<'a>>,
    /// Its last whole checkpoint.
    checkpoint: Option<CheckpointJson<'a>>,
    preempted_count: u32,
    /// While it runs: that it is to give its nodes back, or why it could not save itself then.
    preemption: Option<&'a str>,
    /// Suspended until somebody resumes it.
    held: bool,
    /// While its work is measured more closely: how, until when, and who asked for it.
    telemetry: Option<&'a str>,
}

/// A checkpoint of an allocation as JSON.
#[derive(Serialize)]
pub struct CheckpointJson<'a> {
    id: &'a str,
    epoch: u64,
    step: Option<u64>,
    bytes: u64,
}

/// A port that is offered, as JSON.
#[derive(Serialize)]
pub struct ExposedJson<'a> {
    name: &'a str,
    port: u32,
    protocol: &'a str,
}

/// An amount of a node as JSON.
#[derive(Serialize)]
pub struct AmountJson {
    cores: u32,
    memory_bytes: u64,
    gpus: u32,
}

impl From<&v1::Amount> for AmountJson {
    fn from(amount: &v1::Amount) -> Self {
        Self { cores: amount.cores, memory_bytes: amount.memory_bytes, gpus: amount.gpus }
    }
}

impl<'a> From<&'a v1::Allocation> for AllocationJson<'a> {
    fn from(a: &'a v1::Allocation) -> Self {
        Self {
            id: &a.id,
            name: &a.name,
            state: &a.state,
            reason: end_reason(a),
            owner: &a.owner,
            nodes: &a.nodes,
            nodes_wanted: a.nodes_wanted,
            tasks_per_node: a.tasks_per_node,
            exit_code: a.exit_code,
            requeue_count: a.requeue_count,
            attempt: a.attempt,
            attempts: a.attempts.iter().map(AttemptJson::from).collect(),
            walltime_seconds: (a.walltime_seconds > 0).then_some(a.walltime_seconds),
            submitted_at: time(a.submitted_at_ms),
            claimed_at: time(a.claimed_at_ms),
            started_at: time(a.started_at_ms),
            ended_at: time(a.ended_at_ms),
            tenant: filled(&a.tenant),
            vcluster: filled(&a.vcluster),
            uenv: filled(&a.uenv),
            uenv_sha256: filled(&a.uenv_sha256),
            epoch: a.epoch,
            share: a.share.as_ref().map(AmountJson::from),
            network_domain: domain(a),
            vni: a.vni,
            network_note: filled(&a.network_note),
            on_isolation: filled(&a.on_isolation),
            isolation_note: filled(&a.isolation_note),
            expose: exposed(a).iter().map(|e| ExposedJson { name: &e.name, port: e.port, protocol: &e.protocol }).collect(),
            preempted_count: a.preempted_count,
            preemption: filled(&a.preemption),
            held: a.held,
            telemetry: filled(&a.telemetry),
            checkpoint: a.checkpoint.as_ref().map(|c| CheckpointJson { id: &c.id, epoch: c.epoch, step: c.step, bytes: c.bytes }),
        }
    }
}

/// A node as JSON.
#[derive(Serialize)]
pub struct NodeJson<'a> {
    id: &'a str,
    state: &'a str,
    reason: Option<&'a str>,
    state_since: Option<String>,
    cores: u32,
    memory_bytes: u64,
    gpus: u32,
    committed: AmountJson,
    unlimited: &'a [String],
    features: &'a [String],
    vcluster: &'a str,
    allocations: &'a [String],
    holds: &'a [String],
    schedulable: bool,
    heard_through: Option<&'a str>,
    gossip: &'a str,
    by_gossip: bool,
    mesh_address: &'a str,
    incarnation: u64,
    conformance: serde_json::Value,
    wipe: Option<&'a str>,
}

impl<'a> From<&'a v1::Node> for NodeJson<'a> {
    fn from(n: &'a v1::Node) -> Self {
        Self {
            id: &n.id,
            state: &n.state,
            reason: filled(&n.reason),
            state_since: time(n.state_since_ms),
            cores: n.cores,
            memory_bytes: n.memory_bytes,
            gpus: n.gpus,
            committed: AmountJson::from(&n.committed.unwrap_or_default()),
            unlimited: &n.unlimited,
            features: &n.features,
            vcluster: queue(&n.vcluster),
            allocations: &n.allocations,
            holds: &n.holds,
            schedulable: n.schedulable,
            heard_through: filled(&n.heard_through),
            gossip: &n.gossip,
            by_gossip: n.by_gossip,
            mesh_address: &n.mesh_address,
            incarnation: n.incarnation,
            conformance: conformance_json(n),
            wipe: filled(&n.wipe),
        }
    }
}

/// The listing of allocations, in the order given; wide with who pays, what they use, and where they are.
pub fn allocations_table(allocations: &[v1::Allocation], now: Timestamp, owners: bool, width: Width) -> String {
    let (first, last) = (["ID", "NAME", "OWNER", "STATE", "NODES", "WALLTIME", "ELAPSED", "VCLUSTER"], ["REASON"]);
    let more: &[&str] = if width == Width::Wide { &["TENANT", "UENV", "ON"] } else { &[] };
    let mut table = Table::new(&[&first[..], more, &last[..]].concat());
    for a in allocations {
        let mut cells = vec![
            short(&a.id).to_owned(),
            a.name.clone(),
            if owners || width == Width::Wide { a.owner.clone() } else { String::new() },
            a.state.clone(),
            a.nodes_wanted.to_string(),
            walltime(a),
            elapsed(a, now).unwrap_or_default(),
            queue(&a.vcluster).to_owned(),
        ];
        if width == Width::Wide {
            cells.extend([a.tenant.clone(), a.uenv.clone(), folded(&a.nodes)]);
        }
        cells.push(reason(a));
        table.row(cells);
    }
    table.shown(&["OWNER", "REASON"], width)
}

/// The columns of [`allocation_row`].
pub const ALLOCATION_HEADING: &[&str] = &["ID", "NAME", "OWNER", "STATE", "NODES", "WALLTIME", "VCLUSTER", "REASON"];

/// An allocation on a line of a watch.
pub fn allocation_row(a: &v1::Allocation) -> Vec<String> {
    let nodes = if a.nodes.is_empty() { a.nodes_wanted.to_string() } else { folded(&a.nodes) };
    let queue = queue(&a.vcluster).to_owned();
    vec![short(&a.id).to_owned(), a.name.clone(), a.owner.clone(), a.state.clone(), nodes, walltime(a), queue, reason(a)]
}

/// The columns of [`node_row`].
pub const NODE_HEADING: &[&str] = &["NODE", "STATE", "CORES", "MEMORY", "GPUS", "VCLUSTER", "FEATURES", "NOT ENFORCED", "REASON"];

/// A node on a line of a watch.
pub fn node_row(n: &v1::Node) -> Vec<String> {
    let (cores, gpus) = (n.cores.to_string(), n.gpus.to_string());
    let (features, unlimited) = (n.features.join(","), n.unlimited.join(","));
    let queue = queue(&n.vcluster).to_owned();
    vec![n.id.clone(), n.state.clone(), cores, memory(n.memory_bytes), gpus, queue, features, unlimited, standing(n)]
}

/// Why a node stands where it stands, and what keeps work off it.
fn standing(n: &v1::Node) -> String {
    let reasons = std::iter::once(n.reason.clone()).chain(n.holds.iter().map(|hold| with_exit(hold)));
    let reasons = reasons.chain(filled(&n.heard_through).map(|peer| format!("heard through {peer}: it reaches no member itself")));
    let reasons = reasons.chain((!n.schedulable).then(|| "takes no work (schedulable: false)".to_owned()));
    reasons.filter(|reason| !reason.is_empty()).collect::<Vec<_>>().join("; ")
}

/// A hold as the agent tells it, and which command lifts it. One that this version does not know is told without.
pub fn with_exit(hold: &str) -> String {
    let kind = hold.split(' ').next().and_then(HoldKind::from_name);
    kind.map_or_else(|| hold.to_owned(), |kind| format!("{hold} (`{}` lifts it)", kind.exit()))
}

/// Everything about one allocation.
pub fn allocation_block(a: &v1::Allocation, now: Timestamp) -> String {
    let ranks = u64::from(a.nodes_wanted) * u64::from(a.tasks_per_node);
    let nodes = if a.nodes.is_empty() { format!("{} wanted", a.nodes_wanted) } else { format!("{} ({})", folded(&a.nodes), a.nodes.len()) };
    let uenv = if a.uenv.is_empty() { String::new() } else { format!("{} (sha256 {})", a.uenv, a.uenv_sha256) };
    block(&[
        ("ID", a.id.clone()),
        ("Name", a.name.clone()),
        ("Owner", a.owner.clone()),
        ("State", a.state.clone()),
        ("Reason", reason(a)),
        ("Exit code", a.exit_code.map(|code| code.to_string()).unwrap_or_default()),
        ("Nodes", nodes),
        ("Share", a.share.as_ref().map(|s| format!("{} of each node", amount(s))).unwrap_or_default()),
        ("Tasks", format!("{} on each node, {ranks} in all", a.tasks_per_node)),
        ("Walltime", walltime(a)),
        ("Elapsed", elapsed(a, now).unwrap_or_default()),
        ("Submitted", time(a.submitted_at_ms).unwrap_or_default()),
        ("Claimed", time(a.claimed_at_ms).unwrap_or_default()),
        ("Started", time(a.started_at_ms).unwrap_or_default()),
        ("Ended", time(a.ended_at_ms).unwrap_or_default()),
        ("On isolation", if a.on_isolation == "stop" { "stop: it ends where it is cut off".to_owned() } else { String::new() }),
        ("Isolated", a.isolation_note.clone()),
        ("Requeued", if a.requeue_count == 0 { String::new() } else { counted(a.requeue_count, "time") }),
        ("Preempted", if a.preempted_count == 0 { String::new() } else { counted(a.preempted_count, "time") }),
        ("Held", if a.held { format!("until `lattice resume {}`", short(&a.id)) } else { String::new() }),
        ("Telemetry", a.telemetry.clone()),
        ("Checkpoint", a.checkpoint.as_ref().map(checkpoint).unwrap_or_default()),
        ("Tenant", a.tenant.clone()),
        ("vCluster", queue(&a.vcluster).to_owned()),
        ("uenv", uenv),
        (
            "Network",
            domain(a).map(|name| format!("{name}{}", a.vni.map(|vni| format!(" (VNI {vni})")).unwrap_or_default())).unwrap_or_default(),
        ),
        ("Not enforced", a.network_note.clone()),
        ("Offers", exposed(a).iter().map(|e| format!("{}:{}/{}", e.name, e.port, e.protocol)).collect::<Vec<_>>().join(", ")),
    ])
}

fn checkpoint(c: &v1::CheckpointRef) -> String {
    let step = c.step.map_or_else(String::new, |step| format!(", step {step}"));
    format!("{} ({}{step})", short(&c.id), bytes_text(c.bytes))
}

/// The listing of nodes, in the order given. Of what can be shared it says how much is free of how much; wide how large each conformance
/// group is, since when each node stands where it stands, and where it is.
pub fn nodes_table(nodes: &[v1::Node], width: Width) -> String {
    let is_wide = width == Width::Wide;
    let first =
        ["NODE", "STATE", "CORES", "MEMORY", "GPUS", "VCLUSTER", "FEATURES", "CONFORMANCE", "ALLOCATIONS", "GOSSIP", "NOT ENFORCED"];
    let more: &[&str] = if is_wide { &["SINCE", "MESH"] } else { &[] };
    let mut table = Table::new(&[&first[..], more, &["REASON"]].concat());
    // Where all are alike it says nothing, unless it is asked for.
    let told = |n: &v1::Node| n.conformance.as_ref().map(|told| (told.fingerprint.clone(), told.drifted_since_ms != 0));
    let differ = nodes.iter().any(|n| told(n) != nodes.first().and_then(told) || told(n).is_some_and(|(_, drifted)| drifted));
    let several = nodes.iter().any(|n| queue(&n.vcluster) != DEFAULT_VCLUSTER);
    for n in nodes {
        let size = Resources { cores: n.cores, memory_bytes: n.memory_bytes, gpus: n.gpus };
        let free = size.minus(&resources(&n.committed.unwrap_or_default()));
        let mut cells = vec![
            n.id.clone(),
            n.state.clone(),
            free_of(free.cores, n.cores, |cores| cores.to_string()),
            free_of(free.memory_bytes, n.memory_bytes, memory),
            free_of(free.gpus, n.gpus, |gpus| gpus.to_string()),
            if several || is_wide { queue(&n.vcluster).to_owned() } else { String::new() },
            n.features.join(","),
            n.conformance.as_ref().filter(|_| differ || is_wide).map(|told| conformance(told, width)).unwrap_or_default(),
            n.allocations.iter().map(|id| short(id)).collect::<Vec<_>>().join(","),
            n.gossip.clone(),
            n.unlimited.join(","),
        ];
        if is_wide {
            cells.extend([time(n.state_since_ms).unwrap_or_default(), n.mesh_address.clone()]);
        }
        cells.push(standing(n));
        table.row(cells);
    }
    table.shown(&["VCLUSTER", "FEATURES", "CONFORMANCE", "NOT ENFORCED", "REASON"], width)
}

/// The group of a node on a line; wide with how many are of it. No spaces within: people sort by it and count.
fn conformance(told: &v1::Conformance, width: Width) -> String {
    let group = short(&told.fingerprint);
    let nodes = if width == Width::Wide { format!("({})", told.group_nodes.max(1)) } else { String::new() };
    let stale = if width == Width::Wide && told.stale { " stale" } else { "" };
    let drifted = if told.drifted_since_ms == 0 { "" } else { " drifted" };
    format!("{group}{nodes}{stale}{drifted}")
}

/// What a node told of its software and firmware; null where it has told nothing.
pub fn conformance_json(n: &v1::Node) -> serde_json::Value {
    n.conformance.as_ref().map_or(serde_json::Value::Null, |told| {
        serde_json::json!({
            "fingerprint": told.fingerprint, "group_nodes": told.group_nodes, "drifted_since": time(told.drifted_since_ms),
            "drift": filled(&told.drift), "expected": told.expected, "stale": told.stale,
        })
    })
}

/// The first 8 digits of an id.
pub fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}

/// A time as RFC 3339.
pub fn time(ms: u64) -> Option<String> {
    (ms != 0).then(|| Timestamp(ms).to_string())
}

/// Null where there is nothing.
pub fn filled(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

/// Node names folded; as they are, where one of them is none.
pub fn folded(names: &[String]) -> String {
    match names.iter().map(|name| name.parse::<NodeId>()).collect::<Result<Vec<_>, _>>() {
        Ok(ids) => hostlist::fold(&ids),
        Err(_) => names.join(","),
    }
}

fn domain(a: &v1::Allocation) -> Option<&str> {
    a.connectivity.as_ref().and_then(|c| filled(&c.network_domain))
}

fn exposed(a: &v1::Allocation) -> &[v1::connectivity::Expose] {
    a.connectivity.as_ref().map_or(&[], |c| &c.expose)
}

fn queue(vcluster: &str) -> &str {
    filled(vcluster).unwrap_or(DEFAULT_VCLUSTER)
}

fn clock(seconds: u64) -> String {
    clock_text(Duration::from_secs(seconds))
}

/// How long it may run; a service has no end set.
fn walltime(a: &v1::Allocation) -> String {
    if a.walltime_seconds == 0 { "service".to_owned() } else { clock(a.walltime_seconds) }
}

fn elapsed(a: &v1::Allocation, now: Timestamp) -> Option<String> {
    let end = if a.ended_at_ms == 0 { now } else { Timestamp(a.ended_at_ms) };
    (a.started_at_ms != 0).then(|| clock(end.since_ms(Timestamp(a.started_at_ms)) / 1000))
}

/// Why; while it runs, what is asked of it.
fn reason(a: &v1::Allocation) -> String {
    match end_reason(a) {
        None if a.reason.is_empty() => a.preemption.clone(),
        reason => reason.unwrap_or_default().to_owned(),
    }
}

/// Why it ended or waits; nothing where that only repeats the state.
fn end_reason(a: &v1::Allocation) -> Option<&str> {
    filled(&a.reason).filter(|reason| !reason.eq_ignore_ascii_case(&a.state))
}

fn memory(bytes: u64) -> String {
    if bytes == 0 { NOTHING.to_owned() } else { bytes_text(bytes) }
}

/// `2 of 4 free`, and plainly how much there is where all of it is.
fn free_of<T: PartialEq>(free: T, size: T, text: impl Fn(T) -> String) -> String {
    if free == size { text(size) } else { format!("{} of {} free", text(free), text(size)) }
}

fn resources(amount: &v1::Amount) -> Resources {
    Resources { cores: amount.cores, memory_bytes: amount.memory_bytes, gpus: amount.gpus }
}

fn amount(amount: &v1::Amount) -> String {
    resources(amount).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> v1::Allocation {
        v1::Allocation {
            id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            name: "training-run".into(),
            state: "Running".into(),
            owner: "ada".into(),
            nodes: (1..=3).map(|n| format!("n{n}")).collect(),
            nodes_wanted: 3,
            tasks_per_node: 2,
            walltime_seconds: 259_200,
            submitted_at_ms: 1_772_704_800_000,
            claimed_at_ms: 1_772_704_801_000,
            started_at_ms: 1_772_704_812_000,
            vcluster: "ml-training".into(),
            epoch: 4,
            ..Default::default()
        }
    }

    fn pending() -> v1::Allocation {
        v1::Allocation {
            id: "20000000-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            name: "eval".into(),
            state: "Pending".into(),
            owner: "bob".into(),
            nodes_wanted: 4,
            tasks_per_node: 1,
            walltime_seconds: 7200,
            submitted_at_ms: 1_772_704_810_000,
            ..Default::default()
        }
    }

    const NOW: Timestamp = Timestamp(1_772_704_812_000 + 51_781_900);

    #[test]
    fn allocations_as_the_documents_list_them() {
        let listed = allocations_table(&[running(), pending()], NOW, false, Width::Terse);
        let want = "\
ID        NAME          STATE    NODES  WALLTIME  ELAPSED   VCLUSTER
1f0c9a4e  training-run  Running  3      72:00:00  14:23:01  ml-training
20000000  eval          Pending  4      02:00:00  —         default
";
        assert_eq!(listed, want);
        let failed =
            v1::Allocation { state: "Failed".into(), reason: "walltime_exceeded".into(), ended_at_ms: 1_772_704_813_000, ..running() };
        let completed = v1::Allocation { state: "Completed".into(), reason: "completed".into(), ..failed.clone() };
        let want = "\
ID        NAME          OWNER  STATE      NODES  WALLTIME  ELAPSED   VCLUSTER     REASON
1f0c9a4e  training-run  ada    Failed     3      72:00:00  00:00:01  ml-training  walltime_exceeded
1f0c9a4e  training-run  ada    Completed  3      72:00:00  00:00:01  ml-training  —
";
        assert_eq!(allocations_table(&[failed, completed], NOW, true, Width::Terse), want);
        assert_eq!(allocations_table(&[], NOW, false, Width::Terse), "ID  NAME  STATE  NODES  WALLTIME  ELAPSED  VCLUSTER\n");
    }

    #[test]
    fn one_allocation_in_full() {
        let want = "\
ID:         1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88
Name:       training-run
Owner:      ada
State:      Running
Nodes:      n[1-3] (3)
Tasks:      2 on each node, 6 in all
Walltime:   72:00:00
Elapsed:    14:23:01
Submitted:  2026-03-05T10:00:00.000Z
Claimed:    2026-03-05T10:00:01.000Z
Started:    2026-03-05T10:00:12.000Z
vCluster:   ml-training
";
        assert_eq!(allocation_block(&running(), NOW), want);
    }

    #[test]
    fn json_has_what_is_documented() {
        let share = Some(v1::Amount { cores: 2, memory_bytes: 1024, gpus: 0 });
        let a = v1::Allocation { exit_code: Some(0), requeue_count: 1, share, ..running() };
        let json = serde_json::to_value(AllocationJson::from(&a)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "id": "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88", "name": "training-run", "state": "Running", "reason": null,
                "owner": "ada", "nodes": ["n1", "n2", "n3"], "nodes_wanted": 3, "tasks_per_node": 2, "exit_code": 0,
                "requeue_count": 1, "attempt": null, "attempts": [], "walltime_seconds": 259_200, "submitted_at": "2026-03-05T10:00:00.000Z",
                "claimed_at": "2026-03-05T10:00:01.000Z", "started_at": "2026-03-05T10:00:12.000Z", "ended_at": null,
                "tenant": null, "vcluster": "ml-training", "uenv": null, "uenv_sha256": null, "epoch": 4,
                "share": {"cores": 2, "memory_bytes": 1024, "gpus": 0}, "network_domain": null, "vni": null, "network_note": null,
                "on_isolation": null, "isolation_note": null,
                "expose": [],
                "checkpoint": null, "preempted_count": 0, "preemption": null, "held": false, "telemetry": null,
            })
        );
        let completed = v1::Allocation { state: "Completed".into(), reason: "completed".into(), vcluster: String::new(), ..running() };
        let json = serde_json::to_value(AllocationJson::from(&completed)).unwrap();
        assert_eq!((&json["reason"], &json["vcluster"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    }

    #[test]
    fn nodes_with_why_they_take_nothing() {
        let node = v1::Node {
            id: "n1".into(),
            state: "Ready".into(),
            cores: 64,
            memory_bytes: 512 << 30,
            gpus: 4,
            allocations: vec!["1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into()],
            schedulable: true,
            gossip: "alive".into(),
            ..Default::default()
        };
        let login = v1::Node {
            id: "login".into(),
            state: "Degraded".into(),
            reason: "silent for 31 s".into(),
            cores: 2,
            memory_bytes: 800 << 20,
            holds: vec!["cordon by ada since 2026: fan".into()],
            gossip: "suspect".into(),
            unlimited: vec!["memory".into(), "io".into()],
            ..Default::default()
        };
        let want = "\
NODE   STATE     CORES  MEMORY     GPUS  ALLOCATIONS  GOSSIP   NOT ENFORCED  REASON
n1     Ready     64     512.0 GiB  4     1f0c9a4e     alive    —             —
login  Degraded  2      800 MiB    0     —            suspect  memory,io     silent for 31 s; cordon by ada since 2026: fan (`lattice node uncordon` lifts it); takes no work (schedulable: false)
";
        assert_eq!(nodes_table(&[node.clone(), login], Width::Terse), want);
        assert!(!nodes_table(std::slice::from_ref(&node), Width::Terse).contains("REASON"));
        let of = |vcluster: &str| v1::Node { vcluster: vcluster.into(), ..node.clone() };
        assert!(nodes_table(&[of("small"), of("default")], Width::Terse).contains("4     small     1f0c9a4e"));
        let partly = v1::Node { committed: Some(v1::Amount { cores: 16, memory_bytes: 128 << 30, gpus: 0 }), ..node };
        let want = "\
NODE  STATE  CORES          MEMORY                       GPUS  ALLOCATIONS  GOSSIP
n1    Ready  48 of 64 free  384.0 GiB of 512.0 GiB free  4     1f0c9a4e     alive
";
        assert_eq!(nodes_table(&[partly], Width::Terse), want);
    }

    #[test]
    fn wide_has_every_column_and_more() {
        let listed = allocations_table(&[v1::Allocation { tenant: "physics".into(), ..running() }], NOW, false, Width::Wide);
        let want = "\
ID        NAME          OWNER  STATE    NODES  WALLTIME  ELAPSED   VCLUSTER     TENANT   UENV  ON      REASON
1f0c9a4e  training-run  ada    Running  3      72:00:00  14:23:01  ml-training  physics  —     n[1-3]  —
";
        assert_eq!(listed, want);
        let told = v1::Conformance { fingerprint: "0123456789abcdef".into(), group_nodes: 3, ..Default::default() };
        let node = v1::Node {
            id: "n1".into(),
            state: "Ready".into(),
            cores: 64,
            memory_bytes: 512 << 30,
            schedulable: true,
            gossip: "alive".into(),
            state_since_ms: 1_772_704_800_000,
            mesh_address: "h1:9401".into(),
            conformance: Some(told.clone()),
            ..Default::default()
        };
        let want = "\
NODE  STATE  CORES  MEMORY     GPUS  VCLUSTER  FEATURES  CONFORMANCE  ALLOCATIONS  GOSSIP  NOT ENFORCED  SINCE                     MESH     REASON
n1    Ready  64     512.0 GiB  0     default   —         01234567(3)  —            alive   —             2026-03-05T10:00:00.000Z  h1:9401  —
";
        assert_eq!(nodes_table(std::slice::from_ref(&node), Width::Wide), want);
        assert!(!nodes_table(std::slice::from_ref(&node), Width::Terse).contains("CONFORMANCE"), "where all are alike it says nothing");
        let drifted = v1::Conformance { drifted_since_ms: 1, group_nodes: 1, ..told };
        let drifted = v1::Node { conformance: Some(drifted), ..node };
        assert!(nodes_table(std::slice::from_ref(&drifted), Width::Wide).contains("  01234567(1) drifted  "));
        assert!(nodes_table(&[drifted], Width::Terse).contains("  01234567 drifted  "));
    }
}
