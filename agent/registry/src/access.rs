//! Who may open which stream of the mesh: one table, checked where a stream arrives, before
//! anything is done for it. For some requests of users the table checks only the agent. Then the
//! code that serves the request checks the user's rights: it also serves this node's own users.

use crate::Allocations;
use lattice_mesh::open::{Open, vouched};
use lattice_model::{AllocationId, Epoch, Principal};
use lattice_pki::identity::{Caller, Role};
use thiserror::Error;
use uuid::Uuid;

/// Which peers may open a stream.
enum Access {
    /// Every agent.
    AnyAgent,
    /// Agents of role `api`: they vouch for the user or operator that the request names.
    ApiAgents,
    /// Agents of role `api`, and the agents of the allocation's nodes.
    ApiAgentsOrItsNodes(Claim),
    /// Agents of role `api`, and the agents of the allocation's nodes, if the request names the
    /// allocation's owner or root. The allocation must be on this node.
    ForItsOwner(Claim, Principal),
    /// As [`Access::ForItsOwner`]. If the allocation has left this node, agents of role `api` for
    /// any user: these agents have checked the user.
    OutputForItsOwner(Claim, Principal),
    /// The agents of the allocation's nodes.
    ItsNodes(Claim),
    /// The agent of the allocation's first node.
    ItsHead(Claim),
}

/// An allocation under one epoch: its nodes and its owner never change.
struct Claim {
    allocation: AllocationId,
    epoch: Epoch,
}

/// Why a peer may not open a stream.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum Denied {
    #[error("refused: the asking agent may not vouch for users")]
    MayNotVouch,
    #[error("refused: the allocation belongs to somebody else")]
    NotTheOwner,
    #[error("refused: not one of the allocation's nodes")]
    NotOfItsNodes,
    #[error("refused: not the allocation's head")]
    NotItsHead,
    #[error("allocation {} is not running on this node", .allocation.short())]
    NotHere { allocation: AllocationId },
}

/// Whether `peer` may open a stream for this request.
///
/// # Errors
/// Why it may not.
pub fn check(open: &Open, allocations: &Allocations, peer: &Caller) -> Result<(), Denied> {
    Access::of(open).check(allocations, peer)
}

impl Access {
    /// The peers that may open a stream for this request.
    fn of(open: &Open) -> Self {
        let claim = |allocation: [u8; 16], epoch| Claim { allocation: AllocationId(Uuid::from_bytes(allocation)), epoch: Epoch(epoch) };
        match open {
            Open::Fact(_) | Open::RelaySession | Open::Saving => Self::AnyAgent,
            Open::Launch(_)
            | Open::Abort(_)
            | Open::Keyboard(_)
            | Open::Input(_)
            | Open::Signal(_)
            | Open::Checkpoint(_)
            | Open::Entry(_)
            | Open::StatusTexts(_)
            | Open::History(_)
            | Open::Fingerprint => Self::ApiAgents,
            Open::Attach(open) => Self::ApiAgentsOrItsNodes(claim(open.allocation, open.epoch)),
            Open::Logs(open) => Self::OutputForItsOwner(claim(open.allocation, open.epoch), vouched(open.uid, &open.user)),
            Open::Steps(open) => Self::OutputForItsOwner(claim(open.allocation, open.epoch), vouched(open.uid, &open.user)),
            Open::Usage(open) => Self::ForItsOwner(claim(open.allocation, open.epoch), vouched(open.uid, &open.user)),
            Open::UsageGpus(open) | Open::Ranks(open) => {
                Self::ForItsOwner(claim(open.allocation, open.epoch), vouched(open.uid, &open.user))
            }
            Open::Monitor(open) => Self::ForItsOwner(claim(open.allocation, open.epoch), vouched(open.uid, &open.user)),
            Open::Diagnosis(open) => Self::ForItsOwner(claim(open.allocation, open.epoch), vouched(open.uid, &open.user)),
            Open::Branch(open) => Self::ItsNodes(claim(open.launch.allocation, open.launch.epoch)),
            Open::CheckpointPart(open) => Self::ItsHead(claim(open.allocation, open.epoch)),
        }
    }

    fn check(&self, allocations: &Allocations, peer: &Caller) -> Result<(), Denied> {
        let vouches = peer.role == Role::Api;
        let here = |claim: &Claim| allocations.of_epoch(claim.allocation, claim.epoch).map(|handle| handle.share);
        let is_peer = |node: &lattice_model::NodeId| node.as_str() == peer.name;
        match self {
            Self::AnyAgent => Ok(()),
            Self::ApiAgents => vouches.then_some(()).ok_or(Denied::MayNotVouch),
            Self::ApiAgentsOrItsNodes(claim) => {
                let of_nodes = here(claim).is_some_and(|share| share.nodes.iter().any(is_peer));
                (vouches || of_nodes).then_some(()).ok_or(Denied::MayNotVouch)
            }
            Self::ForItsOwner(claim, user) | Self::OutputForItsOwner(claim, user) => match here(claim) {
                Some(share) if !vouches && !share.nodes.iter().any(is_peer) => Err(Denied::MayNotVouch),
                Some(share) => user.may_act_for(&share.owner).then_some(()).ok_or(Denied::NotTheOwner),
                None if !vouches => Err(Denied::MayNotVouch),
                None if matches!(self, Self::OutputForItsOwner(..)) => Ok(()),
                None => Err(Denied::NotHere { allocation: claim.allocation }),
            },
            Self::ItsNodes(claim) => {
                let share = here(claim).ok_or(Denied::NotHere { allocation: claim.allocation })?;
                share.nodes.iter().any(is_peer).then_some(()).ok_or(Denied::NotOfItsNodes)
            }
            Self::ItsHead(claim) => {
                let share = here(claim).ok_or(Denied::NotHere { allocation: claim.allocation })?;
                share.nodes.first().is_some_and(is_peer).then_some(()).ok_or(Denied::NotItsHead)
            }
        }
    }
}
