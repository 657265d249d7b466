//! The permanent audit log. Each record carries the hash of the previous one; see `audit_chain` in
//! the crate `lattice-ledger`.

use crate::ids::{AllocationId, NodeId, Revision};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// One entry of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Sequence number in the chain, from 1, without gaps.
    pub seq: u64,
    /// The ledger's revision that created the record.
    pub revision: Revision,
    /// Time of the command that caused it.
    pub at: Timestamp,
    /// Who did it: a user's name, `node:<id>`, `member:<id>`, or `quorum`.
    pub actor: String,
    /// The id of the token of the cluster with which it was requested over the network. Omitted from the serialised record
    /// if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// What was done.
    pub action: AuditAction,
    /// The allocation concerned.
    pub allocation: Option<AllocationId>,
    /// The owner of that allocation. Omitted from the serialised record if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The node concerned.
    pub node: Option<NodeId>,
    /// Further details, for people. JSON in records about signatures and marks of budgets; see
    /// `docs/audit.md`.
    pub detail: String,
    /// SHA-256 of the previous record (64 zeros for the first), 64 hexadecimal digits.
    pub previous: String,
    /// SHA-256 over all fields above in their serialised order, 64 hexadecimal digits.
    pub hash: String,
}

/// Declares the actions together with the list of all of them, so that the list is complete.
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

            /// The action's name as written in a record.
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
    /// The walltime was changed.
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
    /// The quorum was recovered from a backup.
    QuorumRecovered,
    /// After such a recovery, a node reported that it runs this allocation.
    AllocationAdopted,
    /// A terminal is about to be attached.
    AttachStarted,
    /// An attached terminal was closed.
    AttachEnded,
    /// A user is about to read the output of somebody else's allocation.
    LogsRead,
    /// A user is about to start a launch in somebody else's allocation.
    LaunchStarted,
    /// A user is about to abort somebody else's launch.
    LaunchAborted,
    /// The audit log is about to be exported.
    AuditExported,
    /// A member starts to sign with this key.
    SigningKeySet,
    /// A member signed the chain up to an earlier record.
    HeadSigned,
    /// A rotation of the gossip keys began: the agents receive another key.
    GossipKeyAdded,
    /// All reachable agents have the new key: from now on it encrypts.
    GossipKeySeals,
    /// All reachable agents encrypt with the new key: the previous one is discarded.
    GossipKeyRetired,
    /// All certificates of this name that were issued earlier are revoked.
    CertificatesRevoked,
    VClusterSet,
    VClusterDeleted,
    SessionCreated,
    /// Deleted by its user, or together with its allocation.
    SessionDeleted,
    /// The VNI pool, or the time that network domains keep their VNI, was changed.
    VniPoolSet,
    /// A network domain was given a VNI.
    NetworkDomainCreated,
    /// A network domain released its VNI.
    NetworkDomainReleased,
    /// A cluster-wide limit was changed.
    LimitsSet,
    /// The length of the run leases of future claims was changed.
    RunLeaseSet,
    /// An operator, or the site's fencing hook, confirms that nothing runs any more on a silent
    /// node.
    NodeConfirmedDead,
    /// A node reported different software or firmware than before.
    ConformanceChanged,
    /// An operator accepts the current software and firmware of a node as the expected ones.
    ConformanceAccepted,
    /// The site's wipe hook on a node confirmed that nothing of former work is left there.
    NodeWiped,
    /// The wipe failed, or its hook did not confirm it.
    WipeFailed,
    /// A checkpoint of an allocation is complete: the allocation starts from it when it next runs.
    CheckpointCommitted,
    /// An allocation was asked to save itself and to release its nodes.
    PreemptRequested,
    /// An allocation saved itself and releases its nodes; it continues from the checkpoint when it
    /// gets new nodes.
    AllocationSuspended,
    /// It could not save itself when one of its nodes was drained urgently, and continues to run.
    PreemptFailed,
    /// A suspended or held allocation waits for nodes again.
    AllocationResumed,
    /// A waiting allocation was held: it gets no nodes until somebody resumes it.
    AllocationHeld,
    /// The detailed measurement of an allocation's work was switched on or off.
    TelemetryModeSet,
    /// The period of detailed measurement is over.
    TelemetryModeEnded,
    /// A user is about to read the measurements of somebody else's work.
    MeasurementsRead,
    /// How a node assessed itself while none of its heartbeats was acknowledged. Reported
    /// afterwards, with the time of the node's own clock.
    NodeUnheard,
    /// A user is about to send a signal to somebody else's work.
    WorkSignalled,
    /// An operator admitted a node that has not registered yet.
    NodeAdmitted,
    /// An operator withdrew an admission before the node registered.
    AdmissionWithdrawn,
    /// A node registered with more cores, memory or GPUs than the quorum had recorded.
    CapacityGrew,
    /// An operator removed a node: it is refused until its name is admitted again.
    NodeRemoved,
    /// The name or the preemption class of an allocation was changed.
    AllocationChanged,
    /// The use of a tenant's budget has reached a mark: 80 or 100 %. `detail` is JSON.
    BudgetMarkReached,
    /// A DAG was submitted: all of its allocations at once.
    DagSubmitted,
    /// All allocations of a DAG that have not ended are about to be ended.
    DagCancelRequested,
    /// A scaled service gets another number of replicas.
    AllocationScaled,
    /// A role was granted to an account or group.
    RoleGranted,
    /// A role was revoked.
    RoleRevoked,
    /// An account or group became a member of a tenant, or the tenant its default.
    TenantMemberAdded,
    /// An account or group is no longer a member of a tenant.
    TenantMemberRemoved,
    /// A call that would have changed something was refused.
    AccessDenied,
    /// A user is about to remove a checkpoint of somebody else's work.
    CheckpointRemoved,
    /// A token with which programs call the API over the network was issued.
    TokenIssued,
    /// A token for the API was revoked.
    TokenRevoked,
    /// A user is about to request a checkpoint of somebody else's work.
    CheckpointRequested,
    /// A store gets the ended work from now on.
    AccountingStoreSet,
    /// A system admin lets another store get the ended work.
    AccountingMoved,
    /// Ended work was dropped before the store had it: too much was waiting.
    EndedWorkDropped,
    /// A project of a tenant was registered.
    ProjectCreated,
    /// A project of a tenant was deleted.
    ProjectDeleted,
    /// An account became a member of a project.
    ProjectMemberAdded,
    /// An account is no longer a member of a project.
    ProjectMemberRemoved,
    /// The project or the tags in the record of ended work were corrected.
    EndedWorkCorrected,
    /// An event occurred about which the user of an allocation wants mail. `detail` is JSON.
    MailDue,
    /// A reservation of nodes was created or changed.
    ReservationSet,
    /// A reservation was deleted, or forgotten after its end.
    ReservationDeleted,
}

impl AuditAction {
    /// The actions that concern a node itself: its history. Actions that concern allocations on the
    /// node are not among them.
    pub const OF_NODES: [Self; 14] = [
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
        Self::NodeRemoved,
    ];
}

impl AuditRecord {
    /// The account of the token that was issued or revoked; `None`: the record is about no token. The detail names it
    /// behind the token's id and quoted name: `7f… "ci" of user:alice (uid 7), …`.
    pub fn token_account(&self) -> Option<&str> {
        match self.action {
            AuditAction::TokenIssued | AuditAction::TokenRevoked => account_behind_quotes(&self.detail),
            _ => None,
        }
    }
}

fn account_behind_quotes(detail: &str) -> Option<&str> {
    let (_, quoted) = detail.split_once('"')?;
    let mut is_escaped = false;
    let (end, _) = quoted.char_indices().find(|(_, c)| {
        let is_end = *c == '"' && !is_escaped;
        is_escaped = *c == '\\' && !is_escaped;
        is_end
    })?;
    let (account, _) = quoted.get(end + 1..)?.strip_prefix(" of user:")?.split_once(" (uid ")?;
    Some(account)
}

impl fmt::Display for AuditAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of an action.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a type of audit record; the types are {list}", list = AuditAction::ALL.iter().map(|a| a.name()).collect::<Vec<_>>().join(", "))]
pub struct UnknownAction(pub String);

impl FromStr for AuditAction {
    type Err = UnknownAction;

    /// Accepts the name as written in a record, or with dashes and in any case: `attach-started`.
    fn from_str(text: &str) -> Result<Self, UnknownAction> {
        let plain: String = text.chars().filter(|c| !matches!(c, '-' | '_')).collect();
        let known = Self::ALL.iter().find(|a| a.name().eq_ignore_ascii_case(&plain)).copied();
        known.ok_or_else(|| UnknownAction(text.chars().take(40).collect()))
    }
}

/// Selects records. A record must match every field that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditFilter {
    /// Records whose actor is this name (a user, `node:<id>` or `member:<id>`), or whose allocation or
    /// token belongs to this user.
    pub user: Option<String>,
    /// Allocations whose id begins with this.
    pub allocation: Option<AllocationPrefix>,
    /// This node.
    pub node: Option<NodeId>,
    /// Requested with the token that has this id, written as in a record: 16 hexadecimal digits.
    pub token: Option<String>,
    /// One of these actions; empty: any action.
    pub actions: Vec<AuditAction>,
    /// At this time or later.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
}

impl AuditFilter {
    /// Whether the record matches.
    pub fn matches(&self, record: &AuditRecord) -> bool {
        // The actor of an operator's record includes the machine: `anna@n1`.
        let person = record.actor.split_once('@').map(|(person, _)| person);
        let of_user = |user: &String| {
            record.actor == *user || person == Some(user) || record.owner.as_ref() == Some(user) || record.token_account() == Some(user)
        };
        self.user.as_ref().is_none_or(of_user)
            && self.allocation.as_ref().is_none_or(|p| record.allocation.is_some_and(|id| p.fits(id)))
            && self.node.as_ref().is_none_or(|n| record.node.as_ref() == Some(n))
            && self.token.as_ref().is_none_or(|token| record.token.as_ref() == Some(token))
            && (self.actions.is_empty() || self.actions.contains(&record.action))
            && self.since.is_none_or(|since| record.at >= since)
            && self.until.is_none_or(|until| record.at < until)
    }
}

/// A prefix of an allocation's id, or the whole id: at least 4 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllocationPrefix(String);

/// The text is not a prefix of an id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a prefix of an allocation's id: give 4 to 32 hexadecimal digits")]
pub struct BadPrefix(pub String);

impl AllocationPrefix {
    /// The lowest and the highest id with this prefix, as numbers.
    pub fn bounds(&self) -> (u128, u128) {
        let free = 128 - 4 * u32::try_from(self.0.len()).unwrap_or(32);
        let least = u128::from_str_radix(&self.0, 16).unwrap_or(0).checked_shl(free).unwrap_or(0);
        (least, least | 1u128.checked_shl(free).map_or(u128::MAX, |bit| bit - 1))
    }

    /// Whether the id has this prefix.
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
            token: Some("00000000000000ab".into()),
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
    fn the_account_of_a_token_is_read_behind_its_name_whatever_the_name_is() {
        for name in ["ci", "a \" of user:eve (uid 1)", "\\", "\\\" of user:eve (uid 1)"] {
            let detail = format!("00000000000000ab {name:?} of user:alice (uid 7), scopes read, until 1970");
            assert_eq!(account_behind_quotes(&detail), Some("alice"), "{detail}");
        }
        for other in ["", "x", "\"x", "00ab \"ci\" of group:phys (gid 7)"] {
            assert_eq!(account_behind_quotes(other), None, "{other}");
        }
    }

    #[test]
    fn a_filter_matches_what_fits_all_its_fields() {
        let all = AuditFilter::default();
        let prefix = |text: &str| Some(text.parse::<AllocationPrefix>().unwrap());
        let fits = [
            all.clone(),
            AuditFilter { user: Some("root".into()), ..all.clone() },
            AuditFilter { user: Some("alice".into()), node: Some("n1".parse().unwrap()), ..all.clone() },
            AuditFilter { allocation: prefix("1F0C"), actions: vec![AuditAction::LogsRead, AuditAction::AttachStarted], ..all.clone() },
            AuditFilter { allocation: prefix("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88"), ..all.clone() },
            AuditFilter { token: Some("00000000000000ab".into()), user: Some("root".into()), ..all.clone() },
            AuditFilter { since: Some(Timestamp(1000)), until: Some(Timestamp(1001)), ..all.clone() },
        ];
        for filter in fits {
            assert!(filter.matches(&record()), "{filter:?}");
        }
        let fits_not = [
            AuditFilter { user: Some("bob".into()), ..all.clone() },
            AuditFilter { user: Some("alice".into()), node: Some("n2".parse().unwrap()), ..all.clone() },
            AuditFilter { allocation: prefix("1f0d"), ..all.clone() },
            AuditFilter { token: Some("00000000000000ac".into()), ..all.clone() },
            AuditFilter { token: Some("00000000000000ab".into()), user: Some("bob".into()), ..all.clone() },
            AuditFilter { actions: vec![AuditAction::LogsRead], ..all.clone() },
            AuditFilter { since: Some(Timestamp(1001)), ..all.clone() },
            AuditFilter { until: Some(Timestamp(1000)), ..all },
        ];
        for filter in fits_not {
            assert!(!filter.matches(&record()), "{filter:?}");
        }
        let without_token = AuditRecord { token: None, ..record() };
        assert!(!AuditFilter { token: Some("00000000000000ab".into()), ..AuditFilter::default() }.matches(&without_token));
    }

    #[test]
    fn a_prefix_bounds_the_ids_that_begin_with_it() {
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
