//! The connection to a shim.

use lattice_runtime::shim::{Decoder, FromShim, ToShim, encode};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Both directions of a shim's socket.
pub(super) struct Link {
    stream: UnixStream,
    decoder: Decoder<FromShim>,
}

impl Link {
    pub(super) fn new(stream: std::os::unix::net::UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, decoder: Decoder::default() })
    }

    pub(super) async fn send(&mut self, message: &ToShim) -> io::Result<()> {
        let frame = encode(message).map_err(io::Error::other)?;
        self.stream.write_all(&frame).await
    }

    /// The next message; `None` if the connection is closed or its data is invalid. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<FromShim> {
        let mut chunk = vec![0; 16 * 1024];
        loop {
            match self.decoder.next() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a shim's message cannot be read: the line to it is closed");
                    return None;
                }
            }
            match self.stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return None,
                Ok(n) => self.decoder.push(&chunk[..n]),
            }
        }
    }
}
