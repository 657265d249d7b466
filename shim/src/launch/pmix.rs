//! The launch's bridge to PMIx: what it says, and what it is told.

use super::{Happening, Launch, RankState};
use crate::bridge::{Heard, Pmix};
use lattice_pmi::bridge::{FromBridge, ToBridge};
use lattice_pmi::{PmixAction, PmixEvent};
use lattice_runtime::identity::process_stat;
use nix::sys::epoll::Epoll;

impl Launch {
    /// No rank needs the bridge any more.
    pub fn close_bridge(&mut self, epoll: &Epoll) {
        if let Some(bridge) = self.pmix.as_mut().and_then(|pmix| pmix.bridge.take()) {
            bridge.close(epoll);
        }
    }

    pub(super) fn heard(&mut self, heard: Heard, epoll: &Epoll) -> Vec<Happening> {
        let mut happenings = Vec::new();
        for said in heard.said {
            // The code tells how it ended, once it is reaped.
            if matches!(said, FromBridge::Lost { rank } if self.is_ending(rank)) {
                continue;
            }
            let FromBridge::Finalized { rank } = said else {
                happenings.extend(self.handle_pmix(PmixEvent::Said(said), epoll));
                continue;
            };
            let event = if self.is_ending(rank) { PmixEvent::Left { rank } } else { PmixEvent::Said(said) };
            happenings.extend(self.handle_pmix(event, epoll));
            happenings.extend(self.tell_bridge(&ToBridge::Left { rank }, epoll));
        }
        if let Some(why) = heard.lost {
            self.close_bridge(epoll);
            happenings.extend(self.handle_pmix(PmixEvent::BridgeLost { why: &why }, epoll));
        }
        happenings
    }

    pub(super) fn handle_pmix(&mut self, event: PmixEvent<'_>, epoll: &Epoll) -> Vec<Happening> {
        let Some(pmix) = &mut self.pmix else { return Vec::new() };
        let (mut actions, mut happenings, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        pmix.server.handle(event, &mut actions);
        for action in actions {
            match action {
                PmixAction::Tell(message) => happenings.extend(tell_bridge(pmix, &message, epoll)),
                PmixAction::Fence { number, blob } => happenings.push(Happening::Fence { number, blob }),
                PmixAction::Call(call) => calls.push(call),
                PmixAction::Abort { code, why } => happenings.push(Happening::Abort { code, why }),
            }
        }
        happenings.extend(calls.into_iter().map(|call| self.asked(call)).collect::<Vec<_>>());
        happenings
    }

    fn tell_bridge(&mut self, message: &ToBridge, epoll: &Epoll) -> Option<Happening> {
        self.pmix.as_mut().and_then(|pmix| tell_bridge(pmix, message, epoll))
    }

    /// Whether a rank's process is ending: one that waits for an answer is not.
    fn is_ending(&self, rank: u32) -> bool {
        let at = self.numbers.iter().position(|number| *number == rank);
        match at.and_then(|local| self.ranks.get(local)).map(|rank| &rank.state) {
            Some(RankState::Running { pid, .. }) => process_stat(*pid).map_or(true, |stat| stat.ending),
            Some(RankState::Ended(_)) | None => true,
        }
    }
}

fn tell_bridge(pmix: &mut Pmix, message: &ToBridge, epoll: &Epoll) -> Option<Happening> {
    let told = pmix.bridge.as_mut().map(|bridge| bridge.tell(message, epoll))?;
    // A death that nobody hears of is no reason to end the others.
    let why = told.err().filter(|_| !matches!(message, ToBridge::Died { .. }))?;
    Some(Happening::Abort { code: 1, why: format!("the PMIx server of this node was not told: {why}") })
}
