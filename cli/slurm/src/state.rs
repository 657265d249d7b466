//! The states and reasons of jobs: Lattice's as Slurm names them.

use lattice_api::allocation::state_from_name;
use lattice_api::v1;
use lattice_model::AllocationState;
use thiserror::Error;

/// Slurm's states, in the order in which Slurm sorts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobState {
    /// It waits for nodes.
    Pending,
    /// It runs.
    Running,
    /// It gave its nodes back, and waits until somebody resumes it.
    Suspended,
    /// It ended with code 0.
    Completed,
    /// A user cancelled it, or its dependency can never be satisfied.
    Cancelled,
    /// It ended with another code, or could not begin.
    Failed,
    /// Its walltime ran out.
    Timeout,
    /// A node lost it.
    NodeFail,
    /// It had to give its nodes back, and does not run again.
    Preempted,
    /// It could not end before its deadline.
    Deadline,
    /// It had too little memory.
    OutOfMemory,
    /// Its nodes prepare for it.
    Configuring,
}

/// Every state with its name and its code.
const NAMES: [(JobState, &str, &str); 12] = [
    (JobState::Pending, "PENDING", "PD"),
    (JobState::Running, "RUNNING", "R"),
    (JobState::Suspended, "SUSPENDED", "S"),
    (JobState::Completed, "COMPLETED", "CD"),
    (JobState::Cancelled, "CANCELLED", "CA"),
    (JobState::Failed, "FAILED", "F"),
    (JobState::Timeout, "TIMEOUT", "TO"),
    (JobState::NodeFail, "NODE_FAIL", "NF"),
    (JobState::Preempted, "PREEMPTED", "PR"),
    (JobState::Deadline, "DEADLINE", "DL"),
    (JobState::OutOfMemory, "OUT_OF_MEMORY", "OOM"),
    (JobState::Configuring, "CONFIGURING", "CF"),
];

/// States of Slurm in which no work of Lattice ever is.
const NEVER: [(&str, &str); 13] = [
    ("BOOT_FAIL", "BF"),
    ("COMPLETING", "CG"),
    ("RESV_DEL_HOLD", "RD"),
    ("REQUEUE_FED", "RF"),
    ("REQUEUE_HOLD", "RH"),
    ("REQUEUED", "RQ"),
    ("RESIZING", "RS"),
    ("REVOKED", "RV"),
    ("SIGNALING", "SI"),
    ("SPECIAL_EXIT", "SE"),
    ("STAGE_OUT", "SO"),
    ("STOPPED", "ST"),
    ("EXPEDITING", "EX"),
];

impl JobState {
    /// Its name, such as `PENDING`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(state, ..)| *state == self).map_or("", |(_, name, _)| name)
    }

    /// Its code, such as `PD`.
    pub fn code(self) -> &'static str {
        NAMES.iter().find(|(state, ..)| *state == self).map_or("", |(.., code)| code)
    }

    /// Whether it is final.
    pub fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Running | Self::Suspended | Self::Configuring => false,
            Self::Completed
            | Self::Cancelled
            | Self::Failed
            | Self::Timeout
            | Self::NodeFail
            | Self::Preempted
            | Self::Deadline
            | Self::OutOfMemory => true,
        }
    }

    /// The states of Lattice that may be shown as this one.
    fn lattice(self) -> &'static [AllocationState] {
        match self {
            Self::Pending => &[AllocationState::Pending, AllocationState::Suspended],
            Self::Running => &[AllocationState::Running],
            Self::Suspended => &[AllocationState::Suspended],
            Self::Configuring => &[AllocationState::Staging],
            Self::Completed => &[AllocationState::Completed],
            Self::Cancelled => &[AllocationState::Cancelled],
            Self::Deadline => &[AllocationState::Cancelled, AllocationState::Failed],
            Self::Failed | Self::Timeout | Self::NodeFail | Self::Preempted | Self::OutOfMemory => &[AllocationState::Failed],
        }
    }

    /// The state of work that is in this state of Lattice, with this reason.
    pub fn of(state: &str, reason: &str, held: bool) -> Self {
        match state_from_name(state) {
            Ok(AllocationState::Suspended) if held => Self::Suspended,
            Ok(AllocationState::Pending | AllocationState::Suspended) => Self::Pending,
            Ok(AllocationState::Staging) => Self::Configuring,
            Ok(AllocationState::Running) => Self::Running,
            Ok(AllocationState::Completed) => Self::Completed,
            Ok(AllocationState::Cancelled) if reason.starts_with("deadline") => Self::Deadline,
            Ok(AllocationState::Cancelled) => Self::Cancelled,
            Ok(AllocationState::Failed) | Err(_) => Self::of_failure(reason),
        }
    }

    fn of_failure(reason: &str) -> Self {
        const CAUSES: [(&str, JobState); 7] = [
            ("walltime_exceeded", JobState::Timeout),
            ("out_of_memory", JobState::OutOfMemory),
            ("node_lost", JobState::NodeFail),
            ("run_lease_lapsed", JobState::NodeFail),
            ("drain_deadline", JobState::NodeFail),
            ("preempted", JobState::Preempted),
            ("deadline", JobState::Deadline),
        ];
        CAUSES.iter().find(|(cause, _)| reason.starts_with(cause)).map_or(Self::Failed, |(_, state)| *state)
    }
}

/// The text names no state of Slurm.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("Invalid job state specified: {0}")]
pub struct InvalidState(pub String);

/// Which states are wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct States(Vec<JobState>);

impl States {
    /// The states that squeue shows without `--states`.
    pub fn unended() -> Self {
        Self(NAMES.iter().map(|(state, ..)| *state).filter(|state| !state.is_final()).collect())
    }

    /// All of them.
    pub fn all() -> Self {
        Self(NAMES.iter().map(|(state, ..)| *state).collect())
    }

    /// Reads `PD,running` or `all`.
    ///
    /// # Errors
    /// A part names no state of Slurm.
    pub fn parse(names: &[String]) -> Result<Self, InvalidState> {
        let mut wanted = Vec::new();
        for text in names {
            if text.eq_ignore_ascii_case("all") {
                return Ok(Self::all());
            }
            let is = |name: &str, code: &str| text.eq_ignore_ascii_case(name) || text.eq_ignore_ascii_case(code);
            match NAMES.iter().find(|(_, name, code)| is(name, code)) {
                // Slurm's running jobs include those whose nodes prepare.
                Some((JobState::Running, ..)) => wanted.extend([JobState::Running, JobState::Configuring]),
                Some((state, ..)) => wanted.push(*state),
                None if NEVER.iter().any(|(name, code)| is(name, code)) => {}
                None => return Err(InvalidState(text.chars().take(40).collect())),
            }
        }
        Ok(Self(wanted))
    }

    /// Whether this state is wanted.
    pub fn has(&self, state: JobState) -> bool {
        self.0.contains(&state)
    }

    /// Whether a final state is wanted.
    pub fn has_final(&self) -> bool {
        self.0.iter().any(|state| state.is_final())
    }

    /// Whether none is wanted, because work of Lattice is never in the named states.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names of the states of Lattice that may be shown as a wanted one. Running is always among them, because a
    /// running task group may have tasks in any state.
    pub fn lattice_names(&self) -> Vec<String> {
        let mut states: Vec<AllocationState> = self.0.iter().flat_map(|state| state.lattice()).copied().collect();
        states.push(AllocationState::Running);
        let all = lattice_api::allocation::STATES;
        all.into_iter().filter(|state| states.contains(state)).map(|state| state.to_string()).collect()
    }
}

/// Why work is in its state, as Slurm names it. Programs know only the reasons in Slurm's documentation (PSI/J fails at
/// any other reason of failed work), so an end without a reason of its own there gets the nearest one.
pub fn reason(a: &v1::Allocation, state: JobState, why_ended: &str, now_ms: u64) -> &'static str {
    match state {
        JobState::Pending | JobState::Suspended => waiting_reason(a, now_ms),
        JobState::Running | JobState::Completed | JobState::Configuring => "None",
        // Work with a higher priority has its nodes.
        JobState::Preempted => "Priority",
        JobState::Cancelled if why_ended.starts_with("dependency_unmet") => "DependencyNeverSatisfied",
        JobState::Cancelled => "None",
        JobState::Failed if why_ended.starts_with("prologue_failed") => "JobLaunchFailure",
        JobState::Failed | JobState::OutOfMemory => "NonZeroExitCode",
        JobState::Timeout | JobState::Deadline => "TimeLimit",
        JobState::NodeFail => "NodeDown",
    }
}

fn waiting_reason(a: &v1::Allocation, now_ms: u64) -> &'static str {
    let message = a.status_message.strip_prefix("lanes wait: ").unwrap_or(&a.status_message);
    let has = |piece: &str| message.contains(piece);
    match () {
        () if a.held => "JobHeldUser",
        () if a.timing.as_ref().is_some_and(|timing| timing.begin_ms > now_ms) => "BeginTime",
        () if message.starts_with("reservation deleted") => "ReservationDeleted",
        () if message.starts_with("reservation ") => "Reservation",
        () if a.dependencies.iter().any(|on| !on.met) => "Dependency",
        // Work with an unmet dependency is not in its queue yet; work that waits for nodes is.
        () if a.queue_position == 0 && message.starts_with("waits ") => "Dependency",
        () if has("budget") => "AssocGrpBillingMinutes",
        () if has("user limit:") || (has("quota:") && has("allocations")) => "AssocMaxJobsLimit",
        () if has("quota:") => "AssocGrpNodeLimit",
        () if has("last attempt may run") || message.starts_with("requeued ") => "Cleaning",
        () if has("out of service") || has(": reservation ") => "ReqNodeNotAvail",
        () if has("could serve") || has("excluded") => "BadConstraints",
        () if a.queue_position > 1 || message.starts_with("behind ") || message.ends_with(" ahead") => "Priority",
        () if a.queue_position == 1 || !message.is_empty() => "Resources",
        () => "None",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_follow_from_state_and_reason() {
        let of = |state: &str, reason: &str, held| JobState::of(state, reason, held).code();
        for (state, reason, code) in [
            ("Pending", "", "PD"),
            ("Pending", "requeued by ada: x", "PD"),
            ("Staging", "", "CF"),
            ("Running", "", "R"),
            ("Suspended", "preempted by op: x", "PD"),
            ("Completed", "completed", "CD"),
            ("Cancelled", "cancelled by ada", "CA"),
            ("Failed", "exit_code 3", "F"),
            ("Failed", "walltime_exceeded", "TO"),
            ("Failed", "node_lost n1: rebooted", "NF"),
            ("Failed", "out_of_memory on n1: x", "OOM"),
            ("Failed", "preempted by op: x; not saved: y", "PR"),
        ] {
            assert_eq!(of(state, reason, false), code, "{state} {reason}");
        }
        assert_eq!(of("Suspended", "", true), "S");
        assert_eq!(of("Pending", "", true), "PD");
    }

    #[test]
    fn states_are_read_by_name_and_by_code() {
        let read = |text: &str| States::parse(&[text.to_owned()]);
        assert!(read("pd").unwrap().has(JobState::Pending) && read("Running").unwrap().has(JobState::Configuring));
        assert!(read("ALL").unwrap().has_final() && read("CG").unwrap().is_empty());
        assert_eq!(read("sleeping"), Err(InvalidState("sleeping".to_owned())));
        assert_eq!(States::unended().lattice_names(), ["Pending", "Staging", "Running", "Suspended"]);
        assert_eq!(read("CD").unwrap().lattice_names(), ["Running", "Completed"]);
    }

    #[test]
    fn reasons_say_what_it_waits_for() {
        let of = |a: &v1::Allocation| reason(a, JobState::Pending, "", 5);
        let waits = |status_message: &str, queue_position| v1::Allocation {
            status_message: status_message.to_owned(),
            queue_position,
            ..Default::default()
        };
        assert_eq!(of(&v1::Allocation { held: true, ..Default::default() }), "JobHeldUser");
        let timing = Some(v1::Timing { begin_ms: 6, ..Default::default() });
        assert_eq!(of(&v1::Allocation { timing, ..Default::default() }), "BeginTime");
        for (message, position, want) in [
            ("waits for 1f0c9a4e (prep) to complete", 0, "Dependency"),
            ("waits for 1f0c9a4e: it has no walltime", 1, "Resources"),
            ("starts ~10:00Z: next, 1 of 2 free", 1, "Resources"),
            ("starts ~10:00Z: 3 ahead", 4, "Priority"),
            ("behind 12 in its queue", 13, "Priority"),
            ("wants 9 nodes, 3 could serve", 1, "BadConstraints"),
            ("out of service: n1", 1, "ReqNodeNotAvail"),
            ("starts ~10:00Z: reservation course", 1, "ReqNodeNotAvail"),
            ("reservation not open yet: course", 0, "Reservation"),
            ("reservation deleted: course", 0, "ReservationDeleted"),
            ("quota: 3 of 3 nodes in use", 1, "AssocGrpNodeLimit"),
            ("user limit: 5 of 5 running", 2, "AssocMaxJobsLimit"),
            ("lanes wait: behind 2 in its queue", 0, "Priority"),
            ("", 0, "None"),
        ] {
            assert_eq!(of(&waits(message, position)), want, "{message}");
        }
        assert_eq!(reason(&waits("", 0), JobState::Failed, "exit_code 3", 0), "NonZeroExitCode");
        let of_end = |state| reason(&waits("", 0), state, "", 0);
        let ends = [JobState::Preempted, JobState::OutOfMemory, JobState::Deadline, JobState::NodeFail].map(of_end);
        assert_eq!(ends, ["Priority", "NonZeroExitCode", "TimeLimit", "NodeDown"]);
        assert_eq!(reason(&waits("", 0), JobState::Failed, "prologue_failed on n1: x", 0), "JobLaunchFailure");
    }
}
