//! Limits for each user and each tenant, so that no user exhausts the quorum's capacity for others.
//!
//! ```text
//!   Submit ──▶ waiting < user_pending, tenant_pending? ──▶ rate? ──▶ scripts of unfinished work fit? ──▶ accepted
//!                    no: Refusal::OverUserLimit, with when to try again
//!
//!   Claim ───▶ running < user_running? ──▶ accepted
//!                    no: Refusal::OverUserLimit, and it waits until one of the user's allocations ends
//!
//!   ended work:  above `ended_memory` ──▶ the oldest of the user with the most is dropped ([`super::ended`])
//!                above user_history, or scripts too large ──▶ the oldest of that user is dropped
//! ```

use super::ended::Cause;
use super::tenants::QuotaChange;
use super::{ApplyContext, Ledger, UserLimit, UserLimits};
use lattice_ledger_state::record_bytes::GROUP_TASKS_BYTES;
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::user_usage::{Counted, Counts, Named};
use lattice_model::user_running::TooManyRunning;
use lattice_model::{Allocation, AllocationId, AllocationSpec, DagId, Principal, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Memory of the tasks of one user's groups that have not ended, in bytes.
const USER_GROUP_BYTES_MAX: u64 = if cfg!(test) { 256 << 10 } else { 64 << 20 };

/// Checks whether the tasks of a user's groups may take `more` bytes.
pub(super) fn admits_group_bytes(counted: &Counted, owner: &Principal, more: usize) -> Result<(), Refusal> {
    let bytes = counted.users.get(&owner.uid).map_or(0, |user| user.live_group_bytes) + more as u64;
    if bytes > USER_GROUP_BYTES_MAX {
        return Err(Refusal::GroupMemory { whose: owner.name.clone(), bytes, most: USER_GROUP_BYTES_MAX });
    }
    Ok(())
}

/// The changes to the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserLimitsChange {
    /// See [`UserLimits::user_pending`].
    pub user_pending: QuotaChange,
    /// See [`UserLimits::user_running`].
    pub user_running: QuotaChange,
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
    /// Whether it changes no limit.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// The resulting limits, and a text with the changed ones for the audit log.
    pub(super) fn over(&self, before: UserLimits) -> (UserLimits, String) {
        let (mut next, mut changes_text) = (before, String::new());
        for what in UserLimit::ALL {
            let change = match what {
                UserLimit::Pending => self.user_pending,
                UserLimit::Running => self.user_running,
                UserLimit::SubmissionsPerSecond => self.user_submissions_per_second,
                UserLimit::ScriptBytes => self.user_script_bytes,
                UserLimit::History => self.user_history,
                UserLimit::TenantPending => self.tenant_pending,
            };
            let limit = change.over(before.of(what));
            if limit != before.of(what) {
                let shown = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
                changes_text += &format!(", {what} {shown}");
            }
            *next.of_mut(what) = limit;
        }
        (next, changes_text)
    }
}

impl Ledger {
    /// How long this user must wait before a submission is accepted, in milliseconds; `None`: not
    /// at all. Lets the leader refuse a submission without writing it to the log.
    pub fn submission_wait_ms(&self, id: AllocationId, owner: &Principal, now: Timestamp) -> Option<u64> {
        let per_second = self.limits.users.user_submissions_per_second?;
        self.rates.wait_ms(owner.uid, now.max(self.time), per_second).filter(|_| !self.allocations.contains_key(&id))
    }

    /// As [`Self::submission_wait_ms`], for a DAG.
    pub fn dag_wait_ms(&self, id: DagId, owner: &Principal, now: Timestamp) -> Option<u64> {
        let per_second = self.limits.users.user_submissions_per_second?;
        self.rates.wait_ms(owner.uid, now.max(self.time), per_second).filter(|_| self.dags.get(id).is_none())
    }

    /// The refusal of a submission that comes too soon.
    pub fn too_soon(&self, owner: &Principal, retry_ms: u64) -> Refusal {
        let most = self.limits.users.user_submissions_per_second.unwrap_or_default().into();
        let (limit, whose) = (UserLimit::SubmissionsPerSecond, owner.name.clone());
        Refusal::OverUserLimit { limit, whose, current: most, requested: 1, most, retry_ms: Some(retry_ms) }
    }

    /// Refuses a submission that exceeds a limit of its owner or tenant; drops ended work if its
    /// script needs the space.
    pub(super) fn admits_of_user(&mut self, context: &mut ApplyContext, spec: &AllocationSpec, owner: &Principal) -> Result<(), Refusal> {
        self.counted(context);
        if let Some(counted) = &self.user_usage.0 {
            self.within_user_limits(counted, spec, owner, context.at)?;
        }
        let limits = self.limits.users;
        if let Some(per_second) = limits.user_submissions_per_second {
            self.rates.add(owner.uid, context.at, per_second);
        }
        if let Some(most) = limits.user_script_bytes.filter(|_| spec.script().is_some_and(|text| !text.is_empty())) {
            self.forget_scripts(context, owner.uid, spec, most);
        }
        Ok(())
    }

    /// As [`Self::admits_of_user`], for a dry run: nothing is counted.
    pub(super) fn would_admit_of_user(&self, spec: &AllocationSpec, owner: &Principal, now: Timestamp) -> Result<(), Refusal> {
        if let Some(counted) = &self.user_usage.0 {
            return self.within_user_limits(counted, spec, owner, now);
        }
        // This copy of the ledger has no counts yet.
        let concerns = |a: &&Arc<Allocation>| a.owner.uid == owner.uid || (!spec.tenant.is_empty() && a.spec.tenant == spec.tenant);
        let mut counted = Counted::default();
        for allocation in self.allocations.values().filter(concerns) {
            // This check does not use whether it may be dropped.
            counted.add(&Counts::of(allocation, false, || self.tasks_bytes(allocation.id)));
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
                let named = spec.script().and_then(|text| user.scripts.get(text)).copied().unwrap_or_default();
                (user.pending, user.live_script_bytes, named)
            }
            None => (0, 0, Named::default()),
        };
        if spec.tasks.is_some() {
            admits_group_bytes(counted, owner, GROUP_TASKS_BYTES)?;
        }
        let tenant_pending = counted.tenant_pending.get(&spec.tenant).copied().unwrap_or_default();
        if let Some(most) = limits.user_pending.filter(|most| pending >= *most) {
            return Err(over(UserLimit::Pending, &owner.name, pending.into(), 1, most));
        }
        if let Some(most) = limits.tenant_pending.filter(|most| tenant_pending >= *most) {
            return Err(over(UserLimit::TenantPending, &spec.tenant, tenant_pending.into(), 1, most));
        }
        let bytes = spec.script().map_or(0, |text| text.len());
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

    /// As [`Self::admits_of_user`], for all steps of a DAG. They count as one submission of the rate,
    /// because they are one command. Nothing is dropped yet: see [`Self::make_room_for_scripts`].
    pub(super) fn admits_dag_of_user(
        &mut self,
        context: &mut ApplyContext,
        specs: &[AllocationSpec],
        owner: &Principal,
    ) -> Result<(), Refusal> {
        self.counted(context);
        if let Some(counted) = &self.user_usage.0 {
            self.dag_within_user_limits(counted, specs, owner, context.at)?;
        }
        if let Some(per_second) = self.limits.users.user_submissions_per_second {
            self.rates.add(owner.uid, context.at, per_second);
        }
        Ok(())
    }

    /// As [`Self::admits_dag_of_user`], for a dry run: nothing is counted.
    pub(super) fn would_admit_dag_of_user(&self, specs: &[AllocationSpec], owner: &Principal, now: Timestamp) -> Result<(), Refusal> {
        match &self.user_usage.0 {
            Some(counted) => self.dag_within_user_limits(counted, specs, owner, now),
            // This copy of the ledger has no counts yet.
            None => self.dag_within_user_limits(&self.count_users(), specs, owner, now),
        }
    }

    fn dag_within_user_limits(
        &self,
        counted: &Counted,
        specs: &[AllocationSpec],
        owner: &Principal,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let limits = self.limits.users;
        let over = |limit, whose: &str, current: u64, requested: u64, most: u32| Refusal::OverUserLimit {
            limit,
            whose: whose.to_owned(),
            current,
            requested,
            most: most.into(),
            retry_ms: None,
        };
        let groups = specs.iter().filter(|spec| spec.tasks.is_some()).count();
        if groups > 0 {
            admits_group_bytes(counted, owner, groups * GROUP_TASKS_BYTES)?;
        }
        let user = counted.users.get(&owner.uid);
        let (pending, steps) = (user.map_or(0, |user| u64::from(user.pending)), specs.len() as u64);
        if let Some(most) = limits.user_pending.filter(|most| pending + steps > u64::from(*most)) {
            return Err(over(UserLimit::Pending, &owner.name, pending, steps, most));
        }
        let (mut of_tenants, mut scripts) = (BTreeMap::<&str, u64>::new(), BTreeSet::<&str>::new());
        for spec in specs {
            *of_tenants.entry(spec.tenant.as_str()).or_default() += 1;
            scripts.extend(spec.script().map(|text| &**text));
        }
        for (tenant, steps) in of_tenants {
            let pending = counted.tenant_pending.get(tenant).copied().map_or(0, u64::from);
            if let Some(most) = limits.tenant_pending.filter(|most| !tenant.is_empty() && pending + steps > u64::from(*most)) {
                return Err(over(UserLimit::TenantPending, tenant, pending, steps, most));
            }
        }
        if let Some(most) = limits.user_script_bytes {
            let is_new = |text: &&&str| user.and_then(|user| user.scripts.get(**text)).is_none_or(|named| named.by_live == 0);
            let more: usize = scripts.iter().filter(is_new).map(|text| text.len()).sum();
            let live_bytes = user.map_or(0, |user| user.live_script_bytes);
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

    /// Drops ended work of the user, oldest first, until the user's scripts fit.
    pub(super) fn make_room_for_scripts(&mut self, context: &mut ApplyContext, uid: u32) {
        let Some(most) = self.limits.users.user_script_bytes else { return };
        while self.counted(context).users.get(&uid).is_some_and(|user| user.script_bytes as u64 > u64::from(most)) {
            if !self.forget_oldest_of(context, uid, Cause::UserLimit) {
                return;
            }
        }
    }

    /// Refuses a claim if the owner's running allocations have reached the limit.
    pub(super) fn admits_running(&mut self, context: &mut ApplyContext, allocation: &Allocation) -> Result<(), Refusal> {
        let Some(most) = self.limits.users.user_running else { return Ok(()) };
        let owner = &allocation.owner;
        let running = self.counted(context).users.get(&owner.uid).map_or(0, |user| user.running);
        match TooManyRunning::of(&owner.name, running, Some(most)) {
            Some(TooManyRunning { user, running, most }) => Err(Refusal::OverUserLimit {
                limit: UserLimit::Running,
                whose: user,
                current: running.into(),
                requested: 1,
                most: most.into(),
                retry_ms: None,
            }),
            None => Ok(()),
        }
    }

    /// Drops ended work of the user, oldest first, until this script fits.
    fn forget_scripts(&mut self, context: &mut ApplyContext, uid: u32, spec: &AllocationSpec, most: u32) {
        loop {
            let Some(user) = self.counted(context).users.get(&uid) else { return };
            let is_known = spec.script().is_some_and(|text| user.scripts.contains_key(text));
            let more = spec.script().filter(|_| !is_known).map_or(0, |text| text.len());
            if (user.script_bytes + more) as u64 <= u64::from(most) || !self.forget_oldest_of(context, uid, Cause::UserLimit) {
                return;
            }
        }
    }
}
