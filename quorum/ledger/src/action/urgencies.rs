//! Urgencies that depend on the content of a command.

use super::super::AccessKind;
use super::super::urgency::Urgency::{self, Keeps, New};
use lattice_model::TelemetryMode;
use lattice_model::access::{MemberChange, MemberStep, ProjectChange, ProjectStep};

/// Records of read measurements are more urgent than others, because operators must still be able
/// to examine what fills the disks. There is at most one an hour for each operator, allocation and
/// command.
pub(super) fn access_urgency(kind: AccessKind) -> Urgency {
    if kind == AccessKind::MeasurementsRead { Keeps } else { New }
}

/// Taking rights away is more urgent than giving them.
pub(super) fn member_urgency(change: &MemberChange) -> Urgency {
    match change.step {
        MemberStep::Add { .. } => New,
        MemberStep::Remove { .. } => Keeps,
    }
}

pub(super) fn project_urgency(change: &ProjectChange) -> Urgency {
    match change.step {
        ProjectStep::Create | ProjectStep::Add { .. } => New,
        ProjectStep::Delete | ProjectStep::Remove { .. } => Keeps,
    }
}

pub(super) fn telemetry_urgency(mode: TelemetryMode) -> Urgency {
    match mode {
        TelemetryMode::Debug | TelemetryMode::Audit => New,
        TelemetryMode::Prod => Keeps,
    }
}
