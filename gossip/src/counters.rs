//! The core's counters, for metrics and `doctor`.

/// Counters since the core was made; none is ever reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams received, refused ones included.
    pub datagrams_in: u64,
    /// Bytes received, refused datagrams included.
    pub bytes_in: u64,
    /// Datagrams sent.
    pub datagrams_out: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Datagrams received and refused, by reason.
    pub refused: Refusals,
    /// Times we were declared Down by others and came back under a new identity.
    pub rejoins: u64,
    /// Probe rounds that were cut short because the caller's timers came late or out of order: this
    /// node is overloaded.
    pub probes_late: u64,
    /// Probes by this node that went unanswered and made it suspect the probed node.
    pub suspicions: u64,
    /// Times that this node refuted a suspicion of itself.
    pub refutations: u64,
    /// Probe timers that came so late that this node must have been suspended.
    pub timers_late: u64,
    /// Times that others had a later life or fact of this node than any that it published.
    pub contradictions: u64,
    /// Lives that other nodes reported and that were refused because they are ahead of this
    /// machine's clock.
    pub claims_refused: u64,
    /// Senders whose replay windows were dropped because there were more than
    /// [`Config::nodes_max`](crate::Config::nodes_max).
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
    /// Sealed with a key that is not in the ring: it was removed, or this node does not have it
    /// yet.
    pub unknown_key: u64,
    /// Sealed with a secret that does not belong to its key id, or altered on the way.
    pub not_sealed: u64,
    /// Received before, or too old to tell.
    pub replayed: u64,
    /// From an earlier life of a node than the known one. The node is sent the later life in
    /// answer.
    pub stale_life: u64,
    /// In the name of a life that is ahead of this machine's clock: one of the two clocks is wrong,
    /// or the datagram is forged.
    pub life_ahead: u64,
    /// Opened, but its contents name another node or life as sender than its seal.
    pub other_sender: u64,
    /// Our own, come back to us; or another node uses our name.
    pub from_ourselves: u64,
    /// Opened, but its contents cannot be decoded: the sender is of another version, or broken.
    pub undecodable: u64,
}

impl Refusals {
    /// The sum of all fields.
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
            life_ahead,
            other_sender,
            from_ourselves,
            undecodable,
        } = *self;
        let of_seals = foreign_cluster + unknown_key + not_sealed + replayed + stale_life + life_ahead + other_sender + from_ourselves;
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
            Refusal::LifeAhead => self.life_ahead += 1,
            Refusal::OtherSender => self.other_sender += 1,
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
    LifeAhead,
    OtherSender,
    FromOurselves,
    Undecodable,
}
