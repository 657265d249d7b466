//! Requests about the audit log.

use crate::audit::export::signed_page;
use crate::audit::page::page;
use crate::audit::visible::VisibleTo;
use crate::audit::walk;
use crate::core::Core;
use crate::proposer::unserved;
use lattice_ledger::Action;
use lattice_model::{AuditFilter, MemberId, NodeId, Principal, with_causes};
use lattice_quorum_client::wire::{Answer, AuditWalk, Refusal};
use lattice_store::machine::AuditError;
use std::sync::Arc;

/// Largest number of audit records in one answer.
const RECORDS_MAX: u32 = 10_000;

/// See [`lattice_quorum_client::wire::Request::QueryAudit`]. The caller has confirmed that this
/// member is the leader. `by`: a user, who gets only the visible records, and not the archive's URL;
/// `None`: an operator, who gets everything.
pub(super) async fn query(core: &Arc<Core>, filter: AuditFilter, after: u64, limit: u32, by: Option<Principal>) -> Result<Answer, Refusal> {
    let limit = if limit == 0 { RECORDS_MAX } else { limit.min(RECORDS_MAX) };
    let agreed = Arc::clone(&core.agreed);
    let Some(by) = by else {
        let mut found = blocking(move || page(&agreed, &filter, None, after, 0, limit as usize)).await?;
        if let Some(checkpoint) = core.agreed.ledger().audit_checkpoint() {
            checkpoint.archive.clone_into(&mut found.archive);
        }
        return Ok(Answer::Audit(found));
    };
    let query = core.user_queries.begin()?;
    let visible = visible_to(core, &by)?;
    let found = blocking(move || {
        // The query counts until the disk is read, even if nobody waits for the answer any more.
        let _counted = query;
        page(&agreed, &filter, Some(&visible), after, 0, limit as usize)
    });
    found.await.map(Answer::Audit)
}

/// The records that the user may read by the ledger's current state. This is checked for each page: a
/// tenant's former admin gets no page that is read after the revocation was applied here.
fn visible_to(core: &Core, user: &Principal) -> Result<VisibleTo, Refusal> {
    let ledger = core.agreed.ledger();
    let is_machine = |name: &str| name.parse::<NodeId>().is_ok_and(|id| ledger.node(&id).is_some());
    VisibleTo::new(user, ledger.roles_of(user), is_machine)
}

/// See [`lattice_quorum_client::wire::Request::ExportAudit`]. The caller has confirmed that this
/// member is the leader.
pub(super) async fn export(core: &Arc<Core>, filter: AuditFilter, after: u64, end: u64) -> Result<Answer, Refusal> {
    let member = core.identity.signer.member();
    let on_record = core.agreed.ledger().signing().keys.get(&member).map(String::as_str) == Some(core.identity.signer.public());
    if !on_record {
        // Whoever verifies the export finds the key in the chain.
        let key = core.identity.signer.public().to_owned();
        core.propose_here(vec![Action::SetSigningKey { member, key }]).await.map_err(unserved)?;
    }
    let core = Arc::clone(core);
    let at = crate::clock::now();
    blocking(move || signed_page(&core.agreed, &core.identity.signer, at, &filter, after, end)).await.map(Answer::AuditExported)
}

/// See [`lattice_quorum_client::wire::Request::VerifyAudit`]. Answered by the receiving member,
/// leader or not: it verifies its own disk.
pub(super) async fn verify(core: &Arc<Core>, from: Option<AuditWalk>) -> Result<Answer, Refusal> {
    let member = MemberId(core.config.id);
    let walk = from.unwrap_or_else(|| AuditWalk::new(member));
    if walk.member != member {
        return Err(Refusal::OtherMember { began: walk.member, this: member });
    }
    let agreed = Arc::clone(&core.agreed);
    if agreed.audit_base().seq > agreed.audit_head().seq {
        return Err(Refusal::Unavailable { why: format!("member {member} catches up: it fetches a snapshot") });
    }
    blocking(move || walk::step(walk, &agreed)).await.map(|walk| Answer::AuditVerified(Box::new(walk)))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, AuditError> + Send + 'static) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(AuditError::Broken(fault))) => Err(Refusal::AuditBroken { seq: fault.seq, why: fault.why.to_owned() }),
        Ok(Err(AuditError::Read { seq, source })) => Err(Refusal::AuditBroken { seq, why: source.to_string() }),
        Ok(Err(error @ AuditError::Pruned { .. })) => Err(Refusal::Unavailable { why: error.to_string() }),
        Ok(Err(AuditError::Store(error))) => Err(Refusal::Unavailable { why: with_causes(&error) }),
        Err(error) => Err(Refusal::Unavailable { why: error.to_string() }),
    }
}
