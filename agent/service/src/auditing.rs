//! The audit log: all of it for operators; for others, the records about themselves, and for admins of
//! tenants those about their tenants' work. The quorum decides which these are.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::caller::Caller;
use super::refusal::{status, unexpected};
use super::rights::has_granted_roles;
use lattice_api::audit::{filter_to_model, record_to_proto};
use lattice_api::operator::token_of;
use lattice_api::v1;
use lattice_api::v1::verify_audit_progress::Key;
use lattice_model::Principal;
use lattice_model::access::{Reach, Roles, rule};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, AuditWalk, Refusal, Request as Ask};
use tokio::sync::mpsc;
use tonic::{Request, Status};

/// How many parts are queued for a slow caller.
const ITEMS_QUEUE_LEN: usize = 2;
/// How many walks a change of members may interrupt before verification is given up.
const WALKS_MAX: usize = 3;

type Parts<T> = mpsc::Receiver<Result<T, Status>>;

/// `AdminService.QueryAudit`.
pub(super) async fn query(api: &Api, request: Request<v1::QueryAuditRequest>) -> Result<v1::AuditPage, Status> {
    let reader = reader(api, &request).await?;
    let caller = api.caller(&request).await?;
    let filter = of_job(api, &caller, request.get_ref().filter.clone()).await?;
    let ask = match reader {
        None => api.operator(&request).await?.asks(question(request.get_ref(), filter.as_ref(), None)?),
        Some(user) => question(request.get_ref(), filter.as_ref(), Some(user))?,
    };
    match api.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::Audit(page) => {
            let records = page.records.iter().map(record_to_proto).collect();
            Ok(v1::AuditPage { records, upto: page.upto, end: page.end, begins: page.begins, archive: page.archive })
        }
        other => Err(unexpected(&other)),
    }
}

/// Replaces the job number in a filter by the allocation's id.
async fn of_job(api: &Api, caller: &Caller, filter: Option<v1::AuditFilter>) -> Result<Option<v1::AuditFilter>, Status> {
    let filter = match filter {
        Some(filter) if filter.job > 0 => filter,
        other => return Ok(other),
    };
    if !filter.allocation.is_empty() {
        return Err(Status::invalid_argument("give an allocation or a job number, not both"));
    }
    let id = api.id_of_job(caller, filter.job).await?;
    Ok(Some(v1::AuditFilter { allocation: id.to_string(), job: 0, ..filter }))
}

fn question(request: &v1::QueryAuditRequest, filter: Option<&v1::AuditFilter>, by: Option<Principal>) -> Result<Ask, Status> {
    let filter = filter_to_model(filter)?;
    Ok(Ask::QueryAudit { filter, after: request.after, limit: request.limit, by })
}

/// The user whose records the caller reads; `None`: it must prove that it may read all.
async fn reader(api: &Api, request: &Request<v1::QueryAuditRequest>) -> Result<Option<Principal>, Status> {
    // A caller with a token wants to be an operator; a token that cannot be read is refused as
    // such.
    if !matches!(token_of(request.metadata()), Ok(None)) {
        return Ok(None);
    }
    let caller = api.caller(request).await?;
    let user = api.user(request).await?;
    let roles = api.standing_of_account(&caller).await?.roles;
    if let Some(why) = api.why_roles_do_not_count(&caller).filter(|_| has_granted_roles(&roles)) {
        return Err(Status::permission_denied(format!("{} has a role; {why}", user.name)));
    }
    Ok(match records(&caller, &roles)? {
        Records::All => None,
        Records::OfUser => Some(user),
    })
}

/// The records that a caller without a token may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Records {
    All,
    OfUser,
}

/// Refuses work of an allocation whose user has a role: the quorum would count the role.
fn records(caller: &Caller, roles: &Roles) -> Result<Records, Status> {
    if let Some(within) = caller.within {
        if has_granted_roles(roles) {
            let (name, work) = (&caller.principal.name, within.short());
            let text = format!("this process is work of allocation {work}, in which roles do not count, and {name} has one");
            return Err(Status::permission_denied(text + "\nhint: read the audit log outside of allocations"));
        }
        return Ok(Records::OfUser);
    }
    let reads_all = rule(&caller.method).is_some_and(|rule| roles.reach(rule) == Reach::Everything);
    Ok(if reads_all { Records::All } else { Records::OfUser })
}

/// `AdminService.VerifyAudit`: the walk continues where it stopped, on the same member.
pub(super) async fn verify(api: &Api, request: Request<v1::VerifyAuditRequest>) -> Result<Parts<v1::VerifyAuditProgress>, Status> {
    api.operator(&request).await?;
    let records_all = match api.quorum.call(&Ask::Status, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::Status(now) => now.audit_records,
        other => return Err(unexpected(&other)),
    };
    let (out, parts) = mpsc::channel(ITEMS_QUEUE_LEN);
    let (tasks, api) = (&api.context.work.tasks, api.clone());
    tasks.spawn(async move {
        let mut from: Option<Box<AuditWalk>> = None;
        let mut left = WALKS_MAX;
        loop {
            let part = match api.quorum.call(&Ask::VerifyAudit { from: from.clone() }, QUORUM_TIMEOUT).await {
                Ok(Answer::AuditVerified(walk)) => {
                    from = Some(walk.clone());
                    Ok(walk)
                }
                Ok(other) => Err(unexpected(&other)),
                // The member of the walk no longer answers: another member's disk is walked from
                // the beginning.
                Err(CallError::Refused(Refusal::OtherMember { .. })) if left > 1 => {
                    left -= 1;
                    from = None;
                    continue;
                }
                Err(error) => Err(status(&error)),
            };
            let over = part.as_ref().map_or(true, |walk| walk.done);
            if out.send(part.map(|walk| progress(&walk, records_all))).await.is_err() || over {
                return;
            }
        }
    });
    Ok(parts)
}

fn progress(walk: &AuditWalk, records_all: u64) -> v1::VerifyAuditProgress {
    let keys = walk.keys.iter().map(|k| Key { member: k.member.0, key: k.key.clone(), since: k.since, until: k.until });
    v1::VerifyAuditProgress {
        member: walk.member.0,
        records: walk.head.seq,
        head: walk.head.hash.clone(),
        signatures: walk.signatures,
        signed: walk.signed,
        keys: keys.collect(),
        done: walk.done,
        begins: walk.begins,
        records_all,
    }
}

/// `AdminService.ExportAudit`. The export is recorded before it begins, so the export contains the
/// record.
pub(super) async fn export(api: &Api, request: Request<v1::ExportAuditRequest>) -> Result<Parts<v1::SignedAuditPage>, Status> {
    let operator = api.operator(&request).await?;
    let by = Principal { name: operator.name.clone(), ..operator.account.clone() };
    let caller = api.caller(&request).await?;
    let filter = filter_to_model(of_job(api, &caller, request.into_inner().filter).await?.as_ref())?;
    let what = serde_json::to_string(&filter).map_err(|e| Status::internal(e.to_string()))?;
    api.record_access(api.export_access(by, &what)).await?;
    let (out, parts) = mpsc::channel(ITEMS_QUEUE_LEN);
    let (tasks, api) = (&api.context.work.tasks, api.clone());
    tasks.spawn(async move {
        let (mut after, mut end) = (0, 0);
        loop {
            let ask = operator.asks(Ask::ExportAudit { filter: filter.clone(), after, end });
            let part = match api.quorum.call(&ask, QUORUM_TIMEOUT).await {
                Ok(Answer::AuditExported(page)) => {
                    (after, end) = (page.upto, page.end);
                    Ok(v1::SignedAuditPage { body: page.body, member: page.member.0, key: page.key, signature: page.signature })
                }
                Ok(other) => Err(unexpected(&other)),
                Err(error) => Err(status(&error)),
            };
            let over = part.is_err() || after >= end;
            if out.send(part).await.is_err() || over {
                return;
            }
        }
    });
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_agent_common::config::work::WorkMay;
    use lattice_model::AllocationId;
    use std::collections::BTreeSet;
    use uuid::Uuid;

    fn caller(within: Option<AllocationId>) -> Caller {
        let principal = Principal { name: "alice".into(), uid: 7, gid: 7, groups: vec![] };
        let method = "AdminService/QueryAudit".to_owned();
        Caller { principal, within, network: None, work_may: WorkMay::AsOwner, private: false, method }
    }

    fn all_roles() -> [Roles; 3] {
        let admin_of = BTreeSet::from(["physics".to_owned()]);
        let operator = Roles { operator: true, ..Roles::default() };
        let system_admin = Roles { system_admin: true, ..Roles::default() };
        [operator, system_admin, Roles { admin_of, ..Roles::default() }]
    }

    #[test]
    fn operators_and_system_admins_read_all_records_and_everybody_else_their_own() {
        let [operator, system_admin, tenant_admin] = all_roles();
        let root = Roles { root: true, ..Roles::default() };
        let of = |roles: &Roles| records(&caller(None), roles).unwrap();
        assert_eq!([of(&operator), of(&system_admin)], [Records::All; 2]);
        assert_eq!([of(&tenant_admin), of(&root), of(&Roles::default())], [Records::OfUser; 3]);
    }

    #[test]
    fn work_of_an_allocation_reads_its_users_records_and_none_by_a_role() {
        let work = caller(Some(AllocationId(Uuid::from_u128(1))));
        assert_eq!(records(&work, &Roles::default()).unwrap(), Records::OfUser);
        assert_eq!(records(&work, &Roles { root: true, ..Roles::default() }).unwrap(), Records::OfUser);
        for roles in all_roles() {
            let refused = records(&work, &roles).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{roles:?}");
            assert_eq!(
                refused.message(),
                "this process is work of allocation 00000000, in which roles do not count, and alice has one\n\
                 hint: read the audit log outside of allocations"
            );
        }
    }
}
