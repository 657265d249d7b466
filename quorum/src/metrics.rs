//! This member's metrics at `/metrics`, and their push.

use crate::config::QuorumConfig;
use crate::core::Core;
use crate::raft_counts::RaftCounts;
use lattice_model::{AllocationState, with_causes};
use lattice_store::{Durations, disk_reserve};
use lattice_telemetry::catalogue::quorum as family;
use lattice_telemetry::exporter::Exporter;
use lattice_telemetry::push::{self, Spare};
use lattice_telemetry::sample::{Collect, Samples, Whose};
use lattice_telemetry::serve::{self, Ready};
use lattice_telemetry::settings::QUORUM_PORT;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The job name that the documented scraper configuration uses for these series.
const JOB: &str = "lattice-quorum";
/// The directory in `data_dir` for metrics that wait to be pushed.
const BUFFER_DIR: &str = "telemetry";
/// Largest depth of directories when sizes are summed.
const DEPTH_MAX: u32 = 3;

/// The member's own metrics. A weak reference: a scrape must not keep a stopping member alive.
struct Own(Weak<Core>);

impl Collect for Own {
    fn collect(&self, samples: &mut Samples, whose: Whose) {
        let Some(core) = self.0.upgrade() else { return };
        raft(&core, samples);
        counted(core.proposer.counts(), &core.agreed.durations, samples);
        {
            // `time` locks the ledger too, so it is called before that lock is taken.
            let now = core.timekeeper.time();
            let ledger = core.agreed.ledger();
            for (state, nodes) in ledger.node_counts() {
                samples.add(&family::NODES, &[&state.to_string()], nodes);
            }
            let [wipes, drifts] = ledger.nodes_amiss();
            samples.add(&family::WIPES_FAILED, &[], wipes);
            samples.add(&family::DRIFTS_OVER, &[], drifts);
            samples.count(&family::NODES_HELD_BACK, &[], core.counts.held_back.load(Ordering::Relaxed));
            samples.count(&family::CLOCKS_WRONG, &[], u64::from(core.timekeeper.alarm().is_some()));
            samples.count(&family::MISCOUNTED, &[], core.counts.miscounted.load(Ordering::Relaxed));
            samples.count(&family::CAPACITY_GROWN, &[], core.counts.capacity_grown.load(Ordering::Relaxed));
            let mut running = 0;
            for (state, allocations) in ledger.allocation_counts() {
                samples.add(&family::ALLOCATIONS, &[&state.to_string()], allocations);
                if state == AllocationState::Running {
                    running = allocations;
                }
            }
            samples.add(&family::ACTIVE, &[], running);
            let ended = ledger.ended_status(now);
            samples.count(&family::ENDED_BYTES, &[], ended.bytes);
            samples.count(&family::ENDED_BYTES_MAX, &[], ended.limits.memory_bytes);
            samples.add(&family::ENDED_OLDEST, &[], ended.oldest_ms().unwrap_or(0) as f64 / 1000.0);
            samples.count(&family::ENDED_CUT_SHORT, &[], u64::from(ended.is_cut_short()));
            let ends = ledger.ends_status();
            samples.count(&family::ENDS_WAITING, &[], ends.waiting);
            samples.count(&family::ENDS_DROPPED, &[], ends.dropped);
            samples.count(&family::REVISION, &[], ledger.revision().0);
            samples.count(&family::AUDIT_RECORDS, &[], ledger.audit_head().seq);
            let vnis = ledger.vni_pool_status();
            samples.add(&family::VNIS, &[], vnis.pool.size());
            samples.add(&family::VNIS_FREE, &[], vnis.pool.size().saturating_sub(vnis.used));
            if whose == Whose::Everybodys {
                for status in ledger.tenant_statuses() {
                    let tenant = status.tenant.name.as_str();
                    samples.add(&family::QUOTA_USED, &[tenant], status.nodes);
                    if let Some(most) = status.tenant.max_nodes {
                        samples.add(&family::QUOTA_MAX, &[tenant], most);
                    }
                }
            }
        }
        samples.count(&family::AUDIT_DAMAGED, &[], core.agreed.damaged_audit_segments() as u64);
        disk(&core.config.data_dir, samples);
    }
}

fn raft(core: &Core, samples: &mut Samples) {
    // A copy: the calls below lock the same metrics, and a second read lock in one thread blocks
    // for ever if a writer waits between the two.
    let metrics = core.raft.metrics().borrow().clone();
    let truth = |is: bool| u64::from(is);
    samples.count(&family::LEADER, &[], truth(metrics.current_leader == Some(core.config.id)));
    samples.count(&family::HAS_LEADER, &[], truth(core.has_leader()));
    samples.count(&family::TERM, &[], metrics.current_term);
    let index = |id: Option<openraft::LogId<u64>>| id.map_or(0, |id| id.index);
    let last = metrics.last_log_index.unwrap_or(0);
    samples.count(&family::LAST_LOG, &[], last);
    samples.count(&family::COMMITTED, &[], index(metrics.last_applied));
    samples.count(&family::SNAPSHOT_INDEX, &[], index(metrics.snapshot));
    samples.count(&family::LOG_ENTRIES, &[], last.saturating_sub(index(metrics.purged)));
    let membership = metrics.membership_config.membership();
    samples.count(&family::MEMBERS, &["voter"], membership.voter_ids().count() as u64);
    samples.count(&family::MEMBERS, &["learner"], membership.learner_ids().count() as u64);
}

fn counted(counts: &RaftCounts, durations: &Durations, samples: &mut Samples) {
    let RaftCounts { accepted, refused, unserved, entries, commit } = counts;
    let Durations { apply, snapshot } = durations;
    for (result, counter) in [("accepted", accepted), ("refused", refused), ("unserved", unserved)] {
        samples.count(&family::PROPOSALS, &[result], counter.load(Ordering::Relaxed));
    }
    samples.count(&family::ENTRIES, &[], entries.load(Ordering::Relaxed));
    for (metric, histogram) in [(&family::COMMIT_SECONDS, commit), (&family::APPLY_SECONDS, apply), (&family::SNAPSHOT_SECONDS, snapshot)] {
        samples.histogram(metric, &[], histogram.counts());
    }
}

fn disk(dir: &Path, samples: &mut Samples) {
    let (mut log, mut snapshots, mut audit, mut reserve, mut telemetry, mut newest) = (0, 0, 0, 0, 0, None);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (name, bytes) = (entry.file_name(), allocated(&entry.path(), DEPTH_MAX));
        let name = name.to_string_lossy();
        match name.as_ref() {
            "audit" => audit += bytes,
            disk_reserve::RESERVE_FILE => reserve += bytes,
            BUFFER_DIR => telemetry += bytes,
            name if name.ends_with(".snapshot") => {
                snapshots += bytes;
                // The file names are indices with leading zeros.
                newest = newest.max(Some((name.to_owned(), entry.metadata().map_or(0, |about| about.len()))));
            }
            _ => log += bytes,
        }
    }
    for (part, bytes) in [("log", log), ("snapshots", snapshots), ("audit", audit), ("reserve", reserve), ("telemetry", telemetry)] {
        samples.count(&family::DATA_BYTES, &[part], bytes);
    }
    if let Some((_, bytes)) = newest {
        samples.count(&family::SNAPSHOT_BYTES, &[], bytes);
    }
    if let Ok(stat) = nix::sys::statvfs::statvfs(dir) {
        let of = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
        samples.count(&family::DISK_TOTAL, &[], of(stat.blocks()));
        samples.count(&family::DISK_USED, &[], of(stat.blocks().saturating_sub(stat.blocks_free())));
    }
}

/// The bytes that a file or a directory's content occupies on the disk.
fn allocated(path: &Path, depth: u32) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(about) = fs::symlink_metadata(path) else { return 0 };
    if !about.is_dir() || depth == 0 {
        return about.blocks() * 512;
    }
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| allocated(&entry.path(), depth - 1)).sum()
}

/// Whether this member can commit together with the others.
fn ready(core: &Core) -> Result<(), NotServing> {
    if core.has_leader() {
        return Ok(());
    }
    Err(NotServing::NoLeader { silent_s: core.silence().as_secs() })
}

/// Why this member cannot answer clients now.
#[derive(Debug, Error)]
enum NotServing {
    #[error("no contact with a leader, or as leader with a majority, for {silent_s} s")]
    NoLeader { silent_s: u64 },
    #[error("the member is stopping")]
    Stopping,
}

/// Serves and pushes metrics. Failures are only logged: a member works without metrics, too.
pub(crate) async fn begin(core: &Arc<Core>) -> Vec<JoinHandle<()>> {
    let QuorumConfig { id, data_dir, telemetry, disk_reserve_bytes, .. } = &core.config;
    let mut tasks = Vec::new();
    // This fails if a provider is installed already, which is the same one: this program has no other.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut parts: Vec<Box<dyn Collect>> = vec![Box::new(Own(Arc::downgrade(core)))];
    let store = telemetry.store().unwrap_or_else(|error| {
        tracing::warn!(error = %with_causes(&error), "metrics are not pushed");
        None
    });
    // The member accepts nothing new when less than the size of its reserve is free. The buffer
    // must not cause that: it always leaves twice as much free.
    let spare = Spare::Bytes(disk_reserve_bytes.saturating_mul(2));
    let pushing = store.and_then(|store| match push::open(&data_dir.join(BUFFER_DIR), telemetry.tsdb_buffer_bytes_max, spare) {
        Ok(pushed) => Some((store, pushed)),
        Err(error) => {
            tracing::warn!(error = %with_causes(&error), "metrics are not pushed");
            None
        }
    });
    if let Some((_, pushed)) = &pushing {
        parts.push(Box::new(pushed.clone()));
    }
    let exporter = Exporter::new("quorum", vec![("member_id", id.to_string())], parts);
    if let Some((store, pushed)) = pushing {
        let (exporter, stop) = (exporter.clone(), core.stop.clone());
        let (interval, me) = (Duration::from_secs(telemetry.prod_interval_seconds), lattice_pki::identity::member_name(*id));
        tasks.push(tokio::spawn(async move { pushed.run(exporter, store, JOB, me, interval, stop).await }));
    }
    // The service's listener has resolved this address before.
    let served = tokio::net::lookup_host(core.config.listens().0).await.ok().and_then(|mut found| found.next());
    let ip = served.map_or(Ipv4Addr::LOCALHOST.into(), |at| at.ip());
    let Some(listen) = telemetry.listen((ip, QUORUM_PORT).into()) else { return tasks };
    let token = telemetry.token().unwrap_or_else(|error| {
        tracing::warn!(error = %with_causes(&error), "metrics_token_file");
        None
    });
    match TcpListener::bind(listen).await {
        Ok(listener) => {
            let of = Arc::downgrade(core);
            let ready: Ready = Arc::new(move || Ok(of.upgrade().map_or(Err(NotServing::Stopping), |core| ready(&core))?));
            tasks.push(tokio::spawn(serve::run(exporter, listener, token, ready, core.stop.clone())));
        }
        Err(error) => {
            tracing::warn!(%listen, %error, "metrics cannot be served; set telemetry.metrics_listen to another address, or to \"\"");
        }
    }
    tasks
}
