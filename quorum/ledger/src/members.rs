//! The command that names the cluster, and the audit records of membership changes.

use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::{AuditAction, Principal};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One step of a membership change. The membership itself is Raft's; the step is for the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MembersStep {
    /// A member is added as a learner.
    Learn { id: u64, service: String, raft: String },
    /// These members vote from now on.
    Vote { voters: Vec<u64> },
    /// A member without a vote is removed.
    Forget { id: u64 },
    /// Leadership is handed to another member.
    HandOver { to: u64 },
}

impl fmt::Display for MembersStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Learn { id, service, raft } => write!(f, "member {id} (service {service}, raft {raft}) learns"),
            Self::Vote { voters } => {
                let voters: Vec<String> = voters.iter().map(u64::to_string).collect();
                write!(f, "members {} vote", voters.join(", "))
            }
            Self::Forget { id } => write!(f, "member {id} leaves the cluster"),
            Self::HandOver { to } => write!(f, "member {to} is to lead"),
        }
    }
}

impl Ledger {
    pub(super) fn bootstrap(&mut self, context: &mut ApplyContext, cluster: &str) -> Result<Outcome, Refusal> {
        if !self.cluster.is_empty() {
            return if self.cluster == cluster {
                Ok(Outcome::Done)
            } else {
                Err(Refusal::Malformed { why: format!("this cluster is named {:?} already", self.cluster) })
            };
        }
        cluster.clone_into(&mut self.cluster);
        self.record(context, "quorum", AuditAction::ClusterBootstrapped, Subject::default(), cluster.to_owned());
        Ok(Outcome::Done)
    }

    pub(super) fn record_members(&mut self, context: &mut ApplyContext, by: &Principal, step: &MembersStep) -> Result<Outcome, Refusal> {
        self.record(context, &by.name, AuditAction::MembersChanged, Subject::default(), step.to_string());
        Ok(Outcome::Done)
    }
}
