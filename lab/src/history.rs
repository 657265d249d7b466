//! Checks whether a recorded history is linearizable: could each operation have happened at one moment between its call
//! and its return, so that every answer is right?
//!
//! The search is porcupine's: that of Wing & Gong (1993), with Lowe's cache (2017) of sets of placed operations and their
//! states. Independent keys are checked separately, which keeps the search short. An operation without an
//! answer may have happened at any moment after its call, or never; never is equivalent to happening after all others.

use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

/// The specified behaviour of one key.
pub trait Model {
    /// The state of the key between operations.
    type State: Clone + Eq + Hash;
    /// The input of an operation.
    type Input: Clone;
    /// The answer of an operation.
    type Output: Clone;

    /// The state before the first operation.
    fn initial() -> Self::State;

    /// The state after this operation; `None` if the answer is impossible. Without an answer every state has a
    /// successor.
    fn step(state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;
}

/// One operation of one client.
#[derive(Clone, Debug)]
pub struct Operation<I, O> {
    /// The key that it uses.
    pub key: String,
    /// When it was sent, since the history's beginning.
    pub called: Duration,
    /// When it was answered and how; `None` if that is unknown.
    pub returned: Option<(Duration, O)>,
    /// The input.
    pub input: I,
}

/// An operation of this model.
pub type OperationOf<M> = Operation<<M as Model>::Input, <M as Model>::Output>;

/// The first key with answers that no order of its operations explains.
pub fn first_fault<M: Model>(history: &[OperationOf<M>]) -> Option<String> {
    let mut keys: BTreeMap<&str, Vec<&OperationOf<M>>> = BTreeMap::new();
    for operation in history {
        keys.entry(&operation.key).or_default().push(operation);
    }
    keys.into_iter().find(|(_, operations)| !is_linearizable::<M>(operations)).map(|(key, _)| key.to_owned())
}

/// A call or a return, in a doubly linked list by index; index 0 is the head.
struct Event {
    operation: usize,
    /// The index of the return; `None` for a return.
    answer: Option<usize>,
    previous: usize,
    next: usize,
}

/// Which operations are placed, one bit each.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Placed(Vec<u64>);

impl Placed {
    fn set(&mut self, operation: usize, is: bool) {
        let bit = 1 << (operation % 64);
        let word = &mut self.0[operation / 64];
        *word = if is { *word | bit } else { *word & !bit };
    }
}

fn is_linearizable<M: Model>(operations: &[&OperationOf<M>]) -> bool {
    let mut events = in_order::<M>(operations);
    let mut state = M::initial();
    let mut placed = Placed(vec![0; operations.len().div_ceil(64)]);
    let mut seen: HashSet<(Placed, M::State)> = HashSet::new();
    let mut calls: Vec<(usize, M::State)> = Vec::new();
    let mut at = events[0].next;
    while events[0].next != 0 {
        let operation = events[at].operation;
        if let Some(answer) = events[at].answer {
            let output = operations[operation].returned.as_ref().map(|(_, output)| output);
            let next = M::step(&state, &operations[operation].input, output).filter(|next| {
                placed.set(operation, true);
                let new = seen.insert((placed.clone(), next.clone()));
                placed.set(operation, new);
                new
            });
            if let Some(next) = next {
                calls.push((at, std::mem::replace(&mut state, next)));
                unlink(&mut events, at);
                unlink(&mut events, answer);
                at = events[0].next;
            } else {
                at = events[at].next;
            }
        } else {
            // It should have been placed before its return: the last choice was wrong.
            let Some((call, before)) = calls.pop() else { return false };
            state = before;
            placed.set(events[call].operation, false);
            if let Some(answer) = events[call].answer {
                relink(&mut events, answer);
            }
            relink(&mut events, call);
            at = events[call].next;
        }
    }
    true
}

/// Calls and returns by time; operations without an answer return after everything.
fn in_order<M: Model>(operations: &[&OperationOf<M>]) -> Vec<Event> {
    // A call sorts before a return of the same moment: they may have overlapped.
    let mut times: Vec<(Duration, bool, usize)> = Vec::with_capacity(operations.len() * 2);
    for (number, operation) in operations.iter().enumerate() {
        times.push((operation.called, false, number));
        times.push((operation.returned.as_ref().map_or(Duration::MAX, |(at, _)| *at), true, number));
    }
    times.sort_unstable();
    let last = times.len();
    let mut events = vec![Event { operation: usize::MAX, answer: None, previous: last, next: 1 % (last + 1) }];
    let mut call_of = vec![0; operations.len()];
    for (place, (_, is_return, operation)) in (1..).zip(times) {
        if is_return {
            events[call_of[operation]].answer = Some(place);
        } else {
            call_of[operation] = place;
        }
        events.push(Event { operation, answer: None, previous: place - 1, next: (place + 1) % (last + 1) });
    }
    events
}

fn unlink(events: &mut [Event], at: usize) {
    let (previous, next) = (events[at].previous, events[at].next);
    events[previous].next = next;
    events[next].previous = previous;
}

fn relink(events: &mut [Event], at: usize) {
    let (previous, next) = (events[at].previous, events[at].next);
    events[previous].next = at;
    events[next].previous = at;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register: writes return nothing, reads what was written last.
    struct Register;

    #[derive(Clone, Debug)]
    enum Ask {
        Write(u8),
        Read,
    }

    impl Model for Register {
        type State = u8;
        type Input = Ask;
        type Output = u8;

        fn initial() -> u8 {
            0
        }

        fn step(state: &u8, input: &Ask, output: Option<&u8>) -> Option<u8> {
            match (input, output) {
                (Ask::Write(value), _) => Some(*value),
                (Ask::Read, Some(seen)) => (seen == state).then_some(*state),
                (Ask::Read, None) => Some(*state),
            }
        }
    }

    fn op(called: u64, returned: Option<(u64, u8)>, input: Ask) -> Operation<Ask, u8> {
        let ms = Duration::from_millis;
        Operation { key: "k".to_owned(), called: ms(called), returned: returned.map(|(at, o)| (ms(at), o)), input }
    }

    fn holds(history: &[Operation<Ask, u8>]) -> bool {
        first_fault::<Register>(history).is_none()
    }

    #[test]
    fn overlapping_operations_may_be_ordered_either_way() {
        let write = || op(0, Some((100, 0)), Ask::Write(1));
        assert!(holds(&[write(), op(10, Some((20, 0)), Ask::Read), op(30, Some((40, 1)), Ask::Read)]));
        // The first read saw the write; the second, later one did not.
        assert!(!holds(&[write(), op(10, Some((20, 1)), Ask::Read), op(30, Some((40, 0)), Ask::Read)]));
        assert!(holds(&[write(), op(10, Some((35, 1)), Ask::Read), op(30, Some((40, 0)), Ask::Read)]));
    }

    #[test]
    fn acknowledged_operations_stay() {
        assert!(!holds(&[op(0, Some((10, 0)), Ask::Write(1)), op(20, Some((30, 0)), Ask::Read)]));
        assert!(!holds(&[op(0, Some((10, 0)), Ask::Write(1)), op(20, Some((30, 2)), Ask::Read)]));
    }

    #[test]
    fn unanswered_operations_happen_late_or_never() {
        let lost = || op(0, None, Ask::Write(1));
        assert!(holds(&[lost(), op(20, Some((30, 0)), Ask::Read), op(40, Some((50, 1)), Ask::Read)]));
        assert!(holds(&[lost(), op(20, Some((30, 0)), Ask::Read)]));
        assert!(!holds(&[lost(), op(20, Some((30, 1)), Ask::Read), op(40, Some((50, 0)), Ask::Read)]));
        // A write cannot be seen before it was sent.
        assert!(!holds(&[op(20, None, Ask::Write(1)), op(0, Some((10, 1)), Ask::Read)]));
    }

    #[test]
    fn keys_are_checked_on_their_own_and_the_wrong_one_is_named() {
        let mut history = vec![op(0, Some((10, 0)), Ask::Write(1)), op(20, Some((30, 1)), Ask::Read)];
        history.push(Operation { key: "other".to_owned(), ..op(20, Some((30, 1)), Ask::Read) });
        assert_eq!(first_fault::<Register>(&history).as_deref(), Some("other"));
    }
}
