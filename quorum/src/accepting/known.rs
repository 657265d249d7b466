//! Known addresses of members and agents: their handshakes have a quota that strangers cannot use
//! up.
//!
//! An address is known if the ledger, the membership or the configuration contains it, or if a peer
//! that may use the port presented its certificate from it within the last day.

use crate::core::Core;
use parking_lot::{Mutex, MutexGuard, RwLock};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pause between two reads of the addresses from the ledger and the membership.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout for resolving a name.
const RESOLVE_MAX: Duration = Duration::from_secs(2);
/// How long an address stays known after a certificate was presented from it.
const LEARNED_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Largest number of addresses remembered because of a certificate; the oldest is dropped first.
const LEARNED_MAX: usize = 16_384;

/// The known addresses of one port.
#[derive(Debug, Default)]
pub(crate) struct KnownAddresses {
    named: RwLock<BTreeSet<IpAddr>>,
    learned: Mutex<BTreeMap<IpAddr, Instant>>,
}

impl KnownAddresses {
    /// Whether a member or an agent is known to use this address.
    pub(super) fn is_known(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        let is_named = self.named.read().contains(&address);
        is_named || self.learned().get(&address).is_some_and(|since| since.elapsed() < LEARNED_AGE_MAX)
    }

    /// A peer that may use the port has presented its certificate from this address.
    pub(super) fn learn(&self, address: IpAddr) {
        let mut learned = self.learned();
        learned.insert(address.to_canonical(), Instant::now());
        if learned.len() > LEARNED_MAX
            && let Some(oldest) = learned.iter().min_by_key(|(_, since)| **since).map(|(address, _)| *address)
        {
            learned.remove(&oldest);
        }
    }

    fn learned(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Instant>> {
        self.learned.lock()
    }

    fn set_named(&self, addresses: BTreeSet<IpAddr>) {
        *self.named.write() = addresses;
    }
}

/// Updates the addresses periodically until the member stops.
pub(crate) async fn refresh(core: Arc<Core>, agents: Arc<KnownAddresses>, members: Arc<KnownAddresses>) {
    loop {
        let of_members = members_at(&core).await;
        let mut of_agents = of_members.clone();
        let nodes: Vec<_> = core.agreed.ledger().nodes().cloned().collect();
        let addresses = nodes.iter().flat_map(|node| [&node.addresses.mesh, &node.addresses.gossip]);
        of_agents.extend(addresses.filter_map(|address| address.parse::<SocketAddr>().ok()).map(|address| address.ip().to_canonical()));
        members.set_named(of_members);
        agents.set_named(of_agents);
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}

async fn members_at(core: &Core) -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    let named = core.config.members.iter().map(|member| member.raft.clone());
    let in_force = core.roster().members.into_values().map(|peer| peer.raft);
    let all: BTreeSet<String> = named.chain(in_force).collect();
    for address in all {
        match tokio::time::timeout(RESOLVE_MAX, tokio::net::lookup_host(&address)).await {
            Ok(Ok(resolved)) => found.extend(resolved.map(|address| address.ip().to_canonical())),
            Ok(Err(error)) => tracing::debug!(address, %error, "a member's address cannot be resolved"),
            Err(_) => tracing::debug!(address, "a member's address is not resolved in time"),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_by_its_name_or_by_a_certificate() {
        let known = KnownAddresses::default();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(!known.is_known(ip("10.0.0.1")));
        known.set_named([ip("10.0.0.1")].into());
        known.learn(ip("::ffff:10.0.0.2"));
        assert!(known.is_known(ip("::ffff:10.0.0.1")) && known.is_known(ip("10.0.0.2")) && !known.is_known(ip("10.0.0.3")));
        for number in 0..u32::try_from(LEARNED_MAX).unwrap() {
            known.learn(std::net::Ipv4Addr::from_bits(number).into());
        }
        assert!(
            !known.is_known(ip("10.0.0.2")) && known.is_known(ip("10.0.0.1")),
            "the oldest are forgotten, those that are named are not"
        );
    }
}
