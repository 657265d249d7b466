//! Wipes this node with the site's program when the quorum orders it. The result is stored until
//! the quorum has it.
//!
//! ```text
//!   ordered ──no share is left──▶ the program runs ──▶ its result on the disk ──▶ reported, until the order is gone
//! ```
//!
//! If the agent is stopped or killed during a wipe, the next one runs the program again from the
//! start: the program must tolerate that.

use crate::hooks::{ProgramEnd, last_line, run_program};
use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::config::hooks::SiteHook;
use lattice_agent_common::files;
use lattice_agent_common::node_view::NodeView;
use lattice_model::NodeId;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Pause before a retry after a disk error.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// What the quorum orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Not known yet.
    Unknown,
    Nothing,
    Order(u64),
}

/// How an order ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub order: u64,
    /// What went wrong; `None`: it succeeded.
    pub failed: Option<String>,
}

/// The session's handle on wipes. All clones share it.
#[derive(Clone, Debug)]
pub struct Wipes {
    asked: watch::Sender<Asked>,
    done: watch::Receiver<Option<Done>>,
}

impl Wipes {
    /// Sets the quorum's present order; `None`: it orders no wipe.
    pub fn ask(&self, order: Option<u64>) {
        let asked = order.map_or(Asked::Nothing, Asked::Order);
        self.asked.send_if_modified(|was| std::mem::replace(was, asked) != asked);
    }

    /// How the last order ended, until the quorum orders another one or withdraws it.
    pub fn watch(&self) -> watch::Receiver<Option<Done>> {
        self.done.clone()
    }
}

/// The task that executes orders.
pub struct Wiping {
    program: PathBuf,
    limit: Duration,
    node: String,
    /// The file with the last result.
    file: PathBuf,
    view: watch::Receiver<Arc<NodeView>>,
    asked: watch::Receiver<Asked>,
    done: watch::Sender<Option<Done>>,
}

impl Wiping {
    /// Creates the task and its handle. A stored result is reported again while the quorum still
    /// gives its order.
    pub fn new(config: &AgentConfig, me: &NodeId, view: watch::Receiver<Arc<NodeView>>) -> (Self, Wipes) {
        let file = config.state_dir.join("wipe.json");
        let known = match std::fs::read(&file).map(|bytes| serde_json::from_slice(&bytes)) {
            Ok(Ok(done)) => Some(done),
            Ok(Err(error)) => {
                tracing::warn!(file = %file.display(), %error, "the result of a wipe cannot be read: if the quorum still orders the wipe, it is repeated");
                None
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(file = %file.display(), %error, "the result of a wipe cannot be read: if the quorum still orders the wipe, it is repeated");
                None
            }
        };
        let ((asked, asking), (done, done_view)) = (watch::channel(Asked::Unknown), watch::channel(known));
        let SiteHook { program, timeout_seconds } = config.hooks.wipe.clone();
        let limit = Duration::from_secs(timeout_seconds);
        let wiping = Self { program, limit, node: me.to_string(), file, view, asked: asking, done };
        (wiping, Wipes { asked, done: done_view })
    }

    /// Executes orders until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let asked = *self.asked.borrow_and_update();
            match asked {
                Asked::Unknown => {}
                Asked::Nothing => self.forget(),
                Asked::Order(order) if self.done.borrow().as_ref().is_some_and(|done| done.order == order) => {}
                Asked::Order(order) => {
                    let empty = tokio::select! {
                        () = stop.cancelled() => return,
                        _ = self.asked.changed() => continue,
                        empty = self.view.wait_for(|view| view.locals.is_empty()) => empty.is_ok(),
                    };
                    if !empty {
                        return;
                    }
                    if !self.execute(order, &stop).await {
                        return;
                    }
                    // The order may have changed meanwhile.
                    continue;
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.asked.changed() => if changed.is_err() {
                    return;
                }
            }
        }
    }

    /// Runs the program and stores its result. `false`: the agent stops.
    async fn execute(&self, order: u64, stop: &CancellationToken) -> bool {
        tracing::warn!(order, program = %self.program.display(), "the wipe of this node begins");
        let env = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("LATTICE_HOOK", "wipe".to_owned()),
            ("LATTICE_NODE", self.node.clone()),
            ("LATTICE_WIPE_ORDER", order.to_string()),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let failed = if self.program.as_os_str().is_empty() {
            Some("hooks.wipe is not configured any more".to_owned())
        } else {
            match run_program(&self.program, env, None, self.limit, stop).await {
                Ok((ProgramEnd::Exited(0), _)) => None,
                Ok((ProgramEnd::Cancelled, _)) => return false,
                Ok((ProgramEnd::TooLong, _)) => {
                    Some(format!("it did not end within {} s (hooks.wipe.timeout_seconds) and was killed", self.limit.as_secs()))
                }
                Ok((end, output)) => Some(last_line(&output).unwrap_or_else(|| format!("{} {end}", self.program.display()))),
                Err(why) => Some(format!("{} could not be started: {why}", self.program.display())),
            }
        };
        let done = Done { order, failed };
        // Not reported before it is stored: otherwise a crash would wipe the node again after the
        // quorum has given it to work.
        while let Err(why) = self.store(&done) {
            tracing::error!(file = %self.file.display(), %why, "the result of the wipe cannot be stored; retrying");
            if stop.run_until_cancelled(tokio::time::sleep(RETRY_PAUSE)).await.is_none() {
                return false;
            }
        }
        match &done.failed {
            None => tracing::info!(order, "this node was wiped"),
            Some(why) => tracing::error!(order, %why, "the wipe of this node failed"),
        }
        self.done.send_replace(Some(done));
        true
    }

    fn store(&self, done: &Done) -> io::Result<()> {
        files::replace(&self.file, &serde_json::to_vec(done)?)
    }

    /// Removes the result, because the quorum has it. After a recovery from a backup the quorum may
    /// give the same order once more, and then the node must be wiped again.
    fn forget(&self) {
        if self.done.send_replace(None).is_none() {
            return;
        }
        if let Err(error) = std::fs::remove_file(&self.file)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %self.file.display(), %error, "the stored result of a wipe cannot be removed");
        }
    }
}
