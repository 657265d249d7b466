//! Why connecting to an agent failed. Each text names the remedy.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why connecting failed. What to do next, if it is not part of the text, follows on a line `hint: …`.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The endpoint has an unknown form.
    #[error("{endpoint:?} is not an endpoint: write unix:/path/of/agent.sock or https://host:port")]
    Endpoint {
        /// The given endpoint.
        endpoint: String,
    },
    /// No process listens on the socket.
    #[error("no agent answers at {endpoint}: is lattice-agent running on this machine? `lattice doctor` checks that")]
    NoAgent {
        /// The endpoint.
        endpoint: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The socket exists, but this user may not use it.
    #[error("may not connect to {endpoint}: its permissions do not allow this user")]
    Denied {
        /// The endpoint.
        endpoint: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The connection was established, but the transport failed.
    #[error("no agent answers at {endpoint}: is another program listening there?")]
    Transport {
        /// The endpoint.
        endpoint: String,
        /// The transport's error.
        #[source]
        source: tonic::transport::Error,
    },
    /// The name of the host has no address.
    #[error("the host of {endpoint} has no address\nhint: check the name; `getent hosts NAME` shows whether this machine can resolve it")]
    UnknownHost {
        /// The endpoint.
        endpoint: String,
        /// The resolver's error.
        #[source]
        source: io::Error,
    },
    /// The host refuses connections, or cannot be reached.
    #[error("no agent answers at {endpoint}\nhint: the agent there must have `api.listen`, and no firewall may be in between")]
    Unreachable {
        /// The endpoint.
        endpoint: String,
        /// The error of the last address.
        #[source]
        source: io::Error,
    },
    /// The host did not answer in time.
    #[error(
        "no agent answered at {endpoint} within {seconds} s\n\
         hint: the agent there must have `api.listen`, and no firewall may be in between"
    )]
    Timeout {
        /// The endpoint.
        endpoint: String,
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// No authority that this machine trusts has issued the server's certificate.
    #[error(
        "the certificate of {endpoint} is not trusted\n\
         hint: name the file with the cluster's authority: `ca` in ~/.config/lattice/config.yaml, or LATTICE_CA"
    )]
    Untrusted {
        /// The endpoint.
        endpoint: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server's certificate is for other names.
    #[error("the certificate of {endpoint} is for another name\nhint: connect by a name or an address that the certificate has")]
    OtherName {
        /// The endpoint.
        endpoint: String,
        /// Which names.
        #[source]
        source: io::Error,
    },
    /// The server's certificate has expired, or is not valid yet.
    #[error(
        "the certificate of {endpoint} is not valid at present\n\
         hint: check this machine's clock; otherwise the agent there needs a new certificate"
    )]
    NotValidNow {
        /// The endpoint.
        endpoint: String,
        /// Until or from when.
        #[source]
        source: io::Error,
    },
    /// The other end does not speak TLS, or not ours.
    #[error("no agent answers at {endpoint}: is another program listening there?")]
    Handshake {
        /// The endpoint.
        endpoint: String,
        /// The error of TLS.
        #[source]
        source: io::Error,
    },
    /// The file with the authorities' certificates cannot be used.
    #[error("the file {} has no certificate of an authority (PEM)\nhint: `ca` in config.yaml and LATTICE_CA name it", path.display())]
    Authorities {
        /// Its path.
        path: PathBuf,
        /// Why, if it could not be read.
        #[source]
        source: Option<io::Error>,
    },
    /// The file with the own certificate cannot be used.
    #[error(
        "the file {} has no certificate with its key (PEM)\nhint: `certificate` in config.yaml and LATTICE_CERTIFICATE name it",
        path.display()
    )]
    OwnCertificate {
        /// Its path.
        path: PathBuf,
        /// Why, if it could not be read.
        #[source]
        source: Option<io::Error>,
    },
    /// This machine has no certificates of authorities.
    #[error(
        "this machine has no certificates of authorities\n\
         hint: name the file with the cluster's: `ca` in ~/.config/lattice/config.yaml, or LATTICE_CA"
    )]
    NoAuthorities,
    /// The token has characters that a token cannot have.
    #[error(
        "the token has characters that no token has\n\
         hint: copy it again, without spaces and line breaks, into LATTICE_TOKEN or `token`"
    )]
    Token,
    /// TLS cannot be set up.
    #[error("TLS cannot be set up")]
    Tls {
        /// Why.
        #[source]
        source: rustls::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_of_the_network_names_the_endpoint_and_a_remedy() {
        let endpoint = || "https://head:50051".to_owned();
        let source = || io::Error::other("why");
        for error in [
            ConnectError::UnknownHost { endpoint: endpoint(), source: source() },
            ConnectError::Unreachable { endpoint: endpoint(), source: source() },
            ConnectError::Timeout { endpoint: endpoint(), seconds: 5 },
            ConnectError::Untrusted { endpoint: endpoint(), source: source() },
            ConnectError::OtherName { endpoint: endpoint(), source: source() },
            ConnectError::NotValidNow { endpoint: endpoint(), source: source() },
        ] {
            let text = error.to_string();
            assert!(text.contains("https://head:50051") && text.contains("\nhint: "), "{text}");
        }
    }
}
