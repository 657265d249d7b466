//! The prologue of an allocation on this node. Blocking; may be done again over what is there.

use super::find::{self, Missing};
use crate::context::Context;
use crate::devices;
use crate::environment::UENV_MOUNT;
use crate::limits::given_open_files;
use crate::machine;
use crate::readiness::readable;
use lattice_model::{Assignment, DesiredShare};
use lattice_quorum::pack::with_causes;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{PROTOCOL_MAJOR, ShimConfig, ShimDir, StartError, StartedShim, connect_shim, start_shim};
use lattice_runtime::{identity, image, process};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Checks who it is for, brings the image, makes the scope, starts the shim. Gives the line to it, or why not.
pub(super) fn prepare(
    context: &Context,
    share: &DesiredShare,
    assignment: Option<&Assignment>,
    dir: &ShimDir,
) -> Result<UnixStream, String> {
    match find::find(context, share.allocation, dir) {
        Ok(stream) => return Ok(stream),
        Err(Missing::NotOurs(why)) => return Err(format!("{}: what listens there is not the shim: {why}", dir.socket().display())),
        Err(Missing::Gone | Missing::Unreachable(_)) => {}
    }
    identity::check(&share.owner).map_err(|e| e.to_string())?;
    if share.owner.is_root() && !context.allow_root {
        return Err("work as root is refused on this node (allow_root is false)".to_owned());
    }
    failpoint::pass(Point::IdentityChecked);
    let image = match &share.spec.uenv {
        Some(wanted) => {
            let admitted = image::admit(&context.state_dir.join("images"), &share.owner, wanted).map_err(|e| with_causes(&e))?;
            failpoint::pass(Point::ImageAdmitted);
            Some((admitted.path, PathBuf::from(UENV_MOUNT)))
        }
        None => None,
    };
    let scope = match &context.slice {
        Some(slice) => Some(slice.create_scope(share.allocation).map_err(|e| with_causes(&e))?),
        None => None,
    };
    failpoint::pass(Point::ScopeMade);
    if let Some(assignment) = assignment {
        machine::tell(&context.state_dir, context.me.as_str(), share, &context.topology, assignment)
            .map_err(|e| format!("writing its topology file below {}: {e}", context.state_dir.display()))?;
    }
    let mut limits = context.bounds.limits(share, assignment);
    context.device_filter.apply(scope.as_ref(), devices::denied(context, assignment), &mut limits)?;
    let v1_groups =
        context.bounds.controllers.set(share.allocation, scope.as_ref(), &limits).map_err(|e| format!("limits: {}", with_causes(&e)))?;
    failpoint::pass(Point::LimitsSet);
    let config = ShimConfig {
        protocol: PROTOCOL_MAJOR,
        allocation: share.allocation,
        epoch: share.epoch,
        owner: share.owner.clone(),
        image,
        scope: scope.map(|s| s.path().to_owned()),
        v1_groups,
        placement: assignment.map(|a| machine::placement(&context.topology, a)),
        grace_ms: u64::try_from(context.grace.as_millis()).unwrap_or(u64::MAX),
        node: context.me.to_string(),
        open_files: given_open_files(),
        boot: identity::boot_id().ok(),
        share: Some(Box::new(share.clone())),
        assignment: assignment.cloned().map(Box::new),
        log_room: Some(context.log_room),
    };
    match start_shim(&context.shim, dir, &config) {
        Ok(StartedShim { pid, pidfd, stream }) => {
            failpoint::pass(Point::ShimStarted);
            tokio::spawn(reap(pid, pidfd));
            Ok(stream)
        }
        Err(StartError::AlreadyRunning { .. }) => connect_shim(dir).map_err(|e| format!("the shim does not answer: {e}")),
        Err(error) => Err(with_causes(&error)),
    }
}

/// A shim that we started is our child for as long as we live: its zombie is ours to take.
async fn reap(pid: i32, pidfd: OwnedFd) {
    if let Ok(ended) = readable(pidfd) {
        let _ = ended.readable().await;
        let _ = process::reap(pid);
    }
}
