//! For tests: keys that sign tokens, and a provider on a port of this machine.

use jsonwebtoken::Algorithm;
use lattice_agent_common::config::oidc::{OidcSettings, SigningAlgorithm};
use lattice_model::Timestamp;
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The issuer of [`settings`] and [`claims`].
pub(crate) const ISSUER: &str = "https://idp.example.org/realms/hpc";
/// The time at which tokens are checked.
pub(crate) const NOW: Timestamp = Timestamp(1_800_000_000_000);

/// Settings that accept tokens with [`claims`] and elliptic-curve signatures.
pub(crate) fn settings() -> OidcSettings {
    OidcSettings {
        issuer: ISSUER.to_owned(),
        client_id: "lattice".to_owned(),
        algorithms: vec![SigningAlgorithm::Es256, SigningAlgorithm::Es384, SigningAlgorithm::EdDsa],
        ..OidcSettings::default()
    }
}

/// Claims of a valid token with changes; a claim that becomes null is left out.
pub(crate) fn claims(changes: &[(&str, Value)]) -> Value {
    let seconds = NOW.0 / 1000;
    let mut claims = json!({"iss": ISSUER, "sub": "s-1", "aud": "lattice", "exp": seconds + 300, "preferred_username": "alice"});
    for (name, value) in changes {
        claims[*name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}

/// A key pair with an id.
pub(crate) struct Signer {
    id: String,
    pair: Pair,
}

enum Pair {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signer {
    pub(crate) fn new(algorithm: Algorithm, id: &str) -> Self {
        let random = SystemRandom::new();
        let ecdsa = |algorithm| {
            let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
            EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap()
        };
        let pair = match algorithm {
            Algorithm::ES256 => Pair::P256(ecdsa(&signature::ECDSA_P256_SHA256_FIXED_SIGNING)),
            Algorithm::ES384 => Pair::P384(ecdsa(&signature::ECDSA_P384_SHA384_FIXED_SIGNING)),
            Algorithm::EdDSA => {
                let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
                Pair::Ed(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
            }
            other => panic!("no key pair for {other:?}"),
        };
        Self { id: id.to_owned(), pair }
    }

    fn algorithm(&self) -> &'static str {
        match &self.pair {
            Pair::P256(_) => "ES256",
            Pair::P384(_) => "ES384",
            Pair::Ed(_) => "EdDSA",
        }
    }

    /// The public key.
    pub(crate) fn jwk(&self) -> Value {
        let on_curve = |curve: &str, pair: &EcdsaKeyPair| {
            let (x, y) = pair.public_key().as_ref()[1..].split_at(pair.public_key().as_ref().len() / 2);
            json!({"kty": "EC", "kid": self.id, "crv": curve, "x": base64url(x), "y": base64url(y)})
        };
        match &self.pair {
            Pair::P256(pair) => on_curve("P-256", pair),
            Pair::P384(pair) => on_curve("P-384", pair),
            Pair::Ed(pair) => json!({"kty": "OKP", "kid": self.id, "crv": "Ed25519", "x": base64url(pair.public_key().as_ref())}),
        }
    }

    /// A token with these claims.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "kid": self.id, "typ": "JWT"}), claims)
    }

    /// A token with this header and these claims.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        let message = format!("{}.{}", base64url(header.to_string().as_bytes()), base64url(claims.to_string().as_bytes()));
        let signature = match &self.pair {
            Pair::P256(pair) | Pair::P384(pair) => pair.sign(&SystemRandom::new(), message.as_bytes()).unwrap(),
            Pair::Ed(pair) => pair.sign(message.as_bytes()),
        };
        format!("{message}.{}", base64url(signature.as_ref()))
    }
}

/// RFC 4648, section 5, without padding.
pub(crate) fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let byte = |place: usize| u32::from(group.get(place).copied().unwrap_or_default());
        let bits = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for place in 0..=group.len() {
            text.push(char::from(DIGITS[((bits >> (18 - 6 * place)) & 63) as usize]));
        }
    }
    text
}

/// A provider that serves its configuration document and its keys.
pub(crate) struct TestProvider {
    pub issuer: String,
    /// The whole answer for each path.
    pages: Arc<Mutex<BTreeMap<String, String>>>,
    fetches: Arc<AtomicUsize>,
}

impl TestProvider {
    /// Starts a provider that has no keys until [`Self::serve_keys`].
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let issuer = format!("http://{}", listener.local_addr().unwrap());
        let provider = Self { issuer, pages: Arc::default(), fetches: Arc::default() };
        let (pages, fetches) = (Arc::clone(&provider.pages), Arc::clone(&provider.fetches));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, &pages, &fetches).await;
            }
        });
        provider
    }

    /// Settings with this provider.
    pub(crate) fn settings(&self) -> OidcSettings {
        OidcSettings { issuer: self.issuer.clone(), ..settings() }
    }

    /// Serves these keys, and the document that names them.
    pub(crate) fn serve_keys(&self, signers: &[&Signer]) {
        let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
        let document = json!({"issuer": self.issuer, "jwks_uri": format!("{}/keys", self.issuer)});
        self.answer("/.well-known/openid-configuration", "200 OK", "", &document.to_string());
        self.answer("/keys", "200 OK", "", &json!({ "keys": keys }).to_string());
    }

    /// The answer for a path; each of the headers ends with a line break.
    pub(crate) fn answer(&self, path: &str, status: &str, headers: &str, body: &str) {
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
        self.pages.lock().insert(path.to_owned(), answer);
    }

    /// How often the keys were fetched.
    pub(crate) fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }
}

async fn serve(mut stream: TcpStream, pages: &Mutex<BTreeMap<String, String>>, fetches: &AtomicUsize) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => return,
        }
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default();
    if path == "/keys" {
        fetches.fetch_add(1, Ordering::Relaxed);
    }
    let answer = pages.lock().get(path).cloned();
    let answer = answer.unwrap_or_else(|| "HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_owned());
    // A client that has read enough closes the connection.
    let _ = stream.write_all(answer.as_bytes()).await;
}
