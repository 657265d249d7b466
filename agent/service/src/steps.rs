//! `AllocationService.ListSteps`: the script or command of an allocation, and the launches in it.
//!
//! ```text
//!   own step  ◀── the quorum's record of the allocation
//!   launches  ◀── its head's steps.jsonl, or the log store once the node has removed it
//! ```

use super::Api;
use super::groups::refuse_group;
use lattice_agent_common::clock::now;
use lattice_agent_common::environment::entry_launch_id;
use lattice_api::v1;
use lattice_mesh::steps::StepsOpen;
use lattice_meshd::steps::of_node;
use lattice_model::{
    Allocation, AllocationState, EndReason, Entrypoint, Epoch, JobStep, JobSteps, NodeId, Principal, Timestamp, hostlist, millis,
    with_causes,
};
use lattice_output::log_store::Place;
use lattice_output::spool::RETENTION_AFTER_END;
use tonic::{Request, Status};

/// The name of a script's step.
const BATCH: &str = "batch";

pub(super) async fn list(api: &Api, request: Request<v1::ListStepsRequest>) -> Result<v1::ListStepsResponse, Status> {
    let caller = api.caller(&request).await?;
    let allocation = api.allocation(&caller, &request.into_inner().key).await?;
    api.check(&caller, &allocation).await?;
    refuse_group(&allocation)?;
    let id = allocation.id.to_string();
    let Some(run) = Run::of(&allocation) else {
        return Ok(v1::ListStepsResponse { id, totals: Some(v1::JobStepTotals::default()), ..Default::default() });
    };
    let (launches, note) = launches(api, &caller.vouched_for(&allocation.owner), &allocation, &run).await;
    let totals = launches.totals();
    let totals = v1::JobStepTotals { begun: totals.begun, completed: totals.completed, failed: totals.failed, cancelled: totals.cancelled };
    let steps = own_step(&allocation, &run).into_iter().chain(launches.steps.into_iter().map(|step| to_proto(step, &run))).collect();
    Ok(v1::ListStepsResponse { id, steps, totals: Some(totals), note })
}

/// The attempt whose steps are shown: the present one, or, of work that waits, the last one.
#[derive(Debug)]
struct Run {
    epoch: Epoch,
    head: NodeId,
    nodes: Vec<NodeId>,
    started_at: Option<Timestamp>,
    end: Option<RunEnd>,
}

#[derive(Debug)]
struct RunEnd {
    at: Timestamp,
    state: AllocationState,
    exit_code: Option<i32>,
    reason: String,
}

impl Run {
    /// `None`: it has had no nodes.
    fn of(allocation: &Allocation) -> Option<Self> {
        let exit_code = |reason: Option<&EndReason>| reason.and_then(EndReason::exit_code);
        if let Some(head) = allocation.head() {
            let is_over = allocation.state.is_terminal();
            let reason = allocation.reason.as_ref().filter(|_| is_over);
            let end = is_over.then(|| RunEnd {
                at: allocation.ended_at.unwrap_or_default(),
                state: allocation.state,
                exit_code: exit_code(reason),
                reason: reason.map(EndReason::to_string).unwrap_or_default(),
            });
            let nodes = allocation.nodes().cloned().collect();
            return Some(Self { epoch: allocation.epoch, head: head.clone(), nodes, started_at: allocation.started_at, end });
        }
        let last = allocation.attempts.iter().rev().find(|attempt| attempt.may_have_run())?;
        let state = Some(last.reason.state()).filter(|state| state.is_terminal()).unwrap_or(AllocationState::Cancelled);
        let end = RunEnd { at: last.ended_at, state, exit_code: exit_code(Some(&last.reason)), reason: last.reason.to_string() };
        // A damaged list leaves the head.
        let nodes = last.node_ids().unwrap_or_else(|_| vec![last.head.clone()]);
        Some(Self { epoch: last.epoch, head: last.head.clone(), nodes, started_at: last.started_at, end: Some(end) })
    }
}

/// The launches that its head recorded, and why some may be missing.
async fn launches(api: &Api, user: &Principal, allocation: &Allocation, run: &Run) -> (JobSteps, String) {
    let open = StepsOpen { allocation: *allocation.id.0.as_bytes(), epoch: run.epoch.0, uid: user.uid, user: user.name.clone() };
    let why = match of_node(&api.context, &run.head, api.mesh_address(&run.head).await, open).await {
        Ok(Some(steps)) => return (steps, String::new()),
        Ok(None) => {
            let is_removable = run.end.as_ref().is_some_and(|end| now().since_ms(end.at) >= millis(RETENTION_AFTER_END));
            // Work that has just ended and left nothing had no launches.
            is_removable.then(|| "there is no record of launches: there were none, or it was removed with the output since".to_owned())
        }
        Err(error) => Some(format!("node {} does not say which launches there were: {}", run.head, with_causes(&error))),
    };
    let place = Place {
        tenant: allocation.spec.tenant.clone(),
        project: allocation.stored_project().to_owned(),
        allocation: allocation.id,
        epoch: run.epoch,
    };
    let stored = match api.context.work.spools.store() {
        None => Ok(None),
        Some(store) => store.steps(&place).await,
    };
    match stored {
        Ok(Some(steps)) => (steps, String::new()),
        Ok(None) => (JobSteps::default(), why.unwrap_or_default()),
        Err(error) => {
            (JobSteps::default(), format!("{}; {}", why.unwrap_or_default(), with_causes(&error)).trim_start_matches("; ").to_owned())
        }
    }
}

/// The step of its script, or of the launch of its command; `None`: it has none, or did not begin.
fn own_step(allocation: &Allocation, run: &Run) -> Option<v1::JobStep> {
    // The tasks of a lane are listed with their group, and a session has no program.
    if allocation.lane.is_some() || allocation.spec.session {
        return None;
    }
    let began_at = run.started_at?;
    let own = match &allocation.spec.entrypoint {
        Entrypoint::Script { .. } => v1::JobStep {
            step: BATCH.to_owned(),
            name: BATCH.to_owned(),
            ranks: 1,
            nodes: run.head.to_string(),
            node_count: 1,
            is_entry: true,
            ..Default::default()
        },
        Entrypoint::Command { argv } => {
            let program = argv.first().map_or("", String::as_str);
            let placed = allocation.spec.usual_ranks(&run.nodes);
            v1::JobStep {
                step: "0".to_owned(),
                launch: entry_launch_id(allocation.id, run.epoch).to_string(),
                name: program.rsplit('/').next().unwrap_or(program).to_owned(),
                ranks: placed.iter().map(|ranks| ranks.count).sum(),
                nodes: hostlist::fold_in_order(placed.iter().map(|ranks| &ranks.node)),
                node_count: u32::try_from(placed.len()).unwrap_or(u32::MAX),
                is_entry: true,
                ..Default::default()
            }
        }
    };
    let (state, end) = match &run.end {
        Some(end) => (end.state, Some(end)),
        None => (AllocationState::Running, None),
    };
    Some(v1::JobStep {
        state: state.to_string(),
        reason: end.map(|end| end.reason.clone()).unwrap_or_default(),
        exit_code: end.and_then(|end| end.exit_code),
        began_at_ms: began_at.0,
        ended_at_ms: end.map_or(0, |end| end.at.0),
        ..own
    })
}

fn to_proto(step: JobStep, run: &Run) -> v1::JobStep {
    let JobStep { launch_number, launch, name, ranks, nodes, node_count, began_at, end } = step;
    let (state, reason, exit_code, ended_at) = match (end, &run.end) {
        (Some(end), _) => (end.state, end.reason, end.exit_code, Some(end.at)),
        (None, None) => (AllocationState::Running, String::new(), None, None),
        // Its agent was away when the allocation ended.
        (None, Some(run)) => (AllocationState::Cancelled, "how it ended was not recorded".to_owned(), None, Some(run.at)),
    };
    v1::JobStep {
        step: launch_number.saturating_sub(1).to_string(),
        launch: launch.to_string(),
        name,
        state: state.to_string(),
        reason,
        exit_code,
        ranks,
        nodes,
        node_count,
        began_at_ms: began_at.0,
        ended_at_ms: ended_at.map_or(0, |at| at.0),
        is_entry: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{JobStepEnd, LaunchId, test_builders};
    use uuid::Uuid;

    fn run(end: Option<RunEnd>) -> Run {
        Run { epoch: Epoch(2), head: "n1".parse().unwrap(), nodes: vec!["n1".parse().unwrap()], started_at: Some(Timestamp(10)), end }
    }

    fn over() -> RunEnd {
        RunEnd { at: Timestamp(90), state: AllocationState::Completed, exit_code: Some(0), reason: "completed".to_owned() }
    }

    #[test]
    fn a_launch_without_a_recorded_end_runs_while_its_allocation_does() {
        let step = |end| JobStep {
            launch_number: 1,
            launch: LaunchId(Uuid::from_u128(1)),
            name: "sim".into(),
            ranks: 4,
            nodes: "n1".into(),
            node_count: 1,
            began_at: Timestamp(20),
            end,
        };
        let failed = JobStepEnd::of(&EndReason::Exited { code: 3 }, 3, Timestamp(30));
        let of = |end, run: &Run| {
            let shown = to_proto(step(end), run);
            (shown.step, shown.state, shown.exit_code, shown.ended_at_ms)
        };
        assert_eq!(of(None, &run(None)), ("0".to_owned(), "Running".to_owned(), None, 0));
        assert_eq!(of(None, &run(Some(over()))), ("0".to_owned(), "Cancelled".to_owned(), None, 90));
        assert_eq!(of(Some(failed), &run(Some(over()))), ("0".to_owned(), "Failed".to_owned(), Some(3), 30));
    }

    #[test]
    fn a_script_is_the_batch_step_and_a_command_step_0() {
        let mut allocation = test_builders::allocation(lattice_model::AllocationId(Uuid::from_u128(1)));
        let of = |allocation: &Allocation, run: &Run| {
            own_step(allocation, run).map(|step| (step.step, step.name, step.state, step.ranks, step.exit_code))
        };
        test_builders::spec_of(&mut allocation).entrypoint = Entrypoint::Script { text: "#!/bin/sh\n".into(), args: Vec::new() };
        let batch = ("batch".to_owned(), "batch".to_owned(), "Completed".to_owned(), 1, Some(0));
        assert_eq!(of(&allocation, &run(Some(over()))), Some(batch));
        test_builders::spec_of(&mut allocation).entrypoint = Entrypoint::Command { argv: vec!["/opt/sim".to_owned()] };
        let shown = of(&allocation, &run(None)).unwrap();
        assert_eq!((shown.0.as_str(), shown.1.as_str(), shown.2.as_str(), shown.4), ("0", "sim", "Running", None));
        assert_eq!(of(&allocation, &Run { started_at: None, ..run(None) }), None);
    }
}
