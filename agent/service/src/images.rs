//! The digests of software environments: read as the submitting user, before the submission.

use super::Api;
use lattice_agent_common::config::work::UserImages;
use lattice_api::spec::ImageRequest;
use lattice_model::Principal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::AcquireError;
use tonic::Status;

/// How long a submission waits for its turn to read its image.
const DIGEST_WAIT_MAX: Duration = Duration::from_secs(30);

/// Stops reading an image when its caller has gone.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The SHA-256 of the image that a user names. Refused if the site allows no images of users, or if
/// the user asked for another digest.
pub(super) async fn digest(api: &Api, owner: &Principal, image: ImageRequest) -> Result<String, Status> {
    if api.context.setup.images_from_users == UserImages::Refuse {
        return Err(Status::permission_denied("images are refused here (images.from_users: refuse): submit without --uenv"));
    }
    let (user, path) = (owner.clone(), image.path.clone());
    let turn = async {
        let own = api.limits.own_digests.of(user.uid).acquire_owned().await?;
        Ok::<_, AcquireError>((own, Arc::clone(&api.limits.digests).acquire_owned().await?))
    };
    let turn = tokio::time::timeout(DIGEST_WAIT_MAX, turn).await;
    let turn = turn.map_err(|_| Status::unavailable("other images are being read on this node; try again in a moment"))?;
    let reading = CancelOnDrop::default();
    let cancelled = Arc::clone(&reading.0);
    let read = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        lattice_runtime::image::digest_as(&user, &path, &cancelled)
    })
    .await;
    let read = read.map_err(|e| Status::internal(e.to_string()))?;
    let sha256 = read.map_err(|e| Status::failed_precondition(format!("uenv: {e}")))?;
    if let Some(wanted) = image.sha256.filter(|wanted| *wanted != sha256) {
        let text = format!("uenv: {} has the digest sha256:{sha256}, not sha256:{wanted}", image.path.display());
        return Err(Status::failed_precondition(text));
    }
    Ok(sha256)
}
