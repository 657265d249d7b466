//! `WatchService`: changes of nodes, allocations or leases. The agent forwards the quorum's
//! changes. If a member fails, the watch continues with another one, and the caller notices
//! nothing. The caller gets an error if no member can be reached for `QUORUM_TIMEOUT`, or if the quorum
//! refuses. What a caller may see is the same as in lists.

use super::Api;
use super::api::{QUORUM_TIMEOUT, Streamed};
use super::leases::TokensOf;
use super::privacy::Viewer;
use super::refusal::status;
use lattice_agent_common::user_quota::UserSlot;
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_api::v1::watch_service_server::WatchService;
use lattice_model::{Generation, Resources, Revision, with_causes};
use lattice_quorum_client::CallError;
use lattice_quorum_client::following::{Following, News};
use lattice_quorum_client::wire::{Change, WatchAllocations, WatchCursor, WatchRequest};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// How many watches one user may have at this agent: each is a stream from the quorum.
const WATCHES_PER_USER: usize = 16;
/// Largest number of events queued for a reader.
const ITEMS_QUEUE_LEN: usize = 4;
/// Largest number of changes in one event.
const CHANGES_MAX: usize = 500;

#[tonic::async_trait]
impl WatchService for Api {
    type WatchStream = Streamed<v1::WatchEvent>;

    async fn watch(&self, request: Request<v1::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let caller = self.caller(&request).await?;
        let nothing = WatchRequest::nothing();
        let mut has_others = false;
        let wanted = match request.get_ref().what.as_ref() {
            None => return Err(Status::invalid_argument("the request does not name what to watch: nodes, allocations or leases")),
            Some(What::Nodes(_)) if !self.context.work.directory.knows_all() => {
                let why =
                    "this node's agent follows its own node alone: ask an agent whose certificate has the role api, such as a login node's";
                return Err(Status::failed_precondition(why));
            }
            Some(What::Nodes(_)) => WatchRequest { nodes: true, ..nothing },
            Some(What::Leases(_)) => {
                self.user(&request).await?;
                WatchRequest { leases: true, ..nothing }
            }
            Some(What::Allocations(wanted)) if wanted.key.is_empty() => {
                let user = self.user(&request).await?;
                has_others = wanted.all_users;
                let uid = (!wanted.all_users).then_some(user.uid);
                WatchRequest { allocations: WatchAllocations::Live, uid, ..nothing }
            }
            Some(What::Allocations(wanted)) => {
                let allocation = self.allocation(&caller, &wanted.key).await?;
                self.check(&caller, &allocation).await?;
                has_others = !caller.principal.owns(&allocation.owner);
                WatchRequest { allocations: WatchAllocations::One(allocation.id), ..nothing }
            }
        };
        let since = request.get_ref().since.map(|s| WatchCursor { generation: Generation(s.generation), revision: Revision(s.revision) });
        let sees = self.viewer_if(&caller, has_others).await;
        let place = self.watching(caller.principal.uid)?;
        let (out, events) = mpsc::channel(ITEMS_QUEUE_LEN);
        // A connection of its own: a reader that stops reading must not block this agent's own
        // requests.
        let quorum = self.quorum.apart().map_err(|e| Status::internal(with_causes(&e)))?;
        let following = Following::new(quorum, WatchRequest { since, ..wanted });
        let tokens = TokensOf::of(self, caller);
        let watch = Watch { following, sees, tokens, out };
        self.context.work.tasks.spawn(async move {
            watch.run().await;
            drop(place);
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(events))))
    }
}

impl Api {
    /// Counts one more watch of this user until the result is dropped.
    pub(super) fn watching(&self, uid: u32) -> Result<UserSlot, Status> {
        self.limits.watches.take(uid, WATCHES_PER_USER).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "you have {WATCHES_PER_USER} watches open at this agent, which is the limit\nhint: end a `--watch` to open another"
            ))
        })
    }
}

struct Watch {
    following: Following,
    /// What is shown of others' allocations, until the watch ends.
    sees: Viewer,
    /// The leases whose tokens are shown.
    tokens: TokensOf,
    out: mpsc::Sender<Result<v1::WatchEvent, Status>>,
}

/// The reader has gone.
struct Gone;

impl Watch {
    async fn run(mut self) {
        let mut unavailable_since: Option<Instant> = None;
        loop {
            let news = tokio::select! {
                () = self.out.closed() => return,
                news = self.following.next() => news,
            };
            let sent = match news {
                Ok(news) => {
                    unavailable_since = None;
                    self.send_news(news).await
                }
                Err(error @ CallError::Unavailable { .. })
                    if unavailable_since.get_or_insert_with(Instant::now).elapsed() < QUORUM_TIMEOUT =>
                {
                    tracing::debug!(%error, "a watch broke; it is opened again");
                    tokio::time::sleep(Duration::from_millis(rand::random_range(50..250))).await;
                    Ok(())
                }
                Err(error) => {
                    // The reader reconnects with its last position.
                    let _gone = self.out.send(Err(status(&error))).await;
                    return;
                }
            };
            if let Err(Gone) = sent {
                return;
            }
        }
    }

    async fn send_news(&self, news: News) -> Result<(), Gone> {
        let (list, changes) = match news {
            News::List { all, .. } => (true, all),
            News::Changes { changes, .. } => (false, changes),
            News::Resync { why } => return self.send(v1::WatchEvent { resync_reason: why, ..Default::default() }).await,
        };
        let cursor = self.following.place().map(|p| v1::WatchCursor { generation: p.generation.0, revision: p.revision.0 });
        let mut parts = changes.chunks(CHANGES_MAX).peekable();
        loop {
            let part = event(parts.next().unwrap_or_default(), &self.sees, &self.tokens);
            let more = parts.peek().is_some();
            self.send(v1::WatchEvent { list, more, cursor: cursor.filter(|_| !more), ..part }).await?;
            if !more {
                return Ok(());
            }
        }
    }

    async fn send(&self, event: v1::WatchEvent) -> Result<(), Gone> {
        self.out.send(Ok(event)).await.map_err(|_| Gone)
    }
}

fn event(changes: &[Change], sees: &Viewer, tokens: &TokensOf) -> v1::WatchEvent {
    let mut event = v1::WatchEvent::default();
    for change in changes {
        match change {
            Change::Node(node) => event.nodes.push(lattice_api::node::to_proto(node, Vec::new(), &Resources::default(), "", 0)),
            Change::NodeRemoved(node) => event.nodes_removed.push(node.to_string()),
            Change::Allocation(allocation) => {
                event.allocations.push(sees.allocation(
                    &allocation.owner,
                    &allocation.spec.tenant,
                    lattice_api::allocation::to_proto(allocation),
                ));
            }
            Change::Lease(lease) => event.leases.push(v1::Lease {
                name: lease.name.clone(),
                holder: lease.holder.to_string(),
                user: lease.user.clone().unwrap_or_default(),
                token: tokens.shown(lease.user.as_deref(), lease.token),
                ttl_ms: lease.ttl_ms,
                left_ms: None,
                problem: String::new(),
            }),
            Change::LeaseEnded(name) => event.leases_ended.push(name.clone()),
            // An allocation as it is sent to a caller has nothing of these. Its usage is sent when the last share is
            // released.
            Change::Phases(_) => {}
            // No request of this service asks for these.
            Change::Tenant(_)
            | Change::TenantDeleted(_)
            | Change::VCluster(_)
            | Change::VClusterDeleted(_)
            | Change::Reservation(_)
            | Change::ReservationDeleted(_)
            | Change::Domain { .. }
            | Change::DomainReleased { .. }
            | Change::VniPool(_)
            | Change::Limits(_)
            | Change::TenantUse { .. } => {}
        }
    }
    event
}
