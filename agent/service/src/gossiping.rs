//! Gossip as this agent sees it: the members, the suspects and how many nodes suspect them, and
//! changes.

use super::Api;
use super::api::Streamed;
use lattice_agent_common::clock::now;
use lattice_api::v1;
use lattice_gossip::{Counters, Fact, Liveness, Member, News};
use lattice_membership::{Change, Counted};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// How many changes are queued for a reader, besides those that the membership queues.
const ITEMS_QUEUE_LEN: usize = 4;

impl Api {
    pub(super) fn gossip_view(&self) -> v1::GossipMembersResponse {
        let members = self.membership.members();
        let shown = members.iter().map(|member| self.gossip_member(member)).collect();
        v1::GossipMembersResponse { members: shown, counters: counters(&self.membership.counted()) }
    }

    pub(super) fn gossip_member(&self, m: &Member) -> v1::GossipMember {
        v1::GossipMember {
            node: m.node.to_string(),
            address: m.addr.to_string(),
            incarnation: m.incarnation,
            liveness: liveness(m.liveness).to_owned(),
            state: m.fact.as_ref().map_or(String::new(), |f| f.state.to_string()),
            held: m.fact.as_ref().is_some_and(|f| f.held),
            for_ms: self.membership.for_ms(m),
            suspected_by: u32::try_from(m.accusers).unwrap_or(u32::MAX),
            contradicted_for_ms: m.contradicted_since_ms.map(|since_ms| self.membership.ago_ms(since_ms)),
        }
    }

    /// All changes from now on, for one user's watch.
    pub(super) fn gossip_changes(&self, uid: u32) -> Result<Streamed<v1::GossipChange>, Status> {
        let place = self.watching(uid)?;
        let mut changes = self.membership.follow();
        let me = self.context.setup.me.to_string();
        let (out, events) = mpsc::channel(ITEMS_QUEUE_LEN);
        self.context.work.tasks.spawn(async move {
            loop {
                let change = tokio::select! {
                    () = out.closed() => break,
                    change = changes.recv() => change,
                };
                let (node, what, detail) = match &change {
                    Ok(change) => describe(change, &me),
                    Err(RecvError::Lagged(count)) => (
                        String::new(),
                        "missed",
                        format!("{count} changes: the reader was slow; `lattice gossip members` shows the present state"),
                    ),
                    Err(RecvError::Closed) => break,
                };
                let event = v1::GossipChange { at_ms: now().0, node, event: what.to_owned(), detail };
                if out.send(Ok(event)).await.is_err() {
                    break;
                }
            }
            drop(place);
        });
        Ok(Box::pin(ReceiverStream::new(events)))
    }
}

/// The node of a change, its name, and details.
fn describe(change: &Change, me: &str) -> (String, &'static str, String) {
    let member = change.member.as_ref();
    let address = || member.map(|m| m.addr.to_string()).unwrap_or_default();
    let (what, detail) = match &change.news {
        News::Alive { was: None, .. } => ("joined", address()),
        News::Alive { was: Some(Liveness::Alive | Liveness::Suspect), .. } => ("refuted", String::new()),
        News::Alive { was: Some(Liveness::Down), .. } => ("back", address()),
        News::Suspect(_) => ("suspected", "silent; it may still refute".to_owned()),
        News::Confirmed(_) => ("confirmed", format!("found silent by {}", member.map_or(0, |m| m.accusers))),
        News::Down(_) => ("down", "left, or did not refute".to_owned()),
        News::Restarted(_) => ("restarted", member.map(|m| format!("life {}", m.incarnation)).unwrap_or_default()),
        News::Contradicted(_) => {
            ("contradicted", "other nodes received an incarnation or a state of it that it never published".to_owned())
        }
        News::Fact(_) => ("state", member.and_then(|m| m.fact).map(stands).unwrap_or_default()),
        News::Forgotten(_) => ("forgotten", "down for long".to_owned()),
        News::Rejoined => ("rejoined", "the others had considered this node dead".to_owned()),
    };
    (change.news.node().map_or_else(|| me.to_owned(), ToString::to_string), what, detail)
}

fn stands(fact: Fact) -> String {
    if fact.held { format!("{}, held", fact.state) } else { fact.state.to_string() }
}

fn counters(counted: &Counted) -> Vec<v1::GossipCounter> {
    let Counted { counters, health } = counted;
    let Counters {
        datagrams_in,
        bytes_in,
        datagrams_out,
        bytes_out,
        refused,
        rejoins,
        probes_late,
        suspicions,
        refutations,
        timers_late,
        senders_evicted,
        contradictions,
        claims_refused,
    } = counters;
    let lattice_gossip::Refusals {
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
    } = refused;
    [
        ("local_health", u64::from(*health)),
        ("datagrams_in", *datagrams_in),
        ("bytes_in", *bytes_in),
        ("datagrams_out", *datagrams_out),
        ("bytes_out", *bytes_out),
        ("suspicions", *suspicions),
        ("refutations", *refutations),
        ("rejoins", *rejoins),
        ("probes_late", *probes_late),
        ("timers_late", *timers_late),
        ("senders_evicted", *senders_evicted),
        ("contradictions", *contradictions),
        ("claims_refused", *claims_refused),
        ("refused_truncated", *truncated),
        ("refused_too_long", *too_long),
        ("refused_version", *version),
        ("refused_foreign_cluster", *foreign_cluster),
        ("refused_unknown_key", *unknown_key),
        ("refused_not_sealed", *not_sealed),
        ("refused_replayed", *replayed),
        ("refused_stale_life", *stale_life),
        ("refused_life_ahead", *life_ahead),
        ("refused_other_sender", *other_sender),
        ("refused_from_ourselves", *from_ourselves),
        ("refused_undecodable", *undecodable),
    ]
    .into_iter()
    .map(|(name, value)| v1::GossipCounter { name: name.to_owned(), value })
    .collect()
}

pub(super) fn liveness(liveness: Liveness) -> &'static str {
    match liveness {
        Liveness::Alive => "alive",
        Liveness::Suspect => "suspect",
        Liveness::Down => "down",
    }
}
