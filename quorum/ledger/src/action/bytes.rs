//! Approximate sizes of commands in the log, in bytes.

use super::super::{HeldShare, Registration};
use lattice_model::access::{MemberChange, MemberStep, ProjectChange, ProjectStep, RoleBinding, Subject};
use lattice_model::access_token::AccessToken;
use lattice_model::conformance::Components;
use lattice_model::scaling::Step;
use lattice_model::{AllocationSpec, Claim, ReportItem, TaskSet};

pub(super) fn project_bytes(change: &ProjectChange) -> usize {
    let account = match &change.step {
        ProjectStep::Create | ProjectStep::Delete => 0,
        ProjectStep::Add { account } => subject_bytes(account),
        ProjectStep::Remove { account } => account.name.len(),
    };
    256 + change.tenant.len() + change.project.len() + account
}

pub(super) fn member_bytes(change: &MemberChange) -> usize {
    let subject = match &change.step {
        MemberStep::Add { subject, is_default: _ } => subject_bytes(subject),
        MemberStep::Remove { subject } => subject.name.len(),
    };
    256 + change.tenant.len() + subject
}

pub(super) fn binding_bytes(RoleBinding { subject, role: _, tenant }: &RoleBinding) -> usize {
    256 + subject_bytes(subject) + tenant.as_ref().map_or(0, String::len)
}

pub(super) fn token_bytes(AccessToken { name, account, issued_by, .. }: &AccessToken) -> usize {
    256 + name.len() + subject_bytes(account) + issued_by.len()
}

fn subject_bytes(subject: &Subject) -> usize {
    match subject {
        Subject::User { name, uid: _ } | Subject::Group { name, gid: _ } => name.len(),
    }
}

pub(super) fn submission_bytes(spec: &AllocationSpec, claim: Option<&Claim>) -> usize {
    let script = spec.script().map_or(0, |text| text.len());
    spec.bytes_without_script() + script + 256 + claim.map_or(0, claim_bytes)
}

pub(super) fn claim_bytes(claim: &Claim) -> usize {
    128 + claim.shares.len() * 96
}

pub(super) fn tasks_bytes(tasks: &TaskSet) -> usize {
    tasks.range_count() * 11
}

pub(super) fn step_bytes(step: &Step) -> usize {
    match step {
        Step::Note { found: Err(why) } | Step::Restart { found: Err(why) } => why.len(),
        Step::Note { found: Ok(_) } | Step::Restart { found: Ok(_) } | Step::Want { .. } => 0,
    }
}

pub(super) fn adoption_bytes(held: &[HeldShare], unreported: &[ReportItem]) -> usize {
    256 + unreported.iter().map(report_bytes).sum::<usize>() + held.iter().map(HeldShare::bytes_about).sum::<usize>()
}

pub(super) fn report_bytes(item: &ReportItem) -> usize {
    512 + match item {
        ReportItem::PrepareFailed { why, .. } | ReportItem::NotPreempted { why, .. } => why.len(),
        ReportItem::Ended { reason, .. } => reason.to_string().len(),
        ReportItem::UnreportedHealth { health, .. } => health.len(),
        ReportItem::PortsOpen { ports, .. } => 2 * ports.len(),
        ReportItem::Prepared { .. } | ReportItem::Released { .. } | ReportItem::Checkpointed { .. } => 0,
    }
}

pub(super) fn registration_bytes(registration: &Registration) -> usize {
    let Registration { features, unenforced_limits, locality, found, addresses, unwell, conformance, .. } = registration;
    let texts = features.iter().chain(unenforced_limits).chain(unwell).map(|text| 8 + text.len()).sum::<usize>();
    let addresses = addresses.mesh.len() + addresses.gossip.len();
    let found = found.as_ref().map_or(0, |found| 32 * found.len());
    let wiring = 32 * locality.domains.len() + 8 * locality.gpu_links.len();
    512 + texts + addresses + found + wiring + conformance.as_ref().map_or(0, components_bytes)
}

pub(super) fn components_bytes(components: &Components) -> usize {
    256 + components.iter().map(|(name, value)| 8 + name.len() + value.len()).sum::<usize>()
}
