//! What a scaled service cannot be, and the bounds of its numbers.

use super::{AllocationSpec, invalid};
use crate::scaling::{Amount, DRAIN_MAX, REPLICAS_MAX, TIMES};
use crate::spec_error::SpecError;
use std::time::Duration;

const FIELD: &str = "reactive";

impl AllocationSpec {
    pub(super) fn validate_scaling(&self) -> Result<(), SpecError> {
        let Some(scaling) = &self.scaling else { return Ok(()) };
        let refuse = |why: &str| Err(invalid(FIELD, why));
        let (least, most) = (scaling.replicas_min, scaling.replicas_max);
        if least == 0 || most < least || most > REPLICAS_MAX {
            return Err(invalid(
                "min-nodes",
                format!("{least} to {most} given; 1 to {REPLICAS_MAX} are possible, and the least comes first"),
            ));
        }
        if self.nodes_most() != 1 {
            return refuse("each replica has one node: leave --nodes out, and say --min-nodes and --max-nodes");
        }
        if self.walltime.is_some() {
            return refuse("a service that scales has no end: leave --walltime out");
        }
        if self.tasks.is_some() {
            return refuse("a task group grows and shrinks by itself: leave --task-group or --reactive out");
        }
        if self.session || self.pty.is_some() {
            return refuse("its replicas have no terminal: leave --pty out");
        }
        if self.sensitive {
            return refuse("sensitive work keeps the nodes that were claimed for it: leave --sensitive or --reactive out");
        }
        if scaling.drain.grace_ms > crate::millis(DRAIN_MAX) {
            return Err(invalid("drain-grace", format!("at most {} s", DRAIN_MAX.as_secs())));
        }
        let Some(policy) = &scaling.policy else { return Ok(()) };
        if policy.target == Amount(0) {
            return Err(invalid("scale-target", "more than 0"));
        }
        if policy.down_threshold == Amount(0) || policy.down_threshold.as_f64() >= 1.0 {
            return Err(invalid("scale-down-threshold", "more than 0 and less than 1: it is a part of the target"));
        }
        let times = [
            ("scale-interval", policy.interval_ms),
            ("scale-up-window", policy.up_window_ms),
            ("scale-down-window", policy.down_window_ms),
            ("scale-cooldown", policy.cooldown_ms),
        ];
        for (field, ms) in times {
            if !(TIMES.0..=TIMES.1).contains(&Duration::from_millis(ms)) {
                let why = format!("{} s to {} s are possible", TIMES.0.as_secs(), TIMES.1.as_secs());
                return Err(invalid(field, why));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::{Drain, ScaleMetric, ScalePolicy, Scaling};
    use crate::task_group::TaskGroup;
    use crate::test_builders;

    fn service(change: impl FnOnce(&mut AllocationSpec, &mut Scaling)) -> Result<(), SpecError> {
        let policy = ScalePolicy::new(ScaleMetric::QueueDepth, Amount(1));
        let mut scaling = Scaling { replicas_min: 1, replicas_max: 8, policy: Some(policy), drain: Drain::default() };
        let mut spec = AllocationSpec { walltime: None, ..test_builders::spec() };
        change(&mut spec, &mut scaling);
        AllocationSpec { scaling: Some(Box::new(scaling)), ..spec }.validate()
    }

    fn field(result: Result<(), SpecError>) -> &'static str {
        match result {
            Err(SpecError::Invalid { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_scaled_service_is_valid_within_its_bounds() {
        assert_eq!(service(|_, _| ()), Ok(()));
        assert_eq!(service(|_, scaling| scaling.policy = None), Ok(()));
        for (least, most) in [(0, 1), (3, 2), (1, REPLICAS_MAX + 1)] {
            assert_eq!(field(service(|_, s| (s.replicas_min, s.replicas_max) = (least, most))), "min-nodes");
        }
        assert_eq!(field(service(|spec, _| spec.nodes = 2)), FIELD);
        assert_eq!(field(service(|spec, _| spec.walltime = Some(Duration::from_secs(60)))), FIELD);
        assert_eq!(field(service(|_, s| s.drain.grace_ms = 3_600_001)), "drain-grace");
        let policy = |change: fn(&mut ScalePolicy)| field(service(|_, s| change(s.policy.as_mut().unwrap())));
        assert_eq!(policy(|p| p.target = Amount(0)), "scale-target");
        assert_eq!(policy(|p| p.down_threshold = Amount(1_000_000)), "scale-down-threshold");
        assert_eq!(policy(|p| p.interval_ms = 999), "scale-interval");
        assert_eq!(policy(|p| p.cooldown_ms = 86_400_001), "scale-cooldown");
    }

    #[test]
    fn it_is_no_task_group() {
        let tasks = |spec: &mut AllocationSpec, _: &mut Scaling| spec.tasks = Some(Box::new(TaskGroup::parse("0-9").unwrap()));
        assert!(service(tasks).is_err());
    }
}
