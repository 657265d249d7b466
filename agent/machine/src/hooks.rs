//! The site's own programs around an allocation on this node. `docs/reference/hooks.md` is their
//! contract.
//!
//! ```text
//!   Preparing: identity, scratch ─▶ prologue ─▶ image, scope, shim
//!   Undoing:   no process left ─▶ epilogue ─▶ scratch, scope
//! ```
//!
//! A hook runs as root in a cgroup of its own beside the scopes, outside the allocation's limits;
//! what it leaves running is killed when it ends. Both hooks may run again, because after a crash
//! of the agent nothing shows how far a hook got.
//!
//! The share is released even if an epilogue fails; `lattice node status` shows the failure until a
//! later epilogue succeeds. A share that was held back for a hook would block the node, and no
//! command could free it. An operator who wants no more work on the node cordons it.

use lattice_agent_common::config::AgentConfig;
use lattice_agent_common::config::hooks::SiteHook;
use lattice_agent_common::environment::of_domain;
use lattice_agent_common::readiness::readable;
use lattice_model::{DesiredShare, NodeId, RankOutcome, with_causes};
use lattice_runtime::cgroup::{Cgroup, CgroupError, Slice};
use lattice_runtime::process::{self, NotStarted, Program, StartReport};
use lattice_runtime::shim::ShimDir;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, pipe2};
use std::collections::VecDeque;
use std::fmt;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time between SIGTERM and SIGKILL when a hook is given up.
const GRACE: Duration = Duration::from_secs(2);
/// How long to wait for killed processes of a hook.
const KILL_WAIT: Duration = Duration::from_secs(3);
/// How many bytes at the end of a hook's output are stored.
const OUTPUT_BYTES_MAX: usize = 16 * 1024;
/// How many characters of its last line a reason includes.
const LINE_CHARS_MAX: usize = 200;

/// The site's hooks.
#[derive(Clone, Debug, Default)]
pub struct Hooks {
    prologue: Option<Hook>,
    epilogue: Option<Hook>,
}

#[derive(Clone, Debug)]
struct Hook {
    program: PathBuf,
    limit: Duration,
}

impl Hook {
    fn of<const TIMEOUT_SECONDS: u64>(hook: &SiteHook<TIMEOUT_SECONDS>) -> Option<Self> {
        hook.is_configured().then(|| Self { program: hook.program.clone(), limit: Duration::from_secs(hook.timeout_seconds) })
    }
}

/// Which of the two hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    Prologue,
    Epilogue,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prologue => "prologue",
            Self::Epilogue => "epilogue",
        })
    }
}

/// Why a program of the site was not started.
#[derive(Debug, Error)]
pub enum NotStartedError {
    #[error(transparent)]
    Broke(#[from] JoinError),
    #[error(transparent)]
    EndFormer(#[from] EndGroupError),
    #[error("{}", with_causes(.0))]
    Group(#[source] CgroupError),
    #[error("{0}")]
    MakePipe(#[source] Errno),
    #[error("{0}")]
    OpenNull(#[source] io::Error),
    #[error("{0}")]
    Watch(#[source] io::Error),
    #[error(transparent)]
    Program(#[from] NotStarted),
}

/// Why processes of a hook are still running.
#[derive(Debug, Error)]
pub enum EndGroupError {
    #[error("{}", with_causes(.0))]
    Group(#[from] CgroupError),
    #[error("killed processes of a hook are still there: pid {pids:?}")]
    StillThere { pids: Vec<i32> },
}

/// Why a hook failed.
#[derive(Debug, Error)]
pub enum HookFailure {
    #[error("the site's {moment} {} could not be started: {source}", program.display())]
    NotStarted { moment: Moment, program: PathBuf, source: NotStartedError },
    #[error("the site's {moment} {} {how}{detail}", program.display())]
    Failed { moment: Moment, program: PathBuf, how: String, detail: String },
    #[error("the site's {moment} {} did not end within {limit_s} s and was killed{detail}", program.display())]
    TooLong { moment: Moment, program: PathBuf, limit_s: u64, detail: String },
    #[error("the site's {moment} {} was cancelled", program.display())]
    Cancelled { moment: Moment, program: PathBuf },
}

impl Hooks {
    /// Reads the hooks from the configuration.
    pub fn of(config: &AgentConfig) -> Self {
        Self { prologue: Hook::of(&config.hooks.prologue), epilogue: Hook::of(&config.hooks.epilogue) }
    }

    /// Whether a prologue is configured.
    pub fn has_prologue(&self) -> bool {
        self.prologue.is_some()
    }

    /// Runs the hook of `moment`, if there is one, until it ends, its timeout is over, or `cancel`.
    /// `slice`: the parent of the hook's cgroup. `data`: its variables about scratch and output. See
    /// [`run_program`].
    pub async fn run(
        &self,
        moment: Moment,
        (me, slice): (&NodeId, Option<&Slice>),
        share: &DesiredShare,
        dir: &ShimDir,
        data: &[(String, String)],
        cancel: &CancellationToken,
    ) -> Result<(), HookFailure> {
        let hook = match moment {
            Moment::Prologue => &self.prologue,
            Moment::Epilogue => &self.epilogue,
        };
        let Some(Hook { program, limit }) = hook.clone() else { return Ok(()) };
        let group = slice.map(|slice| slice.hook(share.allocation));
        let env = environment(moment, me, share, data);
        let ran = run_program(&program, env, group, limit, cancel).await;
        let (end, output) = ran.map_err(|source| HookFailure::NotStarted { moment, program: program.clone(), source })?;
        write_output(dir, moment, &output);
        let detail = last_line(&output).map(|line| format!(": {line}")).unwrap_or_default();
        match end {
            ProgramEnd::Cancelled => Err(HookFailure::Cancelled { moment, program }),
            ProgramEnd::TooLong => Err(HookFailure::TooLong { moment, program, limit_s: limit.as_secs(), detail }),
            ProgramEnd::Exited(0) => Ok(()),
            end => Err(HookFailure::Failed { moment, program, how: end.to_string(), detail }),
        }
    }
}

/// How a program of the site ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramEnd {
    Exited(i32),
    Signalled(i32),
    /// The exit status could not be read.
    Unknown,
    /// Killed because its timeout was over.
    TooLong,
    /// Killed because its run was cancelled.
    Cancelled,
}

impl fmt::Display for ProgramEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "ended with exit code {code}"),
            Self::Signalled(signal) => write!(f, "was ended by signal {signal}"),
            Self::Unknown => f.write_str("could not be waited for"),
            Self::TooLong => f.write_str("did not end in time and was killed"),
            Self::Cancelled => f.write_str("was cancelled"),
        }
    }
}

/// Runs a program of the site as root until it ends, for at most `limit`, or until `cancel`.
/// Afterwards no process is left in `group`, or in the program's process group if there is no
/// `group`; a failure to end `group` is logged. Returns how it ended and the end of its output.
///
/// # Errors
/// Why the program could not be started.
pub async fn run_program(
    program: &Path,
    env: Vec<(String, String)>,
    group: Option<Cgroup>,
    limit: Duration,
    cancel: &CancellationToken,
) -> Result<(ProgramEnd, Vec<u8>), NotStartedError> {
    let started = {
        let (program, group) = (program.to_owned(), group.clone());
        tokio::task::spawn_blocking(move || start(&program, &env, group.as_ref())).await
    };
    let mut running = Running::of(started??, group).map_err(NotStartedError::Watch)?;
    let given_up = running.follow(Instant::now() + limit, cancel).await;
    if given_up != GivenUp::No {
        running.signal(Signal::SIGTERM);
        running.follow(Instant::now() + GRACE, &CancellationToken::new()).await;
    }
    let (outcome, not_started, output) = running.end().await;
    let end = match (given_up, not_started, outcome) {
        (GivenUp::Cancelled, ..) => ProgramEnd::Cancelled,
        (GivenUp::TooLong, ..) => ProgramEnd::TooLong,
        (GivenUp::No, Some(not_started), _) => return Err(not_started.into()),
        (GivenUp::No, None, Some(RankOutcome::Signalled { signal })) => ProgramEnd::Signalled(signal.into()),
        (GivenUp::No, None, Some(outcome)) => ProgramEnd::Exited(outcome.code()),
        (GivenUp::No, None, None) => ProgramEnd::Unknown,
    };
    Ok((end, output))
}

/// All environment variables of a hook. The owner's own variables are not among them.
fn environment(moment: Moment, me: &NodeId, share: &DesiredShare, data: &[(String, String)]) -> Vec<(String, String)> {
    let nodes: Vec<&str> = share.nodes.iter().map(NodeId::as_str).collect();
    let spec = &share.spec;
    let own = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("LATTICE_HOOK", moment.to_string()),
        ("LATTICE_ALLOC_ID", share.allocation.to_string()),
        ("LATTICE_EPOCH", share.epoch.to_string()),
        ("LATTICE_REQUEUE_COUNT", share.requeue_count.to_string()),
        ("LATTICE_JOB_NAME", spec.name.clone()),
        ("LATTICE_TENANT", spec.tenant.clone()),
        ("LATTICE_PROJECT", spec.project.clone()),
        ("LATTICE_USER", share.owner.name.clone()),
        ("LATTICE_UID", share.owner.uid.to_string()),
        ("LATTICE_GID", share.owner.gid.to_string()),
        ("LATTICE_NODE", me.to_string()),
        ("LATTICE_NODELIST", nodes.join(",")),
        ("LATTICE_NNODES", nodes.len().to_string()),
    ];
    let own = own.into_iter().chain(of_domain(share));
    own.map(|(name, value)| (name.to_owned(), value)).chain(data.iter().cloned()).collect()
}

struct Started {
    pid: i32,
    pidfd: OwnedFd,
    start: StartReport,
    output: OwnedFd,
}

/// Kills what an earlier run of the hook left, and starts the program.
fn start(program: &Path, env: &[(String, String)], group: Option<&Cgroup>) -> Result<Started, NotStartedError> {
    let cgroup = match group {
        Some(group) => {
            end_group(group)?;
            group.create().map_err(NotStartedError::Group)?;
            Some(group.open_dir().map_err(NotStartedError::Group)?)
        }
        None => None,
    };
    let (output, writer) = pipe2(OFlag::O_CLOEXEC).map_err(NotStartedError::MakePipe)?;
    let null = File::open("/dev/null").map_err(NotStartedError::OpenNull)?;
    let child = process::spawn(&Program {
        argv: &[program.display().to_string()],
        env,
        pid_variable: None,
        shared_env: None,
        working_dir: Path::new("/"),
        user: None,
        stdin: null.as_fd(),
        stdout: writer.as_fd(),
        stderr: writer.as_fd(),
        inherit: &[],
        cgroup: cgroup.as_ref().map(AsFd::as_fd),
        open_files: None,
        binding: None,
        v1_groups: &[],
        terminal: false,
    })?;
    let (pid, pidfd, start) = child.into_parts();
    Ok(Started { pid, pidfd, start, output })
}

/// Kills everything in a hook's cgroup and removes the cgroup. Does nothing if there is none.
pub fn end_group(group: &Cgroup) -> Result<(), EndGroupError> {
    group.kill()?;
    if !group.wait_empty(KILL_WAIT)? {
        return Err(EndGroupError::StillThere { pids: group.processes() });
    }
    Ok(group.remove()?)
}

/// Why a hook is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivenUp {
    No,
    TooLong,
    Cancelled,
}

struct Running {
    pid: i32,
    ended: AsyncFd<OwnedFd>,
    start: StartReport,
    group: Option<Cgroup>,
    output: Receiver,
    open: bool,
    tail: VecDeque<u8>,
}

impl Running {
    fn of(started: Started, group: Option<Cgroup>) -> io::Result<Self> {
        let Started { pid, pidfd, start, output } = started;
        let (ended, output) = (readable(pidfd)?, Receiver::from_owned_fd(output)?);
        Ok(Self { pid, ended, start, group, output, open: true, tail: VecDeque::new() })
    }

    /// Reads the program's output until the program ends or is given up.
    async fn follow(&mut self, until: Instant, cancel: &CancellationToken) -> GivenUp {
        let mut chunk = [0; 4096];
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return GivenUp::Cancelled,
                ended = self.ended.readable() => {
                    drop(ended);
                    return GivenUp::No;
                }
                () = tokio::time::sleep_until(until) => return GivenUp::TooLong,
                read = self.output.read(&mut chunk), if self.open => match read {
                    Ok(0) | Err(_) => self.open = false,
                    Ok(n) => append_tail(&mut self.tail, &chunk[..n]),
                },
            }
        }
    }

    /// Sends a signal to the program's whole group.
    fn signal(&self, signal: Signal) {
        match &self.group {
            Some(group) => group.signal(signal as i32),
            // The process is not reaped yet, so its id is still its own; it leads its process
            // group.
            None => drop(killpg(Pid::from_raw(self.pid), signal)),
        }
    }

    /// Kills what is left; returns how the program ended and its output.
    async fn end(mut self) -> (Option<RankOutcome>, Option<NotStarted>, Vec<u8>) {
        self.signal(Signal::SIGKILL);
        let _ = tokio::time::timeout(KILL_WAIT, self.ended.readable()).await;
        let outcome = process::reap(self.pid).ok().flatten();
        if let Some(group) = self.group.take() {
            let gone = tokio::task::spawn_blocking(move || end_group(&group)).await;
            if let Ok(Err(why)) = gone {
                tracing::warn!(%why, "a hook's processes could not be ended");
            }
        }
        let mut chunk = [0; 4096];
        while let Ok(n @ 1..) = self.output.try_read(&mut chunk) {
            append_tail(&mut self.tail, &chunk[..n]);
        }
        (outcome, self.start.failure(), self.tail.into())
    }
}

fn append_tail(tail: &mut VecDeque<u8>, bytes: &[u8]) {
    tail.extend(bytes);
    tail.drain(..tail.len().saturating_sub(OUTPUT_BYTES_MAX));
}

/// Writes the output beside the allocation's logs. If that fails, the reason still includes its
/// last line.
fn write_output(dir: &ShimDir, moment: Moment, output: &[u8]) {
    if output.is_empty() {
        return;
    }
    let written = DirBuilder::new().recursive(true).mode(0o700).create(&dir.0).and_then(|()| {
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.hooks_log())?;
        file.write_all(&[format!("--- {moment}\n").as_bytes(), output].concat())
    });
    if let Err(error) = written {
        tracing::warn!(path = %dir.hooks_log().display(), %error, "a hook's output could not be written");
    }
}

/// The last non-empty line, shortened and without control characters.
pub fn last_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().rev().map(str::trim).find(|l| !l.is_empty())?;
    Some(line.chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_kept_and_its_last_line_is_found() {
        let mut tail = VecDeque::new();
        for n in 0..10_000 {
            append_tail(&mut tail, format!("line {n}\n").as_bytes());
        }
        append_tail(&mut tail, b"disk \x1b[31mfull\n\n  \n");
        assert_eq!(tail.len(), OUTPUT_BYTES_MAX);
        let output: Vec<u8> = tail.into();
        assert_eq!(last_line(&output).as_deref(), Some("disk [31mfull"));
        assert_eq!(last_line(b"\n \n"), None);
        assert_eq!(last_line(&[b'x'; 1000]).map(|l| l.len()), Some(LINE_CHARS_MAX));
    }
}
