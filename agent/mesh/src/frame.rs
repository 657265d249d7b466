//! Frames between agents: rkyv, validated before use, bounded, with a version in front.
//!
//! ```text
//!   frame = version (u8), 3 zero bytes, length (u32, little endian), rkyv
//! ```
//!
//! The first frame of every stream is an [`Open`](super::open::Open), which says what the stream is
//! for and so which message types follow. The version of the whole protocol is also in the
//! handshake (ALPN), which refuses every other one.

use bytes::Bytes;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::rancor::Error as Rancor;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The protocol's version, in each frame and in [`ALPN`].
pub const VERSION: u8 = 2;
/// The protocol name in the TLS handshake.
pub const ALPN: &[u8] = b"lattice-mesh/2";
/// The longest frame, in bytes.
pub const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The longest first frame of a stream ([`Open`](super::open::Open)), in bytes. The largest opens a
/// subtree of a launch: 1,000,000 listed places (8 bytes each), 100,000 nodes (80 bytes each), and
/// arguments and environment, of which Linux gives a program at most 6 MiB.
pub const OPEN_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Frames refused since the agent started, by reason.
pub static REFUSED: Refused = Refused { version: AtomicU64::new(0), too_large: AtomicU64::new(0), malformed: AtomicU64::new(0) };

/// See [`REFUSED`].
#[derive(Debug)]
pub struct Refused {
    pub version: AtomicU64,
    pub too_large: AtomicU64,
    pub malformed: AtomicU64,
}

/// A refused frame, or a broken stream.
#[derive(Debug, Error)]
pub enum FrameError {
    #[error("a frame of version {0}; this agent speaks {VERSION}")]
    Version(u8),
    #[error("a frame of {0} bytes, which is too long here")]
    TooLarge(usize),
    #[error("a frame that does not decode as a message of this stream")]
    Malformed,
    #[error("the stream ended")]
    Ended,
    #[error("the stream broke")]
    Io(#[from] std::io::Error),
}

/// One encoded message: a message to several peers is encoded once.
#[derive(Clone, Debug)]
pub struct Frame(Bytes);

impl Frame {
    /// Encodes a message.
    pub fn of<T>(message: &T) -> Result<Self, FrameError>
    where
        T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
    {
        let body = rkyv::to_bytes::<Rancor>(message).map_err(|_| FrameError::Malformed)?;
        if body.len() > FRAME_BYTES_MAX {
            return Err(FrameError::TooLarge(body.len()));
        }
        Ok(Self(Bytes::from_owner(body)))
    }

    /// Decodes the message.
    pub fn message<T>(&self) -> Result<T, FrameError>
    where
        T: Archive,
        T::Archived: for<'a> rkyv::bytecheck::CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
    {
        rkyv::from_bytes::<T, Rancor>(&self.0).map_err(|_| {
            REFUSED.malformed.fetch_add(1, Ordering::Relaxed);
            FrameError::Malformed
        })
    }

    /// Sends the frame without copying its body.
    pub async fn send(&self, stream: &mut quinn::SendStream) -> Result<(), FrameError> {
        stream.write_all(&self.header()?).await.map_err(std::io::Error::from)?;
        stream.write_chunk(self.0.clone()).await.map_err(std::io::Error::from)?;
        Ok(())
    }

    /// Reads one frame. [`FrameError::Ended`] if the peer finished between two frames.
    pub async fn read<R: AsyncRead + Unpin>(stream: &mut R) -> Result<Self, FrameError> {
        Announced::read(stream, FRAME_BYTES_MAX).await?.frame(stream).await
    }

    fn header(&self) -> Result<[u8; 8], FrameError> {
        let length = u32::try_from(self.0.len()).map_err(|_| FrameError::TooLarge(self.0.len()))?;
        let mut header = [VERSION, 0, 0, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&length.to_le_bytes());
        Ok(header)
    }
}

/// A frame whose header has been read, and not its body.
#[derive(Debug)]
pub struct Announced {
    /// Bytes that follow.
    pub bytes: usize,
}

impl Announced {
    /// Reads a header. [`FrameError::Ended`] if the peer finished between two frames.
    pub async fn read<R: AsyncRead + Unpin>(stream: &mut R, bytes_max: usize) -> Result<Self, FrameError> {
        let mut header = [0u8; 8];
        match stream.read_exact(&mut header).await {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Err(FrameError::Ended),
            other => other?,
        };
        if header[0] != VERSION {
            REFUSED.version.fetch_add(1, Ordering::Relaxed);
            return Err(FrameError::Version(header[0]));
        }
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        if length > bytes_max {
            REFUSED.too_large.fetch_add(1, Ordering::Relaxed);
            return Err(FrameError::TooLarge(length));
        }
        Ok(Self { bytes: length })
    }

    /// Reads the rest of the frame.
    pub async fn frame<R: AsyncRead + Unpin>(self, stream: &mut R) -> Result<Frame, FrameError> {
        let length = self.bytes;
        // Grows with what arrives: an announced length alone costs nothing.
        let mut body = AlignedVec::<16>::new();
        let mut chunk = vec![0u8; length.min(64 * 1024)];
        while body.len() < length {
            let want = chunk.len().min(length - body.len());
            stream.read_exact(&mut chunk[..want]).await?;
            body.extend_from_slice(&chunk[..want]);
        }
        Ok(Frame(Bytes::from_owner(body)))
    }
}

/// Encodes and writes one message.
pub async fn write<T, W>(stream: &mut W, message: &T) -> Result<(), FrameError>
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Rancor>>,
    W: AsyncWrite + Unpin,
{
    let frame = Frame::of(message)?;
    stream.write_all(&frame.header()?).await?;
    stream.write_all(&frame.0).await?;
    stream.flush().await?;
    Ok(())
}

/// Reads and decodes one message. [`FrameError::Ended`] if the peer finished between two messages.
pub async fn read<T, R>(stream: &mut R) -> Result<T, FrameError>
where
    T: Archive,
    T::Archived: for<'a> rkyv::bytecheck::CheckBytes<HighValidator<'a, Rancor>> + Deserialize<T, HighDeserializer<Rancor>>,
    R: AsyncRead + Unpin,
{
    Frame::read(stream).await?.message()
}

#[cfg(test)]
mod tests {
    use super::super::branch::Down;
    use super::super::open::Open;
    use super::*;
    use proptest::prelude::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(number in any::<u32>(), blob in proptest::collection::vec(any::<u8>(), 0..4096), why in ".*") {
            runtime().block_on(async {
                let messages = [Down::FenceDone { number, blob, packed_from: None }, Down::Abort { code: -1, why }, Down::Forget];
                let mut bytes = Vec::new();
                for m in &messages { write(&mut bytes, m).await.unwrap(); }
                let mut rest = bytes.as_slice();
                for m in messages { assert_eq!(read::<Down, _>(&mut rest).await.unwrap(), m); }
                assert!(matches!(read::<Down, _>(&mut rest).await, Err(FrameError::Ended)));
            });
        }

        #[test]
        fn hostile_bytes_are_refused_without_a_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), framed in any::<bool>()) {
            runtime().block_on(async {
                if framed && bytes.len() >= 8 {
                    let length = u32::try_from(bytes.len() - 8).unwrap();
                    bytes[0] = VERSION;
                    bytes[4..8].copy_from_slice(&length.to_le_bytes());
                }
                if let Ok(Open::Branch(open)) = read::<Open, _>(&mut bytes.as_slice()).await {
                    drop(open.shape.of(open.launch));
                }
            });
        }
    }

    #[test]
    fn another_version_and_a_frame_too_large_are_refused_and_counted() {
        runtime().block_on(async {
            let before = REFUSED.version.load(Ordering::Relaxed);
            let other = [9u8, 0, 0, 0, 1, 0, 0, 0, 0];
            assert!(matches!(read::<Down, _>(&mut other.as_slice()).await, Err(FrameError::Version(9))));
            assert!(REFUSED.version.load(Ordering::Relaxed) > before);
            let large = [VERSION, 0, 0, 0, 255, 255, 255, 255];
            assert!(matches!(read::<Down, _>(&mut large.as_slice()).await, Err(FrameError::TooLarge(_))));
        });
    }
}
