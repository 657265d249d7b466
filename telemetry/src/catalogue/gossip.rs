//! Gossip, as this agent sees it.

use super::family::families;

const CORE: &str = "gossip's core";
const VIEW: &str = "gossip's view";

families! {
    MEMBERS = Gauge "lattice_gossip_members", Count, ["state"], Agent, VIEW,
        "Nodes that gossip lists, by how this agent sees them: alive, suspect, down.";
    DATAGRAMS_IN = Counter "lattice_gossip_datagrams_received_total", Count, [], Agent, CORE,
        "Datagrams received, refused ones included.";
    BYTES_IN = Counter "lattice_gossip_received_bytes_total", Bytes, [], Agent, CORE,
        "Bytes of the datagrams received, refused ones included.";
    DATAGRAMS_OUT = Counter "lattice_gossip_datagrams_sent_total", Count, [], Agent, CORE,
        "Datagrams sent.";
    BYTES_OUT = Counter "lattice_gossip_sent_bytes_total", Bytes, [], Agent, CORE,
        "Bytes of the datagrams sent.";
    REFUSED = Counter "lattice_gossip_datagrams_refused_total", Count, ["reason"], Agent, CORE,
        "Datagrams received and refused, each counted once, by reason.";
    SUSPICIONS = Counter "lattice_gossip_suspicions_total", Count, [], Agent, CORE,
        "Probes by this node that went unanswered and made it suspect the probed node.";
    REFUTATIONS = Counter "lattice_gossip_refutations_total", Count, [], Agent, CORE,
        "Times that this node refuted a suspicion of itself.";
    REJOINS = Counter "lattice_gossip_rejoins_total", Count, [], Agent, CORE,
        "Times that others had declared this node down and it came back under a new identity.";
    PROBES_LATE = Counter "lattice_gossip_probes_late_total", Count, [], Agent, CORE,
        "Probe rounds that were cut short because timers came late: this node is overloaded.";
    TIMERS_LATE = Counter "lattice_gossip_timers_late_total", Count, [], Agent, CORE,
        "Probe timers that came so late that this node must have been suspended.";
    SENDERS_EVICTED = Counter "lattice_gossip_senders_evicted_total", Count, [], Agent, CORE,
        "Senders whose replay windows were dropped because there were too many.";
    CONTRADICTIONS = Counter "lattice_gossip_contradictions_total", Count, [], Agent, CORE,
        "Times that others had a life or a state of this node that it never published: somebody uses its name or the gossip key.";
    CLAIMS_REFUSED = Counter "lattice_gossip_claims_refused_total", Count, [], Agent, CORE,
        "Lives of nodes that others reported and that were refused because they are ahead of this machine's clock.";
    HEALTH = Gauge "lattice_gossip_local_health", Count, [], Agent, CORE,
        "How slow this node believes itself to be (Lifeguard): 0 is not at all.";
}
