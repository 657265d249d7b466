//! An allocation that is asked to save itself.

use crate::bench::surroundings::wait_running;
use anyhow::{Context, Result, ensure};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_lab::asked::{self, Mode, RequestTimes};
use lattice_lab::cluster::Cluster;
use lattice_lab::interrupt;
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::process::until;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use uuid::Uuid;

/// Number of nodes of the allocation that is preempted.
pub(super) const WIDE_NODES: u32 = 4;
/// Timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(180);
/// Interval of checks whether nodes are free.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// An allocation that is asked, and connections to agents.
pub(super) struct Asked<'a> {
    pub(super) id: String,
    /// The directory in which its processes write.
    pub(super) dir: PathBuf,
    pub(super) processes: usize,
    pub(super) lattice: Lattice,
    pub(super) runtime: &'a Runtime,
    /// Connections to the agent of its first node, and to an agent without a share of it.
    pub(super) here: Client,
    pub(super) elsewhere: Client,
}

impl<'a> Asked<'a> {
    /// Submits it and waits until all its processes listen.
    pub(super) fn begin(cluster: &Cluster, runtime: &'a Runtime, mode: Mode, shape: &[&str], processes: usize) -> Result<Self> {
        let dir = cluster.dir.join(format!("asked-{}", Uuid::new_v4()));
        fs::create_dir(&dir)?;
        let asks = format!("--checkpoint={}", mode.name());
        let (program, at) = (cluster.binaries.join("lattice-lab"), dir.to_string_lossy());
        let program = program.to_string_lossy();
        let lattice = Lattice::to(cluster, "n1")?;
        let fixed = ["submit", "-o", "name", "--name", mode.name(), "--walltime", "4h", &asks];
        let id = lattice
            .ok(&[&fixed[..], shape, &["--", &program, "asked", "--mode", mode.name(), "--dir", &at][..]].concat())?
            .trim()
            .to_owned();
        wait_running(&lattice, &id)?;
        let now = lattice.allocation(&id)?;
        let nodes: Vec<String> =
            now["nodes"].as_array().context("its nodes")?.iter().filter_map(|n| n.as_str()).map(str::to_owned).collect();
        let head = nodes.first().context("it has no node")?;
        let other = cluster.nodes.iter().find(|node| !nodes.contains(&node.id)).context("every node has a part of it")?;
        let connect = |node: &str| -> Result<Client> {
            let endpoint = format!("unix:{}", cluster.node(node)?.socket.display());
            Ok(runtime.block_on(Client::connect(&endpoint))?)
        };
        let (here, elsewhere) = (connect(head)?, connect(&other.id)?);
        let asked = Self { id, dir, processes, lattice, runtime, here, elsewhere };
        asked.ready(processes)?;
        Ok(asked)
    }

    /// Waits until this many processes, over all its runs together, have reported that they listen.
    fn ready(&self, processes: usize) -> Result<()> {
        let ready = until(REQUEST_TIMEOUT, || {
            interrupt::came().is_some() || asked::read_progress(&self.dir).is_ok_and(|(ready, _)| ready >= processes)
        });
        interrupt::check()?;
        ensure!(ready, "of {processes} processes of allocation {} only {} listen", self.id, asked::read_progress(&self.dir)?.0);
        Ok(())
    }

    /// Requests a checkpoint and waits until it is complete. Returns its id, the times of request and completion, and
    /// the program's own times.
    pub(super) fn complete(&self, through: &Client) -> Result<Complete> {
        let before = asked::read_progress(&self.dir)?.1;
        let id = Uuid::new_v4().to_string();
        let request = v1::CheckpointRequest { id: id.clone(), allocation: self.id.clone(), deadline_ms: 0 };
        let mut client = through.allocations();
        let (asked_ns, over_ns) = self.runtime.block_on(async {
            let asking = async {
                let asked_ns = asked::now_ns();
                let mut events = client.checkpoint(request).await?.into_inner();
                while let Some(event) = events.message().await? {
                    if event.done {
                        let over_ns = asked::now_ns();
                        ensure!(event.complete && event.id == id, "checkpoint {}: {} {}", event.id, event.state, event.detail);
                        return Ok((asked_ns, over_ns));
                    }
                }
                anyhow::bail!("the stream of the checkpoint's events ended early")
            };
            tokio::time::timeout(REQUEST_TIMEOUT, asking).await.context("the checkpoint did not end in time")?
        })?;
        let times = asked::read_progress(&self.dir)?.1.filter(|times| Some(*times) != before).context("the program has not noticed")?;
        Ok(Complete { id, asked_ns, over_ns, times })
    }

    /// From the request until the program notices.
    pub(super) fn noticed(&self, through: &Client) -> Result<Duration> {
        let done = self.complete(through)?;
        let took = done.times.noticed_ns.checked_sub(done.asked_ns).context("it noticed before it was asked: the clock was set")?;
        Ok(Duration::from_nanos(took))
    }

    /// From the preemption until no node has a share of the allocation, by the quorum. It is resumed afterwards.
    pub(super) fn freed(&self) -> Result<Duration> {
        let now = self.lattice.allocation(&self.id)?;
        let nodes: Vec<String> =
            now["nodes"].as_array().context("its nodes")?.iter().filter_map(|n| n.as_str()).map(str::to_owned).collect();
        ensure!(nodes.len() == WIDE_NODES as usize, "it does not run: {now}");
        let id = Uuid::new_v4().to_string();
        let order = v1::PreemptRequest {
            key: self.id.clone(),
            id: id.clone(),
            deadline_ms: 60_000,
            reason: "the bench's".to_owned(),
            hold: true,
            kill: false,
        };
        let (mut client, mut listing) = (self.here.allocations(), self.here.nodes());
        let took = self.runtime.block_on(async {
            let freed = async {
                let began = Instant::now();
                client.preempt(order).await?;
                // A list may mix two moments of a node's change: nodes are free only if two lists show it.
                let mut free_at = None;
                loop {
                    let listed = listing.list(v1::ListNodesRequest::default()).await?.into_inner().nodes;
                    let held = listed.iter().filter(|n| nodes.contains(&n.id)).any(|n| n.committed.as_ref().is_some_and(|c| c.cores > 0));
                    match free_at {
                        _ if held => free_at = None,
                        None => free_at = Some(began.elapsed()),
                        Some(took) => return anyhow::Ok(took),
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            };
            tokio::time::timeout(REQUEST_TIMEOUT, freed).await.context("its nodes are not free in time")?
        })?;
        let now = self.lattice.allocation(&self.id)?;
        ensure!(text(&now, "state") == "Suspended" && text(&now["checkpoint"], "id") == id, "it did not save itself: {now}");
        let (ready, _) = asked::read_progress(&self.dir)?;
        self.lattice.ok(&["resume", self.id.as_str()])?;
        wait_running(&self.lattice, &self.id)?;
        self.ready(ready + self.processes)?;
        Ok(took)
    }
}

/// A complete checkpoint, with its times.
pub(super) struct Complete {
    pub(super) id: String,
    pub(super) asked_ns: u64,
    pub(super) over_ns: u64,
    pub(super) times: RequestTimes,
}
