//! Advance reservations: nodes that operators set aside for a time.
//!
//! ```text
//!   SetReservation ──▶ pending ── start ──▶ open ── end ──▶ over ── a week, or there are too many ──▶ forgotten
//!   a claim of other work: only if it has ended before the start, or begins after the end
//!   a claim of work that names it: while it is open, on its nodes alone
//! ```
//!
//! The ledger checks each claim at the time of the command, so no two schedulers need to agree on a window. Work
//! that has nodes when a window begins keeps them. Windows do not overlap on a node, so it has at most one
//! reservation at a time.

use super::claims::CONFLICTS_MAX;
use super::state::NODES_MAX;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::{Conflict, Refusal};
use lattice_model::claim::ClaimShare;
use lattice_model::config::nearest;
use lattice_model::count::counted;
use lattice_model::timing::AHEAD_MS_MAX;
use lattice_model::usage::{DAY_MS, HOUR_MS};
use lattice_model::vcluster::NAME_BYTES_MAX;
use lattice_model::{Allocation, AllocationSpec, AuditAction, Claim, NodeId, Principal, Reservation, Timestamp, hostlist, millis};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Largest number of reservations. Those that are over make way for new ones.
pub(super) const RESERVATIONS_MAX: usize = if cfg!(test) { 8 } else { 256 };
/// Largest number of nodes of all reservations together.
const NODES_OF_ALL_MAX: usize = 2 * NODES_MAX;
/// How long reservations that are over are listed, in milliseconds; usually up to an hour longer.
const OVER_LISTED_MS: u64 = 7 * DAY_MS;
/// The largest age of a plan whose claim is applied, in milliseconds, by the clock of the agent that made it, which may
/// be behind.
const CLAIM_AGE_MS_MAX: u64 = 5000;
/// Largest size of a list of nodes in an audit record, in bytes.
const NODES_LISTED_BYTES_MAX: usize = 200;

/// A change of a reservation; fields that are `None` stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationChange {
    /// Its name.
    pub name: String,
    /// Whether it is to be created; otherwise it exists already.
    pub create: bool,
    /// All of its nodes.
    pub nodes: Option<BTreeSet<NodeId>>,
    /// See [`Reservation::start`].
    pub start: Option<Timestamp>,
    /// See [`Reservation::end`].
    pub end: Option<Timestamp>,
    /// All of its tenants.
    pub tenants: Option<BTreeSet<String>>,
    /// All of its users: name and uid.
    pub users: Option<BTreeMap<String, u32>>,
    /// See [`Reservation::maintenance`].
    pub maintenance: Option<bool>,
    /// See [`Reservation::comment`].
    pub comment: Option<String>,
    /// The change is refused unless the settings have this version (the revision of their latest change), or are already
    /// so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<u64>,
}

impl ReservationChange {
    /// Approximate size in bytes.
    pub fn bytes_about(&self) -> usize {
        let nodes: usize = self.nodes.iter().flatten().map(|node| node.as_str().len() + 4).sum();
        let names = self.tenants.iter().flatten().chain(self.users.iter().flat_map(BTreeMap::keys));
        let subjects: usize = names.map(|name| name.len() + 8).sum();
        256 + self.name.len() + nodes + subjects + self.comment.as_ref().map_or(0, String::len)
    }

    /// The reservation after the change.
    fn apply_to(&self, mut reservation: Reservation) -> Reservation {
        let Self { name: _, create: _, nodes, start, end, tenants, users, maintenance, comment, expected_version: _ } = self;
        reservation.nodes = nodes.clone().unwrap_or(reservation.nodes);
        reservation.start = start.unwrap_or(reservation.start);
        reservation.end = end.unwrap_or(reservation.end);
        reservation.tenants = tenants.clone().unwrap_or(reservation.tenants);
        reservation.users = users.clone().unwrap_or(reservation.users);
        reservation.maintenance = maintenance.unwrap_or(reservation.maintenance);
        reservation.comment = comment.clone().unwrap_or(reservation.comment);
        reservation
    }
}

impl Ledger {
    /// All reservations, by name; some may be over.
    pub fn reservations(&self) -> impl Iterator<Item = &Arc<Reservation>> {
        self.reservations.values()
    }

    /// The reservation of this name.
    pub fn reservation(&self, name: &str) -> Option<&Arc<Reservation>> {
        self.reservations.get(name)
    }

    /// Creates or changes a reservation. A repeated request succeeds.
    pub(super) fn set_reservation(&mut self, context: &mut ApplyContext, change: &ReservationChange, by: &str) -> Result<Outcome, Refusal> {
        let name = &change.name;
        let known = self.reservations.get(name).cloned();
        if known.is_none() && change.create && change.end.is_none() {
            return Err(Refusal::Malformed { why: "a new reservation needs an end: give a time or a duration".to_owned() });
        }
        let before = match (&known, change.create) {
            (Some(known), _) => Reservation::clone(known),
            (None, true) => created(name, by, context),
            (None, false) => return Err(self.no_such_reservation(name)),
        };
        let next = change.apply_to(before);
        if known.as_deref() == Some(&next) {
            return Ok(Outcome::Done);
        }
        if known.is_some() && change.create {
            return Err(Refusal::ReservationExists { name: name.clone() });
        }
        if let Some(known) = &known {
            Refusal::of_other_version(|| format!("reservation {name}"), change.expected_version, known.revision)?;
        }
        if let Some(node) = change.nodes.iter().flatten().find(|node| !self.nodes.contains_key(*node)) {
            return Err(Refusal::NoSuchNode { node: node.clone() });
        }
        self.check_possible(&next, context.at)?;
        let forgotten = self.forgotten_for(&next, context.at)?;
        self.forget_reservations(context, forgotten);
        let next = Reservation { revision: context.revision, ..next };
        let detail = detail(&next);
        context.changed.reservations.insert(name.clone());
        self.reservations.insert(name.clone(), Arc::new(next));
        self.record(context, by, AuditAction::ReservationSet, Subject::default(), detail);
        Ok(Outcome::Done)
    }

    pub(super) fn delete_reservation(&mut self, context: &mut ApplyContext, name: &str, by: &str) -> Result<Outcome, Refusal> {
        if !self.reservations.contains_key(name) {
            return Err(self.no_such_reservation(name));
        }
        self.drop_reservation(context, name, by, name.to_owned());
        Ok(Outcome::Done)
    }

    fn drop_reservation(&mut self, context: &mut ApplyContext, name: &str, by: &str, detail: String) {
        self.reservations.remove(name);
        context.changed.reservations.insert(name.to_owned());
        self.record(context, by, AuditAction::ReservationDeleted, Subject::default(), detail);
    }

    fn forget_reservations(&mut self, context: &mut ApplyContext, names: Vec<String>) {
        for name in names {
            self.drop_reservation(context, &name, "quorum", format!("{name}: it is over"));
        }
    }

    /// Forgets what has been over for long. It looks at all reservations, so only the first command of an hour does; if
    /// that one is refused, which changes nothing, the next hour's does. `last`: the time of the command before.
    pub(super) fn forget_old_reservations(&mut self, context: &mut ApplyContext, last: Timestamp) {
        let now = context.at;
        if last.0 / HOUR_MS == now.0 / HOUR_MS {
            return;
        }
        let is_old = |r: &&Arc<Reservation>| r.is_over(now) && now.since_ms(r.end) >= OVER_LISTED_MS;
        let old = self.reservations.values().filter(is_old).map(|r| r.name.clone()).collect();
        self.forget_reservations(context, old);
    }

    /// Refuses a reservation that is not valid, or that overlaps another one on a node.
    fn check_possible(&self, reservation: &Reservation, now: Timestamp) -> Result<(), Refusal> {
        let malformed = |why: String| Err(Refusal::Malformed { why });
        if let Some(fault) = reservation.fault() {
            return malformed(fault);
        }
        if reservation.is_over(now) {
            return malformed(format!("it would end at {}, and it is {now}: give a later end", reservation.end));
        }
        if reservation.end.since_ms(now) > AHEAD_MS_MAX {
            return malformed(format!("it would end at {}, which is more than 365 days ahead", reservation.end));
        }
        let overlaps = |other: &&Arc<Reservation>| {
            other.name != reservation.name && other.overlaps(reservation.start.0, reservation.end.0) && !other.is_over(now)
        };
        let mut in_way = self.reservations.values().filter(overlaps);
        match in_way.find_map(|other| Some((other.nodes.intersection(&reservation.nodes).next()?.clone(), other))) {
            Some((node, other)) => {
                Err(Refusal::ReservationOverlaps { node, other: other.name.clone(), start: other.start, end: other.end })
            }
            None => Ok(()),
        }
    }

    /// The names of the reservations that this change removes: those that have been over for long or, if the limits
    /// require it, all that are over.
    fn forgotten_for(&self, next: &Reservation, now: Timestamp) -> Result<Vec<String>, Refusal> {
        let mut full = ("reservations", RESERVATIONS_MAX);
        for listed_ms in [OVER_LISTED_MS, 0] {
            let others = self.reservations.values().filter(|other| other.name != next.name);
            let is_forgotten = |r: &&Arc<Reservation>| r.is_over(now) && now.since_ms(r.end) >= listed_ms;
            let (forgotten, stay): (Vec<&Arc<Reservation>>, Vec<&Arc<Reservation>>) = others.partition(is_forgotten);
            let nodes = next.nodes.len() + stay.iter().map(|r| r.nodes.len()).sum::<usize>();
            full = match stay.len() < RESERVATIONS_MAX {
                true if nodes <= NODES_OF_ALL_MAX => return Ok(forgotten.into_iter().map(|r| r.name.clone()).collect()),
                true => ("nodes in reservations", NODES_OF_ALL_MAX),
                false => ("reservations", RESERVATIONS_MAX),
            };
        }
        let (what, most) = full;
        Err(Refusal::TooMany { what: what.to_owned(), most: most as u64 })
    }

    fn no_such_reservation(&self, name: &str) -> Refusal {
        let name: String = name.chars().take(NAME_BYTES_MAX).collect();
        let meant = nearest(&name, self.reservations.keys().map(String::as_str)).map(str::to_owned);
        Refusal::NoSuchReservation { name, meant }
    }

    /// Refuses a submission to a reservation that does not exist, is over, is not for the submission's owner, or has
    /// too few nodes.
    pub(super) fn admits_to_reservation(&self, spec: &AllocationSpec, owner: &Principal, now: Timestamp) -> Result<(), Refusal> {
        let Some(name) = &spec.reservation else { return Ok(()) };
        let reservation = self.usable_reservation(name, spec, owner, now)?;
        if reservation.nodes.len() < spec.nodes as usize {
            let (has, wants) = (counted(reservation.nodes.len(), "node"), counted(spec.nodes, "node"));
            return Err(Refusal::Malformed { why: format!("reservation: {name} has {has}, but the work asks for {wants}") });
        }
        Ok(())
    }

    /// The reservation of this name, if it is not over and this owner's work may use it.
    fn usable_reservation(&self, name: &str, spec: &AllocationSpec, owner: &Principal, now: Timestamp) -> Result<&Reservation, Refusal> {
        let Some(reservation) = self.reservations.get(name) else { return Err(self.no_such_reservation(name)) };
        if !reservation.is_for(spec, owner) {
            let is_namesake = reservation.users.contains_key(&owner.name);
            let user = if is_namesake { format!("{} with uid {}", owner.name, owner.uid) } else { owner.name.clone() };
            let (tenant, maintenance) = (spec.tenant.clone(), reservation.maintenance);
            return Err(Refusal::NotOfReservation { name: name.to_owned(), user, tenant, maintenance });
        }
        if reservation.is_over(now) {
            return Err(Refusal::ReservationOver { name: name.to_owned(), end: reservation.end });
        }
        Ok(reservation)
    }

    /// Refuses a claim for work that names a reservation outside of its window.
    pub(super) fn within_reservation(&self, allocation: &Allocation, now: Timestamp) -> Result<(), Refusal> {
        let Some(name) = &allocation.spec.reservation else { return Ok(()) };
        let reservation = self.usable_reservation(name, &allocation.spec, &allocation.owner, now)?;
        if reservation.is_open(now) {
            return Ok(());
        }
        let (start, end) = (reservation.start, reservation.end);
        Err(Refusal::OutsideReservation { id: allocation.id, name: name.clone(), start, end })
    }

    /// The nodes of a claim that the allocation must not get because of reservations, with the reasons.
    pub(super) fn of_reservations(&self, allocation: &Allocation, claim: &Claim, now: Timestamp) -> Vec<Conflict> {
        let walltime = claim.walltime.or(allocation.spec.walltime);
        let until_ms = walltime.map_or(u64::MAX, |walltime| now.0.saturating_add(millis(walltime)));
        // Without this, work that is planned to end as a window begins would be refused again and again.
        let until_ms = until_ms.saturating_sub(CLAIM_AGE_MS_MAX).max(now.0.saturating_add(1));
        let named = allocation.spec.reservation.as_deref();
        let own = named.and_then(|name| self.reservations.get(name));
        let is_in_way = |other: &&Arc<Reservation>| named != Some(other.name.as_str()) && other.overlaps(now.0, until_ms);
        let in_way: Vec<&Arc<Reservation>> = self.reservations.values().filter(is_in_way).collect();
        if own.is_none() && in_way.is_empty() {
            return Vec::new();
        }
        let set_aside = set_aside(claim, &in_way);
        let conflict = |ClaimShare { node, .. }: &ClaimShare| {
            let why = match (own.filter(|own| !own.nodes.contains(node)), set_aside.get(node)) {
                (Some(own), _) => format!("is not a node of reservation {}", own.name),
                (None, Some(other)) => format!("is set aside by reservation {} from {} to {}", other.name, other.start, other.end),
                (None, None) => return None,
            };
            Some(Conflict { node: node.clone(), holder: None, why })
        };
        claim.shares.iter().filter_map(conflict).take(CONFLICTS_MAX).collect()
    }
}

/// The nodes of a claim that are in these reservations, each with the first one that has it. Each step goes through the
/// shorter list, because both may have many nodes.
fn set_aside<'a>(claim: &'a Claim, in_way: &[&'a Arc<Reservation>]) -> BTreeMap<&'a NodeId, &'a Reservation> {
    let claimed: BTreeSet<&NodeId> = claim.shares.iter().map(|share| &share.node).collect();
    let mut set_aside: BTreeMap<&NodeId, &Reservation> = BTreeMap::new();
    for reservation in in_way.iter().copied() {
        let both: Vec<&NodeId> = if reservation.nodes.len() < claimed.len() {
            reservation.nodes.iter().filter(|node| claimed.contains(node)).collect()
        } else {
            claimed.iter().copied().filter(|node| reservation.nodes.contains(*node)).collect()
        };
        for node in both {
            set_aside.entry(node).or_insert(reservation);
        }
    }
    set_aside
}

/// A new reservation without nodes, times and users.
fn created(name: &str, by: &str, context: &ApplyContext) -> Reservation {
    Reservation {
        name: name.to_owned(),
        nodes: BTreeSet::new(),
        start: context.at,
        end: Timestamp(0),
        tenants: BTreeSet::new(),
        users: BTreeMap::new(),
        maintenance: false,
        comment: String::new(),
        created_by: by.to_owned(),
        created_at: context.at,
        revision: context.revision,
    }
}

fn detail(reservation: &Reservation) -> String {
    let folded = hostlist::fold(&reservation.nodes);
    let nodes = if folded.len() <= NODES_LISTED_BYTES_MAX { folded } else { counted(reservation.nodes.len(), "node") };
    let Reservation { name, start, end, tenants, users, .. } = reservation;
    let subjects = if tenants.len() + users.len() <= 16 {
        reservation.subjects_text()
    } else {
        format!("{} and {}", counted(tenants.len(), "tenant"), counted(users.len(), "user"))
    };
    format!("{name}: {nodes} from {start} to {end}, for {subjects}")
}
