//! The site's fencing hook: a program that makes sure that a silent node is dead, as STONITH agents do.
//!
//! ```text
//!   Down, holds work ──▶ runs ──▶ exit 0: the node is confirmed dead, as an operator would
//!                         └─────▶ anything else: said, and tried again after a pause that doubles, five times in all
//! ```
//!
//! The leader alone runs it, once for each time that a node went Down. A new leader begins anew, so it may be run again: killing
//! what is dead must do no harm. Where more nodes fell silent at once than can be by chance, none is Down and it is not run.

use crate::config::QuorumConfig;
use lattice_ledger::{Action, Ledger};
use lattice_model::{AllocationId, Backoff, Incarnation, Node, NodeId, NodeState, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, Command};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Who says so in the audit log.
const ACTOR: &str = "fencing_hook";
/// Runs at once; other nodes wait for their turn.
const AT_ONCE: usize = 8;
/// Tries for one node that went Down.
const TRIES_MAX: u32 = 5;
/// Before each further try.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(40));
/// Bytes of its output that go into the log, and bytes that are read at all of a program that does not stop.
const OUTPUT_BYTES_MAX: usize = 2048;
/// How long its last words are waited for.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
/// Allocations that it is told of; an environment has its bounds.
const TOLD_MAX: usize = 1000;

/// What a node went Down as: the next time is another one.
type Fall = (Incarnation, Timestamp);

/// The duty of one term.
pub struct FencingHook {
    /// Empty: there is none.
    program: PathBuf,
    limit: Duration,
    cluster: String,
    tried: BTreeMap<NodeId, Tried>,
    ended: (mpsc::Sender<Ended>, mpsc::Receiver<Ended>),
}

/// What became of a run. Taken at the next look.
struct Ended {
    node: NodeId,
    fall: Fall,
    result: Result<(), String>,
}

struct Tried {
    fall: Fall,
    tries: u32,
    pauses: Backoff,
    standing: Standing,
}

enum Standing {
    Waits {
        until: Instant,
    },
    /// Ends with what it belongs to: the node came back, or this member leads no more.
    Runs(AbortOnDropHandle<()>),
    /// It is dead for certain; this is to be committed.
    Dead,
    GivenUp,
}

impl FencingHook {
    /// As configured.
    pub fn new(config: &QuorumConfig) -> Self {
        Self {
            program: config.fencing_hook.clone(),
            limit: Duration::from_secs(config.fencing_hook_seconds),
            cluster: config.cluster.clone(),
            tried: BTreeMap::new(),
            ended: mpsc::channel(AT_ONCE),
        }
    }

    /// Looks what ended, and which nodes are to be made sure of; gives what is to be committed. What is `heard` is not dead: it is
    /// Down by a hold, and its work may go on.
    pub fn look(&mut self, ledger: &Ledger, heard: impl Fn(&Node) -> bool, now: Instant) -> Vec<Action> {
        if self.program.as_os_str().is_empty() {
            return Vec::new();
        }
        let mut holds: BTreeMap<NodeId, (Fall, BTreeSet<AllocationId>)> = BTreeMap::new();
        for node in ledger.nodes().filter(|n| n.state == NodeState::Down && !heard(n)) {
            let work: BTreeSet<AllocationId> = ledger.unfenced(&node.id).collect();
            if !work.is_empty() {
                holds.insert(node.id.clone(), ((node.incarnation, node.state_since), work));
            }
        }
        self.tried.retain(|node, tried| holds.get(node).is_some_and(|(fall, _)| *fall == tried.fall));
        while let Ok(ended) = self.ended.1.try_recv() {
            self.take(ended, now);
        }
        let mut actions = Vec::new();
        let mut running = self.tried.values().filter(|t| matches!(&t.standing, Standing::Runs(run) if !run.is_finished())).count();
        for (node, (fall, work)) in holds {
            let tried = self.tried.entry(node.clone()).or_insert(Tried {
                fall,
                tries: 0,
                pauses: PAUSES,
                standing: Standing::Waits { until: now },
            });
            match &tried.standing {
                Standing::Waits { until } if *until <= now && running < AT_ONCE => {
                    running += 1;
                    tried.tries += 1;
                    let (program, limit, told) = (self.program.clone(), self.limit, self.ended.0.clone());
                    let command = command(&program, &self.cluster, &node, &work);
                    tracing::warn!(%node, program = %program.display(), "the fencing hook is run");
                    let run = tokio::spawn(async move {
                        let result = run(command, limit, "fencing_hook_seconds").await;
                        // Who asked leads no more.
                        let _nobody = told.send(Ended { node, fall, result }).await;
                    });
                    tried.standing = Standing::Runs(AbortOnDropHandle::new(run));
                }
                Standing::Dead => {
                    actions.push(Action::ConfirmDead { node, by: ACTOR.to_owned(), reason: "the fencing hook ended with 0".to_owned() });
                }
                Standing::Waits { .. } | Standing::Runs(_) | Standing::GivenUp => {}
            }
        }
        actions
    }

    fn take(&mut self, Ended { node, fall, result }: Ended, now: Instant) {
        let Some(tried) = self.tried.get_mut(&node).filter(|t| t.fall == fall) else { return };
        tried.standing = match result {
            Ok(()) => {
                tracing::warn!(%node, "the fencing hook says that the node is dead");
                Standing::Dead
            }
            Err(why) if tried.tries >= TRIES_MAX => {
                tracing::error!(
                    %node, %why, tries = tried.tries,
                    "the fencing hook failed for the last time: its work stays where it is; an operator must look, then `lattice node confirm-dead`"
                );
                Standing::GivenUp
            }
            Err(why) => {
                let pause = tried.pauses.next_pause();
                tracing::error!(%node, %why, again_s = pause.as_secs(), "the fencing hook failed");
                Standing::Waits { until: now + pause }
            }
        };
    }
}

/// `PROGRAM NODE ALLOCATION...`, with an environment of its own.
fn command(program: &Path, cluster: &str, node: &NodeId, work: &BTreeSet<AllocationId>) -> Command {
    let told: Vec<String> = work.iter().take(TOLD_MAX).map(ToString::to_string).collect();
    let mut command = of_the_site(program, cluster, node);
    command.args(&told).env("LATTICE_ALLOCATIONS", told.join(" "));
    command
}

/// `PROGRAM NODE`, with an environment of its own.
pub fn of_the_site(program: &Path, cluster: &str, node: &NodeId) -> Command {
    let mut command = Command::new(program);
    command
        .arg(node.as_str())
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LATTICE_CLUSTER", cluster)
        .env("LATTICE_NODE", node.as_str())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Its children as well, where it is ended.
        .process_group(0)
        .kill_on_drop(true);
    command
}

/// Whether it ended with 0, in time. `setting`: where that time is configured.
pub async fn run(mut command: Command, limit: Duration, setting: &str) -> Result<(), String> {
    let mut child = command.spawn().map_err(|error| format!("it cannot be started: {error}"))?;
    let mut group = Group(child.id());
    let said = AbortOnDropHandle::new(tokio::spawn(read(child.stderr.take())));
    let Ok(waited) = tokio::time::timeout(limit, child.wait()).await else {
        return Err(format!("it took longer than {} s ({setting}) and was ended", limit.as_secs()));
    };
    // It is reaped: its number may be somebody else's from now on.
    group.0 = None;
    match waited {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            // What it left behind may keep its output open.
            let said = tokio::time::timeout(OUTPUT_WAIT, said).await;
            let said = said.ok().and_then(Result::ok).unwrap_or_default();
            Err(if said.is_empty() { status.to_string() } else { format!("{status}: {said}") })
        }
        Err(error) => Err(format!("it cannot be waited for: {error}")),
    }
}

/// The processes of a run that is given up: they are killed with it.
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0.and_then(|pid| i32::try_from(pid).ok()) {
            // An error: nothing of it is left.
            let _gone = nix::sys::signal::killpg(nix::unistd::Pid::from_raw(leader), nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// The beginning of what it says, on one line. The rest is read and left out, so that it does not wait.
async fn read(said: Option<ChildStderr>) -> String {
    let Some(mut said) = said else { return String::new() };
    let (mut kept, mut chunk) = (Vec::new(), [0; 1024]);
    while let Ok(n) = said.read(&mut chunk).await {
        if n == 0 {
            break;
        }
        let room = OUTPUT_BYTES_MAX - kept.len();
        kept.extend_from_slice(&chunk[..n.min(room)]);
    }
    let text = String::from_utf8_lossy(&kept);
    text.trim().replace(|c: char| c.is_control(), " ")
}
