//! A cache of decoded names, lives and facts: those that are received again are shared, not copied.
//!
//! Thousands of datagrams name each node. Each life and each fact is stored here once, and a known
//! life needs neither parsing nor a digest.

use crate::fact::KnownFact;
use crate::malformed::Malformed;
use crate::peer::{Life, Peer, node_key};
use crate::table::Table;
use lattice_model::NodeId;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// For how many names the latest life and fact are stored. Beyond that all are dropped and decoded
/// again when needed: the cache affects nothing else.
const NAMES_MAX: usize = 131_072;

/// A cloneable handle on the cache. Every core has its own, unless several cores of one process are
/// given the same, as in a simulation.
#[derive(Clone, Debug, Default)]
pub struct Known(Arc<Mutex<Table<Box<str>, Named>>>);

/// The last life and fact that were decoded for one name.
#[derive(Debug)]
struct Named {
    key: u64,
    peer: Option<Peer>,
    fact: Option<Arc<KnownFact>>,
}

impl Known {
    /// The peer with this name and life.
    pub(crate) fn peer(&self, name: &str, addr: SocketAddr, mesh: SocketAddr, incarnation: u64, renewal: u32) -> Result<Peer, Malformed> {
        let mut names = self.names();
        let key = match names.get_mut(name) {
            Some(Named { peer: Some(known), .. })
                if (known.incarnation, known.renewal, known.addr, known.mesh) == (incarnation, renewal, addr, mesh) =>
            {
                return Ok(known.clone());
            }
            Some(named) => named.key,
            None => node_key(name),
        };
        let peer = Peer::of_life(key, Life { renewal, incarnation, addr, mesh, node: node_of(name)? });
        let named = entry(&mut names, name, key);
        // Updates of an earlier life still arrive for a while after the later one; they do not
        // replace it.
        if named.peer.as_ref().is_none_or(|known| peer.outranks(known)) {
            named.peer = Some(peer.clone());
        }
        Ok(peer)
    }

    /// The fact of an item: the cached one if this same item was decoded last, or else what `read`
    /// gives.
    pub(crate) fn fact(
        &self,
        name: &str,
        item: &[u8],
        read: impl FnOnce(u64, NodeId) -> Result<KnownFact, Malformed>,
    ) -> Result<Arc<KnownFact>, Malformed> {
        let mut names = self.names();
        let key = match names.get(name) {
            Some(Named { fact: Some(known), .. }) if *known.item == *item => return Ok(Arc::clone(known)),
            Some(named) => named.key,
            None => node_key(name),
        };
        let fact = Arc::new(read(key, node_of(name)?)?);
        let named = entry(&mut names, name, key);
        if named.fact.as_ref().is_none_or(|known| fact.version > known.version) {
            named.fact = Some(Arc::clone(&fact));
        }
        Ok(fact)
    }

    fn names(&self) -> MutexGuard<'_, Table<Box<str>, Named>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry<'a>(names: &'a mut Table<Box<str>, Named>, name: &str, key: u64) -> &'a mut Named {
    if names.len() >= NAMES_MAX && names.get(name).is_none() {
        names.clear();
    }
    names.or_insert(name.into(), Named { key, peer: None, fact: None })
}

fn node_of(name: &str) -> Result<NodeId, Malformed> {
    name.parse().map_err(|_| Malformed("an invalid node name"))
}
