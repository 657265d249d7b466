//! What this node's checks find: the agent's own, and the site's. They are made before the first session begins, then every
//! `health.period_seconds`, sooner while one of them keeps work off, and after each allocation that was taken away.
//!
//! ```text
//!   looks (blocking, each with a limit) ─┐
//!   the site's programs ─────────────────┼─▶ Health (pure) ──▶ unwell: with every heartbeat ──▶ Degraded, no new work
//!   GPUs (agent::gpus) ──────────────────╯                 ├─▶ a drain asked for, failed hardware: a hold, by the leader's clock
//!                                                          └─▶ `lattice node status`
//! ```
//!
//! What a look cannot say in time is critical, and its thread is left to it: nobody can end a thread that hangs in a mount. The
//! same look is not begun again while it does.

mod looks;

use crate::hooks::{ProgramEnd, last_line, run_program};
use crate::image_cache::ImageCache;
use lattice_agent_common::clock::now;
use lattice_agent_common::config::health::{HealthSettings, SiteCheck};
use lattice_agent_common::files;
use lattice_model::NodeId;
use lattice_node::health::{Finding, Health, OwnDrain};
use lattice_quorum_client::wire::{DrainWish, NodeHealth};
use looks::{Look, Looks};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// In the state folder: for what the node asked to be drained.
const OWN_DRAIN: &str = "own-drain.json";
/// How long one of the agent's own looks may take.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// Between two rounds while something is critical, and behind allocations that ended, where the period is longer.
const UNWELL_PERIOD: Duration = Duration::from_secs(5);
/// How late the agent's own clock may be before that is said.
const LAG_MAX: Duration = Duration::from_secs(2);

/// What others may know. Cloneable; all clones are one.
#[derive(Clone, Debug)]
pub struct Checks {
    health: watch::Receiver<Arc<Health>>,
    /// How often they were asked for.
    again: watch::Sender<u64>,
}

impl Checks {
    /// All of them, once they were made.
    pub fn now(&self) -> Arc<Health> {
        Arc::clone(&self.health.borrow())
    }

    /// Changes of it.
    pub fn watch(&self) -> watch::Receiver<Arc<Health>> {
        self.health.clone()
    }

    /// Waits until all of them were made once.
    pub async fn made(&self) {
        // The other side ends with the agent.
        let _ = self.health.clone().wait_for(|health| health.checks().next().is_some()).await;
    }

    /// How the node is, as the quorum is told.
    pub fn word(&self) -> NodeHealth {
        let health = self.now();
        if let Some(why) = health.failed() {
            return NodeHealth::Failed { why };
        }
        let unmade = || health.checks().next().is_none().then(|| "its first checks are not over yet".to_owned());
        let drain = health.drains().map(|(asked, why)| DrainWish { asked, why });
        health.unwell().or_else(unmade).map_or(NodeHealth::Well, |why| NodeHealth::Unwell { why, drain })
    }

    /// They are to be made again soon, by whoever makes some.
    pub fn again(&self) {
        self.again.send_modify(|asked| *asked = asked.wrapping_add(1));
    }

    /// Changes each time that they are asked for.
    pub fn asked(&self) -> watch::Receiver<u64> {
        self.again.subscribe()
    }
}

/// Where is said what was found. Cloneable; all clones are one.
#[derive(Clone, Debug)]
pub struct Finds {
    health: watch::Sender<Arc<Health>>,
    /// Where is kept for what a drain was asked: the next agent must not ask for it again.
    file: Arc<PathBuf>,
}

impl Finds {
    /// Nothing was found yet by this agent.
    fn new(state_dir: &Path) -> Self {
        let file = state_dir.join(OWN_DRAIN);
        let own_drain = read_own_drain(&file).unwrap_or_else(|why| {
            tracing::warn!(file = %file.display(), %why, "for what this node asked to be drained is not known any more");
            OwnDrain::default()
        });
        Self { health: watch::Sender::new(Arc::new(Health::of(own_drain))), file: Arc::new(file) }
    }

    /// Takes what was found.
    pub fn found(&self, found: Vec<(String, Finding)>) {
        let (before, at) = (self.health.borrow().unwell(), now());
        self.health.send_modify(|health| {
            let health = Arc::make_mut(health);
            let asked = health.own_drain().clone();
            found.into_iter().for_each(|(name, finding)| health.found(at, &name, finding));
            // Before anybody is told. A few times in a node's life.
            if *health.own_drain() != asked {
                self.keep(health.own_drain());
            }
        });
        match (before, self.health.borrow().unwell()) {
            (before, Some(why)) if before.as_ref() != Some(&why) => tracing::warn!(%why, "this node is not well: it takes no new work"),
            (Some(_), None) => tracing::info!("this node is well again"),
            _ => {}
        }
    }

    fn keep(&self, own_drain: &OwnDrain) {
        let kept = serde_json::to_vec(own_drain).map_err(std::io::Error::other);
        if let Err(error) = kept.and_then(|bytes| files::replace(&self.file, &bytes)) {
            tracing::warn!(file = %self.file.display(), %error, "for what this node asks to be drained cannot be kept: its next agent may ask again");
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

/// The side that makes them.
pub struct Checking {
    settings: HealthSettings,
    looks: Looks,
    finds: Finds,
    again: watch::Receiver<u64>,
    /// This node's name, for the site's programs.
    node: String,
    /// Looks that were not answered in time.
    hanging: BTreeMap<String, JoinHandle<Finding>>,
}

impl Checking {
    /// Nothing was looked at yet.
    pub fn new(settings: HealthSettings, node: &NodeId, state_dir: &Path, images: ImageCache) -> (Self, Checks) {
        let finds = Finds::new(state_dir);
        let (asks, again) = watch::channel(0);
        let looks = Looks::of(&settings, state_dir, images);
        let checks = Checks { health: finds.health.subscribe(), again: asks };
        (Self { settings, looks, finds, again, node: node.to_string(), hanging: BTreeMap::new() }, checks)
    }

    /// For who looks at something by himself.
    pub fn finds(&self) -> Finds {
        self.finds.clone()
    }

    /// Makes them until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            // To its end: a program that is left in its middle would go on behind us.
            self.round(&stop).await;
            let configured = Duration::from_secs(self.settings.period_seconds);
            let period = if self.finds.health.borrow().unwell().is_some() { configured.min(UNWELL_PERIOD) } else { configured };
            let slept = Instant::now();
            tokio::select! {
                () = stop.cancelled() => return,
                // Not behind each of many short ones.
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
                        Finding::Well
                    };
                    self.finds.found(vec![("agent lag".to_owned(), finding)]);
                }
            }
        }
    }

    /// All checks once.
    async fn round(&mut self, stop: &CancellationToken) {
        let mut found = Vec::new();
        for (name, look) in self.looks.all(now()) {
            let Some(finding) = stop.run_until_cancelled(self.look(&name, look)).await else { return };
            found.push((name, finding));
        }
        // At the same time: an agent that was started again must not wait for the sum of their limits.
        let sites = self.settings.checks.iter().map(async |check| (check.name.clone(), site(check, &self.node, stop).await));
        found.extend(futures::future::join_all(sites).await);
        self.finds.found(found);
    }

    async fn look(&mut self, name: &str, look: Look) -> Finding {
        let hangs = || Finding::Critical(format!("no answer within {} s", LOOK_MAX.as_secs()));
        let mut looking = match self.hanging.remove(name) {
            Some(hanging) if !hanging.is_finished() => {
                self.hanging.insert(name.to_owned(), hanging);
                return hangs();
            }
            Some(_) | None => tokio::task::spawn_blocking(look),
        };
        match tokio::time::timeout(LOOK_MAX, &mut looking).await {
            Ok(found) => found.unwrap_or_else(|broke| Finding::Warning(format!("the look broke: {broke}"))),
            Err(_) => {
                self.hanging.insert(name.to_owned(), looking);
                hangs()
            }
        }
    }
}

/// A program of the site's, by the exit codes of Nagios' plugins: 0 well, 1 warning, 2 critical, 3 unknown. Its last line is told.
async fn site(check: &SiteCheck, node: &str, stop: &CancellationToken) -> Finding {
    let env = [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LATTICE_NODE", node)];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let ran = run_program(&check.program, env, None, Duration::from_secs(check.timeout_seconds), stop).await;
    let (end, output) = match ran {
        Ok(ran) => ran,
        Err(why) => return Finding::Critical(format!("{} could not be started: {why}", check.program.display())),
    };
    let said = || last_line(&output).unwrap_or_else(|| end.to_string());
    match end {
        ProgramEnd::Exited(0) => Finding::Well,
        ProgramEnd::Exited(1) => Finding::Warning(said()),
        ProgramEnd::Exited(3) => Finding::Unsupported(said()),
        // Its own word alone: a program that cannot be started, or hangs, says nothing of the hardware.
        ProgramEnd::Exited(2) if check.failure => Finding::Failure(said()),
        ProgramEnd::Exited(2) => Finding::Critical(said()),
        ProgramEnd::Exited(_) | ProgramEnd::Signalled(_) | ProgramEnd::Unknown | ProgramEnd::TooLong => {
            Finding::Critical(format!("{} {end}", check.program.display()))
        }
        ProgramEnd::Cancelled => Finding::Unsupported("the agent stops".to_owned()),
    }
}
