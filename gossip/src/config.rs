//! Gossip's timing and limits.

use foca::PeriodicParams;
use serde::Deserialize;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;
use thiserror::Error;

/// The largest datagram that is ever sent, seal included: it fits an Ethernet frame through the
/// usual tunnels.
pub const PACKET_BYTES_MAX: usize = 1400;
/// How far the life of a node (its machine's clock in milliseconds at its start) may be ahead of
/// another machine's clock: one day, which is also how far certificates let two clocks differ.
pub const LIFE_AHEAD_MS_MAX: u64 = 24 * 3_600_000;
/// The smallest [`Config::packet_bytes_max`]: the longest message and one of the longest records
/// fit into it.
pub const PACKET_BYTES_MIN: usize = 640;

/// Gossip's configuration. The default suits the network of one machine room; [`Config::lab`] is
/// quicker, for many nodes on one machine. All nodes of a cluster should have the same.
///
/// A dead node is declared Down after about `probe_period_ms` (until some node probes it) +
/// `probe_period_ms` (until that probe has failed) + `suspect_after_ms` (when other nodes' probes
/// fail too) + `gossip_period_ms` × log4(nodes).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The interval in milliseconds at which each node probes one other node, in a cluster of up to
    /// ten. Larger clusters probe more often: twice as often from a thousand nodes on, but never
    /// before two `probe_rtt_ms` are over. 100 to 10,000; more than twice `probe_rtt_ms`.
    pub probe_period_ms: u64,
    /// How long, in milliseconds, a node waits for a direct answer before it asks others to probe.
    /// A high quantile of the round trip, scheduling delays included; 10 to 5,000.
    pub probe_rtt_ms: u64,
    /// How many others are asked to probe a silent node. If one datagram in twenty is lost, five
    /// make a probe of a living node fail once in 50,000 times, three once in 1,600. 1 to 8.
    pub indirect_probes: usize,
    /// To how many nodes at a time a change is gossiped; one more from 10,000 nodes on. 1 to 8; 3
    /// is plenty.
    pub gossip_fan_out: usize,
    /// How long, in milliseconds, a suspect has to refute before it is declared Down, if two
    /// further nodes have found it silent (in a cluster of three, the other one). With no further
    /// node, it has 2 × max(1, log10(nodes)) times as long: twice at ten nodes, eight times at
    /// 10,000. At least `probe_period_ms`.
    pub suspect_after_ms: u64,
    /// The interval in milliseconds at which pending changes are gossiped. 20 to 5,000; below
    /// `probe_period_ms` / 2.
    pub gossip_period_ms: u64,
    /// Each node sends a change this many times × log10(nodes + 1), rounded up. While hundreds of
    /// changes are pending, as when thousands of nodes join at once, it sends each only this many
    /// times. 1 to 10.
    pub retransmit_factor: u32,
    /// The interval in milliseconds at which each node compares its view with one random other
    /// node. 500 to 600,000.
    pub sync_period_ms: u64,
    /// The interval in milliseconds at which two Down nodes and one silent join address are tried
    /// again. It determines how fast a healed partition is noticed. 500 to 600,000.
    pub reconnect_period_ms: u64,
    /// For how many milliseconds a Down node stays listed. At least 60,000, and longer than any
    /// partition that should heal unaided.
    pub forget_down_after_ms: u64,
    /// The largest datagram, in bytes, seal included; the same on all nodes. 640 to 1400.
    pub packet_bytes_max: usize,
    /// For how many nodes facts and replay windows are stored (about 250 bytes each). 16 to
    /// 1,000,000; more than the cluster has.
    pub nodes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            probe_period_ms: 1_000,
            probe_rtt_ms: 300,
            indirect_probes: 5,
            gossip_fan_out: 3,
            suspect_after_ms: 4_000,
            gossip_period_ms: 200,
            retransmit_factor: 4,
            sync_period_ms: 5_000,
            reconnect_period_ms: 15_000,
            forget_down_after_ms: 24 * 3_600_000,
            packet_bytes_max: PACKET_BYTES_MAX,
            nodes_max: 65_536,
        }
    }
}

/// A configuration that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A value is outside of its range.
    #[error("{field} is {value}: it must be between {min} and {max}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The smallest value that is accepted.
        min: u64,
        /// The largest value that is accepted.
        max: u64,
    },
}

impl Config {
    /// For many nodes on one machine: a dead node of three is noticed within 2 to 3 seconds.
    pub fn lab() -> Self {
        Self {
            probe_period_ms: 400,
            probe_rtt_ms: 150,
            suspect_after_ms: 1_200,
            gossip_period_ms: 100,
            sync_period_ms: 2_000,
            reconnect_period_ms: 2_000,
            ..Self::default()
        }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let within = |field, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) { Ok(()) } else { Err(ConfigError::OutOfRange { field, value, min, max }) }
        };
        within("probe_period_ms", self.probe_period_ms, 100, 10_000)?;
        within("probe_rtt_ms", self.probe_rtt_ms, 10, (self.probe_period_ms / 2 - 1).min(5_000))?;
        within("indirect_probes", self.indirect_probes as u64, 1, 8)?;
        within("gossip_fan_out", self.gossip_fan_out as u64, 1, 8)?;
        within("suspect_after_ms", self.suspect_after_ms, self.probe_period_ms, 600_000)?;
        within("gossip_period_ms", self.gossip_period_ms, 20, (self.probe_period_ms / 2).min(5_000))?;
        within("retransmit_factor", u64::from(self.retransmit_factor), 1, 10)?;
        within("sync_period_ms", self.sync_period_ms, 500, 600_000)?;
        within("reconnect_period_ms", self.reconnect_period_ms, 500, 600_000)?;
        within("forget_down_after_ms", self.forget_down_after_ms, 60_000, 366 * 24 * 3_600_000)?;
        within("packet_bytes_max", self.packet_bytes_max as u64, PACKET_BYTES_MIN as u64, PACKET_BYTES_MAX as u64)?;
        within("nodes_max", self.nodes_max as u64, 16, 1_000_000)
    }

    /// The shortest and the longest time that a suspect has to refute in a cluster of `nodes`, in
    /// milliseconds.
    pub(crate) fn patience_ms(&self, nodes: usize) -> (u64, u64) {
        (self.suspect_after_ms, self.suspect_after_ms * 2 * log10_milli(nodes).max(1_000) / 1_000)
    }

    /// The interval between two probes in a cluster of `nodes`, in milliseconds. Which node is
    /// probed is random, so in a large cluster the time until a death is noticed is the longest
    /// time for which chance leaves a node unprobed.
    pub(crate) fn probe_every_ms(&self, nodes: usize) -> u64 {
        let halves = (log10_milli(nodes).max(1_000) + 1_000).min(4_000);
        (self.probe_period_ms * 2_000 / halves).max(2 * self.probe_rtt_ms + 1)
    }

    /// foca's configuration for a cluster of `nodes`, with datagrams of at most `body_bytes_max`
    /// before they are sealed.
    pub(crate) fn foca(&self, nodes: usize, body_bytes_max: usize, many_changes: bool) -> foca::Config {
        let by_size = if many_changes { 1 } else { log10_milli(nodes + 1).div_ceil(1_000).max(1) };
        let transmissions = u64::from(self.retransmit_factor) * by_size;
        let at_least_one = |n: usize| NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN);
        foca::Config {
            probe_period: Duration::from_millis(self.probe_period_ms),
            probe_rtt: Duration::from_millis(self.probe_rtt_ms),
            num_indirect_probes: at_least_one(self.indirect_probes),
            max_transmissions: u8::try_from(transmissions).ok().and_then(NonZeroU8::new).unwrap_or(NonZeroU8::MAX),
            // foca never arms this timer with this length: see `suspicion.rs`.
            suspect_to_down_after: Duration::from_millis(self.patience_ms(nodes).1),
            // The core removes Down nodes itself: foca would keep one timer for every time that a
            // node flaps.
            remove_down_after: None,
            max_packet_size: at_least_one(body_bytes_max),
            notify_down_members: true,
            // Comparing views (sync.rs) finds members better than random feeds.
            periodic_announce: None,
            periodic_announce_to_down_members: Some(PeriodicParams {
                frequency: Duration::from_millis(self.reconnect_period_ms),
                num_members: at_least_one(2),
            }),
            periodic_gossip: Some(PeriodicParams {
                frequency: Duration::from_millis(self.gossip_period_ms),
                num_members: at_least_one(self.gossip_fan_out.max(log10_milli(nodes) as usize / 1_000)),
            }),
        }
    }
}

/// log10(n) in thousandths, 0 for 0 and 1. The float is rounded away so that machines agree.
fn log10_milli(n: usize) -> u64 {
    ((n.max(1) as f64).log10() * 1_000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_are_valid_and_bounds_are_named() {
        Config::default().validate().unwrap();
        Config::lab().validate().unwrap();
        let error = Config { packet_bytes_max: 9_000, ..Config::default() }.validate().unwrap_err();
        assert_eq!(error.to_string(), "packet_bytes_max is 9000: it must be between 640 and 1400");
        assert!(Config { probe_rtt_ms: 600, ..Config::default() }.validate().is_err());
        assert!(Config { suspect_after_ms: 0, ..Config::default() }.validate().is_err());
    }

    #[test]
    fn suspicion_and_retransmissions_grow_with_the_cluster() {
        let config = Config::default();
        let at = |nodes| {
            let foca = config.foca(nodes, 1_000, false);
            let fan_out = foca.periodic_gossip.map(|gossip| gossip.num_members.get());
            (config.probe_every_ms(nodes), config.patience_ms(nodes), foca.max_transmissions.get(), fan_out)
        };
        assert_eq!(at(3), (1_000, (4_000, 8_000), 4, Some(3)));
        assert_eq!(at(10), (1_000, (4_000, 8_000), 8, Some(3)));
        assert_eq!(at(100), (666, (4_000, 16_000), 12, Some(3)));
        assert_eq!(at(10_000), (601, (4_000, 32_000), 16, Some(4)));
        assert_eq!(config.foca(10_000, 1_000, true).max_transmissions.get(), 4);
    }
}
