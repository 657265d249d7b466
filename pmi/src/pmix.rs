//! The ranks of one launch on one node, as far as they speak PMIx: who is in it, and its numbered fences.
//!
//! The library in `lattice-pmix` answers what a rank asks; here is what must outlive agents and be the same everywhere. A
//! fence is that of PMI: numbered, contributed once, replayed after a connect. Its data is the library's own and means
//! nothing to us, so it travels as the values of records that all have one key: joined blobs are the joined data.

use crate::blob::{self, BLOB_BYTES_MAX};
use crate::bridge::{FromBridge, ToBridge};
use crate::wire::{Excerpt, VALUE_BYTES_MAX};

/// The key of the records that the library's data is cut into.
const DATA_KEY: &[u8] = b"x";
/// The code of a launch that is brought down for a reason of ours.
const ABORT_CODE: i32 = 1;

/// What happened.
#[derive(Debug)]
pub enum PmixEvent<'a> {
    /// The bridge said something.
    Said(FromBridge),
    /// The bridge is gone, or cannot be understood.
    BridgeLost { why: &'a str },
    /// A rank's process was reaped; `local` is its place among the node's ranks.
    Exited { local: u32, code: i32 },
    /// The head's answer to a fence.
    FenceDone { number: u32, blob: &'a [u8] },
}

/// What is to be done about it.
#[derive(Debug, PartialEq, Eq)]
pub enum PmixAction {
    /// To be told to the bridge.
    Tell(ToBridge),
    /// To be told to the head.
    Fence { number: u32, blob: Vec<u8> },
    /// The launch is to be brought down.
    Abort { code: i32, why: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has not spoken PMIx: an ordinary program so far.
    Fresh,
    /// Between init and finalize.
    Joined,
    /// It said that it ends well, or it never began.
    Over,
}

#[derive(Clone, Debug)]
struct Contribution {
    number: u32,
    blob: Vec<u8>,
}

/// Serves one launch on one node.
#[derive(Debug)]
pub struct PmixServer {
    ranks: Vec<(u32, Phase)>,
    /// Whether this node has all ranks: its fences are nobody else's affair.
    alone: bool,
    fences: u32,
    last: Option<Contribution>,
    pending: Option<Contribution>,
    aborted: bool,
}

impl PmixServer {
    /// `ranks` are the node's own, by local rank; `size` is how many the launch has.
    pub fn new(ranks: &[u32], size: u32) -> Self {
        let alone = u32::try_from(ranks.len()).is_ok_and(|count| count == size);
        Self {
            ranks: ranks.iter().map(|rank| (*rank, Phase::Fresh)).collect(),
            alone,
            fences: 0,
            last: None,
            pending: None,
            aborted: false,
        }
    }

    /// Whether any rank speaks PMIx, or did.
    pub fn is_used(&self) -> bool {
        self.ranks.iter().any(|(_, phase)| *phase == Phase::Joined) || self.fences > 0 || self.pending.is_some()
    }

    /// Who may be missing in a fence in which others wait: who comes to one the library keeps to itself, but no rank comes before it
    /// is connected.
    pub fn absent(&self) -> Vec<u32> {
        let not_connected: Vec<u32> = self.ranks.iter().filter(|(_, phase)| *phase != Phase::Joined).map(|(rank, _)| *rank).collect();
        if not_connected.is_empty() { self.ranks.iter().map(|(rank, _)| *rank).collect() } else { not_connected }
    }

    /// What a new head must be told: the last complete fence and the one that is waited in.
    pub fn replay(&self) -> Vec<PmixAction> {
        let fence = |c: &Contribution| PmixAction::Fence { number: c.number, blob: c.blob.clone() };
        self.last.iter().chain(&self.pending).map(fence).collect()
    }

    /// After an abort nothing is answered any more.
    pub fn handle(&mut self, event: PmixEvent<'_>, out: &mut Vec<PmixAction>) {
        if self.aborted {
            return;
        }
        match event {
            PmixEvent::Said(said) => self.said(said, out),
            PmixEvent::BridgeLost { why } => {
                if self.ranks.iter().any(|(_, phase)| *phase == Phase::Joined) {
                    self.abort(ABORT_CODE, format!("the PMIx server of this node is gone: {why}"), out);
                }
            }
            PmixEvent::Exited { local, code } => self.exited(local, code, out),
            PmixEvent::FenceDone { number, blob } => self.fence_done(number, blob, out),
        }
    }

    fn said(&mut self, said: FromBridge, out: &mut Vec<PmixAction>) {
        match said {
            FromBridge::Joined { rank } => self.set(rank, Phase::Joined),
            FromBridge::Finalized { rank } => self.set(rank, Phase::Over),
            FromBridge::Aborted { rank, code, message } => {
                let said = if message.is_empty() { String::new() } else { format!(": {}", Excerpt(message.as_bytes())) };
                self.abort(code, format!("rank {rank} aborted the launch with code {code}{said}"), out);
            }
            FromBridge::Fence { data } => self.fence(&data, out),
            FromBridge::Failed { why } => {
                self.abort(ABORT_CODE, format!("the PMIx server of this node failed: {}", Excerpt(why.as_bytes())), out);
            }
            FromBridge::Ready { .. } => self.abort(ABORT_CODE, "the PMIx server of this node began twice".to_owned(), out),
        }
    }

    fn set(&mut self, rank: u32, phase: Phase) {
        if let Some((_, held)) = self.ranks.iter_mut().find(|(known, _)| *known == rank) {
            *held = phase;
        }
    }

    fn exited(&mut self, local: u32, code: i32, out: &mut Vec<PmixAction>) {
        let Some((rank, phase)) = self.ranks.get_mut(local as usize) else { return };
        let rank = *rank;
        match std::mem::replace(phase, Phase::Over) {
            Phase::Joined => {
                let how = match code {
                    129..=192 => format!("ended with code {code} (128 + signal {})", code - 128),
                    _ => format!("exited with code {code}"),
                };
                let code = if code == 0 { ABORT_CODE } else { code };
                self.abort(code, format!("rank {rank} {how} between MPI_Init and MPI_Finalize"), out);
            }
            Phase::Fresh | Phase::Over => {}
        }
    }

    fn fence(&mut self, data: &[u8], out: &mut Vec<PmixAction>) {
        if self.alone {
            return out.push(PmixAction::Tell(ToBridge::Fenced { data: data.to_vec() }));
        }
        let next = self.fences.checked_add(1).filter(|_| self.pending.is_none());
        let Some(number) = next else {
            return self.abort(ABORT_CODE, "the PMIx server of this node is in two fences at once".to_owned(), out);
        };
        let Some(blob) = packed(data) else {
            let why = format!("the data of PMIx fence {number} has {} bytes, more than the {BLOB_BYTES_MAX} allowed", data.len());
            return self.abort(ABORT_CODE, why, out);
        };
        let contribution = Contribution { number, blob };
        out.push(PmixAction::Fence { number, blob: contribution.blob.clone() });
        self.pending = Some(contribution);
    }

    fn fence_done(&mut self, number: u32, blob: &[u8], out: &mut Vec<PmixAction>) {
        let Some(contribution) = self.pending.take_if(|pending| pending.number == number) else { return };
        self.last = Some(contribution);
        self.fences = number;
        let mut data = Vec::with_capacity(blob.len());
        for pair in blob::pairs(blob) {
            match pair {
                Ok((DATA_KEY, value)) => data.extend_from_slice(value),
                Ok(_) => {
                    let why = format!("fence {number}: ranks of one launch speak PMIx here and PMI elsewhere");
                    return self.abort(ABORT_CODE, why, out);
                }
                Err(corrupt) => return self.abort(ABORT_CODE, format!("fence {number}: {corrupt}"), out),
            }
        }
        out.push(PmixAction::Tell(ToBridge::Fenced { data }));
    }

    fn abort(&mut self, code: i32, why: String, out: &mut Vec<PmixAction>) {
        self.aborted = true;
        out.push(PmixAction::Abort { code, why });
    }
}

/// The library's data as a blob. `None`: it is too much for one.
fn packed(data: &[u8]) -> Option<Vec<u8>> {
    let mut blob = Vec::new();
    for part in data.chunks(VALUE_BYTES_MAX) {
        blob::append(&mut blob, DATA_KEY, part);
        if blob.len() > BLOB_BYTES_MAX {
            return None;
        }
    }
    Some(blob)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Contributed, FenceHub, Subtree};

    fn act(server: &mut PmixServer, event: PmixEvent<'_>) -> Vec<PmixAction> {
        let mut out = Vec::new();
        server.handle(event, &mut out);
        out
    }

    fn says(server: &mut PmixServer, said: FromBridge) -> Vec<PmixAction> {
        act(server, PmixEvent::Said(said))
    }

    #[test]
    fn nodes_get_each_others_data_joined_in_order() {
        let (mut a, mut b) = (PmixServer::new(&[0, 1], 3), PmixServer::new(&[2], 3));
        let mut hub = FenceHub::new(Subtree::whole(2));
        let data = [vec![b'a'; 3000], vec![b'b'; 5]];
        let mut merged = None;
        for (part, server) in [&mut b, &mut a].into_iter().enumerate() {
            let part = 1 - u32::try_from(part).unwrap();
            let out = says(server, FromBridge::Fence { data: data[part as usize].clone() });
            let [PmixAction::Fence { number: 1, blob }] = out.as_slice() else { panic!("{out:?}") };
            // A head that is new hears the same again.
            assert_eq!(server.replay(), out);
            merged = Some(hub.contribute(Subtree::single(part), 1, blob.clone()).unwrap());
        }
        let Some(Contributed::Whole(merged)) = merged else { panic!("{merged:?}") };
        for server in [&mut a, &mut b] {
            let out = act(server, PmixEvent::FenceDone { number: 1, blob: &merged.blob });
            assert_eq!(out, [PmixAction::Tell(ToBridge::Fenced { data: data.concat() })]);
            assert_eq!(act(server, PmixEvent::FenceDone { number: 1, blob: &merged.blob }), [], "told once");
        }
    }

    #[test]
    fn a_fence_without_data_and_one_of_a_node_alone() {
        let mut far = PmixServer::new(&[0], 2);
        assert_eq!(says(&mut far, FromBridge::Fence { data: Vec::new() }), [PmixAction::Fence { number: 1, blob: Vec::new() }]);
        assert_eq!(act(&mut far, PmixEvent::FenceDone { number: 1, blob: &[] }), [PmixAction::Tell(ToBridge::Fenced { data: vec![] })]);
        let mut alone = PmixServer::new(&[0, 1], 2);
        assert_eq!(says(&mut alone, FromBridge::Fence { data: vec![1] }), [PmixAction::Tell(ToBridge::Fenced { data: vec![1] })]);
        assert_eq!(alone.replay(), []);
    }

    #[test]
    fn who_ends_between_init_and_finalize_ends_the_launch() {
        let ended = |said: &[FromBridge], code| {
            let mut server = PmixServer::new(&[4, 5], 2);
            for said in said {
                assert_eq!(says(&mut server, said.clone()), []);
            }
            act(&mut server, PmixEvent::Exited { local: 1, code })
        };
        let (joined, finalized) = (FromBridge::Joined { rank: 5 }, FromBridge::Finalized { rank: 5 });
        assert_eq!(ended(&[], 3), [], "an ordinary program");
        assert_eq!(ended(&[joined.clone(), finalized], 3), []);
        let why = "rank 5 ended with code 137 (128 + signal 9) between MPI_Init and MPI_Finalize".to_owned();
        assert_eq!(ended(std::slice::from_ref(&joined), 137), [PmixAction::Abort { code: 137, why }]);
        let why = "rank 5 exited with code 0 between MPI_Init and MPI_Finalize".to_owned();
        assert_eq!(ended(&[joined], 0), [PmixAction::Abort { code: 1, why }]);
    }

    #[test]
    fn an_abort_is_told_with_its_code_and_ends_it() {
        let mut server = PmixServer::new(&[0], 1);
        let out = says(&mut server, FromBridge::Aborted { rank: 0, code: 7, message: "bad input".to_owned() });
        assert_eq!(out, [PmixAction::Abort { code: 7, why: "rank 0 aborted the launch with code 7: \"bad input\"".to_owned() }]);
        assert_eq!(says(&mut server, FromBridge::Fence { data: Vec::new() }), []);
    }

    #[test]
    fn a_bridge_that_goes_ends_the_launch_of_those_in_it_alone() {
        let mut server = PmixServer::new(&[0], 1);
        assert_eq!(act(&mut server, PmixEvent::BridgeLost { why: "it ended" }), []);
        says(&mut server, FromBridge::Joined { rank: 0 });
        let why = "the PMIx server of this node is gone: it ended".to_owned();
        assert_eq!(act(&mut server, PmixEvent::BridgeLost { why: "it ended" }), [PmixAction::Abort { code: 1, why }]);
    }

    #[test]
    fn two_fences_at_once_and_keys_of_pmi_are_refused() {
        let mut server = PmixServer::new(&[0], 2);
        says(&mut server, FromBridge::Fence { data: Vec::new() });
        let mut pmi = Vec::new();
        blob::append(&mut pmi, b"key", b"value");
        let mut other = PmixServer::new(&[0], 2);
        says(&mut other, FromBridge::Fence { data: Vec::new() });
        assert!(matches!(act(&mut other, PmixEvent::FenceDone { number: 1, blob: &pmi }).as_slice(), [PmixAction::Abort { .. }]));
        assert!(matches!(says(&mut server, FromBridge::Fence { data: Vec::new() }).as_slice(), [PmixAction::Abort { .. }]));
    }
}
