//! The body of an answer. It records whether it waits for its reader, and counts its bytes for the access log.

use super::access_log::Entry;
use super::activity::OpenRequest;
use axum::body::Body;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::Status;

/// An answer's body, and the handles that live as long as it.
pub(super) struct AnswerBody {
    body: Body,
    request: OpenRequest,
    entry: Entry,
}

impl AnswerBody {
    /// `entry`: already has the status from the head of the answer.
    pub(super) fn new(body: Body, request: OpenRequest, entry: Entry) -> Self {
        Self { body, request, entry }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.request.waits_for_reader(None);
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.request.waits_for_reader(Some(Instant::now()));
            if let Some(data) = frame.data_ref() {
                self.entry.ended.bytes += data.len() as u64;
            } else if let Some(status) = frame.trailers_ref().and_then(Status::from_header_map) {
                self.entry.ended.grpc_status = Some(status.code().into());
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
