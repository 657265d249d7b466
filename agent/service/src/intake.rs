//! Limits on what callers of the socket may send: no user can fill the agent's memory, or keep
//! others from being served.
//!
//! ```text
//!   frame ─▶ head of a message: too long for this call? refused ─▶ bytes of the user's share ─▶ decoder ─▶ handler
//!                                                                  and of all users' share
//!                                                                  └─ waits if exhausted  └─ 10 s for a message ┘
//! ```
//!
//! The bytes of a message are reserved before its first frame goes to the decoder, which buffers
//! the message until it is complete. They are released when the call is answered; in a stream of
//! messages, when the handler asks for the next. Frames that wait stay in the connection's
//! flow-control window.

use super::connections::Peer;
use crate::user_shares::UserShares;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use lattice_agent_checkpoint::app_message;
use lattice_agent_common::user_quota::UserQuota;
use lattice_model::dag::DAG_BYTES_MAX;
use lattice_model::spec::{SCRIPT_BYTES_MAX, SPEC_BYTES_MAX};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until, timeout};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Bytes, Service, http};
use tonic::server::NamedService;
use tonic::{Code, Status};

/// The limit on one user's unanswered messages, in bytes. A decoded message may take twelve times
/// its bytes.
const USER_BYTES: usize = 4 << 20;
/// The limit on all users' unanswered messages longer than [`MESSAGE_BYTES_MAX`], in bytes. Root's
/// do not count.
const ALL_BYTES: usize = 16 << 20;
/// The longest message in bytes, unless its call is in [`LARGER`].
const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// The longest message with the nodes of a vCluster, in bytes: ten thousand of the longest names
/// fit.
const VCLUSTER_BYTES_MAX: usize = 1 << 20;
/// Calls with longer messages, and the limit of each in bytes.
const LARGER: [(&str, usize); 8] = [
    ("AllocationService/Submit", SCRIPT_BYTES_MAX + 4 * SPEC_BYTES_MAX),
    ("AllocationService/Launch", 8 * SPEC_BYTES_MAX),
    ("AllocationService/LaunchInput", 4 * SPEC_BYTES_MAX),
    ("AllocationService/Attach", 4 * SPEC_BYTES_MAX),
    ("ApplicationService/Done", app_message::MESSAGE_BYTES_MAX),
    ("DagService/Submit", DAG_BYTES_MAX),
    ("VClusterService/Create", VCLUSTER_BYTES_MAX),
    ("VClusterService/SetConfig", VCLUSTER_BYTES_MAX),
];
/// Calls with more than one message; the time between messages is not limited.
const STREAMS: [&str; 4] =
    ["AdminService/StoreTrace", "AllocationService/LaunchInput", "AllocationService/Attach", "ApplicationService/Progress"];
/// How long a message may take from its first byte to its last; for a call with one message, from
/// the call's beginning.
const MESSAGE_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a message waits for earlier ones to be answered.
const SHARE_TIME_MAX: Duration = Duration::from_secs(30);
/// How many concurrent calls one user may have on all connections; root has more, for services that
/// act for many.
const USER_CALLS_MAX: usize = 256;
const ROOT_CALLS_MAX: usize = 2048;
/// The bytes before each message: a compression flag, and its length.
const HEAD_BYTES: usize = 5;

/// The limits that all calls share. Cloneable; all clones share them.
#[derive(Clone)]
pub struct Intake {
    users: UserShares,
    all: Arc<Semaphore>,
    calls: UserQuota,
}

impl Intake {
    pub(super) fn new() -> Self {
        Self { users: UserShares::new(USER_BYTES), all: Arc::new(Semaphore::new(ALL_BYTES)), calls: UserQuota::default() }
    }

    /// Wraps the service, which then gets no more than callers may send.
    pub(super) fn bound<S>(&self, service: S) -> Bounded<S> {
        Bounded { service, intake: self.clone() }
    }

    /// Reserves the bytes of messages; may wait for others to be released.
    async fn take(self, uid: u32, bytes: usize) -> Result<Permits, Status> {
        let closed = |e: AcquireError| Status::internal(e.to_string());
        let count = u32::try_from(bytes).unwrap_or(u32::MAX);
        let take = async {
            let own = self.users.of(uid).acquire_many_owned(count).await.map_err(closed)?;
            if uid == 0 || bytes <= MESSAGE_BYTES_MAX {
                return Ok(vec![own]);
            }
            Ok(vec![own, Arc::clone(&self.all).acquire_many_owned(count).await.map_err(closed)?])
        };
        timeout(SHARE_TIME_MAX, take).await.unwrap_or_else(|_| {
            let text = "the requests that this node has not answered yet have too many bytes: try again in a moment";
            Err(Status::resource_exhausted(text))
        })
    }
}

type Permits = Vec<OwnedSemaphorePermit>;

/// See [`Intake::bound`].
#[derive(Clone)]
pub(super) struct Bounded<S> {
    service: S,
    intake: Intake,
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Bounded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let refused = |status: Status| -> Self::Future { Box::pin(async move { Ok(status.into_http()) }) };
        let Some(uid) = request.extensions().get::<Peer>().map(|peer| peer.account().0) else {
            return refused(Status::unauthenticated("the socket does not identify the caller"));
        };
        let most = if uid == 0 { ROOT_CALLS_MAX } else { USER_CALLS_MAX };
        let Some(place) = self.intake.calls.take(uid, most) else {
            let text = format!("{most} calls of this user are under way on this node: try again when some of them have ended");
            return refused(Status::resource_exhausted(text));
        };
        let held = Held::default();
        let method = request.uri().path().trim_start_matches("/lattice.v1.").to_owned();
        let in_hand = held.clone();
        let request = request.map(|body| Body::new(Received::new(body, self.intake.clone(), uid, method, held)));
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            drop(in_hand);
            Ok(answer.map(|body| Body::new(lattice_telemetry::holding::Holding::new(body, place))))
        })
    }
}

/// The reserved bytes of a call, until the call is answered and its body is dropped.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Permits>>);

impl Held {
    fn add(&self, permits: Permits) {
        self.0.lock().extend(permits);
    }

    fn give_back(&self) {
        self.0.lock().clear();
    }
}

/// The position in the messages at which the last frame ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before a message, or within its head.
    Head { bytes: [u8; HEAD_BYTES], got: usize },
    /// Within a message that lacks `left` bytes.
    Message { left: usize },
}

const BETWEEN: At = At::Head { bytes: [0; HEAD_BYTES], got: 0 };

impl At {
    /// Advances over a frame; gives the bytes of the messages that begin in it. An error is the
    /// length of a message that is too long.
    fn pass(&mut self, mut data: &[u8], bytes_max: usize) -> Result<usize, usize> {
        let mut begun = 0;
        while !data.is_empty() {
            match self {
                Self::Head { bytes, got } => {
                    let more = data.len().min(HEAD_BYTES - *got);
                    bytes[*got..*got + more].copy_from_slice(&data[..more]);
                    *got += more;
                    data = &data[more..];
                    if *got == HEAD_BYTES {
                        let left = u32::from_be_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
                        if left > bytes_max {
                            return Err(left);
                        }
                        begun += left;
                        *self = if left == 0 { BETWEEN } else { Self::Message { left } };
                    }
                }
                Self::Message { left } => {
                    let more = data.len().min(*left);
                    *left -= more;
                    data = &data[more..];
                    if *left == 0 {
                        *self = BETWEEN;
                    }
                }
            }
        }
        Ok(begun)
    }
}

/// A frame whose messages wait for reserved bytes.
struct Waiting {
    frame: Frame<Bytes>,
    taking: Pin<Box<dyn Future<Output = Result<Permits, Status>> + Send>>,
}

/// Until when a message must arrive. The timer is made once the message is waited for: most have arrived with their calls.
struct Deadline {
    at: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    fn new() -> Self {
        Self { at: Instant::now() + MESSAGE_TIME_MAX, timer: None }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let at = self.at;
        self.timer.get_or_insert_with(|| Box::pin(sleep_until(at))).as_mut().poll(cx)
    }
}

/// A request's body, with its limits applied.
struct Received {
    body: Body,
    intake: Intake,
    uid: u32,
    method: String,
    bytes_max: usize,
    is_stream: bool,
    at: At,
    waiting: Option<Waiting>,
    /// Until when the current message must arrive.
    until: Option<Deadline>,
    held: Held,
}

impl Received {
    fn new(body: Body, intake: Intake, uid: u32, method: String, held: Held) -> Self {
        let larger = LARGER.iter().find(|(name, _)| *name == method);
        let bytes_max = larger.map_or(MESSAGE_BYTES_MAX, |(_, bytes)| *bytes);
        let is_stream = STREAMS.contains(&method.as_str());
        let until = (!is_stream).then(Deadline::new);
        Self { body, intake, uid, method, bytes_max, is_stream, at: BETWEEN, waiting: None, until, held }
    }

    /// Called when a frame is passed to the decoder: a message's time begins or ends with it.
    fn passed(&mut self) {
        let is_between = self.is_stream && self.at == BETWEEN;
        match &mut self.until {
            Some(_) if is_between => self.until = None,
            Some(_) => {}
            None if is_between => {}
            None => self.until = Some(Deadline::new()),
        }
    }
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(waiting) = &mut this.waiting {
            let Poll::Ready(taken) = waiting.taking.as_mut().poll(cx) else { return Poll::Pending };
            let frame = this.waiting.take().map(|waiting| waiting.frame);
            match taken {
                Ok(permits) => this.held.add(permits),
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            // Time spent waiting for reserved bytes does not count against the caller.
            if let Some(until) = &mut this.until {
                *until = Deadline::new();
            }
            this.passed();
            return Poll::Ready(frame.map(Ok));
        }
        if this.is_stream && this.at == BETWEEN {
            this.held.give_back();
        }
        let frame = match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => frame,
            Poll::Ready(other) => return Poll::Ready(other),
            Poll::Pending => {
                let is_late = this.until.as_mut().is_some_and(|until| until.poll(cx).is_ready());
                if !is_late {
                    return Poll::Pending;
                }
                let text = format!("{}: the request did not arrive within {} s", this.method, MESSAGE_TIME_MAX.as_secs());
                return Poll::Ready(Some(Err(Status::new(Code::DeadlineExceeded, text))));
            }
        };
        let Some(data) = frame.data_ref() else { return Poll::Ready(Some(Ok(frame))) };
        match this.at.pass(data, this.bytes_max) {
            Ok(0) => {
                this.passed();
                Poll::Ready(Some(Ok(frame)))
            }
            Ok(bytes) => {
                let taking = Box::pin(this.intake.clone().take(this.uid, bytes));
                this.waiting = Some(Waiting { frame, taking });
                self.poll_frame(cx)
            }
            Err(bytes) => {
                let (method, most) = (&this.method, this.bytes_max);
                let text = format!("{method}: the request has {bytes} bytes, at most {most} are accepted: make it smaller");
                Poll::Ready(Some(Err(Status::invalid_argument(text))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_measured_in_frames_of_any_size() {
        let mut wire = Vec::new();
        for length in [0_usize, 3, 300] {
            wire.push(0);
            wire.extend(u32::try_from(length).unwrap().to_be_bytes());
            wire.extend(vec![7; length]);
        }
        for size in [1, 2, 4, 5, 6, 7, 100, 1000] {
            let mut at = BETWEEN;
            let begun: usize = wire.chunks(size).map(|chunk| at.pass(chunk, 300).unwrap()).sum();
            assert_eq!((begun, at), (303, BETWEEN), "in frames of {size}");
        }
        let mut at = BETWEEN;
        assert_eq!(at.pass(&wire, 299), Err(300));
        let mut at = BETWEEN;
        assert_eq!(at.pass(&[0, 0, 0, 1], 300), Ok(0), "an unfinished head");
        assert_eq!((at.pass(&[0, 9], 300), at), (Ok(256), At::Message { left: 255 }));
    }

    #[test]
    fn the_lists_of_calls_match_the_api() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../api/proto/lattice/v1");
        let (mut streams, mut all) = (Vec::new(), Vec::new());
        for file in std::fs::read_dir(dir).unwrap().flatten() {
            let text = std::fs::read_to_string(file.path()).unwrap();
            let mut service = "";
            for line in text.lines().map(str::trim) {
                service = line.strip_prefix("service ").map_or(service, |begun| begun.trim_end_matches(" {"));
                let Some((method, rest)) = line.strip_prefix("rpc ").and_then(|rpc| rpc.split_once('(')) else { continue };
                all.push(format!("{service}/{method}"));
                if rest.starts_with("stream ") && service != "Quorum" {
                    streams.push(format!("{service}/{method}"));
                }
            }
        }
        streams.sort_unstable();
        let mut known = STREAMS.to_vec();
        known.sort_unstable();
        assert_eq!(streams, known);
        assert!(LARGER.iter().all(|(method, _)| all.iter().any(|known| known == method)));
    }

    #[tokio::test]
    async fn one_users_limit_does_not_affect_another() {
        let intake = Intake::new();
        let held = intake.clone().take(1000, USER_BYTES).await.unwrap();
        let mut second = Box::pin(intake.clone().take(1000, 1));
        assert!(futures::poll!(second.as_mut()).is_pending());
        assert!(futures::poll!(Box::pin(intake.clone().take(1001, USER_BYTES)).as_mut()).is_ready());
        drop(held);
        assert!(second.await.is_ok());
    }
}
