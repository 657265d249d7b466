//! Verifies signatures of tokens by ring. `jsonwebtoken` is built without cryptography of its own
//! and uses this.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature::{self, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};

/// Verifies with ring. It signs nothing, and converts no private keys.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(new_error(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` use ring in this process.
pub(crate) fn install() {
    // If another caller was first, that is just as good: this program has only one provider.
    let _ = PROVIDER.install_default();
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    let is_known = match key.kind() {
        DecodingKeyKind::RsaModulusExponent { .. } => by_rsa(*algorithm).is_some(),
        DecodingKeyKind::SecretOrDer(_) => by_curve(*algorithm).is_some(),
    };
    if is_known {
        Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() }))
    } else {
        Err(new_error(ErrorKind::UnsupportedAlgorithm))
    }
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let is_valid = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => by_rsa(self.algorithm).is_some_and(|parameters| {
                let key = RsaPublicKeyComponents { n: without_zeros(n), e: without_zeros(e) };
                key.verify(parameters, message, signature).is_ok()
            }),
            DecodingKeyKind::SecretOrDer(point) => by_curve(self.algorithm)
                .is_some_and(|algorithm| UnparsedPublicKey::new(algorithm, point).verify(message, signature).is_ok()),
        };
        if is_valid { Ok(()) } else { Err(Error::new()) }
    }
}

/// ring's parameters for an algorithm; `None`: not an algorithm of RSA keys.
fn by_rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&signature::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

/// ring's verification of an algorithm; `None`: not an algorithm of keys on an elliptic curve.
fn by_curve(algorithm: Algorithm) -> Option<&'static dyn VerificationAlgorithm> {
    match algorithm {
        Algorithm::ES256 => Some(&signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Some(&signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Some(&signature::ED25519),
        _ => None,
    }
}

/// Removes leading zeros: some providers write one, which ring refuses.
fn without_zeros(number: &[u8]) -> &[u8] {
    &number[number.iter().take_while(|byte| **byte == 0).count()..]
}
