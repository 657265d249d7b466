//! Following an allocation's work: what this node reports while the work runs, to callers here or
//! over the mesh.
//!
//! Nothing is queued for slow readers: numbers are current when they are sent, and each allocation
//! has a short list of alert changes. A reader that misses changes of this list is informed of
//! that, and gets the present state of all alerts.

use crate::context::{Context, Shared};
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::monitor::{METRICS_MAX, MonitorItem, MonitorOpen, MonitorWhat, WireAlert};
use lattice_mesh::open::Open;
use lattice_mesh::{UnansweredNode, UnreachedNode};
use lattice_model::{AllocationId, Epoch, NodeId};
use lattice_observe::alerting::Change;
use lattice_observe::alerting::saved::Key;
use lattice_observe::measuring::alerts::AlertChanges;
use lattice_telemetry::alert::idle::IdleReport;
use quinn::SendStream;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// How many items are queued for a reader.
const ITEMS_QUEUE_LEN: usize = 4;
/// The shortest and the longest interval between two reports of numbers.
pub const INTERVAL_MIN: Duration = Duration::from_secs(1);
pub const INTERVAL_MAX: Duration = Duration::from_secs(3600);
/// A node that has nothing to report sends a sign of life after this time.
const ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// A node counts as unreachable after this time without a message.
const SILENCE_MAX: Duration = Duration::from_secs(12);
/// How long another agent may take to begin.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The period over which means and maxima are taken.
const MEANS_PERIOD: Duration = Duration::from_secs(30);

fn key(open: &MonitorOpen) -> Key {
    (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch))
}

/// Sends this node's items until the work ends here or the receiver is gone. The caller has checked
/// the reader's permission.
async fn follow(context: &Context, open: MonitorOpen, out: mpsc::Sender<MonitorItem>) {
    let key = key(&open);
    let (interval, metrics) = match open.what {
        MonitorWhat::Follow { interval_ms: 0, metrics } => (None, metrics),
        MonitorWhat::Follow { interval_ms, metrics } => {
            (Some(Duration::from_millis(interval_ms).clamp(INTERVAL_MIN, INTERVAL_MAX)), metrics)
        }
        MonitorWhat::Idle { launch } => {
            let (idle_ms, moved) = match context.work.measuring.report(key, launch) {
                IdleReport::There { idle_ms, moved } => (Some(idle_ms), moved),
                IdleReport::None => (None, true),
                IdleReport::Unknown => {
                    let why = "this launch was not measured here yet".to_owned();
                    let _gone = out.send(MonitorItem::Refused { why }).await;
                    return;
                }
            };
            let _gone = out.send(MonitorItem::Idle { idle_ms, moved }).await;
            return;
        }
    };
    let mut looked = context.work.measuring.looked();
    let (mut known, mut next, mut sent_at) = (None, Instant::now(), Instant::now());
    if out.send(MonitorItem::Begun).await.is_err() {
        return;
    }
    while context.work.allocations.of_epoch(key.0, key.1).is_some() {
        looked.mark_unchanged();
        let mut items = Vec::new();
        if let Some(AlertChanges { changes, anew, count, now_ms }) = context.work.measuring.alerts(key, known) {
            if anew && known.is_some() {
                items.push(MonitorItem::Missed);
            }
            items.extend(changes.into_iter().map(|change| alert(change, now_ms)));
            known = Some(count);
        }
        if let Some(interval) = interval.filter(|_| Instant::now() >= next)
            && let Some(mut usage) = context.work.measuring.newest(key, MEANS_PERIOD)
        {
            next = Instant::now() + interval;
            usage.shown.retain(|one| metrics.is_empty() || metrics.contains(&one.name));
            items.push(MonitorItem::Metrics(usage));
        }
        if items.is_empty() && sent_at.elapsed() >= ALIVE_INTERVAL {
            items.push(MonitorItem::Alive);
        }
        if !items.is_empty() {
            sent_at = Instant::now();
        }
        for item in items {
            if out.send(item).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = out.closed() => return,
            // A measurement may take long on a busy machine.
            looked = timeout(ALIVE_INTERVAL, looked.changed()) => if let Ok(Err(_)) = looked { return },
        }
    }
}

fn alert(change: Change, now_ms: u64) -> MonitorItem {
    let Change { alert, launch, severity, raised, since_ms, text } = change;
    let (severity, for_ms) = (severity.name().to_owned(), now_ms.saturating_sub(since_ms));
    MonitorItem::Alert(Box::new(WireAlert { alert, launch, severity, raised, for_ms, text }))
}

/// Answers the request of another agent.
pub async fn answer(context: &Shared, open: MonitorOpen, mut send: SendStream) -> Result<(), FrameError> {
    if let MonitorWhat::Follow { metrics, .. } = &open.what
        && metrics.len() > METRICS_MAX
    {
        let why = format!("{} metrics; at most {METRICS_MAX} per request", metrics.len());
        return frame::write(&mut send, &MonitorItem::Refused { why }).await;
    }
    let (out, mut items) = mpsc::channel(ITEMS_QUEUE_LEN);
    let following = tokio::spawn({
        let context = context.clone();
        async move { follow(&context, open, out).await }
    });
    let _following = AbortOnDropHandle::new(following);
    loop {
        let item = tokio::select! {
            _ = send.stopped() => return Ok(()),
            item = items.recv() => item,
        };
        let Some(item) = item else { return Ok(()) };
        frame::write(&mut send, &item).await?;
    }
}

/// Why a node sends nothing more.
#[derive(Debug)]
pub enum MonitorError {
    /// The node answers, but has no such work, or refuses.
    Refused(String),
    /// The node is unreachable.
    Unreachable(String),
}

/// A node's item, or why there are no more.
pub type NodeItem = Result<MonitorItem, MonitorError>;

/// Follows an allocation's work on `node`, for a user who has been authorized. Sends the node's
/// items, and then the error that ended them, unless the work has ended there. Stops when the
/// receiver is dropped.
pub fn items(context: &Shared, node: &NodeId, address: Option<String>, open: MonitorOpen) -> mpsc::Receiver<NodeItem> {
    let (out, items) = mpsc::channel(ITEMS_QUEUE_LEN);
    let (tasks, context, node) = (&context.work.tasks, context.clone(), node.clone());
    tasks.spawn(async move {
        let result = tokio::select! {
            () = out.closed() => return,
            result = of_node(&context, &node, address, open, &out) => result,
        };
        if let Err(why) = result {
            let _gone = out.send(Err(why)).await;
        }
    });
    items
}

async fn of_node(
    context: &Shared,
    node: &NodeId,
    address: Option<String>,
    open: MonitorOpen,
    out: &mpsc::Sender<NodeItem>,
) -> Result<(), MonitorError> {
    if *node == context.setup.me {
        let (allocation, epoch) = key(&open);
        if context.work.allocations.of_epoch(allocation, epoch).is_none() {
            return Err(MonitorError::Refused(format!("allocation {} is not running on this node", allocation.short())));
        }
        let (sender, mut items) = mpsc::channel(ITEMS_QUEUE_LEN);
        let pass = async {
            while let Some(item) = items.recv().await {
                if out.send(Ok(item)).await.is_err() {
                    return;
                }
            }
        };
        tokio::join!(follow(context, open, sender), pass);
        return Ok(());
    }
    let unreachable = |why: &str| MonitorError::Unreachable(why.to_owned());
    let address = address.ok_or_else(|| unreachable("its mesh address is unknown: neither gossip nor the quorum has it"))?;
    let begin = async {
        let (mut send, recv) = context.work.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::Monitor(Box::new(open))).await?;
        Ok::<_, UnreachedNode>((send, recv))
    };
    let begun = timeout(ANSWER_TIMEOUT, begin).await.map_err(|_| unreachable("it does not answer in time"))?;
    let (_send, mut recv) = begun.map_err(|error| MonitorError::Unreachable(error.to_string()))?;
    let mut first = true;
    loop {
        let within = if first { ANSWER_TIMEOUT } else { SILENCE_MAX };
        let read = timeout(within, frame::read::<MonitorItem, _>(&mut recv)).await;
        let item = match read.map_err(|_| unreachable("it does not answer any more"))? {
            Ok(item) => item.checked().map_err(|_| unreachable("its message has a format that this version does not know"))?,
            Err(FrameError::Ended) if !first => return Ok(()),
            Err(error) if first => return Err(MonitorError::Unreachable(UnansweredNode::reading(error).to_string())),
            Err(error) => return Err(MonitorError::Unreachable(error.to_string())),
        };
        first = false;
        if let MonitorItem::Refused { why } = item {
            return Err(MonitorError::Refused(why));
        }
        if out.send(Ok(item)).await.is_err() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Agent, id};
    use lattice_telemetry::alert::rules::Severity;

    fn open(what: MonitorWhat) -> MonitorOpen {
        MonitorOpen { allocation: *id(1).0.as_bytes(), epoch: 2, uid: 1000, user: "u".into(), what }
    }

    fn silent() -> MonitorWhat {
        MonitorWhat::Follow { interval_ms: 0, metrics: vec![] }
    }

    #[test]
    fn the_age_of_an_alert_counts_from_its_beginning_and_is_never_negative() {
        let change = Change {
            alert: "hang".into(),
            launch: Some(3),
            severity: Severity::Critical,
            raised: true,
            since_ms: 4000,
            text: "all ranks wait".into(),
        };
        let wire = |for_ms| {
            let (alert, severity, text) = ("hang".to_owned(), Severity::Critical.name().to_owned(), "all ranks wait".to_owned());
            MonitorItem::Alert(Box::new(WireAlert { alert, launch: Some(3), severity, raised: true, for_ms, text }))
        };
        assert_eq!(alert(change.clone(), 10_000), wire(6000));
        assert_eq!(alert(change, 3000), wire(0));
    }

    #[tokio::test]
    async fn local_work_is_followed_until_the_reader_leaves_and_other_work_is_refused_with_a_reason() {
        let agent = Agent::new();
        let me = agent.context.setup.me.clone();
        let mut refused = items(&agent.context, &me, None, open(silent()));
        let gone = format!("allocation {} is not running on this node", id(1).short());
        assert!(matches!(refused.recv().await, Some(Err(MonitorError::Refused(why))) if why == gone));
        assert!(refused.recv().await.is_none());
        let _held = agent.holds(1, |_| {});
        let mut followed = items(&agent.context, &me, None, open(silent()));
        assert!(matches!(followed.recv().await, Some(Ok(MonitorItem::Begun))));
        let mut idle = items(&agent.context, &me, None, open(MonitorWhat::Idle { launch: 1 }));
        let Some(Ok(MonitorItem::Refused { why })) = idle.recv().await else { panic!("an answer") };
        assert_eq!(why, "this launch was not measured here yet");
        let mut unknown = items(&agent.context, &"n2".parse().unwrap(), None, open(silent()));
        let Some(Err(MonitorError::Unreachable(why))) = unknown.recv().await else { panic!("an answer") };
        assert_eq!(why, "its mesh address is unknown: neither gossip nor the quorum has it");
    }
}
