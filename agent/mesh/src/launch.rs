//! The wire form of a launch, and the messages between its head and its parts.

use super::binding::WireBinding;
use super::call::WireCall;
use super::frame::FrameError;
use super::input::{WireInputAck, WireInputChunk};
use lattice_model::binding::BindingRequest;
use lattice_model::{AllocationId, Epoch, LaunchId, LaunchShape, LaunchSpec, NodeRanks, RankBinding, RankOutcome, TerminalSize};
use rkyv::{Archive, Deserialize, Serialize};

/// The wire form of [`LaunchSpec`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireLaunch {
    pub id: [u8; 16],
    pub number: u32,
    pub allocation: [u8; 16],
    pub epoch: u64,
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: String,
    pub nodes: Vec<(String, u32, u32)>,
    /// Rows and columns of the first rank's terminal, if it has one.
    pub pty: Option<(u16, u16)>,
    pub binding: WireBinding,
}

/// From a head to a part. Between agents it travels as a [`super::branch::Down`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToPart {
    /// Every part has reached this fence.
    FenceDone { number: u32, blob: Vec<u8> },
    /// End the ranks.
    Abort { code: i32, why: String },
    /// The launch has ended and the end was reported: the part may forget it.
    Forget,
    /// A fence has waited too long: report this node's ranks that have not reached it. Answered by
    /// [`ToHead::Absent`], if the shim knows.
    NameAbsent,
    /// Standard input. Sent only to a part that has reported how much it has.
    Input(Box<WireInputChunk>),
    /// A call from the server of another part to this part's server.
    Call(Box<WireCall>),
}

/// From a part to its head. After each connect the part sends everything it knows again, then
/// `Synced`.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum ToHead {
    /// The shim has the launch: from here on this node remembers it.
    Begun,
    RankEnded {
        rank: u32,
        outcome: WireOutcome,
    },
    Fence {
        number: u32,
        blob: Vec<u8>,
    },
    Aborted {
        code: i32,
        why: String,
    },
    WalltimeOver,
    Lost {
        why: String,
    },
    Synced,
    /// See [`lattice_model::MemoryKill`].
    OutOfMemory {
        launch: u32,
        whole: bool,
        had_bytes: Option<u64>,
        limit_bytes: Option<u64>,
    },
    /// Ranks that have not reached the fence in which others wait.
    Absent {
        ranks: Vec<u32>,
    },
    /// How much of standard input the part's ranks have taken. `again`: send what follows that
    /// position.
    Input {
        taken: WireInputAck,
        again: bool,
    },
    /// A call from this part's server to that of another part.
    Call(Box<WireCall>),
}

/// The wire form of [`RankOutcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireOutcome {
    Exited(u8),
    Signalled(u8),
    NotStarted(u8),
}

impl From<&LaunchSpec> for WireLaunch {
    fn from(spec: &LaunchSpec) -> Self {
        Self {
            id: *spec.id.0.as_bytes(),
            number: spec.number,
            allocation: *spec.allocation.0.as_bytes(),
            epoch: spec.epoch.0,
            argv: spec.argv.clone(),
            env: spec.env.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            working_dir: spec.working_dir.to_string_lossy().into_owned(),
            nodes: wire_nodes(&spec.nodes),
            pty: spec.pty.map(|size| (size.rows, size.columns)),
            binding: spec.binding.into(),
        }
    }
}

/// The wire form of the ranks of each node: (node, first rank, count).
pub fn wire_nodes(nodes: &[NodeRanks]) -> Vec<(String, u32, u32)> {
    nodes.iter().map(|n| (n.node.to_string(), n.first, n.count)).collect()
}

impl TryFrom<WireLaunch> for LaunchSpec {
    type Error = FrameError;

    fn try_from(wire: WireLaunch) -> Result<Self, FrameError> {
        let mut nodes = Vec::with_capacity(wire.nodes.len());
        let mut next = 0u32;
        for (node, first, count) in wire.nodes {
            // The head alone may have no rank.
            if first != next || (count == 0 && !nodes.is_empty()) {
                return Err(FrameError::Malformed);
            }
            next = first.checked_add(count).ok_or(FrameError::Malformed)?;
            nodes.push(NodeRanks { node: node.parse().map_err(|_| FrameError::Malformed)?, first, count });
        }
        if next == 0 || wire.argv.is_empty() {
            return Err(FrameError::Malformed);
        }
        Ok(Self {
            id: LaunchId(uuid::Uuid::from_bytes(wire.id)),
            number: wire.number,
            allocation: AllocationId(uuid::Uuid::from_bytes(wire.allocation)),
            epoch: Epoch(wire.epoch),
            argv: wire.argv,
            env: wire.env.into_iter().collect(),
            working_dir: wire.working_dir.into(),
            nodes,
            pty: wire.pty.map(|(rows, columns)| TerminalSize { rows, columns }),
            binding: BindingRequest::try_from(wire.binding)?.over(RankBinding::default()),
            shape: LaunchShape::default(),
            // Only the head acts on this.
            kill_on_bad_exit: false,
        })
    }
}

impl From<RankOutcome> for WireOutcome {
    fn from(outcome: RankOutcome) -> Self {
        match outcome {
            RankOutcome::Exited { code } => Self::Exited(code),
            RankOutcome::Signalled { signal } => Self::Signalled(signal),
            RankOutcome::NotStarted { code } => Self::NotStarted(code),
        }
    }
}

impl From<WireOutcome> for RankOutcome {
    fn from(outcome: WireOutcome) -> Self {
        match outcome {
            WireOutcome::Exited(code) => Self::Exited { code },
            WireOutcome::Signalled(signal) => Self::Signalled { signal },
            WireOutcome::NotStarted(code) => Self::NotStarted { code },
        }
    }
}
