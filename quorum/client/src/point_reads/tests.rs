use super::*;
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use lattice_model::{AllocationId, test_builders};
use tokio::sync::mpsc;
use uuid::Uuid;

type Found = Result<Arc<Allocation>, CallError>;
type Reply = oneshot::Sender<Result<Outcomes, CallError>>;

/// Reads whose requests a test answers.
struct Reads {
    reads: Arc<PointReads>,
    ask: mpsc::UnboundedSender<(Vec<String>, Reply)>,
    asked: mpsc::UnboundedReceiver<(Vec<String>, Reply)>,
}

impl Reads {
    fn new() -> Self {
        let (ask, asked) = mpsc::unbounded_channel();
        Self { reads: Arc::default(), ask, asked }
    }

    /// Reads with as many requests under way that the next ones wait.
    async fn busy() -> (Self, Vec<Reply>) {
        let mut reads = Self::new();
        let mut replies = Vec::new();
        for _ in 0..REQUESTS_AT_ONCE {
            // Its reader goes away at once, but not before the request is sent.
            let _read = reads.read("earlier");
            replies.push(reads.next(&["earlier"]).await);
        }
        (reads, replies)
    }

    /// A read that has arrived.
    fn read(&self, key: &str) -> BoxFuture<'static, Found> {
        let mut read = self.find(key, READ_TIMEOUT);
        assert!(is_pending(&mut read));
        read
    }

    /// A read that has yet to arrive.
    fn find(&self, key: &str, limit: Duration) -> BoxFuture<'static, Found> {
        let ask = self.ask.clone();
        let find = Arc::clone(&self.reads).find(key.to_owned(), limit, move |keys, _deadline| {
            let (reply, answer) = oneshot::channel();
            ask.send((keys, reply)).unwrap();
            async move { answer.await.unwrap_or_else(|_| Err(unanswered("the test is over"))) }
        });
        find.boxed()
    }

    /// Waits for the next request, which must have these keys.
    async fn next(&mut self, keys: &[&str]) -> Reply {
        let (asked, reply) = self.asked.recv().await.unwrap();
        assert_eq!(asked, keys);
        reply
    }
}

fn is_pending(read: &mut BoxFuture<'static, Found>) -> bool {
    read.as_mut().now_or_never().is_none()
}

fn allocation(id: u128) -> Arc<Allocation> {
    Arc::new(test_builders::allocation(AllocationId(Uuid::from_u128(id))))
}

fn unknown(key: &str) -> Refusal {
    Refusal::NoSuchAllocation { key: key.to_owned(), forgotten: None }
}

fn refused(key: &str) -> CallError {
    CallError::from(unknown(key))
}

#[tokio::test]
async fn a_lone_read_is_sent_at_once_and_reads_meanwhile_share_the_next_request() {
    let mut reads = Reads::new();
    let one = reads.read("1");
    let first = reads.next(&["1"]).await;
    let two = reads.read("2");
    let second = reads.next(&["2"]).await;
    let (three, four) = (reads.read("3"), reads.read("4"));
    second.send(Ok(vec![Ok(allocation(2))])).unwrap();
    assert_eq!(two.await, Ok(allocation(2)), "the requests do not wait for each other");
    let third = reads.next(&["3", "4"]).await;
    third.send(Ok(vec![Ok(allocation(3)), Err(unknown("4"))])).unwrap();
    assert_eq!((three.await, four.await), (Ok(allocation(3)), Err(refused("4"))), "each has its own outcome");
    first.send(Ok(vec![Ok(allocation(1))])).unwrap();
    assert_eq!(one.await, Ok(allocation(1)));
    let five = reads.read("5");
    reads.next(&["5"]).await.send(Ok(vec![Ok(allocation(5))])).unwrap();
    assert_eq!(five.await, Ok(allocation(5)), "no request is under way, and another one is sent");
}

#[tokio::test]
async fn an_answer_is_not_used_for_a_read_that_came_after_its_request_was_sent() {
    let mut reads = Reads::new();
    let early = reads.read("7");
    let first = reads.next(&["7"]).await;
    let _other = reads.read("8");
    let _second = reads.next(&["8"]).await;
    let mut late = reads.read("7");
    // More outcomes than were asked for are of no read.
    first.send(Ok(vec![Ok(allocation(7)), Ok(allocation(7))])).unwrap();
    let third = reads.next(&["7"]).await;
    assert_eq!(early.await, Ok(allocation(7)));
    assert!(is_pending(&mut late));
    third.send(Ok(vec![Err(unknown("7"))])).unwrap();
    assert_eq!(late.await, Err(refused("7")));
}

#[tokio::test]
async fn a_reader_that_is_dropped_does_not_harm_the_others() {
    let (mut reads, mut busy) = Reads::busy().await;
    let (one, two, three) = (reads.read("1"), reads.read("2"), reads.read("3"));
    drop(one);
    busy.remove(0).send(Ok(vec![Ok(allocation(0))])).unwrap();
    let request = reads.next(&["2", "3"]).await;
    drop(two);
    request.send(Ok(vec![Ok(allocation(2)), Ok(allocation(3))])).unwrap();
    assert_eq!(three.await, Ok(allocation(3)));
    let four = reads.read("4");
    reads.next(&["4"]).await.send(Ok(vec![Ok(allocation(4))])).unwrap();
    assert_eq!(four.await, Ok(allocation(4)));
}

#[tokio::test]
async fn an_error_of_a_request_is_the_error_of_each_read_in_it() {
    let errors = [CallError::Unavailable { why: "n1:1: refused".to_owned() }, refused("5")];
    for error in errors {
        let (mut reads, mut busy) = Reads::busy().await;
        let (one, two) = (reads.read("1"), reads.read("2"));
        busy.remove(0).send(Err(error.clone())).unwrap();
        let request = reads.next(&["1", "2"]).await;
        let mut three = reads.read("3");
        request.send(Err(error.clone())).unwrap();
        assert_eq!((one.await, two.await), (Err(error.clone()), Err(error)));
        let request = reads.next(&["3"]).await;
        assert!(is_pending(&mut three), "it was not in that request");
        request.send(Ok(Vec::new())).unwrap();
        assert_eq!(three.await, Err(unanswered("a member answered something else")), "and is not repeated");
    }
}

#[tokio::test]
async fn requests_are_bounded_and_reads_without_an_outcome_are_asked_again() {
    let (mut reads, mut busy) = Reads::busy().await;
    let keys: Vec<String> = (0..=ALLOCATIONS_ASKED_MAX).map(|number| number.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let many: Vec<_> = keys.iter().map(|key| reads.read(key)).collect();
    busy.remove(0).send(Ok(vec![Ok(allocation(0))])).unwrap();
    let request = reads.next(&keys[..ALLOCATIONS_ASKED_MAX]).await;
    // The member had no space for the last two.
    request.send(Ok(vec![Ok(allocation(1)); ALLOCATIONS_ASKED_MAX - 2])).unwrap();
    reads.next(&keys[ALLOCATIONS_ASKED_MAX - 2..]).await.send(Ok(vec![Ok(allocation(1)); 3])).unwrap();
    for read in many {
        assert_eq!(read.await, Ok(allocation(1)));
    }
}

#[tokio::test]
async fn reads_of_the_same_key_share_an_outcome() {
    let (mut reads, mut busy) = Reads::busy().await;
    let found: Vec<_> = ["1", "2", "1", "2", "1"].into_iter().map(|key| reads.read(key)).collect();
    busy.remove(0).send(Ok(vec![Ok(allocation(0))])).unwrap();
    reads.next(&["1", "2"]).await.send(Ok(vec![Ok(allocation(1))])).unwrap();
    reads.next(&["2"]).await.send(Ok(vec![Err(unknown("2"))])).unwrap();
    let (one, two) = (Ok(allocation(1)), Err(refused("2")));
    assert_eq!(join_all(found).await, [one.clone(), two.clone(), one.clone(), two, one]);
}

#[tokio::test]
async fn reads_that_wait_too_long_behind_others_go_in_one_request_more() {
    let (mut reads, _stuck) = Reads::busy().await;
    let (mut one, two) = (reads.read("1"), reads.read("2"));
    let request = tokio::select! {
        found = &mut one => panic!("{found:?}"),
        request = reads.next(&["1", "2"]) => request,
    };
    request.send(Ok(vec![Ok(allocation(1)), Ok(allocation(2))])).unwrap();
    assert_eq!((one.await, two.await), (Ok(allocation(1)), Ok(allocation(2))));
}

#[tokio::test]
async fn no_request_is_added_for_new_reads_or_above_the_largest_number() {
    let (mut reads, _stuck) = Reads::busy().await;
    let new = reads.read("1");
    reads.reads.0.lock().waiting[0].since += READ_TIMEOUT;
    assert!(!reads.reads.add_request());
    drop(new);
    reads.reads.0.lock().waiting.clear();
    reads.reads.0.lock().in_flight = REQUESTS_IN_FLIGHT_MAX;
    assert_eq!(reads.find("2", 2 * WAIT_BEHIND_MAX).await, Err(unanswered(NO_ANSWER)));
    assert!(reads.asked.try_recv().is_err(), "no request was sent");
}

#[tokio::test]
async fn a_key_that_no_allocation_can_have_is_refused_without_a_request() {
    let mut reads = Reads::new();
    let long = "4".repeat(KEY_BYTES_MAX + 1);
    assert_eq!(reads.find(&long, READ_TIMEOUT).await, Err(refused(&long[..64])));
    let read = reads.read(&long[..KEY_BYTES_MAX]);
    reads.next(&[&long[..KEY_BYTES_MAX]]).await.send(Ok(vec![Ok(allocation(4))])).unwrap();
    assert_eq!(read.await, Ok(allocation(4)));
}

#[tokio::test]
async fn the_number_of_reads_that_wait_is_bounded() {
    let (reads, _busy) = Reads::busy().await;
    let _waiting: Vec<_> = (0..READS_WAITING_MAX).map(|_| reads.read("1")).collect();
    assert_eq!(reads.find("2", READ_TIMEOUT).await, Err(unanswered("too many reads are waiting")));
}

#[tokio::test]
async fn a_reader_that_gives_up_gets_the_failure_of_the_latest_request() {
    let (mut reads, mut busy) = Reads::busy().await;
    let short = Duration::from_millis(1);
    assert_eq!(reads.find("1", short).await, Err(unanswered(NO_ANSWER)));
    let failure = unanswered("n1:1: refused");
    busy.remove(0).send(Err(failure.clone())).unwrap();
    let two = reads.read("2");
    let request = reads.next(&["2"]).await;
    assert_eq!(reads.find("3", short).await, Err(failure));
    request.send(Ok(vec![Ok(allocation(2))])).unwrap();
    assert_eq!(two.await, Ok(allocation(2)));
    assert_eq!(reads.find("4", short).await, Err(unanswered(NO_ANSWER)), "that request got an answer");
}
