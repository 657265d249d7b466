//! Witnesses for silent nodes: agents with a session here are asked whether their gossip still
//! reaches a node.
//!
//! ```text
//!   leader ──nodes about to become Down──▶ itself, and each member in its answer to a heartbeat summary
//!   member ──question──▶ three of its agents, at random ──which are alive──▶ in the next summary ──▶ leader
//! ```
//!
//! In memory only.

use lattice_model::NodeId;
use parking_lot::{Mutex, MutexGuard};
use rand::seq::IteratorRandom;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Number of agents that each member asks one question.
const WITNESSES: usize = 3;
/// Largest number of nodes in one question. If there are more, each question, once a second,
/// contains a random selection.
pub const ASKED_MAX: usize = 256;
/// Largest number of answers that wait for the next summary; further ones are dropped, and come
/// again with the next question.
pub const ANSWERS_MAX: usize = ASKED_MAX * WITNESSES;

/// A silent node, and a node whose gossip reaches it.
pub type WitnessAnswer = (NodeId, NodeId);

/// The agents of this member that can be asked, and their answers.
#[derive(Debug, Default)]
pub struct Witnesses {
    /// The sessions of each agent, newest last: a relayed session and a direct one may overlap.
    agents: Mutex<BTreeMap<NodeId, Vec<mpsc::Sender<Vec<NodeId>>>>>,
    answers: Mutex<BTreeSet<WitnessAnswer>>,
}

/// The registration of an agent that can be asked; it ends when this is dropped.
#[derive(Debug)]
pub struct Witness {
    of: Arc<Witnesses>,
    node: NodeId,
    sender: mpsc::Sender<Vec<NodeId>>,
    questions: mpsc::Receiver<Vec<NodeId>>,
}

impl Witnesses {
    /// Registers an agent that can be asked.
    pub fn register(self: &Arc<Self>, node: NodeId) -> Witness {
        // One question at a time: a slow agent is skipped.
        let (sender, questions) = mpsc::channel(1);
        lock(&self.agents).entry(node.clone()).or_default().push(sender.clone());
        Witness { of: Arc::clone(self), node, sender, questions }
    }

    /// Asks some agents about these nodes, but none of the nodes' own agents.
    pub fn ask(&self, about: &[NodeId]) {
        if about.is_empty() {
            return;
        }
        let silent: BTreeSet<&NodeId> = about.iter().collect();
        let agents = lock(&self.agents);
        let others = agents.iter().filter(|(node, _)| !silent.contains(node)).filter_map(|(_, sessions)| sessions.last());
        for sender in others.choose_multiple(&mut rand::rng(), WITNESSES) {
            // Full: it has not answered the previous question.
            let _busy = sender.try_send(about.to_vec());
        }
    }

    /// At most [`ASKED_MAX`] of these nodes, selected at random.
    pub fn choose<'a>(nodes: impl Iterator<Item = &'a NodeId>) -> Vec<NodeId> {
        nodes.cloned().choose_multiple(&mut rand::rng(), ASKED_MAX)
    }

    /// Records that the gossip of `by` reaches these nodes.
    pub fn record(&self, by: &NodeId, alive: Vec<NodeId>) {
        let mut answers = lock(&self.answers);
        for node in alive.into_iter().take(ASKED_MAX) {
            if answers.len() < ANSWERS_MAX {
                answers.insert((node, by.clone()));
            }
        }
    }

    /// Takes all answers since the last call.
    pub fn take(&self) -> Vec<WitnessAnswer> {
        std::mem::take(&mut *lock(&self.answers)).into_iter().collect()
    }
}

impl Witness {
    /// The next question. There is none while a newer session of the same node is registered.
    pub async fn question(&mut self) -> Vec<NodeId> {
        match self.questions.recv().await {
            Some(question) => question,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let mut agents = lock(&self.of.agents);
        if let Some(sessions) = agents.get_mut(&self.node) {
            sessions.retain(|known| !known.same_channel(&self.sender));
            if sessions.is_empty() {
                agents.remove(&self.node);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(n: usize) -> NodeId {
        format!("n{n}").parse().unwrap()
    }

    #[test]
    fn three_others_are_asked_and_their_answers_are_bounded() {
        let all = Arc::new(Witnesses::default());
        let mut registered: Vec<Witness> = (0..5).map(|n| all.register(node(n))).collect();
        all.ask(&[]);
        all.ask(&[node(0), node(9)]);
        let asked: Vec<usize> = (0..5).filter(|n| registered[*n].questions.try_recv().is_ok()).collect();
        assert!(asked.len() == 3 && !asked.contains(&0), "{asked:?}");
        // A slow agent receives one of two questions.
        (0..200).for_each(|_| all.ask(&[node(9)]));
        assert_eq!(registered[4].questions.try_recv().unwrap(), [node(9)]);
        assert!(registered[4].questions.try_recv().is_err());
        all.record(&node(1), vec![node(9)]);
        all.record(&node(1), vec![node(9)]);
        all.record(&node(2), (0..2000).map(node).collect());
        assert_eq!(all.take().len(), 1 + ASKED_MAX);
        assert!(all.take().is_empty());
    }

    #[test]
    fn the_remaining_one_of_two_sessions_of_a_node_is_asked() {
        let all = Arc::new(Witnesses::default());
        for first_ends_first in [true, false] {
            let (old, new) = (all.register(node(1)), all.register(node(1)));
            let (ends, mut stays) = if first_ends_first { (old, new) } else { (new, old) };
            drop(ends);
            all.ask(&[node(9)]);
            assert_eq!(stays.questions.try_recv().unwrap(), [node(9)]);
            drop(stays);
            assert!(lock(&all.agents).is_empty());
        }
    }
}
