//! A cluster in which each daemon has its own network (`up --netns`). The traffic between two of them can be cut.
//!
//! ```text
//!   n1       ──10.77.1.0/24────┐
//!   n2       ──10.77.2.0/24────┤ hub ([`crate::hub`])
//!   member-1 ──10.77.101.0/24──┘
//! ```
//!
//! Daemons are restarted, so a process of the lab ([`keep`]) holds the namespaces. It does nothing else, and the
//! namespaces disappear with it. Agents listen on Unix sockets, so the CLI reaches every agent, whatever is cut.

use crate::hub::{self, Hub};
use crate::process::{Identity, spawn_detached, tail, until};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of the first member. Nodes have the numbers from 1.
const FIRST_MEMBER: u8 = 101;
/// Timeout for the creation of the namespaces.
const CREATION_TIMEOUT: Duration = Duration::from_secs(20);

/// The networks of one cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Networks {
    /// The process that holds the namespaces.
    pub keeper: Identity,
    /// The hub's namespace, as a descriptor of the keeper.
    hub: i32,
    /// By name, such as `n1` or `member-1`.
    parties: BTreeMap<String, Party>,
    /// Pairs of sender and receiver whose packets are dropped.
    cuts: BTreeSet<(String, String)>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Party {
    number: u8,
    /// Its namespace, as a descriptor of the keeper.
    descriptor: i32,
}

/// From whom a node is cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// All nodes and members.
    All,
    /// The quorum's members.
    Quorum,
    /// One node, or one member.
    Peer(String),
}

impl std::str::FromStr for From {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "all" => Self::All,
            "quorum" => Self::Quorum,
            peer => Self::Peer(peer.to_owned()),
        })
    }
}

/// Which packets of a node are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    Both,
    /// Packets to it.
    In,
    /// Packets from it.
    Out,
}

/// Holds a namespace for each party and one for the hub, and prints their descriptors on stdout. A signal ends it.
pub fn keep(parties: u8) -> Result<Infallible> {
    let held: Vec<File> = (0..=parties).map(|_| hub::namespace()).collect::<Result<_>>()?;
    println!("{}", serde_json::to_string(&held.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>())?);
    loop {
        std::thread::park();
    }
}

impl Networks {
    /// Creates the networks of this many nodes and members, and connects them to the hub. `lab`: the lab's program;
    /// `dir`: the cluster's directory.
    pub fn make(lab: &Path, dir: &Path, nodes: u32, members: u32) -> Result<Self> {
        let (nodes, members) = (u8::try_from(nodes)?, u8::try_from(members)?);
        let names = (1..=nodes).map(|n| (format!("n{n}"), n));
        let names: Vec<_> = names.chain((1..=members).map(|m| (format!("member-{m}"), FIRST_MEMBER - 1 + m))).collect();
        let log = dir.join("networks.log");
        let keeper = spawn_detached(lab, &["keep-networks".to_owned(), names.len().to_string()], &[], &log)?;
        let mut held: Option<Vec<i32>> = None;
        let made = until(CREATION_TIMEOUT, || {
            held = std::fs::read_to_string(&log).ok().filter(|text| text.ends_with('\n')).and_then(|text| serde_json::from_str(&text).ok());
            held.is_some() || !keeper.alive()
        });
        let Some([hub, descriptors @ ..]) = held.as_deref().filter(|_| made && keeper.alive()) else {
            let _ = keeper.kill();
            bail!("cannot create the networks: {}", tail(&log, 5));
        };
        let parties =
            names.into_iter().zip(descriptors).map(|((name, number), descriptor)| (name, Party { number, descriptor: *descriptor }));
        let networks = Self { keeper, hub: *hub, parties: parties.collect(), cuts: BTreeSet::new() };
        let linked = networks.hub(dir).link(networks.parties.values().map(|party| (party.number, networks.path(party.descriptor))));
        linked.inspect_err(|_| drop(networks.keeper.kill()))?;
        Ok(networks)
    }

    fn path(&self, descriptor: i32) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{descriptor}", self.keeper.pid))
    }

    fn hub(&self, dir: &Path) -> Hub {
        Hub { namespace: self.path(self.hub), dir: dir.to_owned() }
    }

    fn party(&self, name: &str) -> Result<&Party> {
        let known = || self.parties.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        self.parties.get(name).with_context(|| format!("{name:?} has no network here; these have one: {}", known()))
    }

    /// The address on which a daemon listens.
    pub fn address(&self, name: &str) -> Result<String> {
        Ok(hub::address(self.party(name)?.number))
    }

    /// A command line that runs a daemon in its network.
    pub fn launcher(&self, name: &str) -> Result<Vec<String>> {
        Ok(hub::launcher(&self.path(self.party(name)?.descriptor)))
    }

    /// Calls `act` in a namespace from which every daemon can be reached, whatever is cut.
    pub fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> Result<T> {
        hub::within(&self.path(self.hub), act)
    }

    /// Cuts a node off; returns the pairs that were not cut before.
    pub fn cut(&mut self, dir: &Path, node: &str, from: &From, direction: Direction) -> Result<Vec<(String, String)>> {
        self.party(node)?;
        let others: Vec<String> = match from {
            From::All => self.parties.keys().filter(|name| *name != node).cloned().collect(),
            From::Quorum => self.parties.keys().filter(|name| name.starts_with("member-") && *name != node).cloned().collect(),
            From::Peer(peer) if peer == node => bail!("{node} cannot be cut from itself"),
            From::Peer(peer) => {
                self.party(peer)?;
                vec![peer.clone()]
            }
        };
        let mut pairs = BTreeSet::new();
        for other in others {
            if direction != Direction::In {
                pairs.insert((node.to_owned(), other.clone()));
            }
            if direction != Direction::Out {
                pairs.insert((other, node.to_owned()));
            }
        }
        let new: Vec<_> = pairs.difference(&self.cuts).cloned().collect();
        self.hub(dir).cut(self.numbers(&new)?.into_iter())?;
        self.cuts.extend(new.iter().cloned());
        Ok(new)
    }

    /// Ends all cuts of a node; returns the pairs that were cut.
    pub fn heal(&mut self, dir: &Path, node: &str) -> Result<Vec<(String, String)>> {
        self.party(node)?;
        let healed: Vec<_> = self.cuts.iter().filter(|(from, to)| from == node || to == node).cloned().collect();
        self.hub(dir).join(self.numbers(&healed)?.into_iter())?;
        self.cuts.retain(|cut| !healed.contains(cut));
        Ok(healed)
    }

    /// The pairs of sender and receiver whose packets are dropped.
    pub fn cuts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.cuts.iter().map(|(from, to)| (from.as_str(), to.as_str()))
    }

    fn numbers(&self, pairs: &[(String, String)]) -> Result<Vec<(u8, u8)>> {
        pairs.iter().map(|(from, to)| Ok((self.party(from)?.number, self.party(to)?.number))).collect()
    }
}
