//! What a token in JWT form (RFC 7519) says. `lattice` does not verify it: agents do.

use lattice_model::time::Timestamp;
use std::time::Duration;

/// Whether the text has the form of a signed JWT.
pub fn is_jwt(token: &str) -> bool {
    payload(token).is_some()
}

/// When the token expires by the clock of its issuer, if it says so.
pub fn expiry(token: &str) -> Option<Timestamp> {
    Some(Timestamp((seconds(&payload(token)?, "exp")? * 1000.0) as u64))
}

/// How long the token lives from its issue on, if it says so.
pub fn life(token: &str) -> Option<Duration> {
    let claims = payload(token)?;
    let life = seconds(&claims, "exp")? - seconds(&claims, "iat")?;
    (life > 0.0).then(|| Duration::from_secs_f64(life))
}

/// A time of RFC 7519: seconds since 1970, perhaps with a fraction.
fn seconds(claims: &serde_json::Value, name: &str) -> Option<f64> {
    claims.get(name)?.as_f64().filter(|seconds| (0.0..1e12).contains(seconds))
}

fn payload(token: &str) -> Option<serde_json::Value> {
    let parts: Vec<&str> = token.split('.').collect();
    let [_, payload, _] = parts.as_slice() else { return None };
    serde_json::from_slice(&decode(payload)?).ok().filter(serde_json::Value::is_object)
}

/// The bytes of a text in base64url without padding (RFC 4648, section 5).
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    let (mut bits, mut count) = (0u32, 0u32);
    for character in text.bytes() {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // The rest are bits that fill the last character.
    (count < 6 && bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// {"alg":"none"} . {"exp":1767225600,"sub":"ä?"} . x
    const TOKEN: &str = "eyJhbGciOiJub25lIn0.eyJleHAiOjE3NjcyMjU2MDAsInN1YiI6IsOkPyJ9.x";

    #[test]
    fn the_end_of_a_token_is_read_without_verifying_it() {
        assert_eq!(expiry(TOKEN), Some(Timestamp(1_767_225_600_000)));
        assert!(is_jwt(TOKEN) && life(TOKEN).is_none(), "it does not say when it was issued");
        // {"alg":"none"} . {"iat":1767225300,"exp":1767225600} . x, and the same with iat = exp
        let issued = "eyJhbGciOiJub25lIn0.eyJpYXQiOjE3NjcyMjUzMDAsImV4cCI6MTc2NzIyNTYwMH0.x";
        assert_eq!(life(issued), Some(Duration::from_secs(300)));
        assert_eq!(life("eyJhbGciOiJub25lIn0.eyJpYXQiOjE3NjcyMjU2MDAsImV4cCI6MTc2NzIyNTYwMH0.x"), None);
        for opaque in ["", "lattice_0123_4567", "a.b.c", "a.b", "eyJ9.eyJ9.", &TOKEN[1..20]] {
            assert!(!is_jwt(opaque) && expiry(opaque).is_none(), "{opaque}");
        }
    }

    #[test]
    fn base64url_is_decoded_as_in_its_standard() {
        for (text, bytes) in [("", &b""[..]), ("Zg", b"f"), ("Zm8", b"fo"), ("Zm9v", b"foo"), ("Zm9vYg", b"foob"), ("-_8", &[0xfb, 0xff])] {
            assert_eq!(decode(text).as_deref(), Some(bytes), "{text}");
        }
        for bad in ["Z", "Zg==", "Zh", "Zm+v", "Zm 8"] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
