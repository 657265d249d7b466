//! The leader's duties for the audit log: recording its key, and signing new records.

use super::signer::Signer;
use lattice_ledger::signing::SignedHead;
use lattice_ledger::{Action, Ledger};
use std::time::{Duration, Instant};

/// When the leader signs. One for each term.
#[derive(Debug)]
pub struct SigningDuty {
    every: Duration,
    last: Instant,
}

impl SigningDuty {
    /// Signs at this interval from now on, and only if there are new records.
    pub fn new(every: Duration, now: Instant) -> Self {
        Self { every, last: now }
    }

    /// The commands to propose now.
    pub fn due(&mut self, now: Instant, ledger: &Ledger, signer: &Signer) -> Vec<Action> {
        let (member, signing, head) = (signer.member(), ledger.signing(), ledger.audit_head());
        if ledger.cluster().is_empty() || head.seq <= signing.last || now.duration_since(self.last) < self.every {
            return Vec::new();
        }
        self.last = now;
        let mut actions = Vec::new();
        if signing.keys.get(&member).map(String::as_str) != Some(signer.public()) {
            actions.push(Action::SetSigningKey { member, key: signer.public().to_owned() });
        }
        let message = SignedHead::message(ledger.cluster(), head.seq, &head.hash);
        let (key, signature) = (signer.public().to_owned(), signer.sign(message.as_bytes()));
        actions.push(Action::SignHead(SignedHead { seq: head.seq, hash: head.hash.clone(), member, key, signature }));
        actions
    }
}
