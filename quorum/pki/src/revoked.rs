//! The revoked certificates known to this process.
//!
//! ```text
//!   ledger ──applied──▶ member's list ──Down::Revoked──▶ agents' lists ──▶ their disks
//!                           │                                │
//!                           ╰── calls, sessions, watches ──╴ ╰── the mesh's connections and streams
//! ```
//!
//! A list only grows: revocations from before a recovery from a backup stay in force wherever they
//! are known.

use crate::identity::{Revoked, Shown};
use lattice_model::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The list of revocations. Clones share it.
#[derive(Clone, Debug)]
pub struct RevocationList(Arc<watch::Sender<BTreeMap<String, Timestamp>>>);

impl Default for RevocationList {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

impl RevocationList {
    /// Adds names, each with the time before which its certificates are revoked.
    pub fn learn(&self, names: impl IntoIterator<Item = (String, Timestamp)>) {
        self.0.send_if_modified(|known| {
            let mut is_new = false;
            for (name, before) in names {
                let entry = known.entry(name).or_default();
                is_new |= before > *entry;
                *entry = before.max(*entry);
            }
            is_new
        });
    }

    /// All names with their times.
    pub fn names(&self) -> BTreeMap<String, Timestamp> {
        self.0.borrow().clone()
    }

    /// Notifies of each change.
    pub fn changes(&self) -> watch::Receiver<BTreeMap<String, Timestamp>> {
        self.0.subscribe()
    }

    /// Checks that a certificate is not revoked.
    ///
    /// # Errors
    /// [`Revoked`] if it is.
    pub fn check(&self, shown: &Shown) -> Result<(), Revoked> {
        match self.0.borrow().get(&shown.caller.name) {
            Some(before) if shown.issued < *before => Err(Revoked { name: shown.caller.name.clone(), before: *before }),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns when this certificate is revoked.
    pub async fn until_revoked(&self, shown: &Shown) -> Revoked {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            if let Err(revoked) = self.check(shown) {
                return revoked;
            }
            if changes.changed().await.is_err() {
                // The list was dropped, so the process is ending.
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{Caller, Role};
    use futures::FutureExt;

    fn shown(name: &str, issued: u64) -> Shown {
        Shown { caller: Arc::new(Caller { name: name.into(), role: Role::Node }), issued: Timestamp(issued) }
    }

    #[test]
    fn a_list_forgets_nothing_and_wakes_tasks_whose_certificate_is_revoked() {
        let list = RevocationList::default();
        let one = shown("n1", 4);
        let mut waits = Box::pin(list.until_revoked(&one));
        assert_eq!((&mut waits).now_or_never(), None);
        list.learn([("n2".to_owned(), Timestamp(9)), ("n1".to_owned(), Timestamp(4))]);
        assert_eq!((&mut waits).now_or_never(), None, "it was issued then, not before");
        list.learn([("n1".to_owned(), Timestamp(5))]);
        assert_eq!(waits.now_or_never(), Some(Revoked { name: "n1".into(), before: Timestamp(5) }));
        // An older time from another source does not change anything.
        list.learn([("n1".to_owned(), Timestamp(1))]);
        assert!(list.check(&shown("n1", 4)).is_err() && list.check(&shown("n1", 5)).is_ok() && list.check(&shown("n3", 0)).is_ok());
    }
}
