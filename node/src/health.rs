//! A node's health by its checks: what keeps new work off it, and since when.
//!
//! ```text
//!   well ──critical──▶ unwell ──not critical, twice in a row──▶ well
//! ```
//!
//! One bad result is enough, because the next job would suffer; one good result is not, because a
//! fault that comes and goes is not over.
//!
//! Some findings ask for a drain of the node: once, until the check that found it is ok again. If
//! an operator lifts that drain meanwhile, the node does not ask again, not even after a restart of
//! the agent: [`OwnDrain`] is stored.

use lattice_model::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How many results in a row that are not critical make a check ok again.
const OK_RESULTS_MIN: u32 = 2;
/// The longest text about one check, and about everything that keeps work off, in bytes.
const WHY_BYTES_MAX: usize = 200;
const UNWELL_BYTES_MAX: usize = 500;
/// The longest reason for a drain, in bytes: below the quorum's limit of 256 for a hold's reason.
const DRAIN_BYTES_MAX: usize = 250;

/// The result of one run of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing is wrong.
    Ok,
    /// There is nothing to check here, and why.
    Unsupported(String),
    /// Reported only: work continues, and new work may begin.
    Warning(String),
    /// No new work until this is over.
    Critical(String),
    /// As critical, and the node asks to be drained: it must be emptied, then restarted or
    /// repaired.
    Drain(String),
    /// The hardware failed: as critical, and the node is Down until an operator declares it
    /// repaired.
    Failure(String),
}

/// The state of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its last result.
    pub finding: Finding,
    /// Why it keeps work off; set until the check is ok again.
    pub critical: Option<String>,
    /// Since when it has this state.
    pub since: Timestamp,
    /// How many results in a row were not critical.
    wells: u32,
}

/// The drains that a node asked for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OwnDrain {
    /// When it last asked: each request has a different time.
    pub asked: Timestamp,
    /// The checks for which it asked and that are not ok again.
    pub checks: BTreeSet<String>,
}

/// All checks of a node, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    checks: BTreeMap<String, Check>,
    own_drain: OwnDrain,
}

impl Health {
    /// The health of a node that has asked for these drains; no check has run yet.
    pub fn of(own_drain: OwnDrain) -> Self {
        Self { checks: BTreeMap::new(), own_drain }
    }

    /// The drains that it asked for.
    pub fn own_drain(&self) -> &OwnDrain {
        &self.own_drain
    }

    /// Applies the result of a check at `now`.
    pub fn found(&mut self, now: Timestamp, name: &str, finding: Finding) {
        let finding = match finding {
            Finding::Ok => Finding::Ok,
            Finding::Unsupported(why) => Finding::Unsupported(bounded(why, WHY_BYTES_MAX)),
            Finding::Warning(why) => Finding::Warning(bounded(why, WHY_BYTES_MAX)),
            Finding::Critical(why) => Finding::Critical(bounded(why, WHY_BYTES_MAX)),
            Finding::Drain(why) => Finding::Drain(bounded(why, WHY_BYTES_MAX)),
            Finding::Failure(why) => Finding::Failure(bounded(why, WHY_BYTES_MAX)),
        };
        let known = self.checks.remove(name);
        let before = known.as_ref().and_then(|c| c.critical.clone());
        // After a restart the agent does not know its earlier findings, only that it asked for a
        // drain.
        let counts_wells = before.is_some() || self.own_drain.checks.contains(name);
        let (critical, wells) = match &finding {
            Finding::Critical(why) | Finding::Drain(why) | Finding::Failure(why) => (Some(why.clone()), 0),
            Finding::Ok | Finding::Unsupported(_) | Finding::Warning(_) if counts_wells => {
                let wells = known.as_ref().map_or(0, |c| c.wells) + 1;
                (before.filter(|_| wells < OK_RESULTS_MIN), wells)
            }
            Finding::Ok | Finding::Unsupported(_) | Finding::Warning(_) => (None, 0),
        };
        let state = |f: &Finding, critical: bool| (std::mem::discriminant(f), critical);
        let since =
            known.filter(|c| state(&c.finding, c.critical.is_some()) == state(&finding, critical.is_some())).map_or(now, |c| c.since);
        if wells >= OK_RESULTS_MIN {
            self.own_drain.checks.remove(name);
        } else if matches!(finding, Finding::Drain(_)) && self.own_drain.checks.insert(name.to_owned()) {
            self.own_drain.asked = Timestamp(now.0.max(self.own_drain.asked.0.saturating_add(1)));
        }
        self.checks.insert(name.to_owned(), Check { finding, critical, since, wells });
    }

    /// All checks, by name.
    pub fn checks(&self) -> impl Iterator<Item = (&str, &Check)> {
        self.checks.iter().map(|(name, check)| (name.as_str(), check))
    }

    /// Why the hardware counts as failed, by the latest results; `None`: it does not.
    pub fn failed(&self) -> Option<String> {
        let failure = |(name, check): (&str, &Check)| match &check.finding {
            Finding::Failure(why) => Some(format!("{name}: {why}")),
            Finding::Ok | Finding::Unsupported(_) | Finding::Warning(_) | Finding::Critical(_) | Finding::Drain(_) => None,
        };
        let failures: Vec<String> = self.checks().filter_map(failure).collect();
        (!failures.is_empty()).then(|| bounded(failures.join("; "), UNWELL_BYTES_MAX))
    }

    /// Why the node must be drained, and when it last asked for that; `None`: it need not be.
    pub fn drains(&self) -> Option<(Timestamp, String)> {
        let asks = |name: &str| self.own_drain.checks.contains(name);
        let of = self.checks().filter_map(|(name, check)| Some(format!("{name}: {}", check.critical.as_ref().filter(|_| asks(name))?)));
        // A semicolon separates the reasons of a hold.
        let why: Vec<String> = of.map(|why| why.replace("; ", ", ")).collect();
        (!why.is_empty()).then(|| (self.own_drain.asked, bounded(why.join(", "), DRAIN_BYTES_MAX)))
    }

    /// What keeps new work off the node; `None`: nothing.
    pub fn unwell(&self) -> Option<String> {
        let critical: Vec<String> = self.checks().filter_map(|(name, c)| Some(format!("{name}: {}", c.critical.as_ref()?))).collect();
        (!critical.is_empty()).then(|| bounded(critical.join("; "), UNWELL_BYTES_MAX))
    }
}

/// Counts how often something happened within a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    length_ms: u64,
    counter: Option<u64>,
    events: VecDeque<(Timestamp, u64)>,
}

impl Window {
    /// A window of `length_ms` milliseconds.
    pub fn new(length_ms: u64) -> Self {
        Self { length_ms, counter: None, events: VecDeque::new() }
    }

    /// Records the value of a counter that only rises or restarts from 0. Returns how much it rose
    /// within the window. Its value at the first call is from before the window.
    pub fn counted(&mut self, now: Timestamp, value: u64) -> u64 {
        let rose = match self.counter.replace(value) {
            Some(before) if value >= before => value - before,
            Some(_) => value,
            None => 0,
        };
        if rose > 0 {
            self.events.push_back((now, rose));
        }
        self.events.retain(|(at, _)| now.0.saturating_sub(at.0) <= self.length_ms);
        self.events.iter().fold(0, |all, (_, rose)| all.saturating_add(*rose))
    }
}

fn bounded(mut text: String, most: usize) -> String {
    text.retain(|c| !c.is_control());
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn critical(why: &str) -> Finding {
        Finding::Critical(why.to_owned())
    }

    #[test]
    fn one_critical_result_keeps_work_off_until_two_in_a_row_are_not_critical() {
        let mut health = Health::default();
        let mut look = |at, finding| {
            health.found(Timestamp(at), "disk", finding);
            health.unwell()
        };
        assert_eq!(look(1, Finding::Ok), None);
        assert_eq!(look(2, critical("full")).as_deref(), Some("disk: full"));
        assert_eq!(look(3, Finding::Ok).as_deref(), Some("disk: full"));
        assert_eq!(look(4, critical("full again")).as_deref(), Some("disk: full again"));
        assert_eq!(look(5, Finding::Warning("little".into())).as_deref(), Some("disk: full again"));
        assert_eq!(look(6, Finding::Ok), None);
        assert_eq!(look(7, Finding::Unsupported("none".into())), None);
    }

    #[test]
    fn a_failure_is_critical_and_counts_as_failed_only_while_it_is_found() {
        let mut health = Health::default();
        health.found(Timestamp(1), "disk", critical("full"));
        assert_eq!(health.failed(), None);
        health.found(Timestamp(2), "ecc", Finding::Failure("uncorrectable".to_owned()));
        assert_eq!(health.failed().as_deref(), Some("ecc: uncorrectable"));
        assert_eq!(health.unwell().as_deref(), Some("disk: full; ecc: uncorrectable"));
        health.found(Timestamp(3), "ecc", Finding::Ok);
        assert_eq!((health.failed(), health.unwell().as_deref()), (None, Some("disk: full; ecc: uncorrectable")));
    }

    #[test]
    fn a_drain_is_requested_once_until_its_check_is_well_also_after_a_restart() {
        let mut health = Health::default();
        let drain = || Finding::Drain("XID 79; hot".to_owned());
        let look = |health: &mut Health, at, name, finding| {
            health.found(Timestamp(at), name, finding);
            health.drains().map(|(asked, why)| (asked.0, why))
        };
        let both = |asked| Some((asked, "gpu 0: XID 79, hot, gpu 1: XID 79, hot".to_owned()));
        let first = Some((5, "gpu 0: XID 79, hot".to_owned()));
        assert_eq!(look(&mut health, 4, "disk", critical("full")), None);
        assert_eq!(look(&mut health, 5, "gpu 0", drain()), first);
        assert_eq!(look(&mut health, 6, "gpu 0", drain()), first, "the same");
        assert_eq!(look(&mut health, 6, "gpu 1", drain()), both(6), "another one");
        // The next agent finds the problem gone once, and then back: that is not a new request.
        let mut flapping = Health::of(health.own_drain().clone());
        assert_eq!(look(&mut flapping, 80, "gpu 0", Finding::Ok), None);
        assert_eq!(look(&mut flapping, 81, "gpu 0", drain()), Some((6, "gpu 0: XID 79, hot".to_owned())));
        // The next agent finds the same problems, one after the other.
        let mut next = Health::of(health.own_drain().clone());
        assert_eq!(next.drains(), None);
        assert_eq!(look(&mut next, 90, "gpu 0", drain()), Some((6, "gpu 0: XID 79, hot".to_owned())));
        assert_eq!(look(&mut next, 91, "gpu 1", drain()), both(6));
        // One check is ok twice. Then it fails again, while the clock has gone back.
        assert_eq!(look(&mut next, 92, "gpu 0", Finding::Ok), both(6), "not yet");
        assert_eq!(look(&mut next, 93, "gpu 0", Finding::Ok), Some((6, "gpu 1: XID 79, hot".to_owned())));
        assert_eq!(look(&mut next, 3, "gpu 0", drain()), both(7));
        for name in ["gpu 0", "gpu 0", "gpu 1", "gpu 1"] {
            look(&mut next, 94, name, Finding::Warning("lost".to_owned()));
        }
        assert_eq!((next.drains(), next.own_drain().checks.len()), (None, 0));
    }

    #[test]
    fn since_is_when_the_state_changed() {
        let mut health = Health::default();
        for (at, finding) in [(1, critical("a")), (2, critical("b")), (3, Finding::Ok)] {
            health.found(Timestamp(at), "x", finding);
        }
        let since = |health: &Health| health.checks().next().map(|(_, c)| c.since);
        assert_eq!(since(&health), Some(Timestamp(3)));
        health.found(Timestamp(4), "x", Finding::Ok);
        assert_eq!(since(&health), Some(Timestamp(4)), "it no longer keeps work off");
        health.found(Timestamp(5), "x", Finding::Ok);
        assert_eq!(since(&health), Some(Timestamp(4)));
    }

    #[test]
    fn texts_are_bounded_and_have_no_control_characters() {
        let mut health = Health::default();
        for n in 0..10 {
            health.found(Timestamp(1), &n.to_string(), critical(&"\u{1b}é".repeat(1000)));
        }
        let unwell = health.unwell().unwrap();
        assert!(unwell.len() <= UNWELL_BYTES_MAX && !unwell.contains('\u{1b}'), "{unwell}");
    }

    #[test]
    fn a_window_adds_up_how_much_the_counter_rose_lately() {
        let mut window = Window::new(100);
        let mut counted = |at, value| window.counted(Timestamp(at), value);
        assert_eq!(counted(0, 1000), 0, "it happened before");
        assert_eq!(counted(10, 1003), 3);
        assert_eq!(counted(60, 1005), 5);
        assert_eq!(counted(111, 1005), 2, "the first increase is too long ago");
        assert_eq!(counted(120, 4), 6, "the driver was reloaded");
    }
}
