//! Messages down a launch's tree.

use lattice_mesh::branch::Down;
use lattice_mesh::frame::{Frame, FrameError};
use lattice_mesh::launch::ToPart;
use lattice_pmi::{BLOB_BYTES_MAX, FenceMerged};
use std::sync::Arc;

/// Fences smaller than this are not compressed: compressing and decompressing take some hundred
/// microseconds of a busy core, about as much as is saved when sixteen copies are sent at 10
/// Gbit/s. Beyond this size, cost and gain grow alike.
const PACKED_BYTES_MIN: usize = 16 * 1024;
/// The fastest of zstd's ordinary levels.
const PACK_LEVEL: i32 = 1;

/// One message for the whole subtree: its frame, and its form for this node's own part.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub(super) frame: Frame,
    pub(super) message: ToPart,
}

impl Told {
    /// A message made by this node; nothing in it is compressed.
    pub(super) fn new(message: ToPart) -> Result<Arc<Self>, FrameError> {
        let down = match message.clone() {
            ToPart::FenceDone { number, blob } => Down::FenceDone { number, blob, packed_from: None },
            ToPart::Abort { code, why } => Down::Abort { code, why },
            ToPart::NameAbsent => Down::NameAbsent,
            ToPart::Forget => Down::Forget,
            ToPart::Input(piece) => Down::Input(piece),
            ToPart::Call(call) => Down::Call(call),
        };
        Ok(Arc::new(Self { frame: Frame::of(&down)?, message }))
    }

    /// The message that a fence is done, compressed if that pays.
    pub(super) async fn fence_done(FenceMerged { number, blob }: FenceMerged) -> Result<Arc<Self>, FrameError> {
        if blob.len() < PACKED_BYTES_MIN {
            return Self::new(ToPart::FenceDone { number, blob });
        }
        apart(move || {
            let from = u32::try_from(blob.len()).ok();
            let packed = zstd::bulk::compress(&blob, PACK_LEVEL).ok().filter(|packed| packed.len() < blob.len() / 4 * 3);
            let down = match packed {
                Some(packed) => Down::FenceDone { number, blob: packed, packed_from: from },
                None => Down::FenceDone { number, blob: blob.clone(), packed_from: None },
            };
            Ok(Arc::new(Self { frame: Frame::of(&down)?, message: ToPart::FenceDone { number, blob } }))
        })
        .await
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
        Ok(Arc::new(Self { frame, message }))
    }

    /// The number of the fence that this message completes, if it does.
    pub(super) fn fence(&self) -> Option<u32> {
        match self.message {
            ToPart::FenceDone { number, .. } => Some(number),
            ToPart::NameAbsent | ToPart::Abort { .. } | ToPart::Forget | ToPart::Input(_) | ToPart::Call(_) => None,
        }
    }
}

/// Runs work that may take milliseconds on a blocking thread, away from the tasks.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T, FrameError> + Send + 'static) -> Result<T, FrameError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(FrameError::Io(std::io::Error::other(error))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_packed_is_passed_on_packed_and_read_whole() {
        let alike = b"a name that all ranks have in common ".repeat(2000);
        let unlike: Vec<u8> = (0..PACKED_BYTES_MIN as u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for (blob, packed) in [(Vec::new(), false), (vec![7; PACKED_BYTES_MIN - 1], false), (alike, true), (unlike, false)] {
            let told = Told::fence_done(FenceMerged { number: 3, blob: blob.clone() }).await.unwrap();
            let Down::FenceDone { packed_from, .. } = told.frame.message().unwrap() else { panic!("another message") };
            assert_eq!(packed_from.is_some(), packed, "{} bytes", blob.len());
            let heard = Told::from_parent(told.frame.clone()).await.unwrap();
            assert_eq!((heard.message.clone(), heard.fence()), (ToPart::FenceDone { number: 3, blob }, Some(3)));
        }
    }

    #[tokio::test]
    async fn a_fence_that_unpacks_to_something_else_is_refused() {
        for (blob, packed_from) in [(vec![1, 2, 3], 100), (zstd::bulk::compress(&[0; 4096], 1).unwrap(), 100), (Vec::new(), u32::MAX)] {
            let frame = Frame::of(&Down::FenceDone { number: 1, blob, packed_from: Some(packed_from) }).unwrap();
            assert!(Told::from_parent(frame).await.is_err());
        }
    }
}
