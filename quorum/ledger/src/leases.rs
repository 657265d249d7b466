//! Leases: one holder at a time, fenced by an increasing token. The leader measures their time: a
//! lease ends by a command, but a renewal is not a command (see `lease_clocks` in
//! `lattice-quorum`).
//!
//! The holder is a node: its agent for one of its own roles, or a user's program that the agent has
//! authenticated. A node with any hold cannot acquire or renew a lease, but may always release one.

use super::claims::ROLE_PREFIX;
use super::ended_work::ACCOUNTING_LEASE;
use super::{ApplyContext, Lease, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::Refusal;
use lattice_model::{AuditAction, NodeId, Principal, Revision};

/// Largest number of leases in total and for one user.
const LEASES_MAX: usize = 1024;
const LEASES_PER_USER_MAX: usize = 64;
/// The shortest and longest time to live, in milliseconds.
const TTL_MS: std::ops::RangeInclusive<u64> = 500..=3_600_000;

impl Ledger {
    pub(super) fn grant_lease(
        &mut self,
        context: &mut ApplyContext,
        name: &str,
        holder: &NodeId,
        ttl_ms: u64,
        user: Option<&Principal>,
    ) -> Result<Outcome, Refusal> {
        well_formed(name, ttl_ms)?;
        // An agent may request its role's lease before its node's registration is committed.
        if user.is_some() && self.node(holder).is_none() {
            return Err(Refusal::NoSuchNode { node: holder.clone() });
        }
        if user.is_some() && name.starts_with(ROLE_PREFIX) {
            return Err(Refusal::Malformed { why: format!("leases whose names begin with {ROLE_PREFIX} are reserved for agents") });
        }
        if user.is_some() && name == ACCOUNTING_LEASE {
            return Err(Refusal::Malformed { why: format!("the lease {ACCOUNTING_LEASE} is reserved for agents") });
        }
        self.lease_has_queue(name)?;
        self.refuse_if_under_hold(holder)?;
        if let Some(lease) = self.leases.get_mut(name) {
            if lease.holder != *holder || lease.user.as_ref().map(whose) != user.map(whose) {
                return Err(held(name, lease));
            }
            if lease.ttl_ms != ttl_ms {
                context.changed.leases.insert(name.to_owned());
            }
            lease.ttl_ms = ttl_ms;
            lease.renewed = context.revision;
            return Ok(Outcome::Leased { token: lease.token });
        }
        let too_many = |what: &str, most: usize| Refusal::TooMany { what: what.to_owned(), most: most as u64 };
        if self.leases.len() >= LEASES_MAX {
            return Err(too_many("leases", LEASES_MAX));
        }
        if let Some(user) = user {
            let theirs = self.leases.values().filter(|l| l.user.as_ref().map(whose) == Some(whose(user))).count();
            if theirs >= LEASES_PER_USER_MAX {
                return Err(too_many("leases of one user", LEASES_PER_USER_MAX));
            }
        }
        self.lease_token += 1;
        let token = self.lease_token;
        let lease = Lease { holder: holder.clone(), token, ttl_ms, renewed: context.revision, user: user.cloned() };
        self.leases.insert(name.to_owned(), lease);
        context.changed.leases.insert(name.to_owned());
        let about = Subject { allocation: None, node: Some(holder) };
        self.record(context, &actor(holder, user), AuditAction::LeaseGranted, about, format!("{name}, token {token}"));
        Ok(Outcome::Leased { token })
    }

    /// The lease, if this holder may renew it with this token.
    pub fn renewable(&self, name: &str, token: u64, holder: &NodeId, user: Option<&Principal>) -> Result<&Lease, Refusal> {
        let stale = || Refusal::StaleLease { name: name.to_owned(), token };
        let lease = self.leases.get(name).filter(|l| l.token == token).ok_or_else(stale)?;
        self.check_lease_owner("LeaseService/Renew", name, lease, user)?;
        if lease.holder != *holder {
            return Err(held(name, lease));
        }
        self.refuse_if_under_hold(holder)?;
        Ok(lease)
    }

    pub(super) fn release_lease(
        &mut self,
        context: &mut ApplyContext,
        name: &str,
        token: u64,
        holder: &NodeId,
        user: Option<&Principal>,
    ) -> Result<Outcome, Refusal> {
        match self.leases.get(name) {
            Some(lease) if lease.token == token => {
                self.check_lease_owner("LeaseService/Release", name, lease, user)?;
                if user.is_none() && lease.holder != *holder {
                    return Err(held(name, lease));
                }
                let actor = actor(&lease.holder, user);
                self.drop_lease(context, name, &actor, AuditAction::LeaseReleased, "given back");
                Ok(Outcome::Done)
            }
            // It has ended: the client may repeat a release whose first answer was lost.
            None if token <= self.lease_token => Ok(Outcome::Done),
            Some(_) | None => Err(Refusal::StaleLease { name: name.to_owned(), token }),
        }
    }

    pub(super) fn revoke_lease(
        &mut self,
        context: &mut ApplyContext,
        name: &str,
        token: Option<u64>,
        by: &str,
    ) -> Result<Outcome, Refusal> {
        let Some(lease) = self.leases.get(name) else {
            return Err(Refusal::NoSuchLease { name: name.chars().take(128).collect() });
        };
        match token {
            // Another grant has replaced the one to revoke.
            Some(token) if token != lease.token => Err(Refusal::StaleLease { name: name.to_owned(), token }),
            Some(_) | None => {
                self.drop_lease(context, name, by, AuditAction::LeaseRevoked, "revoked");
                Ok(Outcome::Done)
            }
        }
    }

    pub(super) fn expire_lease(
        &mut self,
        context: &mut ApplyContext,
        name: &str,
        token: u64,
        renewed: Revision,
    ) -> Result<Outcome, Refusal> {
        if self.leases.get(name).is_some_and(|l| l.token == token && l.renewed == renewed) {
            self.drop_lease(context, name, "quorum", AuditAction::LeaseReleased, "not renewed in time");
        }
        Ok(Outcome::Done)
    }

    pub(super) fn drop_lease(&mut self, context: &mut ApplyContext, name: &str, actor: &str, action: AuditAction, why: &str) {
        let Some(lease) = self.leases.remove(name) else { return };
        context.changed.leases.insert(name.to_owned());
        let about = Subject { allocation: None, node: Some(&lease.holder) };
        self.record(context, actor, action, about, format!("{name}, token {}: {why}", lease.token));
    }

    /// Ends all leases that the node holds.
    pub(super) fn drop_leases_of(&mut self, context: &mut ApplyContext, holder: &NodeId, actor: &str, why: &str) {
        let held = self.leases.iter().filter(|(_, lease)| lease.holder == *holder).map(|(name, _)| name.clone());
        for name in held.collect::<Vec<_>>() {
            self.drop_lease(context, &name, actor, AuditAction::LeaseRevoked, why);
        }
    }

    /// One lease.
    pub fn lease(&self, name: &str) -> Option<&Lease> {
        self.leases.get(name)
    }

    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = (&str, &Lease)> {
        self.leases.iter().map(|(name, lease)| (name.as_str(), lease))
    }

    /// Why a lease of this node should be revoked; `None`: there is no reason.
    pub fn bad_holder(&self, holder: &NodeId) -> Option<String> {
        let Some(node) = self.node(holder) else { return Some("its holder is not registered".to_owned()) };
        if let Err(refusal) = self.refuse_if_under_hold(holder) {
            return Some(refusal.to_string());
        }
        node.state.is_away().then(|| format!("its holder is {}: {}", node.state, node.state_reason))
    }

    /// A user's lease may be used by its user, and by users whom the table lets use the leases of others. No user may use
    /// an agent's lease, even with the right token.
    fn check_lease_owner(&self, method: &str, name: &str, lease: &Lease, user: Option<&Principal>) -> Result<(), Refusal> {
        match &lease.user {
            Some(owner) if user.is_none_or(|user| !self.may(method, user, owner, "")) => {
                Err(Refusal::LeaseNotYours { name: name.to_owned(), owner: owner.name.clone() })
            }
            None if user.is_some() => Err(Refusal::LeaseNotYours { name: name.to_owned(), owner: format!("node {}", lease.holder) }),
            Some(_) | None => Ok(()),
        }
    }

    /// Refuses a node that has a hold.
    fn refuse_if_under_hold(&self, holder: &NodeId) -> Result<(), Refusal> {
        match self.node(holder).and_then(|n| n.holds.first()) {
            Some(hold) => Err(Refusal::Held { node: holder.clone(), kind: hold.kind, by: hold.by.clone(), reason: hold.reasons() }),
            None => Ok(()),
        }
    }
}

/// The refusal if somebody else has the lease. It contains the token only for a role's lease,
/// because a user's token grants access to what that lease protects.
pub fn held(name: &str, lease: &Lease) -> Refusal {
    let user = lease.user.as_ref().map(|u| u.name.clone());
    let token = user.is_none().then_some(lease.token);
    Refusal::LeaseHeld { name: name.to_owned(), holder: lease.holder.clone(), user, token }
}

fn well_formed(name: &str, ttl_ms: u64) -> Result<(), Refusal> {
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        return Err(Refusal::Malformed { why: "a lease's name has 1 to 128 bytes without control characters".to_owned() });
    }
    if !TTL_MS.contains(&ttl_ms) {
        return Err(Refusal::Malformed { why: format!("a lease's time to live is {} to {} ms", TTL_MS.start(), TTL_MS.end()) });
    }
    Ok(())
}

/// The identity of a user, without the groups, which may change.
fn whose(user: &Principal) -> (&str, u32) {
    (&user.name, user.uid)
}

fn actor(holder: &NodeId, user: Option<&Principal>) -> String {
    user.map_or_else(|| format!("node:{holder}"), |u| u.name.clone())
}
