//! Ended work by its job number. Corrections of its project and its tags, in the record that the accounting store has.
//!
//! ```text
//!   record ◀──job number── store ──may the caller?──▶ quorum: numbered, on the audit log ──▶ store, and from there sinks
//! ```

use super::Api;
use super::caller::{Caller, Operator};
use super::finding::{names_a_task, task_named};
use lattice_api::v1;
use lattice_ledger::{Action, Correction};
use lattice_model::ended_work::EndedWork;
use lattice_model::history::{HistoryKind, HistoryQuery, Visible};
use lattice_model::{AllocationId, Timestamp};
use lattice_quorum_client::wire::Request as Ask;
use std::collections::BTreeMap;
use tonic::{Code, Status};

/// More records of one job number than there are: after a recovery from a backup, work may have ended twice.
const RECORDS_MAX: u32 = 10;

/// The new labels of a record.
pub(super) struct Labels {
    /// `None`: it keeps its project. Empty: none.
    pub(super) project: Option<String>,
    /// The others stay; an empty value removes a tag.
    pub(super) tags: BTreeMap<String, String>,
}

/// The records of the ended work with this job number, the newest first, as the accounting store has them.
pub(super) async fn records_of(api: &Api, caller: &Caller, job: u64) -> Result<Vec<EndedWork>, Status> {
    Ok(api.ended_page(caller.principal.uid, of_job(job)).await?.work)
}

/// Corrects the records of the ended work with this job number. They are on the audit log when this answers, and in the
/// store soon after.
pub(super) async fn correct(
    api: &Api,
    caller: &Caller,
    by_token: Option<Operator>,
    (job, records): (u64, Vec<EndedWork>),
    labels: Labels,
) -> Result<v1::UpdateAllocationResponse, Status> {
    let Some(newest) = records.first().cloned() else {
        let text = format!("the accounting store has no record of job {job}");
        return Err(Status::not_found(format!(
            "{text}\nhint: if it has just ended, try again in some seconds; `lattice history` shows it"
        )));
    };
    let is_own = caller.principal.uid == newest.uid && caller.principal.name == newest.user;
    let operator = match by_token {
        Some(operator) => Some(operator),
        None if is_own => None,
        None => api.operator_by_role(caller).await?,
    };
    // All of them before the first one is corrected.
    for work in &records {
        if operator.is_none() {
            api.check_ended(caller, work).await?;
        }
        if has_parts(api, caller, work).await? {
            return Err(whole_has_ended(work.allocation));
        }
    }
    for work in records {
        let correction = Box::new(Correction { work, project: labels.project.clone(), tags: labels.tags.clone() });
        let by = caller.principal.clone();
        let ask = match &operator {
            Some(operator) => operator.asks(Action::CorrectEndedWork { correction, by, as_operator: true }),
            None => Ask::from(Action::CorrectEndedWork { correction, by, as_operator: false }),
        };
        api.done(&ask).await?;
    }
    Ok(v1::UpdateAllocationResponse {
        id: newest.allocation.to_string(),
        state: newest.state.to_string(),
        walltime_seconds: 0,
        is_task_group: false,
        is_scaled: false,
    })
}

/// Whether the store has records of lanes or replicas of this work.
async fn has_parts(api: &Api, caller: &Caller, work: &EndedWork) -> Result<bool, Status> {
    let query = HistoryQuery { jobs: Vec::new(), part_of: Some(work.allocation.0), limit: 1, ..of_job(work.job) };
    Ok(!api.ended_page(caller.principal.uid, query).await?.work.is_empty())
}

/// The refusal to correct a group or a service: its lanes or replicas have the use, and the records.
pub(super) fn whole_has_ended(id: AllocationId) -> Status {
    Status::failed_precondition(format!(
        "allocation {} has ended, and the records of its lanes or replicas are not corrected through it\nhint: give a project and tags \
         while a task group or a service lives",
        id.short()
    ))
}

impl Api {
    /// The allocation with this job number, even if only the accounting store still knows it. A number of a task is
    /// refused.
    pub(super) async fn id_of_job(&self, caller: &Caller, job: u64) -> Result<AllocationId, Status> {
        let key = job.to_string();
        let unknown = match self.find_allocation(caller, &key, false).await {
            Ok((found, _)) if found.number == job => return Ok(found.id),
            Ok((group, _)) => match task_named(&group, &key) {
                Some(index) => {
                    self.check(caller, &group).await?;
                    return Err(names_a_task(&group, &key, index));
                }
                // The number is the beginning of an id.
                None => no_job(job),
            },
            Err(status) if matches!(status.code(), Code::NotFound | Code::InvalidArgument) => no_job(job),
            Err(status) => return Err(status),
        };
        match self.ended_page(caller.principal.uid, of_job(job)).await {
            Ok(page) => page.work.first().map(|work| work.allocation).ok_or(unknown),
            // There is no store.
            Err(status) if status.code() == Code::FailedPrecondition => Err(unknown),
            Err(status) => Err(status),
        }
    }
}

fn no_job(job: u64) -> Status {
    Status::not_found(format!("there is no job {job}\nhint: `lattice status --all` and `lattice history` show job numbers"))
}

fn of_job(job: u64) -> HistoryQuery {
    HistoryQuery {
        visible: Visible::All,
        kind: HistoryKind::NewestFirst,
        user: String::new(),
        tenant: String::new(),
        project: String::new(),
        vcluster: String::new(),
        name: String::new(),
        states: Vec::new(),
        jobs: vec![job],
        part_of: None,
        tags: BTreeMap::new(),
        from: Timestamp(0),
        until: Timestamp(u64::MAX),
        limit: RECORDS_MAX,
        after: None,
    }
}
