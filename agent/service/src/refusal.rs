//! The quorum's refusals as gRPC statuses: all in one place, because the CLI's exit codes follow
//! from them.

use lattice_ledger::{DependencyRefusal, UpdateRefusal};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Refusal};
use tonic::Status;

/// The status for a call that the quorum refused or did not answer.
pub(super) fn status(error: &CallError) -> Status {
    match error {
        CallError::Unavailable { .. } => Status::unavailable(error.to_string()),
        CallError::Refused(refusal) => {
            let text = match refusal.remedy() {
                Some(remedy) => format!("{refusal}\nhint: {remedy}"),
                None => refusal.to_string(),
            };
            match cause(refusal) {
                Refusal::NoSuchAllocation { .. }
                | Refusal::NoSuchNode { .. }
                | Refusal::NoSuchLease { .. }
                | Refusal::NoSuchTenant { .. }
                | Refusal::NoSuchVCluster { .. }
                | Refusal::NoSuchReservation { .. }
                | Refusal::NoSuchSession { .. }
                | Refusal::NoSuchService { .. }
                | Refusal::Dependency { why: DependencyRefusal::Unknown, .. }
                | Refusal::NoSuchDag { .. }
                | Refusal::NoSuchBinding { .. }
                | Refusal::NoSuchMember { .. }
                | Refusal::NoSuchProject { .. }
                | Refusal::NoSuchProjectMember { .. }
                | Refusal::NoSuchToken { .. }
                | Refusal::NoSuchDomain { .. } => Status::not_found(text),
                Refusal::AmbiguousAllocation { .. }
                | Refusal::NumberOrId { .. }
                | Refusal::AmbiguousDag { .. }
                | Refusal::TenantNotNamed { .. }
                | Refusal::Malformed { .. }
                | Refusal::TooLarge { .. } => Status::invalid_argument(text),
                Refusal::NotYours { .. }
                | Refusal::DagNotYours { .. }
                | Refusal::LeaseNotYours { .. }
                | Refusal::Role { .. }
                | Refusal::CertificateRefused { .. }
                | Refusal::NotOperator { .. }
                | Refusal::ClassTooHigh { .. }
                | Refusal::NotOfTenant { .. }
                | Refusal::NotOfReservation { .. }
                | Refusal::NotOfProject { .. }
                | Refusal::Dependency { why: DependencyRefusal::NotYours, .. }
                | Refusal::VClusterOfTenant { .. } => Status::permission_denied(text),
                Refusal::AllocationExists { .. }
                | Refusal::DagExists { .. }
                | Refusal::TenantExists { .. }
                | Refusal::VClusterExists { .. }
                | Refusal::ReservationExists { .. }
                | Refusal::SessionExists { .. } => Status::already_exists(text),
                Refusal::Unavailable { .. } | Refusal::DiskFull { .. } => Status::unavailable(text),
                Refusal::AuditBroken { .. } => Status::data_loss(text),
                Refusal::OtherVersion { .. } | Refusal::Update { why: UpdateRefusal::OtherVersion { .. }, .. } => Status::aborted(text),
                _ => Status::failed_precondition(text),
            }
        }
    }
}

/// The refusal itself, or the one of the step for which a DAG was refused.
fn cause(refusal: &Refusal) -> &Refusal {
    match refusal {
        Refusal::DagStep { refusal, .. } => refusal,
        other => other,
    }
}

/// The quorum answered with another type than the request expects.
pub(super) fn unexpected(answer: &Answer) -> Status {
    Status::internal(format!("the quorum answered with something else: {answer:?}").chars().take(300).collect::<String>())
}
