//! Tokens with which programs authenticate over the network: issued by the quorum for one account, shown once.
//!
//! ```text
//!   lattice_ 0123456789abcdef _ 64 hexadecimal digits
//!            └─ TokenId         └─ the secret: 32 random bytes; the ledger has its SHA-256 alone
//! ```

use crate::access::{Scopes, Subject};
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// What every token begins with, so that scanners of source code find tokens.
pub const PREFIX: &str = "lattice_";
/// The longest life of a token, in days.
pub const LIFETIME_DAYS_MAX: u32 = 366;
/// Largest size of a token's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Names a token without giving anything away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TokenId(pub u64);

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A text that is no token or no token's id. The text itself may be a secret and is not shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TokenTextError {
    /// Not an id.
    #[error("a token's id has 16 hexadecimal digits")]
    Id,
    /// Not a token.
    #[error("a token is {PREFIX}, 16 hexadecimal digits, _, and 64 hexadecimal digits")]
    Token,
}

impl FromStr for TokenId {
    type Err = TokenTextError;

    fn from_str(text: &str) -> Result<Self, TokenTextError> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let number = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(Self).ok_or(TokenTextError::Id)
    }
}

/// A whole token. `Debug` shows its id alone.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// Which token it is.
    pub id: TokenId,
    /// 32 random bytes.
    pub secret: [u8; 32],
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

impl Token {
    /// The text that its user gets.
    pub fn text(&self) -> String {
        let secret: String = self.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{}_{secret}", self.id)
    }
}

impl FromStr for Token {
    type Err = TokenTextError;

    fn from_str(text: &str) -> Result<Self, TokenTextError> {
        let (id, secret) = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('_')).ok_or(TokenTextError::Token)?;
        let id = id.parse().map_err(|_| TokenTextError::Token)?;
        if secret.len() != 64 || !secret.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(TokenTextError::Token);
        }
        let mut bytes = [0; 32];
        for (place, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&secret[2 * place..2 * place + 2], 16).map_err(|_| TokenTextError::Token)?;
        }
        Ok(Self { id, secret: bytes })
    }
}

/// What the ledger has of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessToken {
    /// Which one.
    pub id: TokenId,
    /// What it is for, in the words of whoever had it issued.
    pub name: String,
    /// The account as which its bearer acts: [`Subject::User`].
    pub account: Subject,
    /// What it opens.
    pub scopes: Scopes,
    /// SHA-256 of the secret.
    #[serde(with = "serde_bytes")]
    pub secret_sha256: [u8; 32],
    /// When it was issued.
    pub issued_at: Timestamp,
    /// The actor who had it issued.
    pub issued_by: String,
    /// From then on it is invalid.
    pub expires_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_is_written_and_never_shown() {
        let token = Token { id: TokenId(0xab), secret: [0x5e; 32] };
        let text = token.text();
        assert!(text.starts_with("lattice_00000000000000ab_5e5e") && text.len() == 8 + 16 + 1 + 64, "{text}");
        assert_eq!(text.parse(), Ok(token.clone()));
        assert_eq!(format!("{token:?}"), "Token(00000000000000ab)");
        for damaged in ["", "lattice_", &text[1..], &text[..text.len() - 1], &text.replace("5e", "5E"), &format!("{text}0")] {
            assert_eq!(damaged.parse::<Token>(), Err(TokenTextError::Token), "{damaged}");
        }
        assert_eq!("00000000000000AB".parse::<TokenId>(), Err(TokenTextError::Id));
        assert_eq!("+0000000000000ab".parse::<TokenId>(), Err(TokenTextError::Id));
    }
}
