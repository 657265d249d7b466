//! Commands of many sessions that go to the leader in one message.
//!
//! A follower forwards the registrations and reports of its sessions. When all agents register, or all nodes of
//! wide work report at once, one message per command would cost both members more than the commit. So commands
//! that arrive while [`IN_FLIGHT_MAX`] messages are under way are gathered for the next one. If fewer are under
//! way, a command is forwarded at once. After its answer, a message counts as under way for a further pause, which
//! grows with the number of its commands: so thousands of reports make tens of log entries, and a few reports do
//! not wait.

use crate::proposer::Unserved;
use lattice_ledger::{Action, Outcome};
use lattice_model::Revision;
use lattice_quorum_client::wire::Refusal;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};

/// Largest number of messages under way.
const IN_FLIGHT_MAX: usize = 2;
/// Largest number of commands in one message.
const COMMANDS_MAX: usize = 1024;
/// A message gets no further commands once they have about this size, in bytes.
const BYTES_MAX: usize = 1024 * 1024;

/// The pause after a message, for each of its commands, and its limit.
const PAUSE_PER_COMMAND: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// The results of some commands, in their order.
pub type Results = Result<Vec<Result<(Outcome, Revision), Refusal>>, Unserved>;

struct Waiting {
    actions: Vec<Action>,
    results: oneshot::Sender<Results>,
}

/// The commands that wait for the next message.
pub struct Gathered {
    waiting: Mutex<VecDeque<Waiting>>,
    in_flight: Semaphore,
}

impl Default for Gathered {
    fn default() -> Self {
        Self { waiting: Mutex::default(), in_flight: Semaphore::new(IN_FLIGHT_MAX) }
    }
}

/// The commands of one message, and who waits for their results.
pub struct Message<'a> {
    pub actions: Vec<Action>,
    senders: Vec<(usize, oneshot::Sender<Results>)>,
    /// How long it counts as under way after its answer.
    pub pause: Duration,
    _in_flight: SemaphorePermit<'a>,
}

impl Gathered {
    /// Adds commands. The first call of [`Self::next`] with room for them returns them, so after each
    /// call of this method, call `next`.
    pub fn add(&self, actions: Vec<Action>) -> oneshot::Receiver<Results> {
        let (results, receiver) = oneshot::channel();
        self.waiting.lock().push_back(Waiting { actions, results });
        receiver
    }

    /// The next message, once it may be sent; `None`: another message has taken everything.
    pub async fn next(&self) -> Option<Message<'_>> {
        let permit = self.in_flight.acquire().await.ok()?;
        let mut waiting = self.waiting.lock();
        let (mut actions, mut senders, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(next) = waiting.pop_front_if(|next| actions.is_empty() || actions.len() + next.actions.len() <= COMMANDS_MAX) {
            bytes += next.actions.iter().map(Action::bytes_about).sum::<usize>();
            senders.push((next.actions.len(), next.results));
            actions.extend(next.actions);
            if bytes >= BYTES_MAX {
                break;
            }
        }
        let pause = PAUSE_PER_COMMAND.saturating_mul(u32::try_from(actions.len()).unwrap_or(u32::MAX)).min(PAUSE_MAX);
        (!senders.is_empty()).then_some(Message { actions, senders, pause, _in_flight: permit })
    }
}

impl Message<'_> {
    /// Distributes the results of the message's commands.
    pub fn answer(&mut self, results: Results) {
        let mut results = results.map(Vec::into_iter);
        for (commands, sender) in std::mem::take(&mut self.senders) {
            let part = match &mut results {
                Ok(results) => Ok(results.take(commands).collect()),
                Err(why) => Err(why.clone()),
            };
            // The session may be over.
            let _gone = sender.send(part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn actions(count: usize) -> Vec<Action> {
        vec![Action::AdvanceTime; count]
    }

    fn done(revision: u64) -> Result<(Outcome, Revision), Refusal> {
        Ok((Outcome::Done, Revision(revision)))
    }

    #[test]
    fn commands_that_arrive_while_messages_are_under_way_are_in_the_next_one() {
        let gathered = Gathered::default();
        let mut receivers = vec![gathered.add(actions(1))];
        let mut first = gathered.next().now_or_never().unwrap().unwrap();
        receivers.push(gathered.add(actions(1)));
        let mut second = gathered.next().now_or_never().unwrap().unwrap();
        assert_eq!((first.actions.len(), second.actions.len()), (1, 1), "neither waits for the other");
        receivers.extend([gathered.add(actions(2)), gathered.add(actions(1))]);
        assert!(gathered.next().now_or_never().is_none(), "two are under way");
        second.answer(Ok(vec![done(2)]));
        assert!(gathered.next().now_or_never().is_none(), "the pause after it is not over");
        drop(second);
        let mut third = gathered.next().now_or_never().unwrap().unwrap();
        assert_eq!(third.actions.len(), 3);
        first.answer(Err(Unserved::NotLeader(None)));
        drop(first);
        assert!(gathered.next().now_or_never().unwrap().is_none(), "nothing is left");
        third.answer(Ok(vec![done(3), done(4), done(5)]));
        let results: Vec<Results> = receivers.into_iter().map(|mut receiver| receiver.try_recv().unwrap()).collect();
        assert_eq!(results, [Err(Unserved::NotLeader(None)), Ok(vec![done(2)]), Ok(vec![done(3), done(4)]), Ok(vec![done(5)])]);
    }

    #[test]
    fn a_message_is_bounded_and_a_larger_set_of_commands_goes_alone() {
        let gathered = Gathered::default();
        let _receivers = [COMMANDS_MAX - 1, 1, 1, COMMANDS_MAX + 1].map(|count| gathered.add(actions(count)));
        let sent = [(); 3].map(|()| gathered.next().now_or_never().unwrap().map(|message| (message.actions.len(), message.pause)).unwrap());
        assert_eq!(sent, [(COMMANDS_MAX, PAUSE_MAX), (1, PAUSE_PER_COMMAND), (COMMANDS_MAX + 1, PAUSE_MAX)]);
    }
}
