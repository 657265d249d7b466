//! The audit log, for operators.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use lattice_api::audit::{filter_to_model, record_to_proto};
use lattice_api::v1;
use lattice_api::v1::verify_audit_progress::Key;
use lattice_model::Principal;
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
    let operator = api.operator(&request).await?;
    let request = request.into_inner();
    let filter = filter_to_model(request.filter.as_ref())?;
    let ask = operator.asks(Ask::QueryAudit { filter, after: request.after, limit: request.limit });
    match api.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::Audit(page) => {
            let records = page.records.iter().map(record_to_proto).collect();
            Ok(v1::AuditPage { records, upto: page.upto, end: page.end, begins: page.begins, archive: page.archive })
        }
        other => Err(unexpected(&other)),
    }
}

/// `AdminService.VerifyAudit`: the walk continues where it stopped, on the same member.
pub(super) async fn verify(api: &Api, request: Request<v1::VerifyAuditRequest>) -> Result<Parts<v1::VerifyAuditProgress>, Status> {
    api.operator(&request).await?;
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
            if out.send(part.map(|walk| progress(&walk))).await.is_err() || over {
                return;
            }
        }
    });
    Ok(parts)
}

fn progress(walk: &AuditWalk) -> v1::VerifyAuditProgress {
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
    }
}

/// `AdminService.ExportAudit`. The export is recorded before it begins, so the export contains the
/// record.
pub(super) async fn export(api: &Api, request: Request<v1::ExportAuditRequest>) -> Result<Parts<v1::SignedAuditPage>, Status> {
    let operator = api.operator(&request).await?;
    let by = Principal { name: operator.name.clone(), ..operator.account.clone() };
    let filter = filter_to_model(request.into_inner().filter.as_ref())?;
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
