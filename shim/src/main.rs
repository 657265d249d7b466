//! `lattice-shim DIR`: the small process beside every allocation, one per node.
//!
//! It holds what must outlive the agent: the ranks themselves, their PMI sockets, their exit statuses, the walltime and
//! the mounts. An agent may be killed at any moment, also in the middle of a frame. The work continues, and the next
//! agent that connects gets a full replay.
//!
//! ```text
//!   agent ══ shim.sock (fd 3) ══▶ AgentLink ─┐
//!   ranks ── PMI ───────────────▶ Launch ─────┼─▶ Shim, one thread, one epoll ─▶ exits (on disk), then the agent
//!   kernel ─ SIGCHLD, timer, cgroup.events ──┘            │
//!                                                         ├─▶ Work: spawn into, signal, kill the scope's cgroups
//!                                                         └─▶ UserFiles: a thread that copies logs to the user's files
//! ```
//!
//! Life: set up (session, subreaper, mounts), give up privileges → serve → Stop ends all work → Quit ends the shim.

mod agent_link;
mod bridge;
mod lane;
mod launch;
mod leftovers;
mod log_files;
mod log_ring;
mod privileges;
mod rank_input;
mod rank_socket;
mod script;
mod serve;
mod shim_log;
mod slurm;
mod submitted;
mod surroundings;
mod task_output;
mod terminal;
mod user_files;
mod work;

use anyhow::{Context, anyhow, bail, ensure};
use lattice_model::Entrypoint;
use lattice_runtime::cgroup::Scope;
use lattice_runtime::shim::{Living, PROTOCOL_MAJOR, ShimConfig, ShimDir};
use lattice_runtime::{data_mounts, mounts, process};
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use shim_log::log_line;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use submitted::Submitted;

/// The descriptor on which we inherit the listening socket from the agent.
const LISTENER_FD: i32 = 3;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log_line(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(dir), None) = (arguments.next(), arguments.next()) else {
        bail!("usage: lattice-shim DIR (started by lattice-agent, which leaves DIR/shim.json and a listening socket as descriptor 3)");
    };
    let dir = ShimDir(PathBuf::from(dir));
    let listener = inherited_listener()?;
    let text = std::fs::read(dir.config()).with_context(|| format!("reading {}", dir.config().display()))?;
    let mut config: ShimConfig = serde_json::from_slice(&text).with_context(|| format!("reading {}", dir.config().display()))?;
    ensure!(config.protocol == PROTOCOL_MAJOR, "shim.json requests protocol {}, and this shim has {PROTOCOL_MAJOR}", config.protocol);
    // The rest is for an agent that lost its state; here it would only use memory.
    let script = config.share.as_deref().filter(|share| share.nodes.first().is_some_and(|head| head.as_str() == config.node));
    let script = script.and_then(|share| match &share.spec.entrypoint {
        Entrypoint::Script { text, .. } => Some(text.to_string()),
        Entrypoint::Command { .. } => None,
    });
    let submitted = config.share.as_deref().map(|share| Submitted::of(share, &config.node)).unwrap_or_default();
    (config.share, config.assignment) = (None, None);
    if let Err(error) = Living::of_self().and_then(|me| me.write(&dir)) {
        log_line(&format!("the shim's identity could not be written: {error}"));
    }
    // Our memory counts with the work's: at the limit the work must end, and we must report that.
    if config.scope.clone().map(Scope::at).is_some_and(|scope| scope.memory_bytes_max().is_some())
        && let Err(error) = process::spare_self_from_oom()
    {
        log_line(&format!("at the memory limit the kernel may kill this shim before its work: {error}"));
    }
    let node = config.node.parse().context("the node's name in shim.json")?;
    // Orphans of our processes become our children to reap, so that we know when none is left.
    nix::sys::prctl::set_child_subreaper(true).context("becoming a subreaper")?;
    let open_files = raise_open_files();
    let may_gain = config.work_may_gain_privileges;
    let script_files = || match &script {
        Some(text) => script::make_files(&dir, text, &config.owner).map_err(|refused| anyhow!(refused.why)),
        None => Ok(()),
    };
    let set_up =
        mount_all(&config).and_then(|()| script_files()).and_then(|()| privileges::drop_unneeded(config.owner.is_root(), may_gain));
    let failed = set_up.err().map(|error| format!("{error:#}"));
    if let Some(failed) = &failed {
        log_line(failed);
    }
    serve::Shim::new(dir, config, node, listener, failed, open_files, submitted)?.serve()
}

fn inherited_listener() -> anyhow::Result<UnixListener> {
    // SAFETY: nothing was opened here yet, so descriptor 3, if it is open, was inherited; if not, the next call fails.
    let given = unsafe { std::os::fd::BorrowedFd::borrow_raw(LISTENER_FD) };
    let listens = nix::sys::socket::getsockopt(&given, nix::sys::socket::sockopt::AcceptConn);
    ensure!(listens == Ok(true), "descriptor {LISTENER_FD} is not a listening socket: lattice-shim is started by lattice-agent");
    // SAFETY: it is open, and nobody else here knows it.
    let owned = unsafe { OwnedFd::from_raw_fd(LISTENER_FD) };
    fcntl(owned.as_fd(), FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).context("the listening socket")?;
    fcntl(owned.as_fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).context("the listening socket")?;
    // The agent called listen first. The kernel names the last process that called listen as the peer of later
    // connections.
    nix::sys::socket::listen(&owned, nix::sys::socket::Backlog::MAXALLOWABLE).context("the listening socket")?;
    Ok(UnixListener::from(owned))
}

/// A rank needs two descriptors, which would soon reach the usual soft limit. Ranks get the limit that we were started
/// with.
fn raise_open_files() -> Option<(u64, u64)> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    Some((soft, hard))
}

/// Makes all mounts. Without mounts there is nothing to hide, and no rights are needed.
fn mount_all(config: &ShimConfig) -> anyhow::Result<()> {
    if config.image.is_none() && config.mounts.is_empty() {
        return Ok(());
    }
    mounts::own_namespace()?;
    data_mounts::make(&config.mounts, &config.owner)?;
    if let Some((image, at)) = &config.image {
        mounts::ensure_mount_point(at)?;
        mounts::mount_squashfs(image, at)?;
    }
    Ok(())
}
