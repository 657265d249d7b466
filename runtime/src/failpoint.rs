//! For tests: named points at which the agent kills itself, as a crash there would.
//!
//! `LATTICE_FAILPOINT=<name>` in the agent's environment arms a point. The configuration must allow work as root, which
//! is meant for tests; otherwise the agent does not start. The first pass through that point writes a message to
//! standard error and kills the process with SIGKILL: no destructor, no flush. An unarmed point costs one relaxed load.
//! `lattice-agent failpoints` prints the list, so that the crash test covers every point.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU16, Ordering};
use thiserror::Error;

/// The variable that names the point.
pub const VARIABLE: &str = "LATTICE_FAILPOINT";

/// The value of `ARMED` while no point is armed.
const NONE: u16 = u16::MAX;
static ARMED: AtomicU16 = AtomicU16::new(NONE);

/// The part of an allocation's life on a node in which a point is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// From the quorum's list to the entry point's start.
    Start,
    /// While the agent recovers its work after a restart.
    Adopt,
    /// From the entry point's end to the acknowledged release.
    End,
    /// While the ports that it exposes are reported.
    Ports,
    /// While a terminal is attached.
    Terminal,
    /// While output is uploaded to the log store.
    Flush,
    /// While the work saves itself for a checkpoint.
    Save,
    /// While the work is asked for a checkpoint through its shared page.
    Page,
    /// While its saved files are restored.
    Restore,
    /// While it is preempted and gives its nodes back.
    Preempt,
    /// While its checkpoints are removed.
    Removal,
    /// While the node reports to the quorum what changed during a disconnection. Concerns no allocation.
    UnreportedHealth,
}

/// The kind of work that passes a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Any work.
    Any,
    /// A script.
    Script,
    /// An inline command.
    Command,
    /// Work with an image.
    Image,
}

macro_rules! points {
    ($($variant:ident = $name:literal, $part:ident, $work:ident;)*) => {
        /// One point. Each name describes the step that was completed last.
        #[expect(missing_docs, reason = "the names below say what each is")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Point {
            $($variant,)*
        }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The value for `LATTICE_FAILPOINT`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The part of the life in which it is passed.
            pub fn part(self) -> Part {
                match self {
                    $(Self::$variant => Part::$part,)*
                }
            }

            /// The kind of work that passes it.
            pub fn work(self) -> Work {
                match self {
                    $(Self::$variant => Work::$work,)*
                }
            }
        }
    };
}

points! {
    // The driver: a decision is not yet written, is written, is being executed.
    PreparingUnwritten = "preparing-unwritten", Start, Any;
    PreparingWritten = "preparing-written", Start, Any;
    PreparingCommanded = "preparing-commanded", Start, Any;
    PreparedUnwritten = "prepared-unwritten", Start, Any;
    PreparedWritten = "prepared-written", Start, Any;
    RunningUnwritten = "running-unwritten", Start, Any;
    RunningWritten = "running-written", Start, Any;
    RunningCommanded = "running-commanded", Start, Any;
    // The prologue.
    IdentityChecked = "identity-checked", Start, Any;
    ScratchMade = "scratch-made", Start, Any;
    PrologueOver = "prologue-over", Start, Any;
    ImageCopied = "image-copied", Start, Image;
    ImageAdmitted = "image-admitted", Start, Image;
    ScopeMade = "scope-made", Start, Any;
    LimitsSet = "limits-set", Start, Any;
    ShimDirectoryMade = "shim-directory-made", Start, Any;
    ShimConfigWritten = "shim-config-written", Start, Any;
    ShimCgroupMade = "shim-cgroup-made", Start, Any;
    ShimSocketBound = "shim-socket-bound", Start, Any;
    ShimSpawned = "shim-spawned", Start, Any;
    ShimStarted = "shim-started", Start, Any;
    ShimGreeted = "shim-greeted", Start, Any;
    ReadyReceived = "ready-received", Start, Any;
    PreparedReportUnsent = "prepared-report-unsent", Start, Any;
    PreparedReportSent = "prepared-report-sent", Start, Any;
    AcknowledgedUnwritten = "acknowledged-unwritten", Start, Any;
    AcknowledgedWritten = "acknowledged-written", Start, Any;
    // The entry point.
    GoSent = "go-sent", Start, Any;
    ScriptAsked = "script-asked", Start, Script;
    LaunchAsked = "launch-asked", Start, Command;
    LaunchReceived = "launch-received", Start, Command;
    // Recovery after a restart of the agent.
    CheckpointWritten = "checkpoint-written", Adopt, Any;
    CheckpointNamed = "checkpoint-named", Adopt, Any;
    CheckpointTaken = "checkpoint-taken", Adopt, Any;
    StraysSwept = "strays-swept", Adopt, Any;
    ResumedUnwritten = "resumed-unwritten", Adopt, Any;
    ResumedWritten = "resumed-written", Adopt, Any;
    ResumedCommanded = "resumed-commanded", Adopt, Any;
    ShimFound = "shim-found", Adopt, Any;
    ShimReportedAll = "shim-reported-all", Adopt, Any;
    RegisteredUnwritten = "registered-unwritten", Adopt, Any;
    RegisteredWritten = "registered-written", Adopt, Any;
    // The end.
    ScriptEndReceived = "script-end-received", End, Script;
    RankEndReceived = "rank-end-received", End, Command;
    LaunchOver = "launch-over", End, Command;
    StoppingUnwritten = "stopping-unwritten", End, Any;
    StoppingWritten = "stopping-written", End, Any;
    StoppingCommanded = "stopping-commanded", End, Any;
    StopSent = "stop-sent", End, Any;
    EndedReportUnsent = "ended-report-unsent", End, Any;
    EndedReportSent = "ended-report-sent", End, Any;
    StoppedReceived = "stopped-received", End, Any;
    UndoingUnwritten = "undoing-unwritten", End, Any;
    UndoingWritten = "undoing-written", End, Any;
    UndoingCommanded = "undoing-commanded", End, Any;
    QuitSent = "quit-sent", End, Any;
    ShimGone = "shim-gone", End, Any;
    EpilogueOver = "epilogue-over", End, Any;
    ScopeKilled = "scope-killed", End, Any;
    ScratchRemoved = "scratch-removed", End, Any;
    ScopeRemoved = "scope-removed", End, Any;
    LimitsRemoved = "limits-removed", End, Any;
    OutputNoted = "output-noted", End, Any;
    SocketRemoved = "socket-removed", End, Any;
    ConfigRemoved = "config-removed", End, Any;
    ExitsRemoved = "exits-removed", End, Any;
    IdentityRemoved = "identity-removed", End, Any;
    FilesRemoved = "files-removed", End, Any;
    Undone = "undone", End, Any;
    GoneUnwritten = "gone-unwritten", End, Any;
    GoneWritten = "gone-written", End, Any;
    ReleasedReportUnsent = "released-report-unsent", End, Any;
    ReleasedReportSent = "released-report-sent", End, Any;
    // Exposed ports that accept connections.
    PortsReportUnsent = "ports-report-unsent", Ports, Any;
    PortsReportSent = "ports-report-sent", Ports, Any;
    // An attached terminal.
    TerminalMade = "terminal-made", Terminal, Any;
    TerminalAsked = "terminal-asked", Terminal, Any;
    TerminalStarted = "terminal-started", Terminal, Any;
    TerminalTyped = "terminal-typed", Terminal, Any;
    TerminalEnded = "terminal-ended", Terminal, Any;
    TerminalClosed = "terminal-closed", Terminal, Any;
    // Output: while it is written, and at its end.
    ChunkPut = "chunk-put", Flush, Any;
    SpoolWritten = "spool-written", Flush, Any;
    IndexPut = "index-put", Flush, Any;
    FlushReported = "flush-reported", Flush, Any;
    LastIndexPut = "last-index-put", Flush, Any;
    LastSpoolWritten = "last-spool-written", Flush, Any;
    FlushedMarked = "flushed-marked", Flush, Any;
    // A checkpoint: the states on its head, and the part of one node.
    SaveBegun = "save-begun", Save, Any;
    SaveSavingUnwritten = "save-saving-unwritten", Save, Any;
    SaveSavingWritten = "save-saving-written", Save, Any;
    SaveDeferredUnwritten = "save-deferred-unwritten", Save, Any;
    SaveDeferredWritten = "save-deferred-written", Save, Any;
    SaveUnasked = "save-unasked", Save, Any;
    SaveAsked = "save-asked", Save, Any;
    SaveAck = "save-answered", Save, Any;
    SaveFilePut = "save-file-put", Save, Any;
    SavePut = "save-put", Save, Any;
    SaveVerifyingUnwritten = "save-verifying-unwritten", Save, Any;
    SaveVerifyingWritten = "save-verifying-written", Save, Any;
    SaveCommittingUnwritten = "save-committing-unwritten", Save, Any;
    SaveCommittingWritten = "save-committing-written", Save, Any;
    SaveReportUnsent = "save-report-unsent", Save, Any;
    SaveReportSent = "save-report-sent", Save, Any;
    SaveEndUnwritten = "save-end-unwritten", Save, Any;
    SaveEndWritten = "save-end-written", Save, Any;
    // The shared page: between the agent's writes to it.
    PageNumbered = "page-numbered", Page, Any;
    PageNamed = "page-named", Page, Any;
    PageCounted = "page-counted", Page, Any;
    // Preemption.
    PreemptBegun = "preempt-begun", Preempt, Any;
    PreemptSaved = "preempt-saved", Preempt, Any;
    PreemptFailedUnsent = "preempt-failed-unsent", Preempt, Any;
    PreemptFailedSent = "preempt-failed-sent", Preempt, Any;
    WalltimeWarned = "walltime-warned", Preempt, Any;
    WalltimeAwaitsSave = "walltime-awaits-save", Preempt, Any;
    // Removal of an expired checkpoint.
    CheckpointGone = "checkpoint-gone", Removal, Any;
    // Restoring of saved files.
    RestoreBegun = "restore-begun", Restore, Any;
    Restored = "restored", Restore, Any;
    // The report of what changed during a disconnection.
    UnreportedHealthUnsent = "unreported-health-unsent", UnreportedHealth, Any;
    UnreportedHealthSent = "unreported-health-sent", UnreportedHealth, Any;
}

/// A name that no point has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name:?} is no failpoint; `lattice-agent failpoints` lists them")]
pub struct Unknown {
    name: String,
}

impl FromStr for Point {
    type Err = Unknown;

    fn from_str(name: &str) -> Result<Self, Unknown> {
        Self::ALL.iter().copied().find(|p| p.name() == name).ok_or_else(|| Unknown { name: name.to_owned() })
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Arms one point for the life of this process.
pub fn arm(point: Point) {
    ARMED.store(point as u16, Ordering::Relaxed);
}

/// Whether any point is armed: for callers that must compute their point's name.
pub fn armed() -> bool {
    ARMED.load(Ordering::Relaxed) != NONE
}

/// Passes a point: kills this process at once if the point is armed.
#[inline]
pub fn pass(point: Point) {
    if ARMED.load(Ordering::Relaxed) == point as u16 {
        die(point);
    }
}

#[cold]
fn die(point: Point) -> ! {
    // One unbuffered write without a lock: the crash test finds this message.
    let _ = nix::unistd::write(std::io::stderr(), format!("failpoint {point}: this process kills itself\n").as_bytes());
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
    // The signal is delivered before this thread returns to user space. If it were not, nothing may continue.
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_has_a_name_of_its_own_and_is_found_by_it() {
        for (number, point) in Point::ALL.iter().enumerate() {
            assert_eq!(point.name().parse(), Ok(*point));
            assert_eq!(*point as usize, number);
        }
        assert!("nowhere".parse::<Point>().is_err());
        // This process continues: nothing is armed.
        Point::ALL.iter().for_each(|p| pass(*p));
    }
}
