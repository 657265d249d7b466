//! Reads the claims of a provider's tokens (JWT, RFC 7519) and verifies that the provider signed them.
//! No I/O.
//!
//! A token is read first: issuer, audience, times and account must be right before anybody looks
//! for a key. So tokens of somebody else never make the agent ask the provider. The claims may be
//! trusted only after [`Unverified::verify`].

use crate::identified::{Identified, IdentifiedBy, Refused};
use crate::key_set::WantedKey;
use jsonwebtoken::dangerous::insecure_decode_claims;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use lattice_agent_common::config::oidc::{OidcSettings, SigningAlgorithm};
use lattice_model::Timestamp;
use lattice_model::access::{SUBJECT_NAME_BYTES_MAX, Scopes};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The types (`typ`) of tokens that are accepted, in lower case. A provider also signs other things
/// than tokens for services, such as notices of a logout.
const TYPES: [&str; 3] = ["jwt", "at+jwt", "application/at+jwt"];

/// What the provider's tokens must have.
pub(crate) struct Expected {
    settings: OidcSettings,
    algorithms: Vec<Algorithm>,
}

/// A token with claims that would be accepted. Its signature is not verified.
pub(crate) struct Unverified<'a> {
    text: &'a str,
    key: WantedKey,
    claimed: Claimed,
}

/// What a token says of its bearer.
pub(crate) struct Claimed {
    pub account: Account,
    issuer: String,
    subject: String,
    tenants: BTreeSet<String>,
    expires_at: Timestamp,
}

/// Who knows the account of a token.
pub(crate) enum Account {
    Named(String),
    /// The site's program names the account, by these claims.
    ByHook(Map<String, Value>),
}

impl Claimed {
    /// The person that the token identifies, with this account.
    pub(crate) fn identified(self, account: String) -> Identified {
        let Self { account: _, issuer, subject, tenants, expires_at } = self;
        let kind = IdentifiedBy::Oidc { issuer, subject };
        Identified { account, uid: None, scopes: Scopes::all(), tenants, kind, expires_at }
    }
}

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
}

impl Expected {
    /// `settings`: must be valid.
    pub(crate) fn new(settings: OidcSettings) -> Self {
        let algorithms = settings.algorithms.iter().map(|algorithm| algorithm_of(*algorithm)).collect();
        Self { settings, algorithms }
    }

    pub(crate) fn settings(&self) -> &OidcSettings {
        &self.settings
    }

    /// Reads a token and checks everything but its signature.
    pub(crate) fn read<'a>(&self, text: &'a str, now: Timestamp) -> Result<Unverified<'a>, Refused> {
        let mut parts = text.split('.');
        let (Some(header), Some(claims), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err(Refused::Malformed);
        };
        let header: Header = part(header).ok_or(Refused::Malformed)?;
        let claims: Map<String, Value> = part(claims).ok_or(Refused::Malformed)?;
        if header.typ.is_some_and(|given| !TYPES.contains(&given.to_ascii_lowercase().as_str())) {
            return Err(Refused::Malformed);
        }
        if text_of(&claims, "iss") != Some(self.settings.issuer.as_str()) {
            return Err(Refused::WrongIssuer);
        }
        let algorithm = header.alg.parse::<Algorithm>().ok().filter(|given| self.algorithms.contains(given)).ok_or(Refused::Algorithm)?;
        self.check_audience(&claims)?;
        let expires_at = self.check_times(&claims, now)?;
        let subject = text_of(&claims, "sub").ok_or(Refused::Malformed)?;
        let (subject, tenants) = (subject.to_owned(), self.tenants(&claims));
        let account = if self.settings.account_hook.as_os_str().is_empty() {
            Account::Named(self.account(&claims, &subject).ok_or(Refused::NoAccount)?)
        } else {
            Account::ByHook(claims)
        };
        let claimed = Claimed { account, issuer: self.settings.issuer.clone(), subject, tenants, expires_at };
        Ok(Unverified { text, key: WantedKey { id: header.kid, algorithm }, claimed })
    }

    fn check_audience(&self, claims: &Map<String, Value>) -> Result<(), Refused> {
        let is_ours = |given: &Value| given.as_str().is_some_and(|given| self.settings.audience().iter().any(|ours| ours == given));
        let is_for_us = match claims.get("aud") {
            Some(Value::Array(given)) => given.iter().any(is_ours),
            Some(given) => is_ours(given),
            None => false,
        };
        if is_for_us { Ok(()) } else { Err(Refused::WrongAudience) }
    }

    /// Returns the end of the token's time, with the leeway.
    fn check_times(&self, claims: &Map<String, Value>, now: Timestamp) -> Result<Timestamp, Refused> {
        let leeway_ms = self.settings.leeway_seconds.saturating_mul(1000);
        let expires = time_of(claims, "exp")?.ok_or(Refused::Malformed)?;
        let expires_at = Timestamp(expires.0.saturating_add(leeway_ms));
        if now >= expires_at {
            return Err(Refused::Expired);
        }
        match time_of(claims, "nbf")? {
            Some(begins) if begins.0 > now.0.saturating_add(leeway_ms) => Err(Refused::NotYet),
            Some(_) | None => Ok(expires_at),
        }
    }

    /// The tenants of the groups that the token names. A claim that names no groups makes nobody a member.
    fn tenants(&self, claims: &Map<String, Value>) -> BTreeSet<String> {
        let OidcSettings { groups_claim, group_tenants, .. } = &self.settings;
        let groups = match claims.get(groups_claim) {
            Some(Value::Array(groups)) => groups.as_slice(),
            Some(group) => std::slice::from_ref(group),
            None => &[],
        };
        groups.iter().filter_map(Value::as_str).filter_map(|group| group_tenants.get(group)).cloned().collect()
    }

    /// The account for these claims. The subject comes first: only the provider chooses it. At many
    /// providers, people may change other claims themselves.
    fn account(&self, claims: &Map<String, Value>, subject: &str) -> Option<String> {
        let claimed = text_of(claims, self.settings.account_claim());
        let accounts = &self.settings.accounts;
        let mapped = accounts.get(subject).or_else(|| accounts.get(claimed?));
        let account = mapped.map(String::as_str).or(claimed)?;
        is_account_name(account).then(|| account.to_owned())
    }
}

impl Unverified<'_> {
    /// The key that verifies it.
    pub(crate) fn key(&self) -> &WantedKey {
        &self.key
    }

    /// The token's claims, if this key has signed it.
    pub(crate) fn verify(self, key: &DecodingKey) -> Result<Claimed, Refused> {
        let mut signature_alone = Validation::new(self.key.algorithm);
        signature_alone.required_spec_claims.clear();
        signature_alone.validate_exp = false;
        signature_alone.validate_aud = false;
        match decode::<IgnoredAny>(self.text, key, &signature_alone) {
            Ok(_) => Ok(self.claimed),
            Err(_) => Err(Refused::BadSignature),
        }
    }
}

fn algorithm_of(algorithm: SigningAlgorithm) -> Algorithm {
    match algorithm {
        SigningAlgorithm::Rs256 => Algorithm::RS256,
        SigningAlgorithm::Rs384 => Algorithm::RS384,
        SigningAlgorithm::Rs512 => Algorithm::RS512,
        SigningAlgorithm::Ps256 => Algorithm::PS256,
        SigningAlgorithm::Ps384 => Algorithm::PS384,
        SigningAlgorithm::Ps512 => Algorithm::PS512,
        SigningAlgorithm::Es256 => Algorithm::ES256,
        SigningAlgorithm::Es384 => Algorithm::ES384,
        SigningAlgorithm::EdDsa => Algorithm::EdDSA,
    }
}

/// Decodes one part of a token: base64url of JSON.
fn part<T: DeserializeOwned>(encoded: &str) -> Option<T> {
    // The library decodes the middle one of three parts.
    insecure_decode_claims(format!(".{encoded}.")).ok()
}

fn text_of<'a>(claims: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    claims.get(name).and_then(Value::as_str)
}

/// A time in seconds since 1970, which may have a fraction.
fn time_of(claims: &Map<String, Value>, name: &str) -> Result<Option<Timestamp>, Refused> {
    match claims.get(name) {
        None => Ok(None),
        Some(value) => match value.as_f64().filter(|seconds| seconds.is_finite() && *seconds >= 0.0) {
            Some(seconds) => Ok(Some(Timestamp((seconds * 1000.0) as u64))),
            None => Err(Refused::Malformed),
        },
    }
}

/// Whether this may be the name of an account that calls from the network. Digits alone would be
/// taken for a user id.
pub(crate) fn is_account_name(name: &str) -> bool {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    let is_odd = name.chars().any(|c| c.is_control() || c.is_whitespace() || matches!(c, ':' | '/'));
    !name.is_empty() && name.len() <= SUBJECT_NAME_BYTES_MAX && name != "root" && !is_number && !is_odd
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_set::KeySet;
    use crate::test_provider::{ISSUER, NOW, Signer, base64url, claims, settings};
    use serde_json::json;

    fn expected() -> Expected {
        crate::signature::install();
        Expected::new(settings())
    }

    /// Reads a token and verifies it with one of these keys.
    fn identify(expected: &Expected, keys: &KeySet, text: &str) -> Result<Identified, Refused> {
        let unverified = expected.read(text, NOW)?;
        let key = keys.find(unverified.key()).ok_or(Refused::UnknownKey)?;
        let claimed = unverified.verify(&key)?;
        let Account::Named(account) = &claimed.account else { panic!("there is no program of the site") };
        let account = account.clone();
        Ok(claimed.identified(account))
    }

    fn key_set(signers: &[&Signer]) -> KeySet {
        let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_sites_table_maps_groups_of_a_token_to_tenants_and_other_groups_are_ignored() {
        let table = [("phys", "physics"), ("phys-adm", "physics"), ("bio", "biology")];
        let group_tenants = table.map(|(group, tenant)| (group.to_owned(), tenant.to_owned())).into();
        let expected = Expected::new(OidcSettings { group_tenants, ..settings() });
        let tenants = |groups: Value| {
            let claims = claims(&[("groups", groups)]);
            expected.tenants(claims.as_object().unwrap()).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(tenants(json!(["phys", "phys-adm", "bio", "staff", 7])), ["biology", "physics"]);
        assert_eq!(tenants(json!("phys")), ["physics"]);
        for none in [json!([]), json!(null), json!({"phys": true}), json!("phys,bio"), json!(7)] {
            assert_eq!(tenants(none), Vec::<String>::new());
        }
    }

    #[test]
    fn a_token_of_the_provider_identifies_a_person_with_all_scopes() {
        for algorithm in [Algorithm::ES256, Algorithm::ES384, Algorithm::EdDSA] {
            let signer = Signer::new(algorithm, "k1");
            let identified = identify(&expected(), &key_set(&[&signer]), &signer.token(&claims(&[]))).unwrap();
            let want = Identified {
                account: "alice".to_owned(),
                uid: None,
                scopes: Scopes::all(),
                tenants: BTreeSet::new(),
                kind: IdentifiedBy::Oidc { issuer: ISSUER.to_owned(), subject: "s-1".to_owned() },
                expires_at: Timestamp(NOW.0 + 300_000 + 60_000),
            };
            assert_eq!(identified, want, "{algorithm:?}");
        }
    }

    #[test]
    fn each_claim_is_checked() {
        let signer = Signer::new(Algorithm::ES256, "k1");
        let (expected, keys) = (expected(), key_set(&[&signer]));
        let of = |changes: &[(&str, Value)]| identify(&expected, &keys, &signer.token(&claims(changes))).map(|found| found.account);
        let seconds = NOW.0 / 1000;
        for (changes, refused) in [
            (("iss", json!("https://elsewhere")), Refused::WrongIssuer),
            (("iss", json!([ISSUER])), Refused::WrongIssuer),
            (("iss", Value::Null), Refused::WrongIssuer),
            (("aud", json!("other")), Refused::WrongAudience),
            (("aud", json!([])), Refused::WrongAudience),
            (("aud", Value::Null), Refused::WrongAudience),
            (("exp", json!(seconds - 61)), Refused::Expired),
            (("exp", json!(0)), Refused::Expired),
            (("exp", Value::Null), Refused::Malformed),
            (("exp", json!("tomorrow")), Refused::Malformed),
            (("exp", json!(-1)), Refused::Malformed),
            (("nbf", json!(seconds + 61)), Refused::NotYet),
            (("nbf", json!("now")), Refused::Malformed),
            (("sub", Value::Null), Refused::Malformed),
            (("preferred_username", Value::Null), Refused::NoAccount),
            (("preferred_username", json!(["alice"])), Refused::NoAccount),
            (("preferred_username", json!("root")), Refused::NoAccount),
            (("preferred_username", json!("0")), Refused::NoAccount),
            (("preferred_username", json!("")), Refused::NoAccount),
            (("preferred_username", json!("al\nice")), Refused::NoAccount),
            (("preferred_username", json!("user:alice")), Refused::NoAccount),
            (("preferred_username", json!("a".repeat(257))), Refused::NoAccount),
        ] {
            assert_eq!(of(std::slice::from_ref(&changes)), Err(refused), "{changes:?}");
        }
        for changes in [
            ("aud", json!("lattice")),
            ("aud", json!(["other", "lattice"])),
            ("exp", json!(seconds - 59)),
            ("exp", json!(seconds as f64 + 0.5)),
            ("exp", json!(1e300)),
            ("nbf", json!(seconds + 59)),
        ] {
            assert_eq!(of(std::slice::from_ref(&changes)), Ok("alice".to_owned()), "{changes:?}");
        }
    }

    #[test]
    fn the_table_of_accounts_wins_over_the_claim_and_the_subject_comes_first() {
        let signer = Signer::new(Algorithm::ES256, "k1");
        let keys = key_set(&[&signer]);
        let table = [("s-1", "a-smith"), ("alice@example.org", "alice"), ("0123", "bob")];
        let accounts = table.map(|(given, account)| (given.to_owned(), account.to_owned())).into();
        let expected = Expected::new(OidcSettings { accounts, account_claim: Some("email".to_owned()), ..expected().settings });
        let of = |changes: &[(&str, Value)]| identify(&expected, &keys, &signer.token(&claims(changes))).map(|found| found.account);
        assert_eq!(of(&[]), Ok("a-smith".to_owned()), "it has no such claim");
        assert_eq!(of(&[("sub", json!("s-2")), ("email", json!("alice@example.org"))]), Ok("alice".to_owned()));
        assert_eq!(of(&[("sub", json!("s-2")), ("email", json!("carol"))]), Ok("carol".to_owned()));
        assert_eq!(of(&[("sub", json!("s-2"))]), Err(Refused::NoAccount));
        // A person who puts another one's subject into a claim still gets their own account.
        assert_eq!(of(&[("email", json!("0123"))]), Ok("a-smith".to_owned()));
    }

    #[test]
    fn shared_secrets_no_signature_and_other_algorithms_are_refused() {
        let signer = Signer::new(Algorithm::ES256, "k1");
        let (expected, keys) = (expected(), key_set(&[&signer]));
        let token = signer.token(&claims(&[]));
        let (_, rest) = token.split_once('.').unwrap();
        let (payload, _) = rest.split_once('.').unwrap();
        for algorithm in ["none", "None", "HS256", "HS512", "RS256", "es256", "ES512", ""] {
            let header = base64url(json!({"alg": algorithm, "kid": "k1"}).to_string().as_bytes());
            for text in [format!("{header}.{rest}"), format!("{header}.{payload}.")] {
                assert_eq!(identify(&expected, &keys, &text), Err(Refused::Algorithm), "{algorithm:?}");
            }
        }
        // The algorithm is accepted, but does not fit the key: the key's curve decides.
        let header = base64url(json!({"alg": "ES384", "kid": "k1"}).to_string().as_bytes());
        assert_eq!(identify(&expected, &keys, &format!("{header}.{rest}")), Err(Refused::UnknownKey));
        // Neither the key in the header nor an address of keys there counts.
        let other = Signer::new(Algorithm::ES256, "k1");
        let header = json!({"alg": "ES256", "kid": "k1", "jwk": other.jwk(), "jku": "https://elsewhere/keys"});
        assert_eq!(identify(&expected, &keys, &other.token_with(&header, &claims(&[]))), Err(Refused::BadSignature));
        // A part of the header that must be understood.
        let header = json!({"alg": "ES256", "kid": "k1", "crit": ["x"], "x": 1});
        assert_eq!(identify(&expected, &keys, &signer.token_with(&header, &claims(&[]))), Err(Refused::BadSignature));
        let header = json!({"alg": "ES256", "kid": "k1", "typ": "logout+jwt"});
        assert_eq!(identify(&expected, &keys, &signer.token_with(&header, &claims(&[]))), Err(Refused::Malformed));
        let header = json!({"alg": "ES256", "kid": "k1", "typ": "at+JWT"});
        assert!(identify(&expected, &keys, &signer.token_with(&header, &claims(&[]))).is_ok());
    }

    #[test]
    fn a_changed_token_is_never_accepted() {
        let signer = Signer::new(Algorithm::ES256, "k1");
        let (expected, keys) = (expected(), key_set(&[&signer]));
        let token = signer.token(&claims(&[]));
        assert!(identify(&expected, &keys, &token).is_ok());
        for place in 0..token.len() {
            for other in [b'A', b'.', b'_', b'='] {
                let mut changed = token.clone().into_bytes();
                if std::mem::replace(&mut changed[place], other) == other {
                    continue;
                }
                let changed = String::from_utf8(changed).unwrap();
                assert!(identify(&expected, &keys, &changed).is_err(), "{changed}");
            }
            assert!(identify(&expected, &keys, &token[..place]).is_err());
        }
        for text in ["", ".", "..", "...", "a.b.c", "ä.ö.ü"] {
            assert_eq!(identify(&expected, &keys, text), Err(Refused::Malformed), "{text}");
        }
        let nested = format!("{}.{}.", base64url(b"{\"alg\":\"ES256\"}"), base64url("[".repeat(10_000).as_bytes()));
        assert_eq!(identify(&expected, &keys, &nested), Err(Refused::Malformed));
    }

    /// Tokens that OpenSSL has signed, with the public key. ring does not make RSA keys.
    #[test]
    fn tokens_by_rsa_keys_are_verified() {
        let vectors: Value = serde_json::from_str(include_str!("rsa_vectors.json")).unwrap();
        let keys = KeySet::parse(json!({ "keys": [vectors["jwk"]] }).to_string().as_bytes()).unwrap();
        let expected = Expected::new(OidcSettings { algorithms: SigningAlgorithm::ALL.into(), ..expected().settings });
        for algorithm in ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"] {
            let token = vectors["tokens"][algorithm].as_str().unwrap();
            assert_eq!(identify(&expected, &keys, token).map(|found| found.account), Ok("alice".to_owned()), "{algorithm}");
            // The signature of another algorithm.
            let other = if algorithm == "RS256" { "PS256" } else { "RS256" };
            let (_, signature) = vectors["tokens"][other].as_str().unwrap().rsplit_once('.').unwrap();
            let (signed, _) = token.rsplit_once('.').unwrap();
            assert_eq!(identify(&expected, &keys, &format!("{signed}.{signature}")), Err(Refused::BadSignature), "{algorithm}");
        }
        // A leading zero of the modulus, as some providers write it.
        let keys = KeySet::parse(json!({ "keys": [vectors["jwk_with_zero"]] }).to_string().as_bytes()).unwrap();
        assert!(identify(&expected, &keys, vectors["tokens"]["RS256"].as_str().unwrap()).is_ok());
    }
}
