//! Allocations as JSON and as columns; nodes have their own file. The JSON's fields are documented and stable.

mod attempts;
pub mod counts;
mod nodes;
mod values;

pub use attempts::attempts_text;
pub use nodes::{NODE_HEADING, NodeJson, conformance_json, domains_json, domains_text, node_row, nodes_table, with_exit};
pub use values::{filled, lease_token, short, time};

use crate::last_stderr::{LastStderr, LastStderrLine};
use crate::output::{TableSize, Width};
use crate::table::{Fit, Table, block, shortened};
use attempts::AttemptJson;
use counts::{node_count, nodes_wanted, tasks_of};
use lattice_api::allocation::state_from_name;
use lattice_api::v1;
use lattice_model::count::counted;
use lattice_model::duration::clock_text;
use lattice_model::hostlist;
use lattice_model::resources::{Resources, bytes_text};
use lattice_model::time::Timestamp;
use lattice_model::{AllocationState, DEFAULT_VCLUSTER, NodeId};
use serde::Serialize;
use std::time::Duration;

/// An allocation as JSON. Times are RFC 3339 in UTC, or null.
#[derive(Serialize)]
pub struct AllocationJson<'a> {
    id: &'a str,
    /// `None`, like `owner`, if it is another user's and the site hides that.
    name: Option<&'a str>,
    state: &'a str,
    reason: Option<&'a str>,
    owner: Option<&'a str>,
    nodes: &'a [String],
    nodes_requested: u32,
    /// If it asked for a range of numbers, the largest.
    nodes_requested_max: Option<u32>,
    /// `tight`: its nodes are in as few topology groups as possible.
    topology: Option<&'a str>,
    tasks_per_node: u32,
    exit_code: Option<i32>,
    requeue_count: u32,
    /// The number of its present or last claim, from 1.
    attempt: Option<u32>,
    /// Its ended claims.
    attempts: Vec<AttemptJson<'a>>,
    /// `None`: a service without a walltime.
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
    /// What the network domain does not enforce; only if one allocation was requested.
    network_note: Option<&'a str>,
    on_isolation: Option<&'a str>,
    /// Its silent nodes, and what decides whether their work goes on; only if one allocation was requested.
    isolation_note: Option<&'a str>,
    expose: Vec<ExposedJson<'a>>,
    /// Its last complete checkpoint.
    checkpoint: Option<CheckpointJson<'a>>,
    preempted_count: u32,
    /// While it runs: that it must give its nodes back, or why it could not save itself.
    preemption: Option<&'a str>,
    /// Whether it stays Suspended until somebody resumes it.
    held: bool,
    /// While its work is measured more closely: how, until when, and who requested it.
    telemetry: Option<&'a str>,
    /// For a living allocation, in a few words: why it waits, or what is wrong while it runs.
    status_message: Option<&'a str>,
    /// Its position, from 1, in the order of its vCluster's queue.
    queue_position: Option<u32>,
    /// While it waits: when it is expected to begin, if that is known.
    expected_start: Option<String>,
    /// While it waits in a queue that is ordered by scores: the class that counts there.
    class_in_queue: Option<u32>,
    score: Option<f64>,
    /// The end of its walltime, if it runs and has one.
    ends_by: Option<String>,
    /// Use under its present or last claim, on the nodes that have been released: the peak memory on any of them, and
    /// the processor time on all of them.
    memory_peak_bytes: Option<u64>,
    cpu_seconds: Option<f64>,
    /// What runs and where, and the last lines of its standard error; only if one allocation was requested.
    command: Option<&'a [String]>,
    working_dir: Option<&'a str>,
    script: Option<&'a str>,
    last_stderr: Option<&'a [LastStderrLine]>,
}

/// A checkpoint of an allocation as JSON.
#[derive(Serialize)]
pub struct CheckpointJson<'a> {
    id: &'a str,
    epoch: u64,
    step: Option<u64>,
    bytes: u64,
}

/// An exposed port as JSON.
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
            name: disclosed(&a.name, &a.owner),
            state: &a.state,
            reason: end_reason(a),
            owner: filled(&a.owner),
            nodes: &a.nodes,
            nodes_requested: a.nodes_requested,
            nodes_requested_max: Some(a.nodes_requested_max).filter(|most| *most > 0),
            topology: filled(&a.topology),
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
            status_message: filled(&a.status_message),
            queue_position: (a.queue_position > 0).then_some(a.queue_position),
            expected_start: a.expected_start_ms.and_then(time),
            class_in_queue: a.class_in_queue,
            score: a.score,
            ends_by: ends_by_ms(a).and_then(time),
            memory_peak_bytes: a.memory_peak_bytes,
            cpu_seconds: a.cpu_ms.map(|ms| ms as f64 / 1e3),
            command: (!a.command.is_empty()).then_some(&a.command[..]),
            working_dir: filled(&a.working_dir),
            script: filled(&a.script),
            last_stderr: None,
            checkpoint: a.checkpoint.as_ref().map(|c| CheckpointJson { id: &c.id, epoch: c.epoch, step: c.step, bytes: c.bytes }),
        }
    }
}

impl<'a> AllocationJson<'a> {
    /// A requested allocation, with the last lines of its standard error.
    pub fn of_one(a: &'a v1::Allocation, stderr: &'a LastStderr) -> Self {
        let last_stderr = (!stderr.lines.is_empty()).then_some(&stderr.lines[..]);
        Self { last_stderr, ..Self::from(a) }
    }
}

/// Sorts living allocations first: those with nodes, then those in line, in the order in which they are expected to
/// begin, then those that wait for something else. Ended ones follow. The other groups are sorted newest first.
pub fn live_first(allocations: &mut [v1::Allocation]) {
    allocations.sort_by(|a, b| {
        let newest_first = || (b.submitted_at_ms, &b.id).cmp(&(a.submitted_at_ms, &a.id));
        let in_line = || (queue(&a.vcluster), a.queue_position).cmp(&(queue(&b.vcluster), b.queue_position));
        part(a).cmp(&part(b)).then_with(|| if part(a) == Part::InLine { in_line() } else { newest_first() })
    });
}

/// The groups of a list of allocations, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    HasNodes,
    InLine,
    Waits,
    Ended,
}

fn part(a: &v1::Allocation) -> Part {
    match state_from_name(&a.state) {
        Ok(AllocationState::Staging | AllocationState::Running) => Part::HasNodes,
        Ok(AllocationState::Pending | AllocationState::Suspended) if a.queue_position > 0 => Part::InLine,
        Ok(AllocationState::Pending | AllocationState::Suspended) => Part::Waits,
        Ok(AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled) | Err(_) => Part::Ended,
    }
}

/// Characters of a command that are shown; the JSON has all of it.
const COMMAND_CHARS_MAX: usize = 400;

/// Characters of a reason in a list on a screen.
const REASON_CHARS_MAX: usize = 40;

/// How a list of allocations is made narrower.
const ALLOCATIONS_FIT: Fit<'_> = Fit {
    left_out: &["WALLTIME", "VCLUSTER", "ELAPSED"],
    shortened: &[("NAME", 8), ("OWNER", 8)],
    wrapped: &[("REASON", 16)],
    left_out_last: &["NODES"],
};

/// The list of allocations, in the given order; wide with all columns, and with tenant, uenv and nodes.
pub fn allocations_table(allocations: &[v1::Allocation], now: Timestamp, owners: bool, size: TableSize) -> String {
    let is_wide = size.width == Width::Wide;
    let (first, last) = (["ID", "NAME", "OWNER", "STATE", "NODES", "WALLTIME", "ELAPSED", "LEFT", "VCLUSTER"], ["REASON"]);
    let more: &[&str] = if is_wide { &["TENANT", "UENV", "ON"] } else { &[] };
    let mut table = Table::new(&[&first[..], more, &last[..]].concat());
    for a in allocations {
        let mut cells = vec![
            short(&a.id).to_owned(),
            a.name.clone(),
            if owners || is_wide { a.owner.clone() } else { String::new() },
            a.state.clone(),
            node_count(a),
            walltime(a),
            elapsed(a, now).unwrap_or_default(),
            left(a, now).unwrap_or_default(),
            queue(&a.vcluster).to_owned(),
        ];
        if is_wide {
            cells.extend([a.tenant.clone(), a.uenv.clone(), folded(&a.nodes)]);
        }
        let why = filled(&a.status_message).map_or_else(|| reason(a), str::to_owned);
        // For ended work the reason may be long; `status ID` shows all of it.
        cells.push(if size.columns.is_some() && !is_wide { shortened(&why, REASON_CHARS_MAX) } else { why });
        table.row(cells);
    }
    table.on_screen(&["OWNER", "REASON"], &ALLOCATIONS_FIT, size)
}

/// The columns of [`allocation_row`].
pub const ALLOCATION_HEADING: &[&str] = &["ID", "NAME", "OWNER", "STATE", "NODES", "WALLTIME", "VCLUSTER", "REASON"];

/// The cells of an allocation in a watch.
pub fn allocation_row(a: &v1::Allocation) -> Vec<String> {
    let nodes = if a.nodes.is_empty() { nodes_wanted(a) } else { folded(&a.nodes) };
    let queue = queue(&a.vcluster).to_owned();
    vec![short(&a.id).to_owned(), a.name.clone(), a.owner.clone(), a.state.clone(), nodes, walltime(a), queue, reason(a)]
}

/// Everything about one allocation.
pub fn allocation_block(a: &v1::Allocation, stderr: &LastStderr, now: Timestamp) -> String {
    let nodes =
        if a.nodes.is_empty() { format!("{} wanted", nodes_wanted(a)) } else { format!("{} ({})", folded(&a.nodes), a.nodes.len()) };
    let uenv = if a.uenv.is_empty() { String::new() } else { format!("{} (sha256 {})", a.uenv, a.uenv_sha256) };
    let ended = last_stderr(stderr);
    block(&[
        ("ID", a.id.clone()),
        ("Name", a.name.clone()),
        ("Owner", a.owner.clone()),
        ("State", a.state.clone()),
        ("Message", status_message(a)),
        ("Reason", reason(a)),
        ("Exit code", a.exit_code.map(|code| code.to_string()).unwrap_or_default()),
        ("Last stderr", ended.first().cloned().unwrap_or_default()),
        ("", ended.get(1).cloned().unwrap_or_default()),
        ("Memory peak", a.memory_peak_bytes.map(|bytes| used(a, bytes_text(bytes), "on one node")).unwrap_or_default()),
        ("Processor time", a.cpu_ms.map(|ms| used(a, format!("{:.1} s", ms as f64 / 1e3), "in all")).unwrap_or_default()),
        ("Script", script(a)),
        ("Command", command(a)),
        ("Directory", a.working_dir.clone()),
        ("Nodes", nodes),
        ("Share", a.share.as_ref().map(|s| format!("{} of each node", amount(s))).unwrap_or_default()),
        ("Topology", a.topology.clone()),
        ("Tasks", tasks_of(a)),
        ("Walltime", walltime(a)),
        ("Elapsed", elapsed(a, now).unwrap_or_default()),
        ("Expected start", a.expected_start_ms.and_then(time).unwrap_or_default()),
        ("Submitted", time(a.submitted_at_ms).unwrap_or_default()),
        ("Claimed", time(a.claimed_at_ms).unwrap_or_default()),
        ("Started", time(a.started_at_ms).unwrap_or_default()),
        ("Ended", time(a.ended_at_ms).unwrap_or_default()),
        ("On isolation", if a.on_isolation == "stop" { "stop: its work ends on a node that is cut off".to_owned() } else { String::new() }),
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

/// Its status message, and its position in the queue.
fn status_message(a: &v1::Allocation) -> String {
    match a.queue_position {
        0 => a.status_message.clone(),
        place => format!("{} (place {place} in the queue)", a.status_message),
    }
}

/// The amount used, and for how many nodes it is known if not for all.
fn used(a: &v1::Allocation, amount: String, of: &str) -> String {
    let nodes = a.nodes.len();
    // Work that waits for its next attempt has no nodes: the amount is that of the last attempt.
    let known = match nodes {
        0 => " (last attempt)".to_owned(),
        _ if a.usage_nodes as usize == nodes => String::new(),
        _ => format!(" ({} of {nodes} nodes reported it so far)", a.usage_nodes),
    };
    if nodes > 1 { format!("{amount} {of}{known}") } else { format!("{amount}{known}") }
}

/// The script's name and length; the JSON has its text.
fn script(a: &v1::Allocation) -> String {
    match a.script.lines().count() {
        0 => String::new(),
        1 => format!("{} (1 line; -o json has it)", a.name),
        lines => format!("{} ({lines} lines; -o json has them)", a.name),
    }
}

/// The command, or the script's arguments, in a shell's syntax.
fn command(a: &v1::Allocation) -> String {
    command_line(&a.command)
}

/// Words in a shell's syntax, at most the first [`COMMAND_CHARS_MAX`] characters.
pub fn command_line(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quoted = |word: &String| {
        let is_plain = !word.is_empty() && word.chars().all(plain);
        if is_plain { word.clone() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let words: Vec<String> = words.iter().map(quoted).collect();
    let text = words.join(" ");
    if text.chars().count() <= COMMAND_CHARS_MAX { text } else { text.chars().take(COMMAND_CHARS_MAX).chain(['…']).collect() }
}

/// At most two lines: the last ones, those of a launch with rank and launch, and why they were not read.
fn last_stderr(stderr: &LastStderr) -> Vec<String> {
    let line = |last: &LastStderrLine| match last.launch {
        0 => last.line.clone(),
        launch => format!("{} (rank {} of launch {launch})", last.line, last.rank),
    };
    let unread = stderr.unread.iter().map(|why| format!("not read: {why}"));
    stderr.lines.iter().map(line).chain(unread).take(2).collect()
}

fn checkpoint(c: &v1::CheckpointRef) -> String {
    let step = c.step.map_or_else(String::new, |step| format!(", step {step}"));
    format!("{} ({}{step})", short(&c.id), bytes_text(c.bytes))
}

/// The name of something that has an owner; it may be empty. `None` if the agent hides both.
pub fn disclosed<'a>(name: &'a str, owner: &str) -> Option<&'a str> {
    (!owner.is_empty()).then_some(name)
}

/// Node names as a hostlist; unchanged if one of them cannot be parsed.
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

pub fn queue(vcluster: &str) -> &str {
    filled(vcluster).unwrap_or(DEFAULT_VCLUSTER)
}

fn clock(seconds: u64) -> String {
    clock_text(Duration::from_secs(seconds))
}

/// Its walltime; a service has none.
fn walltime(a: &v1::Allocation) -> String {
    if a.walltime_seconds == 0 { "service".to_owned() } else { clock(a.walltime_seconds) }
}

fn elapsed(a: &v1::Allocation, now: Timestamp) -> Option<String> {
    let end = if a.ended_at_ms == 0 { now } else { Timestamp(a.ended_at_ms) };
    (a.started_at_ms != 0).then(|| clock(end.since_ms(Timestamp(a.started_at_ms)) / 1000))
}

/// The end of its walltime, if it runs and has one.
fn ends_by_ms(a: &v1::Allocation) -> Option<u64> {
    let runs = a.started_at_ms != 0 && part(a) == Part::HasNodes && a.walltime_seconds > 0;
    runs.then(|| a.started_at_ms.saturating_add(a.walltime_seconds.saturating_mul(1000)))
}

/// The rest of its walltime: all of it while it waits.
fn left(a: &v1::Allocation, now: Timestamp) -> Option<String> {
    match part(a) {
        _ if a.walltime_seconds == 0 => None,
        Part::HasNodes => Some(ends_by_ms(a).map_or_else(|| walltime(a), |end| clock(Timestamp(end).since_ms(now) / 1000))),
        Part::InLine | Part::Waits => Some(walltime(a)),
        Part::Ended => None,
    }
}

/// The reason for its state; without one, its preemption.
fn reason(a: &v1::Allocation) -> String {
    match end_reason(a) {
        None if a.reason.is_empty() => a.preemption.clone(),
        reason => reason.unwrap_or_default().to_owned(),
    }
}

/// Why it ended or waits; `None` if that only repeats the state.
fn end_reason(a: &v1::Allocation) -> Option<&str> {
    filled(&a.reason).filter(|reason| !reason.eq_ignore_ascii_case(&a.state))
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
            nodes_requested: 3,
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
            nodes_requested: 4,
            tasks_per_node: 1,
            walltime_seconds: 7200,
            submitted_at_ms: 1_772_704_810_000,
            status_message: "next: wants 4 nodes, 2 are free".into(),
            queue_position: 1,
            ..Default::default()
        }
    }

    const TERSE: TableSize = TableSize { width: Width::Terse, columns: None };
    const WIDE: TableSize = TableSize { width: Width::Wide, columns: Some(80) };
    /// The narrowest screen that all tables must fit.
    const NARROW: TableSize = TableSize { width: Width::Terse, columns: Some(80) };

    const NOW: Timestamp = Timestamp(1_772_704_812_000 + 51_781_900);

    #[test]
    fn the_table_of_allocations_is_as_documented() {
        let listed = allocations_table(&[running(), pending()], NOW, false, TERSE);
        let want = "\
ID        NAME          STATE    NODES  WALLTIME  ELAPSED   LEFT      VCLUSTER     REASON
1f0c9a4e  training-run  Running  3      72:00:00  14:23:01  57:36:58  ml-training  —
20000000  eval          Pending  4      02:00:00  —         02:00:00  default      next: wants 4 nodes, 2 are free
";
        assert_eq!(listed, want);
        let failed =
            v1::Allocation { state: "Failed".into(), reason: "walltime_exceeded".into(), ended_at_ms: 1_772_704_813_000, ..running() };
        let completed = v1::Allocation { state: "Completed".into(), reason: "completed".into(), ..failed.clone() };
        let want = "\
ID        NAME          OWNER  STATE      NODES  WALLTIME  ELAPSED   LEFT  VCLUSTER     REASON
1f0c9a4e  training-run  ada    Failed     3      72:00:00  00:00:01  —     ml-training  walltime_exceeded
1f0c9a4e  training-run  ada    Completed  3      72:00:00  00:00:01  —     ml-training  —
";
        assert_eq!(allocations_table(&[failed, completed], NOW, true, TERSE), want);
        assert_eq!(allocations_table(&[], NOW, false, TERSE), "ID  NAME  STATE  NODES  WALLTIME  ELAPSED  LEFT  VCLUSTER\n");
    }

    #[test]
    fn live_allocations_come_first_and_waiting_ones_in_the_order_of_the_queue() {
        let ended = v1::Allocation { id: "e".into(), state: "Failed".into(), submitted_at_ms: 99, ..Default::default() };
        let waits = |id: &str, queue_position| v1::Allocation { id: id.into(), queue_position, ..pending() };
        let mut all = [ended, waits("q2", 2), waits("never", 0), waits("q1", 1), running()];
        live_first(&mut all);
        assert_eq!(all.each_ref().map(|a| short(&a.id)), ["1f0c9a4e", "q1", "q2", "never", "e"]);
    }

    #[test]
    fn lists_fit_on_a_narrow_screen() {
        let lost = v1::Allocation { status_message: "node n3 is Down: confirm-dead".into(), ..running() };
        let failed =
            v1::Allocation { state: "Failed".into(), reason: "prologue_failed on n1: no space left on device".into(), ..running() };
        let want = "\
ID        NAME      OWNER  STATE    NODES  LEFT      REASON
1f0c9a4e  trainin…  ada    Running  3      57:36:58  node n3 is Down:
                                                     confirm-dead
20000000  eval      bob    Pending  4      02:00:00  next: wants 4 nodes, 2 are
                                                     free
1f0c9a4e  trainin…  ada    Failed   3      —         prologue_failed on n1: no
                                                     space left on…
";
        let listed = allocations_table(&[lost, pending(), failed], NOW, true, NARROW);
        assert_eq!(listed, want);
        for line in listed.lines() {
            assert!(line.chars().count() <= 80, "{listed}");
        }
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
        assert_eq!(allocation_block(&running(), &LastStderr::default(), NOW), want);
    }

    #[test]
    fn an_ended_allocation_has_a_summary() {
        let ended = v1::Allocation {
            state: "Failed".into(),
            reason: "exit_code 3".into(),
            exit_code: Some(3),
            ended_at_ms: 1_772_704_813_000,
            usage_nodes: 2,
            memory_peak_bytes: Some(3 << 30),
            cpu_ms: Some(61_250),
            command: vec!["./run it".into(), "a'b".into(), "-n=3".into()],
            working_dir: "/home/ada".into(),
            script: "#!/bin/sh\nexit 3\n".into(),
            ..running()
        };
        let line = |launch, line: &str| LastStderrLine { launch, rank: 1, line: line.into() };
        let stderr = LastStderr { lines: vec![line(0, "no such file"), line(2, "segfault")], unread: None };
        let shown = allocation_block(&ended, &stderr, NOW);
        for want in [
            "Last stderr:     no such file\n",
            "                 segfault (rank 1 of launch 2)\n",
            "Memory peak:     3.0 GiB on one node (2 of 3 nodes reported it so far)\n",
            "Processor time:  61.2 s in all (2 of 3 nodes reported it so far)\n",
            "Script:          training-run (2 lines; -o json has them)\n",
            "Command:         './run it' 'a'\\''b' -n=3\n",
            "Directory:       /home/ada\n",
        ] {
            assert!(shown.contains(want), "{want}\n{shown}");
        }
        let unread = LastStderr { lines: vec![], unread: Some("the node is away".into()) };
        assert!(allocation_block(&ended, &unread, NOW).contains("Last stderr:     not read: the node is away\n"));
        let waits_again = v1::Allocation { nodes: vec![], state: "Suspended".into(), ..ended };
        let shown = allocation_block(&waits_again, &LastStderr::default(), NOW);
        assert!(shown.contains("Memory peak:     3.0 GiB (last attempt)\n"), "{shown}");
    }

    #[test]
    fn json_has_what_is_documented() {
        let share = Some(v1::Amount { cores: 2, memory_bytes: 1024, gpus: 0 });
        let a = v1::Allocation { exit_code: Some(0), requeue_count: 1, share, ..running() };
        let mut json = serde_json::to_value(AllocationJson::from(&a)).unwrap();
        // Separate: json! accepts only a limited number of fields.
        let apart =
            ["attempt", "attempts", "expected_start", "class_in_queue", "score"].map(|field| json.as_object_mut().unwrap().remove(field));
        let none = ["nodes_requested_max", "topology"].map(|field| json.as_object_mut().unwrap().remove(field));
        let null = || Some(serde_json::Value::Null);
        assert_eq!(apart, [null(), Some(serde_json::json!([])), null(), null(), null()]);
        assert_eq!(none, [null(), null()]);
        let waits = v1::Allocation { expected_start_ms: Some(1_772_704_812_034), ..pending() };
        assert_eq!(serde_json::to_value(AllocationJson::from(&waits)).unwrap()["expected_start"], "2026-03-05T10:00:12.034Z");
        assert_eq!(
            json,
            serde_json::json!({
                "id": "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88", "name": "training-run", "state": "Running", "reason": null,
                "owner": "ada", "nodes": ["n1", "n2", "n3"], "nodes_requested": 3, "tasks_per_node": 2, "exit_code": 0,
                "requeue_count": 1, "walltime_seconds": 259_200, "submitted_at": "2026-03-05T10:00:00.000Z",
                "claimed_at": "2026-03-05T10:00:01.000Z", "started_at": "2026-03-05T10:00:12.000Z", "ended_at": null,
                "tenant": null, "vcluster": "ml-training", "uenv": null, "uenv_sha256": null, "epoch": 4,
                "share": {"cores": 2, "memory_bytes": 1024, "gpus": 0}, "network_domain": null, "vni": null, "network_note": null,
                "on_isolation": null, "isolation_note": null,
                "expose": [],
                "checkpoint": null, "preempted_count": 0, "preemption": null, "held": false, "telemetry": null,
                "status_message": null, "queue_position": null, "ends_by": "2026-03-08T10:00:12.000Z",
                "memory_peak_bytes": null, "cpu_seconds": null, "command": null, "working_dir": null, "script": null, "last_stderr": null,
            })
        );
        let completed = v1::Allocation { state: "Completed".into(), reason: "completed".into(), vcluster: String::new(), ..running() };
        let json = serde_json::to_value(AllocationJson::from(&completed)).unwrap();
        assert_eq!((&json["reason"], &json["vcluster"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    }

    #[test]
    fn wide_has_every_column_and_more() {
        let listed = allocations_table(&[v1::Allocation { tenant: "physics".into(), ..running() }], NOW, false, WIDE);
        let want = "\
ID        NAME          OWNER  STATE    NODES  WALLTIME  ELAPSED   LEFT      VCLUSTER     TENANT   UENV  ON      REASON
1f0c9a4e  training-run  ada    Running  3      72:00:00  14:23:01  57:36:58  ml-training  physics  —     n[1-3]  —
";
        assert_eq!(listed, want);
    }
}
