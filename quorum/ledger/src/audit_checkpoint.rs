//! The checkpoint of the audit chain: every record up to it is in the archive, so members need not
//! keep it.
//!
//! The leader commits it after it has read the archive back and followed every link up to there
//! (`audit_archive` in `lattice-quorum`); `apply` checks neither. A checkpoint never moves back. It
//! survives a recovery from a backup, because the backup has the same records up to there; afterwards,
//! only the archive's folder differs.

use super::state::AuditCheckpoint;
use super::{Ledger, Outcome};
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::signed_head::SignedHead;
use lattice_model::Generation;

/// Largest size of an archive's URL, in bytes.
const ARCHIVE_BYTES_MAX: usize = 1024;

impl Ledger {
    /// The newest checkpoint, if there is one.
    pub fn audit_checkpoint(&self) -> Option<&AuditCheckpoint> {
        self.audit_checkpoint.as_ref()
    }

    pub(super) fn set_audit_checkpoint(&mut self, signed: &SignedHead, generation: Generation, archive: &str) -> Result<Outcome, Refusal> {
        self.check_signed_head(signed)?;
        if archive.len() > ARCHIVE_BYTES_MAX {
            let (bytes, most) = (archive.len() as u64, ARCHIVE_BYTES_MAX as u64);
            return Err(Refusal::TooLarge { what: "the archive's URL".to_owned(), bytes, most });
        }
        if generation != self.generation {
            let why = format!("the archive was read for generation {generation}; this is generation {}", self.generation);
            return Err(Refusal::Malformed { why });
        }
        if let Some(known) = &self.audit_checkpoint {
            if signed.seq < known.signed.seq {
                let why = format!("record {} is no checkpoint: that is record {} already", signed.seq, known.signed.seq);
                return Err(Refusal::Malformed { why });
            }
            if signed.seq == known.signed.seq && (generation, archive) == (known.generation, known.archive.as_str()) {
                return Ok(Outcome::Done);
            }
        }
        self.audit_checkpoint = Some(AuditCheckpoint { signed: signed.clone(), generation, archive: archive.to_owned() });
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Command};
    use lattice_model::{MemberId, Revision, Timestamp};

    fn apply(ledger: &mut Ledger, action: Action) -> Result<Outcome, Refusal> {
        ledger.apply(Revision(ledger.revision().0 + 1), &Command { at: Timestamp(1), action }).result
    }

    #[test]
    fn a_checkpoint_needs_a_key_on_record_and_never_moves_back() {
        let mut ledger = Ledger::default();
        let (member, key) = (MemberId(1), "a".repeat(64));
        apply(&mut ledger, Action::Bootstrap { cluster: "c".into() }).unwrap();
        let signed = |ledger: &Ledger, seq| SignedHead {
            seq,
            hash: ledger.audit_head().hash.clone(),
            member,
            key: key.clone(),
            signature: "b".repeat(128),
        };
        let archive = |ledger: &mut Ledger, seq, generation| {
            let signed = signed(ledger, seq);
            apply(ledger, Action::ArchiveAudit { signed, generation, archive: "file:///archive".into() })
        };
        let generation = ledger.generation();
        assert!(archive(&mut ledger, 1, generation).is_err(), "the key is not on record");
        apply(&mut ledger, Action::SetSigningKey { member, key: key.clone() }).unwrap();
        assert!(archive(&mut ledger, 3, generation).is_err(), "there are two records");
        assert!(archive(&mut ledger, 2, Generation(generation.0 + 1)).is_err(), "of another generation");
        assert_eq!(ledger.audit_checkpoint(), None);
        for _ in 0..2 {
            archive(&mut ledger, 2, generation).unwrap();
        }
        assert_eq!(ledger.audit_checkpoint().map(|c| c.signed.seq), Some(2));
        assert!(archive(&mut ledger, 1, generation).is_err());
        assert_eq!(ledger.audit_checkpoint().map(|c| c.signed.seq), Some(2));
        // After a recovery, the same record is confirmed in the new generation's folder.
        ledger.recover(Revision(9), Timestamp(5_000_000));
        let recovered = ledger.generation();
        assert_eq!(ledger.audit_checkpoint().map(|c| c.generation), Some(generation));
        archive(&mut ledger, 2, recovered).unwrap();
        assert_eq!(ledger.audit_checkpoint().map(|c| (c.signed.seq, c.generation)), Some((2, recovered)));
    }
}
