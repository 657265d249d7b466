//! Scenarios of tokens: how they are issued, revoked, and forgotten.

use super::access_tokens::{EXPIRED_KEPT_MS, FORGOTTEN_AT_ONCE_MAX, TOKENS_MAX};
use super::scenarios::{Story, id, node, spec, user};
use super::{Action, Outcome, Refusal, Requester};
use lattice_model::access::{Scopes, Subject};
use lattice_model::access_token::{AccessToken, LIFETIME_DAYS_MAX, NAME_BYTES_MAX, TokenId};
use lattice_model::usage::DAY_MS;
use lattice_model::{AuditAction, AuditRecord, HoldKind, Principal, RequeuePolicy, Revision, Timestamp};

/// A token of user 7 that is issued now, for a day.
fn token(s: &Story, id: u64) -> AccessToken {
    let issued_at = s.now();
    AccessToken {
        id: TokenId(id),
        name: "ci".into(),
        account: Subject::User { name: "u7".into(), uid: 7 },
        scopes: "read,work".parse().unwrap(),
        secret_sha256: [9; 32],
        issued_at,
        issued_by: "anna@n1".into(),
        expires_at: Timestamp(issued_at.0 + DAY_MS),
    }
}

fn issue(token: &AccessToken) -> Action {
    Action::IssueToken { token: token.clone() }
}

fn revoke(id: u64, by: Principal, as_operator: bool) -> Action {
    Action::RevokeToken { id: TokenId(id), by, as_operator }
}

fn admin() -> Principal {
    Principal { name: "anna@n1".into(), ..user(3) }
}

fn shown(records: &[AuditRecord]) -> Vec<(AuditAction, &str, &str)> {
    records.iter().map(|record| (record.action, record.actor.as_str(), record.detail.as_str())).collect()
}

fn ids(s: &Story) -> Vec<u64> {
    s.ledger.access_tokens(None).iter().map(|token| token.id.0).collect()
}

#[test]
fn a_token_is_issued_once_and_revoked_once_and_both_are_on_record() {
    let mut s = Story::new(0);
    let given = token(&s, 0xab);
    let records = s.acted(issue(&given));
    let until = given.expires_at;
    let detail = format!("00000000000000ab \"ci\" of user:u7 (uid 7), scopes read,work, until {until}");
    assert_eq!(shown(&records), [(AuditAction::TokenIssued, "anna@n1", detail.as_str())]);
    assert_eq!(s.ledger.access_token(TokenId(0xab)), Some(&given));
    assert!(s.acted(issue(&given)).is_empty(), "a repetition");

    let records = s.acted(revoke(0xab, admin(), true));
    assert_eq!(shown(&records), [(AuditAction::TokenRevoked, "anna@n1", "00000000000000ab \"ci\" of user:u7 (uid 7)")]);
    assert_eq!(s.ledger.access_token(TokenId(0xab)), None);
    assert!(s.acted(revoke(0xab, admin(), true)).is_empty(), "a repetition");
    // A late repetition of the first command does not bring it back.
    let again = s.act(issue(&given)).unwrap_err();
    assert!(again.to_string().contains("the id 00000000000000ab is that of another token"), "{again}");
    let unknown = s.act(revoke(0xac, admin(), true)).unwrap_err();
    assert_eq!(unknown, Refusal::NoSuchToken { id: TokenId(0xac) });
    assert_eq!(unknown.to_string(), "there is no token 00000000000000ac");
    assert!(unknown.remedy().is_some());
}

#[test]
fn an_account_revokes_its_own_tokens_and_those_of_others_do_not_exist_for_it() {
    let mut s = Story::new(0);
    s.done(issue(&token(&s, 1)));
    for stranger in [user(8), Principal { uid: 8, ..user(7) }, Principal { name: "u8".into(), ..user(7) }] {
        assert_eq!(s.act(revoke(1, stranger, false)), Err(Refusal::NoSuchToken { id: TokenId(1) }));
    }
    let root = Principal { name: "root".into(), ..user(0) };
    assert_eq!(s.act(revoke(1, root, false)), Err(Refusal::NoSuchToken { id: TokenId(1) }));
    let records = s.acted(revoke(1, user(7), false));
    assert_eq!(records[0].actor, "u7");
    assert!(ids(&s).is_empty());
}

#[test]
fn a_token_that_nobody_may_have_is_refused() {
    let mut s = Story::new(0);
    let good = token(&s, 1);
    let days = |days: u32| Timestamp(good.issued_at.0 + u64::from(days) * DAY_MS);
    let far = Timestamp(good.issued_at.0 + 3 * DAY_MS);
    let no_scopes: Scopes = rmp_serde::from_slice(&rmp_serde::to_vec_named(&Vec::<u8>::new()).unwrap()).unwrap();
    let account = |account: Subject| AccessToken { account, ..good.clone() };
    for (bad, why) in [
        (AccessToken { name: String::new(), ..good.clone() }, "1 to 64 bytes"),
        (AccessToken { name: "x".repeat(NAME_BYTES_MAX + 1), ..good.clone() }, "1 to 64 bytes"),
        (AccessToken { name: "a\nb".into(), ..good.clone() }, "without control characters"),
        (account(Subject::User { name: "root".into(), uid: 0 }), "root gets no token"),
        (account(Subject::User { name: "toor".into(), uid: 0 }), "root gets no token"),
        (account(Subject::Group { name: "phys".into(), gid: 50 }), "group:phys gets no token"),
        (account(Subject::User { name: "a\nb".into(), uid: 7 }), "names no account"),
        (AccessToken { scopes: no_scopes, ..good.clone() }, "no scope"),
        (AccessToken { expires_at: good.issued_at, ..good.clone() }, "would have expired"),
        (AccessToken { issued_at: Timestamp(0), expires_at: Timestamp(1), ..good.clone() }, "would have expired"),
        (AccessToken { expires_at: Timestamp(days(LIFETIME_DAYS_MAX).0 + 1), ..good.clone() }, "after 366 days at the latest"),
        (AccessToken { issued_at: far, expires_at: days(4), ..good.clone() }, "set the clock"),
    ] {
        let refused = s.act(issue(&bad)).unwrap_err();
        assert!(refused.to_string().contains(why), "{why}: {refused}");
        assert!(ids(&s).is_empty());
    }
    s.done(issue(&AccessToken { expires_at: days(LIFETIME_DAYS_MAX), ..good.clone() }));
    let other = s.act(issue(&AccessToken { name: "other".into(), ..good })).unwrap_err();
    assert!(other.to_string().contains("is that of another token"), "{other}");
}

#[test]
fn tokens_are_listed_by_account_then_by_id() {
    let mut s = Story::new(0);
    let of = |s: &Story, id: u64, name: &str, uid: u32| {
        let account = Subject::User { name: name.into(), uid };
        issue(&AccessToken { account, ..token(s, id) })
    };
    for (id, name, uid) in [(3, "u7", 7), (4, "u1", 1), (1, "u7", 7), (2, "u7", 70)] {
        s.done(of(&s, id, name, uid));
    }
    assert_eq!(ids(&s), [4, 1, 3, 2]);
    let named = |name: &str| -> Vec<u64> {
        let name = name.parse().unwrap();
        s.ledger.access_tokens(Some(&name)).iter().map(|token| token.id.0).collect()
    };
    assert_eq!(named("u7"), [1, 3, 2], "whatever their numbers");
    assert!(named("u2").is_empty() && named("group:u7").is_empty());
}

#[test]
fn an_expired_token_is_listed_for_a_week_and_then_forgotten_by_any_command() {
    let mut s = Story::new(0);
    s.done(issue(&token(&s, 1)));
    let end = s.ledger.access_token(TokenId(1)).unwrap().expires_at;
    s.pass(end.since_ms(s.now()) + EXPIRED_KEPT_MS - 5_000);
    assert_eq!(ids(&s), [1]);
    s.pass(5_000);
    assert!(ids(&s).is_empty());
    assert!(s.acted(issue(&token(&s, 1))).len() == 1, "its id is not that of a revoked one");
}

#[test]
fn a_recovery_drops_all_tokens_because_those_of_a_backup_may_have_been_revoked_since() {
    let mut s = Story::new(0);
    for id in 1..=3 {
        s.done(issue(&token(&s, id)));
    }
    s.done(revoke(3, admin(), true));
    let record = s.ledger.recover(Revision(1000), Timestamp(1_000_000));
    s.forward(Revision(1000));
    assert!(record.detail.ends_with("; 2 access tokens dropped: issue anew what is needed"), "{}", record.detail);
    assert!(ids(&s).is_empty() && s.ledger.access_token(TokenId(1)).is_none());
    s.done(issue(&token(&s, 4)));
    assert_eq!(ids(&s), [4]);
    let again = s.act(issue(&token(&s, 3))).unwrap_err();
    assert!(again.to_string().contains("is that of another token"), "{again}");
    // Neither does the end of a dropped one drop anything else.
    s.pass(2 * DAY_MS + EXPIRED_KEPT_MS);
    assert!(ids(&s).is_empty());
}

#[test]
fn one_command_forgets_so_many_tokens_and_a_refused_one_none() {
    let mut s = Story::new(0);
    let last = FORGOTTEN_AT_ONCE_MAX as u64 + 3;
    for id in 1..=last {
        s.done(issue(&token(&s, id)));
    }
    s.pass(2 * DAY_MS + EXPIRED_KEPT_MS);
    assert_eq!(ids(&s), [last - 2, last - 1, last]);
    let before = s.ledger.access_tokens(None);
    assert!(s.act(revoke(999, admin(), true)).is_err());
    assert_eq!(s.ledger.access_tokens(None), before);
    s.done(issue(&token(&s, 1000)));
    assert_eq!(ids(&s), [1000]);
}

#[test]
fn only_so_many_tokens_are_valid_and_expired_ones_make_place() {
    let mut s = Story::new(0);
    let most = TOKENS_MAX as u64;
    for id in 1..=most {
        s.done(issue(&token(&s, id)));
    }
    let refused = s.act(issue(&token(&s, most + 1)));
    assert_eq!(refused, Err(Refusal::TooMany { what: "tokens".to_owned(), most }));
    s.done(revoke(2, admin(), true));
    s.done(issue(&token(&s, most + 1)));
    let first = s.ledger.access_token(TokenId(1)).unwrap().expires_at;
    s.pass(first.since_ms(s.now()));
    assert_eq!(s.act(issue(&token(&s, most + 2))), Ok(Outcome::Done));
    assert!(s.ledger.access_token(TokenId(1)).is_none() && ids(&s).len() == TOKENS_MAX);
}

#[test]
fn the_records_of_what_was_requested_with_a_token_name_it() {
    let mut s = Story::new(2);
    let tokens = |records: Vec<AuditRecord>| records.into_iter().map(|record| (record.action, record.token)).collect::<Vec<_>>();
    let hold = |kind| Action::SetHold { node: node(1), kind, by: "anna@n1".into(), reason: "fan".into(), until: None, deadline: None };
    let by_token = tokens(s.acted(hold(HoldKind::Cordon).by_token(Some(TokenId(0xab)))));
    assert_eq!(by_token, [(AuditAction::HoldSet, Some("00000000000000ab".to_owned()))]);
    let lifted = Action::LiftHold { node: node(1), kind: HoldKind::Cordon, by: "anna@n1".into(), until: None };
    assert_eq!(tokens(s.acted(lifted.by_token(None))), [(AuditAction::HoldLifted, None)]);
    // A token changes nothing else: who may request it, how urgent it is, what it is.
    let submission = Action::Submit { id: id(1), spec: Box::new(spec(1, RequeuePolicy::Never, 0)), owner: user(7), claim: None };
    let mut both = submission.clone().by_login(["physics".to_owned()].into()).by_token(Some(TokenId(1)));
    assert_eq!((both.submission(), both.urgency(), both.level()), (&submission, submission.urgency(), submission.level()));
    assert!(matches!(both.requester(), Requester::Member), "no agent may request it: a member wraps what it has checked");
    assert_eq!(
        tokens(s.acted(submission.by_token(Some(TokenId(1))))),
        [(AuditAction::AllocationSubmitted, Some("0000000000000001".to_owned()))]
    );
}
