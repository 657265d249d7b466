//! Hosts for members, on this machine: each has a network that can be cut, a clock that can be wrong and a disk that can
//! be slow.
//!
//! ```text
//!   member 1 ──10.77.1.0/24──┐
//!   member 2 ──10.77.2.0/24──┤ hub: routes, and drops what is cut (rules of routing: no packet filter is needed)
//!   member 3 ──10.77.3.0/24──┤
//!   clients  ──10.77.0.0/24──┘
//! ```
//!
//! Every party is in a network namespace of its own. No namespace has a name and nothing joins them to the machine's own
//! network: all of it is gone with the last process and descriptor, whatever happens. Clock and disk are told to a
//! member's process by a small library that is loaded into it (`host.c`), through a file that both share.

use crate::process::run;
use crate::up;
use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, unshare};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a command of these may take.
const COMMAND_MAX: Duration = Duration::from_secs(20);
/// What of `host.c` is where in the shared file.
const CLOCK_AT: u64 = 0;
const SYNC_AT: u64 = 8;

/// Who sends or gets packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// The thread that made the hosts, and those that it starts.
    Clients,
    /// A member, by its id.
    Member(u64),
}

impl Party {
    /// The third byte of its network, and the number of its link.
    fn number(self) -> u64 {
        match self {
            Self::Clients => 0,
            Self::Member(id) => id,
        }
    }

    fn address(self) -> String {
        format!("10.77.{}.2", self.number())
    }
}

/// The members' hosts.
#[derive(Debug)]
pub struct Hosts {
    dir: PathBuf,
    hub: File,
    members: Vec<Host>,
    /// Whose packets reach whom no more.
    cuts: Mutex<BTreeSet<(Party, Party)>>,
}

#[derive(Debug)]
struct Host {
    namespace: File,
    shared: File,
    shared_path: PathBuf,
}

impl Hosts {
    /// Makes so many hosts and calls `body` in a thread beside them, which reaches their members and nothing else. Their
    /// files lie in `dir`, which must be there.
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
        let library = dir.join("host.so");
        let source = dir.join("host.c");
        std::fs::write(&source, include_str!("hosts/host.c")).with_context(|| format!("cannot write {}", source.display()))?;
        command(Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).args([&library, &source]))?;
        let hub = namespace()?;
        let host = |id: u64| {
            let shared_path = dir.join(format!("host-{id}"));
            let shared = File::options().read(true).write(true).create_new(true).open(&shared_path);
            let shared = shared.with_context(|| format!("cannot make {}", shared_path.display()))?;
            shared.set_len(16)?;
            Ok(Host { namespace: namespace()?, shared, shared_path })
        };
        let members = (1..=members).map(host).collect::<Result<Vec<_>>>()?;
        let hosts = Self { dir: dir.to_owned(), hub, members, cuts: Mutex::default() };
        hosts.link()?;
        Ok(hosts)
    }

    /// Joins each party to the hub.
    fn link(&self) -> Result<()> {
        // What is cut is cut in one direction: where an answer would go must not count against a packet.
        let settings = "cd /proc/sys/net/ipv4; echo 1 > ip_forward; for check in conf/*/rp_filter; do echo 0 > $check; done";
        let here = File::open("/proc/thread-self/ns/net").context("this thread's network namespace")?;
        let parties =
            std::iter::once((Party::Clients, &here)).chain((1..).map(Party::Member).zip(self.members.iter().map(|m| &m.namespace)));
        let mut in_hub = String::from("link set lo up\n");
        for (party, namespace) in parties {
            let (number, address) = (party.number(), party.address());
            let _ = writeln!(in_hub, "link add p{number} type veth peer name net0 netns {}", path_of(namespace));
            let _ = writeln!(in_hub, "address add 10.77.{number}.1/24 dev p{number}\nlink set p{number} up");
            let inside =
                format!("link set lo up\naddress add {address}/24 dev net0\nlink set net0 up\nroute add default via 10.77.{number}.1\n");
            self.ip(&self.hub, &std::mem::take(&mut in_hub))?;
            self.ip(namespace, &inside)?;
        }
        command(inside(&self.hub, "sh").args(["-ec", settings]))
    }

    /// Gives these lines to `ip` in that namespace.
    fn ip(&self, namespace: &File, lines: &str) -> Result<()> {
        let path = self.dir.join("batch");
        std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
        command(inside(namespace, "ip").arg("-batch").arg(path))
    }

    /// Where the members are and how they are started: for [`up::Options::hosts`].
    pub fn places(&self) -> Vec<up::Host> {
        let library = self.dir.join("host.so");
        let place = |(party, host): (Party, &Host)| up::Host {
            address: party.address(),
            launcher: vec![
                "/usr/bin/env".to_owned(),
                format!("LD_PRELOAD={}", library.display()),
                format!("LATTICE_LAB_HOST={}", host.shared_path.display()),
                "nsenter".to_owned(),
                format!("--net={}", path_of(&host.namespace)),
            ],
        };
        (1..).map(Party::Member).zip(&self.members).map(place).collect()
    }

    fn cuts(&self) -> MutexGuard<'_, BTreeSet<(Party, Party)>> {
        self.cuts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on no packet comes from the first to the second of each pair.
    pub fn cut(&self, pairs: &[(Party, Party)]) -> Result<()> {
        let mut cuts = self.cuts();
        let new: Vec<_> = pairs.iter().copied().filter(|pair| !cuts.contains(pair)).collect();
        self.ip(&self.hub, &rules("add", &new))?;
        cuts.extend(new);
        Ok(())
    }

    /// Every packet comes through again.
    pub fn join(&self) -> Result<()> {
        let cuts = std::mem::take(&mut *self.cuts());
        self.ip(&self.hub, &rules("del", &cuts.into_iter().collect::<Vec<_>>()))
    }

    /// The time of day on a member's host is wrong by so many seconds from now on.
    pub fn shift_clock(&self, member: u64, seconds: i64) -> Result<()> {
        self.tell(member, CLOCK_AT, seconds)
    }

    /// Each sync of a member's files takes so much longer from now on.
    pub fn slow_disk(&self, member: u64, by: Duration) -> Result<()> {
        self.tell(member, SYNC_AT, i64::try_from(by.as_millis())?)
    }

    fn tell(&self, member: u64, at: u64, value: i64) -> Result<()> {
        let host = usize::try_from(member)?.checked_sub(1).and_then(|at| self.members.get(at));
        let host = host.with_context(|| format!("there is no host for member {member}"))?;
        host.shared.write_all_at(&value.to_ne_bytes(), at).with_context(|| format!("cannot write {}", host.shared_path.display()))
    }

    /// All of it comes right: network, clocks and disks.
    pub fn heal(&self) -> Result<()> {
        self.join()?;
        for member in (1..).take(self.members.len()) {
            self.shift_clock(member, 0)?;
            self.slow_disk(member, Duration::ZERO)?;
        }
        Ok(())
    }
}

fn rules(what: &str, pairs: &[(Party, Party)]) -> String {
    let mut lines = String::new();
    for (from, to) in pairs {
        let _ = writeln!(lines, "rule {what} priority 100 iif p{} to 10.77.{}.0/24 blackhole", from.number(), to.number());
    }
    lines
}

/// A fresh one, which is gone with the last descriptor and process of it.
fn namespace() -> Result<File> {
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace cannot be made (this needs root)")?;
        File::open("/proc/thread-self/ns/net").context("the new network namespace")
    };
    let made = std::thread::spawn(make).join();
    made.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How other processes open it.
fn path_of(namespace: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd())
}

fn inside(namespace: &File, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", path_of(namespace))).arg(program);
    command
}

fn command(command: &mut Command) -> Result<()> {
    let done = run(command, COMMAND_MAX)?;
    ensure!(done.code() == 0, "{command:?} ended with {}: {}{}", done.code(), done.err().trim(), done.out().trim());
    Ok(())
}
