//! A stream of answers.

use lattice_api::v1::Packed;
use std::pin::Pin;
use tokio_stream::Stream;
use tonic::Status;

/// What a session or a watch sends, message by message.
pub(super) type Packets = Pin<Box<dyn Stream<Item = Result<Packed, Status>> + Send>>;
