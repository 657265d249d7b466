//! The prologue of an allocation on this node. It may run again over the results of an earlier run,
//! and can be cancelled at any moment.
//!
//! ```text
//!   identity ─▶ scratch, output ─▶ site's prologue ─▶ fabric's key ─▶ checkpoint ─▶ image ─▶ scope, shim
//!   └──── blocking ───────────┘    └─────────────────── cancellable ───────────────────┘    └ blocking, short ┘
//! ```
//!
//! Without prologue, key, checkpoint and image the two blocking parts are one: each thread that
//! must be woken costs a short job a tenth of a millisecond.

use super::find::{self, Missing};
use crate::handles::{Handles, Shared};
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_checkpoint::CheckpointDirectoryError;
use lattice_agent_checkpoint::restore::RestoreError;
use lattice_agent_common::config::work::UserImages;
use lattice_agent_common::environment::UENV_MOUNT;
use lattice_agent_common::limits::given_open_files;
use lattice_agent_common::readiness::readable;
use lattice_machine::data_plane::{DataPlaneError, Planned};
use lattice_machine::devices::{self, DeviceFilterError};
use lattice_machine::fabric::FabricError;
use lattice_machine::hardware as machine;
use lattice_machine::hooks::{HookFailure, Moment};
use lattice_machine::mpirun;
use lattice_model::{Assignment, DesiredShare, millis, with_causes};
use lattice_registry::Detail;
use lattice_runtime::cgroup::CgroupError;
use lattice_runtime::cgroup::limits::LimitError;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::identity::Mismatch;
use lattice_runtime::image::{CopyMonitor, HeldImage, ImageError};
use lattice_runtime::shim::{NotOurs, PROTOCOL_MAJOR, ShimConfig, ShimDir, StartError, StartedShim, connect_shim, start_shim};
use lattice_runtime::{identity, process};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

/// How often the status shows anew how much of an image is copied.
const COPY_SHOWN_INTERVAL: Duration = Duration::from_secs(1);

/// A connection to a shim.
pub(super) struct Line {
    pub stream: UnixStream,
    /// Whether the shim was just started, and so has nothing yet.
    pub fresh: bool,
    /// Keeps the work's image in the cache until the shim has mounted it; from then on the mount
    /// does.
    pub image: Option<HeldImage>,
}

/// Why an allocation could not be prepared on this node.
#[derive(Debug, Error)]
pub(super) enum PrepareError {
    #[error("cancelled while it was prepared")]
    Cancelled,
    #[error("cancelled while its image was copied")]
    ImageCancelled,
    #[error("the task that prepares it panicked or was cancelled: {0}")]
    Broke(#[from] JoinError),
    #[error("{}: another process than the shim listens there: {source}", .socket.display())]
    NotTheShim { socket: PathBuf, source: NotOurs },
    #[error(transparent)]
    Identity(#[from] Mismatch),
    #[error("work as root is refused on this node (work.allow_root is false)")]
    RootRefused,
    #[error("work with an image is refused on this node (images.from_users: refuse)")]
    ImageRefused,
    #[error(transparent)]
    Data(#[from] DataPlaneError),
    #[error(transparent)]
    CheckpointDirectory(#[from] CheckpointDirectoryError),
    #[error(transparent)]
    Prologue(#[from] HookFailure),
    #[error("{}", with_causes(.0))]
    FabricKey(#[source] FabricError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error("{}", with_causes(.0))]
    Image(#[source] ImageError),
    #[error("{}", with_causes(.0))]
    MakeScope(#[source] CgroupError),
    #[error("writing its topology file below {}: {source}", .dir.display())]
    WriteTopology { dir: PathBuf, source: io::Error },
    #[error("writing its hostfiles below {}: {source}", .dir.display())]
    WriteHostfiles { dir: PathBuf, source: io::Error },
    #[error(transparent)]
    Devices(#[from] DeviceFilterError),
    #[error("limits: {}", with_causes(.0))]
    SetLimits(#[source] LimitError),
    #[error("the shim does not answer: {0}")]
    ConnectShim(#[source] io::Error),
    #[error("{}", with_causes(.0))]
    StartShim(#[source] StartError),
}

/// A prologue that is running.
pub(super) struct Preparing {
    cancel: CancellationToken,
    done: AbortOnDropHandle<Result<Line, PrepareError>>,
}

impl Preparing {
    /// Begins the prologue.
    pub(super) fn begin(
        context: &Shared,
        share: &Arc<DesiredShare>,
        assignment: Option<Assignment>,
        dir: &ShimDir,
        detail: watch::Sender<Detail>,
    ) -> Self {
        let cancel = CancellationToken::new();
        let work = prepare(Arc::clone(context), Arc::clone(share), assignment, dir.clone(), detail, cancel.clone());
        Self { cancel, done: AbortOnDropHandle::new(tokio::spawn(work)) }
    }

    /// The connection to the shim, or why there is none. Cancel-safe.
    pub(super) async fn ended(&mut self) -> Result<Line, PrepareError> {
        (&mut self.done).await.unwrap_or_else(|broke| Err(broke.into()))
    }

    /// Cancels the prologue, and gives the connection to the shim if it was already made.
    pub(super) async fn give_up(mut self) -> Option<Line> {
        self.cancel.cancel();
        self.ended().await.ok()
    }
}

/// For one branch of a `select!`: pending for ever if nothing is being prepared.
pub(super) async fn ended(preparing: &mut Option<Preparing>) -> Result<Line, PrepareError> {
    match preparing {
        Some(preparing) => preparing.ended().await,
        None => std::future::pending().await,
    }
}

/// Checks the user's identity, makes scratch, runs the site's prologue, fetches the image, makes
/// the scope, starts the shim.
async fn prepare(
    context: Shared,
    share: Arc<DesiredShare>,
    assignment: Option<Assignment>,
    dir: ShimDir,
    detail: watch::Sender<Detail>,
    cancel: CancellationToken,
) -> Result<Line, PrepareError> {
    let set_detail = |text: &str| detail.send_modify(|d| text.clone_into(&mut d.text));
    let check_not_cancelled = || if cancel.is_cancelled() { Err(PrepareError::Cancelled) } else { Ok(()) };
    set_detail("preparing: identity and scratch");
    let begun = {
        let (context, share, assignment) = (Arc::clone(&context), Arc::clone(&share), assignment.clone());
        let (dir, cancel) = (dir.clone(), cancel.clone());
        blocking(move || match begin(&context, &share, &dir)? {
            Begun::Planned(planned, share) if is_short(&context, &share) && !cancel.is_cancelled() => {
                failpoint::pass(Point::PrologueOver);
                start(&context, &share, assignment.as_ref(), &dir, None, &planned).map(Begun::There)
            }
            begun => Ok(begun),
        })
        .await?
    };
    let (planned, share) = match begun {
        Begun::There(line) => return Ok(line),
        Begun::Planned(planned, share) => (planned, share),
    };
    // The work has no processes here yet, so adoption need not wait for a long prologue.
    context.adoption.found(share.allocation);
    check_not_cancelled()?;
    set_detail("preparing: the site's prologue");
    let hook = context.machine.hooks.run(
        Moment::Prologue,
        (&context.setup.me, context.machine.slice.as_ref()),
        &share,
        &dir,
        &planned.env,
        &cancel,
    );
    hook.await?;
    failpoint::pass(Point::PrologueOver);
    check_not_cancelled()?;
    if context.machine.fabric.concerns(&share, &context.setup.me) {
        set_detail("preparing: a key for the fabric");
        tokio::select! {
            provided = context.machine.fabric.provide(&share, &context.setup.me) => provided.map_err(PrepareError::FabricKey)?,
            () = cancel.cancelled() => check_not_cancelled()?,
        }
    }
    if let Some(from) = &share.restore {
        set_detail("preparing: its checkpoint");
        checkpoint::restore::restore(&context.checkpoint, &share, from, &cancel, set_detail).await?;
        check_not_cancelled()?;
    }
    set_detail("preparing: image");
    let image = admit(&context, &share, &cancel, set_detail).await?;
    check_not_cancelled()?;
    set_detail("preparing: scope and shim");
    blocking(move || start(&context, &share, assignment.as_ref(), &dir, image, &planned)).await
}

/// Whether the prologue has nothing to wait for: no site program, image, checkpoint or fabric key.
fn is_short(context: &Handles, share: &DesiredShare) -> bool {
    !context.machine.hooks.has_prologue()
        && share.spec.uenv.is_none()
        && share.restore.is_none()
        && !context.machine.fabric.concerns(share, &context.setup.me)
}

async fn blocking<T: Send + 'static>(act: impl FnOnce() -> Result<T, PrepareError> + Send + 'static) -> Result<T, PrepareError> {
    tokio::task::spawn_blocking(act).await.unwrap_or_else(|broke| Err(broke.into()))
}

enum Begun {
    /// The shim runs: this prologue started it, or an earlier run of the agent did.
    There(Line),
    /// The share as this node runs it: its owner has the groups of this node's name service.
    Planned(Planned, Arc<DesiredShare>),
}

fn begin(context: &Handles, share: &Arc<DesiredShare>, dir: &ShimDir) -> Result<Begun, PrepareError> {
    match find::find(context, share.allocation, dir) {
        Ok(stream) => return Ok(Begun::There(Line { stream, fresh: false, image: held(context, share) })),
        Err(Missing::NotOurs(source)) => return Err(PrepareError::NotTheShim { socket: dir.socket(), source }),
        Err(Missing::Gone | Missing::Unreachable(_)) => {}
    }
    let owner = identity::resolve(&share.owner)?;
    let share = if owner == share.owner { Arc::clone(share) } else { Arc::new(DesiredShare { owner, ..DesiredShare::clone(share) }) };
    if share.owner.is_root() && !context.setup.allow_root {
        return Err(PrepareError::RootRefused);
    }
    if share.spec.uenv.is_some() && context.setup.images_from_users == UserImages::Refuse {
        return Err(PrepareError::ImageRefused);
    }
    failpoint::pass(Point::IdentityChecked);
    let planned = context.machine.data.plan(&share)?;
    context.machine.data.make(&planned, &share.owner)?;
    context.checkpoint.checkpoints.make(&share)?;
    failpoint::pass(Point::ScratchMade);
    Ok(Begun::Planned(planned, share))
}

/// The image of work that runs already, kept in the cache.
pub(super) fn held(context: &Handles, share: &DesiredShare) -> Option<HeldImage> {
    share.spec.uenv.as_ref().and_then(|wanted| context.machine.images.hold(wanted))
}

/// Brings the image into the cache, and shows how far the copy is. If this is cancelled, a copy ends in the background at
/// its next piece: it changes nothing but the cache.
async fn admit(
    context: &Shared,
    share: &Arc<DesiredShare>,
    cancel: &CancellationToken,
    set_detail: impl Fn(&str),
) -> Result<Option<HeldImage>, PrepareError> {
    let Some(wanted) = share.spec.uenv.clone() else { return Ok(None) };
    let monitor = Arc::new(CopyMonitor::new());
    let admitted = {
        let (context, share, monitor) = (Arc::clone(context), Arc::clone(share), Arc::clone(&monitor));
        blocking(move || {
            let admitted = context.machine.images.admit(&share.owner, &wanted, &monitor);
            failpoint::pass(Point::ImageAdmitted);
            admitted.map_err(PrepareError::Image)
        })
    };
    let mut admitted = pin!(admitted);
    loop {
        tokio::select! {
            admitted = &mut admitted => return Ok(Some(admitted?.held)),
            () = cancel.cancelled() => {
                monitor.cancel();
                return Err(PrepareError::ImageCancelled);
            }
            () = tokio::time::sleep(COPY_SHOWN_INTERVAL) => {
                if let Some(percent) = monitor.percent() {
                    set_detail(&format!("preparing: image, {percent} % of it copied"));
                }
            }
        }
    }
}

fn start(
    context: &Handles,
    share: &DesiredShare,
    assignment: Option<&Assignment>,
    dir: &ShimDir,
    image: Option<HeldImage>,
    planned: &Planned,
) -> Result<Line, PrepareError> {
    let scope = match &context.machine.slice {
        Some(slice) => Some(slice.create_scope(share.allocation).map_err(PrepareError::MakeScope)?),
        None => None,
    };
    if let Some(scope) = &scope {
        context.measuring.track(share, scope.work().path());
    }
    failpoint::pass(Point::ScopeMade);
    if let Some(assignment) = assignment {
        machine::write_topology(&context.setup.state_dir, context.setup.me.as_str(), share, &context.machine.topology(), assignment)
            .map_err(|source| PrepareError::WriteTopology { dir: context.setup.state_dir.clone(), source })?;
    }
    let placement = assignment.map(|a| machine::placement(&context.machine.topology(), a));
    mpirun::write_hostfiles(&context.setup.state_dir, share, placement.as_ref())
        .map_err(|source| PrepareError::WriteHostfiles { dir: context.setup.state_dir.clone(), source })?;
    let mut limits = context.machine.bounds.limits(share, assignment);
    context.machine.device_filter.apply(scope.as_ref(), devices::denied(&context.machine.topology().gpu, assignment), &mut limits)?;
    if limits.io_weight.is_some() {
        let gone = context.machine.bounds.controllers.io_weights_gone();
        if !gone.is_empty() {
            tracing::warn!(allocation = %share.allocation, files = gone.join(" "), "its share has no disk weight: the kernel no longer supports such weights");
        }
    }
    let v1_groups = context.machine.bounds.controllers.set(share.allocation, scope.as_ref(), &limits).map_err(PrepareError::SetLimits)?;
    failpoint::pass(Point::LimitsSet);
    let config = ShimConfig {
        protocol: PROTOCOL_MAJOR,
        allocation: share.allocation,
        epoch: share.epoch,
        owner: share.owner.clone(),
        image: image.as_ref().map(|held| (held.path().to_owned(), PathBuf::from(UENV_MOUNT))),
        mounts: planned.mounts.clone(),
        scope: scope.map(|s| s.path().to_owned()),
        v1_groups,
        placement,
        grace_ms: millis(context.setup.grace),
        node: context.setup.me.to_string(),
        open_files: given_open_files(),
        boot: identity::boot_id().ok(),
        share: Some(Box::new(share.clone())),
        assignment: assignment.cloned().map(Box::new),
        log_limits: Some(context.setup.log_limits),
        run_lease: share.run_lease_ms.is_some(),
        work_may_gain_privileges: context.setup.work_may_gain_privileges,
    };
    match start_shim(&context.setup.shim, dir, &config) {
        Ok(StartedShim { pid, pidfd, stream }) => {
            failpoint::pass(Point::ShimStarted);
            context.tasks.spawn(reap(pid, pidfd));
            Ok(Line { stream, fresh: true, image })
        }
        Err(StartError::AlreadyRunning { .. }) => {
            connect_shim(dir).map(|stream| Line { stream, fresh: false, image }).map_err(PrepareError::ConnectShim)
        }
        Err(error) => Err(PrepareError::StartShim(error)),
    }
}

/// Reaps a shim that we started: it is our child as long as we live.
async fn reap(pid: i32, pidfd: OwnedFd) {
    if let Ok(ended) = readable(pidfd) {
        let _ = ended.readable().await;
        let _ = process::reap(pid);
    }
}
