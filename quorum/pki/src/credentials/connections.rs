//! Connections to members. Both ends present a certificate, and the client checks that it reached
//! the intended member.

use super::{Credentials, lock};
use crate::identity::{QUORUM_NAME, Shown, member_name};
use crate::refused::Cause;
use crate::tls::TlsError;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

/// A peer that does not answer a ping within this time is considered dead.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// The ping interval of a silent connection on which a caller waits.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// The ping interval of connections that have regular messages of their own: ten thousand sessions
/// must not be pinged every second.
const PING_INTERVAL_SESSION: Duration = Duration::from_secs(30);
/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Calls and watches: the caller notices within two seconds that the peer is dead.
    Calls,
    /// Sessions: if heartbeats are not answered, the session ends.
    Session,
}

/// The intended member at the other end.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    Member(u64),
    AnyMember,
}

/// A byte stream that another agent relays. It is used as a trait object, so that HTTP/2 and TLS are
/// compiled here alone.
pub trait RelayedStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> RelayedStream for S {}

impl Credentials {
    /// A channel to a member; it connects at the first use and again after each loss.
    pub fn channel(&self, endpoint: &str, wanted: Wanted, used: Used) -> Result<Channel, TlsError> {
        let name = match wanted {
            Wanted::Member(id) => member_name(id),
            Wanted::AnyMember => QUORUM_NAME.to_owned(),
        };
        let name = ServerName::try_from(name).map_err(|e| TlsError::Pem { what: "name", why: e.to_string() })?;
        let address = endpoint.to_owned();
        let endpoint = http2(endpoint, used)?;
        let this = self.clone();
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let (this, address, name) = (this.clone(), address.clone(), name.clone());
            async move {
                let stream = TcpStream::connect(&address).await?;
                stream.set_nodelay(true)?;
                this.secure(stream, &address, name, wanted).await.map(TokioIo::new)
            }
        })))
    }

    /// A channel to any member over a byte stream that another agent relays. TLS is with the member
    /// at the far end, so the relaying agent can neither read nor change nor replay anything.
    /// Connected once: when the stream ends, so does the channel.
    pub fn channel_over(&self, stream: Box<dyn RelayedStream>, address: &str) -> Result<Channel, TlsError> {
        let name = ServerName::try_from(QUORUM_NAME).map_err(|e| TlsError::Pem { what: "name", why: e.to_string() })?;
        let endpoint = http2(address, Used::Session)?;
        let (this, address, once) = (self.clone(), address.to_owned(), Arc::new(Mutex::new(Some(stream))));
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let (this, address, name, stream) = (this.clone(), address.clone(), name.clone(), lock(&once).take());
            async move {
                let stream = stream.ok_or_else(|| io::Error::other("it is not relayed any more"))?;
                this.secure(stream, &address, name, Wanted::AnyMember).await.map(TokioIo::new)
            }
        })))
    }

    async fn secure<S>(
        &self,
        stream: S,
        address: &str,
        name: ServerName<'static>,
        wanted: Wanted,
    ) -> io::Result<tokio_rustls::client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.present().grpc_client);
        let mut stream = TlsConnector::from(config).connect(name, stream).await.inspect_err(|error| {
            if let Some(cause) = Cause::of(error) {
                self.0.refused.count(cause, &format_args!("{address}: {error}"));
            }
        })?;
        let peer = Shown::from_certificates(stream.get_ref().1.peer_certificates().unwrap_or_default());
        if let Ok(peer) = &peer
            && let Err(revoked) = self.0.revoked.check(peer)
        {
            self.0.refused.count(Cause::Revoked, &format_args!("{address}: {revoked}"));
            return Err(io::Error::other(revoked));
        }
        let fits = peer.as_ref().ok().and_then(|peer| peer.caller.member()).is_some_and(|id| match wanted {
            Wanted::Member(wanted) => wanted == id,
            Wanted::AnyMember => true,
        });
        if !fits {
            let who = |peer: Shown| format!("it is {} (role {})", peer.caller.name, peer.caller.role);
            let who = peer.map_or_else(|error| error.to_string(), who);
            let why = format!("the peer at {address} is not the expected member: {who}");
            self.0.refused.count(Cause::Name, &why);
            return Err(io::Error::other(why));
        }
        // In TLS 1.3 the handshake is complete on this side before the peer checks our certificate.
        // Its first bytes show that it accepted the certificate; an alert says why not. Once HTTP/2
        // owns the stream, that reason is lost.
        let refused =
            |why: String| io::Error::other(format!("{address} does not accept the certificate of {}: {why}", self.present().own.name));
        match stream.fill_buf().await {
            Ok([]) => Err(refused("it closed the connection".to_owned())),
            Ok(_) => Ok(stream),
            Err(error) => Err(refused(describe_alert(&error))),
        }
    }
}

/// The connector does TLS: tonic sees plain HTTP/2.
fn http2(address: &str, used: Used) -> Result<Endpoint, TlsError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|source| TlsError::Endpoint { endpoint: address.to_owned(), source })?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(match used {
            Used::Calls => PING_INTERVAL,
            Used::Session => PING_INTERVAL_SESSION,
        })
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    Ok(endpoint)
}

fn describe_alert(error: &io::Error) -> String {
    let alert = match error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => Cause::of_alert(u8::from(*alert)),
        _ => return error.to_string(),
    };
    match alert {
        Cause::Expired => "it has expired (or the clocks differ): `lattice doctor` shows until when it is valid".to_owned(),
        Cause::Authority => "another authority issued it".to_owned(),
        Cause::Name | Cause::Role | Cause::Revoked | Cause::Handshake | Cause::Generation | Cause::Replayed => error.to_string(),
    }
}
