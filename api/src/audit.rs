//! Converts filters and records of the audit log.

use crate::v1;
use lattice_model::access_token::TokenId;
use lattice_model::{AuditFilter, AuditRecord, Revision, Timestamp};
use thiserror::Error;
use tonic::Status;

/// Why a message is not a valid filter or record.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {why}")]
pub struct BadAudit {
    /// The field of the message.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: String,
}

impl From<BadAudit> for Status {
    fn from(bad: BadAudit) -> Self {
        Self::invalid_argument(bad.to_string())
    }
}

fn bad(field: &'static str) -> impl Fn(&dyn std::fmt::Display) -> BadAudit {
    move |why| BadAudit { field, why: why.to_string() }
}

/// Converts a filter; `None` selects everything.
pub fn filter_to_model(filter: Option<&v1::AuditFilter>) -> Result<AuditFilter, BadAudit> {
    let Some(filter) = filter else { return Ok(AuditFilter::default()) };
    let given = |text: &'static str, value: &str| (!value.is_empty()).then(|| (text, value.to_owned()));
    let allocation = given("allocation", &filter.allocation).map(|(f, v)| v.parse().map_err(|e| bad(f)(&e))).transpose()?;
    let node = given("node", &filter.node).map(|(f, v)| v.parse().map_err(|e| bad(f)(&e))).transpose()?;
    let token = given("token", &filter.token).map(|(f, v)| v.parse::<TokenId>().map_err(|e| bad(f)(&e))).transpose()?;
    let actions: Result<Vec<_>, _> = filter.types.iter().map(|name| name.parse().map_err(|e| bad("types")(&e))).collect();
    Ok(AuditFilter {
        user: (!filter.user.is_empty()).then(|| filter.user.clone()),
        allocation,
        node,
        token: token.map(|id| id.to_string()),
        actions: actions?,
        since: filter.since_ms.map(Timestamp),
        until: filter.until_ms.map(Timestamp),
    })
}

/// Converts a record into a message.
pub fn record_to_proto(record: &AuditRecord) -> v1::AuditRecord {
    v1::AuditRecord {
        seq: record.seq,
        revision: record.revision.0,
        at_ms: record.at.0,
        actor: record.actor.clone(),
        action: record.action.name().to_owned(),
        allocation: record.allocation.map(|id| id.to_string()).unwrap_or_default(),
        owner: record.owner.clone().unwrap_or_default(),
        node: record.node.as_ref().map(ToString::to_string).unwrap_or_default(),
        detail: record.detail.clone(),
        previous: record.previous.clone(),
        hash: record.hash.clone(),
        token: record.token.clone().unwrap_or_default(),
    }
}

/// Converts a message back into the original record, so that its hash can be recomputed.
pub fn record_to_model(record: &v1::AuditRecord) -> Result<AuditRecord, BadAudit> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Ok(AuditRecord {
        seq: record.seq,
        revision: Revision(record.revision),
        at: Timestamp(record.at_ms),
        actor: record.actor.clone(),
        token: some(&record.token),
        action: record.action.parse().map_err(|e| bad("action")(&e))?,
        allocation: some(&record.allocation).map(|id| id.parse().map_err(|e| bad("allocation")(&e))).transpose()?,
        owner: some(&record.owner),
        node: some(&record.node).map(|id| id.parse().map_err(|e| bad("node")(&e))).transpose()?,
        detail: record.detail.clone(),
        previous: record.previous.clone(),
        hash: record.hash.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::AuditAction;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = AuditRecord> {
        let action = prop::sample::select(AuditAction::ALL);
        let (owner, node, token) =
            (prop::option::of("[a-z]{1,8}"), prop::option::of("[a-z][a-z0-9]{0,8}"), prop::option::of("[a-f0-9]{16}"));
        let who = (any::<Option<u128>>(), owner, node, ".{0,40}", token);
        ((1..9u64, 1..9u64, any::<u64>(), ".{1,20}", action), who).prop_map(|((seq, revision, at, actor, action), who)| AuditRecord {
            seq,
            revision: Revision(revision),
            at: Timestamp(at),
            actor,
            token: who.4,
            action,
            allocation: who.0.map(|id| lattice_model::AllocationId(uuid::Uuid::from_u128(id))),
            owner: who.1,
            node: who.2.map(|n| n.parse().unwrap()),
            detail: who.3,
            previous: "0".repeat(64),
            hash: "1".repeat(64),
        })
    }

    proptest! {
        #[test]
        fn a_record_survives_the_round_trip(record in record()) {
            prop_assert_eq!(record_to_model(&record_to_proto(&record)), Ok(record));
        }
    }

    #[test]
    fn a_filter_is_converted_and_an_invalid_one_is_refused_by_its_field() {
        assert_eq!(filter_to_model(None), Ok(AuditFilter::default()));
        let filter = v1::AuditFilter {
            user: "alice".into(),
            allocation: "1F0C-9a4e".into(),
            node: "n1".into(),
            types: vec!["logs-read".into()],
            since_ms: Some(1),
            until_ms: None,
            job: 0,
            token: "00000000000000ab".into(),
        };
        let read = filter_to_model(Some(&filter)).unwrap();
        assert_eq!((read.user.as_deref(), read.actions.as_slice()), (Some("alice"), &[AuditAction::LogsRead][..]));
        assert_eq!(read.token.as_deref(), Some("00000000000000ab"));
        assert_eq!((read.allocation.unwrap().to_string().as_str(), read.since, read.until), ("1f0c9a4e", Some(Timestamp(1)), None));
        for (changed, field) in [
            (v1::AuditFilter { allocation: "12".into(), ..filter.clone() }, "allocation"),
            (v1::AuditFilter { node: "-".into(), ..filter.clone() }, "node"),
            (v1::AuditFilter { token: "ab".into(), ..filter.clone() }, "token"),
            (v1::AuditFilter { types: vec!["x".into()], ..filter }, "types"),
        ] {
            assert_eq!(filter_to_model(Some(&changed)).unwrap_err().field, field);
        }
    }
}
