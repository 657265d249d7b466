//! Which certificates this process does not believe any more, though their authority issued them.
//!
//! ```text
//!   ledger ──applied──▶ member's list ──Down::Revoked──▶ agents' lists ──▶ their disks
//!                           │                                │
//!                           ╰── calls, sessions, watches ──╴ ╰── the mesh's connections and streams
//! ```
//!
//! A list only grows: what was revoked before a recovery from a backup stays so where it is known.

use crate::identity::{Revoked, Shown};
use lattice_model::Timestamp;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// The list. Clones share it.
#[derive(Clone, Debug)]
pub struct RevocationList(Arc<watch::Sender<BTreeMap<String, Timestamp>>>);

impl Default for RevocationList {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }
}

impl RevocationList {
    /// Adds names, each with the time before which their certificates were issued that count no more.
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

    /// All names, each with that time.
    pub fn names(&self) -> BTreeMap<String, Timestamp> {
        self.0.borrow().clone()
    }

    /// Wakes at each change.
    pub fn changes(&self) -> watch::Receiver<BTreeMap<String, Timestamp>> {
        self.0.subscribe()
    }

    /// That a certificate counts.
    ///
    /// # Errors
    /// [`Revoked`], where it does not.
    pub fn check(&self, shown: &Shown) -> Result<(), Revoked> {
        match self.0.borrow().get(&shown.caller.name) {
            Some(before) if shown.issued < *before => Err(Revoked { name: shown.caller.name.clone(), before: *before }),
            Some(_) | None => Ok(()),
        }
    }

    /// Returns when this certificate counts no more.
    pub async fn until_revoked(&self, shown: &Shown) -> Revoked {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            if let Err(revoked) = self.check(shown) {
                return revoked;
            }
            if changes.changed().await.is_err() {
                // The list is gone, and with it the process.
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
    fn a_list_forgets_nothing_and_wakes_whom_it_concerns() {
        let list = RevocationList::default();
        let one = shown("n1", 4);
        let mut waits = Box::pin(list.until_revoked(&one));
        assert_eq!((&mut waits).now_or_never(), None);
        list.learn([("n2".to_owned(), Timestamp(9)), ("n1".to_owned(), Timestamp(4))]);
        assert_eq!((&mut waits).now_or_never(), None, "it was issued then, not before");
        list.learn([("n1".to_owned(), Timestamp(5))]);
        assert_eq!(waits.now_or_never(), Some(Revoked { name: "n1".into(), before: Timestamp(5) }));
        // What somebody says who knows less takes nothing back.
        list.learn([("n1".to_owned(), Timestamp(1))]);
        assert!(list.check(&shown("n1", 4)).is_err() && list.check(&shown("n1", 5)).is_ok() && list.check(&shown("n3", 0)).is_ok());
    }
}
