//! One launch's part on this node, as the shim reports it.

use lattice_mesh::launch::ToHead;
use lattice_model::input::Taken;
use lattice_model::{Call, LaunchSpec, MemoryKill, NodeId, RankOutcome};
use lattice_runtime::shim::REFUSED_CODE;
use std::collections::BTreeMap;
use tokio::sync::mpsc;

pub(super) struct LocalLaunch {
    pub(super) spec: LaunchSpec,
    /// Whether the shim has confirmed the launch.
    pub(super) begun: bool,
    /// Why the shim reports nothing more about it: it refused the launch, is dead, or no longer
    /// knows the launch.
    lost: Option<String>,
    ended: BTreeMap<u32, RankOutcome>,
    /// This node's contributions to the last two fences, which a head that reconnects may need.
    fences: BTreeMap<u32, Vec<u8>>,
    aborted: Option<(i32, String)>,
    out_of_memory: Option<MemoryKill>,
    /// How much of standard input its ranks here have read, if any read it.
    input: Option<Taken>,
    head: Option<mpsc::Sender<ToHead>>,
}

impl LocalLaunch {
    pub(super) fn new(spec: LaunchSpec) -> Self {
        let (ended, fences) = (BTreeMap::new(), BTreeMap::new());
        Self { spec, begun: false, lost: None, ended, fences, aborted: None, out_of_memory: None, input: None, head: None }
    }

    /// Whether no rank of this node is left, and none will begin.
    pub(super) fn is_over(&self, me: &NodeId) -> bool {
        self.lost.is_some() || self.all_ended(me)
    }

    /// Whether each of this node's ranks is known to have ended.
    pub(super) fn all_ended(&self, me: &NodeId) -> bool {
        self.spec.part(me).is_none_or(|p| self.ended.len() >= p.count as usize)
    }

    /// Connects a head, which replaces an earlier one, and sends it everything that is known.
    pub(super) fn attach(&mut self, head: mpsc::Sender<ToHead>, walltime_over: bool) {
        self.head = Some(head);
        if self.begun {
            self.send(ToHead::Begun);
        }
        if walltime_over {
            self.send(ToHead::WalltimeOver);
        }
        let mut known: Vec<ToHead> = Vec::new();
        known.extend(self.fences.iter().map(|(number, blob)| ToHead::Fence { number: *number, blob: blob.clone() }));
        known.extend(self.input.map(|taken| ToHead::Input { taken: taken.into(), again: true }));
        known.extend(self.out_of_memory.map(memory_kill));
        known.extend(self.aborted.iter().map(|(code, why)| ToHead::Aborted { code: *code, why: why.clone() }));
        known.extend(self.ended.iter().map(|(rank, outcome)| ToHead::RankEnded { rank: *rank, outcome: (*outcome).into() }));
        known.extend(self.lost.iter().map(|why| ToHead::Lost { why: why.clone() }));
        known.push(ToHead::Synced);
        for message in known {
            self.send(message);
        }
    }

    pub(super) fn begun(&mut self) {
        if !self.begun {
            self.begun = true;
            self.send(ToHead::Begun);
        }
    }

    pub(super) fn rank_ended(&mut self, rank: u32, outcome: RankOutcome) {
        self.ended.insert(rank, outcome);
        self.send(ToHead::RankEnded { rank, outcome: outcome.into() });
    }

    pub(super) fn fence(&mut self, number: u32, blob: Vec<u8>) {
        self.fences.retain(|n, _| n.saturating_add(1) >= number);
        self.fences.insert(number, blob.clone());
        self.send(ToHead::Fence { number, blob });
    }

    /// Reports how much of standard input was read; `again`: the input after that must be sent
    /// again.
    pub(super) fn input_taken(&mut self, taken: Taken, again: bool) {
        self.input = Some(taken);
        self.send(ToHead::Input { taken: taken.into(), again });
    }

    /// Reports the ranks that have not come to a fence. Not stored: it holds only for this moment.
    pub(super) fn absent(&mut self, ranks: Vec<u32>) {
        self.send(ToHead::Absent { ranks });
    }

    /// Passes a call or its answer from the PMI server here to the PMI server of another part. If
    /// it does not reach the head, the caller's shim repeats the call.
    pub(super) fn call(&mut self, call: Call) {
        self.send(ToHead::Call(Box::new(call.into())));
    }

    pub(super) fn aborted(&mut self, code: i32, why: String) {
        self.aborted = Some((code, why.clone()));
        self.send(ToHead::Aborted { code, why });
    }

    /// The kernel killed processes of the launch here for lack of memory. A later report replaces
    /// an earlier one.
    pub(super) fn out_of_memory(&mut self, kill: MemoryKill) {
        self.out_of_memory = Some(kill);
        self.send(memory_kill(kill));
    }

    pub(super) fn walltime_over(&mut self) {
        self.send(ToHead::WalltimeOver);
    }

    /// The shim refused the launch, or gave it up before its ranks began: none of them ran here.
    pub(super) fn refused(&mut self, me: &NodeId, why: &str) {
        // The reason first: the ranks' ends after it are only its consequence.
        self.aborted(REFUSED_CODE, format!("{me}: {why}"));
        for rank in self.spec.ranks_on(me) {
            self.rank_ended(rank, RankOutcome::NotStarted { code: 126 });
        }
        self.lost(why);
    }

    /// The shim is dead, or no longer knows the launch: no rank's end will be reported.
    pub(super) fn lost(&mut self, why: &str) {
        self.begun = true;
        self.lost = Some(why.to_owned());
        self.send(ToHead::Lost { why: why.to_owned() });
    }

    /// Sends a message to the head. A head that does not keep up is disconnected: it reconnects and
    /// gets everything.
    fn send(&mut self, message: ToHead) {
        if let Some(head) = &self.head
            && head.try_send(message).is_err()
        {
            self.head = None;
        }
    }
}

fn memory_kill(kill: MemoryKill) -> ToHead {
    let MemoryKill { launch, whole, had_bytes, limit_bytes } = kill;
    ToHead::OutOfMemory { launch, whole, had_bytes, limit_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_mesh::launch::WireOutcome;
    use lattice_model::{AllocationId, Epoch, LaunchId, LaunchShape, NodeRanks, RankBinding};

    fn launch(count: u32) -> LocalLaunch {
        LocalLaunch::new(LaunchSpec {
            id: "00000000-0000-4000-8000-000000000001".parse::<LaunchId>().unwrap(),
            number: 1,
            allocation: "00000000-0000-4000-8000-000000000002".parse::<AllocationId>().unwrap(),
            epoch: Epoch(1),
            argv: vec!["a".into()],
            env: BTreeMap::new(),
            working_dir: "/".into(),
            pty: None,
            nodes: vec![NodeRanks { node: "n1".parse().unwrap(), first: 0, count }],
            binding: RankBinding::default(),
            shape: LaunchShape::default(),
            kill_on_bad_exit: false,
        })
    }

    fn received(receiver: &mut mpsc::Receiver<ToHead>) -> Vec<ToHead> {
        std::iter::from_fn(|| receiver.try_recv().ok()).collect()
    }

    #[test]
    fn a_reconnected_head_gets_all_events_again_and_then_new_ones() {
        let mut l = launch(2);
        l.begun();
        for number in 1..=3 {
            l.fence(number, vec![number as u8]);
        }
        l.rank_ended(1, RankOutcome::Exited { code: 0 });
        let (head, mut receiver) = mpsc::channel(16);
        l.attach(head, false);
        l.rank_ended(0, RankOutcome::Exited { code: 2 });
        let fence = |number: u32| ToHead::Fence { number, blob: vec![number as u8] };
        let ended = |rank, code| ToHead::RankEnded { rank, outcome: WireOutcome::Exited(code) };
        assert_eq!(received(&mut receiver), [ToHead::Begun, fence(2), fence(3), ended(1, 0), ToHead::Synced, ended(0, 2)]);
        assert!(l.is_over(&"n1".parse().unwrap()));
    }

    #[test]
    fn a_refused_launch_is_over_and_stays_so_for_a_head_that_comes_later() {
        let (mut l, me) = (launch(2), "n1".parse().unwrap());
        l.refused(&me, "its number 1 is taken");
        assert!(l.is_over(&me));
        let (head, mut receiver) = mpsc::channel(16);
        l.attach(head, false);
        let why = "its number 1 is taken".to_owned();
        let not_started = |rank| ToHead::RankEnded { rank, outcome: WireOutcome::NotStarted(126) };
        let aborted = ToHead::Aborted { code: 125, why: format!("n1: {why}") };
        let all = [ToHead::Begun, aborted, not_started(0), not_started(1), ToHead::Lost { why }, ToHead::Synced];
        assert_eq!(received(&mut receiver), all);
    }

    #[test]
    fn the_ends_of_ranks_are_unknown_once_the_shim_is_dead() {
        let (mut l, me) = (launch(2), "n1".parse().unwrap());
        l.lost("its shim is gone");
        assert!(l.is_over(&me) && !l.all_ended(&me));
        let (head, mut receiver) = mpsc::channel(16);
        l.attach(head, false);
        assert_eq!(received(&mut receiver), [ToHead::Begun, ToHead::Lost { why: "its shim is gone".into() }, ToHead::Synced]);
    }
}
