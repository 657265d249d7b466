//! The run lease: how it is extended, and the effect of its lapse.

use crate::bed::{Bed, Setting, eventually};
use lattice_model::RankOutcome;
use lattice_runtime::exits::{self, ExitRecord};
use lattice_runtime::identity;
use lattice_runtime::shim::{FromShim, LogStream, StopReason, ToShim, boottime_ms};

fn leased() -> Bed {
    let mut bed = Bed::new(Setting { run_lease: true, ..Setting::default() });
    let messages = bed.agent.synced();
    assert!(messages.contains(&FromShim::RunLease { until_ms: None }), "{messages:?}");
    bed
}

/// Ignores SIGTERM, and so does its child, which has left its session.
const STUBBORN: &str = "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & echo up; sleep 1000; sleep 1000";

pub fn lasts() {
    let mut bed = leased();
    let early = bed.start_sh(1, 1, "echo early");
    let refused = bed.agent.until("a refusal", |m| matches!(m, FromShim::Aborted { .. }));
    assert!(matches!(refused.last(), Some(FromShim::Aborted { launch, why, .. }) if *launch == early.id && why.contains("not granted")));
    bed.agent.send(&ToShim::RunLease { until_ms: boottime_ms() + 60_000 });
    let launch = bed.start_sh(2, 1, STUBBORN);
    bed.wait_log(2, 0, "up");
    // A time before the present end shortens nothing.
    bed.agent.send(&ToShim::RunLease { until_ms: boottime_ms() - 1 });
    bed.reconnect();
    let messages = bed.agent.synced();
    assert!(messages.iter().any(|m| matches!(m, FromShim::RunLease { until_ms: Some(until) } if *until > boottime_ms())), "{messages:?}");
    assert!(!messages.contains(&FromShim::RunLeaseLapsed));
    bed.agent.send(&ToShim::Stop { why: StopReason::Requested, grace_ms: 0 });
    let (outcomes, _) = bed.agent.outcomes(&launch);
    assert_eq!(outcomes, [RankOutcome::Signalled { signal: 9 }]);
    bed.end();
}

pub fn nobody_extends() {
    let mut bed = leased();
    let end = boottime_ms() + 600;
    bed.agent.send(&ToShim::RunLease { until_ms: end });
    bed.start_sh(1, 1, STUBBORN);
    bed.wait_log(1, 0, "up");
    // The agent vanishes, and no other connects before the lease ends.
    bed.agent.vanish();
    eventually("the lapse on disk", || exits::read(&bed.dir).unwrap().contains(&ExitRecord::RunLeaseLapsed));
    assert!(boottime_ms() >= end, "not before its time");
    eventually("all of it to be gone", || identity::descendants(bed.pid).is_empty());
    assert!(boottime_ms() < end + 1000, "at its time, without any grace");
    bed.reconnect();
    let messages = bed.agent.synced();
    let place = |wanted: &dyn Fn(&FromShim) -> bool| messages.iter().position(wanted).unwrap_or_else(|| panic!("{messages:?}"));
    let lapsed = place(&|m| *m == FromShim::RunLeaseLapsed);
    assert!(lapsed < place(&|m| matches!(m, FromShim::RankEnded { .. })), "who hears of the end knows what it was: {messages:?}");
    // Nothing revives the work.
    bed.agent.send(&ToShim::RunLease { until_ms: boottime_ms() + 60_000 });
    bed.start_sh(2, 1, "echo late");
    bed.agent.until("a refusal", |m| matches!(m, FromShim::Aborted { .. }));
    assert_eq!(bed.log(2, 0, LogStream::Out), "");
    bed.end();
}

pub fn stopped_shim() {
    let mut bed = leased();
    bed.agent.send(&ToShim::RunLease { until_ms: boottime_ms() + 300 });
    bed.start_sh(1, 1, "echo up; sleep 1000");
    bed.wait_log(1, 0, "up");
    let shim = nix::unistd::Pid::from_raw(bed.pid);
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGSTOP).unwrap();
    let end = boottime_ms() + 400;
    eventually("the lease to be over", || boottime_ms() > end);
    // The shim receives an extension before it can look at the clock.
    bed.agent.send(&ToShim::RunLease { until_ms: boottime_ms() + 60_000 });
    nix::sys::signal::kill(shim, nix::sys::signal::Signal::SIGCONT).unwrap();
    bed.agent.until("the lapse", |m| *m == FromShim::RunLeaseLapsed);
    bed.end();
}
