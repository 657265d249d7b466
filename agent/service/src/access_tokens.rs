//! Tokens with which programs call the API over the network: `AdminService.IssueToken`, `RevokeToken` and `ListTokens`.
//!
//! The secret is drawn here and shown in the one answer. The quorum gets its SHA-256.

use super::Api;
use super::accounts::ACCOUNTS;
use super::api::QUORUM_TIMEOUT;
use super::caller::Operator;
use super::refusal::{status, unexpected};
use super::roles::number;
use lattice_agent_common::clock::now;
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_model::access::{SUBJECT_NAME_BYTES_MAX, Scopes, ScopesError, Subject, SubjectName};
use lattice_model::access_token::{AccessToken, LIFETIME_DAYS_MAX, NAME_BYTES_MAX, Token, TokenId, TokenTextError};
use lattice_model::usage::DAY_MS;
use lattice_model::{Principal, Timestamp};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Refusal, Request as Ask};
use rand::TryRngCore;
use rand::rngs::OsRng;
use sha2::{Digest, Sha256};
use tonic::{Request, Status};

pub(super) async fn issue(api: &Api, request: Request<v1::IssueTokenRequest>) -> Result<v1::IssueTokenResponse, Status> {
    let operator = api.operator(&request).await?;
    let Wanted { name, account, scopes, lifetime_ms } = wanted(request.into_inner())?;
    let account = ACCOUNTS.subject(&account, &api.context.setup.me).await?;
    if number(&account) == 0 {
        return Err(root_gets_none());
    }
    let token = drawn()?;
    let issued_at = now();
    let record = AccessToken {
        id: token.id,
        name,
        account,
        scopes,
        secret_sha256: Sha256::digest(token.secret).into(),
        issued_at,
        issued_by: operator.name.clone(),
        expires_at: Timestamp(issued_at.0.saturating_add(lifetime_ms)),
    };
    // As the quorum writes it: with the machine.
    let issued_by = format!("{}@{}", operator.name, api.context.setup.me);
    let issued = v1::AccessToken { issued_by, ..to_proto(&record) };
    api.done(&operator.asks(Action::IssueToken { token: record })).await?;
    Ok(v1::IssueTokenResponse { token: token.text(), issued: Some(issued) })
}

/// Tokens of other accounts do not exist for those who may not revoke them.
pub(super) async fn revoke(api: &Api, request: Request<v1::RevokeTokenRequest>) -> Result<v1::AccessToken, Status> {
    let user = api.user(&request).await?;
    let admin = admin(api, &request).await?;
    let id: TokenId = request.into_inner().id.parse().map_err(|error: TokenTextError| {
        Status::invalid_argument(format!("{error}\nhint: `lattice admin token list` shows the ids; a token itself is not named"))
    })?;
    let record = record(api, id).await?.filter(|token| admin.is_some() || token.account.includes(&user));
    let Some(record) = record else { return Err(status(&CallError::Refused(Refusal::NoSuchToken { id }))) };
    let ask = match admin {
        Some(admin) => {
            let by = Principal { name: admin.name.clone(), ..admin.account.clone() };
            admin.asks(Action::RevokeToken { id, by, as_operator: true })
        }
        None => Ask::from(Action::RevokeToken { id, by: user, as_operator: false }),
    };
    api.done(&ask).await?;
    Ok(to_proto(&record))
}

/// Shows each caller what it may see.
pub(super) async fn list(api: &Api, request: Request<v1::ListTokensRequest>) -> Result<v1::ListTokensResponse, Status> {
    let user = api.user(&request).await?;
    let sees_all = admin(api, &request).await?.is_some();
    let v1::ListTokensRequest { account } = request.into_inner();
    let asked = if account.is_empty() { None } else { Some(account_name(account)?) };
    // Tokens of other accounts need not be read.
    let account = if sees_all { asked.clone() } else { Some(SubjectName { is_group: false, name: user.name.clone() }) };
    match api.quorum.call(&Ask::ListTokens { account }, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::Tokens(tokens) => {
            let is_shown = |token: &&AccessToken| {
                (sees_all || token.account.includes(&user)) && asked.as_ref().is_none_or(|asked| token.account.has_name(asked))
            };
            Ok(v1::ListTokensResponse { tokens: tokens.iter().filter(is_shown).map(to_proto).collect() })
        }
        other => Err(unexpected(&other)),
    }
}

/// The caller, if it may see and revoke all tokens; `None`: only those of its account, as work may.
async fn admin<T>(api: &Api, request: &Request<T>) -> Result<Option<Operator>, Status> {
    let caller = api.caller(request).await?;
    if caller.within.is_some() {
        return Ok(None);
    }
    match api.operator_by_token(request).await? {
        Some(operator) => Ok(Some(operator)),
        None => api.operator_by_role(&caller).await,
    }
}

async fn record(api: &Api, id: TokenId) -> Result<Option<AccessToken>, Status> {
    match api.quorum.call(&Ask::TokenRecord { id }, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::TokenRecord(record) => Ok(record.map(|record| *record)),
        other => Err(unexpected(&other)),
    }
}

fn drawn() -> Result<Token, Status> {
    let (mut id, mut secret) = ([0; 8], [0; 32]);
    let drawn = OsRng.try_fill_bytes(&mut id).and_then(|()| OsRng.try_fill_bytes(&mut secret));
    drawn.map_err(|e| Status::internal(format!("no random token can be drawn on this machine: {e}")))?;
    Ok(Token { id: TokenId(u64::from_le_bytes(id)), secret })
}

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
struct Wanted {
    name: String,
    account: SubjectName,
    scopes: Scopes,
    lifetime_ms: u64,
}

fn wanted(request: v1::IssueTokenRequest) -> Result<Wanted, Status> {
    let v1::IssueTokenRequest { name, account, scopes, days } = request;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        let text = format!("name: a token's name says what it is for, in 1 to {NAME_BYTES_MAX} bytes without control characters");
        return Err(Status::invalid_argument(text));
    }
    let account = account_name(account)?;
    let scopes = scopes.parse().map_err(|error: ScopesError| Status::invalid_argument(format!("scopes: {error}")))?;
    if !(1..=LIFETIME_DAYS_MAX).contains(&days) {
        return Err(Status::invalid_argument(format!("days: a token expires after 1 to {LIFETIME_DAYS_MAX} days, not {days}")));
    }
    Ok(Wanted { name, account, scopes, lifetime_ms: u64::from(days) * DAY_MS })
}

/// Only an account has a token, never a group.
fn account_name(name: String) -> Result<SubjectName, Status> {
    let is_name = !name.is_empty() && name.len() <= SUBJECT_NAME_BYTES_MAX && !name.chars().any(|c| c == ':' || c.is_control());
    if !is_name {
        return Err(Status::invalid_argument(format!("account: {name:?} is not the name of an account")));
    }
    Ok(SubjectName { is_group: false, name })
}

fn root_gets_none() -> Status {
    Status::invalid_argument(
        "root gets no token: a token would open everything from everywhere\n\
         hint: grant another account the roles that it needs (`lattice admin role grant`), and issue a token for that",
    )
}

fn to_proto(token: &AccessToken) -> v1::AccessToken {
    let (Subject::User { name: account, .. } | Subject::Group { name: account, .. }) = token.account.clone();
    v1::AccessToken {
        id: token.id.to_string(),
        name: token.name.clone(),
        account,
        scopes: token.scopes.to_string(),
        issued_at_ms: token.issued_at.0,
        issued_by: token.issued_by.clone(),
        expires_at_ms: token.expires_at.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, account: &str, scopes: &str, days: u32) -> v1::IssueTokenRequest {
        v1::IssueTokenRequest { name: name.to_owned(), account: account.to_owned(), scopes: scopes.to_owned(), days }
    }

    #[test]
    fn a_request_names_what_the_token_is_for_an_account_scopes_and_days() {
        let account = SubjectName { is_group: false, name: "alice".to_owned() };
        let good = Wanted { name: "ci".to_owned(), account, scopes: "read,work".parse().unwrap(), lifetime_ms: 90 * DAY_MS };
        let of = |request| wanted(request).map_err(|status| (status.code(), status.message().to_owned()));
        assert_eq!(of(request("ci", "alice", "work, read", 90)), Ok(good));
        for (bad, why) in [
            (request("", "alice", "read", 1), "name: a token's name says what it is for"),
            (request(&"x".repeat(65), "alice", "read", 1), "in 1 to 64 bytes"),
            (request("a\nb", "alice", "read", 1), "without control characters"),
            (request("ci", "", "read", 1), "account: \"\" is not the name of an account"),
            (request("ci", "group:physics", "read", 1), "account: \"group:physics\" is not"),
            (request("ci", "alice", "", 1), "scopes: \"\" is not a list of scopes"),
            (request("ci", "alice", "all", 1), "scopes: \"all\" is not a list of scopes"),
            (request("ci", "alice", "read", 0), "days: a token expires after 1 to 366 days, not 0"),
            (request("ci", "alice", "read", 367), "days: a token expires after 1 to 366 days, not 367"),
        ] {
            let (code, message) = of(bad).unwrap_err();
            assert!(code == tonic::Code::InvalidArgument && message.contains(why), "{why}: {message}");
        }
    }

    #[test]
    fn two_drawn_tokens_differ_and_are_read_back() {
        let (one, other) = (drawn().unwrap(), drawn().unwrap());
        assert!(one.id != other.id && one.secret != other.secret && one.secret != [0; 32]);
        assert_eq!(one.text().parse(), Ok(one));
    }

    #[test]
    fn a_shown_token_has_no_secret_and_no_hash_of_one() {
        let record = AccessToken {
            id: TokenId(0xab),
            name: "ci".to_owned(),
            account: Subject::User { name: "alice".to_owned(), uid: 7 },
            scopes: "work,read".parse().unwrap(),
            secret_sha256: [0x5e; 32],
            issued_at: Timestamp(1),
            issued_by: "anna@n1".to_owned(),
            expires_at: Timestamp(2),
        };
        let want = v1::AccessToken {
            id: "00000000000000ab".to_owned(),
            name: "ci".to_owned(),
            account: "alice".to_owned(),
            scopes: "read,work".to_owned(),
            issued_at_ms: 1,
            issued_by: "anna@n1".to_owned(),
            expires_at_ms: 2,
        };
        assert_eq!(to_proto(&record), want);
    }
}
