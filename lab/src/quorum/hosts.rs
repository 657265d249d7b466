//! Simulated hosts for members on this machine: each has a network that can be cut, a clock that can be wrong and a
//! disk that can be slow.
//!
//! ```text
//!   member 1 ──10.77.1.0/24──┐
//!   member 2 ──10.77.2.0/24──┤ hub: routes, and drops cut traffic (by routing rules: no packet filter is needed)
//!   member 3 ──10.77.3.0/24──┤
//!   clients  ──10.77.0.0/24──┘
//! ```
//!
//! Every party has its own network namespace. No namespace has a name and nothing connects them to the machine's own
//! network: all of it disappears with the last process and descriptor, whatever happens. [`crate::preload`] sets clock
//! and disk of a member's process.

use crate::hub::{self, Hub, namespace, path_of};
use crate::preload::{self, Shared};
use crate::up;
use anyhow::{Context, Result};
use nix::sched::{CloneFlags, unshare};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A sender or receiver of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The thread that made the hosts, and the processes that it starts.
    Clients,
    /// A member, by its id.
    Member(u64),
}

impl Party {
    /// The third byte of its network address, and the number of its link.
    fn number(self) -> u8 {
        match self {
            Self::Clients => 0,
            Self::Member(id) => u8::try_from(id).unwrap_or(u8::MAX),
        }
    }
}

/// The members' hosts.
#[derive(Debug)]
pub struct Hosts {
    dir: PathBuf,
    hub: File,
    members: Vec<Host>,
    /// The pairs whose packets are dropped, in that direction.
    cuts: Mutex<BTreeSet<(Party, Party)>>,
}

#[derive(Debug)]
struct Host {
    namespace: File,
    shared: Shared,
}

impl Hosts {
    /// Makes this many hosts and calls `body` in a thread beside them, which reaches only their members. Their files
    /// are in the existing directory `dir`.
    pub fn around<T: Send>(members: u64, dir: &Path, body: impl FnOnce(&Self) -> Result<T> + Send) -> Result<T> {
        let in_its_network = || {
            unshare(CloneFlags::CLONE_NEWNET).context("a network namespace cannot be made (this needs root)")?;
            let hosts = Self::make(members, dir)?;
            body(&hosts)
        };
        let ended = std::thread::scope(|scope| scope.spawn(in_its_network).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn make(members: u64, dir: &Path) -> Result<Self> {
        preload::build(dir)?;
        let hub = namespace()?;
        let host = |id: u64| Ok(Host { namespace: namespace()?, shared: Shared::make(&dir.join(format!("host-{id}")))? });
        let members = (1..=members).map(host).collect::<Result<Vec<_>>>()?;
        let hosts = Self { dir: dir.to_owned(), hub, members, cuts: Mutex::default() };
        hosts.link()?;
        Ok(hosts)
    }

    fn hub(&self) -> Hub {
        Hub { namespace: path_of(&self.hub), dir: self.dir.clone() }
    }

    /// Connects each party to the hub.
    fn link(&self) -> Result<()> {
        let here = File::open("/proc/thread-self/ns/net").context("this thread's network namespace")?;
        let members = (1..).map(Party::Member).zip(self.members.iter().map(|m| &m.namespace));
        let parties = std::iter::once((Party::Clients, &here)).chain(members);
        self.hub().link(parties.map(|(party, namespace)| (party.number(), path_of(namespace))))
    }

    /// The addresses of the members and how they are started: for [`up::Options::hosts`].
    pub fn places(&self) -> Vec<up::Host> {
        let place = |(party, host): (Party, &Host)| up::Host {
            address: hub::address(party.number()),
            launcher: [host.shared.launcher(&self.dir), hub::launcher(&path_of(&host.namespace))].concat(),
        };
        (1..).map(Party::Member).zip(&self.members).map(place).collect()
    }

    fn cuts(&self) -> MutexGuard<'_, BTreeSet<(Party, Party)>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on packets from the first to the second of each pair are dropped.
    pub fn cut(&self, pairs: &[(Party, Party)]) -> Result<()> {
        let mut cuts = self.cuts();
        let new: Vec<_> = pairs.iter().copied().filter(|pair| !cuts.contains(pair)).collect();
        self.hub().cut(numbers(&new))?;
        cuts.extend(new);
        Ok(())
    }

    /// No packets are dropped any more.
    pub fn join(&self) -> Result<()> {
        let cuts = std::mem::take(&mut *self.cuts());
        self.hub().join(numbers(&cuts.into_iter().collect::<Vec<_>>()))
    }

    /// From now on the time of day on a member's host is wrong by this many seconds.
    pub fn shift_clock(&self, member: u64, seconds: i64) -> Result<()> {
        self.shared(member)?.shift_clock(seconds)
    }

    /// From now on each sync of a member's files takes this much longer.
    pub fn slow_disk(&self, member: u64, by: Duration) -> Result<()> {
        self.shared(member)?.slow_disk(by)
    }

    fn shared(&self, member: u64) -> Result<&Shared> {
        let host = usize::try_from(member)?.checked_sub(1).and_then(|at| self.members.get(at));
        Ok(&host.with_context(|| format!("there is no host for member {member}"))?.shared)
    }

    /// Ends all faults: of network, clocks and disks.
    pub fn heal(&self) -> Result<()> {
        self.join()?;
        for member in (1..).take(self.members.len()) {
            self.shift_clock(member, 0)?;
            self.slow_disk(member, Duration::ZERO)?;
        }
        Ok(())
    }
}

fn numbers(pairs: &[(Party, Party)]) -> impl Iterator<Item = (u8, u8)> {
    pairs.iter().map(|(from, to)| (from.number(), to.number()))
}
