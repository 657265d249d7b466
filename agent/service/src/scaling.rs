//! Scaled services: how many replicas are wanted, and, for people, how many there are and what the
//! loop waits for. All of it is in the service's own record.

use super::Api;
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_model::count::counted;
use lattice_model::duration::units_text;
use lattice_model::scaling::{Look, MISSING_ALERT, Reading, ScaleChange, ScaleMetric, ScalePolicy, Scaling, ScalingState, Wait};
use lattice_model::{Allocation, Timestamp};
use lattice_quorum_client::wire::Request as Ask;
use std::time::Duration;
use tonic::{Request, Status};

/// `AllocationService.Scale`. The quorum checks the bounds, and that it is a scaled service.
pub(super) async fn scale(api: &Api, request: Request<v1::ScaleRequest>) -> Result<v1::ScaleResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::ScaleRequest { key, replicas } = request.into_inner();
    let service = api.allocation(&caller, &key).await?;
    api.check(&caller, &service).await?;
    api.done(&Ask::from(Action::Scale { id: service.id, replicas, by: caller.principal })).await?;
    let policy = service.spec.scaling.as_deref().and_then(|scaling| scaling.policy.as_ref());
    Ok(v1::ScaleResponse {
        id: service.id.to_string(),
        before: service.scaling.as_deref().map_or(0, |state| state.wanted),
        metric: policy.map(|policy| policy.metric.to_string()).unwrap_or_default(),
    })
}

/// How many replicas there are, and what is wrong, in a few words. `first_waits`: why the first one that
/// waits does so.
pub(super) fn brief(state: &ScalingState, first_waits: Option<&str>) -> String {
    let count = format!("{} of {}", state.running, counted(state.wanted, "replica"));
    let is_missing = state.reading.as_ref().is_some_and(|reading| reading.missing >= MISSING_ALERT);
    match first_waits {
        Some(reason) => format!("{count}: {reason}"),
        None if state.early_ends > 0 => format!("{count}, {} ended early", state.early_ends),
        None if is_missing => format!("{count}, no metric"),
        None if state.oscillates() => format!("{count}, up and down"),
        None => count,
    }
}

/// How many replicas there are, and what the loop waits for: sentences, each on a line of its own. Empty
/// for other work.
pub(super) fn explanation(service: &Allocation, now: Timestamp) -> String {
    let (Some(scaling), Some(state)) = (service.spec.scaling.as_deref(), service.scaling.as_deref()) else { return String::new() };
    let short = service.id.short();
    let mut lines = vec![numbers(scaling, state)];
    match &scaling.policy {
        Some(policy) => lines.extend(of_loop(scaling, policy, state, now)),
        None => lines.push(format!("Their number changes with `lattice scale {short} N` alone.")),
    }
    lines.extend(state.change.as_ref().map(last_change));
    if state.early_ends > 0 {
        lines.push(format!(
            "Replicas end by themselves soon after they have begun, {} in a row; if that goes on, the service ends. \
             `lattice status {short} --replicas` lists them, `lattice logs '{short}[N]'` shows what one wrote.",
            state.early_ends
        ));
    }
    lines.extend(scaling.policy.as_ref().map(rule));
    lines.join("\n")
}

/// When the number of replicas changes by itself.
fn rule(policy: &ScalePolicy) -> String {
    let ScalePolicy { metric, target, interval_ms, up_window_ms, down_window_ms, down_threshold: _, cooldown_ms } = policy;
    format!(
        "{metric} is looked at every {}: above {target} for {}, a replica is added; below {} for {}, one leaves; {} lie between two changes.",
        seconds(*interval_ms),
        seconds(*up_window_ms),
        policy.floor(),
        seconds(*down_window_ms),
        seconds(*cooldown_ms)
    )
}

fn numbers(scaling: &Scaling, state: &ScalingState) -> String {
    let ScalingState { wanted, waiting, running, leaving, .. } = state;
    let verb = |number: u32, one: &str, many: &str| if number == 1 { one.to_owned() } else { many.to_owned() };
    let mut text = format!("{running} of {} {}", counted(*wanted, "wanted replica"), verb(*running, "has a node", "have nodes"));
    if *waiting > 0 {
        text += &format!(", {waiting} {} for nodes", verb(*waiting, "waits", "wait"));
    }
    if *leaving > 0 {
        text += &format!(", {leaving} {}", verb(*leaving, "leaves", "leave"));
    }
    let missing = wanted.saturating_sub(waiting.saturating_add(*running));
    if missing > 0 {
        text += &format!(", {missing} {} not created yet", verb(missing, "is", "are"));
    }
    format!("{text}; {} to {} are possible.", scaling.replicas_min, scaling.replicas_max)
}

fn seconds(ms: u64) -> String {
    units_text(Duration::from_secs(ms.div_ceil(1000)))
}

/// What the loop found, what it waits for, and what to do about it.
fn of_loop(scaling: &Scaling, policy: &ScalePolicy, state: &ScalingState, now: Timestamp) -> Vec<String> {
    let Some(reading) = &state.reading else {
        return vec![format!("{} was not looked at yet; the interval is {}.", policy.metric, seconds(policy.interval_ms))];
    };
    let one = match reading.look {
        Look::Above => "another replica is wanted",
        Look::Below => "one replica less is wanted",
        Look::Within | Look::Missing => "nothing changes",
    };
    let then = match state.waits_for(scaling, now) {
        Some(Wait::Fits) => "their number fits".to_owned(),
        Some(Wait::Missing) => "nothing changes before it has one".to_owned(),
        Some(Wait::Window(left)) => format!("{one} if it stays there for another {}", seconds(left)),
        Some(Wait::Cooldown(left)) => format!("the last change is recent, and the next one possible in {}", seconds(left)),
        Some(Wait::AtMost) => format!("{} are wanted, and no more are possible (--max-nodes)", scaling.replicas_max),
        Some(Wait::AtLeast) => format!("{} wanted, and no fewer are possible (--min-nodes)", counted_are(scaling.replicas_min)),
        Some(Wait::NotYet) => "no other replica is added before those that are wanted run".to_owned(),
        None => format!("{one} with the next look"),
    };
    let mut lines = vec![format!("{}: {then}.", found(policy, reading))];
    if reading.look == Look::Missing {
        lines.push(missing_advice(&policy.metric).to_owned());
    }
    if state.oscillates() {
        lines.push(format!(
            "Their number turned between up and down {} times in a row. Give the service another target, a longer cooldown or \
             longer windows, such as `lattice update ID --scale-cooldown 10m`.",
            state.alternations
        ));
    }
    lines
}

fn counted_are(number: u32) -> String {
    if number == 1 { "1 is".to_owned() } else { format!("{number} are") }
}

/// Where the metric is, without a full stop.
fn found(policy: &ScalePolicy, reading: &Reading) -> String {
    let (metric, target, floor, since) = (&policy.metric, policy.target, policy.floor(), reading.since);
    let value = reading.value.map(|value| format!(" (first value {value})")).unwrap_or_default();
    let text = match reading.look {
        Look::Above => format!("{metric} is above its target {target} since {since}{value}"),
        Look::Within => format!("{metric} is between {floor} and its target {target} since {since}{value}"),
        Look::Below => format!("{metric} is below {floor} since {since}{value}; its target is {target}"),
        Look::Missing => return format!("{metric} has no value since {since} ({})", reading.why),
    };
    // One or two looks without a value say little.
    if reading.missing > 0 { format!("{text}; the last look found no value ({})", reading.why) } else { text }
}

fn missing_advice(metric: &ScaleMetric) -> &'static str {
    match metric {
        ScaleMetric::GpuUtilization | ScaleMetric::CpuUtilization | ScaleMetric::ConnectionRate | ScaleMetric::QueueDepth => {
            "The agent of each replica must answer, and must be able to measure it: `lattice top 'ID[N]'` shows what one measures."
        }
        ScaleMetric::Stored(_) => {
            "The metrics store must answer, and must have series of the replicas: with the label allocation, which is a replica's id."
        }
    }
}

fn last_change(change: &ScaleChange) -> String {
    let ScaleChange { at, from, to, by, value } = change;
    let why = match (by, value) {
        (Some(by), _) => format!(", as {by} asked"),
        (None, Some(value)) => format!(", because the metric was {value}"),
        (None, None) => String::new(),
    };
    format!("The last change was from {from} to {to} at {at}{why}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::scaling::{ALTERNATIONS_ALERT, Drain};
    use lattice_model::{AllocationId, Amount, test_builders};

    fn reading(look: Look, value: Option<u64>) -> Option<Reading> {
        Some(Reading { look, since: Timestamp(60_000), value: value.map(Amount), why: String::new(), missing: 0 })
    }

    fn service(metric: Option<&str>, state: ScalingState) -> Allocation {
        let mut service = test_builders::allocation(AllocationId(uuid::Uuid::from_u128(1 << 96)));
        let policy = metric.map(|metric| ScalePolicy::new(metric.parse().unwrap(), Amount(800_000)));
        let scaling = Scaling { replicas_min: 2, replicas_max: 6, policy, drain: Drain::default() };
        test_builders::spec_of(&mut service).scaling = Some(Box::new(scaling));
        Allocation { scaling: Some(Box::new(state)), ..service }
    }

    fn lines(metric: Option<&str>, state: ScalingState, now_ms: u64) -> Vec<String> {
        explanation(&service(metric, state), Timestamp(now_ms)).lines().map(str::to_owned).collect()
    }

    fn steady() -> ScalingState {
        ScalingState { wanted: 3, running: 3, serving: 3, ..ScalingState::default() }
    }

    #[test]
    fn replicas_are_counted_in_a_few_words_and_what_is_wrong_comes_first() {
        assert_eq!(brief(&steady(), None), "3 of 3 replicas");
        let fewer = ScalingState { running: 2, waiting: 1, ..steady() };
        assert_eq!(brief(&fewer, Some("wants 1 node, 0 are free")), "2 of 3 replicas: wants 1 node, 0 are free");
        let missing = Reading { missing: MISSING_ALERT, ..reading(Look::Missing, None).unwrap() };
        let missing = ScalingState { reading: Some(missing), ..steady() };
        assert_eq!(brief(&missing, None), "3 of 3 replicas, no metric");
        assert_eq!(brief(&ScalingState { early_ends: 2, ..missing }, None), "3 of 3 replicas, 2 ended early");
        assert_eq!(brief(&ScalingState { alternations: ALTERNATIONS_ALERT, ..steady() }, None), "3 of 3 replicas, up and down");
    }

    #[test]
    fn the_numbers_of_replicas_are_a_sentence() {
        let text = |state| lines(None, state, 0)[0].clone();
        assert_eq!(text(steady()), "3 of 3 wanted replicas have nodes; 2 to 6 are possible.");
        let busy = ScalingState { wanted: 5, running: 1, waiting: 2, leaving: 1, ..ScalingState::default() };
        assert_eq!(
            text(busy),
            "1 of 5 wanted replicas has a node, 2 wait for nodes, 1 leaves, 2 are not created yet; 2 to 6 are possible."
        );
        assert_eq!(lines(None, steady(), 0)[1], "Their number changes with `lattice scale 00000001 N` alone.");
    }

    #[test]
    fn what_the_loop_waits_for_is_a_sentence_with_numbers() {
        let cpu = Some("cpu_utilization");
        let text = |reading, now_ms| lines(cpu, ScalingState { reading, ..steady() }, now_ms)[1].clone();
        assert_eq!(text(None, 0), "cpu_utilization was not looked at yet; the interval is 1 minute.");
        let above = "cpu_utilization is above its target 0.8 since 1970-01-01T00:01:00.000Z (first value 0.91): another replica is wanted";
        assert_eq!(text(reading(Look::Above, Some(910_000)), 100_000), format!("{above} if it stays there for another 80 seconds."));
        assert_eq!(text(reading(Look::Above, Some(910_000)), 200_000), format!("{above} with the next look."));
        assert_eq!(
            text(reading(Look::Below, Some(100_000)), 60_000),
            "cpu_utilization is below 0.4 since 1970-01-01T00:01:00.000Z (first value 0.1); its target is 0.8: one replica less is \
             wanted if it stays there for another 5 minutes."
        );
        assert!(text(reading(Look::Within, Some(500_000)), 0).ends_with(" (first value 0.5): their number fits."));
        let of = |state| lines(cpu, state, 60_000)[1].clone();
        let most = ScalingState { wanted: 6, running: 6, serving: 6, reading: reading(Look::Above, None), ..steady() };
        assert!(of(most).ends_with(": 6 are wanted, and no more are possible (--max-nodes)."));
        let least = ScalingState { wanted: 2, running: 2, serving: 2, reading: reading(Look::Below, None), ..steady() };
        assert!(of(least).ends_with(": 2 are wanted, and no fewer are possible (--min-nodes)."));
        let waits = ScalingState { running: 2, serving: 2, waiting: 1, reading: reading(Look::Above, None), ..steady() };
        assert!(of(waits).ends_with(": no other replica is added before those that are wanted run."));
        let change = Some(ScaleChange { at: Timestamp(60_000), from: 2, to: 3, by: None, value: Some(Amount(910_000)) });
        let recent = lines(cpu, ScalingState { reading: reading(Look::Above, None), change, ..steady() }, 100_000);
        assert!(recent[1].ends_with(": the last change is recent, and the next one possible in 140 seconds."), "{recent:?}");
        assert_eq!(recent[2], "The last change was from 2 to 3 at 1970-01-01T00:01:00.000Z, because the metric was 0.91.");
    }

    #[test]
    fn the_rule_comes_last_with_all_its_values() {
        let text = lines(Some("queue_depth"), steady(), 0);
        let rule = "queue_depth is looked at every 1 minute: above 0.8 for 2 minutes, a replica is added; below 0.4 for 5 minutes, one leaves; \
                    3 minutes lie between two changes.";
        assert_eq!(text.last().map(String::as_str), Some(rule));
        assert!(!lines(None, steady(), 0).iter().any(|line| line.contains("is looked at")));
    }

    #[test]
    fn a_missing_metric_and_oscillation_come_with_advice() {
        let missing = Reading { why: "the store does not answer".into(), ..reading(Look::Missing, None).unwrap() };
        let state = ScalingState { reading: Some(missing), alternations: ALTERNATIONS_ALERT, early_ends: 1, ..steady() };
        let text = lines(Some("q{a=\"b\"}"), state.clone(), 0);
        assert_eq!(
            text[1],
            "q{a=\"b\"} has no value since 1970-01-01T00:01:00.000Z (the store does not answer): nothing changes before it has one."
        );
        assert!(text[2].starts_with("The metrics store must answer"), "{text:?}");
        assert!(text[3].starts_with("Their number turned between up and down 5 times in a row."), "{text:?}");
        assert!(text[4].starts_with("Replicas end by themselves soon after they have begun, 1 in a row;"), "{text:?}");
        assert!(lines(Some("queue_depth"), state, 0)[2].starts_with("The agent of each replica must answer"));
    }
}
