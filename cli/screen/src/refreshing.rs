//! Fetches what the screen shows, again and again, over broken connections.
//!
//! It requests lists instead of watches: only lists have the reasons, positions and expected starts, and the states from
//! gossip when the quorum is gone. Their cost is bounded: at most [`ALLOCATIONS_MAX`] allocations, at most one refresh a
//! second, and a refresh that took long is followed by a longer pause.

use super::events::Change;
use super::snapshot::{NodeList, OwnUsage, Work};
use lattice_api::client::Client;
use lattice_api::json::UsageOf;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::listing;
use lattice_cli_session::session::{Session, answer, now};
use lattice_cli_session::shown::live_first;
use lattice_model::AllocationState;
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// The most allocations that are fetched.
const ALLOCATIONS_MAX: usize = 1000;
/// The shortest time between the beginnings of two refreshes.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// The least time from the beginning of a refresh to the next one, in multiples of the duration of the refresh.
const SPACING_FACTOR: u32 = 5;
/// The least time between two requests for the hours of use.
const USAGE_INTERVAL: Duration = Duration::from_secs(60);

/// The part of the screen's state that starts a refresh when it changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    pub all_users: bool,
    /// Raised when the user changed something, so that the effect is shown soon.
    pub changes: u64,
}

/// Refreshes the screen.
pub struct Refreshing<'a> {
    session: &'a Session,
    interval: Duration,
    client: Option<Client>,
    view: watch::Receiver<View>,
    to: mpsc::Sender<Change>,
    usage_at: Option<Instant>,
}

impl<'a> Refreshing<'a> {
    /// Begins with an existing connection.
    pub fn new(session: &'a Session, interval: Duration, client: Client, view: watch::Receiver<View>, to: mpsc::Sender<Change>) -> Self {
        Self { session, interval, client: Some(client), view, to, usage_at: None }
    }

    /// Refreshes for ever.
    pub async fn run(mut self) -> Infallible {
        loop {
            let begun = Instant::now();
            if let Err(failure) = self.refresh().await {
                // After an error the next refresh connects anew, perhaps to another agent.
                self.client = None;
                self.send(Change::Lost(failure_line(&failure))).await;
            }
            let spacing = self.interval.max(begun.elapsed() * SPACING_FACTOR);
            tokio::select! {
                () = sleep_until(begun + spacing) => {}
                Ok(()) = self.view.changed() => sleep_until(begun + REFRESH_INTERVAL_MIN).await,
            }
        }
    }

    async fn send(&self, change: Change) {
        // This fails only if the screen is gone, and then this task ends too.
        let _ = self.to.send(change).await;
    }

    async fn refresh(&mut self) -> Result<(), Failure> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => self.client.insert(self.session.connect().await?).clone(),
        };
        let listed = answer(client.nodes().list(v1::ListNodesRequest { stale: false, or_gossip: true })).await?;
        let has_quorum = listed.quorum_error.is_empty();
        self.send(Change::Nodes(now(), NodeList { nodes: listed.nodes, quorum_error: listed.quorum_error })).await;
        if !has_quorum {
            return Ok(());
        }
        let work = self.work(&client).await?;
        self.send(Change::Work(now(), Box::new(work))).await;
        if self.usage_at.is_none_or(|at| at.elapsed() >= USAGE_INTERVAL) {
            let usage = self.usage(&client).await?;
            self.usage_at = Some(Instant::now());
            self.send(Change::Usage(now(), usage)).await;
        }
        Ok(())
    }

    /// Fetches work with nodes first, so that a long queue does not hide it.
    async fn work(&mut self, client: &Client) -> Result<Work, Failure> {
        let all_users = self.view.borrow_and_update().all_users;
        let of = |states: [AllocationState; 2]| v1::ListAllocationsRequest {
            all_users,
            states: states.iter().map(ToString::to_string).collect(),
            ..Default::default()
        };
        let mut found = listing::fetch_all(client, of([AllocationState::Staging, AllocationState::Running]), ALLOCATIONS_MAX).await?;
        let left = ALLOCATIONS_MAX.saturating_sub(found.allocations.len());
        let waiting = listing::fetch_all(client, of([AllocationState::Pending, AllocationState::Suspended]), left).await?;
        found.allocations.extend(waiting.allocations);
        live_first(&mut found.allocations);
        let vclusters = answer(client.vclusters().list(v1::ListVClustersRequest {})).await?.vclusters;
        let quorum = answer(client.admin().quorum_status(v1::QuorumStatusRequest { by_leader: false })).await?;
        Ok(Work { allocations: found.allocations, more: found.more || waiting.more, all_users, vclusters, quorum })
    }

    async fn usage(&self, client: &Client) -> Result<Vec<OwnUsage>, Failure> {
        let request = v1::GetUserUsageRequest { user: String::new(), days: 0 };
        let mut usage = vec![OwnUsage { of: UsageOf::User, usage: answer(client.admin().get_user_usage(request)).await? }];
        let tenant = self.session.settings.tenant.clone();
        if !tenant.is_empty() {
            let request = v1::GetTenantUsageRequest { tenant, project: String::new(), days: 0 };
            match answer(client.admin().get_tenant_usage(request)).await {
                Ok(of_tenant) => usage.push(OwnUsage { of: UsageOf::Tenant, usage: of_tenant }),
                // The settings name an unknown tenant, or one whose use this user may not see.
                Err(failure) if [Exit::NotFound as u8, Exit::Refused as u8].contains(&failure.exit()) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(usage)
    }
}

/// A failure and its remedy on one line.
pub fn failure_line(failure: &Failure) -> String {
    let text = failure.text();
    text.trim_end().trim_start_matches("error: ").replace("\nhint: ", "; ").replace('\n', " ")
}
