//! Runs the health checks of this node, the agent's own and the site's: before the first session,
//! then every `health.period_seconds`, sooner while one of them keeps work off the node, and soon
//! after the end of an allocation.
//!
//! ```text
//!   looks (blocking, each with a limit) ─┐
//!   the site's programs ─────────────────┼─▶ Health (pure) ──▶ unwell: with every heartbeat ──▶ Degraded, no new work
//!   GPUs (agent::gpus) ──────────────────╯                 ├─▶ a requested drain, failed hardware: a hold
//!                                                          └─▶ `lattice node status`
//! ```
//!
//! A look that exceeds its timeout counts as critical. Its thread is left alone, because nobody can
//! end a thread that hangs in a mount, and the same look is not started again until it returns.

mod looks;

use crate::hooks::{ProgramEnd, last_line, run_program};
use crate::image_cache::ImageCache;
use lattice_agent_common::clock::now;
use lattice_agent_common::config::health::{HealthSettings, SiteCheck};
use lattice_agent_common::files;
use lattice_model::NodeId;
use lattice_node::health::{Finding, Health, OwnDrain};
use lattice_quorum_client::wire::{DrainRequest, NodeHealth};
use looks::{Look, Looks};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// File in the state folder with the findings for which this node has requested a drain.
const OWN_DRAIN: &str = "own-drain.json";
/// Timeout of each of the agent's own looks.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time between two rounds while something is critical, and longest pause before the round
/// that follows the end of an allocation.
const UNWELL_PERIOD: Duration = Duration::from_secs(5);
/// How late the agent's own timer may be before that is reported.
const LAG_MAX: Duration = Duration::from_secs(2);

/// A handle on the results. All clones share them.
#[derive(Clone, Debug)]
pub struct Checks {
    health: watch::Receiver<Arc<Health>>,
    /// Counts the requests for a new round.
    again: watch::Sender<u64>,
}

impl Checks {
    /// The results of all checks.
    pub fn now(&self) -> Arc<Health> {
        Arc::clone(&self.health.borrow())
    }

    /// A watch on the results.
    pub fn watch(&self) -> watch::Receiver<Arc<Health>> {
        self.health.clone()
    }

    /// Waits until the first round of checks is complete.
    pub async fn wait_for_first_look(&self) {
        // The sender lives as long as the agent.
        let _ = self.health.clone().wait_for(|health| health.checks().next().is_some()).await;
    }

    /// The node's health as it is reported to the quorum.
    pub fn report(&self) -> NodeHealth {
        let health = self.now();
        if let Some(why) = health.failed() {
            return NodeHealth::Failed { why };
        }
        let unchecked = || health.checks().next().is_none().then(|| "its first checks are not over yet".to_owned());
        let drain = health.drains().map(|(asked, why)| DrainRequest { asked, why });
        health.unwell().or_else(unchecked).map_or(NodeHealth::Well, |why| NodeHealth::Unwell { why, drain })
    }

    /// Requests a new round soon from every task that runs checks.
    pub fn look_again(&self) {
        self.again.send_modify(|asked| *asked = asked.wrapping_add(1));
    }

    /// Changes with each request for a new round.
    pub fn asked(&self) -> watch::Receiver<u64> {
        self.again.subscribe()
    }
}

/// Where tasks report their findings. All clones share them.
#[derive(Clone, Debug)]
pub struct Finds {
    health: watch::Sender<Arc<Health>>,
    /// The file with the findings for which a drain was requested: after a restart the agent must
    /// not request it again.
    file: Arc<PathBuf>,
}

impl Finds {
    /// Starts without findings, except those for which a drain was requested before.
    fn new(state_dir: &Path) -> Self {
        let file = state_dir.join(OWN_DRAIN);
        let own_drain = read_own_drain(&file).unwrap_or_else(|why| {
            tracing::warn!(file = %file.display(), %why, "the file is unreadable: this node may repeat requests for a drain");
            OwnDrain::default()
        });
        Self { health: watch::Sender::new(Arc::new(Health::of(own_drain))), file: Arc::new(file) }
    }

    /// Takes findings.
    pub fn found(&self, found: Vec<(String, Finding)>) {
        let (before, at) = (self.health.borrow().unwell(), now());
        self.health.send_modify(|health| {
            let health = Arc::make_mut(health);
            let asked = health.own_drain().clone();
            found.into_iter().for_each(|(name, finding)| health.found(at, &name, finding));
            // Stored before anybody sees the request. This is rare, so the write may block here.
            if *health.own_drain() != asked {
                self.store_own_drain(health.own_drain());
            }
        });
        match (before, self.health.borrow().unwell()) {
            (before, Some(why)) if before.as_ref() != Some(&why) => tracing::warn!(%why, "this node is not well: it takes no new work"),
            (Some(_), None) => tracing::info!("this node is well again"),
            _ => {}
        }
    }

    fn store_own_drain(&self, own_drain: &OwnDrain) {
        let kept = serde_json::to_vec(own_drain).map_err(std::io::Error::other);
        if let Err(error) = kept.and_then(|bytes| files::replace(&self.file, &bytes)) {
            tracing::warn!(file = %self.file.display(), %error, "a request for a drain could not be stored: after a restart of the agent this node may repeat it");
        }
    }
}

fn read_own_drain(file: &Path) -> std::io::Result<OwnDrain> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(OwnDrain::default()),
        Err(error) => Err(error),
    }
}

/// The task that runs the checks.
pub struct Checking {
    settings: HealthSettings,
    looks: Looks,
    finds: Finds,
    again: watch::Receiver<u64>,
    /// This node's name, for the site's programs.
    node: String,
    /// Looks that exceeded their timeout and have not returned.
    hanging: BTreeMap<String, JoinHandle<Finding>>,
}

impl Checking {
    /// A task and its handle; nothing has been checked yet.
    pub fn new(settings: HealthSettings, node: &NodeId, state_dir: &Path, images: ImageCache) -> (Self, Checks) {
        let finds = Finds::new(state_dir);
        let (asks, again) = watch::channel(0);
        let looks = Looks::of(&settings, state_dir, images);
        let checks = Checks { health: finds.health.subscribe(), again: asks };
        (Self { settings, looks, finds, again, node: node.to_string(), hanging: BTreeMap::new() }, checks)
    }

    /// A handle for tasks that check something themselves.
    pub fn finds(&self) -> Finds {
        self.finds.clone()
    }

    /// Runs the checks until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            // Not aborted by other events: a program that was started would be left running.
            self.round(&stop).await;
            let configured = Duration::from_secs(self.settings.period_seconds);
            let period = if self.finds.health.borrow().unwell().is_some() { configured.min(UNWELL_PERIOD) } else { configured };
            let slept = Instant::now();
            tokio::select! {
                () = stop.cancelled() => return,
                // A pause, so that many short allocations do not cause a round each.
                Ok(()) = self.again.changed() => {
                    let pause = tokio::time::sleep_until((slept + UNWELL_PERIOD.min(configured)).into());
                    if stop.run_until_cancelled(pause).await.is_none() {
                        return;
                    }
                }
                () = tokio::time::sleep(period) => {
                    let late = slept.elapsed().saturating_sub(period);
                    let finding = if late > LAG_MAX {
                        Finding::Warning(format!("the agent woke {:.1} s late: it gets too little processor time", late.as_secs_f64()))
                    } else {
                        Finding::Ok
                    };
                    self.finds.found(vec![("agent lag".to_owned(), finding)]);
                }
            }
        }
    }

    /// Runs all checks once.
    async fn round(&mut self, stop: &CancellationToken) {
        let mut found = Vec::new();
        for (name, look) in self.looks.all(now()) {
            let Some(finding) = stop.run_until_cancelled(self.look(&name, look)).await else { return };
            found.push((name, finding));
        }
        // In parallel: a restarted agent must not wait for the sum of their timeouts.
        let sites = self.settings.checks.iter().map(async |check| (check.name.clone(), site(check, &self.node, stop).await));
        found.extend(futures::future::join_all(sites).await);
        self.finds.found(found);
    }

    async fn look(&mut self, name: &str, look: Look) -> Finding {
        let hangs = || Finding::Critical(format!("no answer within {} s", LOOK_TIMEOUT.as_secs()));
        let mut looking = match self.hanging.remove(name) {
            Some(hanging) if !hanging.is_finished() => {
                self.hanging.insert(name.to_owned(), hanging);
                return hangs();
            }
            Some(_) | None => tokio::task::spawn_blocking(look),
        };
        match tokio::time::timeout(LOOK_TIMEOUT, &mut looking).await {
            Ok(found) => found.unwrap_or_else(|broke| Finding::Warning(format!("the check failed: {broke}"))),
            Err(_) => {
                self.hanging.insert(name.to_owned(), looking);
                hangs()
            }
        }
    }
}

/// Runs a program of the site with the exit codes of Nagios plugins: 0 ok, 1 warning, 2 critical, 3
/// unknown. The last line of its output becomes the text.
async fn site(check: &SiteCheck, node: &str, stop: &CancellationToken) -> Finding {
    let env = [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LATTICE_NODE", node)];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let ran = run_program(&check.program, env, None, Duration::from_secs(check.timeout_seconds), stop).await;
    let (end, output) = match ran {
        Ok(ran) => ran,
        Err(why) => return Finding::Critical(format!("{} could not be started: {why}", check.program.display())),
    };
    let text = || last_line(&output).unwrap_or_else(|| end.to_string());
    match end {
        ProgramEnd::Exited(0) => Finding::Ok,
        ProgramEnd::Exited(1) => Finding::Warning(text()),
        ProgramEnd::Exited(3) => Finding::Unsupported(text()),
        // Only the program's own exit code counts: a program that cannot be started, or hangs,
        // says nothing about the hardware.
        ProgramEnd::Exited(2) if check.failure => Finding::Failure(text()),
        ProgramEnd::Exited(2) => Finding::Critical(text()),
        ProgramEnd::Exited(_) | ProgramEnd::Signalled(_) | ProgramEnd::Unknown | ProgramEnd::TooLong => {
            Finding::Critical(format!("{} {end}", check.program.display()))
        }
        ProgramEnd::Cancelled => Finding::Unsupported("the agent stops".to_owned()),
    }
}
