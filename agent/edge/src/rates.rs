//! The request rates of accounts, of tenants, and of addresses without a valid token.

use super::answers::Refusal;
use super::counts::{Counts, Limited};
use super::places::Source;
use lattice_agent_common::config::api::ApiLimits;
use lattice_agent_common::token_bucket::{Rate, TokenBuckets};
use lattice_model::Principal;
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How often an address may present a wrong token: 50 times at once, then once a second.
const FAILURE_RATE: Rate = Rate { interval: Duration::from_secs(1), burst: 50 };
/// How many accounts and how many addresses are remembered.
const KEYS_MAX: usize = 4096;

/// The rates of all callers.
pub(super) struct Rates {
    counts: Counts,
    accounts: Mutex<TokenBuckets<u32>>,
    submissions: Mutex<TokenBuckets<u32>>,
    /// `None`: tenants have no limit.
    tenants: Option<Mutex<TokenBuckets<String>>>,
    public: Mutex<TokenBuckets<Source>>,
    failures: Mutex<TokenBuckets<Source>>,
}

impl Rates {
    pub(super) fn new(limits: &ApiLimits, counts: Counts) -> Self {
        let requests = Rate::per_second(limits.requests_per_second, limits.burst);
        let of_tenants = Rate::per_second(limits.tenant_requests_per_second, limits.tenant_burst);
        let has_tenants = limits.tenant_requests_per_second > 0;
        Self {
            counts,
            accounts: Mutex::new(TokenBuckets::new(requests, KEYS_MAX)),
            submissions: Mutex::new(TokenBuckets::new(Rate::per_minute(limits.submissions_per_minute), KEYS_MAX)),
            tenants: has_tenants.then(|| Mutex::new(TokenBuckets::new(of_tenants, KEYS_MAX))),
            public: Mutex::new(TokenBuckets::new(requests, KEYS_MAX)),
            failures: Mutex::new(TokenBuckets::new(FAILURE_RATE, KEYS_MAX)),
        }
    }

    /// Counts a request that needs no token.
    pub(super) fn public(&self, from: Source, now: Instant) -> Result<(), Refusal> {
        let taken = self.public.lock().take(&from, now);
        taken.map_err(|wait| self.refuse(Limited::Requests, "too many requests come from this address", wait, ""))
    }

    /// Begins to check a token. Refuses an address that presented too many wrong tokens, unless
    /// this token was right lately (`is_known`).
    pub(super) fn begin_check(&self, from: Source, now: Instant, is_known: impl FnOnce() -> bool) -> Result<TokenCheck<'_>, Refusal> {
        let checked = self.failures.lock().check(&from, now);
        match checked.err().filter(|_| !is_known()) {
            Some(wait) => Err(self.refuse(Limited::Failures, "too many wrong tokens came from this address", wait, "")),
            None => Ok(TokenCheck { rates: self, from, is_wrong: true }),
        }
    }

    /// Counts a request of an account.
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

    /// Whether the requests of tenants have a limit.
    pub(super) fn limits_tenants(&self) -> bool {
        self.tenants.is_some()
    }

    /// Counts a request for each of its account's tenants. If one tenant has sent too many, refuses
    /// the request and counts it for none.
    pub(super) fn request_of_tenants<'a>(&self, tenants: impl Iterator<Item = &'a String> + Clone, now: Instant) -> Result<(), Refusal> {
        let Some(buckets) = &self.tenants else { return Ok(()) };
        let mut buckets = buckets.lock();
        for tenant in tenants.clone() {
            if let Err(wait) = buckets.check(tenant, now) {
                let text = format!("the accounts of tenant {tenant:?} send too many requests");
                return Err(self.refuse(Limited::Tenants, &text, wait, ""));
            }
        }
        // Every tenant has a token: this was checked above.
        for tenant in tenants {
            let _ = buckets.take(tenant, now);
        }
        Ok(())
    }

    fn refuse(&self, what: Limited, text: &str, wait: Duration, hint: &str) -> Refusal {
        self.counts.limited(what);
        Refusal::too_many(text, wait, hint)
    }
}

/// A check of a token. If the caller disconnects before the result, the token counts as wrong:
/// otherwise nothing would limit such checks.
pub(super) struct TokenCheck<'a> {
    rates: &'a Rates,
    from: Source,
    is_wrong: bool,
}

impl TokenCheck<'_> {
    /// Does not count the token as wrong: it is right, or cannot be checked at present.
    pub(super) fn forgive(mut self) {
        self.is_wrong = false;
    }
}

impl Drop for TokenCheck<'_> {
    fn drop(&mut self) {
        if self.is_wrong {
            // An exhausted bucket refuses the next request.
            let _ = self.rates.failures.lock().take(&self.from, Instant::now());
        }
    }
}

/// Whether a request submits work. `method`: the HTTP method.
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
    fn the_accounts_of_a_tenant_share_its_rate() {
        let rates = rates(ApiLimits { tenant_requests_per_second: 1, tenant_burst: 2, ..ApiLimits::default() });
        let now = Instant::now();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        let of = |tenants: &[&str], now| rates.request_of_tenants(names(tenants).iter(), now);
        assert!(rates.limits_tenants());
        assert!(of(&["physics"], now).is_ok() && of(&["biology", "physics"], now).is_ok());
        let refused = of(&["biology", "physics"], now).unwrap_err();
        assert_eq!(refused.answer(Form::Rest).status(), 429);
        assert!(of(&["biology"], now).is_ok(), "a refused request did not count");
        assert!(of(&["biology"], now).is_err() && of(&[], now).is_ok());
        assert!(of(&["physics"], now + Duration::from_secs(1)).is_ok());
        assert!(!self::rates(ApiLimits::default()).limits_tenants());
    }

    #[test]
    fn an_address_with_too_many_wrong_tokens_waits() {
        let rates = rates(ApiLimits::default());
        let source = |last| Source::of([10, 0, 0, last].into());
        let check = |last, is_known| rates.begin_check(source(last), Instant::now(), move || is_known);
        for _ in 0..2 * FAILURE_RATE.burst {
            check(1, false).unwrap().forgive();
        }
        for _ in 0..FAILURE_RATE.burst {
            drop(check(1, false).unwrap());
        }
        assert!(check(1, false).is_err());
        check(1, true).unwrap().forgive();
        check(2, false).unwrap().forgive();
        rates.begin_check(source(1), Instant::now() + FAILURE_RATE.interval, || false).unwrap().forgive();
    }

    #[test]
    fn submissions_are_known_by_their_paths() {
        let submit = ["/lattice.v1.AllocationService/Submit", "/lattice.v1.DagService/Submit", "/api/v1/allocations", "/api/v1/dags/"];
        assert!(submit.into_iter().chain(["/api/v1/allocations/a/retry"]).all(|path| is_submission("POST", path)));
        assert!(!is_submission("GET", "/api/v1/allocations") && !is_submission("POST", "/api/v1/allocations/a/checkpoint"));
    }
}
