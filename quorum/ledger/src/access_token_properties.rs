//! Property test of tokens: whatever is issued and revoked, and however time passes, the ledger agrees with a
//! simple record of it, and so does the ledger that was read back from a snapshot.

use super::access_tokens::EXPIRED_KEPT_MS;
use super::scenarios::{Story, user};
use super::{Action, Ledger};
use lattice_model::Timestamp;
use lattice_model::access::{Scopes, Subject};
use lattice_model::access_token::{AccessToken, TokenId};
use lattice_model::usage::DAY_MS;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
enum Step {
    Issue { id: u64, uid: u32, days: u64 },
    Revoke { id: u64, uid: u32, as_operator: bool },
    Pass { ms: u64 },
}

fn a_step() -> impl Strategy<Value = Step> {
    // Few ids: most commands meet one that was there before. Root is one of the accounts.
    let (id, uid) = (0..12u64, 0..3u32);
    prop_oneof![
        6 => (id.clone(), uid.clone(), 1..30u64).prop_map(|(id, uid, days)| Step::Issue { id, uid, days }),
        2 => (id, uid, any::<bool>()).prop_map(|(id, uid, as_operator)| Step::Revoke { id, uid, as_operator }),
        3 => (1..20u64).prop_map(|days| Step::Pass { ms: days * DAY_MS / 2 }),
    ]
}

/// The tokens that were issued and are neither revoked nor forgotten.
#[derive(Default)]
struct Record {
    tokens: BTreeMap<TokenId, AccessToken>,
    revoked: BTreeSet<TokenId>,
}

impl Record {
    /// Returns whether the command is possible; `now`: the ledger's time after it.
    fn take(&mut self, action: &Action, now: Timestamp) -> bool {
        let is_possible = match action {
            Action::IssueToken { token } => match self.tokens.get(&token.id) {
                Some(known) => known == token,
                None if self.revoked.contains(&token.id) || token.account == account(0) => false,
                None => self.tokens.insert(token.id, token.clone()).is_none(),
            },
            Action::RevokeToken { id, by, as_operator } => {
                let is_open = self.tokens.get(id).is_some_and(|token| *as_operator || token.account.includes(by));
                if is_open {
                    self.tokens.remove(id);
                    self.revoked.insert(*id);
                }
                is_open || (!self.tokens.contains_key(id) && self.revoked.contains(id))
            }
            _ => true,
        };
        if is_possible {
            self.tokens.retain(|_, token| now.since_ms(token.expires_at) < EXPIRED_KEPT_MS);
        }
        is_possible
    }
}

fn account(uid: u32) -> Subject {
    Subject::User { name: format!("u{uid}"), uid }
}

fn action(step: Step, now: Timestamp) -> Action {
    match step {
        Step::Issue { id, uid, days } => {
            let token = AccessToken {
                id: TokenId(id),
                name: format!("token {id}"),
                account: account(uid),
                scopes: Scopes::all(),
                secret_sha256: [uid.to_le_bytes()[0]; 32],
                issued_at: now,
                issued_by: "anna@n1".into(),
                expires_at: Timestamp(now.0 + days * DAY_MS),
            };
            Action::IssueToken { token }
        }
        Step::Revoke { id, uid, as_operator } => Action::RevokeToken { id: TokenId(id), by: user(uid), as_operator },
        Step::Pass { .. } => Action::AdvanceTime,
    }
}

fn agree(ledger: &Ledger, record: &Record) {
    let mut wanted: Vec<&AccessToken> = record.tokens.values().collect();
    wanted.sort_by_key(|token| (token.account.clone(), token.id));
    assert!(ledger.access_tokens(None).iter().eq(wanted));
    for id in (0..12).map(TokenId) {
        assert_eq!(ledger.access_token(id), record.tokens.get(&id));
    }
}

proptest! {
    #[test]
    fn tokens_are_those_that_were_issued_and_not_revoked_and_a_snapshot_keeps_them(steps in prop::collection::vec(a_step(), 1..60)) {
        let (mut s, mut record) = (Story::new(0), Record::default());
        for step in steps {
            let before = s.ledger.clone();
            let action = action(step, s.now());
            if let Step::Pass { ms } = step {
                s.pass(ms);
                prop_assert!(record.take(&action, s.now()));
            } else {
                let result = s.act(action.clone());
                prop_assert_eq!(result.is_ok(), record.take(&action, s.now()), "{:?}: {:?}", step, result);
                if result.is_err() {
                    let refused = Ledger { revision: s.ledger.revision, time: s.ledger.time, ..before };
                    prop_assert_eq!(&refused, &s.ledger);
                }
            }
            agree(&s.ledger, &record);
        }
        let restored: Ledger = rmp_serde::from_slice(&rmp_serde::to_vec_named(&s.ledger).unwrap()).unwrap();
        prop_assert_eq!(&restored, &s.ledger);
        agree(&restored, &record);
    }
}
