//! Directories of ended PMIx servers. Their user may still write there, so they are removed in small parts between the
//! other work of the shim.

use crate::shim_log::log_line;
use lattice_runtime::remove::remove_at_most;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Names removed at a time.
const NAMES_PER_TURN: u64 = 1000;
/// Names removed at the end of the shim.
const NAMES_AT_END: u64 = 20_000;
/// Interval between two attempts, in milliseconds.
const RETRY_MS: u64 = 500;

/// The directories that are still to be removed.
#[derive(Default)]
pub struct Leftovers {
    directories: VecDeque<PathBuf>,
    retry_at: u64,
    /// Whether an attempt failed, which was logged.
    is_failing: bool,
}

impl Leftovers {
    /// Removes this directory, at once if it is small.
    pub fn remove(&mut self, directory: PathBuf, now_ms: u64) {
        // In front, because those behind it may be full.
        self.directories.push_front(directory);
        self.retry_at = now_ms;
        self.remove_some(now_ms);
    }

    /// When to continue, in milliseconds of the clock passed to `remove`.
    pub fn due(&self) -> Option<u64> {
        (!self.directories.is_empty()).then_some(self.retry_at)
    }

    /// Removes a part, if it is time.
    pub fn remove_some(&mut self, now_ms: u64) {
        if self.due().is_some_and(|due| due <= now_ms) {
            self.attempt(NAMES_PER_TURN);
            self.retry_at = now_ms.saturating_add(RETRY_MS);
        }
    }

    /// The last attempt: what it does not remove stays.
    pub fn give_up(mut self) {
        self.attempt(NAMES_AT_END);
        for directory in &self.directories {
            log_line(&format!("{} was not removed", directory.display()));
        }
    }

    fn attempt(&mut self, mut most: u64) {
        for _ in 0..self.directories.len() {
            let Some(directory) = self.directories.pop_front() else { return };
            match remove_at_most(&directory, &mut most) {
                Ok(true) => continue,
                Ok(false) => {}
                Err(_) if self.is_failing => {}
                Err(error) => {
                    self.is_failing = true;
                    log_line(&format!("{} cannot be removed now; the shim tries again: {error}", directory.display()));
                }
            }
            self.directories.push_back(directory);
            if most == 0 {
                return;
            }
        }
    }
}

/// Removes a directory that was just made and is not used.
pub fn remove_unused(directory: &Path) {
    match remove_at_most(directory, &mut NAMES_PER_TURN.clone()) {
        Ok(true) => {}
        Ok(false) => log_line(&format!("{} was not removed: its user still writes there", directory.display())),
        Err(error) => log_line(&format!("{} was not removed: {error}", directory.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_full_directory_is_removed_in_parts_and_a_small_one_does_not_wait_for_it() {
        let base = std::env::temp_dir().join(format!("lattice-leftovers-{}", std::process::id()));
        let (full, small) = (base.join("full"), base.join("small"));
        fs::create_dir_all(full.join("inner")).unwrap();
        fs::create_dir_all(&small).unwrap();
        (0..2500).for_each(|n| fs::write(full.join(format!("inner/{n}")), "").unwrap());
        let mut left = Leftovers::default();
        assert_eq!(left.due(), None);
        left.remove(full.clone(), 0);
        assert_eq!((left.due(), full.exists()), (Some(RETRY_MS), true));
        left.remove_some(RETRY_MS - 1);
        assert!(fs::read_dir(full.join("inner")).unwrap().count() > 1000);
        left.remove(small.clone(), 10);
        assert!(!small.exists() && full.exists());
        left.remove_some(10 + RETRY_MS);
        assert_eq!((left.due(), full.exists()), (None, false));
        fs::create_dir_all(full.join("inner")).unwrap();
        left.directories.push_back(full.clone());
        left.give_up();
        assert!(!full.exists());
        fs::remove_dir_all(&base).unwrap();
    }
}
