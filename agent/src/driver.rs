//! The only owner of the node's state: a thread that takes events in order. For each batch of
//! events it decides, writes the journal, then acts. No action begins before the records of its
//! decision are in the journal.

use crate::journal::{Journal, JournalError};
use crate::supervisor;
use lattice_agent_common::node_view::NodeView;
use lattice_allocation as allocation;
use lattice_allocation::handles::Shared;
use lattice_allocation::preemption;
use lattice_model::{EndReason, NodeReport, ReportItem};
use lattice_node::{Action, Brain, Event, Local, Phase, Record};
use lattice_registry::Command;
use lattice_runtime::failpoint::{self, Point};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// How many events share one sync of the journal.
const BATCH_EVENTS_MAX: usize = 64;
/// The longest wait for an event if no service manager expects a sign of life in between.
const IDLE_MAX: Duration = Duration::from_secs(3600);

/// The driver's outputs.
pub struct Outputs {
    /// All reports that the quorum has not acknowledged.
    pub reports: watch::Sender<Arc<Vec<NodeReport>>>,
    /// The state that `node status` shows.
    pub view: watch::Sender<Arc<NodeView>>,
}

/// Runs until `stop`, or until the journal cannot be written; then writes a last checkpoint. Call
/// it on its own thread, which has entered the runtime. An event that comes after `stop` is not
/// lost: its sender repeats it once the agent runs again.
pub fn run(
    mut brain: Brain,
    mut journal: Journal,
    same_boot: bool,
    context: &Shared,
    mut events: mpsc::Receiver<Event>,
    outputs: &Outputs,
    stop: &CancellationToken,
) -> Result<(), JournalError> {
    let runtime = tokio::runtime::Handle::current();
    let (mut records, mut actions) = (Vec::new(), Vec::new());
    brain.resume(same_boot, &mut records, &mut actions);
    failpoint::pass(Point::ResumedUnwritten);
    journal.append(&records)?;
    journal.resumed()?;
    failpoint::pass(Point::ResumedWritten);
    context.adoption.begin(brain.locals().map(|l| l.share.allocation));
    for action in actions.drain(..) {
        act(action, context);
    }
    failpoint::pass(Point::ResumedCommanded);
    // The view is published after the actions, so whoever waits for it finds every allocation's
    // task begun.
    publish(&brain, outputs, true);
    let pulse = supervisor::pulse();
    let mut alive_at = Instant::now();
    loop {
        if pulse.is_some_and(|pulse| alive_at.elapsed() >= pulse) {
            supervisor::alive();
            alive_at = Instant::now();
        }
        // The runtime's own workers end the pause: if they hang, this loop sends no sign of life,
        // as if it hung itself.
        let next = async { tokio::time::timeout(pulse.unwrap_or(IDLE_MAX), events.recv()).await };
        let first = match runtime.block_on(stop.run_until_cancelled(next)) {
            Some(Ok(Some(first))) => first,
            Some(Err(_idle)) => continue,
            Some(Ok(None)) | None => break,
        };
        records.clear();
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(event) = next {
            brain.handle(event, &mut records, &mut actions);
            taken += 1;
            next = if taken < BATCH_EVENTS_MAX { events.try_recv().ok() } else { None };
        }
        pass(&records, Moment::Unwritten);
        journal.append(&records)?;
        pass(&records, Moment::Written);
        if journal.wants_checkpoint() {
            journal.checkpoint(&brain)?;
        }
        publish(&brain, outputs, !records.is_empty() || actions.contains(&Action::Report));
        for action in actions.drain(..) {
            act(action, context);
        }
        pass(&records, Moment::Commanded);
    }
    journal.checkpoint(&brain)
}

fn publish(brain: &Brain, outputs: &Outputs, changed: bool) {
    if !changed {
        return;
    }
    let reports: Vec<NodeReport> = brain.reports().collect();
    let ended = reports.iter().filter_map(|report| match &report.item {
        ReportItem::Ended { allocation, epoch, reason: EndReason::Exited { code } } => Some(((*allocation, *epoch), *code)),
        ReportItem::Ended { .. }
        | ReportItem::Prepared { .. }
        | ReportItem::PrepareFailed { .. }
        | ReportItem::Released { .. }
        | ReportItem::NotPreempted { .. }
        | ReportItem::Checkpointed { .. }
        | ReportItem::PortsOpen { .. }
        | ReportItem::UnreportedHealth { .. } => None,
    });
    let view = NodeView {
        incarnation: brain.incarnation().0,
        generation: brain.list().generation,
        revision: brain.list().revision,
        locals: brain.locals_with_requests().collect(),
        reports_pending: reports.len(),
        ended: ended.collect(),
    };
    // Reports before the view: a reader of the view and then the reports misses nothing, because
    // what is gone from the view was reported before.
    outputs.reports.send_replace(Arc::new(reports));
    outputs.view.send_replace(Arc::new(view));
}

fn act(action: Action, context: &Shared) {
    let (share, command) = match action {
        Action::Prepare(local) => {
            let Local { share, assignment, .. } = *local;
            (Box::new(share), Command::Prepare { assignment })
        }
        Action::Adopt(share) => (share, Command::Adopt),
        Action::Start(share) => (share.clone(), Command::Start(share)),
        Action::ChangeWalltime(share) => (share.clone(), Command::ChangeWalltime(share)),
        Action::ChangeLane(share) => (share.clone(), Command::ChangeLane(share)),
        Action::Stop(share) => (share, Command::Stop),
        Action::Undo(share) => (share, Command::Undo),
        Action::Preempt(share) => {
            preemption::begin(context, *share);
            return;
        }
        // The reports were published with the state.
        Action::Report => return,
    };
    allocation::ensure(context, &share).command(command);
}

/// How far a batch of records has come.
#[derive(Clone, Copy)]
enum Moment {
    Unwritten,
    Written,
    /// The tasks have received their commands.
    Commanded,
}

/// The points at which a test may kill the agent.
fn pass(records: &[Record], moment: Moment) {
    if failpoint::armed() {
        records.iter().filter_map(|r| point_of(r, moment)).for_each(failpoint::pass);
    }
}

fn point_of(record: &Record, moment: Moment) -> Option<Point> {
    let points = match record {
        Record::PhaseEntered { phase: Phase::Preparing, .. } => {
            [Point::PreparingUnwritten, Point::PreparingWritten, Point::PreparingCommanded]
        }
        // No command follows: this node waits for the other nodes.
        Record::PhaseEntered { phase: Phase::Prepared, .. } => [Point::PreparedUnwritten, Point::PreparedWritten, Point::PreparedWritten],
        Record::PhaseEntered { phase: Phase::Running, .. } => [Point::RunningUnwritten, Point::RunningWritten, Point::RunningCommanded],
        Record::PhaseEntered { phase: Phase::Stopping, .. } => [Point::StoppingUnwritten, Point::StoppingWritten, Point::StoppingCommanded],
        Record::PhaseEntered { phase: Phase::Undoing, .. } => [Point::UndoingUnwritten, Point::UndoingWritten, Point::UndoingCommanded],
        Record::Removed { .. } => [Point::GoneUnwritten, Point::GoneWritten, Point::GoneWritten],
        Record::Acknowledged { .. } => [Point::AcknowledgedUnwritten, Point::AcknowledgedWritten, Point::AcknowledgedWritten],
        Record::Registered { .. } => [Point::RegisteredUnwritten, Point::RegisteredWritten, Point::RegisteredWritten],
        Record::ListReceived(_) | Record::ReportQueued(_) => return None,
    };
    Some(points[moment as usize])
}
