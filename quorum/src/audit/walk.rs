//! Verification of the chain on a member's disk: every hash, and every signature with the key that
//! its member had at that time.

use super::STEP;
use super::signer::verifies;
use lattice_ledger::AuditFault;
use lattice_ledger::AuditHead;
use lattice_ledger::signing::{KeySet, SignedHead};
use lattice_model::{AuditAction, AuditRecord, MemberId};
use lattice_quorum_client::wire::{AuditWalk, KeyPeriod};
use lattice_store::machine::{Agreed, AuditError};
use std::collections::VecDeque;
use std::time::Instant;

/// Largest number of hashes that a step keeps, for signatures of slightly earlier records.
const KEPT_MAX: usize = 16 * 1024;

/// Verifies the chain on disk up to the last applied record. Reads the disk: call it where blocking
/// is allowed.
#[cfg(test)]
pub fn verify(agreed: &Agreed) -> Result<AuditHead, AuditError> {
    let mut walk = AuditWalk::new(MemberId(0));
    while !walk.done {
        walk = step(walk, agreed)?;
    }
    Ok(walk.head)
}

/// Continues for the duration of one step. Reads the disk: call it where blocking is allowed.
pub fn step(mut walk: AuditWalk, agreed: &Agreed) -> Result<AuditWalk, AuditError> {
    let began = Instant::now();
    let (want, cluster) = (agreed.audit_head(), agreed.ledger().cluster().to_owned());
    let base = agreed.audit_base();
    if walk.begins == 0 || walk.head.seq < base.seq {
        // The archive was verified up to the base before anything was deleted. The walk drops the keys
        // that it knows: they are incomplete if it has not read all the deleted records.
        walk = AuditWalk { begins: base.seq + 1, head: base.clone(), ..AuditWalk::new(walk.member) };
    }
    let mut hashes = VecDeque::new();
    for record in agreed.audit_records(walk.head.seq, want.seq) {
        let record = record?;
        walk.head.follow(&record)?;
        if hashes.len() == KEPT_MAX {
            hashes.pop_front();
        }
        hashes.push_back(record.hash.clone());
        look(&mut walk, agreed, (&cluster, &base), &record, &hashes)?;
        if began.elapsed() >= STEP {
            return Ok(walk);
        }
    }
    if walk.head.seq < want.seq {
        return Err(AuditFault { seq: walk.head.seq + 1, why: "it is missing" }.into());
    }
    if walk.head != want {
        return Err(AuditFault { seq: walk.head.seq, why: "the chain does not end at the agreed head" }.into());
    }
    walk.done = true;
    Ok(walk)
}

/// If the chain here does not begin with the first record, the member's first key may have been
/// introduced before it.
fn introduce_earlier(walk: &mut AuditWalk, base: &AuditHead, member: MemberId, key: &str) {
    if base.seq > 0 && walk.keys.iter().all(|known| known.member != member) {
        walk.keys.push(KeyPeriod { member, key: key.to_owned(), since: base.seq, until: None });
    }
}

/// Records keys and checks signatures. `hashes`: the hashes of the records up to this one, in the
/// order of the chain.
fn look(
    walk: &mut AuditWalk,
    agreed: &Agreed,
    (cluster, base): (&str, &AuditHead),
    record: &AuditRecord,
    hashes: &VecDeque<String>,
) -> Result<(), AuditError> {
    let seq = record.seq;
    let fault = |why| Err(AuditFault { seq, why }.into());
    match record.action {
        AuditAction::SigningKeySet => {
            let Some(set) = KeySet::of(record) else { return fault("it names no key") };
            if let Some(replaced) = &set.replaces {
                introduce_earlier(walk, base, set.member, replaced);
            }
            if let Some(before) = walk.keys.iter_mut().find(|k| k.member == set.member && k.until.is_none()) {
                before.until = Some(seq);
            }
            walk.keys.push(KeyPeriod { member: set.member, key: set.key, since: seq, until: None });
        }
        AuditAction::HeadSigned => {
            let Some(signed) = SignedHead::of(record) else { return fault("it holds no signature") };
            if signed.seq == 0 || signed.seq >= seq {
                return fault("it signs a record that is not before it");
            }
            introduce_earlier(walk, base, signed.member, &signed.key);
            let present = walk.keys.iter().any(|k| k.member == signed.member && k.key == signed.key && k.until.is_none());
            if !present {
                return fault("it is signed with a key that its member did not have then");
            }
            let back = usize::try_from(seq - signed.seq).unwrap_or(usize::MAX);
            let kept = hashes.len().checked_sub(back + 1).and_then(|at| hashes.get(at)).cloned();
            let hash = match kept {
                Some(hash) => Some(hash),
                // The signature covers a record that is only in the archive.
                None if signed.seq < base.seq => Some(signed.hash.clone()),
                None if signed.seq == base.seq => Some(base.hash.clone()),
                None => match agreed.audit_records(signed.seq - 1, signed.seq).next().transpose()? {
                    Some(record) => Some(record.hash),
                    // The record was deleted since this step began.
                    None => (signed.seq <= agreed.audit_base().seq).then(|| signed.hash.clone()),
                },
            };
            if hash.as_ref() != Some(&signed.hash) {
                return fault("it signs another hash than the record has");
            }
            if !verifies(&signed.key, SignedHead::message(cluster, signed.seq, &signed.hash).as_bytes(), &signed.signature) {
                return fault("its signature does not hold");
            }
            walk.signatures += 1;
            walk.signed = walk.signed.max(signed.seq);
        }
        _ => {}
    }
    Ok(())
}
