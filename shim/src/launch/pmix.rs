//! Messages from and to the launch's PMIx bridge.

use super::{Down, Happening, Launch, RankState};
use crate::bridge::{BridgeReceived, Pmix};
use lattice_model::{RankOutcome, with_causes};
use lattice_pmi::bridge::{FromBridge, ToBridge};
use lattice_pmi::{PmixAction, PmixEvent};
use lattice_runtime::identity::process_stat;
use nix::poll::PollTimeout;
use nix::sys::epoll::Epoll;
use std::time::{Duration, Instant};

/// How long the shim waits for the bridge's last message about a rank that has ended.
const LAST_MESSAGE_WAIT: Duration = Duration::from_secs(1);

impl Launch {
    /// Closes the bridge, because no rank needs it any more.
    pub fn close_bridge(&mut self, epoll: &Epoll) {
        if let Some(bridge) = self.pmix.as_mut().and_then(|pmix| pmix.bridge.take()) {
            bridge.close(epoll);
        }
    }

    pub(super) fn handle_bridge(&mut self, received: BridgeReceived, epoll: &Epoll) -> Vec<Happening> {
        let mut happenings = Vec::new();
        for message in received.messages {
            let leaves = if let FromBridge::Finalized { rank } = message { Some(rank) } else { None };
            let event = match message {
                FromBridge::Lost { rank } if self.is_ending(rank) => PmixEvent::LostAtEnd { rank },
                FromBridge::Finalized { rank } if self.is_ending(rank) => PmixEvent::Left { rank },
                message => PmixEvent::Message(message),
            };
            happenings.extend(self.handle_pmix(event, epoll));
            if let Some(rank) = leaves {
                happenings.extend(self.send_to_bridge(&ToBridge::Left { rank }, epoll));
            }
        }
        if let Some(why) = received.lost {
            self.close_bridge(epoll);
            happenings.extend(self.handle_pmix(PmixEvent::BridgeLost { why: &why }, epoll));
        }
        happenings
    }

    /// Handles the bridge's messages about a rank that was reaped. A rank that exited with 0 may have sent its finalize
    /// and left without the answer: `PMIx_Finalize` of OpenPMIx waits for two seconds only. So the shim waits until the
    /// bridge has read the finalize or the end of the rank's connection. It does nothing else meanwhile, for
    /// [`LAST_MESSAGE_WAIT`] at most.
    pub(super) fn handle_last_bridge_messages(&mut self, local: u32, outcome: RankOutcome, epoll: &Epoll) -> Vec<Happening> {
        let mut happenings = Vec::new();
        let until = Instant::now() + LAST_MESSAGE_WAIT;
        while let Some(pmix) = &mut self.pmix
            && let Some(bridge) = &mut pmix.bridge
        {
            let received = bridge.receive();
            happenings.extend(self.handle_bridge(received, epoll));
            let waits =
                self.pmix.as_ref().filter(|pmix| outcome.code() == 0 && self.down == Down::No && pmix.server.may_have_finalized(local));
            let left = PollTimeout::try_from(until.saturating_duration_since(Instant::now())).unwrap_or(PollTimeout::ZERO);
            let Some(bridge) = waits.and_then(|pmix| pmix.bridge.as_ref()).filter(|_| left != PollTimeout::ZERO) else { break };
            bridge.wait(left);
        }
        happenings
    }

    pub(super) fn handle_pmix(&mut self, event: PmixEvent<'_>, epoll: &Epoll) -> Vec<Happening> {
        let Some(pmix) = &mut self.pmix else { return Vec::new() };
        let (mut actions, mut happenings, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        pmix.server.handle(event, &mut actions);
        for action in actions {
            match action {
                PmixAction::Send(message) => happenings.extend(send_to_bridge(pmix, &message, epoll)),
                PmixAction::Fence { number, blob } => happenings.push(Happening::Fence { number, blob }),
                PmixAction::Call(call) => calls.push(call),
                PmixAction::Abort { code, why } => happenings.push(Happening::Abort { code, why }),
            }
        }
        happenings.extend(calls.into_iter().map(|call| self.asked(call)).collect::<Vec<_>>());
        happenings
    }

    fn send_to_bridge(&mut self, message: &ToBridge, epoll: &Epoll) -> Option<Happening> {
        self.pmix.as_mut().and_then(|pmix| send_to_bridge(pmix, message, epoll))
    }

    /// Whether a rank's process is ending: one that waits for an answer is not.
    pub(super) fn is_ending(&self, rank: u32) -> bool {
        let at = self.numbers.iter().position(|number| *number == rank);
        match at.and_then(|local| self.ranks.get(local)).map(|rank| &rank.state) {
            Some(RankState::Running { pid, .. }) => process_stat(*pid).map_or(true, |stat| stat.ending),
            Some(RankState::Ended(_)) | None => true,
        }
    }
}

fn send_to_bridge(pmix: &mut Pmix, message: &ToBridge, epoll: &Epoll) -> Option<Happening> {
    let sent = pmix.bridge.as_mut().map(|bridge| bridge.send(message, epoll))?;
    // A death that could not be reported is no reason to end the other ranks.
    let error = sent.err().filter(|_| !matches!(message, ToBridge::Died { .. }))?;
    Some(Happening::Abort { code: 1, why: format!("the PMIx server of this node was not notified: {}", with_causes(&error)) })
}
