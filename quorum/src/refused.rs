//! What came from somebody who may not, counted: a wrong certificate shows itself here.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The certificate's name is not the one that the caller speaks for.
    Name,
    /// The certificate's role does not entitle to the call.
    Role,
}

/// How often, since this member began.
#[derive(Debug, Default)]
pub struct Refused {
    name: AtomicU64,
    role: AtomicU64,
}

impl Refused {
    /// One more.
    pub fn count(&self, cause: Cause) {
        let counter = match cause {
            Cause::Name => &self.name,
            Cause::Role => &self.role,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Those that happened at all, in words.
    pub fn told(&self) -> Vec<(String, u64)> {
        let all = [("certificates of another name", &self.name), ("certificates of another role", &self.role)];
        let counts = all.into_iter().map(|(what, counter)| (what.to_owned(), counter.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0).collect()
    }
}
