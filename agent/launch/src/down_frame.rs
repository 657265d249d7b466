//! Messages down a launch's tree.

use lattice_mesh::branch::Down;
use lattice_mesh::frame::{Frame, FrameError};
use lattice_mesh::launch::ToPart;
use lattice_pmi::BLOB_BYTES_MAX;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Fences smaller than this, in bytes, are not compressed. At this size, compression and
/// decompression take some hundred microseconds of a busy core, which is about the time that they
/// save when sixteen copies are sent at 10 Gbit/s.
const PACKED_BYTES_MIN: usize = 16 * 1024;
/// The fastest of zstd's ordinary levels.
const PACK_LEVEL: i32 = 1;

/// One message for the whole subtree: decoded for this node's own part, and as a frame for other
/// nodes.
#[derive(Debug)]
pub(super) struct DownFrame {
    pub(super) message: ToPart,
    /// Encoded when the first line to another node needs it.
    frame: OnceCell<Frame>,
}

impl DownFrame {
    /// A message made by this node.
    pub(super) fn new(message: ToPart) -> Arc<Self> {
        Arc::new(Self { message, frame: OnceCell::new() })
    }

    /// The frame for other nodes. The result of a fence is compressed if that saves more than a
    /// quarter.
    pub(super) async fn frame(self: &Arc<Self>) -> Result<&Frame, FrameError> {
        let encode = async || {
            let down_frame = Arc::clone(self);
            match &self.message {
                ToPart::FenceDone { blob, .. } if blob.len() >= PACKED_BYTES_MIN => apart(move || down_frame.encode(true)).await,
                ToPart::FenceDone { .. }
                | ToPart::Abort { .. }
                | ToPart::NameAbsent
                | ToPart::Forget
                | ToPart::Input(_)
                | ToPart::Call(_) => self.encode(false),
            }
        };
        self.frame.get_or_try_init(encode).await
    }

    fn encode(&self, packs: bool) -> Result<Frame, FrameError> {
        let down = match &self.message {
            ToPart::FenceDone { number, blob } => {
                let number = *number;
                let packed = packs.then(|| zstd::bulk::compress(blob, PACK_LEVEL).ok()).flatten();
                match (packed.filter(|packed| packed.len() < blob.len() / 4 * 3), u32::try_from(blob.len())) {
                    (Some(packed), Ok(bytes)) => Down::FenceDone { number, blob: packed, packed_from: Some(bytes) },
                    (Some(_), Err(_)) | (None, _) => Down::FenceDone { number, blob: blob.clone(), packed_from: None },
                }
            }
            ToPart::Abort { code, why } => Down::Abort { code: *code, why: why.clone() },
            ToPart::NameAbsent => Down::NameAbsent,
            ToPart::Forget => Down::Forget,
            ToPart::Input(piece) => Down::Input(piece.clone()),
            ToPart::Call(call) => Down::Call(call.clone()),
        };
        Frame::of(&down)
    }

    /// A message from the parent. Its frame is passed on unchanged.
    pub(super) async fn from_parent(frame: Frame) -> Result<Arc<Self>, FrameError> {
        let message = match frame.message()? {
            Down::Abort { code, why } => ToPart::Abort { code, why },
            Down::NameAbsent => ToPart::NameAbsent,
            Down::Forget => ToPart::Forget,
            Down::Input(piece) => ToPart::Input(piece),
            Down::Call(call) => ToPart::Call(call),
            Down::FenceDone { number, blob, packed_from: None } => ToPart::FenceDone { number, blob },
            Down::FenceDone { number, blob, packed_from: Some(bytes) } => {
                let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes <= BLOB_BYTES_MAX).ok_or(FrameError::Malformed)?;
                let unpacked = apart(move || zstd::bulk::decompress(&blob, bytes).map_err(FrameError::Io)).await?;
                ToPart::FenceDone { number, blob: unpacked }
            }
        };
        Ok(Arc::new(Self { message, frame: OnceCell::new_with(Some(frame)) }))
    }

    /// The number of the fence that this message completes, if it does.
    pub(super) fn fence(&self) -> Option<u32> {
        match self.message {
            ToPart::FenceDone { number, .. } => Some(number),
            ToPart::NameAbsent | ToPart::Abort { .. } | ToPart::Forget | ToPart::Input(_) | ToPart::Call(_) => None,
        }
    }
}

/// Runs work that may take milliseconds on a blocking thread, so that it delays no task.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, FrameError> + Send + 'static) -> Result<T, FrameError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(FrameError::Io(std::io::Error::other(error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_packed_frame_is_forwarded_packed_and_read_whole() {
        let alike = b"a name that all ranks have in common ".repeat(2000);
        let unlike: Vec<u8> = (0..PACKED_BYTES_MIN as u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for (blob, packed) in [(Vec::new(), false), (vec![7; PACKED_BYTES_MIN - 1], false), (alike, true), (unlike, false)] {
            let down_frame = DownFrame::new(ToPart::FenceDone { number: 3, blob: blob.clone() });
            let Down::FenceDone { packed_from, .. } = down_frame.frame().await.unwrap().message().unwrap() else {
                panic!("another message")
            };
            assert_eq!(packed_from.is_some(), packed, "{} bytes", blob.len());
            let received = DownFrame::from_parent(down_frame.frame().await.unwrap().clone()).await.unwrap();
            assert_eq!((received.message.clone(), received.fence()), (ToPart::FenceDone { number: 3, blob }, Some(3)));
        }
    }

    #[tokio::test]
    async fn a_fence_that_unpacks_to_something_else_is_refused() {
        for (blob, packed_from) in [(vec![1, 2, 3], 100), (zstd::bulk::compress(&[0; 4096], 1).unwrap(), 100), (Vec::new(), u32::MAX)] {
            let frame = Frame::of(&Down::FenceDone { number: 1, blob, packed_from: Some(packed_from) }).unwrap();
            assert!(DownFrame::from_parent(frame).await.is_err());
        }
    }
}
