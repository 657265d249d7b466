//! `lattice admin token`.

use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer, now};
use lattice_cli_session::shown::time;
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::token::{IssueToken, ListTokens, RevokeToken, TokenCommand};
use lattice_model::Timestamp;

/// How the table fits on a narrow screen.
const FIT: Fit<'_> = Fit { left_out: &["ISSUED BY"], shortened: &[("NAME", 12), ("ACCOUNT", 10)], wrapped: &[], left_out_last: &[] };

pub async fn run(session: &Session, command: TokenCommand) -> Result<(), Failure> {
    match command {
        TokenCommand::Issue(args) => issue(session, args).await,
        TokenCommand::List(args) => list(session, args).await,
        TokenCommand::Revoke(args) => revoke(session, &args).await,
    }
}

/// The token alone goes to stdout, so that a file or a pipe gets it and nothing else.
async fn issue(session: &Session, args: IssueToken) -> Result<(), Failure> {
    let IssueToken { name, account, scopes, days } = args;
    let client = session.connect().await?;
    let request = v1::IssueTokenRequest { name, account, scopes: scopes.to_string(), days };
    let v1::IssueTokenResponse { token, issued } = answer(client.admin().issue_token(request)).await?;
    let incomplete = || Failure::other("the agent's answer is not complete").hint("`lattice admin token list` shows whether it was issued");
    let issued = issued.ok_or_else(incomplete)?;
    match session.format() {
        Format::Table => {
            print(&format!("{token}\n"))?;
            session.note(&issued_text(&issued));
            Ok(())
        }
        Format::Data(notation) => {
            let mut value = json(&issued);
            value["token"] = token.into();
            notation.print(&value)
        }
        Format::Name => print(&format!("{token}\n")),
    }
}

async fn list(session: &Session, args: ListTokens) -> Result<(), Failure> {
    let client = session.connect().await?;
    let request = v1::ListTokensRequest { account: args.account.unwrap_or_default() };
    let tokens = answer(client.admin().list_tokens(request)).await?.tokens;
    match session.format() {
        Format::Table if tokens.is_empty() => {
            session.note("there is no such token that you may see");
            Ok(())
        }
        Format::Table => print(&table(&tokens, now(), session.table_size())),
        Format::Data(notation) => notation.print(&tokens.iter().map(json).collect::<Vec<_>>()),
        Format::Name => print_names(tokens.iter().map(|token| token.id.as_str())),
    }
}

async fn revoke(session: &Session, args: &RevokeToken) -> Result<(), Failure> {
    let client = session.connect().await?;
    let revoked = answer(client.admin().revoke_token(v1::RevokeTokenRequest { id: args.id.to_string() })).await?;
    match session.format() {
        Format::Table => print(&revoked_text(&revoked)),
        Format::Data(notation) => notation.print(&json(&revoked)),
        Format::Name => print_names([revoked.id.as_str()]),
    }
}

fn issued_text(issued: &v1::AccessToken) -> String {
    let v1::AccessToken { id, name, account, scopes, expires_at_ms, .. } = issued;
    format!(
        "Token {id} ({name}) acts as {account} with the scopes {scopes},\n\
         until {}. Store it now where only its program can read it:\n\
         it is not shown again.",
        Timestamp(*expires_at_ms)
    )
}

fn revoked_text(revoked: &v1::AccessToken) -> String {
    let v1::AccessToken { id, name, account, .. } = revoked;
    format!("token {id} ({name}) of {account} is revoked, everywhere within 10 seconds\n")
}

fn table(tokens: &[v1::AccessToken], now: Timestamp, size: TableSize) -> String {
    let mut table = Table::new(&["ID", "NAME", "ACCOUNT", "SCOPES", "EXPIRES", "ISSUED BY"]);
    for token in tokens {
        let v1::AccessToken { id, name, account, scopes, issued_at_ms: _, issued_by, expires_at_ms } = token.clone();
        let expires = if expires_at_ms <= now.0 { "expired".to_owned() } else { day(expires_at_ms) };
        table.row(vec![id, name, account, scopes, expires, issued_by]);
    }
    table.on_screen(&[], &FIT, size)
}

/// A day in UTC, such as `2026-03-05`.
fn day(ms: u64) -> String {
    Timestamp(ms).to_string().chars().take(10).collect()
}

fn json(token: &v1::AccessToken) -> serde_json::Value {
    serde_json::json!({
        "id": token.id,
        "name": token.name,
        "account": token.account,
        "scopes": token.scopes.split(',').collect::<Vec<_>>(),
        "issued_at": time(token.issued_at_ms),
        "issued_by": token.issued_by,
        "expires_at": time(token.expires_at_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::output::Width;

    fn token(id: &str, name: &str, scopes: &str, expires_at_ms: u64) -> v1::AccessToken {
        v1::AccessToken {
            id: id.into(),
            name: name.into(),
            account: "builder".into(),
            scopes: scopes.into(),
            issued_at_ms: 1,
            issued_by: "anna@n1".into(),
            expires_at_ms,
        }
    }

    const DAY_MS: u64 = 86_400_000;

    #[test]
    fn tokens_are_a_table_that_fits_into_80_columns() {
        let size = TableSize { width: Width::Terse, columns: Some(80) };
        let tokens = [token("00000000000000ab", "ci", "read,work", 90 * DAY_MS), token("7f0c9a4e5b7d4c39", "old", "admin", DAY_MS)];
        let want = "\
ID                NAME  ACCOUNT  SCOPES     EXPIRES     ISSUED BY
00000000000000ab  ci    builder  read,work  1970-04-01  anna@n1
7f0c9a4e5b7d4c39  old   builder  admin      expired     anna@n1
";
        assert_eq!(table(&tokens, Timestamp(2 * DAY_MS), size), want);
        let long = v1::AccessToken { account: "y".repeat(200), ..token("7f0c9a4e5b7d4c39", &"x".repeat(64), "read,work,admin", DAY_MS) };
        let text = table(std::slice::from_ref(&long), Timestamp(0), size);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(table(&[long], Timestamp(0), TableSize { width: Width::Wide, columns: Some(80) }).contains(&"x".repeat(64)));
    }

    #[test]
    fn what_is_said_of_a_token_names_it_and_never_its_secret() {
        let issued = token("00000000000000ab", "ci", "read,work", DAY_MS);
        let want = "Token 00000000000000ab (ci) acts as builder with the scopes read,work,\n\
                    until 1970-01-02T00:00:00.000Z. Store it now where only its program can read it:\n\
                    it is not shown again.";
        assert_eq!(issued_text(&issued), want);
        let want = "token 00000000000000ab (ci) of builder is revoked, everywhere within 10 seconds\n";
        assert_eq!(revoked_text(&issued), want);
        let want = serde_json::json!({
            "id": "00000000000000ab", "name": "ci", "account": "builder", "scopes": ["read", "work"],
            "issued_at": "1970-01-01T00:00:00.001Z", "issued_by": "anna@n1", "expires_at": "1970-01-02T00:00:00.000Z",
        });
        assert_eq!(json(&issued), want);
    }
}
