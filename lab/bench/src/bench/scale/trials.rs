//! `--wide` and `--storm`: what is measured at one size in place of the constant load, and its figures and curves.
//!
//! The storm comes first: allocations that had to be given up would still be in the members' queues.

use super::crowd::{Plan, Started, start};
use super::drawing::{Drawing, curve};
use super::reached::{Reached, at_most, one};
use super::storm::{self, Storm};
use super::submissions;
use super::wide::{self, Course, Wide};
use crate::bench::figures::{Figure, Samples, Target};
use crate::bench::options::ScaleOptions;
use anyhow::Result;
use std::path::Path;

const LISTED_S: f64 = 3.0;
const GROWN_MB: f64 = 100.0;
const ENTRIES: f64 = 40.0;
/// Limit of the bytes that a follower receives for one change, relative to the smallest size.
const CHANGE_BYTES_RATIO: f64 = 2.0;
const BACK_S: f64 = 30.0;
const MEMBER_MB: f64 = 1000.0;
const COMMITS_MS: f64 = 200.0;
const REFUSED_S: f64 = 2.0;

/// The measurements at one size.
#[derive(Debug)]
pub struct Trials {
    /// Simulated agents.
    pub agents: usize,
    /// Members killed and restarted, if that was wanted.
    pub storm: Option<Storm>,
    /// Wide allocations, if they were wanted.
    pub wide: Option<Wide>,
}

/// Measures a cluster with this many simulated agents in `dir`.
pub async fn measure(dir: &Path, agents: usize, plan: &Plan, wanted: &ScaleOptions) -> Result<Trials> {
    let Started { mut members, mut crowd, token, .. } = Box::pin(start(dir, agents, plan)).await?;
    let storm = if wanted.storm { Some(Box::pin(storm::measure(&mut members, &mut crowd, plan)).await?) } else { None };
    let wide = if wanted.wide { Some(Box::pin(wide::measure(&members, &mut crowd, token)).await?) } else { None };
    Ok(Trials { agents, storm, wide })
}

/// What is simulated, and how it is counted.
pub fn notes(wanted: &ScaleOptions) -> Vec<String> {
    let mut notes = Vec::new();
    if wanted.wide {
        notes.push(
            "wide allocations: one core of each node, claimed by the bench as scheduler; a simulated agent prepares and releases at \
             once, and the head ends the work as soon as it runs. Log entries are those of the whole cluster meanwhile. A change of a \
             share: it is claimed, prepared, ended or released"
                .to_owned(),
        );
    }
    if wanted.storm {
        let ms = submissions::INTERVAL.as_millis();
        notes.push(format!(
            "members killed: a leader answers as soon as a majority has confirmed it; sessions are those of the simulated agents, which \
             connect again without waiting for each other, with the pauses of agents, on the processors of the members and from one address: \
             a member accepts fewer unfinished handshakes of one address than of many. The commits of \
             others are a submission every {ms} ms, and its cancellation. Nothing was committed: also where a client was connecting again"
        ));
    }
    notes
}

/// What was unusual at one size.
pub fn troubles(of: &Trials) -> Vec<String> {
    let agents = of.agents;
    let mut troubles = Vec::new();
    if let Some(rolling) = of.storm.as_ref().map(|storm| &storm.rolling)
        && let Some(why) = &rolling.why
    {
        let failed = rolling.failed;
        troubles.push(format!("{agents} agents: {failed} commits of others failed while members were restarted, the last: {why}"));
    }
    for course in of.wide.iter().flat_map(|wide| [&wide.one, &wide.many]) {
        troubles.extend(course.troubles.iter().take(3).map(|trouble| format!("{agents} agents, wide: {trouble}")));
    }
    troubles
}

/// The figures of all sizes, the smallest size first.
pub fn figures(measured: &[Trials]) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for of in measured {
        if let Some(storm) = &of.storm {
            figures.extend(storm_figures(of.agents, storm)?);
        }
        if let Some(wide) = &of.wide {
            let smallest = measured.first().filter(|first| first.agents < of.agents).and_then(|first| first.wide.as_ref());
            let smallest_bytes = |course: fn(&Wide) -> &Course| smallest.and_then(|wide| complete_change_bytes(course(wide)));
            let [one, many] = [smallest_bytes(|wide| &wide.one), smallest_bytes(|wide| &wide.many)];
            figures.extend(course_figures(of.agents, "one allocation of all", &wide.one, one)?);
            figures.extend(course_figures(of.agents, "100 allocations of a tenth", &wide.many, many)?);
        }
    }
    Ok(figures)
}

/// The bytes that a follower received for one change in a course that was not given up.
fn complete_change_bytes(course: &Course) -> Option<f64> {
    course.released.seconds()?;
    course.counted.as_ref()?.change_bytes
}

fn course_figures(agents: usize, what: &str, course: &Course, smallest_bytes: Option<f64>) -> Result<Vec<Figure>> {
    let named = |which: &str| format!("{agents} agents, {what}: {which}");
    let growth = at_most(GROWN_MB, "megabytes, not gigabytes");
    let entries = at_most(ENTRIES, "reports are committed together");
    let (growth_name, entries_name) = (named("growth of the largest member"), named("log entries until all have released it"));
    let mut figures = vec![
        course.listed.figure(&named("until each has its share"), at_most(LISTED_S, "10,000 agents too"))?,
        course.released.figure(&named("until all have released it"), None)?,
    ];
    let Some(counted) = &course.counted else {
        let why = match &course.released {
            Reached::Not(why) => why,
            Reached::After(_) => "not counted",
        };
        figures.push(Figure::not_measured(&growth_name, "MB", why, growth));
        figures.push(Figure::not_measured(&entries_name, "entries", why, entries));
        return Ok(figures);
    };
    let mut counts = vec![
        Figure::new(&growth_name, "MB", one(counted.grown_mb)?, vec![], growth),
        Figure::new(&entries_name, "entries", one(counted.entries as f64)?, vec![], entries),
        Figure::new(
            &named("processor time of all members"),
            "s",
            one(counted.members_s)?,
            vec![("all simulated agents", Some(one(counted.agents_s)?))],
            None,
        ),
    ];
    if let Some(bytes) = counted.change_bytes {
        let name = named("received by a follower for one change of a share");
        let own = counted.own_change_bytes.map(one).transpose()?;
        let peers = vec![("an agent of role node, over its watch", own)];
        counts.push(Figure::new(&name, "B", one(bytes)?, peers, change_target(smallest_bytes)));
    }
    figures.extend(counts.into_iter().map(|figure| course.released.complete(figure)));
    Ok(figures)
}

/// The target of the bytes for one change, which must not grow with the size; the smallest size has no target.
fn change_target(smallest_bytes: Option<f64>) -> Option<Target> {
    at_most((smallest_bytes? * CHANGE_BYTES_RATIO).round(), &format!("{CHANGE_BYTES_RATIO} times that of the smallest size"))
}

fn storm_figures(agents: usize, Storm { killed: storm, rolling: restarts }: &Storm) -> Result<Vec<Figure>> {
    let killed = |which: &str| format!("{agents} agents, all members killed: {which}");
    let rolling = |which: &str| format!("{agents} agents, one member after the other restarted: {which}");
    let mut back =
        storm.sessions.figure(&killed("from the first leader until all sessions are back"), at_most(BACK_S, "10,000 agents too"))?;
    back = with_peer(back, "until all watches are open again", storm.watches.seconds())?;
    let commits_name = killed("commits of others once there is a leader, 99 % of them");
    let commits_target = at_most(COMMITS_MS, "nobody else waits");
    let commits = match quantile(&storm.commits_ms, 0.99) {
        Some(p99) => {
            let samples = Samples { failed: storm.failed_commits, ..one(p99)? };
            let median = quantile(&storm.commits_ms, 0.5).map(one).transpose()?;
            let largest = quantile(&storm.commits_ms, 1.0).map(one).transpose()?;
            Figure::new(&commits_name, "ms", samples, vec![("the median", median), ("the longest", largest)], commits_target)
        }
        None => Figure::not_measured(&commits_name, "ms", "nothing was committed", commits_target),
    };
    let memory = Figure::new(
        &killed("the largest memory of a member"),
        "MB",
        one(storm.member_mb)?,
        vec![],
        at_most(MEMBER_MB, "10,000 agents too"),
    );
    let refused = Figure::new(
        &rolling("the longest time in which nothing was committed"),
        "s",
        one(restarts.refused_s)?,
        vec![],
        at_most(REFUSED_S, "submissions go on"),
    );
    Ok(vec![
        storm.leader.figure(&killed("from their start until one answers as leader"), None)?,
        back,
        storm.sessions.complete(memory),
        storm.leader.complete(commits),
        Figure::new(
            &killed("processor time of all members meanwhile"),
            "s",
            one(storm.members_s)?,
            vec![("all simulated agents", Some(one(storm.agents_s)?))],
            None,
        ),
        restarts.over.complete(refused),
        restarts.over.figure(&rolling("until the last one has what the others have"), None)?,
        restarts.sessions.figure(&rolling("from then until all sessions are open"), None)?,
    ])
}

/// The figure with a comparison in its unit, if both were measured.
fn with_peer(figure: Figure, name: &str, value: Option<f64>) -> Result<Figure> {
    let Some(value) = value.filter(|_| figure.incomplete.is_none()) else { return Ok(figure) };
    let Figure { name: own, unit, samples, target, .. } = figure;
    Ok(Figure::new(&own, unit, samples, vec![(name, Some(one(value)?))], target))
}

/// The value that this part (0 to 1) of the ascending values stays below; `None`: there are none.
fn quantile(ascending: &[f64], part: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    ascending.get((last as f64 * part) as usize).copied()
}

/// The curves over the sizes.
pub fn drawings(measured: &[Trials]) -> Vec<Drawing> {
    let of_storm = |name: &str, value: &dyn Fn(&Storm) -> Option<f64>| curve(name, measured, |m| m.agents, |m| value(m.storm.as_ref()?));
    let of_wide = |name: &str, value: &dyn Fn(&Course) -> Option<f64>, course: fn(&Wide) -> &Course| {
        curve(name, measured, |m| m.agents, |m| value(course(m.wide.as_ref()?)))
    };
    let both = |value: &dyn Fn(&Course) -> Option<f64>| {
        vec![of_wide("one of all agents", value, |wide| &wide.one), of_wide("100 of a tenth", value, |wide| &wide.many)]
    };
    // The counts of a course that was given up say nothing about the size.
    let counted = |course: &Course| course.counted.clone().filter(|_| course.released.seconds().is_some());
    vec![
        Drawing {
            name: "wide-listed",
            title: "Wide allocations: until each agent has its share",
            unit: "s",
            curves: both(&|c| c.listed.seconds()),
        },
        Drawing {
            name: "wide-memory",
            title: "Wide allocations: growth of the largest member",
            unit: "MB",
            curves: both(&|c| Some(counted(c)?.grown_mb)),
        },
        Drawing {
            name: "wide-entries",
            title: "Wide allocations: log entries until all have released them",
            unit: "entries",
            curves: both(&|c| Some(counted(c)?.entries as f64)),
        },
        Drawing {
            name: "wide-received",
            title: "Wide allocations: received by a follower for one change of a share",
            unit: "B",
            curves: both(&|c| counted(c)?.change_bytes),
        },
        Drawing {
            name: "storm-back",
            title: "All members killed: from the first leader",
            unit: "s",
            curves: vec![
                of_storm("until all sessions are back", &|s| s.killed.sessions.seconds()),
                of_storm("until all watches are", &|s| s.killed.watches.seconds()),
            ],
        },
        Drawing {
            name: "storm-memory",
            title: "All members killed: the largest memory of a member",
            unit: "MB",
            curves: vec![of_storm("the largest of three", &|s| Some(s.killed.member_mb))],
        },
        Drawing {
            name: "storm-commits",
            title: "All members killed: commits of others once there is a leader",
            unit: "ms",
            curves: vec![
                of_storm("median", &|s| quantile(&s.killed.commits_ms, 0.5)),
                of_storm("99 %", &|s| quantile(&s.killed.commits_ms, 0.99)),
            ],
        },
        Drawing {
            name: "storm-refused",
            title: "One member after the other restarted: the longest time without a commit",
            unit: "s",
            curves: vec![of_storm("nothing was committed", &|s| s.rolling.over.seconds().map(|_over| s.rolling.refused_s))],
        },
    ]
}

#[cfg(test)]
mod tests;
