//! What servers of other nodes are asked and answer, by way of the agent.

use super::{Happening, Launch};
use lattice_model::call::{Leg, Service};
use lattice_model::{Backoff, Call};
use lattice_pmi::{Event, PmixEvent};
use lattice_runtime::shim::boottime_ms;
use nix::sys::epoll::Epoll;
use std::time::Duration;

/// Before another node is asked again that did not answer.
const ASK_AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(8));

impl Launch {
    /// A server of another node asks, or answers.
    pub fn called(&mut self, call: &Call, epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
        match call.service {
            Service::Names => self.handle(Event::Called(call), epoll, &token),
            Service::Published | Service::Modex | Service::Deaths if self.pmix.is_some() => {
                self.handle_pmix(PmixEvent::Called(call), epoll)
            }
            Service::Published | Service::Modex | Service::Deaths => call.unserved().map(Happening::Call).into_iter().collect(),
        }
    }

    /// What other nodes were asked and have not answered, now.
    pub fn ask_again_now(&mut self) -> Vec<Happening> {
        self.unanswered().into_iter().map(|call| self.asked(call)).collect()
    }

    /// What other nodes were asked and have not answered. Those who asked are gone when all have ended.
    fn unanswered(&self) -> Vec<Call> {
        let ended = self.ended();
        let pmix = self.pmix.iter().flat_map(|pmix| pmix.server.unanswered());
        let all = self.server.unanswered().into_iter().chain(pmix);
        // Of deaths others hear, and of the last rank's here too.
        all.filter(|call| !ended || call.service == Service::Deaths).cloned().collect()
    }

    /// When [`Self::ask_again`] has something to do (milliseconds, CLOCK_BOOTTIME).
    pub fn asks_again_at(&self) -> Option<u64> {
        self.asks_again.as_ref().map(|(at, _)| *at)
    }

    /// What other nodes were asked and have not answered, when it is time.
    pub fn ask_again(&mut self, now: u64) -> Vec<Happening> {
        let Some((_, pauses)) = self.asks_again.take_if(|(at, _)| *at <= now) else { return Vec::new() };
        let again: Vec<Happening> = self.unanswered().into_iter().map(Happening::Call).collect();
        if !again.is_empty() {
            self.ask_again_after(now, pauses);
        }
        again
    }

    pub(super) fn asked(&mut self, call: Call) -> Happening {
        if call.leg == Leg::Asks {
            self.ask_again_after(boottime_ms(), ASK_AGAIN);
        }
        Happening::Call(call)
    }

    fn ask_again_after(&mut self, now_ms: u64, mut pauses: Backoff) {
        let pause = u64::try_from(pauses.next_pause().as_millis()).unwrap_or(u64::MAX);
        self.asks_again = Some((now_ms.saturating_add(pause), pauses));
    }
}
