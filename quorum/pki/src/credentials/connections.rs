//! Connections to members. Both ends show a certificate, and who answers is the member that is wanted.

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

/// A peer that does not answer a ping for as long as this is taken for dead.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection on which somebody waits is pinged after so long a silence.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// One that has messages of its own every now and then: ten thousand sessions are not pinged every second.
const PING_INTERVAL_SESSION: Duration = Duration::from_secs(30);
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Used {
    /// Calls and watches: somebody waits, and notices within two seconds that nobody answers.
    Calls,
    /// Sessions: their heartbeats are answered, or the session is over.
    Session,
}

/// The member that is wanted at the other end.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    Member(u64),
    AnyMember,
}

impl Credentials {
    /// Connections to a member, made when one is first used and again after each loss.
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

    /// The same with any member, over bytes that somebody carries there from here: TLS is with the member at their other end, so
    /// who carries them can neither read nor change nor repeat any. Made once: when it ends, so does the channel.
    pub fn channel_over<S>(&self, stream: S, address: &str) -> Result<Channel, TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let name = ServerName::try_from(QUORUM_NAME).map_err(|e| TlsError::Pem { what: "name", why: e.to_string() })?;
        let endpoint = http2(address, Used::Session)?;
        let (this, address, once) = (self.clone(), address.to_owned(), Arc::new(Mutex::new(Some(stream))));
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let (this, address, name, stream) = (this.clone(), address.clone(), name.clone(), lock(&once).take());
            async move {
                let stream = stream.ok_or_else(|| io::Error::other("it is not carried any more"))?;
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
            let why = format!("what answers at {address} is not the member that is wanted: {who}");
            self.0.refused.count(Cause::Name, &why);
            return Err(io::Error::other(why));
        }
        // In TLS 1.3 the peer looks at our certificate when we are through already. Its first bytes say that it takes it, and
        // an alert why not: once HTTP/2 has the stream, nobody hears that.
        let refused =
            |why: String| io::Error::other(format!("{address} does not take the certificate of {}: {why}", self.present().own.name));
        match stream.fill_buf().await {
            Ok([]) => Err(refused("it closed the connection".to_owned())),
            Ok(_) => Ok(stream),
            Err(error) => Err(refused(alert_in_words(&error))),
        }
    }
}

/// TLS is the connector's: to tonic it is plain HTTP/2.
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

fn alert_in_words(error: &io::Error) -> String {
    let alert = match error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => Cause::of_alert(u8::from(*alert)),
        _ => return error.to_string(),
    };
    match alert {
        Cause::Expired => "it has ended (or the clocks differ): `lattice doctor` shows until when it holds".to_owned(),
        Cause::Authority => "it is of another authority".to_owned(),
        Cause::Name | Cause::Role | Cause::Revoked | Cause::Handshake | Cause::Generation | Cause::Replayed => error.to_string(),
    }
}
