//! Chooses the images to remove from a node's cache when their size or the disk requires it: first
//! images unused for a day, then the least recently used images of the user who has most of the
//! cache. So a user who brings many images displaces their own, not those of others. Images in use
//! always stay.
//!
//! ```text
//!   disk: | everything else | images in use | unused images ≤ limit | free ≥ reserve |
//!                                             └── unused for a day ▶ of the largest user
//! ```

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Images leave one part in this many of the disk free, unless [`RESERVE_BYTES_MAX`] is less.
const RESERVE_PART: u64 = 5;
/// The most that images must leave free, in bytes: 8 GiB.
const RESERVE_BYTES_MAX: u64 = 8 << 30;
/// An incoming image must leave one part in this many of the disk free, unless [`FLOOR_BYTES_MAX`]
/// is less. With less free space, the node's own cache would make the node Degraded.
const FLOOR_PART: u64 = 10;
/// The most that an incoming image must leave free, in bytes: 64 MiB.
const FLOOR_BYTES_MAX: u64 = 64 << 20;

/// An image unused for this long is removed before others, whichever user brought it: a day, in
/// milliseconds.
const UNUSED_MS_MAX: u64 = 24 * 3600 * 1000;

/// An image that nothing uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnusedImage {
    /// The user who brought it.
    pub uid: u32,
    /// Bytes that its removal frees.
    pub bytes: u64,
    /// When it was last used, in milliseconds since any fixed moment.
    pub last_used_ms: u64,
}

/// The file system of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheDisk {
    /// Its size, in bytes.
    pub size_bytes: u64,
    /// Its free bytes.
    pub free_bytes: u64,
}

/// An incoming image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingImage {
    /// The user who brings it.
    pub uid: u32,
    /// Its bytes; 0: no image comes.
    pub bytes: u64,
}

/// The image does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageTooLarge {
    /// The largest image that would fit, in bytes.
    pub bytes_max: u64,
}

/// The images of `unused` to remove before an image comes, as indices in the order of removal. At
/// most `unused_bytes_max` of unused images remain; 0 means half of the disk.
///
/// # Errors
/// The incoming image does not fit; nothing is to be removed.
pub fn images_to_remove(
    unused: &[UnusedImage],
    disk: CacheDisk,
    unused_bytes_max: u64,
    incoming: IncomingImage,
    now_ms: u64,
) -> Result<Vec<usize>, ImageTooLarge> {
    let mut unused_bytes = unused.iter().fold(0, |sum: u64, image| sum.saturating_add(image.bytes));
    let mut free_bytes = disk.free_bytes;
    let floor = FLOOR_BYTES_MAX.min(disk.size_bytes / FLOOR_PART);
    let bytes_max = free_bytes.saturating_add(unused_bytes).saturating_sub(floor);
    if incoming.bytes > bytes_max {
        return Err(ImageTooLarge { bytes_max });
    }
    let limit = if unused_bytes_max == 0 { disk.size_bytes / 2 } else { unused_bytes_max };
    let wanted_free = RESERVE_BYTES_MAX.min(disk.size_bytes / RESERVE_PART).saturating_add(incoming.bytes);
    let mut by_use: Vec<usize> = (0..unused.len()).collect();
    by_use.sort_by_key(|at| (unused[*at].last_used_ms, *at));
    let mut by_user: BTreeMap<u32, u64> = BTreeMap::from([(incoming.uid, incoming.bytes)]);
    for image in unused {
        let bytes = by_user.entry(image.uid).or_default();
        *bytes = bytes.saturating_add(image.bytes);
    }
    let mut removed = Vec::new();
    while unused_bytes > limit || free_bytes < wanted_free {
        let by_bytes_of_user = |at: &&usize| (by_user[&unused[**at].uid], Reverse(unused[**at].last_used_ms), Reverse(**at));
        let is_old = |at: &&usize| unused[**at].last_used_ms.saturating_add(UNUSED_MS_MAX) < now_ms;
        let Some(&next) = by_use.first().filter(is_old).or_else(|| by_use.iter().max_by_key(by_bytes_of_user)) else { break };
        let image = unused[next];
        by_use.retain(|at| *at != next);
        by_user.entry(image.uid).and_modify(|bytes| *bytes = bytes.saturating_sub(image.bytes));
        unused_bytes = unused_bytes.saturating_sub(image.bytes);
        free_bytes = free_bytes.saturating_add(image.bytes);
        removed.push(next);
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn images(images: &[(u64, u64)]) -> Vec<UnusedImage> {
        images.iter().map(|(mib, last_used_ms)| UnusedImage { uid: 1, bytes: mib * MIB, last_used_ms: *last_used_ms }).collect()
    }

    fn remove(unused: &[(u64, u64)], (size, free): (u64, u64), limit: u64, incoming: u64) -> Result<Vec<usize>, u64> {
        let disk = CacheDisk { size_bytes: size * MIB, free_bytes: free * MIB };
        let incoming = IncomingImage { uid: 1, bytes: incoming * MIB };
        images_to_remove(&images(unused), disk, limit * MIB, incoming, 0).map_err(|too_large| too_large.bytes_max / MIB)
    }

    #[test]
    fn the_least_recently_used_go_first_and_no_more_than_is_asked_for() {
        let unused = [(8, 30), (8, 10), (8, 20)];
        assert_eq!(remove(&unused, (100, 70), 0, 0), Ok(vec![]));
        assert_eq!(remove(&unused, (100, 70), 16, 0), Ok(vec![1]), "the limit");
        assert_eq!(remove(&unused, (100, 12), 0, 0), Ok(vec![1]), "the disk: a fifth of it is to be free");
        assert_eq!(remove(&unused, (100, 0), 0, 0), Ok(vec![1, 2, 0]), "also where that is not enough");
        assert_eq!(remove(&unused, (100, 25), 0, 8), Ok(vec![1]), "for one that comes");
        assert_eq!(remove(&[(60, 1)], (100, 40), 0, 0), Ok(vec![0]), "half of the disk without a limit");
        assert_eq!(remove(&unused, (1 << 20, 9 << 10), 0, 0), Ok(vec![]), "8 GiB of a large disk are enough");
    }

    #[test]
    fn nothing_goes_for_an_image_that_does_not_fit() {
        assert_eq!(remove(&[(8, 1)], (100, 20), 0, 18), Ok(vec![0]), "without the whole reserve");
        assert_eq!(remove(&[(8, 1)], (100, 20), 0, 19), Err(18), "the last tenth is not for images");
        assert_eq!(remove(&[(8, 1)], (100, 20), 0, u64::MAX / MIB), Err(18));
    }

    #[test]
    fn a_user_with_many_images_loses_their_own_and_images_unused_for_a_day() {
        let image = |uid, mib: u64, last_used_ms| UnusedImage { uid, bytes: mib * MIB, last_used_ms };
        let disk = CacheDisk { size_bytes: 100 * MIB, free_bytes: 28 * MIB };
        let remove = |unused: &[UnusedImage], uid, mib: u64, now_ms| {
            images_to_remove(unused, disk, 0, IncomingImage { uid, bytes: mib * MIB }, now_ms)
        };
        let unused = [image(7, 8, 10), image(8, 8, 20), image(8, 8, 30), image(8, 8, 40)];
        assert_eq!(remove(&unused, 8, 16, 50), Ok(vec![1]), "the oldest one of the user who has more");
        assert_eq!(
            remove(&unused, 9, 40, 50),
            Ok(vec![1, 2, 0, 3]),
            "all, if necessary: of users with equally many bytes, the least recently used image"
        );
        assert_eq!(remove(&unused, 8, 16, 20 + UNUSED_MS_MAX), Ok(vec![0]), "nobody used it for a day");
    }

    proptest! {
        #[test]
        fn the_remaining_images_keep_the_limit_and_the_reserve(
            unused in prop::collection::vec((0..3u32, 0..50u64, 0..9u64), 0..12),
            (size, free) in (1..500u64).prop_flat_map(|size| (Just(size), 0..=size)),
            limit in 0..200u64,
            incoming in 0..200u64,
        ) {
            let images: Vec<_> =
                unused.iter().map(|(uid, mib, at)| UnusedImage { uid: *uid, bytes: mib * MIB, last_used_ms: *at }).collect();
            let disk = CacheDisk { size_bytes: size * MIB, free_bytes: free * MIB };
            let coming = IncomingImage { uid: 9, bytes: incoming * MIB };
            let Ok(removed) = images_to_remove(&images, disk, limit * MIB, coming, 0) else { return Ok(()) };
            let bytes = |at: &usize| unused[*at].1;
            let stays: Vec<usize> = (0..unused.len()).filter(|at| !removed.contains(at)).collect();
            let freed = free + removed.iter().map(bytes).sum::<u64>();
            let limit = if limit == 0 { size * MIB / 2 } else { limit * MIB };
            let is_well = |stays: u64, free: u64| stays * MIB <= limit && free * MIB >= size * MIB / RESERVE_PART + incoming * MIB;
            let stays_bytes = stays.iter().map(bytes).sum::<u64>();
            prop_assert!(stays.is_empty() || is_well(stays_bytes, freed));
            let is_older = |r: &usize, s: &usize| unused[*r].0 != unused[*s].0 || unused[*r].2 <= unused[*s].2;
            prop_assert!(stays.iter().all(|s| removed.iter().all(|r| is_older(r, s))), "each user's by their last use");
            let left = |uid: u32| stays.iter().filter(|at| unused[**at].0 == uid).map(bytes).sum::<u64>();
            for lost in &removed {
                // The last image that this user lost: no other user had more then.
                let uid = unused[*lost].0;
                let last = removed.iter().rfind(|at| unused[**at].0 == uid).map_or(0, bytes);
                prop_assert!(stays.iter().all(|at| left(unused[*at].0) <= left(uid) + last), "of the user with most");
            }
            if let Some(last) = removed.last() {
                prop_assert!(!is_well(stays_bytes + bytes(last), freed - bytes(last)), "the last one had to go");
            }
        }
    }
}
