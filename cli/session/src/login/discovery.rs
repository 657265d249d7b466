//! How to log in, as an agent reports it: `GET /api/v1/auth/discovery`, which needs no token.

use super::http::Http;
use crate::failure::{Exit, Failure};
use lattice_api::client::Access;
use serde::Deserialize;

/// The path of the document.
const PATH: &str = "/api/v1/auth/discovery";

/// The identity provider whose logins an agent accepts.
#[derive(Debug, PartialEq, Eq)]
pub struct Issuer {
    /// Its URL.
    pub issuer: String,
    /// The name of `lattice` there.
    pub client_id: String,
    /// The scopes that a login requests.
    pub scopes: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Document {
    issuer: Option<String>,
    client_id: Option<String>,
    #[serde(default)]
    scopes: Option<Vec<String>>,
}

/// Asks the agent at `server`, a whole `https://host:port`.
pub async fn discover(server: &str, access: &Access) -> Result<Issuer, Failure> {
    let http = Http::to_agent(access)?;
    let document = http.get_json("the login settings", &format!("{server}{PATH}")).await?;
    read(server, document)
}

fn read(server: &str, document: Document) -> Result<Issuer, Failure> {
    let Document { issuer, client_id, scopes } = document;
    match (issuer, client_id) {
        (Some(issuer), Some(client_id)) if !issuer.is_empty() => Ok(Issuer { issuer, client_id, scopes: scopes.unwrap_or_default() }),
        _ => Err(Failure::new(Exit::Refused, format!("{server} has no identity provider, so nobody logs in there"))
            .hint("an administrator issues a token (`lattice admin token issue`); put it into LATTICE_TOKEN")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<Issuer, Failure> {
        read("https://head:50051", serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_cluster_without_a_provider_says_what_to_do_instead() {
        let whole = r#"{"issuer": "https://idp", "client_id": "lattice", "scopes": ["openid"], "token_login": true, "cluster": "lab"}"#;
        let issuer = Issuer { issuer: "https://idp".into(), client_id: "lattice".into(), scopes: vec!["openid".into()] };
        assert_eq!(of(whole).unwrap(), issuer);
        let none = of(r#"{"issuer": null, "client_id": null, "scopes": null, "token_login": true, "cluster": "lab"}"#).unwrap_err();
        assert!(none.text().contains("LATTICE_TOKEN"), "{}", none.text());
        assert_eq!(none.exit(), 4);
    }
}
