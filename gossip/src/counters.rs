//! What the core counts, for metrics and `doctor`.

/// Counted since the core was made. Nothing here is reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams received, refused ones included.
    pub datagrams_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Datagrams given out to be sent.
    pub datagrams_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Datagrams received and refused, by reason.
    pub refused: Refusals,
    /// Times we were declared Down by others and came back under a new identity.
    pub rejoins: u64,
    /// Probe rounds that were cut short because the caller's timers came late or out of order: this node is overloaded.
    pub probes_late: u64,
    /// Probes of this node's own that nobody answered, and that made it suspect.
    pub suspicions: u64,
    /// Times we had to refute that others suspected us.
    pub refutations: u64,
    /// Timers of probes that came so late that this node must have stood still.
    pub timers_late: u64,
    /// Senders whose replay window was dropped because there were more than [`Config::nodes_max`](crate::Config::nodes_max).
    pub senders_evicted: u64,
}

/// Why datagrams were refused. Each refused datagram is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusals {
    /// Shorter than a header and a tag.
    pub truncated: u64,
    /// Longer than a datagram may be.
    pub too_long: u64,
    /// Of a version that we do not speak.
    pub version: u64,
    /// Of another cluster.
    pub foreign_cluster: u64,
    /// Sealed with a key that is not in the ring: one that was taken out of it, or one that we do not have yet.
    pub unknown_key: u64,
    /// Sealed with another secret than its key's, or altered on the way.
    pub not_sealed: u64,
    /// Seen before, or too old to tell.
    pub replayed: u64,
    /// From an earlier life of a node that has restarted since, or from a node that came back with an incarnation that did not rise.
    pub stale_life: u64,
    /// Our own, come back to us; or another node uses our name.
    pub from_ourselves: u64,
    /// Opened, but the contents make no sense: a peer of another version, or a broken one.
    pub undecodable: u64,
}

impl Refusals {
    /// All together.
    pub fn total(&self) -> u64 {
        let Self {
            truncated,
            too_long,
            version,
            foreign_cluster,
            unknown_key,
            not_sealed,
            replayed,
            stale_life,
            from_ourselves,
            undecodable,
        } = *self;
        let of_seals = foreign_cluster + unknown_key + not_sealed + replayed + stale_life + from_ourselves;
        truncated + too_long + version + of_seals + undecodable
    }

    pub(crate) fn count(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Truncated => self.truncated += 1,
            Refusal::TooLong => self.too_long += 1,
            Refusal::Version => self.version += 1,
            Refusal::ForeignCluster => self.foreign_cluster += 1,
            Refusal::UnknownKey => self.unknown_key += 1,
            Refusal::NotSealed => self.not_sealed += 1,
            Refusal::Replayed => self.replayed += 1,
            Refusal::StaleLife => self.stale_life += 1,
            Refusal::FromOurselves => self.from_ourselves += 1,
            Refusal::Undecodable => self.undecodable += 1,
        }
    }
}

/// Why one datagram was refused: the fields of [`Refusals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Truncated,
    TooLong,
    Version,
    ForeignCluster,
    UnknownKey,
    NotSealed,
    Replayed,
    StaleLife,
    FromOurselves,
    Undecodable,
}
