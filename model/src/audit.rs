//! What happened, for ever. Each record carries the hash of the one before it; see the quorum's `ledger`.

use crate::ids::{AllocationId, NodeId, Revision};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Its place in the chain, from 1 without a gap.
    pub seq: u64,
    /// The ledger's revision that made it.
    pub revision: Revision,
    /// When, by the command's own time.
    pub at: Timestamp,
    /// Who: a user's name, `node:<id>`, `member:<id>`, or `quorum`.
    pub actor: String,
    /// What.
    pub action: AuditAction,
    /// The allocation it is about.
    pub allocation: Option<AllocationId>,
    /// Whose that allocation is. Left out of the text where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The node it is about.
    pub node: Option<NodeId>,
    /// What a reader should know besides, for people. JSON in records about signatures; see `docs/audit.md`.
    pub detail: String,
    /// SHA-256 of the record before it (64 zeros for the first), 64 hexadecimal digits.
    pub previous: String,
    /// SHA-256 over all fields above in their serialised order, 64 hexadecimal digits.
    pub hash: String,
}

/// Declares the actions with the list of all of them, so that none is missing from it.
macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The kinds of audited action.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum AuditAction {
            $($(#[$doc])* $name),*
        }

        impl AuditAction {
            /// Every action.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// As it is written in a record.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name)),*
                }
            }
        }
    };
}

actions! {
    ClusterBootstrapped,
    NodeRegistered,
    NodeStateChanged,
    AllocationSubmitted,
    AllocationClaimed,
    AllocationRunning,
    AllocationEnded,
    AllocationRequeued,
    /// Its walltime is another one from now on.
    WalltimeChanged,
    CancelRequested,
    PrologueFailed,
    ShareReleased,
    LeaseGranted,
    LeaseReleased,
    MembersChanged,
    LeaseRevoked,
    HoldSet,
    HoldLifted,
    ClusterLevelRaised,
    TenantSet,
    TenantDeleted,
    /// The quorum goes on from a backup.
    QuorumRecovered,
    /// A node said, after that, that it runs this.
    AllocationAdopted,
    /// A terminal is about to be attached.
    AttachStarted,
    /// An attached terminal was closed.
    AttachEnded,
    /// Somebody else's output is about to be read.
    LogsRead,
    /// A launch is about to begin in somebody else's allocation.
    LaunchStarted,
    /// Somebody else's launch is about to be brought down.
    LaunchAborted,
    /// The audit log is about to be exported.
    AuditExported,
    /// A member signs with this key from now on.
    SigningKeySet,
    /// A member signed the chain up to an earlier record.
    HeadSigned,
    /// A rotation of the gossip keys began: the agents are given another one.
    GossipKeyAdded,
    /// All agents that can be heard have it: it seals from now on.
    GossipKeySeals,
    /// All of them seal with it: the one before it is forgotten.
    GossipKeyRetired,
    /// Certificates of a name count no more: those that were issued before.
    CertificatesRevoked,
    VClusterSet,
    VClusterDeleted,
    SessionCreated,
    /// By its user, or with its allocation.
    SessionDeleted,
    /// The pool of VNIs, or how long network domains keep theirs, is another one now.
    VniPoolSet,
    /// A network domain was given a VNI.
    NetworkDomainCreated,
    /// Its VNI is free again.
    NetworkDomainReleased,
    /// A limit of the whole cluster is another one now.
    LimitsSet,
    /// Run leases of claims from now on are this long.
    RunLeaseSet,
    /// An operator, or the site's fencing hook, vouches that a silent node runs nothing any more.
    NodeConfirmedDead,
    /// A node's software or firmware is another one than it told before.
    ConformanceChanged,
    /// An operator says that what a node is now is what is expected of it.
    ConformanceAccepted,
    /// The site's hook on a node confirmed that nothing of former work is left there.
    NodeWiped,
    /// It did not.
    WipeFailed,
    /// A checkpoint of an allocation is whole: it begins from that one when it runs again.
    CheckpointCommitted,
    /// An allocation is to save itself and to give its nodes back.
    PreemptRequested,
    /// It saved itself and gives its nodes back: it goes on from there when it has others.
    AllocationSuspended,
    /// It could not save itself when one of its nodes was drained urgently, and goes on.
    PreemptFailed,
    /// A suspended or held allocation waits for nodes again.
    AllocationResumed,
    /// An allocation that waited for nodes waits for none until it is resumed.
    AllocationHeld,
    /// An allocation's work is measured more closely from now on, or no more.
    TelemetryModeSet,
    /// The time for which it was to be is over.
    TelemetryModeEnded,
    /// What is measured of somebody else's work is about to be looked at.
    MeasurementsRead,
    /// How a node found itself while no heartbeat of it was acknowledged: told afterwards, with the time of its own clock.
    NodeUnheard,
    /// A signal is about to be sent to somebody else's work.
    WorkSignalled,
    /// An operator admitted a node that the cluster does not know yet.
    NodeAdmitted,
    /// An operator withdrew that before the node registered.
    AdmissionWithdrawn,
    /// A node registered with more cores, memory or GPUs than the quorum knew of it.
    CapacityGrew,
}

impl AuditAction {
    /// What befalls a node itself: its history, and what others are notified of. What its work did is the allocations'.
    pub const OF_NODES: [Self; 13] = [
        Self::NodeRegistered,
        Self::NodeStateChanged,
        Self::HoldSet,
        Self::HoldLifted,
        Self::NodeConfirmedDead,
        Self::ConformanceChanged,
        Self::ConformanceAccepted,
        Self::NodeWiped,
        Self::WipeFailed,
        Self::NodeUnheard,
        Self::NodeAdmitted,
        Self::AdmissionWithdrawn,
        Self::CapacityGrew,
    ];
}

impl fmt::Display for AuditAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text names no action.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no type of audit record; there are {list}", list = AuditAction::ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", "))]
pub struct UnknownAction(pub String);

impl FromStr for AuditAction {
    type Err = UnknownAction;

    /// As it is written in a record, or with dashes and in any case: `attach-started`.
    fn from_str(text: &str) -> Result<Self, UnknownAction> {
        let plain: String = text.chars().filter(|c| !matches!(c, '-' | '_')).collect();
        let known = Self::ALL.iter().find(|a| a.name().eq_ignore_ascii_case(&plain)).copied();
        known.ok_or_else(|| UnknownAction(text.chars().take(40).collect()))
    }
}

/// Which records are wanted. Everything that is given must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditFilter {
    /// What this user did, and what was done to the allocations of this user; or what `node:<id>`, `member:<id>` did.
    pub user: Option<String>,
    /// About the allocations whose id begins so.
    pub allocation: Option<AllocationPrefix>,
    /// About this node.
    pub node: Option<NodeId>,
    /// Of one of these kinds; empty: of any.
    pub actions: Vec<AuditAction>,
    /// Not before this.
    pub since: Option<Timestamp>,
    /// Before this.
    pub until: Option<Timestamp>,
}

impl AuditFilter {
    /// Whether a record is wanted.
    pub fn matches(&self, record: &AuditRecord) -> bool {
        // An operator is recorded with the machine, `anna@n1`.
        let person = record.actor.split_once('@').map(|(person, _)| person);
        let of_user = |user: &String| record.actor == *user || person == Some(user) || record.owner.as_ref() == Some(user);
        self.user.as_ref().is_none_or(of_user)
            && self.allocation.as_ref().is_none_or(|p| record.allocation.is_some_and(|id| p.fits(id)))
            && self.node.as_ref().is_none_or(|n| record.node.as_ref() == Some(n))
            && (self.actions.is_empty() || self.actions.contains(&record.action))
            && self.since.is_none_or(|since| record.at >= since)
            && self.until.is_none_or(|until| record.at < until)
    }
}

/// The beginning of an allocation's id, or all of it: at least 4 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllocationPrefix(String);

/// The text is no beginning of an id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no beginning of an allocation's id: give 4 to 32 hexadecimal digits")]
pub struct BadPrefix(pub String);

impl AllocationPrefix {
    /// The least and the greatest id that begin so, as numbers.
    pub fn bounds(&self) -> (u128, u128) {
        let free = 128 - 4 * u32::try_from(self.0.len()).unwrap_or(32);
        let least = u128::from_str_radix(&self.0, 16).unwrap_or(0).checked_shl(free).unwrap_or(0);
        (least, least | 1u128.checked_shl(free).map_or(u128::MAX, |bit| bit - 1))
    }

    /// Whether the id begins so.
    pub fn fits(&self, id: AllocationId) -> bool {
        let (least, greatest) = self.bounds();
        (least..=greatest).contains(&id.0.as_u128())
    }
}

impl FromStr for AllocationPrefix {
    type Err = BadPrefix;

    fn from_str(text: &str) -> Result<Self, BadPrefix> {
        let digits: String = text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
        if (4..=32).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Self(digits))
        } else {
            Err(BadPrefix(text.chars().take(64).collect()))
        }
    }
}

impl TryFrom<String> for AllocationPrefix {
    type Error = BadPrefix;

    fn try_from(text: String) -> Result<Self, BadPrefix> {
        text.parse()
    }
}

impl From<AllocationPrefix> for String {
    fn from(prefix: AllocationPrefix) -> Self {
        prefix.0
    }
}

impl From<AllocationId> for AllocationPrefix {
    fn from(id: AllocationId) -> Self {
        Self(id.0.simple().to_string())
    }
}

impl fmt::Display for AllocationPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> AuditRecord {
        AuditRecord {
            seq: 7,
            revision: Revision(9),
            at: Timestamp(1000),
            actor: "root".into(),
            action: AuditAction::AttachStarted,
            allocation: Some("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap()),
            owner: Some("alice".into()),
            node: Some("n1".parse().unwrap()),
            detail: String::new(),
            previous: String::new(),
            hash: String::new(),
        }
    }

    #[test]
    fn a_filter_takes_what_fits_all_of_it() {
        let all = AuditFilter::default();
        let prefix = |text: &str| Some(text.parse::<AllocationPrefix>().unwrap());
        let fits = [
            all.clone(),
            AuditFilter { user: Some("root".into()), ..all.clone() },
            AuditFilter { user: Some("alice".into()), node: Some("n1".parse().unwrap()), ..all.clone() },
            AuditFilter { allocation: prefix("1F0C"), actions: vec![AuditAction::LogsRead, AuditAction::AttachStarted], ..all.clone() },
            AuditFilter { allocation: prefix("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88"), ..all.clone() },
            AuditFilter { since: Some(Timestamp(1000)), until: Some(Timestamp(1001)), ..all.clone() },
        ];
        for filter in fits {
            assert!(filter.matches(&record()), "{filter:?}");
        }
        let fits_not = [
            AuditFilter { user: Some("bob".into()), ..all.clone() },
            AuditFilter { user: Some("alice".into()), node: Some("n2".parse().unwrap()), ..all.clone() },
            AuditFilter { allocation: prefix("1f0d"), ..all.clone() },
            AuditFilter { actions: vec![AuditAction::LogsRead], ..all.clone() },
            AuditFilter { since: Some(Timestamp(1001)), ..all.clone() },
            AuditFilter { until: Some(Timestamp(1000)), ..all },
        ];
        for filter in fits_not {
            assert!(!filter.matches(&record()), "{filter:?}");
        }
    }

    #[test]
    fn prefixes_bound_the_ids_that_begin_so() {
        let bounds = |text: &str| text.parse::<AllocationPrefix>().unwrap().bounds();
        assert_eq!(bounds("ffff"), (0xffff << 112, u128::MAX));
        assert_eq!(bounds(&"0".repeat(32)), (0, 0));
        assert_eq!(bounds(&"f".repeat(32)), (u128::MAX, u128::MAX));
        for bad in ["", "123", "wxyz", &"0".repeat(33)] {
            assert!(bad.parse::<AllocationPrefix>().is_err(), "{bad}");
        }
    }

    #[test]
    fn actions_are_known_by_their_names_in_any_spelling() {
        for action in AuditAction::ALL {
            assert_eq!(action.name().parse(), Ok(*action));
        }
        assert_eq!("attach-started".parse(), Ok(AuditAction::AttachStarted));
        assert!("attach".parse::<AuditAction>().unwrap_err().to_string().contains("AttachStarted"));
    }
}
