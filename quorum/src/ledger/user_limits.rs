//! What one user, or one tenant, may have in the quorum, so that no user takes from others what they need there.
//!
//! ```text
//!   Submit ──▶ waiting < user_pending, tenant_pending? ──▶ rate? ──▶ scripts of work that has not ended fit? ──▶ taken
//!                    no: Refusal::OverUserLimit, with when or after what to try again
//!
//!   ended work:  more than all may have ──▶ the oldest of the user who has most of it is forgotten
//!                more than user_history, or its scripts leave no room ──▶ the oldest of that user is forgotten
//! ```
//!
//! The rate is a token bucket, kept as one number per user: when the bucket will be full again ("theoretical arrival time" of the
//! generic cell rate algorithm, ITU-T I.371). A user whose bucket is full is not kept, so that there are never more users here than
//! submissions within the last moments. Its clock is the ledger's time.

use super::tenants::QuotaChange;
use super::{ENDED_KEPT_MAX, ENDED_KEPT_MS, Ledger, Step, USER_LIMITS_LEVEL};
use crate::wire::Refusal;
use lattice_model::{Allocation, AllocationId, AllocationSpec, Entrypoint, Principal, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// The seconds of its rate that a user may submit at once.
const BURST_SECONDS: u64 = 100;
/// Users with a bucket that is not full, before those are removed whose bucket is full by now.
const BUCKETS_SWEEP_AT: usize = 256;

/// Ended allocations of a user that are looked at for one of which nothing is left on a node.
const LOOK_AT_ENDED_MAX: usize = 1000;

/// Limits of each user and tenant. `None`: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserLimits {
    /// A user's allocations that wait or are suspended.
    pub user_pending: Option<u32>,
    /// What a user may submit in a second, for long; a hundred times as much at once.
    pub user_submissions_per_second: Option<u32>,
    /// Bytes of a user's scripts; each text counts once.
    pub user_script_bytes: Option<u32>,
    /// A user's allocations that have ended and are still shown.
    pub user_history: Option<u32>,
    /// A tenant's allocations that wait or are suspended.
    pub tenant_pending: Option<u32>,
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            user_pending: Some(10_000),
            user_submissions_per_second: Some(100),
            user_script_bytes: Some(64 * 1024 * 1024),
            user_history: None,
            tenant_pending: Some(100_000),
        }
    }
}

impl UserLimits {
    /// Whether nobody has set another one.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn of(&self, what: UserLimit) -> Option<u32> {
        match what {
            UserLimit::Pending => self.user_pending,
            UserLimit::SubmissionsPerSecond => self.user_submissions_per_second,
            UserLimit::ScriptBytes => self.user_script_bytes,
            UserLimit::History => self.user_history,
            UserLimit::TenantPending => self.tenant_pending,
        }
    }

    fn of_mut(&mut self, what: UserLimit) -> &mut Option<u32> {
        match what {
            UserLimit::Pending => &mut self.user_pending,
            UserLimit::SubmissionsPerSecond => &mut self.user_submissions_per_second,
            UserLimit::ScriptBytes => &mut self.user_script_bytes,
            UserLimit::History => &mut self.user_history,
            UserLimit::TenantPending => &mut self.tenant_pending,
        }
    }
}

/// Which of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserLimit {
    /// [`UserLimits::user_pending`].
    Pending,
    /// [`UserLimits::user_submissions_per_second`].
    SubmissionsPerSecond,
    /// [`UserLimits::user_script_bytes`].
    ScriptBytes,
    /// [`UserLimits::user_history`].
    History,
    /// [`UserLimits::tenant_pending`].
    TenantPending,
}

impl UserLimit {
    const ALL: [Self; 5] = [Self::Pending, Self::SubmissionsPerSecond, Self::ScriptBytes, Self::History, Self::TenantPending];
}

impl fmt::Display for UserLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Pending => "user_pending",
            Self::SubmissionsPerSecond => "user_submissions_per_second",
            Self::ScriptBytes => "user_script_bytes",
            Self::History => "user_history",
            Self::TenantPending => "tenant_pending",
        })
    }
}

/// What becomes of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UserLimitsChange {
    /// See [`UserLimits::user_pending`].
    pub user_pending: QuotaChange,
    /// See [`UserLimits::user_submissions_per_second`].
    pub user_submissions_per_second: QuotaChange,
    /// See [`UserLimits::user_script_bytes`].
    pub user_script_bytes: QuotaChange,
    /// See [`UserLimits::user_history`].
    pub user_history: QuotaChange,
    /// See [`UserLimits::tenant_pending`].
    pub tenant_pending: QuotaChange,
}

impl UserLimitsChange {
    /// Whether it changes none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The limits as they are then, and those that are others than before, as the audit log has them.
    pub(super) fn over(&self, before: UserLimits) -> (UserLimits, String) {
        let (mut next, mut told) = (before, String::new());
        for what in UserLimit::ALL {
            let change = match what {
                UserLimit::Pending => self.user_pending,
                UserLimit::SubmissionsPerSecond => self.user_submissions_per_second,
                UserLimit::ScriptBytes => self.user_script_bytes,
                UserLimit::History => self.user_history,
                UserLimit::TenantPending => self.tenant_pending,
            };
            let limit = change.over(before.of(what));
            if limit != before.of(what) {
                let shown = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
                told += &format!(", {what} {shown}");
            }
            *next.of_mut(what) = limit;
        }
        (next, told)
    }
}

/// When each user's bucket is full again, in microseconds. Those whose bucket is full are not in it, or soon no longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SubmissionRates(BTreeMap<u32, u64>);

impl SubmissionRates {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How long this user waits until the next submission is taken, in milliseconds; `None`: not at all.
    fn wait_ms(&self, uid: u32, now: Timestamp, per_second: u32) -> Option<u64> {
        let now_us = now.0.saturating_mul(1000);
        let full_us = self.0.get(&uid).copied().unwrap_or_default().max(now_us);
        let next_us = full_us.saturating_add(interval_us(per_second));
        let over_us = next_us.saturating_sub(now_us.saturating_add(BURST_SECONDS * 1_000_000));
        (over_us > 0).then(|| over_us.div_ceil(1000))
    }

    fn add(&mut self, uid: u32, now: Timestamp, per_second: u32) {
        let now_us = now.0.saturating_mul(1000);
        if self.0.len() >= BUCKETS_SWEEP_AT {
            self.0.retain(|_, full_us| *full_us > now_us);
        }
        let full_us = self.0.entry(uid).or_default();
        *full_us = (*full_us).max(now_us).saturating_add(interval_us(per_second));
    }
}

fn interval_us(per_second: u32) -> u64 {
    1_000_000 / u64::from(per_second.max(1))
}

/// What users have here: follows from the allocations, counted once and then kept. Not part of the agreed state.
#[derive(Debug, Default)]
pub(super) struct UserUsage(Option<Counted>);

/// A copy counts anew when it is asked.
impl Clone for UserUsage {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What has been counted makes no difference between two ledgers.
impl PartialEq for UserUsage {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for UserUsage {}

#[derive(Debug, Default)]
struct Counted {
    users: BTreeMap<u32, User>,
    /// Allocations without nodes, of each tenant that has some.
    tenant_pending: BTreeMap<String, u32>,
}

#[derive(Debug, Default)]
struct User {
    pending: u32,
    /// The first to end first.
    ended: VecDeque<AllocationId>,
    /// Texts of scripts, and how much of the user's work names them.
    scripts: BTreeMap<Arc<str>, Named>,
    script_bytes: usize,
    /// Of those that work names which has not ended.
    live_script_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Named {
    by_all: u32,
    by_live: u32,
}

impl User {
    fn names(&mut self, text: &Arc<str>, live: bool) {
        let named = self.scripts.entry(Arc::clone(text)).or_default();
        self.script_bytes += if named.by_all == 0 { text.len() } else { 0 };
        named.by_all += 1;
        if live {
            self.live_script_bytes += if named.by_live == 0 { text.len() } else { 0 };
            named.by_live += 1;
        }
    }

    fn names_no_longer(&mut self, text: &Arc<str>, live: bool) {
        let Some(named) = self.scripts.get_mut(text) else { return };
        named.by_all -= 1;
        self.script_bytes -= if named.by_all == 0 { text.len() } else { 0 };
        if live {
            named.by_live -= 1;
            self.live_script_bytes -= if named.by_live == 0 { text.len() } else { 0 };
        }
        if named.by_all == 0 {
            self.scripts.remove(text);
        }
    }

    fn has_nothing(&self) -> bool {
        self.pending == 0 && self.ended.is_empty() && self.scripts.is_empty()
    }
}

/// What one allocation counts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    uid: u32,
    /// That of an allocation that waits.
    pending_in: Option<String>,
    script: Option<Arc<str>>,
    live: bool,
}

impl Counts {
    pub(super) fn of(allocation: &Allocation) -> Self {
        Self {
            uid: allocation.owner.uid,
            pending_in: allocation.state.is_without_nodes().then(|| allocation.spec.tenant.clone()),
            script: script_of(&allocation.spec).cloned(),
            live: !allocation.state.is_terminal(),
        }
    }
}

/// It is near the front, mostly.
fn remove_from(ended: &mut VecDeque<AllocationId>, id: AllocationId) {
    if let Some(place) = ended.iter().position(|there| *there == id) {
        ended.remove(place);
    }
}

fn script_of(spec: &AllocationSpec) -> Option<&Arc<str>> {
    match &spec.entrypoint {
        Entrypoint::Script { text, .. } => Some(text),
        Entrypoint::Command { .. } => None,
    }
}

impl Counted {
    fn of(ledger: &Ledger) -> Self {
        let mut counted = Self::default();
        for allocation in ledger.allocations.values() {
            counted.add(&Counts::of(allocation));
        }
        for id in &ledger.ended {
            if let Some(allocation) = ledger.allocations.get(id) {
                counted.users.entry(allocation.owner.uid).or_default().ended.push_back(*id);
            }
        }
        counted
    }

    fn add(&mut self, counts: &Counts) {
        let user = self.users.entry(counts.uid).or_default();
        if let Some(tenant) = &counts.pending_in {
            user.pending += 1;
            if !tenant.is_empty() {
                *self.tenant_pending.entry(tenant.clone()).or_default() += 1;
            }
        }
        if let Some(text) = &counts.script {
            user.names(text, counts.live);
        }
    }

    fn remove(&mut self, counts: &Counts) {
        let Some(user) = self.users.get_mut(&counts.uid) else { return };
        if let Some(tenant) = &counts.pending_in {
            user.pending -= 1;
            if let Some(pending) = self.tenant_pending.get_mut(tenant) {
                *pending -= 1;
                if *pending == 0 {
                    self.tenant_pending.remove(tenant);
                }
            }
        }
        if let Some(text) = &counts.script {
            user.names_no_longer(text, counts.live);
        }
    }

    /// The user with the most ended allocations.
    fn longest_history(&self) -> Option<u32> {
        self.users.iter().max_by_key(|(uid, user)| (user.ended.len(), std::cmp::Reverse(**uid))).map(|(uid, _)| *uid)
    }
}

impl Ledger {
    /// How long, in milliseconds, this user must wait until a submission is taken; `None`: not at all. For a leader that need not
    /// write down what will be refused.
    pub fn submission_wait_ms(&self, id: AllocationId, owner: &Principal, now: Timestamp) -> Option<u64> {
        let per_second = self.limits.users.user_submissions_per_second.filter(|_| self.level >= USER_LIMITS_LEVEL)?;
        self.rates.wait_ms(owner.uid, now.max(self.time), per_second).filter(|_| !self.allocations.contains_key(&id))
    }

    /// The refusal of a submission that comes too soon.
    pub fn too_soon(&self, owner: &Principal, retry_ms: u64) -> Refusal {
        let most = self.limits.users.user_submissions_per_second.unwrap_or_default().into();
        let (limit, whose) = (UserLimit::SubmissionsPerSecond, owner.name.clone());
        Refusal::OverUserLimit { limit, whose, current: most, requested: 1, most, retry_ms: Some(retry_ms) }
    }

    /// Refuses a submission that is more than its owner or tenant may have; makes room for its script among what has ended.
    pub(super) fn admits_of_user(&mut self, step: &mut Step, spec: &AllocationSpec, owner: &Principal) -> Result<(), Refusal> {
        if self.level < USER_LIMITS_LEVEL {
            return Ok(());
        }
        self.counted(step);
        if let Some(counted) = &self.user_usage.0 {
            self.within_user_limits(counted, spec, owner, step.at)?;
        }
        let limits = self.limits.users;
        if let Some(per_second) = limits.user_submissions_per_second {
            self.rates.add(owner.uid, step.at, per_second);
        }
        if let Some(most) = limits.user_script_bytes.filter(|_| script_of(spec).is_some_and(|text| !text.is_empty())) {
            self.forget_scripts(step, owner.uid, spec, most);
        }
        Ok(())
    }

    /// The same for a submission that is only checked: nothing is counted for it.
    pub(super) fn would_admit_of_user(&self, spec: &AllocationSpec, owner: &Principal, now: Timestamp) -> Result<(), Refusal> {
        if self.level < USER_LIMITS_LEVEL {
            return Ok(());
        }
        if let Some(counted) = &self.user_usage.0 {
            return self.within_user_limits(counted, spec, owner, now);
        }
        // Nobody has submitted since this copy was made.
        let concerns = |a: &&Arc<Allocation>| a.owner.uid == owner.uid || (!spec.tenant.is_empty() && a.spec.tenant == spec.tenant);
        let mut counted = Counted::default();
        for allocation in self.allocations.values().filter(concerns) {
            counted.add(&Counts::of(allocation));
        }
        self.within_user_limits(&counted, spec, owner, now)
    }

    fn within_user_limits(&self, counted: &Counted, spec: &AllocationSpec, owner: &Principal, now: Timestamp) -> Result<(), Refusal> {
        let limits = self.limits.users;
        let over = |limit, whose: &str, current: u64, requested: u64, most: u32| Refusal::OverUserLimit {
            limit,
            whose: whose.to_owned(),
            current,
            requested,
            most: most.into(),
            retry_ms: None,
        };
        let (pending, live_bytes, known) = match counted.users.get(&owner.uid) {
            Some(user) => {
                let named = script_of(spec).and_then(|text| user.scripts.get(text)).copied().unwrap_or_default();
                (user.pending, user.live_script_bytes, named)
            }
            None => (0, 0, Named::default()),
        };
        let tenant_pending = counted.tenant_pending.get(&spec.tenant).copied().unwrap_or_default();
        if let Some(most) = limits.user_pending.filter(|most| pending >= *most) {
            return Err(over(UserLimit::Pending, &owner.name, pending.into(), 1, most));
        }
        if let Some(most) = limits.tenant_pending.filter(|most| tenant_pending >= *most) {
            return Err(over(UserLimit::TenantPending, &spec.tenant, tenant_pending.into(), 1, most));
        }
        let bytes = script_of(spec).map_or(0, |text| text.len());
        if let Some(most) = limits.user_script_bytes {
            let more = if known.by_live == 0 { bytes } else { 0 };
            if more > 0 && (live_bytes + more) as u64 > u64::from(most) {
                return Err(over(UserLimit::ScriptBytes, &owner.name, live_bytes as u64, more as u64, most));
            }
        }
        let per_second = limits.user_submissions_per_second;
        match per_second.and_then(|per_second| self.rates.wait_ms(owner.uid, now, per_second)) {
            Some(retry_ms) => Err(self.too_soon(owner, retry_ms)),
            None => Ok(()),
        }
    }

    /// Forgets ended work of the user, the oldest first, until this script fits beside those that stay.
    fn forget_scripts(&mut self, step: &mut Step, uid: u32, spec: &AllocationSpec, most: u32) {
        loop {
            let Some(user) = self.counted(step).users.get(&uid) else { return };
            let is_known = script_of(spec).is_some_and(|text| user.scripts.contains_key(text));
            let more = script_of(spec).filter(|_| !is_known).map_or(0, |text| text.len());
            if (user.script_bytes + more) as u64 <= u64::from(most) || !self.forget_oldest_of(step, uid) {
                return;
            }
        }
    }

    /// The allocation is to be changed, or is new, in this step.
    pub(super) fn note_before(&self, step: &mut Step, id: AllocationId) {
        if self.user_usage.0.is_some() {
            step.before.entry(id).or_insert_with(|| self.allocations.get(&id).map(|a| Counts::of(a)));
        }
    }

    /// Counts what this step has changed until now.
    pub(super) fn count_changed(&mut self, step: &mut Step) {
        let before = std::mem::take(&mut step.before);
        let Some(counted) = &mut self.user_usage.0 else { return };
        for (id, was) in before {
            let now = self.allocations.get(&id).map(|a| Counts::of(a));
            if was == now {
                continue;
            }
            // The new one first: a text that both name is not dropped between.
            now.iter().for_each(|now| counted.add(now));
            was.iter().for_each(|was| counted.remove(was));
            for uid in was.iter().chain(&now).map(|counts| counts.uid) {
                if counted.users.get(&uid).is_some_and(User::has_nothing) {
                    counted.users.remove(&uid);
                }
            }
        }
    }

    fn counted(&mut self, step: &mut Step) -> &mut Counted {
        if self.user_usage.0.is_some() {
            self.count_changed(step);
        } else {
            step.before.clear();
            self.user_usage.0 = Some(Counted::of(self));
        }
        self.user_usage.0.get_or_insert_default()
    }

    /// The allocation has ended: it is shown for a while, and others are forgotten for it. The audit log keeps what became of them.
    pub(super) fn keep_ended(&mut self, step: &mut Step, id: AllocationId) {
        self.ended.push_back(id);
        if self.level < USER_LIMITS_LEVEL {
            return self.forget_ended_of_all(step.at);
        }
        let Some(uid) = self.allocations.get(&id).map(|a| a.owner.uid) else { return };
        if self.user_usage.0.is_some() {
            self.counted(step).users.entry(uid).or_default().ended.push_back(id);
        } else {
            // Counts this one with the others.
            self.counted(step);
        }
        let most = self.limits.users.user_history.map_or(usize::MAX, |most| most as usize);
        while self.counted(step).users.get(&uid).is_some_and(|user| user.ended.len() > most) && self.forget_oldest_of(step, uid) {}
        while self.ended.len() > ENDED_KEPT_MAX {
            let longest = self.counted(step).longest_history();
            if !longest.is_some_and(|uid| self.forget_oldest_of(step, uid)) {
                break;
            }
        }
        while let Some(oldest) = self.ended.front().copied().filter(|oldest| self.is_old(*oldest, step.at)) {
            self.forget(step, oldest);
        }
    }

    /// Whether it ended too long ago to be shown.
    fn is_old(&self, id: AllocationId, now: Timestamp) -> bool {
        let ended_at = self.allocations.get(&id).and_then(|a| a.ended_at);
        ended_at.is_none_or(|at| now.0.saturating_sub(at.0) > ENDED_KEPT_MS)
    }

    /// Whether a node has something of it still.
    fn is_leaving(&self, id: AllocationId) -> bool {
        let holds = |node| self.holdings(node).iter().any(|held| held.allocation == id);
        self.allocations.get(&id).is_some_and(|a| a.nodes().any(holds))
    }

    /// Forgets the user's first to end of which nothing is left on a node. Whether there was one.
    fn forget_oldest_of(&mut self, step: &mut Step, uid: u32) -> bool {
        self.counted(step);
        let user = self.user_usage.0.as_ref().and_then(|counted| counted.users.get(&uid));
        let oldest = user.and_then(|user| user.ended.iter().take(LOOK_AT_ENDED_MAX).find(|id| !self.is_leaving(**id))).copied();
        oldest.is_some_and(|oldest| {
            self.forget(step, oldest);
            true
        })
    }

    fn forget(&mut self, step: &mut Step, id: AllocationId) {
        self.note_before(step, id);
        let uid = self.allocations.remove(&id).map(|a| a.owner.uid);
        remove_from(&mut self.ended, id);
        if let Some(uid) = uid
            && let Some(user) = self.user_usage.0.as_mut().and_then(|counted| counted.users.get_mut(&uid))
        {
            remove_from(&mut user.ended, id);
        }
        self.count_changed(step);
    }

    /// As levels before [`USER_LIMITS_LEVEL`] do.
    fn forget_ended_of_all(&mut self, now: Timestamp) {
        while let Some(oldest) = self.ended.front() {
            let ended_at = self.allocations.get(oldest).and_then(|a| a.ended_at);
            let is_old = ended_at.is_none_or(|at| now.0.saturating_sub(at.0) > ENDED_KEPT_MS);
            if self.ended.len() <= ENDED_KEPT_MAX && !is_old {
                return;
            }
            if let Some(oldest) = self.ended.pop_front() {
                self.allocations.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::scenarios::{Story, id, spec, user};
    use crate::ledger::{Action, LEVEL_KNOWN, Outcome};
    use lattice_model::RequeuePolicy;

    fn limit(change: UserLimitsChange) -> Action {
        Action::SetLimits { sensitive_pool_size: QuotaChange::Keep, users: change, by: "root".into() }
    }

    fn submit(s: &mut Story, number: u128, uid: u32, script: Option<&str>) -> Result<Outcome, Refusal> {
        let mut spec = spec(1, RequeuePolicy::Never, 0);
        if let Some(text) = script {
            spec.entrypoint = Entrypoint::Script { text: format!("#!/bin/sh\n{text}").into(), args: vec![] };
        }
        s.act(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None })
    }

    fn cancel(s: &mut Story, number: u128, uid: u32) {
        s.done(Action::Cancel { id: id(number), by: user(uid) });
    }

    fn refused(result: &Result<Outcome, Refusal>) -> Option<UserLimit> {
        match result {
            Err(Refusal::OverUserLimit { limit, .. }) => Some(*limit),
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    }

    #[test]
    fn one_users_ends_push_nobody_elses_out() {
        let mut s = Story::new(0);
        for number in 0..5 {
            submit(&mut s, number, 8, None).unwrap();
            cancel(&mut s, number, 8);
        }
        let most = ENDED_KEPT_MAX as u128;
        for number in 0..most + 400 {
            submit(&mut s, 1000 + number, 7, None).unwrap();
            cancel(&mut s, 1000 + number, 7);
        }
        assert!((0..5).all(|number| s.ledger.allocation(id(number)).is_some()), "the flood is another's");
        assert_eq!(s.ledger.allocations().count(), ENDED_KEPT_MAX);
        assert!(s.ledger.allocation(id(1000 + 404)).is_none() && s.ledger.allocation(id(1000 + 405)).is_some());
        // A limit of each user holds from the next end on.
        s.done(limit(UserLimitsChange { user_history: QuotaChange::AtMost(3), ..UserLimitsChange::default() }));
        submit(&mut s, 6, 8, None).unwrap();
        cancel(&mut s, 6, 8);
        let left: Vec<u128> = (0..7).filter(|number| s.ledger.allocation(id(*number)).is_some()).collect();
        assert_eq!(left, [3, 4, 6]);
    }

    #[test]
    fn what_a_user_and_a_tenant_may_have_waiting_is_limited() {
        let mut s = Story::new(1);
        let (user_pending, tenant_pending) = (QuotaChange::AtMost(2), QuotaChange::AtMost(3));
        s.done(limit(UserLimitsChange { user_pending, tenant_pending, ..UserLimitsChange::default() }));
        submit(&mut s, 1, 7, None).unwrap();
        submit(&mut s, 2, 7, None).unwrap();
        let third = submit(&mut s, 3, 7, None);
        assert_eq!(refused(&third), Some(UserLimit::Pending));
        assert_eq!(submit(&mut s, 2, 7, None), Ok(Outcome::Done), "what was taken is answered again");
        submit(&mut s, 4, 8, None).unwrap();
        // What has begun waits no longer.
        s.claim(1, &[0]).unwrap();
        submit(&mut s, 3, 7, None).unwrap();
        assert_eq!(refused(&submit(&mut s, 5, 7, None)), Some(UserLimit::Pending));
        cancel(&mut s, 3, 7);
        submit(&mut s, 5, 7, None).unwrap();
        // A copy counts the same.
        s.ledger = s.ledger.clone();
        assert_eq!(refused(&submit(&mut s, 6, 7, None)), Some(UserLimit::Pending));
        let mut in_tenant = |number: u128, uid: u32| {
            let spec = AllocationSpec { tenant: "physics".into(), ..spec(1, RequeuePolicy::Never, 0) };
            s.act(Action::Submit { id: id(number), spec: Box::new(spec), owner: user(uid), claim: None })
        };
        for uid in 10..13 {
            in_tenant(uid.into(), uid).unwrap();
        }
        assert_eq!(refused(&in_tenant(13, 13)), Some(UserLimit::TenantPending));
    }

    #[test]
    fn scripts_are_limited_by_their_texts_and_forgotten_with_what_has_ended() {
        let mut s = Story::new(0);
        s.done(limit(UserLimitsChange { user_script_bytes: QuotaChange::AtMost(1000), ..UserLimitsChange::default() }));
        let text = |n: u8| (n as char).to_string().repeat(600);
        submit(&mut s, 1, 7, Some(&text(b'a'))).unwrap();
        submit(&mut s, 2, 7, Some(&text(b'a'))).unwrap();
        assert_eq!(refused(&submit(&mut s, 3, 7, Some(&text(b'b')))), Some(UserLimit::ScriptBytes));
        submit(&mut s, 4, 8, Some(&text(b'b'))).unwrap();
        cancel(&mut s, 1, 7);
        assert_eq!(refused(&submit(&mut s, 3, 7, Some(&text(b'b')))), Some(UserLimit::ScriptBytes), "the other one waits");
        cancel(&mut s, 2, 7);
        submit(&mut s, 3, 7, Some(&text(b'b'))).unwrap();
        assert!(s.ledger.allocation(id(1)).is_none() && s.ledger.allocation(id(2)).is_none(), "their text was in the way");
    }

    #[test]
    fn a_submission_that_is_only_checked_meets_the_same_limits_and_counts_for_none() {
        let mut s = Story::new(0);
        let (user_pending, user_submissions_per_second) = (QuotaChange::AtMost(2), QuotaChange::AtMost(1));
        s.done(limit(UserLimitsChange { user_pending, user_submissions_per_second, ..UserLimitsChange::default() }));
        let checked = |s: &Story, uid: u32| {
            let mut spec = spec(1, RequeuePolicy::Never, 0);
            spec.entrypoint = Entrypoint::Script { text: "#!/bin/sh\ntrue".into(), args: vec![] };
            // A copy has not counted yet.
            let answers = [&s.ledger, &s.ledger.clone()].map(|ledger| ledger.admits_submission(&spec, &user(uid), s.now()));
            assert_eq!(answers[0], answers[1]);
            refused(&answers[0].clone().map(|()| Outcome::Done))
        };
        submit(&mut s, 1, 7, None).unwrap();
        let before = s.ledger.hash().unwrap();
        assert_eq!(checked(&s, 7), None);
        assert_eq!(s.ledger.hash().unwrap(), before);
        submit(&mut s, 2, 7, None).unwrap();
        assert_eq!((checked(&s, 7), checked(&s, 8)), (Some(UserLimit::Pending), None));
        for number in 3..300 {
            if submit(&mut s, number, 8, None).is_ok() {
                cancel(&mut s, number, 8);
            }
        }
        assert_eq!(checked(&s, 8), None, "a second has passed with each step");
        s.done(limit(UserLimitsChange { user_script_bytes: QuotaChange::AtMost(5), ..UserLimitsChange::default() }));
        assert_eq!(checked(&s, 8), Some(UserLimit::ScriptBytes));
    }

    #[test]
    fn a_rate_lets_a_burst_through_and_says_when_the_next_is_taken() {
        let mut rates = SubmissionRates::default();
        let now = Timestamp(1_000_000);
        for _ in 0..BURST_SECONDS * 10 {
            assert_eq!(rates.wait_ms(7, now, 10), None);
            rates.add(7, now, 10);
        }
        assert_eq!(rates.wait_ms(7, now, 10), Some(100));
        assert_eq!(rates.wait_ms(8, now, 10), None);
        assert_eq!(rates.wait_ms(7, Timestamp(now.0 + 100), 10), None);
        // Users whose bucket is full again take no memory.
        for uid in 100..1_000_000 {
            rates.add(uid, Timestamp(now.0 + u64::from(uid)), 1000);
        }
        assert!(rates.0.len() <= BUCKETS_SWEEP_AT + 1, "{}", rates.0.len());
    }

    #[test]
    fn limits_wait_for_the_level_and_are_audited() {
        let mut s = Story::at_level(0, USER_LIMITS_LEVEL - 1);
        let change = UserLimitsChange { user_pending: QuotaChange::AtMost(1), ..UserLimitsChange::default() };
        assert!(matches!(s.act(limit(change)), Err(Refusal::ClusterLevel { .. })));
        s.done(Action::RaiseLevel { level: LEVEL_KNOWN });
        let records = s.acted(limit(change));
        assert_eq!(records[0].detail, "sensitive_pool_size unlimited, user_pending 1");
    }
}
