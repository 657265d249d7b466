//! The body of an answer: it tells the connection whether its reader takes it, and is in the access log when it has ended.

use super::access_log::{AccessLog, Begun, Ended};
use super::activity::OpenRequest;
use axum::body::Body;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;
use tonic::Status;

/// An answer's body, with what lives as long as it does.
pub(super) struct AnswerBody {
    body: Body,
    request: OpenRequest,
    ended: Ended,
    log: AccessLog,
    begun: Option<Begun>,
}

impl AnswerBody {
    /// `ended`: with what the head of the answer says.
    pub(super) fn new(body: Body, request: OpenRequest, ended: Ended, log: AccessLog, begun: Begun) -> Self {
        Self { body, request, ended, log, begun: Some(begun) }
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
                self.ended.bytes += data.len() as u64;
            } else if let Some(status) = frame.trailers_ref().and_then(Status::from_header_map) {
                self.ended.grpc_status = Some(status.code().into());
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

impl Drop for AnswerBody {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.log.add(begun, self.ended);
        }
    }
}
