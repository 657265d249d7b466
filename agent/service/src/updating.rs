//! `AllocationService.Update`: changes the walltime, the preemption class, the name, the project or the tags of submitted
//! work, or how a scaled service scales. The quorum checks the change. Of work that has ended, the
//! project and the tags are corrected in its record (`corrections`).
//!
//! ```text
//!   a token ─────────────────────────────────▶ as operator
//!   another's work, and the role of an operator ▶ as operator, by the account
//!   own work, or that of an own tenant ──────▶ as itself ── only operators may ──▶ has the role: as operator, by the account
//! ```
//!
//! Work of an allocation is never an operator.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::caller::{Caller, Operator};
use super::corrections::{Labels, correct, records_of, whole_has_ended};
use super::groups::refuse_part;
use super::refusal::{status, unexpected};
use lattice_api::operator::METADATA;
use lattice_api::v1;
use lattice_api::v1::update_allocation_request::Walltime;
use lattice_ledger::{Action, AllocationChange, ScalingChange};
use lattice_model::duration::clock_text;
use lattice_model::scaling::{NoAmount, NoSuchMetric};
use lattice_model::{Allocation, Amount, ScaleMetric, Timestamp};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Refusal, Request as Ask, UpdateRefusal};
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::{Code, Request, Status};

pub(super) async fn update(api: &Api, request: Request<v1::UpdateAllocationRequest>) -> Result<v1::UpdateAllocationResponse, Status> {
    let caller = api.caller(&request).await?;
    let by_token = if request.metadata().contains_key(METADATA) { Some(api.operator(&request).await?) } else { None };
    let request = request.into_inner();
    let scaling = scaling_change(&request)?;
    let v1::UpdateAllocationRequest {
        key,
        walltime,
        preemption_class,
        name,
        project,
        tags,
        begin_ms,
        deadline_ms,
        nice,
        comment,
        reservation,
        expected_version,
        ..
    } = request;
    let (begin, deadline) = (begin_ms.map(Timestamp), deadline_ms.map(Timestamp));
    let has_place = begin.is_some() || deadline.is_some() || nice.is_some() || reservation.is_some();
    let has_labels = project.is_some() || !tags.is_empty();
    let has_other =
        walltime.is_some() || preemption_class.is_some() || scaling.is_some() || has_place || name.is_some() || comment.is_some();
    if !has_labels && !has_other {
        let text = "nothing is to be changed: give a walltime, a preemption class, a name, a project, tags, a comment, when it begins, a \
                    deadline, nice, a reservation, or how a service scales";
        return Err(Status::invalid_argument(text));
    }
    // The record of ended work has no version.
    let is_correction = !has_other && expected_version.is_none();
    let tags: BTreeMap<String, String> = tags.into_iter().collect();
    let too_high = |_| Status::invalid_argument("preemption_class: it must be 0 to 10");
    let preemption_class = preemption_class.map(u8::try_from).transpose().map_err(too_high)?;
    let labels = || Labels { project: project.clone(), tags: tags.clone() };
    let allocation = match api.allocation(&caller, &key).await {
        Ok(allocation) => allocation,
        // The quorum may have forgotten it; the accounting store never does.
        Err(unknown) if unknown.code() == Code::NotFound && is_correction => {
            let Some(job) = key.parse::<u64>().ok().filter(|job| *job > 0) else { return Err(unknown) };
            let records = match records_of(api, &caller, job).await {
                Ok(records) if !records.is_empty() => records,
                Ok(_) => return Err(unknown),
                // There is no store.
                Err(error) if error.code() == Code::FailedPrecondition => return Err(unknown),
                Err(error) => return Err(error),
            };
            return correct(api, &caller, by_token, (job, records), labels()).await;
        }
        Err(error) => return Err(error),
    };
    if allocation.state.is_terminal() && is_correction {
        if by_token.is_none() {
            operator_of(api, &caller, &allocation).await?;
        }
        refuse_part(&allocation, "be changed")?;
        if allocation.is_task_group() || allocation.is_scaled_service() {
            return Err(whole_has_ended(allocation.id));
        }
        let records = records_of(api, &caller, allocation.number).await?;
        return correct(api, &caller, by_token, (allocation.number, records), labels()).await;
    }
    let operator = match by_token {
        Some(operator) => Some(operator),
        None => operator_of(api, &caller, &allocation).await?,
    };
    refuse_part(&allocation, "be changed")?;
    if walltime.is_some() && allocation.is_scaled_service() {
        let text = "a scaled service has no walltime\nhint: leave --walltime out; `lattice cancel` ends the service";
        return Err(Status::failed_precondition(text));
    }
    let before = allocation.spec.walltime;
    let walltime = walltime.map(|wanted| new_walltime(wanted, before)).transpose()?;
    let change = AllocationChange {
        name,
        project,
        walltime,
        preemption_class,
        tags,
        scaling,
        begin,
        deadline,
        nice,
        comment,
        reservation,
        expected_version,
    };
    commit(api, &caller, operator, (&allocation, change)).await?;
    Ok(v1::UpdateAllocationResponse {
        id: allocation.id.to_string(),
        state: allocation.shown_state().to_string(),
        walltime_seconds: walltime.or(before).map_or(0, |walltime| walltime.as_secs()),
        is_task_group: allocation.is_task_group(),
        is_scaled: allocation.is_scaled_service(),
    })
}

/// The operator as whom the caller changes another's work; `None`: it changes it as itself, as it may.
async fn operator_of(api: &Api, caller: &Caller, allocation: &Allocation) -> Result<Option<Operator>, Status> {
    if !caller.principal.owns(&allocation.owner)
        && let Some(operator) = api.operator_by_role(caller).await?
    {
        return Ok(Some(operator));
    }
    api.check(caller, allocation).await?;
    Ok(None)
}

/// Has the quorum make the change. If only operators may make it, and the caller has the role, it is made as operator.
async fn commit(
    api: &Api,
    caller: &Caller,
    operator: Option<Operator>,
    (allocation, change): (&Allocation, AllocationChange),
) -> Result<(), Status> {
    let action = |as_operator| Action::UpdateAllocation {
        allocation: allocation.id,
        by: caller.principal.clone(),
        change: change.clone(),
        as_operator,
    };
    if let Some(operator) = operator {
        return api.done(&operator.asks(action(true))).await;
    }
    match api.quorum.call(&Ask::from(action(false)), QUORUM_TIMEOUT).await {
        Ok(Answer::Done { .. }) => Ok(()),
        Ok(other) => Err(unexpected(&other)),
        Err(refused) if needs_operator(&refused) => match api.operator_by_role(caller).await? {
            Some(operator) => api.done(&operator.asks(action(true))).await,
            None => Err(status(&refused)),
        },
        Err(error) => Err(status(&error)),
    }
}

/// Whether a change was refused because only operators may make it.
fn needs_operator(error: &CallError) -> bool {
    let CallError::Refused(Refusal::Update { why, .. }) = error else { return false };
    match why {
        UpdateRefusal::LongerWithNodes { .. } | UpdateRefusal::HigherWithNodes { .. } | UpdateRefusal::SmallerNice => true,
        UpdateRefusal::HasEnded { .. }
        | UpdateRefusal::WalltimeIsOver
        | UpdateRefusal::TooShort { .. }
        | UpdateRefusal::NodesAreLent { .. }
        | UpdateRefusal::HasBegun { .. }
        | UpdateRefusal::OtherVersion { .. }
        | UpdateRefusal::NoMetric
        | UpdateRefusal::NoTarget => false,
    }
}

/// How a scaled service is to scale from now on; `None`: as it does.
fn scaling_change(request: &v1::UpdateAllocationRequest) -> Result<Option<ScalingChange>, Status> {
    let amount = |field: &str, text: Option<&str>| {
        let no_amount = |error: NoAmount| Status::invalid_argument(format!("{field}: {error}"));
        text.map(str::parse::<Amount>).transpose().map_err(no_amount)
    };
    let no_metric = |error: NoSuchMetric| Status::invalid_argument(format!("scale-metric: {error}"));
    let change = ScalingChange {
        replicas_min: request.replicas_min,
        replicas_max: request.replicas_max,
        metric: request.scale_metric.as_deref().map(str::parse::<ScaleMetric>).transpose().map_err(no_metric)?,
        target: amount("scale-target", request.scale_target.as_deref())?,
        interval_ms: request.scale_interval_ms,
        up_window_ms: request.scale_up_window_ms,
        down_window_ms: request.scale_down_window_ms,
        down_threshold: amount("scale-down-threshold", request.scale_down_threshold.as_deref())?,
        cooldown_ms: request.scale_cooldown_ms,
    };
    Ok(Some(change).filter(|change| *change != ScalingChange::default()))
}

/// The walltime that a request asks for. The quorum gets the whole walltime, so that a repetition does not change it
/// twice.
fn new_walltime(wanted: Walltime, before: Option<Duration>) -> Result<Duration, Status> {
    match wanted {
        Walltime::WalltimeSeconds(0) => Err(Status::invalid_argument("walltime_seconds: at least 1 is needed")),
        Walltime::WalltimeSeconds(seconds) => Ok(Duration::from_secs(seconds)),
        Walltime::WalltimeMoreSeconds(more) => {
            let Some(before) = before else {
                let text = "it is a service and has no walltime that could be longer or shorter\nhint: give a whole walltime, such as 2h";
                return Err(Status::failed_precondition(text));
            };
            let after = before.as_secs().checked_add_signed(more).filter(|seconds| *seconds > 0);
            after.map(Duration::from_secs).ok_or_else(|| {
                let (by, how) = (Duration::from_secs(more.unsigned_abs()), if more < 0 { "shorter" } else { "longer" });
                Status::invalid_argument(format!(
                    "its walltime is {}, and cannot be {} {how}\nhint: `lattice cancel` ends it",
                    clock_text(before),
                    clock_text(by)
                ))
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::AllocationState;

    #[test]
    fn only_what_operators_may_change_is_asked_for_again_as_operator() {
        let refused = |why| {
            let id = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
            needs_operator(&CallError::Refused(Refusal::Update { id, why }))
        };
        let state = AllocationState::Running;
        assert!(refused(UpdateRefusal::LongerWithNodes { state }) && refused(UpdateRefusal::HigherWithNodes { state }));
        assert!(!refused(UpdateRefusal::HasEnded { state }) && !refused(UpdateRefusal::WalltimeIsOver));
        assert!(!needs_operator(&CallError::Refused(Refusal::NoSuchLease { name: "x".to_owned() })));
    }

    #[test]
    fn bounds_and_a_target_are_one_change_and_none_of_them_is_no_change() {
        let scaling = |request: &v1::UpdateAllocationRequest| scaling_change(request).map_err(|status| status.message().to_owned());
        let none = v1::UpdateAllocationRequest::default;
        assert_eq!(scaling(&v1::UpdateAllocationRequest { nice: Some(3), ..none() }), Ok(None));
        let target = |text: &str| v1::UpdateAllocationRequest { scale_target: Some(text.to_owned()), ..none() };
        let change = ScalingChange { replicas_min: Some(2), target: Some(Amount(700_000)), ..ScalingChange::default() };
        assert_eq!(scaling(&v1::UpdateAllocationRequest { replicas_min: Some(2), ..target("0.7") }), Ok(Some(change)));
        let refused = scaling(&target("100ms")).unwrap_err();
        assert!(refused.starts_with("scale-target: \"100ms\" is no number"), "{refused}");
    }

    #[test]
    fn another_metric_and_its_windows_are_one_change() {
        let request = v1::UpdateAllocationRequest {
            scale_metric: Some("q{a=\"b\"}".to_owned()),
            scale_interval_ms: Some(1),
            scale_up_window_ms: Some(2),
            scale_down_window_ms: Some(3),
            scale_down_threshold: Some("0.25".to_owned()),
            scale_cooldown_ms: Some(4),
            ..Default::default()
        };
        let change = scaling_change(&request).unwrap().unwrap();
        assert_eq!(change.metric.map(|metric| metric.to_string()).as_deref(), Some("q{a=\"b\"}"));
        assert_eq!((change.interval_ms, change.up_window_ms, change.down_window_ms), (Some(1), Some(2), Some(3)));
        assert_eq!((change.down_threshold, change.cooldown_ms, change.target), (Some(Amount(250_000)), Some(4), None));
        let refused = scaling_change(&v1::UpdateAllocationRequest { scale_metric: Some("sum(q)".to_owned()), ..request.clone() });
        assert!(refused.unwrap_err().message().starts_with("scale-metric: "));
        let refused = scaling_change(&v1::UpdateAllocationRequest { scale_down_threshold: Some("half".to_owned()), ..request });
        assert!(refused.unwrap_err().message().starts_with("scale-down-threshold: "));
    }

    #[test]
    fn a_walltime_is_given_as_a_whole_or_as_a_difference() {
        let hour = Some(Duration::from_secs(3600));
        let seconds = |wanted, before| new_walltime(wanted, before).map(|walltime| walltime.as_secs()).map_err(|status| status.code());
        assert_eq!(seconds(Walltime::WalltimeSeconds(90), hour), Ok(90));
        assert_eq!(seconds(Walltime::WalltimeSeconds(90), None), Ok(90));
        assert_eq!(seconds(Walltime::WalltimeMoreSeconds(90), hour), Ok(3690));
        assert_eq!(seconds(Walltime::WalltimeMoreSeconds(-3599), hour), Ok(1));
        assert_eq!(seconds(Walltime::WalltimeSeconds(0), hour), Err(tonic::Code::InvalidArgument));
        assert_eq!(seconds(Walltime::WalltimeMoreSeconds(-3600), hour), Err(tonic::Code::InvalidArgument));
        assert_eq!(seconds(Walltime::WalltimeMoreSeconds(i64::MIN), hour), Err(tonic::Code::InvalidArgument));
        assert_eq!(seconds(Walltime::WalltimeMoreSeconds(90), None), Err(tonic::Code::FailedPrecondition));
        let refused = new_walltime(Walltime::WalltimeMoreSeconds(-7200), hour).unwrap_err();
        assert!(refused.message().starts_with("its walltime is 01:00:00, and cannot be 02:00:00 shorter\n"), "{refused}");
    }
}
