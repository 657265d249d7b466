//! The node's image cache: images are added, held by work, and removed when nobody uses them and
//! space is short.

use crate::disk;
use lattice_model::{Image, Principal, millis};
use lattice_node::image_cache::{IncomingImage, UnusedImage, images_to_remove};
use lattice_runtime::image::{self, Admitted, CopyMonitor, HeldImage, ImageError, NoRoom, cache};
use parking_lot::Mutex;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A handle on the cache; all clones share it. Its methods block.
#[derive(Clone, Debug)]
pub struct ImageCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    dir: PathBuf,
    /// See [`images_to_remove`].
    unused_bytes_max: u64,
    /// Held while images are removed: two removers at once would mistake each other's locks for
    /// use.
    removing: Mutex<()>,
}

impl ImageCache {
    /// The cache in `state_dir`. `unused_bytes_max`: the most bytes of unused images; 0: half of
    /// the disk.
    pub fn new(state_dir: &Path, unused_bytes_max: u64) -> Self {
        Self(Arc::new(Inner { dir: state_dir.join("images"), unused_bytes_max, removing: Mutex::default() }))
    }

    /// The directory of the images.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// See [`image::admit`]. Unused images are removed to make space.
    pub fn admit(&self, owner: &Principal, wanted: &Image, monitor: &CopyMonitor) -> Result<Admitted, ImageError> {
        image::admit(&self.0.dir, owner, wanted, monitor, |bytes| self.make_room(IncomingImage { uid: owner.uid, bytes }))
    }

    /// Holds the image of work that is already running.
    pub fn hold(&self, wanted: &Image) -> Option<HeldImage> {
        let held = cache::hold(&self.0.dir, &wanted.sha256);
        held.unwrap_or_else(|error| {
            tracing::warn!(sha256 = wanted.sha256, %error, "an image in use cannot be locked in the image cache");
            None
        })
    }

    /// Removes unused images while they have too many bytes, or too little of the disk is free.
    pub fn tidy(&self) {
        let without_image = self.make_room(IncomingImage { uid: 0, bytes: 0 });
        debug_assert!(without_image.is_ok(), "zero bytes always fit");
    }

    fn make_room(&self, incoming: IncomingImage) -> Result<(), NoRoom> {
        let _one_at_a_time = self.0.removing.lock();
        let looked = cache::unused(&self.0.dir).and_then(|unused| Ok((unused, disk::space(&self.0.dir)?)));
        let (unused, disk) = match looked {
            Ok(looked) => looked,
            Err(error) => {
                // If there is no space, copying the image will report it.
                tracing::warn!(dir = %self.0.dir.display(), %error, "the image cache cannot be read: nothing is removed from it");
                return Ok(());
            }
        };
        let weighed: Vec<UnusedImage> = unused.iter().map(weigh).collect();
        let removed = images_to_remove(&weighed, disk, self.0.unused_bytes_max, incoming, milliseconds(SystemTime::now()));
        for at in removed.map_err(|too_large| NoRoom { bytes_max: too_large.bytes_max })? {
            let image = &unused[at];
            match cache::remove_unused(&image.path) {
                Ok(true) => tracing::info!(image = %image.path.display(), bytes = image.bytes, "an unused image was removed"),
                // It is in use again.
                Ok(false) => {}
                Err(error) => tracing::warn!(image = %image.path.display(), %error, "an image cannot be removed from the image cache"),
            }
        }
        Ok(())
    }
}

fn weigh(image: &cache::UnusedImage) -> UnusedImage {
    UnusedImage { uid: image.uid, bytes: image.bytes, last_used_ms: milliseconds(image.last_used) }
}

fn milliseconds(at: SystemTime) -> u64 {
    millis(at.duration_since(UNIX_EPOCH).unwrap_or_default())
}
