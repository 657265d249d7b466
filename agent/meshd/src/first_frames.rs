//! The first frames of streams that peers open, until each is checked. Their memory is bounded for
//! each peer, by name: a peer may open several connections, and what it sends is not yet known to
//! be permitted.

use lattice_mesh::frame::{Announced, FrameError, OPEN_BYTES_MAX};
use lattice_mesh::open::Open;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::io::AsyncRead;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory is counted in pieces of this many bytes; a frame counts as at least one.
const PIECE_BYTES: usize = 64 * 1024;
/// How much the first frames of one peer may have at once: two of the largest, or 1024 small ones.
/// Others wait.
const PIECES_PER_PEER: usize = 2 * OPEN_BYTES_MAX / PIECE_BYTES;

/// The memory in use by each peer that has any.
#[derive(Debug, Default)]
pub(crate) struct FirstFrames {
    peers: Mutex<HashMap<String, Arc<Semaphore>>>,
}

impl FirstFrames {
    /// Reads a stream's first frame, once there is memory for it. It counts until the permit is
    /// dropped.
    pub(crate) async fn read<R>(&self, peer: &str, stream: &mut R) -> Result<(Open, OwnedSemaphorePermit), FrameError>
    where
        R: AsyncRead + Unpin,
    {
        let announced = Announced::read(stream, OPEN_BYTES_MAX).await?;
        let pieces = u32::try_from(announced.bytes.div_ceil(PIECE_BYTES).max(1)).expect("a frame's length fits in 32 bits");
        let held = self.of(peer).acquire_many_owned(pieces).await.expect("never closed");
        Ok((announced.frame(stream).await?.message()?, held))
    }

    fn of(&self, peer: &str) -> Arc<Semaphore> {
        let mut peers = self.peers.lock();
        if let Some(known) = peers.get(peer) {
            return Arc::clone(known);
        }
        // Permits and those who wait for one hold the semaphore.
        peers.retain(|_, pieces| Arc::strong_count(pieces) > 1);
        let pieces = Arc::new(Semaphore::new(PIECES_PER_PEER));
        peers.insert(peer.to_owned(), Arc::clone(&pieces));
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_mesh::frame;
    use lattice_mesh::open::StatusTextsOpen;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;
    use tokio::io::ReadBuf;

    fn header(bytes: usize) -> Vec<u8> {
        [&[frame::VERSION, 0, 0, 0][..], &u32::try_from(bytes).unwrap().to_le_bytes()].concat()
    }

    #[tokio::test]
    async fn a_frame_longer_than_any_request_is_refused_by_its_header() {
        let frames = FirstFrames::default();
        let read = frames.read("n1", &mut header(OPEN_BYTES_MAX + 1).as_slice()).await;
        assert!(matches!(read, Err(FrameError::TooLarge(bytes)) if bytes == OPEN_BYTES_MAX + 1));
        let large = Open::StatusTexts(StatusTextsOpen { allocations: vec![[7; 16]; 1_500_000] });
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &large).await.unwrap();
        assert_eq!(frames.read("n1", &mut bytes.as_slice()).await.unwrap().0, large);
    }

    #[tokio::test]
    async fn a_peer_that_sends_no_more_than_headers_stops_only_itself() {
        let frames = Arc::new(FirstFrames::default());
        let mut small = Vec::new();
        frame::write(&mut small, &Open::Fingerprint).await.unwrap();
        let begun: Vec<_> = (0..2)
            .map(|_| {
                let frames = Arc::clone(&frames);
                tokio::spawn(async move {
                    let header = header(OPEN_BYTES_MAX);
                    let mut never = tokio::io::AsyncReadExt::chain(&header[..], NeverReady);
                    frames.read("n1", &mut never).await.map(|_| ())
                })
            })
            .collect();
        tokio::task::yield_now().await;
        let (mut one, mut other) = (small.as_slice(), small.as_slice());
        let waits = tokio::time::timeout(Duration::from_millis(50), frames.read("n1", &mut one));
        assert!(waits.await.is_err());
        assert_eq!(frames.read("n2", &mut other).await.unwrap().0, Open::Fingerprint);
        for stream in begun {
            stream.abort();
            assert!(stream.await.unwrap_err().is_cancelled());
        }
        assert_eq!(frames.read("n1", &mut small.as_slice()).await.unwrap().0, Open::Fingerprint);
        drop(frames.read("n3", &mut small.as_slice()).await.unwrap());
        assert_eq!(frames.peers.lock().len(), 1, "those without frames are forgotten");
    }

    struct NeverReady;

    impl AsyncRead for NeverReady {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }
}
