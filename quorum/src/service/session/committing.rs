//! Commits an agent's reports to the log.

use super::Session;
use super::link::Ended;
use crate::heartbeats::Heartbeat;
use crate::proposer::unserved;
use crate::raft_counts::count;
use crate::service::answer::{propose, propose_gathered};
use crate::service::miscounted::Verdict;
use lattice_ledger::{Action, Outcome};
use lattice_model::NodeReport;
use lattice_pki::refused::Cause;
use lattice_quorum_client::wire::{Down, Refusal};
use std::time::{Duration, Instant};
use tonic::Status;

/// Largest number of reports that wait for a leader, or for space on its disk.
const WAITING_MAX: usize = 4096;
/// Pause between two attempts to commit reports while the leader's disk is full.
const DISK_FULL_PAUSE: Duration = Duration::from_secs(1);
/// How long reports wait for an answer of the leader before the agent is to try another member.
const UNSERVED_MAX: Duration = Duration::from_secs(10);

impl Session<'_> {
    pub(super) async fn commit(&mut self, reports: Vec<NodeReport>) -> Result<(), Ended> {
        if let Some(report) = reports.iter().find(|r| r.node != self.node) {
            let why = format!("{} cannot report for {}", self.node, report.node);
            self.core.identity.credentials.refused().count(Cause::Name, &why);
            return Err(Ended::Refused(Status::permission_denied(why)));
        }
        if !reports.is_empty() {
            let heartbeat = Heartbeat { incarnation: self.incarnation, at: Instant::now(), keys: None, health: None };
            self.core.leading.heartbeats.record(self.node.clone(), heartbeat);
        }
        let mut reports: Vec<NodeReport> = std::mem::take(&mut self.waiting).into_iter().chain(reports).collect();
        let reported: Vec<_> = reports.iter().map(|r| (r.seq, r.item.subject())).collect();
        let actions = reports.iter().cloned().map(Action::Report).collect();
        let results = match propose_gathered(self.core, actions).await {
            Ok(results) => results,
            // If a report was committed after all, the next attempt only acknowledges it.
            Err(why) if reports.len() <= WAITING_MAX && self.unserved_since.get_or_insert_with(Instant::now).elapsed() < UNSERVED_MAX => {
                tracing::debug!(node = %self.node, why = %unserved(why), "reports wait");
                let pause = self.unserved_pauses.next_pause().mul_f64(rand::random_range(0.5..1.0));
                self.retry(reports, pause);
                return Ok(());
            }
            Err(why) => return Err(Ended::Close(unserved(why).to_string())),
        };
        self.unserved_since = None;
        self.unserved_pauses.reset();
        let mut acked = None;
        let mut superseded = Vec::new();
        let mut refused: Option<Refusal> = None;
        for ((seq, subject), result) in reported.into_iter().zip(results) {
            match result {
                Ok(outcome) if refused.is_none() => {
                    if let (Outcome::ContentRefused(refusal), _) = outcome {
                        tracing::info!(node = %self.node, %refusal, "a report is not heeded");
                        superseded.extend(subject);
                    }
                    acked = Some(seq);
                }
                Ok(_) => {}
                Err(refusal) => refused = refused.or(Some(refusal)),
            }
        }
        if let Some(seq) = acked {
            self.down.send(&Down::Acked { incarnation: self.incarnation, seq, superseded }).await?;
        }
        match refused {
            // The session stays open, so that the node counts as alive. The agent keeps the reports
            // until they are acknowledged; reports above the limit are sent again in another
            // session.
            Some(Refusal::DiskFull { .. }) if reports.len() <= WAITING_MAX => {
                reports.retain(|r| acked.is_none_or(|acked| r.seq > acked));
                self.retry(reports, DISK_FULL_PAUSE);
                Ok(())
            }
            Some(refusal) => Err(Ended::Close(refusal.to_string())),
            None => Ok(()),
        }
    }

    fn retry(&mut self, reports: Vec<NodeReport>, pause: Duration) {
        self.waiting = reports;
        self.again = Instant::now() + pause;
    }

    /// Compares the number of shares reported by the node with the ledger, if the node should have
    /// them by now.
    pub(super) fn count_running(&mut self, reported: Option<u32>) {
        let Some(reported) = reported else { return };
        let known = {
            let ledger = self.core.agreed.ledger();
            if ledger.awaits(&self.node) {
                return;
            }
            ledger.holdings(&self.node).len()
        };
        let verdict = self.miscounted.compare(reported, known);
        if verdict == Verdict::Begins {
            tracing::error!(node = %self.node, said = reported, known, "the node has other work than the ledger knows there: `lattice node status` there names its own");
        }
        if verdict != Verdict::Fine {
            count(&self.core.counts.miscounted);
        }
    }

    /// Commits the node's software and firmware if they differ from the recorded ones. This is
    /// rare, so it is not part of the heartbeat summary. If the commit is refused, the next
    /// heartbeat tries again.
    pub(super) async fn commit_conformance(&mut self) -> Result<(), Ended> {
        let Some(reported) = &self.conformance else { return Ok(()) };
        let action = {
            let ledger = self.core.agreed.ledger();
            let known = ledger.node(&self.node).and_then(|node| node.conformance.as_ref());
            if known.is_some_and(|known| known.components == *reported) {
                return Ok(());
            }
            Action::Conforms { node: self.node.clone(), incarnation: self.incarnation, components: reported.clone() }
        };
        match propose(self.core, vec![action]).await.map_err(|e| Ended::Close(unserved(e).to_string()))?.pop() {
            Some(Ok(_)) => {}
            Some(Err(refusal @ Refusal::Malformed { .. })) => {
                tracing::warn!(node = %self.node, %refusal, "the node's conformance report was refused");
                self.conformance = None;
            }
            Some(Err(refusal)) => tracing::debug!(node = %self.node, %refusal, "what the node is made of is not written down yet"),
            None => return Err(Ended::Close("the leader gave no answer".to_owned())),
        }
        Ok(())
    }

    /// Commits whether the components are stale, if that changed.
    pub(super) async fn commit_stale(&mut self, stale: bool) -> Result<(), Ended> {
        let action = Action::ConformanceStale { node: self.node.clone(), incarnation: self.incarnation, stale };
        {
            let ledger = self.core.agreed.ledger();
            let known = ledger.node(&self.node).and_then(|node| node.conformance.as_ref());
            if known.is_none_or(|known| known.stale == stale) {
                return Ok(());
            }
        }
        match propose(self.core, vec![action]).await.map_err(|e| Ended::Close(unserved(e).to_string()))?.pop() {
            Some(Ok(_)) => {}
            Some(Err(refusal)) => tracing::debug!(node = %self.node, %refusal, "how old what it is made of is is not written down yet"),
            None => return Err(Ended::Close("the leader gave no answer".to_owned())),
        }
        Ok(())
    }
}
