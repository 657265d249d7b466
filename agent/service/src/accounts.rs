//! The machine's accounts (NSS). Blocking threads look them up, because a directory service may
//! take long and must not block the agent.

use lattice_model::access::{Subject, SubjectName};
use lattice_model::{NodeId, Principal};
use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tonic::Status;

/// How long a looked-up account is cached.
const CACHE_TIME: Duration = Duration::from_secs(60);
/// How many accounts are cached.
const USERS_MAX: usize = 1024;
/// How long a caller waits for the directory service.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How many lookups may run at once: a lookup that hangs occupies a thread until it is answered.
const LOOKUPS_MAX: usize = 8;

/// The accounts of this machine.
pub(super) static ACCOUNTS: LazyLock<Accounts> = LazyLock::new(|| Accounts::new(account));

type Lookup = fn(u32, u32) -> Result<Principal, Status>;

pub(super) struct Accounts {
    lookup: Lookup,
    patience: Duration,
    remembered: Mutex<Remembered>,
    places: Arc<Semaphore>,
}

impl Accounts {
    fn new(lookup: Lookup) -> Self {
        Self { lookup, patience: LOOKUP_TIMEOUT, remembered: Mutex::default(), places: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }

    /// The account of a process with this `uid` and `gid`.
    pub(super) async fn principal(&self, uid: u32, gid: u32) -> Result<Principal, Status> {
        if let Some(known) = self.remembered().get(uid, gid, Instant::now()) {
            return Ok(known);
        }
        let lookup = self.lookup;
        let principal = self.ask(format!("uid {uid}"), move || lookup(uid, gid)).await?;
        self.remembered().put(principal.clone(), Instant::now());
        Ok(principal)
    }

    /// The account or group with this name, and its number. `me`: the node's name, for the refusal of an unknown one.
    pub(super) async fn subject(&self, name: &SubjectName, me: &NodeId) -> Result<Subject, Status> {
        let asked = name.clone();
        let found = self.ask(name.to_string(), move || subject(&asked)).await?;
        found.ok_or_else(|| {
            let kind = if name.is_group { "group" } else { "account" };
            let database = if name.is_group { "group" } else { "passwd" };
            Status::not_found(format!(
                "no {kind} {} is known on {me}\nhint: `getent {database} NAME` there shows whether it is; or ask the agent of another machine",
                name.name
            ))
        })
    }

    /// Runs a lookup on a blocking thread, for at most [`LOOKUP_TIMEOUT`]. `whom`: whom it is about, for the error.
    async fn ask<T, F>(&self, whom: String, lookup: F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T, Status> + Send + 'static,
    {
        let places = Arc::clone(&self.places);
        let asked = async {
            let place = places.acquire_owned().await.map_err(|e| Status::internal(e.to_string()))?;
            let answer = tokio::task::spawn_blocking(move || {
                let _held_until_answered = place;
                lookup()
            });
            answer.await.map_err(|e| Status::internal(e.to_string()))?
        };
        let answer = tokio::time::timeout(self.patience, asked).await;
        answer.map_err(|_| {
            let text = format!("this machine's accounts (NSS) do not answer for {whom} within {} s; try again", self.patience.as_secs());
            Status::unavailable(text)
        })?
    }

    fn remembered(&self) -> parking_lot::MutexGuard<'_, Remembered> {
        self.remembered.lock()
    }
}

#[derive(Default)]
struct Remembered(BTreeMap<(u32, u32), (Instant, Principal)>);

impl Remembered {
    fn get(&self, uid: u32, gid: u32, now: Instant) -> Option<Principal> {
        self.0.get(&(uid, gid)).filter(|(since, _)| now.duration_since(*since) < CACHE_TIME).map(|(_, p)| p.clone())
    }

    fn put(&mut self, principal: Principal, now: Instant) {
        if self.0.len() >= USERS_MAX {
            self.0.retain(|_, (since, _)| now.duration_since(*since) < CACHE_TIME);
        }
        if self.0.len() >= USERS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, (since, _))| *since).map(|(key, _)| *key);
            oldest.and_then(|key| self.0.remove(&key));
        }
        self.0.insert((principal.uid, principal.gid), (now, principal));
    }
}

fn account(uid: u32, gid: u32) -> Result<Principal, Status> {
    let user = found(User::from_uid(Uid::from_raw(uid))).map_err(|e| Status::unavailable(format!("the account of uid {uid}: {e}")))?;
    let user = user.ok_or_else(|| Status::unauthenticated(format!("uid {uid} has no account on this machine")))?;
    let name = CString::new(user.name.as_str()).map_err(|_| Status::unauthenticated("the account's name contains a NUL"))?;
    let groups = getgrouplist(&name, Gid::from_raw(gid)).map_err(|e| Status::internal(format!("the groups of {}: {e}", user.name)))?;
    Ok(Principal { name: user.name, uid, gid, groups: groups.into_iter().map(Gid::as_raw).collect() })
}

fn subject(name: &SubjectName) -> Result<Option<Subject>, Status> {
    let unanswered = |e: Errno| Status::unavailable(format!("{name} in this machine's accounts (NSS): {e}"));
    if name.is_group {
        let group = found(Group::from_name(&name.name)).map_err(unanswered)?;
        return Ok(group.map(|group| Subject::Group { name: group.name, gid: group.gid.as_raw() }));
    }
    let user = found(User::from_name(&name.name)).map_err(unanswered)?;
    Ok(user.map(|user| Subject::User { name: user.name, uid: user.uid.as_raw() }))
}

/// According to getpwuid_r(3) and getgrnam_r(3), these errors mean that there is none.
fn found<T>(answer: nix::Result<Option<T>>) -> nix::Result<Option<T>> {
    match answer {
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn of(uid: u32) -> Principal {
        Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![uid] }
    }

    #[test]
    fn an_account_is_remembered_for_a_while_and_only_so_many() {
        let (mut remembered, now) = (Remembered::default(), Instant::now());
        for uid in 0..=u32::try_from(USERS_MAX).unwrap() {
            remembered.put(of(uid), now + Duration::from_millis(u64::from(uid)));
        }
        assert_eq!(remembered.0.len(), USERS_MAX);
        assert_eq!(remembered.get(0, 0, now + Duration::from_secs(2)), None, "the oldest went");
        assert_eq!(remembered.get(1, 1, now + Duration::from_secs(2)), Some(of(1)));
        assert_eq!(remembered.get(1, 2, now + Duration::from_secs(2)), None, "another group is another caller");
        assert_eq!(remembered.get(1, 1, now + CACHE_TIME + Duration::from_secs(1)), None);
    }

    #[tokio::test]
    async fn one_caller_asks_once() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        let accounts = Accounts::new(|uid, _| {
            ASKED.fetch_add(1, Ordering::SeqCst);
            Ok(of(uid))
        });
        for _ in 0..3 {
            assert_eq!(accounts.principal(7, 7).await.unwrap(), of(7));
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn names_get_their_numbers_and_unknown_ones_are_refused_by_kind_and_node() {
        let me = "n1".parse().unwrap();
        let of = async |text: &str| ACCOUNTS.subject(&text.parse().unwrap(), &me).await.map_err(|status| status.message().to_owned());
        assert_eq!(of("root").await, Ok(Subject::User { name: "root".to_owned(), uid: 0 }));
        assert_eq!(of("group:root").await, Ok(Subject::Group { name: "root".to_owned(), gid: 0 }));
        let unknown = |what: &str, database: &str| {
            Err(format!(
                "no {what} no-such-name-here is known on n1\nhint: `getent {database} NAME` there shows whether it is; or ask the agent of another machine"
            ))
        };
        assert_eq!(of("no-such-name-here").await, unknown("account", "passwd"));
        assert_eq!(of("group:no-such-name-here").await, unknown("group", "group"));
    }

    /// On a runtime of one worker: a lookup on the worker itself would block it for ever.
    #[test]
    fn accounts_that_do_not_answer_are_given_up_and_the_worker_goes_on() {
        static HANGS: Mutex<()> = Mutex::new(());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let held = HANGS.lock();
        let mut accounts = Accounts::new(|uid, _| {
            drop(HANGS.lock());
            Ok(of(uid))
        });
        accounts.patience = Duration::from_millis(10);
        for _ in 0..=LOOKUPS_MAX {
            assert_eq!(runtime.block_on(accounts.principal(1, 1)).unwrap_err().code(), tonic::Code::Unavailable);
        }
        drop(held);
        accounts.patience = LOOKUP_TIMEOUT;
        assert_eq!(runtime.block_on(accounts.principal(1, 1)).unwrap(), of(1), "places come back with the answers");
    }
}
