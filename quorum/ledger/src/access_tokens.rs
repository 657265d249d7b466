//! Tokens with which programs call the API over the network: issued for one account, until they expire or are
//! revoked.
//!
//! ```text
//!   IssueToken ──▶ valid ── its end ──▶ expired ── a week later, or when others need the place ──▶ forgotten
//!                    │                     │
//!                    └── RevokeToken ──────┴──▶ removed at once; its id is not issued again
//! ```
//!
//! The ledger has only the SHA-256 of each secret: a reader of a snapshot, the log or a backup cannot call as
//! anybody. The called agent compares it, and decides by its own clock whether the token has expired. Root gets
//! no token: no single file may grant access to everything.

use super::roles::{is_well_formed, subject_text};
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::access::{self, Scopes, SubjectName};
use lattice_model::access_token::{AccessToken, LIFETIME_DAYS_MAX, NAME_BYTES_MAX, TokenId};
use lattice_model::usage::DAY_MS;
use lattice_model::{AuditAction, Principal, Timestamp};

/// Largest number of tokens. Expired ones give their places to new ones.
pub(super) const TOKENS_MAX: usize = if cfg!(test) { 40 } else { 10_000 };
/// How long expired tokens are listed, in milliseconds.
pub(super) const EXPIRED_KEPT_MS: u64 = 7 * DAY_MS;
/// How many expired tokens one command forgets.
pub(super) const FORGOTTEN_AT_ONCE_MAX: usize = 16;
/// How far the issuing agent's clock may be ahead of the ledger's time, in milliseconds.
const AHEAD_MS_MAX: u64 = DAY_MS;

impl Ledger {
    /// One token that is not revoked; it may have expired.
    pub fn access_token(&self, id: TokenId) -> Option<&AccessToken> {
        self.access_tokens.get(id)
    }

    /// The tokens of all accounts, or of the accounts of this name: by account, then by id.
    pub fn access_tokens(&self, account: Option<&SubjectName>) -> Vec<AccessToken> {
        let is_asked_for = |token: &&AccessToken| account.is_none_or(|name| token.account.has_name(name));
        let mut tokens: Vec<&AccessToken> = self.access_tokens.all().filter(is_asked_for).collect();
        // They are in the order of their ids, and the sort is stable.
        tokens.sort_by(|a, b| a.account.cmp(&b.account));
        tokens.into_iter().cloned().collect()
    }

    /// The id is the idempotency key: a repetition is a success.
    pub(super) fn issue_token(&mut self, context: &mut ApplyContext, token: &AccessToken) -> Result<Outcome, Refusal> {
        let known = self.access_tokens.get(token.id);
        if known == Some(token) {
            return Ok(Outcome::Done);
        }
        if known.is_some() || self.access_tokens.is_revoked(token.id) {
            return Err(Refusal::Malformed { why: format!("the id {} is that of another token: ask for a new one", token.id) });
        }
        is_acceptable(token, self.time)?;
        if self.access_tokens.len() >= TOKENS_MAX {
            match self.access_tokens.first_end() {
                Some((end, id)) if end <= self.time => self.access_tokens.forget(id),
                Some(_) | None => return Err(Refusal::TooMany { what: "tokens".to_owned(), most: TOKENS_MAX as u64 }),
            }
        }
        self.access_tokens.insert(token.clone());
        let AccessToken { scopes, expires_at, issued_by, .. } = token;
        let detail = format!("{}, scopes {scopes}, until {expires_at}", token_text(token));
        self.record(context, issued_by, AuditAction::TokenIssued, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    /// Admins may revoke every token, other callers only those of their own account: for them, no other token exists.
    pub(super) fn revoke_token(
        &mut self,
        context: &mut ApplyContext,
        id: TokenId,
        by: &Principal,
        as_admin: bool,
    ) -> Result<Outcome, Refusal> {
        let Some(token) = self.access_tokens.get(id).filter(|token| as_admin || token.account.includes(by)) else {
            return if self.access_tokens.is_revoked(id) { Ok(Outcome::Done) } else { Err(Refusal::NoSuchToken { id }) };
        };
        let detail = token_text(token);
        self.access_tokens.revoke(id);
        self.record(context, &by.name, AuditAction::TokenRevoked, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    /// Forgets some of the tokens that expired long ago.
    pub(super) fn forget_expired_tokens(&mut self) {
        for _ in 0..FORGOTTEN_AT_ONCE_MAX {
            match self.access_tokens.first_end() {
                Some((end, id)) if self.time.since_ms(end) >= EXPIRED_KEPT_MS => self.access_tokens.forget(id),
                Some(_) | None => return,
            }
        }
    }
}

/// Refuses a token that nobody may have. `now`: the ledger's time.
fn is_acceptable(token: &AccessToken, now: Timestamp) -> Result<(), Refusal> {
    let AccessToken { id: _, name, account, scopes, secret_sha256: _, issued_at, issued_by: _, expires_at } = token;
    let malformed = |why: String| Err(Refusal::Malformed { why });
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return malformed(format!("the name of a token has 1 to {NAME_BYTES_MAX} bytes without control characters"));
    }
    is_well_formed(account)?;
    match account {
        access::Subject::User { uid: 0, .. } => return malformed("root gets no token: name another account".to_owned()),
        access::Subject::User { .. } => {}
        access::Subject::Group { .. } => return malformed(format!("{account} gets no token: name an account")),
    }
    if scopes.to_string().parse::<Scopes>().is_err() {
        return malformed("the token has no scope: name read, work or admin".to_owned());
    }
    if issued_at.since_ms(now) > AHEAD_MS_MAX {
        return malformed(format!("the token would be issued at {issued_at}, and it is {now}: set the clock of the agent's machine"));
    }
    if *expires_at <= now || expires_at <= issued_at {
        return malformed(format!("the token would have expired at {expires_at}, and it is {now}"));
    }
    if expires_at.since_ms(*issued_at) > u64::from(LIFETIME_DAYS_MAX) * DAY_MS {
        return malformed(format!("a token expires after {LIFETIME_DAYS_MAX} days at the latest"));
    }
    Ok(())
}

/// A token for the audit log.
fn token_text(token: &AccessToken) -> String {
    format!("{} {:?} of {}", token.id, token.name, subject_text(&token.account))
}
