//! The connection to a shim.

use lattice_runtime::shim::{Decoder, FromShim, ToShim, encode};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// How long a shim may take to receive a message. One that takes longer hangs or is stopped.
const SEND_WAIT: Duration = Duration::from_secs(5);

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

    /// Sends a message, within [`SEND_WAIT`]. After an error the connection must be dropped: the
    /// message may have been sent in part.
    pub(super) async fn send(&mut self, message: &ToShim) -> io::Result<()> {
        let frame = encode(message).map_err(io::Error::other)?;
        let written = tokio::time::timeout(SEND_WAIT, self.stream.write_all(&frame)).await;
        written.unwrap_or_else(|_| {
            let why = format!("the shim has not received a message within {} s", SEND_WAIT.as_secs());
            Err(io::Error::new(io::ErrorKind::TimedOut, why))
        })
    }

    /// The process that listened at the other end when this was connected, if it is in this agent's
    /// pid namespace.
    pub(super) fn pid(&self) -> Option<i32> {
        self.stream.peer_cred().ok()?.pid().filter(|pid| *pid > 0)
    }

    /// The next message; `None` if the connection is closed or its data is invalid. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<FromShim> {
        let mut chunk = vec![0; 16 * 1024];
        loop {
            match self.decoder.next() {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a shim's message cannot be read: the connection to it is closed");
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

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use lattice_runtime::shim::{Decoder, FRAME_BYTES_MAX};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream as Socket;

    fn connection() -> (Link, Socket) {
        let (ours, shim) = Socket::pair().unwrap();
        (Link::new(ours).unwrap(), shim)
    }

    #[tokio::test]
    async fn messages_are_complete_however_their_bytes_arrive() {
        let (mut link, mut shim) = connection();
        let (ready, synced) = (FromShim::Ready { failed: Some("no image".into()) }, FromShim::Synced);
        let bytes = [encode(&ready).unwrap(), encode(&synced).unwrap()].concat();
        shim.write_all(&bytes[..7]).unwrap();
        link.stream.readable().await.unwrap();
        assert_eq!(link.next().now_or_never(), None, "an incomplete message survives a dropped read");
        shim.write_all(&bytes[7..]).unwrap();
        assert_eq!((link.next().await, link.next().await), (Some(ready), Some(synced)));
        drop(shim);
        assert_eq!(link.next().await, None);
    }

    #[tokio::test]
    async fn a_message_of_a_later_version_is_skipped_and_invalid_bytes_close_the_connection() {
        let frame = |body: &[u8]| [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], body].concat();
        let too_long = u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_le_bytes().to_vec();
        for bad in [frame(b"\xc1"), frame(b""), too_long] {
            let (mut link, mut shim) = connection();
            shim.write_all(&encode(&"KindOfALaterVersion").unwrap()).unwrap();
            shim.write_all(&encode(&FromShim::Going).unwrap()).unwrap();
            shim.write_all(&bad).unwrap();
            assert_eq!((link.next().await, link.next().await), (Some(FromShim::Going), None), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn a_shim_that_does_not_read_keeps_nobody_for_ever() {
        let (mut link, _shim) = connection();
        let typed = ToShim::Typed { launch: lattice_model::LaunchId(uuid::Uuid::nil()), bytes: vec![0; 1 << 20] };
        let sent = tokio::time::timeout(SEND_WAIT * 12, async {
            loop {
                if let Err(error) = link.send(&typed).await {
                    return error;
                }
            }
        });
        assert_eq!(sent.await.expect("an error in time").kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn messages_to_a_shim_arrive_in_order_and_sending_to_a_dead_one_fails() {
        let (mut link, mut shim) = connection();
        let sent = [ToShim::Go { walltime_ms: 7 }, ToShim::Quit];
        for message in &sent {
            link.send(message).await.unwrap();
        }
        let mut bytes = vec![0; 4096];
        let n = shim.read(&mut bytes).unwrap();
        let mut decoder = Decoder::<ToShim>::default();
        decoder.push(&bytes[..n]);
        assert_eq!([decoder.next().unwrap().unwrap(), decoder.next().unwrap().unwrap()], sent);
        drop(shim);
        assert!(link.send(&ToShim::Quit).await.is_err());
    }
}
