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

/// The account of this machine with this name, with its groups. root is refused: nobody is root by a name.
pub async fn account_named(name: &str) -> Result<Principal, Status> {
    ACCOUNTS.named(name).await
}

type Lookup = fn(u32, u32) -> Result<Principal, Status>;

pub(super) struct Accounts {
    lookup: Lookup,
    patience: Duration,
    /// By uid and gid.
    remembered: Mutex<Remembered<(u32, u32), Principal>>,
    /// The uid and the primary group of accounts, by name.
    names: Mutex<Remembered<String, (u32, u32)>>,
    places: Arc<Semaphore>,
}

impl Accounts {
    fn new(lookup: Lookup) -> Self {
        let (remembered, names, places) = (Mutex::default(), Mutex::default(), Arc::new(Semaphore::new(LOOKUPS_MAX)));
        Self { lookup, patience: LOOKUP_TIMEOUT, remembered, names, places }
    }

    /// The account of a process with this `uid` and `gid`.
    pub(super) async fn principal(&self, uid: u32, gid: u32) -> Result<Principal, Status> {
        if let Some(known) = self.remembered.lock().get(&(uid, gid), Instant::now()) {
            return Ok(known);
        }
        let lookup = self.lookup;
        let principal = self.ask(format!("uid {uid}"), move || lookup(uid, gid)).await?;
        self.remembered.lock().put((uid, gid), principal.clone(), Instant::now());
        Ok(principal)
    }

    /// The account with this name. uid 0 is refused under every name.
    async fn named(&self, name: &str) -> Result<Principal, Status> {
        let (uid, gid) = self.numbers_of(name).await?;
        if uid == 0 {
            return Err(Status::permission_denied("root never comes by a token\nhint: use the socket of an agent, or another account"));
        }
        let principal = self.principal(uid, gid).await?;
        if principal.name != name {
            let text = format!("account {name:?} is {:?} on this machine\nhint: use a token of {:?}", principal.name, principal.name);
            return Err(Status::permission_denied(text));
        }
        Ok(principal)
    }

    /// The uid and the primary group of the account with this name.
    async fn numbers_of(&self, name: &str) -> Result<(u32, u32), Status> {
        let asked = name.to_owned();
        let known = self.names.lock().get(&asked, Instant::now());
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.ask(format!("account {name:?}"), move || account_by_name(&asked)).await?;
        let numbers = found.ok_or_else(|| {
            let hint = "use the API of another one, or ask for an account here";
            Status::permission_denied(format!("no account {name:?} is known on this machine\nhint: {hint}"))
        })?;
        self.names.lock().put(name.to_owned(), numbers, Instant::now());
        Ok(numbers)
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
}

/// What was looked up in the last [`CACHE_TIME`], at most [`USERS_MAX`].
struct Remembered<K, V>(BTreeMap<K, (Instant, V)>);

impl<K, V> Default for Remembered<K, V> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone, V: Clone> Remembered<K, V> {
    fn get(&self, key: &K, now: Instant) -> Option<V> {
        self.0.get(key).filter(|(since, _)| now.duration_since(*since) < CACHE_TIME).map(|(_, value)| value.clone())
    }

    fn put(&mut self, key: K, value: V, now: Instant) {
        if self.0.len() >= USERS_MAX {
            self.0.retain(|_, (since, _)| now.duration_since(*since) < CACHE_TIME);
        }
        if self.0.len() >= USERS_MAX {
            let oldest = self.0.iter().min_by_key(|(_, (since, _))| *since).map(|(key, _)| key.clone());
            oldest.and_then(|key| self.0.remove(&key));
        }
        self.0.insert(key, (now, value));
    }
}

fn account(uid: u32, gid: u32) -> Result<Principal, Status> {
    let user = found(User::from_uid(Uid::from_raw(uid))).map_err(|e| Status::unavailable(format!("the account of uid {uid}: {e}")))?;
    let user = user.ok_or_else(|| Status::unauthenticated(format!("uid {uid} has no account on this machine")))?;
    let name = CString::new(user.name.as_str()).map_err(|_| Status::unauthenticated("the account's name contains a NUL"))?;
    let groups = getgrouplist(&name, Gid::from_raw(gid)).map_err(|e| Status::internal(format!("the groups of {}: {e}", user.name)))?;
    Ok(Principal { name: user.name, uid, gid, groups: groups.into_iter().map(Gid::as_raw).collect() })
}

/// The uid and the primary group of the account with this name.
fn account_by_name(name: &str) -> Result<Option<(u32, u32)>, Status> {
    if name.is_empty() || name.contains('\0') {
        return Ok(None);
    }
    let unanswered = |e: Errno| Status::unavailable(format!("account {name:?} in this machine's accounts (NSS): {e}"));
    let user = found(User::from_name(name)).map_err(unanswered)?;
    Ok(user.map(|user| (user.uid.as_raw(), user.gid.as_raw())))
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

/// According to getpwuid_r(3) and getgrnam_r(3), these errors mean that there is no such account or group.
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
    fn accounts_are_cached_for_a_while_and_up_to_a_limit() {
        let (mut remembered, now) = (Remembered::default(), Instant::now());
        for uid in 0..=u32::try_from(USERS_MAX).unwrap() {
            remembered.put((uid, uid), of(uid), now + Duration::from_millis(u64::from(uid)));
        }
        assert_eq!(remembered.0.len(), USERS_MAX);
        assert_eq!(remembered.get(&(0, 0), now + Duration::from_secs(2)), None, "the oldest went");
        assert_eq!(remembered.get(&(1, 1), now + Duration::from_secs(2)), Some(of(1)));
        assert_eq!(remembered.get(&(1, 2), now + Duration::from_secs(2)), None, "another group is another caller");
        assert_eq!(remembered.get(&(1, 1), now + CACHE_TIME + Duration::from_secs(1)), None);
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

    #[tokio::test]
    async fn a_name_gets_its_account_with_its_primary_group_and_root_is_refused_under_every_name() {
        let of = async |name: &str| ACCOUNTS.named(name).await.map_err(|status| (status.code(), status.message().to_owned()));
        let daemon = User::from_name("daemon").unwrap().expect("an account daemon");
        let known = of("daemon").await.unwrap();
        assert_eq!((known.uid, known.gid), (daemon.uid.as_raw(), daemon.gid.as_raw()));
        assert!(known.groups.contains(&known.gid), "{known:?}");
        assert_eq!(of("daemon").await.unwrap(), known, "again, from the cache");
        let denied = tonic::Code::PermissionDenied;
        assert!(of("root").await.unwrap_err().1.starts_with("root never comes by a token"));
        for name in ["no-such-name-here", "", "daemon\0"] {
            let (code, text) = of(name).await.unwrap_err();
            assert!(code == denied && text.starts_with(&format!("no account {name:?} is known on this machine")), "{text}");
        }
    }

    /// On a runtime of one worker: a lookup on the worker itself would block it for ever.
    #[test]
    fn accounts_that_do_not_answer_are_given_up_and_the_worker_continues() {
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
