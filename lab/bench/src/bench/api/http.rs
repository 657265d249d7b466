//! HTTP/1.1 over TLS, as much as the bench needs: one request after another on a connection, or one endless answer.

use anyhow::{Context, Result, bail, ensure};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How long one answer, or the beginning of an endless one, may take.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Where an agent serves the API on the network.
#[derive(Clone)]
pub(super) struct Server {
    address: SocketAddr,
    tls: TlsConnector,
}

impl Server {
    /// `ca`: the authority that issued its certificate.
    pub(super) fn new(address: &str, ca: &Path) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca).with_context(|| format!("cannot read {}", ca.display()))? {
            roots.add(certificate?)?;
        }
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { address: address.parse()?, tls: TlsConnector::from(Arc::new(config)) })
    }

    pub(super) async fn connect(&self) -> Result<Connection> {
        let tcp = TcpStream::connect(self.address).await.with_context(|| format!("no agent answers at {}", self.address))?;
        tcp.set_nodelay(true)?;
        let stream = self.tls.connect(ServerName::IpAddress(self.address.ip().into()), tcp).await?;
        Ok(Connection { stream, received: Vec::new() })
    }
}

/// A connection with one request at a time.
pub(super) struct Connection {
    stream: TlsStream<TcpStream>,
    /// What has arrived and was not read.
    received: Vec<u8>,
}

/// A request.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub method: &'a str,
    pub path: &'a str,
    pub token: Option<&'a str>,
    /// JSON.
    pub body: Option<&'a str>,
}

impl<'a> Request<'a> {
    pub(super) fn get(path: &'a str, token: Option<&'a str>) -> Self {
        Self { method: "GET", path, token, body: None }
    }
}

impl Connection {
    /// Sends a request and reads its answer: the status, and the body.
    pub(super) async fn ask(&mut self, request: Request<'_>) -> Result<(u16, Vec<u8>)> {
        timeout(ANSWER_MAX, async {
            let head = self.begin(request).await?;
            let bytes = head.bytes.context("an answer that does not say how long it is")?;
            ensure!(bytes <= ANSWER_BYTES_MAX, "an answer of {bytes} bytes");
            while self.received.len() < bytes {
                self.read().await?;
            }
            let rest = self.received.split_off(bytes);
            Ok((head.status, std::mem::replace(&mut self.received, rest)))
        })
        .await
        .with_context(|| format!("{} {}: no answer", request.method, request.path))?
    }

    /// Sends a request that has an endless answer.
    pub(super) async fn follow(&mut self, request: Request<'_>) -> Result<()> {
        let head = timeout(ANSWER_MAX, self.begin(request)).await.context("no answer")??;
        ensure!(head.status == 200, "{}: {}", request.path, head.status);
        Ok(())
    }

    /// Reads and discards the answer until the connection ends.
    pub(super) async fn drain(mut self) {
        while self.read().await.is_ok() {
            self.received.clear();
        }
    }

    async fn begin(&mut self, Request { method, path, token, body }: Request<'_>) -> Result<Head> {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let of_body = body.map(|body| format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len())).unwrap_or_default();
        let text = format!("{method} {path} HTTP/1.1\r\nHost: lattice\r\n{token}{of_body}\r\n{}", body.unwrap_or_default());
        self.stream.write_all(text.as_bytes()).await?;
        loop {
            if let Some(end) = self.received.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.received.split_off(end + 4);
                let head = std::mem::replace(&mut self.received, rest);
                return Head::parse(&String::from_utf8_lossy(&head));
            }
            self.read().await?;
        }
    }

    async fn read(&mut self) -> Result<()> {
        if self.stream.read_buf(&mut self.received).await? == 0 {
            bail!("the agent closed the connection");
        }
        Ok(())
    }
}

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    bytes: Option<usize>,
}

impl Head {
    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).and_then(|status| status.parse().ok());
        let status = status.with_context(|| format!("no answer in HTTP: {text:?}"))?;
        let length = lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
        Ok(Self { status, bytes: length.map(|(_, length)| length.trim().parse()).transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_has_a_status_and_perhaps_a_length() {
        let head = Head::parse("HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\nContent-Length: 12\r\n\r\n").unwrap();
        assert_eq!(head, Head { status: 200, bytes: Some(12) });
        assert_eq!(Head::parse("HTTP/1.1 404 Not Found\r\n\r\n").unwrap(), Head { status: 404, bytes: None });
        assert!(Head::parse("ok").is_err() && Head::parse("HTTP/1.1 200 OK\r\ncontent-length: x\r\n").is_err());
    }
}
