//! How often each account may call, and each address without a valid token.

use super::answers::Refusal;
use super::counts::{Counts, Limited};
use super::places::Source;
use lattice_agent_common::config::api::ApiLimits;
use lattice_agent_common::token_bucket::{Rate, TokenBuckets};
use lattice_model::Principal;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How often an address may present a wrong token: 50 at once, and one a second.
const FAILURE_RATE: Rate = Rate { interval: Duration::from_secs(1), burst: 50 };
/// How many accounts and how many addresses are remembered.
const KEYS_MAX: usize = 4096;

/// The rates of all callers.
pub(super) struct Rates {
    counts: Counts,
    accounts: Mutex<TokenBuckets<u32>>,
    submissions: Mutex<TokenBuckets<u32>>,
    public: Mutex<TokenBuckets<Source>>,
    failures: Mutex<TokenBuckets<Source>>,
}

impl Rates {
    pub(super) fn new(limits: &ApiLimits, counts: Counts) -> Self {
        let requests = Rate::per_second(limits.requests_per_second, limits.burst);
        Self {
            counts,
            accounts: Mutex::new(TokenBuckets::new(requests, KEYS_MAX)),
            submissions: Mutex::new(TokenBuckets::new(Rate::per_minute(limits.submissions_per_minute), KEYS_MAX)),
            public: Mutex::new(TokenBuckets::new(requests, KEYS_MAX)),
            failures: Mutex::new(TokenBuckets::new(FAILURE_RATE, KEYS_MAX)),
        }
    }

    /// A request that needs no token.
    pub(super) fn public(&self, from: Source, now: Instant) -> Result<(), Refusal> {
        let taken = self.public.lock().take(&from, now);
        taken.map_err(|wait| self.refuse(Limited::Requests, "too many requests come from this address", wait, ""))
    }

    /// Whether the address may present a token: it has not presented too many wrong ones.
    pub(super) fn before_token(&self, from: Source, now: Instant) -> Result<(), Refusal> {
        let checked = self.failures.lock().check(&from, now);
        checked.map_err(|wait| self.refuse(Limited::Failures, "too many wrong tokens came from this address", wait, ""))
    }

    /// The address presented a wrong token, or none.
    pub(super) fn failed(&self, from: Source, now: Instant) {
        // An exhausted bucket refuses the next request.
        let _ = self.failures.lock().take(&from, now);
    }

    /// A request of an account.
    pub(super) fn request(&self, account: &Principal, is_submission: bool, now: Instant) -> Result<(), Refusal> {
        let taken = self.accounts.lock().take(&account.uid, now);
        taken.map_err(|wait| self.refuse(Limited::Requests, &format!("{} sends too many requests", account.name), wait, ""))?;
        if !is_submission {
            return Ok(());
        }
        let taken = self.submissions.lock().take(&account.uid, now);
        let hint = "submit many tasks as one task group (`lattice submit --task-group`)";
        taken.map_err(|wait| self.refuse(Limited::Submissions, &format!("{} submits too often", account.name), wait, hint))
    }

    fn refuse(&self, what: Limited, text: &str, wait: Duration, hint: &str) -> Refusal {
        self.counts.limited(what);
        Refusal::too_many(text, wait, hint)
    }
}

/// Whether a request submits work. `method`: of HTTP.
pub(super) fn is_submission(method: &str, path: &str) -> bool {
    const GRPC: [&str; 3] =
        ["/lattice.v1.AllocationService/Submit", "/lattice.v1.AllocationService/RetryTasks", "/lattice.v1.DagService/Submit"];
    let path = path.trim_end_matches('/');
    let of_rest = |rest: &str| matches!(rest, "allocations" | "dags") || rest.ends_with("/retry");
    method == "POST" && (GRPC.contains(&path) || path.strip_prefix("/api/v1/").is_some_and(of_rest))
}

#[cfg(test)]
mod tests {
    use super::super::answers::Form;
    use super::*;

    fn account(uid: u32) -> Principal {
        Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] }
    }

    fn rates(limits: ApiLimits) -> Rates {
        Rates::new(&limits, Counts::default())
    }

    #[test]
    fn accounts_have_their_own_rates_and_submissions_a_lower_one() {
        let rates = rates(ApiLimits { requests_per_second: 1, burst: 4, submissions_per_minute: 2, ..ApiLimits::default() });
        let now = Instant::now();
        let submitted: Vec<bool> = (0..3).map(|_| rates.request(&account(7), true, now).is_ok()).collect();
        assert_eq!(submitted, [true, true, false]);
        assert!(rates.request(&account(7), false, now).is_ok());
        let refused = rates.request(&account(7), false, now).unwrap_err();
        assert_eq!(refused.answer(Form::Rest).status(), 429);
        assert!(rates.request(&account(8), true, now).is_ok());
        assert!(rates.request(&account(7), false, now + Duration::from_secs(1)).is_ok());
    }

    #[test]
    fn an_address_with_too_many_wrong_tokens_waits() {
        let (rates, now) = (rates(ApiLimits::default()), Instant::now());
        let source = |last| Source::of([10, 0, 0, last].into());
        for _ in 0..FAILURE_RATE.burst {
            rates.before_token(source(1), now).unwrap();
            rates.failed(source(1), now);
        }
        assert!(rates.before_token(source(1), now).is_err() && rates.before_token(source(2), now).is_ok());
        assert!(rates.before_token(source(1), now + FAILURE_RATE.interval).is_ok());
    }

    #[test]
    fn submissions_are_known_by_their_paths() {
        let submit = ["/lattice.v1.AllocationService/Submit", "/lattice.v1.DagService/Submit", "/api/v1/allocations", "/api/v1/dags/"];
        assert!(submit.into_iter().chain(["/api/v1/allocations/a/retry"]).all(|path| is_submission("POST", path)));
        assert!(!is_submission("GET", "/api/v1/allocations") && !is_submission("POST", "/api/v1/allocations/a/checkpoint"));
    }
}
