//! `lattice update`. After a failure it continues with the next allocation; the exit code is that of the first failure.

use super::preempt::{print_done, report_failure};
use lattice_api::v1;
use lattice_api::v1::update_allocation_request::Walltime;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::local_clock::local_clock;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_syntax::args::update::{Changes, NewDeadline, NewWalltime, Update};
use lattice_cli_syntax::flags::tags_once;
use lattice_model::count::counted;
use lattice_model::duration::{clock_text, units_text};
use lattice_model::time::Timestamp;
use lattice_model::{ScaleMetric, millis};
use std::collections::BTreeMap;
use std::time::Duration;

pub async fn run(session: &Session, args: Update) -> Result<u8, Failure> {
    let Update { ids, changes } = args;
    let scaling = scaling_texts(&changes);
    let (clock, place) = (local_clock(), place_texts(&changes));
    let (scaled, reservation) = (scaling_request(&changes), changes.new_reservation());
    let Changes { walltime, preemption_class, name, project, tags, begin, deadline, nice, comment, .. } = changes;
    let begin = begin.map(|begin| begin.resolve("--begin", &clock)).transpose()?;
    let deadline = match deadline {
        Some(NewDeadline::At(time)) => Some(time.resolve("--deadline", &clock)?.0),
        Some(NewDeadline::None) => Some(0),
        None => None,
    };
    let walltime = walltime.map(new_walltime).transpose()?;
    let tags = tags_once(&tags)?;
    let client = session.connect().await?;
    let (mut done, mut now, mut exit) = (Vec::new(), BTreeMap::new(), 0);
    for typed in ids {
        let asked = match session.resolve_key(&typed) {
            Ok(key) => {
                let request = v1::UpdateAllocationRequest {
                    key,
                    walltime,
                    preemption_class,
                    name: name.clone(),
                    project: project.clone(),
                    tags: tags.clone().into_iter().collect(),
                    begin_ms: begin.map(|begin| begin.0),
                    deadline_ms: deadline,
                    nice,
                    comment: comment.clone(),
                    reservation: reservation.clone(),
                    ..scaled.clone()
                };
                answer(client.allocations().update(request)).await
            }
            Err(failure) => Err(failure),
        };
        match asked {
            Ok(v1::UpdateAllocationResponse { id, state, walltime_seconds, is_task_group, is_scaled }) => {
                let parts = match (is_task_group, is_scaled) {
                    (true, _) => "; lanes of it that have nodes keep what they had",
                    (false, true) => "; replicas of it that have nodes keep what they had",
                    (false, false) => "",
                };
                now.insert(id.clone(), (walltime_seconds, parts));
                done.push((id, state));
            }
            Err(failure) => exit = report_failure(failure, exit),
        }
    }
    let changed = |id: &String| {
        let (walltime_seconds, parts) = now.get(id).copied().unzip();
        let mut changed = changed_texts(walltime.and(walltime_seconds), preemption_class, name.as_deref(), &tags);
        changed.extend(project.as_ref().map(|name| if name.is_empty() { "no project".to_owned() } else { format!("the project {name}") }));
        changed.extend(begin.map(|begin| format!("the begin {begin}")));
        changed.extend(deadline.map(|ms| if ms == 0 { "no deadline".to_owned() } else { format!("the deadline {}", Timestamp(ms)) }));
        changed.extend(place.clone());
        // The bounds and the metric concern no replica.
        let parts = parts.filter(|_| !changed.is_empty());
        [changed, scaling.clone()].concat().join(", ") + parts.unwrap_or_default()
    };
    print_done(session, &done, |(id, _)| format!("Allocation {} has {}\n", short(id), changed(id)))?;
    Ok(exit)
}

fn new_walltime(typed: NewWalltime) -> Result<Walltime, Failure> {
    let seconds = |time: Duration| i64::try_from(time.as_secs()).map_err(|_| Failure::usage("--walltime: that is too long"));
    Ok(match typed {
        NewWalltime::Whole(time) => Walltime::WalltimeSeconds(time.as_secs()),
        NewWalltime::Longer(time) => Walltime::WalltimeMoreSeconds(seconds(time)?),
        NewWalltime::Shorter(time) => Walltime::WalltimeMoreSeconds(-seconds(time)?),
    })
}

/// Its place in the queue, its comment and its reservation, of what was to be changed.
fn place_texts(changes: &Changes) -> Vec<String> {
    let nice = changes.nice.map(|nice| format!("nice {nice}"));
    let comment = changes.comment.as_ref().map(|comment| if comment.is_empty() { "no comment" } else { "another comment" }.to_owned());
    let reservation = changes.new_reservation();
    let reservation = reservation.map(|name| if name.is_empty() { "no reservation".to_owned() } else { format!("the reservation {name}") });
    nice.into_iter().chain(comment).chain(reservation).collect()
}

/// The part of the request that is about how a service scales.
fn scaling_request(changes: &Changes) -> v1::UpdateAllocationRequest {
    v1::UpdateAllocationRequest {
        replicas_min: changes.min_nodes,
        replicas_max: changes.max_nodes,
        scale_metric: changes.scale_metric.as_ref().map(ScaleMetric::to_string),
        scale_target: changes.scale_target.map(|target| target.to_string()),
        scale_interval_ms: changes.scale_interval.map(millis),
        scale_up_window_ms: changes.scale_up_window.map(millis),
        scale_down_window_ms: changes.scale_down_window.map(millis),
        scale_down_threshold: changes.scale_down_threshold.map(|part| part.to_string()),
        scale_cooldown_ms: changes.scale_cooldown.map(millis),
        ..Default::default()
    }
}

/// How a service scales now, of what was to be changed.
fn scaling_texts(changes: &Changes) -> Vec<String> {
    let least = changes.min_nodes.map(|least| format!("at least {}", counted(least, "replica")));
    let most = changes.max_nodes.map(|most| format!("at most {}", counted(most, "replica")));
    let metric = changes.scale_metric.as_ref().map(|metric| format!("the metric {metric}"));
    let target = changes.scale_target.map(|target| format!("the target {target}"));
    let threshold = changes.scale_down_threshold.map(|part| format!("the threshold {part}"));
    let times = [
        ("a scale interval", changes.scale_interval),
        ("a scale-up window", changes.scale_up_window),
        ("a scale-down window", changes.scale_down_window),
        ("a cooldown", changes.scale_cooldown),
    ];
    let times = times.into_iter().filter_map(|(name, time)| Some(format!("{name} of {}", units_text(time?))));
    [least, most, metric, target, threshold].into_iter().flatten().chain(times).collect()
}

/// What it has now, of what else was to be changed.
fn changed_texts(
    walltime_seconds: Option<u64>,
    preemption_class: Option<u32>,
    name: Option<&str>,
    tags: &BTreeMap<String, String>,
) -> Vec<String> {
    let walltime = walltime_seconds.map(|seconds| format!("a walltime of {}", clock_text(Duration::from_secs(seconds))));
    let class = preemption_class.map(|class| format!("preemption class {class}"));
    let name = name.map(|name| format!("the name {name}"));
    let tags = tags.iter().map(|(tag, value)| match value.is_empty() {
        true => format!("no tag {tag}"),
        false => format!("the tag {tag}={value}"),
    });
    [walltime, class, name].into_iter().flatten().chain(tags).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_is_printed_as_it_is_now() {
        let none = BTreeMap::new();
        assert_eq!(changed_texts(Some(5400), None, None, &none), ["a walltime of 01:30:00"]);
        let all = changed_texts(Some(5400), Some(7), Some("night run"), &none);
        assert_eq!(all, ["a walltime of 01:30:00", "preemption class 7", "the name night run"]);
        assert_eq!(changed_texts(None, Some(0), None, &none), ["preemption class 0"]);
        let tags = [("a", "1"), ("b", "")].map(|(tag, value)| (tag.to_owned(), value.to_owned())).into();
        assert_eq!(changed_texts(None, None, None, &tags), ["the tag a=1", "no tag b"]);
    }

    #[test]
    fn bounds_and_a_target_are_printed_as_they_are_now() {
        let none = Changes::default();
        assert!(place_texts(&none).is_empty());
        assert!(scaling_texts(&none).is_empty());
        let taken_away = Changes { no_reservation: true, ..none };
        assert_eq!(place_texts(&taken_away), ["no reservation"]);
        let none = Changes { no_reservation: false, ..taken_away };
        let all = Changes { min_nodes: Some(1), max_nodes: Some(6), scale_target: "0.70".parse().ok(), ..none };
        assert_eq!(scaling_texts(&all), ["at least 1 replica", "at most 6 replicas", "the target 0.7"]);
        assert_eq!(scaling_request(&all).scale_target.as_deref(), Some("0.7"));
        let minutes = |count: u64| Some(Duration::from_secs(60 * count));
        let other = Changes {
            scale_metric: "queue_depth".parse().ok(),
            scale_up_window: minutes(1),
            scale_cooldown: minutes(2),
            ..Changes::default()
        };
        assert_eq!(scaling_texts(&other), ["the metric queue_depth", "a scale-up window of 1 minute", "a cooldown of 2 minutes"]);
        let request = scaling_request(&other);
        assert_eq!((request.scale_metric.as_deref(), request.scale_up_window_ms), (Some("queue_depth"), Some(60_000)));
        assert_eq!((request.scale_cooldown_ms, request.scale_down_window_ms), (Some(120_000), None));
    }

    #[test]
    fn a_difference_has_a_sign() {
        let hour = Duration::from_secs(3600);
        assert_eq!(new_walltime(NewWalltime::Whole(hour)).unwrap(), Walltime::WalltimeSeconds(3600));
        assert_eq!(new_walltime(NewWalltime::Longer(hour)).unwrap(), Walltime::WalltimeMoreSeconds(3600));
        assert_eq!(new_walltime(NewWalltime::Shorter(hour)).unwrap(), Walltime::WalltimeMoreSeconds(-3600));
    }
}
