//! The type of an answer that is a stream.

use lattice_api::v1::Packed;
use std::pin::Pin;
use tokio_stream::Stream;
use tonic::Status;

/// The messages of a session or a watch.
pub(super) type Packets = Pin<Box<dyn Stream<Item = Result<Packed, Status>> + Send>>;
