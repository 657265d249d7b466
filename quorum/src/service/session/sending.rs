//! The messages sent down a session when something changes.

use super::Session;
use super::link::Ended;
use super::list_digest::ListDigest;
use lattice_model::{Revision, with_causes};
use lattice_quorum_client::wire::Down;

impl Session<'_> {
    /// Acknowledges the newest heartbeat that the leader knows, if it is not acknowledged yet.
    pub(super) async fn acknowledge_beat(&mut self) -> Result<(), Ended> {
        let known = *self.known.borrow_and_update();
        let mut newest = None;
        while let Some((seq, _)) = self.beats.pop_front_if(|(_, at)| *at <= known) {
            newest = Some(seq);
        }
        match newest {
            Some(seq) => self.down.send(&Down::HeartbeatAck { seq }).await,
            None => Ok(()),
        }
    }

    /// Sends the gossip keys, unless there are none or the same ones were already sent.
    pub(super) async fn send_keys(&mut self) -> Result<(), Ended> {
        let (generation, ring) = {
            let ledger = self.core.agreed.ledger();
            let ring = ledger.keyring();
            if ring.is_empty() || self.sent_keys == Some(ring.revision) {
                return Ok(());
            }
            (ledger.generation(), ring.clone())
        };
        self.sent_keys = Some(ring.revision);
        self.down.send(&Down::Keyring { generation, ring }).await
    }

    /// Sends the revocations that were not sent yet.
    pub(super) async fn send_revoked(&mut self) -> Result<(), Ended> {
        let (names, newest) = {
            let ledger = self.core.agreed.ledger();
            let new: Vec<_> = ledger.revocations().filter(|(_, revocation)| revocation.revision > self.sent_revoked).collect();
            let newest = new.iter().map(|(_, revocation)| revocation.revision).max();
            (new.into_iter().map(|(name, revocation)| (name.to_owned(), revocation.before)).collect(), newest)
        };
        let Some(newest) = newest else { return Ok(()) };
        self.sent_revoked = newest;
        self.down.send(&Down::Revoked { names }).await
    }

    /// Sends the node's list, unless the same one was already sent.
    pub(super) async fn send_desired(&mut self, at_least: Revision) -> Result<(), Ended> {
        let mut desired = {
            let ledger = self.core.agreed.ledger();
            // A restarted agent has a session of its own.
            match ledger.node(&self.node).map(|n| n.incarnation) {
                Some(incarnation) if incarnation == self.incarnation => {}
                Some(_) => return Err(Ended::Close("the node registered anew".to_owned())),
                None => return Err(Ended::Removed(ledger.not_registered(&self.node).to_string())),
            }
            if ledger.awaits(&self.node) {
                // A recovery waits for the node: it gets its list after it has reported its shares.
                return Ok(());
            }
            ledger.desired(&self.node)
        };
        debug_assert!(desired.revision >= at_least, "the registration is applied here");
        let digest = ListDigest::of(&mut desired).map_err(|e| Ended::Close(with_causes(&e)))?;
        if self.sent.as_ref() == Some(&digest) {
            return Ok(());
        }
        self.sent = Some(digest);
        self.down.send(&Down::Desired(desired)).await
    }
}
