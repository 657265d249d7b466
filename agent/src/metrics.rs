//! The metrics of this agent, its gossip, its mesh and its node, served at `/metrics` and pushed.

use crate::hangs;
use crate::journal::JournalCounts;
use crate::mounts::Mounts;
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::session_state::SessionState;
use lattice_gossip::{Counters, Liveness, Refusals};
use lattice_machine::adapters::Adapters;
use lattice_machine::gpu_loads::{self, OfNode};
use lattice_membership::{Counted, Membership};
use lattice_mesh as mesh;
use lattice_mesh::frame::REFUSED;
use lattice_meshd::context::Shared;
use lattice_model::{NodeState, with_causes};
use lattice_node::Phase;
use lattice_runtime::shim::boottime_ms;
use lattice_telemetry::catalogue::{agent as family, gossip as of_gossip};
use lattice_telemetry::exporter::Exporter;
use lattice_telemetry::push::{self, Spare};
use lattice_telemetry::readers::Host;
use lattice_telemetry::sample::{Collect, Samples, Whose};
use lattice_telemetry::serve::{self, Ready};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The job label of pushed series: the scrape job's name in `deploy/prometheus/prometheus.yaml`.
const JOB: &str = "lattice-agents";

/// The source of the agent's own metrics.
struct Own {
    context: Shared,
    session: watch::Receiver<SessionState>,
    journal: Arc<JournalCounts>,
}

struct Gossip(Membership);

impl Collect for Gossip {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let members = self.0.members();
        for (state, liveness) in [("alive", Liveness::Alive), ("suspect", Liveness::Suspect), ("down", Liveness::Down)] {
            let count = members.iter().filter(|member| member.liveness == liveness).count();
            samples.count(&of_gossip::MEMBERS, &[state], count as u64);
        }
        let Counted { counters, health } = self.0.counted();
        samples.add(&of_gossip::HEALTH, &[], health);
        let Counters {
            datagrams_in,
            bytes_in,
            datagrams_out,
            bytes_out,
            refused,
            rejoins,
            probes_late,
            suspicions,
            refutations,
            timers_late,
            senders_evicted,
            contradictions,
            claims_refused,
        } = counters;
        for (metric, count) in [
            (&of_gossip::DATAGRAMS_IN, datagrams_in),
            (&of_gossip::BYTES_IN, bytes_in),
            (&of_gossip::DATAGRAMS_OUT, datagrams_out),
            (&of_gossip::BYTES_OUT, bytes_out),
            (&of_gossip::REJOINS, rejoins),
            (&of_gossip::PROBES_LATE, probes_late),
            (&of_gossip::SUSPICIONS, suspicions),
            (&of_gossip::REFUTATIONS, refutations),
            (&of_gossip::TIMERS_LATE, timers_late),
            (&of_gossip::SENDERS_EVICTED, senders_evicted),
            (&of_gossip::CONTRADICTIONS, contradictions),
            (&of_gossip::CLAIMS_REFUSED, claims_refused),
        ] {
            samples.count(metric, &[], count);
        }
        let Refusals {
            truncated,
            too_long,
            version,
            foreign_cluster,
            unknown_key,
            not_sealed,
            replayed,
            stale_life,
            life_ahead,
            other_sender,
            from_ourselves,
            undecodable,
        } = refused;
        for (reason, count) in [
            ("truncated", truncated),
            ("too_long", too_long),
            ("version", version),
            ("foreign_cluster", foreign_cluster),
            ("unknown_key", unknown_key),
            ("not_sealed", not_sealed),
            ("replayed", replayed),
            ("stale_life", stale_life),
            ("life_ahead", life_ahead),
            ("other_sender", other_sender),
            ("from_ourselves", from_ourselves),
            ("undecodable", undecodable),
        ] {
            samples.count(&of_gossip::REFUSED, &[reason], count);
        }
    }
}

impl Collect for Own {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let view = Arc::clone(&self.context.work.view.borrow());
        for (name, phase) in [
            ("preparing", Phase::Preparing),
            ("prepared", Phase::Prepared),
            ("running", Phase::Running),
            ("stopping", Phase::Stopping),
            ("undoing", Phase::Undoing),
        ] {
            let count = view.locals.iter().filter(|local| local.phase == phase).count();
            samples.count(&family::ALLOCATIONS, &[name], count as u64);
        }
        samples.count(&family::REPORTS_PENDING, &[], view.reports_pending as u64);
        samples.count(&family::INCARNATION, &[], view.incarnation);
        let fact = self.context.machine.facts.own();
        for state in NodeState::ALL {
            samples.count(&family::NODE_STATE, &[&state.to_string()], u64::from(state == fact.state));
        }
        samples.count(&family::HOLDS, &[], fact.holds.len() as u64);
        let connected = matches!(*self.session.borrow(), SessionState::Connected { .. });
        samples.count(&family::CONNECTED, &[], u64::from(connected));
        let acknowledged_ms = *self.context.work.acknowledged.borrow();
        if let Some(acknowledged_ms) = acknowledged_ms {
            // The acknowledgement's time is in milliseconds since boot; nobody sets that clock.
            let ago_ms = boottime_ms().saturating_sub(acknowledged_ms);
            samples.add(&family::LAST_HEARTBEAT, &[], lattice_agent_common::clock::now().0.saturating_sub(ago_ms) as f64 / 1e3);
        }
        self.journal.write_metrics(samples);
        self.context.work.latencies.write_metrics(samples);
        self.context.work.checkpoint.checkpoints.counts().write_metrics(samples);
        self.context.traces.write_metrics(samples);
        self.mesh(samples);
    }
}

impl Own {
    fn mesh(&self, samples: &mut Samples) {
        let mesh::Counted { connections, opened, accepted, failed } = self.context.work.mesh.counted();
        samples.count(&family::MESH_CONNECTIONS, &[], connections);
        samples.count(&family::MESH_STREAMS, &["us"], opened);
        samples.count(&family::MESH_STREAMS, &["peers"], accepted);
        samples.count(&family::MESH_FAILURES, &[], failed);
        for (reason, counter) in [("version", &REFUSED.version), ("too_large", &REFUSED.too_large), ("malformed", &REFUSED.malformed)] {
            samples.count(&family::MESH_REFUSED, &[reason], counter.load(Ordering::Relaxed));
        }
    }
}

/// Begins to measure, serve `/metrics` and push; `counted`: other sources of metrics. Failures
/// are noted in `degraded` and do not keep the agent from working.
pub async fn begin(
    config: &AgentConfig,
    context: &Shared,
    membership: &Membership,
    session: &watch::Receiver<SessionState>,
    (journal, counted): (Arc<JournalCounts>, Vec<Box<dyn Collect>>),
    degraded: &mut Vec<String>,
    (tasks, stop): (&TaskTracker, &CancellationToken),
) {
    let mut lacks = |why: String| {
        tracing::warn!("{why}");
        degraded.push(why);
    };
    let ended_for = Duration::from_secs(config.telemetry.prod_interval_seconds) * 2;
    if let Err(error) = context.work.measuring.begin(ended_for, tasks, stop.child_token()) {
        lacks(format!("metrics of allocations: no thread could be started for them ({error})"));
    }
    let (slice, topology) = (context.machine.slice.clone(), context.machine.topology.clone());
    let of_gpus = Arc::new(gpu_loads::Handles { slice, topology, gpus: context.machine.gpus.clone(), view: context.work.view.clone() });
    if let Err(error) = context.machine.gpu_readings.begin(Arc::clone(&of_gpus), config.simulated_gpus.clone(), stop.child_token()) {
        lacks(format!("metrics of GPUs: no thread could be started for them ({error})"));
    }
    tasks.spawn(hangs::run(Arc::clone(context), stop.child_token()));
    // An error means that another caller has installed a provider already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let settings = &config.telemetry;
    let pushing = match settings.store() {
        Ok(None) => None,
        Ok(Some(store)) => match push::open(&config.state_dir.join("telemetry"), settings.tsdb_buffer_bytes_max, Spare::OfDisk) {
            Ok(pushed) => Some((store, pushed)),
            Err(error) => {
                lacks(format!("metrics are not pushed: {}", with_causes(&error)));
                None
            }
        },
        Err(error) => {
            lacks(format!("metrics are not pushed: {}", with_causes(&error)));
            None
        }
    };
    let own = Own { context: Arc::clone(context), session: session.clone(), journal };
    let mut parts: Vec<Box<dyn Collect>> =
        vec![Box::new(own), Box::new(Gossip(membership.clone())), Box::new(Host::default()), Box::new(context.work.measuring.clone())];
    parts.extend(counted);
    let adapters = Adapters::default();
    match adapters.begin(stop.child_token()) {
        Ok(()) => parts.push(Box::new(adapters)),
        Err(error) => lacks(format!("metrics of InfiniBand adapters: no thread could be started for them ({error})")),
    }
    let mounts = Mounts::default();
    match mounts.begin(stop.child_token()) {
        Ok(()) => parts.push(Box::new(mounts)),
        Err(error) => lacks(format!("metrics of mounts: no thread could be started for them ({error})")),
    }
    parts.push(Box::new(OfNode { handles: of_gpus, readings: context.machine.gpu_readings.clone() }));
    if let Some((_, pushed)) = &pushing {
        parts.push(Box::new(pushed.clone()));
    }
    let exporter = Exporter::new("agent", vec![("node_id", context.setup.me.to_string())], parts);
    if let Some((store, pushed)) = pushing {
        let interval = Duration::from_secs(settings.prod_interval_seconds);
        let (exporter, me, stop) = (exporter.clone(), context.setup.me.to_string(), stop.child_token());
        tasks.spawn(async move { pushed.run(exporter, store, JOB, me, interval, stop).await });
    }
    let Some(listen) = config.metrics_listen() else { return };
    let token = match settings.token() {
        Ok(token) => token,
        // Without the token no scraper gets allocations, which is the safe side.
        Err(error) => {
            lacks(format!("metrics_token_file: {}: /metrics shows no allocations", with_causes(&error)));
            None
        }
    };
    match TcpListener::bind(listen).await {
        Ok(listener) => {
            let session = session.clone();
            let ready: Ready = Arc::new(move || Ok(session.borrow().ready()?));
            tasks.spawn(serve::run(exporter, listener, token, ready, stop.child_token()));
        }
        Err(error) => {
            lacks(format!("metrics cannot be served at {listen}: {error}; set telemetry.metrics_listen to another address, or to \"\""));
        }
    }
}
