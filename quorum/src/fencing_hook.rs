//! The site's fencing hook: a program that ensures that a silent node is dead, like STONITH agents.
//!
//! ```text
//!   Down, holds work ──▶ runs ──▶ exit 0: the node is confirmed dead, as by an operator
//!                         └─────▶ anything else: logged, and tried again with doubling pauses, five times in total
//! ```
//!
//! Only the leader runs it, once for each time that a node becomes Down. A new leader starts again,
//! so the hook may run twice: fencing a dead node must do no harm. If more nodes fall silent at
//! once than is plausible by chance, none of them becomes Down and the hook is not run.

use crate::config::QuorumConfig;
use lattice_ledger::{Action, Ledger};
use lattice_model::{AllocationId, Backoff, Incarnation, Node, NodeId, Timestamp, with_causes};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, Command};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// The actor in the audit log.
const ACTOR: &str = "fencing_hook";
/// Largest number of concurrent runs; other nodes wait.
const RUNS_MAX: usize = 8;
/// Number of attempts for a node that became Down.
const TRIES_MAX: u32 = 5;
/// The pauses between attempts.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(40));
/// Largest part of the hook's output that is logged, in bytes; the rest is discarded.
const OUTPUT_BYTES_MAX: usize = 2048;
/// How long to wait for the rest of its output.
const OUTPUT_WAIT_MAX: Duration = Duration::from_secs(1);
/// Largest number of allocations passed to the hook, because the size of its arguments is limited.
const ALLOCATIONS_PASSED_MAX: usize = 1000;

/// Identifies one change of a node to Down: each such change has another value.
type Fall = (Incarnation, Timestamp);

/// The state for one term.
pub struct FencingHook {
    /// Empty: no hook.
    program: PathBuf,
    limit: Duration,
    cluster: String,
    tried: BTreeMap<NodeId, Tried>,
    ended: (mpsc::Sender<Ended>, mpsc::Receiver<Ended>),
}

/// The result of a run, handled at the next `poll`.
struct Ended {
    node: NodeId,
    fall: Fall,
    result: Result<(), ProgramError>,
}

struct Tried {
    fall: Fall,
    tries: u32,
    pauses: Backoff,
    state: RunState,
}

enum RunState {
    Waits {
        until: Instant,
    },
    /// Dropped when the node returns or this member is no longer the leader: that ends the run.
    Runs(AbortOnDropHandle<()>),
    /// The node is confirmed dead; this must be committed.
    Dead,
    GivenUp,
}

impl FencingHook {
    /// From the configuration.
    pub fn new(config: &QuorumConfig) -> Self {
        Self {
            program: config.fencing_hook.clone(),
            limit: Duration::from_secs(config.fencing_hook_seconds),
            cluster: config.cluster.clone(),
            tried: BTreeMap::new(),
            ended: mpsc::channel(RUNS_MAX),
        }
    }

    /// Handles ended runs and starts new ones; returns the commands to propose. A node that sends
    /// heartbeats is not dead: it is Down because of a hold, and its work may continue.
    pub fn poll(&mut self, ledger: &Ledger, sends_heartbeats: impl Fn(&Node) -> bool, now: Instant) -> Vec<Action> {
        if self.program.as_os_str().is_empty() {
            return Vec::new();
        }
        let mut holds: BTreeMap<NodeId, (Fall, BTreeSet<AllocationId>)> = BTreeMap::new();
        for node in ledger.nodes_down().filter(|node| !sends_heartbeats(node)) {
            let work: BTreeSet<AllocationId> = ledger.unfenced(&node.id).collect();
            if !work.is_empty() {
                holds.insert(node.id.clone(), ((node.incarnation, node.state_since), work));
            }
        }
        self.tried.retain(|node, tried| holds.get(node).is_some_and(|(fall, _)| *fall == tried.fall));
        while let Ok(ended) = self.ended.1.try_recv() {
            self.handle_ended(ended, now);
        }
        let mut actions = Vec::new();
        let mut running = self.tried.values().filter(|t| matches!(&t.state, RunState::Runs(run) if !run.is_finished())).count();
        for (node, (fall, work)) in holds {
            let tried =
                self.tried.entry(node.clone()).or_insert(Tried { fall, tries: 0, pauses: PAUSES, state: RunState::Waits { until: now } });
            match &tried.state {
                RunState::Waits { until } if *until <= now && running < RUNS_MAX => {
                    running += 1;
                    tried.tries += 1;
                    let (program, limit, ended_runs) = (self.program.clone(), self.limit, self.ended.0.clone());
                    let command = command(&program, &self.cluster, &node, &work);
                    tracing::warn!(%node, program = %program.display(), "the fencing hook is run");
                    let run = tokio::spawn(async move {
                        let result = run(command, limit, "fencing_hook_seconds").await;
                        // If this fails, this member is no longer the leader.
                        let _nobody = ended_runs.send(Ended { node, fall, result }).await;
                    });
                    tried.state = RunState::Runs(AbortOnDropHandle::new(run));
                }
                RunState::Dead => {
                    actions.push(Action::ConfirmDead { node, by: ACTOR.to_owned(), reason: "the fencing hook ended with 0".to_owned() });
                }
                RunState::Waits { .. } | RunState::Runs(_) | RunState::GivenUp => {}
            }
        }
        actions
    }

    fn handle_ended(&mut self, Ended { node, fall, result }: Ended, now: Instant) {
        let Some(tried) = self.tried.get_mut(&node).filter(|t| t.fall == fall) else { return };
        tried.state = match result {
            Ok(()) => {
                tracing::warn!(%node, "the fencing hook says that the node is dead");
                RunState::Dead
            }
            Err(error) if tried.tries >= TRIES_MAX => {
                tracing::error!(
                    %node, why = %with_causes(&error), tries = tried.tries,
                    "the fencing hook failed for the last time: its work stays where it is; an operator must look, then `lattice node confirm-dead`"
                );
                RunState::GivenUp
            }
            Err(error) => {
                let pause = tried.pauses.next_pause();
                tracing::error!(%node, why = %with_causes(&error), again_s = pause.as_secs(), "the fencing hook failed");
                RunState::Waits { until: now + pause }
            }
        };
    }
}

/// `PROGRAM NODE ALLOCATION...`, with a separate environment.
fn command(program: &Path, cluster: &str, node: &NodeId, work: &BTreeSet<AllocationId>) -> Command {
    let allocations: Vec<String> = work.iter().take(ALLOCATIONS_PASSED_MAX).map(ToString::to_string).collect();
    let mut command = site_command(program, cluster);
    command.arg(node.as_str()).args(&allocations);
    command.env("LATTICE_NODE", node.as_str()).env("LATTICE_ALLOCATIONS", allocations.join(" "));
    command
}

/// `PROGRAM`, with a separate environment.
pub fn site_command(program: &Path, cluster: &str) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LATTICE_CLUSTER", cluster)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // So that its children are ended together with it.
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Why a program of the site did not do its work.
#[derive(Debug, Error)]
pub enum ProgramError {
    #[error("it cannot be started")]
    Start(#[source] io::Error),
    #[error("it took longer than {} s ({setting}) and was ended", limit.as_secs())]
    Timeout { limit: Duration, setting: &'static str },
    #[error("{0}")]
    Exit(ExitStatus),
    #[error("{status}: {output}")]
    ExitWithOutput { status: ExitStatus, output: String },
    #[error("it cannot be waited for")]
    Wait(#[source] io::Error),
}

impl ProgramError {
    /// The exit code, if it ended by itself.
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Exit(status) | Self::ExitWithOutput { status, .. } => status.code(),
            Self::Start(_) | Self::Timeout { .. } | Self::Wait(_) => None,
        }
    }
}

/// Runs the program; an error unless it exits with 0 in time. `setting`: the name of the setting
/// with the time limit.
pub async fn run(command: Command, limit: Duration, setting: &'static str) -> Result<(), ProgramError> {
    run_with_input(command, Vec::new(), limit, setting).await
}

/// As [`run`], with this standard input if the command has a pipe for it.
pub async fn run_with_input(mut command: Command, input: Vec<u8>, limit: Duration, setting: &'static str) -> Result<(), ProgramError> {
    let mut child = command.spawn().map_err(ProgramError::Start)?;
    let mut group = Group(child.id());
    let stdin = child.stdin.take();
    // A program that does not read it must not keep anybody waiting; it may also end before it has read all.
    let _written = AbortOnDropHandle::new(tokio::spawn(async move {
        if let Some(mut stdin) = stdin {
            let _may_have_ended = stdin.write_all(&input).await;
        }
    }));
    let output = AbortOnDropHandle::new(tokio::spawn(read(child.stderr.take())));
    let Ok(waited) = tokio::time::timeout(limit, child.wait()).await else {
        return Err(ProgramError::Timeout { limit, setting });
    };
    // It has been reaped, so its process id may be reused from now on.
    group.0 = None;
    match waited {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            // Processes that it left behind may keep its output open.
            let output = tokio::time::timeout(OUTPUT_WAIT_MAX, output).await;
            let output = output.ok().and_then(Result::ok).unwrap_or_default();
            Err(if output.is_empty() { ProgramError::Exit(status) } else { ProgramError::ExitWithOutput { status, output } })
        }
        Err(error) => Err(ProgramError::Wait(error)),
    }
}

/// The process group of a run: killed on drop.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0.and_then(|pid| i32::try_from(pid).ok()) {
            // An error means that no process is left.
            let _gone = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(leader), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// The beginning of its output on one line. The rest is read and discarded, so that the program
/// does not block.
async fn read(stderr: Option<ChildStderr>) -> String {
    let Some(mut stderr) = stderr else { return String::new() };
    let (mut kept, mut chunk) = (Vec::new(), [0; 1024]);
    while let Ok(n) = stderr.read(&mut chunk).await {
        if n == 0 {
            break;
        }
        let left = OUTPUT_BYTES_MAX - kept.len();
        kept.extend_from_slice(&chunk[..n.min(left)]);
    }
    let text = String::from_utf8_lossy(&kept);
    text.trim().replace(|c: char| c.is_control(), " ")
}
