//! Network namespaces that are connected to a hub, which routes between them and drops cut traffic (by routing rules:
//! no packet filter is needed). They have no names, and nothing connects them to the machine's own network: a namespace
//! disappears with its last process and descriptor, whatever happens.

use crate::process::run;
use anyhow::{Context, Result, ensure};
use nix::sched::{CloneFlags, setns, unshare};
use std::fmt::Write as _;
use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Timeout of one of these commands.
const COMMAND_MAX: Duration = Duration::from_secs(20);

/// The address at which a party's programs listen. Parties are numbered from 0 to 254.
pub fn address(number: u8) -> String {
    format!("10.77.{number}.2")
}

/// The address at which other programs reach this one: that of its network at a hub, else loopback.
pub fn own_address() -> String {
    // No packet is sent: the kernel reports the source address that it would use.
    let seen = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect((address(0), 9))?;
        Ok(socket.local_addr()?.ip().to_string())
    });
    seen.ok().filter(|seen| seen.starts_with("10.77.")).unwrap_or_else(|| "127.0.0.1".to_owned())
}

/// Makes a new namespace.
pub fn namespace() -> Result<File> {
    let make = || {
        unshare(CloneFlags::CLONE_NEWNET).context("a network namespace cannot be made (this needs root)")?;
        File::open("/proc/thread-self/ns/net").context("the new network namespace")
    };
    std::thread::spawn(make).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The path by which other processes open a namespace that this one holds.
pub fn path_of(namespace: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), namespace.as_raw_fd()))
}

/// A command line that runs a program in that namespace: append the program and its arguments.
pub fn launcher(namespace: &Path) -> Vec<String> {
    vec!["nsenter".to_owned(), format!("--net={}", namespace.display())]
}

/// Calls `act` in a thread inside that namespace.
pub fn within<T: Send>(namespace: &Path, act: impl FnOnce() -> T + Send) -> Result<T> {
    let there = File::open(namespace).with_context(|| format!("cannot open {}", namespace.display()))?;
    let inside = || {
        setns(&there, CloneFlags::CLONE_NEWNET).context("cannot enter a network namespace (this needs root)")?;
        Ok(act())
    };
    std::thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The namespace of the hub.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Its namespace.
    pub namespace: PathBuf,
    /// A directory for input files of programs.
    pub dir: PathBuf,
}

impl Hub {
    /// Connects each party, by its number, to the hub.
    pub fn link(&self, parties: impl Iterator<Item = (u8, PathBuf)>) -> Result<()> {
        // Cuts are one-directional: the route of an answer must not count against a packet.
        let settings = "cd /proc/sys/net/ipv4; echo 1 > ip_forward; for check in conf/*/rp_filter; do echo 0 > $check; done";
        let mut in_hub = String::from("link set lo up\n");
        for (number, namespace) in parties {
            let address = address(number);
            let _ = writeln!(in_hub, "link add p{number} type veth peer name net0 netns {}", namespace.display());
            let _ = writeln!(in_hub, "address add 10.77.{number}.1/24 dev p{number}\nlink set p{number} up");
            let inside =
                format!("link set lo up\naddress add {address}/24 dev net0\nlink set net0 up\nroute add default via 10.77.{number}.1\n");
            self.ip(&self.namespace, &std::mem::take(&mut in_hub))?;
            self.ip(&namespace, &inside)?;
        }
        command(inside(&self.namespace, "sh").args(["-ec", settings]))
    }

    /// From now on packets from the first to the second of each pair are dropped; none of the pairs may be cut already.
    pub fn cut(&self, pairs: impl Iterator<Item = (u8, u8)>) -> Result<()> {
        self.ip(&self.namespace, &rules("add", pairs))
    }

    /// Ends these cuts; each of the pairs must be cut.
    pub fn join(&self, pairs: impl Iterator<Item = (u8, u8)>) -> Result<()> {
        self.ip(&self.namespace, &rules("del", pairs))
    }

    /// Passes these lines to `ip` in that namespace.
    fn ip(&self, namespace: &Path, lines: &str) -> Result<()> {
        let path = self.dir.join("batch");
        std::fs::write(&path, lines).with_context(|| format!("cannot write {}", path.display()))?;
        command(inside(namespace, "ip").arg("-batch").arg(path))
    }
}

fn rules(what: &str, pairs: impl Iterator<Item = (u8, u8)>) -> String {
    let mut lines = String::new();
    for (from, to) in pairs {
        let _ = writeln!(lines, "rule {what} priority 100 iif p{from} to 10.77.{to}.0/24 blackhole");
    }
    lines
}

fn inside(namespace: &Path, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace.display())).arg(program);
    command
}

/// Runs a command that must succeed.
pub fn command(command: &mut Command) -> Result<()> {
    let done = run(command, COMMAND_MAX)?;
    ensure!(done.code() == 0, "{command:?} ended with {}: {}{}", done.code(), done.err().trim(), done.out().trim());
    Ok(())
}
