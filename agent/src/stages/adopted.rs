//! The fourth stage: every allocation of the journal has its task.

use super::base::Base;
use super::connections::Connections;
use super::network_api::NetworkApi;
use super::serving::Serving;
use super::wiring::Channels;
use crate::audit;
use crate::gpus::{GpuWatching, Offering};
use crate::job_mapping;
use crate::journal::{JournalCounts, JournalError};
use crate::metrics;
use crate::session::{self, Registration};
use crate::supervisor;
use crate::unreported_health;
use lattice_accounting as accounting;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_common::clock;
use lattice_agent_common::config::{AgentConfig, Role};
use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::session_state::SessionState;
use lattice_agent_common::user_quota::UserQuota;
use lattice_machine::facts;
use lattice_machine::gpu_statuses::Offer;
use lattice_machine::health::Finds;
use lattice_machine::wipe::Wipes;
use lattice_membership::cluster;
use lattice_meshd as meshd;
use lattice_meshd::context::Context;
use lattice_model::NodeReport;
use lattice_observe::traces::Traces;
use lattice_placing as placing;
use lattice_placing::{Placing, Rounds};
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::NodeHealth;
use lattice_runtime::program_pages;
use lattice_scaling as scaling;
use lattice_scaling::ScalingCounts;
use lattice_service as service;
use lattice_service::user_shares::UserShares;
use lattice_telemetry::sample::Collect;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How many images may be hashed at once for submissions.
const DIGESTS_MAX: usize = 4;
/// How many of these may be for one user.
const DIGESTS_PER_USER_MAX: usize = 2;
/// How many questions about ended work this agent asks at once for one user.
const QUESTIONS_PER_USER_MAX: usize = 2;
/// How long shims that do not answer may delay the notice to the service manager that the agent is
/// ready.
const ADOPTION_MAX: Duration = Duration::from_secs(10);
/// How long after this stage the start counts as over: first connections are made by then, and the
/// machine is examined.
const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// The driver runs, and so does the task of every allocation.
pub struct Adopted {
    pub(super) base: Base,
    pub(super) gpus: GpuWatching,
    pub(super) connections: Connections,
    pub(super) channels: Channels,
    pub(super) context: Arc<Context>,
    pub(super) traces: Traces,
    pub(super) finds: Finds,
    pub(super) offering: Offering,
    pub(super) offer: watch::Receiver<Offer>,
    pub(super) registration: Registration,
    pub(super) wipes: Wipes,
    /// The reports that the quorum does not have.
    pub(super) reports: watch::Receiver<Arc<Vec<NodeReport>>>,
    pub(super) journal_counts: Arc<JournalCounts>,
    pub(super) driver: JoinHandle<Result<(), JournalError>>,
    pub(super) driver_stop: CancellationToken,
}

impl Adopted {
    /// Begins all other tasks. The API comes after everything that serves its requests.
    pub async fn serve(self) -> Serving {
        let Self { base, gpus, connections, channels, context, traces, finds, offering, offer, registration, wipes, reports, .. } = self;
        let Base { config, me, credentials, mut degraded, stop, tasks, state_dir } = base;
        let Connections { quorum, incoming, revocations, keys, peers, membership, network_api, listener, .. } = connections;
        let Channels { beats, cluster_out, cluster, view, session_out, session, .. } = channels;
        let (received_health, received_health_view) = watch::channel(NodeHealth::Well);
        tasks.spawn(unreported_health::run(
            Arc::clone(&context),
            session.clone(),
            received_health_view,
            reports.clone(),
            stop.child_token(),
        ));
        tasks.spawn(session::run(
            Arc::clone(&context),
            quorum.clone(),
            registration,
            (keys, revocations, membership.clone(), wipes),
            (reports, view.clone()),
            (session_out, beats, received_health),
            stop.child_token(),
        ));
        if !config.measuring.gpu_job_mapping_dir.as_os_str().is_empty() {
            tasks.spawn(job_mapping::run(Arc::clone(&context), config.measuring.gpu_job_mapping_dir.clone(), stop.child_token()));
        }
        tasks.spawn(gpus.run(Arc::clone(&context), offering, finds, stop.child_token()));
        context.work.tasks.spawn(meshd::serve(Arc::clone(&context), incoming, stop.child_token()));
        tasks.spawn(checkpoint::lookout::run(Arc::clone(&context.work.checkpoint), stop.child_token()));
        tasks.spawn(cluster::follow(quorum.clone(), membership.clone(), cluster_out, stop.child_token()));
        tasks.spawn(peers.run(me.clone(), quorum.clone(), membership.clone(), cluster.clone(), stop.child_token()));
        tasks.spawn(facts::follow(context.machine.facts.clone(), offer, membership.clone(), stop.child_token()));
        let (held, leases) = watch::channel(placing::Leases::new());
        let (rounds, scaled, requests) = (Rounds::default(), ScalingCounts::default(), service::Requests::default());
        let past = Arc::new(service::past(&config));
        let newcomers = placing::Newcomers::default();
        let placing = Placing { leases, cluster: cluster.clone(), membership: membership.clone(), rounds: rounds.clone(), newcomers };
        let idle_leases = if config.has(Role::Scheduler) {
            let (me, lease_ms) = (me.clone(), config.scheduler_lease_ms);
            tasks.spawn(placing::run(me, quorum.clone(), placing.clone(), lease_ms, held, stop.child_token()));
            let handles = Arc::clone(&context.work.checkpoint);
            tasks.spawn(checkpoint::broker::run(handles, quorum.clone(), placing.clone(), stop.child_token()));
            let measuring = context.work.measuring.clone();
            let source = scaling::Metrics { measuring, store: Arc::clone(&past), cluster: cluster.clone() };
            tasks.spawn(scaling::run(source, quorum.clone(), placing.clone(), scaled.clone(), stop.child_token()));
            None
        } else {
            Some(held)
        };
        begin_accounting(&config, &context, &quorum, &tasks, &stop);
        tasks.spawn(audit::run(Arc::clone(&context), stop.child_token()));
        tasks.spawn(traces.flush(context.work.problems.clone(), stop.child_token()));
        let mut counted: Vec<Box<dyn Collect>> =
            vec![Box::new(rounds), Box::new(scaled), Box::new(requests.clone()), Box::new(context.accounting.counts().clone())];
        counted.extend(network_api.as_ref().map(NetworkApi::counts));
        let counted = (self.journal_counts, counted);
        metrics::begin(&config, &context, &membership, &session, counted, &mut degraded, (&tasks, &stop)).await;
        let api = service::Api {
            context: Arc::clone(&context),
            credentials,
            quorum,
            cluster,
            membership,
            session: session.clone(),
            placing,
            outlooks: service::Outlooks::default(),
            site: service::Site { vouches: config.has(Role::Api), work_may: config.work.may, private: config.private },
            limits: service::Limits {
                digests: Arc::new(Semaphore::new(DIGESTS_MAX)),
                own_digests: UserShares::new(DIGESTS_PER_USER_MAX),
                watches: UserQuota::default(),
                measurement_reads: service::MeasurementReads::default(),
                log_streams: UserQuota::default(),
                log_streams_max: config.logs.max_concurrent,
                own_questions: UserShares::new(QUESTIONS_PER_USER_MAX),
                network_streams: UserQuota::default(),
                network_streams_max: config.api.limits.streams_per_user as usize,
            },
            past: service::Past { store: past, tail: service::stored_tail(&config) },
            degraded: Arc::new(degraded),
            started_at: clock::now(),
            submitted: service::Submitted::default(),
            heads: service::Heads::default(),
            tasks: tasks.clone(),
        };
        let cut = CancellationToken::new();
        let services = service::Services::new(api, requests, stop.child_token());
        let for_network = (session.clone(), context.work.problems.clone());
        let network = network_api.map(|api| api.serve(services.clone(), &config.cluster, for_network, (&tasks, &stop, &cut)));
        let serving = tasks.spawn(services.serve_socket(listener, stop.child_token(), cut.clone()));
        tracing::info!(node = %me, socket = %config.socket.display(), mesh = config.mesh.advertise(), "ready");
        report_ready(&tasks, &context, (session, view), stop.child_token());
        unmap_when_settled(&tasks, stop.clone());
        let (driver, driver_stop) = (self.driver, self.driver_stop);
        Serving { stop, serving, network, cut, tasks, driver, driver_stop, context, idle_leases, state_dir }
    }
}

/// Begins to store ended work, if this agent has the role for it.
fn begin_accounting(config: &AgentConfig, context: &Context, quorum: &QuorumClient, tasks: &TaskTracker, stop: &CancellationToken) {
    if config.has(Role::Accounting) {
        let (me, settings, problems) = (context.setup.me.clone(), config.accounting.clone(), context.work.problems.clone());
        tasks.spawn(accounting::run(me, quorum.clone(), settings, context.accounting.clone(), problems, stop.child_token()));
    }
}

/// Notifies the service manager when the node's work is adopted, at the latest after
/// [`ADOPTION_MAX`], and from then on of changes.
fn report_ready(
    tasks: &TaskTracker,
    context: &Arc<Context>,
    (session, view): (watch::Receiver<SessionState>, watch::Receiver<Arc<NodeView>>),
    stop: CancellationToken,
) {
    let context = Arc::clone(context);
    tasks.spawn(async move {
        let adopted = context.work.adoption.wait_until_over(ADOPTION_MAX).await;
        supervisor::ready(adopted);
        if adopted.all > 0 {
            tracing::info!(?adopted, "the node's work is taken up again");
        }
        supervisor::follow(session, view, stop).await;
    });
}

fn unmap_when_settled(tasks: &TaskTracker, stop: CancellationToken) {
    tasks.spawn(async move {
        if stop.run_until_cancelled(tokio::time::sleep(SETTLED_AFTER)).await.is_some()
            && let Err(error) = program_pages::unmap()
        {
            tracing::debug!(%error, "the pages that only the start needed stay mapped");
        }
    });
}
