//! Work for a trace: what the scheduler decides by, and when it ran.

use crate::spec;
use crate::v1;
use lattice_model::trace::Request;
use lattice_model::{Allocation, Attempt, SpecError, Timestamp};

/// The name of the specification that is made from a message. The message has none.
const NAME: &str = "traced";

/// Encodes an allocation for a trace, without the names of its owner, its program and its environment.
pub fn to_proto(allocation: &Allocation) -> v1::TracedWork {
    let v1::AllocationSpec { resources, lifecycle, requeue, tenant, vcluster, .. } = spec::from_model(&allocation.spec);
    let ended = allocation.reason.as_ref().filter(|_| allocation.state.is_terminal());
    v1::TracedWork {
        id: allocation.id.to_string(),
        uid: allocation.owner.uid,
        tenant,
        vcluster,
        resources,
        lifecycle,
        requeue,
        checkpoint: allocation.spec.checkpoint.is_some(),
        submitted_at_ms: allocation.submitted_at.0,
        ended_at_ms: allocation.ended_at.map_or(0, |at| at.0),
        ran_ms: ran_ms(allocation),
        exit_code: ended.and_then(|reason| reason.exit_code()),
    }
}

/// See [`v1::TracedWork`].
fn ran_ms(allocation: &Allocation) -> Option<u64> {
    let last_ms = allocation.ended_at?.since_ms(allocation.started_at?);
    // Work that saves itself continues where its attempt before ended.
    let continued = allocation.attempts.iter().filter(|_| allocation.spec.checkpoint.is_some());
    let attempt_ms = |attempt: &Attempt| attempt.started_at.map_or(0, |started: Timestamp| attempt.ended_at.since_ms(started));
    Some(continued.map(attempt_ms).fold(last_ms, u64::saturating_add))
}

/// What the scheduler decides by, of the user with this number.
///
/// # Errors
/// As [`spec::to_model`].
pub fn request(work: &v1::TracedWork, user: u32) -> Result<Request, SpecError> {
    let command = v1::entrypoint::Command { argv: vec!["true".to_owned()] };
    let checkpoint = work.checkpoint.then(|| v1::Checkpoint { strategy: "signal".to_owned(), ..v1::Checkpoint::default() });
    let spec = spec::to_model(&v1::AllocationSpec {
        name: NAME.to_owned(),
        tenant: work.tenant.clone(),
        vcluster: work.vcluster.clone(),
        resources: work.resources.clone(),
        lifecycle: work.lifecycle.clone(),
        requeue: work.requeue.clone(),
        checkpoint,
        entrypoint: Some(v1::Entrypoint { what: Some(v1::entrypoint::What::Command(command)) }),
        working_dir: "/".to_owned(),
        ..v1::AllocationSpec::default()
    })?;
    Ok(Request::of(&spec, user))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::trace::Span;
    use lattice_model::{AllocationSpec, AllocationState, EndReason, Epoch, Principal};
    use std::path::Path;

    fn allocation() -> Allocation {
        let entrypoint = lattice_model::Entrypoint::Command { argv: vec!["secret-program".to_owned()] };
        let mut spec = AllocationSpec::new("secret-name", entrypoint, Path::new("/secret-dir"));
        spec.env.insert("SECRET".to_owned(), "secret-value".to_owned());
        (spec.nodes, spec.tenant, spec.preemption_class) = (3, "physics".to_owned(), 2);
        let owner = Principal { name: "secret-user".to_owned(), uid: 1007, gid: 1, groups: vec![] };
        let id = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        Allocation::submitted(id, spec, owner, Timestamp(1000))
    }

    #[test]
    fn work_is_traced_without_the_names_of_its_user_and_program() {
        let work = to_proto(&allocation());
        assert!(!format!("{work:?}").contains("secret"), "{work:?}");
        let traced = request(&work, 1).unwrap();
        assert_eq!(traced, Request::of(&allocation().spec, 1));
        assert_eq!((traced.nodes, traced.priority, traced.walltime, traced.user), (3, 2, Some(Span(60)), 1));
        assert_eq!((work.ended_at_ms, work.ran_ms, work.exit_code), (0, None, None));
    }

    #[test]
    fn only_attempts_that_were_continued_count_as_the_time_that_it_ran() {
        let mut ended = allocation();
        (ended.state, ended.reason) = (AllocationState::Failed, Some(EndReason::Exited { code: 7 }));
        (ended.started_at, ended.ended_at) = (Some(Timestamp(50_000)), Some(Timestamp(80_000)));
        let node = "n1".parse().unwrap();
        ended.attempts = vec![Attempt {
            number: 1,
            epoch: Epoch(1),
            head: node,
            nodes: "n1".to_owned(),
            claimed_at: None,
            started_at: Some(Timestamp(2000)),
            ended_at: Timestamp(12_000),
            reason: EndReason::Exited { code: 1 },
            by: "node:n1".to_owned(),
        }];
        let work = to_proto(&ended);
        assert_eq!((work.ran_ms, work.exit_code), (Some(30_000), Some(7)));
        let mut spec = AllocationSpec::clone(&ended.spec);
        spec.checkpoint = Some(lattice_model::CheckpointPolicy::default());
        ended.spec = spec.into();
        assert_eq!(to_proto(&ended).ran_ms, Some(40_000));
    }
}
