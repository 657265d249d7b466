//! Scaled services: how many replicas one has, the reading of its metric, and the list of its replicas.

use super::state::reason;
use super::values::{filled, folded, short, time};
use super::walltime::elapsed;
use crate::output::TableSize;
use crate::table::{Fit, Table, shortened};
use lattice_api::allocation::state_from_name;
use lattice_api::spec::scaling_request;
use lattice_api::v1;
use lattice_model::CheckpointSignal;
use lattice_model::count::counted;
use lattice_model::duration::units_text;
use lattice_model::scaling::{ALTERNATIONS_ALERT, ScalePolicy, Scaling};
use lattice_model::time::Timestamp;
use std::time::Duration;

/// Characters of a metric's name in a block of rows.
const METRIC_CHARS_MAX: usize = 40;

/// How the table of replicas is made narrower.
const REPLICAS_FIT: Fit<'_> = Fit { left_out: &["ELAPSED"], shortened: &[], wrapped: &[("NODE", 8), ("REASON", 16)], left_out_last: &[] };

/// Whether it is a scaled service.
pub fn is_scaled(a: &v1::Allocation) -> bool {
    a.scaling.is_some()
}

/// How many of the wanted replicas have nodes; `None`: it is no scaled service, or it has ended.
pub fn replicas_text(a: &v1::Allocation) -> Option<String> {
    let state = a.scaling_state.as_ref().filter(|_| !has_ended(a))?;
    Some(format!("{} of {}", state.running, counted(state.wanted, "replica")))
}

fn has_ended(a: &v1::Allocation) -> bool {
    state_from_name(&a.state).is_ok_and(|state| state.is_terminal())
}

/// How it scales, as the model has it; `None`: the agent's text is not understood.
fn request(a: &v1::Allocation) -> Option<Scaling> {
    a.scaling.as_ref().and_then(|scaling| scaling_request(scaling).ok())
}

/// Rows about a scaled service; none for other work.
pub fn scaling_rows(a: &v1::Allocation) -> Vec<(&'static str, String)> {
    let Some(scaling) = request(a) else { return Vec::new() };
    let absent = v1::ScalingState::default();
    let state = a.scaling_state.as_ref().unwrap_or(&absent);
    let is_over = has_ended(a);
    let bounds = format!("{} to {}", scaling.replicas_min, scaling.replicas_max);
    let replicas = if is_over { bounds } else { format!("{}; {} wanted ({bounds})", numbers(state), state.wanted) };
    let metric = match &scaling.policy {
        Some(policy) => by_metric(policy),
        None => format!("`lattice scale {} N`", short(&a.id)),
    };
    let mut rows = vec![("Replicas", replicas), ("Scales by", metric)];
    if let Some(policy) = scaling.policy.as_ref().filter(|_| !is_over) {
        rows.extend(reading_rows(policy, state.reading.as_ref()));
    }
    rows.push(("Last change", state.change.as_ref().map(change_text).unwrap_or_default()));
    if state.alternations >= ALTERNATIONS_ALERT && !is_over {
        rows.extend([
            ("Changes", format!("turned between up and down {} times in a row", state.alternations)),
            ("", format!("`lattice explain {}` says more", short(&a.id))),
        ]);
    }
    if state.early_ends > 0 {
        rows.push(("Early ends", format!("{} in a row, soon after they had begun", counted(state.early_ends, "replica"))));
    }
    rows
}

/// `3 have nodes, 1 waits for a node, 1 leaves`.
fn numbers(state: &v1::ScalingState) -> String {
    let of = |number: u32, one: &str, many: &str| format!("{number} {}", if number == 1 { one } else { many });
    let waiting = (state.waiting > 0).then(|| of(state.waiting, "waits for a node", "wait for nodes"));
    let leaving = (state.leaving > 0).then(|| of(state.leaving, "leaves", "leave"));
    let all = [Some(of(state.running, "has a node", "have nodes")), waiting, leaving];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn by_metric(policy: &ScalePolicy) -> String {
    let metric = shortened(&policy.metric.to_string(), METRIC_CHARS_MAX);
    format!("{metric}: more above {}, fewer below {}", policy.target, policy.floor())
}

/// Rows about the last reading of the metric.
fn reading_rows(policy: &ScalePolicy, reading: Option<&v1::MetricReading>) -> Vec<(&'static str, String)> {
    let Some(reading) = reading else { return vec![("Metric", "not looked at yet".to_owned())] };
    let since = time(reading.since_ms).map(|at| format!(" since {at}")).unwrap_or_default();
    let value = reading.value.map(|value| format!(" (first value {value})")).unwrap_or_default();
    let (target, floor) = (policy.target, policy.floor());
    let text = match reading.look.as_str() {
        "above" => format!("above {target}{since}{value}"),
        "below" => format!("below {floor}{since}{value}"),
        "within" => format!("{floor} to {target}{since}{value}"),
        look => format!("{look}{since}"),
    };
    let why = (reading.missing > 0).then(|| ("", reading.why.clone()));
    [("Metric", text)].into_iter().chain(why).collect()
}

/// `2 to 3 at 2026-03-05T10:00:12.000Z by ada`.
fn change_text(change: &v1::ScaleChange) -> String {
    let at = time(change.at_ms).unwrap_or_default();
    let why = match (filled(&change.by), change.value) {
        (Some(by), _) => format!(" by {by}"),
        (None, Some(value)) => format!(" (the metric was {value})"),
        (None, None) => String::new(),
    };
    format!("{} to {} at {at}{why}", change.from, change.to)
}

/// Where to see more of a scaled service; empty for other work.
pub fn service_text(a: &v1::Allocation) -> String {
    if !is_scaled(a) {
        return String::new();
    }
    let id = short(&a.id);
    format!("\n`lattice status {id} --replicas` lists its replicas;\n`lattice explain {id}` says what it waits for.\n")
}

/// The replicas of a service.
pub fn replicas_table(replicas: &[v1::Allocation], now: Timestamp, size: TableSize) -> String {
    let mut table = Table::new(&["REPLICA", "ID", "STATE", "ELAPSED", "NODE", "REASON"]);
    for replica in replicas {
        table.row(vec![
            replica.replica_number.to_string(),
            short(&replica.id).to_owned(),
            replica.state.clone(),
            elapsed(replica, now).unwrap_or_default(),
            folded(&replica.nodes),
            filled(&replica.status_message).map_or_else(|| reason(replica), str::to_owned),
        ]);
    }
    table.on_screen(&["REASON"], &REPLICAS_FIT, size)
}

/// Living replicas first, by their number; then those that have ended, the latest first.
pub fn living_replicas_first(replicas: &mut [v1::Allocation]) {
    replicas.sort_by_key(|replica| match has_ended(replica) {
        false => (false, replica.replica_number),
        true => (true, u32::MAX - replica.replica_number),
    });
}

/// Rows about a specification of a scaled service.
pub fn rows_of_spec(scaling: Option<&v1::Scaling>) -> Vec<(&'static str, String)> {
    let Some(scaling) = scaling.and_then(|scaling| scaling_request(scaling).ok()) else { return Vec::new() };
    let text = |ms: u64| units_text(Duration::from_millis(ms));
    let mut rows = vec![("Replicas", format!("{} to {}, on a node each", scaling.replicas_min, scaling.replicas_max))];
    match &scaling.policy {
        None => rows.push(("Scales by", "`lattice scale ID N`".to_owned())),
        Some(policy) => rows.extend([
            ("Scales by", by_metric(policy)),
            ("Interval", text(policy.interval_ms)),
            ("Windows", format!("{} above, {} below", text(policy.up_window_ms), text(policy.down_window_ms))),
            ("Cooldown", text(policy.cooldown_ms)),
        ]),
    }
    let signal = scaling.drain.signal.and_then(CheckpointSignal::of_number);
    let signal = signal.map(|signal| format!("{signal}, ")).unwrap_or_default();
    rows.push(("Drain", format!("{signal}{} to end by itself", text(scaling.drain.grace_ms))));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Width;
    use crate::table::block;
    use lattice_api::json::{ScalingJson, ScalingStateJson};
    use lattice_api::test_builders::{NOW, pending, running, service};

    fn lines(a: &v1::Allocation) -> String {
        block(&scaling_rows(a))
    }

    #[test]
    fn a_service_says_how_many_replicas_it_has_and_shows_its_metric() {
        let want = "\
Replicas:     3 have nodes, 1 waits for a node, 2 leave; 4 wanted (2 to 6)
Scales by:    cpu_utilization: more above 0.8, fewer below 0.4
Metric:       above 0.8 since 2026-03-05T10:00:12.000Z (first value 0.91)
Last change:  3 to 4 at 2026-03-05T10:00:11.000Z (the metric was 0.93)
";
        assert_eq!(lines(&service()), want);
        assert_eq!(replicas_text(&service()).as_deref(), Some("3 of 4 replicas"));
        let with = |change: fn(&mut v1::ScalingState)| {
            let mut service = service();
            change(service.scaling_state.as_mut().unwrap());
            lines(&service)
        };
        let missing = with(|state| {
            let reading = state.reading.as_mut().unwrap();
            (reading.look, reading.value, reading.why) = ("missing".into(), None, "the store is away".into());
            reading.missing = 3;
        });
        assert!(missing.contains("Metric:       missing since 2026-03-05T10:00:12.000Z\n              the store is away\n"), "{missing}");
        let within = with(|state| state.reading.as_mut().unwrap().look = "within".into());
        assert!(within.contains("Metric:       0.4 to 0.8 since 2026-03-05T10:00:12.000Z (first value 0.91)\n"), "{within}");
        assert!(with(|state| state.reading = None).contains("Metric:       not looked at yet\n"));
        let by_hand = with(|state| state.change.as_mut().unwrap().by = "ada".into());
        assert!(by_hand.contains("3 to 4 at 2026-03-05T10:00:11.000Z by ada\n"), "{by_hand}");
        let ill = with(|state| (state.alternations, state.early_ends) = (5, 2));
        let turned = "Changes:      turned between up and down 5 times in a row\n              `lattice explain 1f0c9a4e` says more\n";
        assert!(ill.contains(turned), "{ill}");
        assert!(ill.contains("Early ends:   2 replicas in a row, soon after they had begun\n"), "{ill}");
        for text in [missing, within, by_hand, ill] {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
    }

    #[test]
    fn a_service_without_a_metric_is_scaled_by_hand_and_an_ended_one_by_nobody() {
        let mut by_hand = service();
        by_hand.scaling.as_mut().unwrap().policy = None;
        assert!(lines(&by_hand).contains("Scales by:    `lattice scale 1f0c9a4e N`\n"), "{}", lines(&by_hand));
        assert!(!lines(&by_hand).contains("Metric"));
        let ended = v1::Allocation { state: "Cancelled".into(), ..service() };
        assert!(lines(&ended).starts_with("Replicas:     2 to 6\n") && !lines(&ended).contains("Metric"), "{}", lines(&ended));
        assert_eq!((replicas_text(&ended), scaling_rows(&running()), replicas_text(&running())), (None, Vec::new(), None));
        assert_eq!(service_text(&running()), "");
        assert!(service_text(&service()).lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn replicas_are_listed_by_number_and_ended_ones_last() {
        let replica = |number, of: v1::Allocation| v1::Allocation { replica_of: "1f0c".into(), replica_number: number, ..of };
        let one = |of: v1::Allocation| v1::Allocation { nodes: vec!["n3".into()], ..of };
        let ended = |number| {
            let failed =
                v1::Allocation { state: "Failed".into(), reason: "exit_code 3".into(), ended_at_ms: 1_772_704_813_000, ..running() };
            replica(number, one(failed))
        };
        let mut all = [ended(1), replica(12, pending()), ended(2), replica(0, one(running()))];
        living_replicas_first(&mut all);
        let want = "\
REPLICA  ID        STATE    ELAPSED   NODE  REASON
0        1f0c9a4e  Running  14:23:01  n3    —
12       20000000  Pending  —         —     next: wants 4 nodes, 2 are free
2        1f0c9a4e  Failed   00:00:01  n3    exit_code 3
1        1f0c9a4e  Failed   00:00:01  n3    exit_code 3
";
        assert_eq!(replicas_table(&all, NOW, TableSize { width: Width::Terse, columns: None }), want);
        assert_eq!(replicas_table(&[], NOW, TableSize { width: Width::Terse, columns: None }), "REPLICA  ID  STATE  ELAPSED  NODE\n");
        let narrow = replicas_table(&all, NOW, TableSize { width: Width::Terse, columns: Some(60) });
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
    }

    #[test]
    fn a_specification_shows_its_defaults() {
        let rows = block(&rows_of_spec(service().scaling.as_ref()));
        let want = "\
Replicas:   2 to 6, on a node each
Scales by:  cpu_utilization: more above 0.8, fewer below 0.4
Interval:   1 minute
Windows:    2 minutes above, 5 minutes below
Cooldown:   3 minutes
Drain:      SIGUSR1, 30 seconds to end by itself
";
        assert_eq!(rows, want);
        assert_eq!(rows_of_spec(None), Vec::new());
    }

    #[test]
    fn json_has_numbers() {
        let json = serde_json::to_value(ScalingJson::of(service().scaling.as_ref())).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "replicas_min": 2, "replicas_max": 6, "drain_signal": "SIGUSR1", "drain_grace_ms": 30_000,
                "policy": {
                    "metric": "cpu_utilization", "target": 0.8, "down_threshold": 0.5, "interval_ms": 60_000, "up_window_ms": 120_000,
                    "down_window_ms": 300_000, "cooldown_ms": 180_000,
                },
            })
        );
        let json = serde_json::to_value(service().scaling_state.as_ref().map(ScalingStateJson::from)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "wanted": 4, "waiting": 1, "running": 3, "leaving": 2, "alternations": 0, "early_ends": 0,
                "reading": { "look": "above", "since": "2026-03-05T10:00:12.000Z", "value": 0.91, "why": null, "missing": 0 },
                "change": { "at": "2026-03-05T10:00:11.000Z", "from": 3, "to": 4, "by": null, "value": 0.93 },
            })
        );
    }
}
