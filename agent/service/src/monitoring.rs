//! `AllocationService.StreamMetrics`: merges what an allocation's nodes report about its work.
//!
//! ```text
//!   a task for each node: Open::Monitor ──▶ items ──▶ events ─┐
//!                 └── unreachable: reported once, retried     ├──▶ one bounded queue ──▶ the caller
//!   the allocation's watch: requeued, ended ──────────────────┘
//! ```
//!
//! A slow caller delays the nodes' streams, which queue nothing for it: each number is the newest
//! when it is sent.

use super::Api;
use super::groups::refuse_group;
use super::usage::measured;
use super::watching::AllocationWatch;
use lattice_agent_common::clock::now;
use lattice_api::v1;
use lattice_api::v1::metrics_event::What;
use lattice_mesh::monitor::{METRICS_MAX, MonitorItem, MonitorOpen, MonitorWhat};
use lattice_meshd::monitoring::{self, INTERVAL_MAX, INTERVAL_MIN, MonitorError};
use lattice_model::{Allocation, AllocationState, Backoff, Epoch, NodeId, millis};
use lattice_telemetry::alert::rules::MEASURES;
use lattice_telemetry::names::meant;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::{Request, Status};

/// The interval if the caller gives none.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(5);
/// How many events of all nodes together are queued for a slow caller.
const ITEMS_QUEUE_LEN: usize = 64;
/// The pauses between tries of an unreachable node.
const RETRY_BACKOFF: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// After how many tries a node that answers without data is reported as such: usually its work has
/// ended and the allocation ends in a moment.
const TRIES_UNREPORTED: u32 = 4;

/// The notice that alerts may have been raised or cleared unnoticed.
const MISSED: &str = "alerts may have changed meanwhile; all that are raised now follow";

type Out = mpsc::Sender<Result<v1::MetricsEvent, Status>>;

pub(super) async fn stream(
    api: &Api,
    request: Request<v1::StreamMetricsRequest>,
) -> Result<mpsc::Receiver<Result<v1::MetricsEvent, Status>>, Status> {
    let caller = api.caller(&request).await?;
    let v1::StreamMetricsRequest { key, interval_ms, alerts_only, metrics } = request.into_inner();
    let interval = if interval_ms == 0 { INTERVAL_DEFAULT } else { Duration::from_millis(interval_ms) };
    if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&interval) {
        let text = format!("interval: {} s to {} s are possible", INTERVAL_MIN.as_secs(), INTERVAL_MAX.as_secs());
        return Err(Status::invalid_argument(text));
    }
    if metrics.len() > METRICS_MAX {
        return Err(Status::invalid_argument(format!("{} metrics; at most {METRICS_MAX} per request", metrics.len())));
    }
    let known = |metric: &String| match meant(metric, MEASURES.iter().map(|(name, _)| *name)) {
        Ok(known) => Ok(known.to_owned()),
        Err(hint) => Err(Status::invalid_argument(format!("there is no metric {metric:?}\nhint: {hint}"))),
    };
    let metrics = metrics.iter().map(known).collect::<Result<Vec<_>, _>>()?;
    let allocation = api.allocation(&caller, &key).await?;
    api.check(&caller, &allocation).await?;
    refuse_group(&allocation)?;
    if allocation.state.is_terminal() {
        let text = format!("allocation {} is {}: it is no longer measured", allocation.id.short(), allocation.state);
        return Err(Status::failed_precondition(text));
    }
    api.audit_measurements_read(&caller.principal, &allocation, "watch").await?;
    let place = api.watching(caller.principal.uid)?;
    let interval_ms = if alerts_only { 0 } else { millis(interval) };
    let user = caller.vouched_for(&allocation.owner);
    let open = MonitorOpen {
        allocation: *allocation.id.0.as_bytes(),
        epoch: 0,
        uid: user.uid,
        user: user.name,
        what: MonitorWhat::Follow { interval_ms, metrics },
    };
    let (out, events) = mpsc::channel(ITEMS_QUEUE_LEN);
    let (tasks, api) = (&api.context.work.tasks, api.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = out.closed() => {}
            () = run(&api, allocation, open, &out) => {}
        }
        drop(place);
    });
    Ok(events)
}

/// Follows the allocation over its attempts to its end.
async fn run(api: &Api, allocation: Allocation, open: MonitorOpen, out: &Out) {
    let mut watch = AllocationWatch::new(api.clone(), allocation, None);
    let mut following: Option<(Epoch, JoinSet<()>)> = None;
    let mut reported_state = None;
    loop {
        let now = watch.now();
        let state = now.state;
        if state.is_terminal() {
            let _gone = send(out, None, What::Ended(state.to_string())).await;
            return;
        }
        match (&following, state) {
            (Some((epoch, _)), AllocationState::Running) if *epoch == now.epoch => {}
            (_, AllocationState::Running) => {
                let mut nodes = JoinSet::new();
                for node in now.nodes() {
                    let open = MonitorOpen { epoch: now.epoch.0, ..open.clone() };
                    nodes.spawn(follow(api.clone(), node.clone(), open, out.clone()));
                }
                following = Some((now.epoch, nodes));
            }
            // The attempt has ended; the next one is followed anew.
            (_, _) => {
                following = None;
                if reported_state != Some(state)
                    && send(out, None, What::Notice(format!("the allocation is {state}, and nothing of it runs"))).await.is_err()
                {
                    return;
                }
            }
        }
        reported_state = Some(state);
        watch.changed().await;
    }
}

/// Follows one node until this is dropped, however often the node becomes unreachable.
async fn follow(api: Api, node: NodeId, open: MonitorOpen, out: Out) {
    let (mut tries, mut is_unreachable, mut pauses) = (0, false, RETRY_BACKOFF);
    let mut begun = false;
    loop {
        let address = api.mesh_address(&node).await;
        let mut items = monitoring::items(&api.context, &node, address, open.clone());
        let mut gone = MonitorError::Refused("its work there has ended".to_owned());
        while let Some(item) = items.recv().await {
            let what = match item {
                Err(why) => {
                    gone = why;
                    break;
                }
                Ok(MonitorItem::Begun) => {
                    let was_unreachable = std::mem::take(&mut is_unreachable);
                    let was_begun = std::mem::replace(&mut begun, true);
                    tries = 0;
                    pauses.reset();
                    // Alerts cleared meanwhile are missing among those raised now.
                    match (was_begun, was_unreachable) {
                        (true, true) => What::Notice(format!("the node reports again; {MISSED}")),
                        (true, false) => What::Notice(MISSED.to_owned()),
                        (false, true) => What::Notice("the node reports now".to_owned()),
                        (false, false) => continue,
                    }
                }
                Ok(MonitorItem::Metrics(usage)) => {
                    let measured = usage.shown.into_iter().map(measured).collect();
                    What::Metrics(v1::NodeUsage { node: node.to_string(), age_ms: usage.age_ms, measured, ..Default::default() })
                }
                Ok(MonitorItem::Alert(alert)) => What::Alert(v1::MetricAlert {
                    alert: alert.alert,
                    severity: alert.severity,
                    raised: alert.raised,
                    for_ms: alert.for_ms,
                    text: alert.text,
                    launch: alert.launch,
                }),
                Ok(MonitorItem::Missed) => What::Notice(MISSED.to_owned()),
                Ok(MonitorItem::Alive | MonitorItem::Idle { .. } | MonitorItem::Refused { .. }) => continue,
            };
            if send(&out, Some(&node), what).await.is_err() {
                return;
            }
        }
        tries += 1;
        let (why, is_reported) = match gone {
            MonitorError::Unreachable(why) => (why, true),
            MonitorError::Refused(why) => (why, tries >= TRIES_UNREPORTED),
        };
        if is_reported && !is_unreachable {
            is_unreachable = true;
            if send(&out, Some(&node), What::Unreachable(why)).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(pauses.next_pause()).await;
    }
}

async fn send(out: &Out, node: Option<&NodeId>, what: What) -> Result<(), ()> {
    let node = node.map(NodeId::to_string).unwrap_or_default();
    out.send(Ok(v1::MetricsEvent { at_ms: now().0, node, what: Some(what) })).await.map_err(|_| ())
}
