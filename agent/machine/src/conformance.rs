//! Reads the versions of this node's software and firmware (its fingerprint): at the start, every
//! `conformance.period_seconds`, and when an operator asks. A driver may load after the agent has
//! started, so looks follow quickly until two in a row agree.
//!
//! ```text
//!   sysfs, procfs ─────────┐
//!   the site's files ──────┼──▶ components ──▶ if they changed, with a heartbeat ──▶ quorum
//!   and programs ──────────┘               └─▶ `lattice node status`; `lattice node fingerprint` (`over_mesh`)
//! ```
//!
//! Unreadable is not the same as absent: if any part cannot be read, the old result stays, so that
//! a BMC that fails to answer once does not count as drift.

mod looks;
pub mod over_mesh;
mod plain;
mod site_file;

use crate::hooks::{NotStartedError, ProgramEnd, last_line, run_program};
use lattice_agent_common::clock::now;
use lattice_agent_common::config::conformance::{ConformanceSettings, SiteComponent};
use lattice_model::conformance::Components;
use lattice_model::{NodeId, Timestamp};
use looks::LookError;
use plain::plain;
use site_file::{SiteFileError, SiteFiles};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;

/// Time until the next look after a look that failed or found a change, unless the period is
/// shorter.
const FAILED_PERIOD: Duration = Duration::from_secs(60);
/// How many requests of operators may wait for a look.
const ASKING_MAX: usize = 16;

/// The result of the last looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The components; `None`: no look has succeeded yet.
    pub components: Option<Components>,
    /// When they were read.
    pub at: Option<Timestamp>,
    /// Why the last look is incomplete.
    pub error: Option<String>,
}

/// What is reported to the quorum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConformanceReport {
    /// The last components; `None`: no look has succeeded yet.
    pub components: Option<Components>,
    /// Whether the last success is longer ago than `conformance.stale_seconds` allows.
    pub stale: bool,
}

/// A handle on the results. All clones share them.
#[derive(Clone, Debug)]
pub struct Conformity {
    found: watch::Receiver<Arc<Found>>,
    /// When a look last succeeded, or when the agent started.
    looked: watch::Receiver<Instant>,
    stale_after: Duration,
    ask: mpsc::Sender<oneshot::Sender<()>>,
}

impl Conformity {
    /// The last result.
    pub fn now(&self) -> Arc<Found> {
        Arc::clone(&self.found.borrow())
    }

    /// The report to the quorum.
    pub fn report(&self) -> ConformanceReport {
        ConformanceReport { components: self.now().components.clone(), stale: self.looked.borrow().elapsed() > self.stale_after }
    }

    /// A watch on the result.
    pub fn watch(&self) -> watch::Receiver<Arc<Found>> {
        self.found.clone()
    }

    /// Waits until the first look has ended, successfully or not.
    pub async fn wait_for_first_look(&self) {
        // The sender lives as long as the agent.
        let _ = self.found.clone().wait_for(|found| found.components.is_some() || found.error.is_some()).await;
    }

    /// Looks again and returns the result.
    pub async fn look_again(&self) -> Arc<Found> {
        let (done, over) = oneshot::channel();
        if self.ask.send(done).await.is_ok() {
            // Ends with an error in any case: the task drops the sender after the look, or when the
            // agent stops.
            let _ = over.await;
        }
        self.now()
    }
}

/// Why the components are unknown.
#[derive(Debug, Error)]
enum ComponentsError {
    #[error(transparent)]
    Own(#[from] LookError),
    #[error("the look broke: {0}")]
    Broke(#[from] JoinError),
    #[error("{component}: {source}")]
    Site { component: String, source: SiteError },
}

/// Why a component of the site is unknown.
#[derive(Debug, Error)]
enum SiteError {
    #[error(transparent)]
    File(#[from] SiteFileError),
    #[error("{} could not be started: {source}", .program.display())]
    Start { program: PathBuf, source: NotStartedError },
    /// The program's own text, or how it ended.
    #[error("{why}")]
    Failed { why: String },
}

/// The task that looks.
pub struct Conforming {
    settings: ConformanceSettings,
    node: String,
    files: SiteFiles,
    found: watch::Sender<Arc<Found>>,
    looked: watch::Sender<Instant>,
    asked: mpsc::Receiver<oneshot::Sender<()>>,
}

impl Conforming {
    /// A task and its handle; nothing has been read yet.
    pub fn new(settings: ConformanceSettings, node: &NodeId) -> (Self, Conformity) {
        let ((found, seen), (ask, asked)) = (watch::channel(Arc::default()), mpsc::channel(ASKING_MAX));
        let (looked, last) = watch::channel(Instant::now());
        let conformity = Conformity { found: seen, looked: last, stale_after: settings.stale_after(), ask };
        (Self { settings, node: node.to_string(), files: SiteFiles::default(), found, looked, asked }, conformity)
    }

    /// Looks periodically until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut waiting = Vec::new();
        loop {
            let before = self.found.borrow().components.clone();
            // Not aborted by other events, because a program of the site would be left running.
            self.look(&stop).await;
            waiting.clear();
            let period = next_in(before.as_ref(), &self.found.borrow(), Duration::from_secs(self.settings.period_seconds));
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(period) => {}
                Some(asked) = self.asked.recv() => {
                    waiting.push(asked);
                    // One look answers all requests that arrived during the look before it.
                    while let Ok(asked) = self.asked.try_recv() {
                        waiting.push(asked);
                    }
                }
            }
        }
    }

    async fn look(&self, stop: &CancellationToken) {
        let looked = self.components(stop).await;
        if stop.is_cancelled() {
            return;
        }
        if looked.is_ok() {
            self.looked.send_replace(Instant::now());
        }
        self.found.send_modify(|found| {
            let found = Arc::make_mut(found);
            match looked {
                Ok(components) => *found = Found { components: Some(components), at: Some(now()), error: None },
                Err(error) => {
                    let why = error.to_string();
                    if found.error.as_ref() != Some(&why) {
                        tracing::warn!(%why, "this node's software and firmware could not be read; retrying");
                    }
                    found.error = Some(why);
                }
            }
        });
    }

    async fn components(&self, stop: &CancellationToken) -> Result<Components, ComponentsError> {
        let ignored = self.settings.parameters_ignored.clone();
        let own = tokio::task::spawn_blocking(move || looks::all(&ignored)).await;
        let mut all = own??;
        let sites = self.settings.components.iter().map(async |component| (component.name.clone(), self.site(component, stop).await));
        for (name, value) in futures::future::join_all(sites).await {
            let value = value.map_err(|source| ComponentsError::Site { component: name.clone(), source })?;
            all.extend(value.as_deref().and_then(plain).map(|value| (name, value)));
        }
        Ok(all)
    }

    /// Reads a component of the site; `None`: the node lacks it.
    async fn site(&self, component: &SiteComponent, stop: &CancellationToken) -> Result<Option<String>, SiteError> {
        let SiteComponent { name: _, file, program, timeout_seconds } = component;
        let limit = Duration::from_secs(*timeout_seconds);
        if !file.as_os_str().is_empty() {
            return Ok(self.files.first_line(file, limit).await?);
        }
        let env = [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LATTICE_NODE", self.node.as_str())];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        match run_program(program, env, None, limit, stop).await {
            Ok((ProgramEnd::Exited(0), output)) => Ok(last_line(&output)),
            Ok((ProgramEnd::Exited(3), _)) => Ok(None),
            Ok((end, output)) => {
                Err(SiteError::Failed { why: last_line(&output).unwrap_or_else(|| format!("{} {end}", program.display())) })
            }
            Err(source) => Err(SiteError::Start { program: program.clone(), source }),
        }
    }
}

/// Time until the next look. `before`: the components found before this one.
fn next_in(before: Option<&Components>, found: &Found, period: Duration) -> Duration {
    let is_settled = found.error.is_none() && found.components.as_ref() == before;
    if is_settled { period } else { period.min(FAILED_PERIOD) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::conformance::VALUE_BYTES_MAX;

    #[test]
    fn the_next_look_is_soon_until_two_agree() {
        let with = |driver: &str| Components::from([("gpu driver".to_owned(), driver.to_owned())]);
        let found = |components: Components| Found { components: Some(components), ..Found::default() };
        let (hours, minutes) = (Duration::from_secs(21_600), FAILED_PERIOD);
        assert_eq!(next_in(None, &found(with("1")), hours), minutes, "the first");
        assert_eq!(next_in(Some(&with("1")), &found(with("2")), hours), minutes);
        assert_eq!(next_in(Some(&with("2")), &found(with("2")), hours), hours);
        assert_eq!(next_in(None, &found(with("1")), Duration::from_secs(5)), Duration::from_secs(5));
        let failed = Found { error: Some("the BMC does not answer".to_owned()), ..found(with("2")) };
        assert_eq!(next_in(Some(&with("2")), &failed, hours), minutes);
    }

    #[test]
    fn a_long_value_is_reported_by_its_hash() {
        assert_eq!(plain(" a\tb\n"), Some("a b".to_owned()));
        assert_eq!(plain(" \n"), None);
        let (one, other) = (plain(&"x ".repeat(200)).unwrap(), plain(&"y ".repeat(200)).unwrap());
        assert!(one.starts_with("sha256:") && one.len() < VALUE_BYTES_MAX && one != other);
    }
}
