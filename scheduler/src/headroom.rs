//! Obstacles: the reasons for which waiting work cannot begin, whichever nodes are free.

use crate::domains::Domains;
use crate::draft::Draft;
use crate::quotas::Quotas;
use crate::settling::Settling;
use crate::user_running::RunningOfUsers;
use crate::view::View;
use lattice_model::count::counted;
use lattice_model::network::NoVni;
use lattice_model::tenant::{Excess, Quota};
use lattice_model::user_running::TooManyRunning;
use lattice_model::{Allocation, AllocationId, NodeId, Timestamp, hostlist};
use std::collections::{BTreeMap, BTreeSet};

/// Why an allocation cannot begin, whichever nodes are free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It would exceed a quota of its tenant.
    Quota(Excess),
    /// It would exceed a quota, because only `usable` of the nodes that its tenant uses can take it.
    NodesOfTenant { excess: Excess, usable: usize },
    /// Its user has as many running allocations as one user may have.
    User(TooManyRunning),
    /// Its network domain gets no number.
    NoVni { domain: String, why: NoVni },
    /// An earlier attempt of it may still run on these nodes, and it must not run twice.
    Settling(Vec<NodeId>),
    /// It was requeued this many times in a row soon after it was claimed.
    Requeued { times: u32, until: Timestamp },
    /// It could not end by its deadline any more: the leader's clock is about to end it.
    Deadline(Timestamp),
    /// It excludes work ahead of it that begins now or has a reservation. The value is that work's id
    /// and name.
    Excluded(String),
    /// The reservation that it names was deleted.
    NoReservation(String),
    /// Its owner may not use its reservation any more.
    NotOfReservation(String),
    /// The window of its reservation is over.
    ReservationOver { name: String, end: Timestamp },
    /// The window of its reservation begins later.
    BeforeReservation { name: String, start: Timestamp },
    /// Its nodes are not free before the window of its reservation is over.
    ReservationFull { name: String, end: Timestamp },
}

impl Obstacle {
    /// Why the reservation that an allocation names gives it no nodes now; `None`: it names none, or its window is open.
    pub fn of_reservation(view: &View, allocation: &Allocation, now: Timestamp) -> Option<Self> {
        let name = allocation.spec.reservation.clone()?;
        let Some(reservation) = view.reservations.get(&name) else { return Some(Self::NoReservation(name)) };
        if reservation.is_over(now) {
            return Some(Self::ReservationOver { name, end: reservation.end });
        }
        if !reservation.is_for(&allocation.spec, &allocation.owner) {
            return Some(Self::NotOfReservation(name));
        }
        (!reservation.is_open(now)).then(|| Self::BeforeReservation { name, start: reservation.start })
    }

    /// The reason in a sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::Quota(excess) => format!("waiting for quota headroom: {excess}"),
            Self::NodesOfTenant { excess, usable } => {
                format!("waiting for quota headroom: {excess}; of the nodes that the tenant uses, {usable} can take it now")
            }
            Self::User(too_many) => format!("{too_many}: it begins by itself when one of them has ended"),
            Self::NoVni { why, .. } => format!("{why}; {}", why.remedy()),
            Self::Settling(nodes) => format!(
                "waits until nothing of its last attempt can run on {} any more: it was submitted with --on-isolation=stop",
                hostlist::fold(nodes)
            ),
            Self::Requeued { times, until } => format!(
                "waits until {until}: it was requeued {} in a row soon after it was claimed, and each such wait is longer, up to a limit",
                counted(*times, "time")
            ),
            Self::Deadline(deadline) => format!("could not end by its deadline, {deadline}, any more"),
            Self::Excluded(other) => format!("waits for {other}, which begins now: the two never run at the same time"),
            Self::NoReservation(name) => {
                format!("waits for reservation {name}, which was deleted: `lattice update` gives it another one, or none")
            }
            Self::NotOfReservation(name) => format!(
                "waits for reservation {name}, which is for others: an operator can change that, or `lattice update` gives it another one, or none"
            ),
            Self::ReservationOver { name, end } => {
                format!(
                    "waits for reservation {name}, which ended at {end}: an operator can make it longer, or `lattice update` gives the work another one, or none"
                )
            }
            Self::BeforeReservation { name, start } => format!("waits for the start of reservation {name}, {start}"),
            Self::ReservationFull { name, end } => {
                format!("the nodes of reservation {name} are not free for it before the reservation ends, {end}")
            }
        }
    }

    /// The reason in a sentence, if work ahead that has a reservation reaches the limit.
    pub fn sentence_later(&self) -> String {
        match self {
            Self::Quota(_) | Self::NodesOfTenant { .. } => {
                "waits for work of its tenant that is ahead of it: the rest of the tenant's quota is kept for that".to_owned()
            }
            Self::User(_) => "waits for work of its user that is ahead of it: what the user may still run is kept for that".to_owned(),
            Self::NoVni { .. } => "waits for work that is ahead of it: the VNIs that are left are kept for that".to_owned(),
            Self::Excluded(other) => format!("waits for {other}, which is ahead of it: the two never run at the same time"),
            Self::Settling(_)
            | Self::Requeued { .. }
            | Self::Deadline(_)
            | Self::NoReservation(_)
            | Self::NotOfReservation(_)
            | Self::ReservationOver { .. }
            | Self::BeforeReservation { .. }
            | Self::ReservationFull { .. } => self.sentence(),
        }
    }

    /// [`Self::sentence_later`] in a few words.
    pub fn brief_later(&self) -> String {
        match self {
            Self::Quota(_) | Self::NodesOfTenant { .. } => "quota: kept for work ahead of it".to_owned(),
            Self::User(_) => "user limit: kept for work ahead of it".to_owned(),
            Self::NoVni { .. } => "VNIs: kept for work ahead of it".to_owned(),
            Self::Settling(_)
            | Self::Requeued { .. }
            | Self::Deadline(_)
            | Self::Excluded(_)
            | Self::NoReservation(_)
            | Self::NotOfReservation(_)
            | Self::ReservationOver { .. }
            | Self::BeforeReservation { .. }
            | Self::ReservationFull { .. } => self.brief(),
        }
    }

    /// The reason in a few words.
    pub fn brief(&self) -> String {
        match self {
            Self::Quota(excess) | Self::NodesOfTenant { excess, .. } => quota_in_use(excess),
            Self::User(too_many) => format!("user limit: {} of {} running", too_many.running, too_many.most),
            Self::NoVni { domain, .. } => format!("no VNI for network {domain}"),
            Self::Settling(nodes) => format!("last attempt may run on {}", hostlist::fold(nodes)),
            Self::Requeued { times, until } => {
                let until = until.to_string();
                // The time of day in UTC.
                format!("requeued {}: waits to {}Z", counted(*times, "time"), until.get(11..19).unwrap_or(&until))
            }
            Self::Deadline(_) => "could not end by its deadline".to_owned(),
            Self::Excluded(other) => format!("not beside {other}"),
            Self::NoReservation(name) => format!("reservation deleted: {name}"),
            Self::NotOfReservation(name) => format!("reservation for others: {name}"),
            Self::ReservationOver { name, .. } => format!("reservation over: {name}"),
            Self::BeforeReservation { name, .. } => format!("reservation not open yet: {name}"),
            Self::ReservationFull { name, .. } => format!("reservation ends too soon: {name}"),
        }
    }
}

fn quota_in_use(excess: &Excess) -> String {
    let of = match excess.quota {
        Quota::MaxNodes => "nodes",
        Quota::MaxConcurrentAllocations => "allocations",
        Quota::SensitivePoolSize => "sensitive nodes",
    };
    format!("quota: {} of {} {of} in use", excess.current, excess.limit)
}

/// The use of quotas, limits and VNIs.
#[derive(Clone)]
struct Usage<'a> {
    quotas: Quotas<'a>,
    running: RunningOfUsers,
    domains: Domains<'a>,
}

impl<'a> Usage<'a> {
    fn take(&mut self, allocation: &'a Allocation, nodes: impl Iterator<Item = &'a NodeId>) {
        self.quotas.take(allocation, nodes);
        self.running.take(allocation);
        self.domains.take(allocation);
    }

    /// The first of the limits in `limits` that the allocation would exceed.
    fn obstacle(&self, allocation: &Allocation, limits: Limits) -> Option<Obstacle> {
        if let Some(excess) = self.quotas.keeps_off(allocation).filter(|_| limits.quotas) {
            return Some(Obstacle::Quota(excess));
        }
        if let Some(too_many) = self.running.keeps_off(allocation).filter(|_| limits.users) {
            return Some(Obstacle::User(too_many));
        }
        let why = self.domains.keeps_off(allocation).filter(|_| limits.domains)?;
        Some(Obstacle::NoVni { domain: allocation.spec.connectivity.network_domain.clone(), why })
    }
}

/// Which limits count.
#[derive(Clone, Copy)]
struct Limits {
    quotas: bool,
    users: bool,
    domains: bool,
}

impl Limits {
    const ALL: Self = Self { quotas: true, users: true, domains: true };
}

/// When the first reservation begins that counts against each limit, in milliseconds.
#[derive(Default)]
struct FirstReserved<'a> {
    of_tenants: BTreeMap<&'a str, u64>,
    of_users: BTreeMap<u32, u64>,
    of_any: Option<u64>,
}

/// See the module documentation.
pub struct Headroom<'a> {
    settling: Settling<'a>,
    /// By work that has begun, and by work that this plan begins now.
    now: Usage<'a>,
    /// As `now`, and by work that has a reservation.
    later: Usage<'a>,
    first: FirstReserved<'a>,
    /// The allocations that this plan begins now.
    begun: BTreeSet<AllocationId>,
    /// When each reservation begins, in milliseconds.
    reserved: BTreeMap<AllocationId, u64>,
}

impl<'a> Headroom<'a> {
    pub fn of(state: &Draft<'a>) -> Self {
        let now = Usage { quotas: Quotas::of(state), running: RunningOfUsers::of(state), domains: Domains::of(state.view) };
        let (settling, later, first) = (Settling::of(state), now.clone(), FirstReserved::default());
        Self { settling, now, later, first, begun: BTreeSet::new(), reserved: BTreeMap::new() }
    }

    /// Counts an allocation that begins now on these nodes.
    pub fn begin(&mut self, allocation: &'a Allocation, nodes: impl Iterator<Item = &'a NodeId> + Clone) {
        self.now.take(allocation, nodes.clone());
        self.later.take(allocation, nodes);
        self.begun.insert(allocation.id);
    }

    /// Counts an allocation that has a reservation of these nodes.
    pub fn reserve(&mut self, allocation: &'a Allocation, nodes: impl Iterator<Item = &'a NodeId>, start_ms: u64) {
        self.later.take(allocation, nodes);
        let earlier = |known: &mut u64| *known = start_ms.min(*known);
        earlier(self.first.of_tenants.entry(&allocation.spec.tenant).or_insert(start_ms));
        earlier(self.first.of_users.entry(allocation.owner.uid).or_insert(start_ms));
        earlier(self.first.of_any.get_or_insert(start_ms));
        self.reserved.insert(allocation.id, start_ms);
    }

    /// The first allocation that this one excludes and for which `is_in_way` is true.
    fn excluded(allocation: &Allocation, is_in_way: impl Fn(AllocationId) -> bool) -> Option<Obstacle> {
        let mut excluded = allocation.dependencies.iter().flat_map(|all| all.excluded());
        excluded.find(|other| is_in_way(other.on)).map(|other| Obstacle::Excluded(other.label()))
    }

    /// Why it cannot begin now on any nodes.
    pub fn obstacle(&self, allocation: &Allocation) -> Option<Obstacle> {
        if let Some(obstacle) = self.now.obstacle(allocation, Limits::ALL) {
            return Some(obstacle);
        }
        if let Some(nodes) = self.settling.nodes(allocation) {
            return Some(Obstacle::Settling(nodes.iter().map(|node| (*node).clone()).collect()));
        }
        if let Some(excluded) = Self::excluded(allocation, |other| self.begun.contains(&other)) {
            return Some(excluded);
        }
        let until = allocation.waits_until?;
        Some(Obstacle::Requeued { times: allocation.quick_requeues, until })
    }

    /// Why it cannot begin now and last until `until_ms`: its use of a quota, a limit or a VNI would
    /// delay a reservation.
    pub fn obstacle_until(&self, allocation: &Allocation, until_ms: u64) -> Option<Obstacle> {
        let begins_before = |first_ms: Option<&u64>| first_ms.is_some_and(|first_ms| *first_ms < until_ms);
        let limits = Limits {
            quotas: begins_before(self.first.of_tenants.get(allocation.spec.tenant.as_str())),
            users: begins_before(self.first.of_users.get(&allocation.owner.uid)),
            domains: begins_before(self.first.of_any.as_ref()),
        };
        let is_reserved_before = |other: AllocationId| self.reserved.get(&other).is_some_and(|start_ms| *start_ms < until_ms);
        self.later.obstacle(allocation, limits).or_else(|| Self::excluded(allocation, is_reserved_before))
    }

    /// Why it cannot begin once all work that has a reservation has begun.
    pub fn obstacle_later(&self, allocation: &Allocation) -> Option<Obstacle> {
        let obstacle = self.later.obstacle(allocation, Limits::ALL);
        obstacle.or_else(|| Self::excluded(allocation, |other| self.reserved.contains_key(&other)))
    }

    /// The quotas that count for work that begins now and lasts until `until_ms`.
    pub fn quotas_until(&self, allocation: &Allocation, until_ms: u64) -> &Quotas<'a> {
        let first_ms = self.first.of_tenants.get(allocation.spec.tenant.as_str());
        if first_ms.is_some_and(|first_ms| *first_ms < until_ms) { &self.later.quotas } else { &self.now.quotas }
    }

    /// The quotas that count for work that has a reservation and begins now instead.
    pub fn quotas_now(&self) -> &Quotas<'a> {
        &self.now.quotas
    }

    /// The quotas that count for a reservation.
    pub fn quotas_later(&self) -> &Quotas<'a> {
        &self.later.quotas
    }
}
