//! Connections accepted under TLS, each with the certificate that is in force at that moment. Those that fail are counted.

use crate::credentials::Credentials;
use crate::refused::Cause;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Handshakes at once.
const HANDSHAKES_MAX: usize = 256;
/// Pause where nothing can be accepted: out of descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of a listener, until `stop`.
pub(crate) fn incoming(
    listener: TcpListener,
    credentials: Credentials,
    stop: CancellationToken,
) -> ReceiverStream<io::Result<TlsStream<TcpStream>>> {
    let (accepted, connections) = mpsc::channel(HANDSHAKES_MAX);
    tokio::spawn(async move {
        let turns = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        loop {
            let accepting = async {
                let turn = Arc::clone(&turns).acquire_owned().await;
                (turn, listener.accept().await)
            };
            let (turn, stream) = tokio::select! {
                () = stop.cancelled() => return,
                both = accepting => both,
            };
            let (stream, remote) = match stream {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "a connection cannot be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let (accepted, credentials) = (accepted.clone(), credentials.clone());
            tokio::spawn(async move {
                match tokio::time::timeout(HANDSHAKE_MAX, handshake(stream, &credentials)).await {
                    // The server is stopping where nobody takes it.
                    Ok(Ok(stream)) => drop(accepted.send(Ok(stream)).await),
                    Ok(Err(error)) => {
                        if let Some(cause) = Cause::of(&error) {
                            credentials.refused().count(cause, &format_args!("{remote}: {error}"));
                        }
                    }
                    Err(_) => credentials.refused().count(Cause::Handshake, &format_args!("{remote}: the handshake took too long")),
                }
                drop(turn);
            });
        }
    });
    ReceiverStream::new(connections)
}

async fn handshake(stream: TcpStream, credentials: &Credentials) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    TlsAcceptor::from(credentials.server()).accept(stream).await
}
