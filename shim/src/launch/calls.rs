//! Calls between the PMI servers of a launch's nodes, and their answers; the agent forwards them.

use super::{Happening, Launch};
use lattice_model::call::{CallKind, Service};
use lattice_model::{Backoff, Call, millis};
use lattice_pmi::{Event, PmixEvent};
use lattice_runtime::shim::boottime_ms;
use nix::sys::epoll::Epoll;
use std::time::Duration;

/// Pauses before an unanswered call is repeated.
const CALL_RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(8));

impl Launch {
    /// A call or an answer of another node's server arrived.
    pub fn called(&mut self, call: &Call, epoll: &Epoll, token: impl Fn(u32) -> u64) -> Vec<Happening> {
        match call.service {
            Service::Names => self.handle(Event::Called(call), epoll, &token),
            Service::Published | Service::Modex | Service::Deaths if self.pmix.is_some() => {
                self.handle_pmix(PmixEvent::Called(call), epoll)
            }
            Service::Published | Service::Modex | Service::Deaths => call.unserved().map(Happening::Call).into_iter().collect(),
        }
    }

    /// The unanswered calls to other nodes, to repeat them now.
    pub fn retry_calls_now(&mut self) -> Vec<Happening> {
        self.unanswered().into_iter().map(|call| self.asked(call)).collect()
    }

    /// The unanswered calls to other nodes. When all ranks have ended, the callers are gone.
    fn unanswered(&self) -> Vec<Call> {
        let ended = self.has_ended();
        let pmix = self.pmix.iter().flat_map(|pmix| pmix.server.unanswered());
        let all = self.server.unanswered().into_iter().chain(pmix);
        // Other nodes must still learn of deaths, also of the last rank's here.
        all.filter(|call| !ended || call.service == Service::Deaths).cloned().collect()
    }

    /// When [`Self::retry_calls`] must be called (milliseconds, CLOCK_BOOTTIME).
    pub fn calls_retried_at(&self) -> Option<u64> {
        self.call_retry.as_ref().map(|(at, _)| *at)
    }

    /// The unanswered calls to other nodes, if it is time to repeat them.
    pub fn retry_calls(&mut self, now: u64) -> Vec<Happening> {
        let Some((_, pauses)) = self.call_retry.take_if(|(at, _)| *at <= now) else { return Vec::new() };
        let again: Vec<Happening> = self.unanswered().into_iter().map(Happening::Call).collect();
        if !again.is_empty() {
            self.retry_calls_after(now, pauses);
        }
        again
    }

    pub(super) fn asked(&mut self, call: Call) -> Happening {
        if call.kind == CallKind::Request {
            self.retry_calls_after(boottime_ms(), CALL_RETRY);
        }
        Happening::Call(call)
    }

    fn retry_calls_after(&mut self, now_ms: u64, mut pauses: Backoff) {
        let pause = millis(pauses.next_pause());
        self.call_retry = Some((now_ms.saturating_add(pause), pauses));
    }
}
