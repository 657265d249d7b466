//! Why each allocation waits, and in which order allocations are expected to begin.
//! [`crate::explain`] shows a sentence and a list a few words; both come from one decision,
//! [`Judge::waits`].

use crate::choice;
use crate::domains::Domains;
use crate::holdings::Holdings;
use crate::misfit::{self, misfit};
use crate::possible::{possible, possible_nodes, possible_where};
use crate::quotas::Quotas;
use crate::settling::Settling;
use crate::user_running::RunningOfUsers;
use crate::view::{View, queue};
use crate::why_not::{WhyNot, excluded, why_not};
use lattice_model::count::{counted, is_or_are};
use lattice_model::input::STDIN_VARIABLE;
use lattice_model::tenant::{Excess, Quota};
use lattice_model::{Allocation, AllocationId, AllocationSpec, Node, NodeId, hostlist};
use std::collections::BTreeMap;

/// The longest reason in a list, in characters.
pub const REASON_CHARS_MAX: usize = 40;
/// Largest number of kinds of work for which one [`Outlook`] caches the number of possible nodes.
const SHAPES_MAX: usize = 16;

/// Why an allocation waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Fewer nodes could ever serve it than it asks for; `why` is a sentence. `excluded`: how many
    /// nodes are excluded for it, if there would be enough with them.
    TooFewNodes { why: String, possible: usize, excluded: Option<usize> },
    /// It cannot begin whatever nodes are free: the reason in a sentence and in a few words.
    Blocked { why: String, brief: String },
    /// Other allocations of its queue come first.
    Behind { ahead: usize, free: usize },
    /// It is the next of its queue, and too few nodes are free.
    Next { free: usize },
    /// It fits now.
    Placeable { free: usize },
}

impl Waits {
    /// The reason in a sentence.
    pub fn summary(&self, spec: &AllocationSpec) -> String {
        let wants = misfit::wants(spec);
        match self {
            Self::TooFewNodes { why, .. } | Self::Blocked { why, .. } => why.clone(),
            Self::Behind { ahead, free } => {
                format!(
                    "{wants}, {}; {} submitted before it {} served first",
                    are_free(*free),
                    counted(*ahead, "allocation"),
                    is_or_are(*ahead)
                )
            }
            Self::Next { free } => format!("{wants}, {}: it is next", are_free(*free)),
            Self::Placeable { free } => {
                format!("{wants}, {}: an agent with the scheduler's lease will place it in its next pass", are_free(*free))
            }
        }
    }

    /// The reason in ten to forty characters.
    pub fn brief(&self, spec: &AllocationSpec) -> String {
        let wanted = spec.nodes as usize;
        let text = match self {
            Self::TooFewNodes { excluded: Some(excluded), .. } => format!("{} excluded: prologue failed", nodes(*excluded)),
            Self::TooFewNodes { possible, .. } => format!("wants {}, {possible} could serve", nodes(wanted)),
            Self::Blocked { brief, .. } => brief.clone(),
            Self::Behind { ahead, .. } => format!("behind {ahead} submitted before it"),
            Self::Next { free } => format!("next: wants {}, {}", nodes(wanted), are_free(*free)),
            Self::Placeable { free } => format!("about to be placed: {}", are_free(*free)),
        };
        clip(text)
    }

    /// Whether it blocks those behind it in the queue.
    fn is_in_line(&self) -> bool {
        match self {
            Self::TooFewNodes { .. } | Self::Blocked { .. } => false,
            Self::Behind { .. } | Self::Next { .. } | Self::Placeable { .. } => true,
        }
    }
}

/// Shortens a reason to [`REASON_CHARS_MAX`].
pub fn clip(text: String) -> String {
    if text.chars().count() <= REASON_CHARS_MAX {
        return text;
    }
    text.chars().take(REASON_CHARS_MAX - 1).chain(['…']).collect()
}

fn nodes(count: usize) -> String {
    counted(count, "node")
}

fn quota_in_use(excess: &Excess) -> String {
    let of = match excess.quota {
        Quota::MaxNodes => "nodes",
        Quota::MaxConcurrentAllocations => "allocations",
        Quota::SensitivePoolSize => "sensitive nodes",
    };
    format!("quota: {} of {} {of} in use", excess.current, excess.limit)
}

fn are_free(count: usize) -> String {
    format!("{count} {} free", is_or_are(count))
}

/// What the decisions need from a view, gathered once.
pub struct Judge<'a> {
    view: &'a View,
    held: Holdings,
    quotas: Quotas<'a>,
    domains: Domains<'a>,
    running: RunningOfUsers,
    settling: Settling<'a>,
}

impl<'a> Judge<'a> {
    /// A judge for this view.
    pub fn of(view: &'a View) -> Self {
        let held = Holdings::of(view.nodes.values(), view.allocations.values());
        Self {
            view,
            held,
            quotas: Quotas::of(view),
            domains: Domains::of(view),
            running: RunningOfUsers::of(view),
            settling: Settling::of(view),
        }
    }

    /// The nodes that an allocation can have now, and why it cannot have each of the others.
    pub fn sort_nodes(&self, allocation: &Allocation) -> (Vec<&'a Node>, Vec<(NodeId, WhyNot)>) {
        let (mut free, mut others) = (Vec::new(), Vec::new());
        for node in self.view.nodes.values() {
            match why_not(self.view, &self.held, node, allocation) {
                Some(why) => others.push((node.id.clone(), why)),
                None => free.push(node),
            }
        }
        (free, others)
    }

    /// Why it cannot begin whatever nodes are free, in a sentence and in a few words.
    pub fn blocked(&self, allocation: &Allocation) -> Option<(String, String)> {
        if let Some(excess) = self.quotas.keeps_off(allocation) {
            return Some((format!("waiting for quota headroom: {excess}"), quota_in_use(&excess)));
        }
        if let Some((excess, used)) = self.over_quota(allocation) {
            let why = format!("waiting for quota headroom: {excess}; of the nodes that the tenant uses, {used} can take it now");
            return Some((why, quota_in_use(&excess)));
        }
        if let Some(too_many) = self.running.keeps_off(allocation) {
            let brief = format!("user limit: {} of {} running", too_many.running, too_many.most);
            return Some((format!("{too_many}: it begins by itself when one of them has ended"), brief));
        }
        if let Some(no_vni) = self.domains.keeps_off(allocation) {
            let brief = format!("no VNI for network {}", allocation.spec.connectivity.network_domain);
            return Some((format!("{no_vni}; {}", no_vni.remedy()), brief));
        }
        if let Some(unsettled) = self.settling.nodes(allocation) {
            let brief = format!("last attempt may run on {}", hostlist::fold(unsettled.iter().copied()));
            return Some((self.settling.keeps_off(allocation)?, brief));
        }
        let until = allocation.waits_until?.to_string();
        let times = counted(allocation.quick_requeues, "time");
        let why = format!(
            "waits until {until}: it was requeued {times} in a row soon after it was claimed, and each such wait is longer, up to a limit"
        );
        // The time of day in UTC.
        let clock = until.get(11..19).unwrap_or(&until);
        Some((why, format!("requeued {times}: waits to {clock}Z")))
    }

    /// The quota that it would exceed because too few of the nodes that its tenant uses are free for
    /// it, and how many are.
    fn over_quota(&self, allocation: &Allocation) -> Option<(Excess, usize)> {
        if !self.quotas.depend_on_nodes(allocation) {
            return None;
        }
        let mut used: Vec<&Node> = self.view.nodes.values().filter(|n| self.quotas.is_used(allocation, n)).collect();
        used.retain(|node| why_not(self.view, &self.held, node, allocation).is_none());
        let possible = possible_nodes(self.view, allocation);
        Some((choice::over_quota(possible, &used, &self.quotas, allocation)?, used.len()))
    }

    /// How many of the nodes that are free for it could serve it together.
    pub fn count_free(&self, free: &[&Node], allocation: &Allocation) -> usize {
        choice::count_free(free, &self.quotas, allocation)
    }

    /// How many of the cluster's nodes could ever serve it.
    pub fn possible(&self, allocation: &Allocation) -> usize {
        possible(self.view, allocation)
    }

    /// Why it waits, given how many of its queue are ahead of it, how many nodes could ever serve
    /// it, and how many are free for it.
    pub fn waits(&self, allocation: &Allocation, ahead: usize, possible: usize, free: impl FnOnce() -> usize) -> Waits {
        let wanted = allocation.spec.nodes as usize;
        if possible < wanted {
            return self.too_few_nodes(allocation, possible);
        }
        if let Some((why, brief)) = self.blocked(allocation) {
            return Waits::Blocked { why, brief };
        }
        let free = free();
        match ahead {
            0 if free < wanted => Waits::Next { free },
            0 => Waits::Placeable { free },
            ahead => Waits::Behind { ahead, free },
        }
    }

    fn too_few_nodes(&self, allocation: &Allocation, possible: usize) -> Waits {
        let wants = misfit::wants(&allocation.spec);
        if possible_where(self.view, allocation, |_| true) >= allocation.spec.nodes as usize
            && let Some((excluded, text)) = excluded(self.view, allocation)
        {
            let why = format!("{wants}; {possible} could serve it without those that are excluded for it: it waits for {text}");
            return Waits::TooFewNodes { why, possible, excluded: Some(excluded) };
        }
        let misfit = misfit(self.view.nodes.values(), self.view.named(allocation), &allocation.spec).map(|misfit| misfit.summary());
        let what = misfit.unwrap_or_else(|| format!("{wants}; this cluster has {possible} that could ever serve it"));
        Waits::TooFewNodes { why: format!("{what}: it waits until there are more"), possible, excluded: None }
    }

    /// How many allocations are ahead of it in its queue.
    pub fn ahead(&self, allocation: &Allocation) -> usize {
        let queue = self.view.waiting_in(self.view.queue_of(allocation));
        let before = queue.into_iter().take_while(|a| a.id != allocation.id);
        before.filter(|a| self.waits(a, 0, self.possible(a), || 0).is_in_line()).count()
    }
}

/// What is expected for one waiting allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Its position in its vCluster's queue, from 1; `None`: it blocks no other work, so others
    /// overtake it.
    pub place: Option<u32>,
    /// Why it waits, in ten to forty characters.
    pub reason: String,
}

/// What is expected for every waiting allocation, by id.
#[derive(Clone, Debug, Default)]
pub struct Outlook(BTreeMap<AllocationId, Expected>);

impl Outlook {
    /// The expectations for all queues of a view.
    pub fn of(view: &View) -> Self {
        let judge = Judge::of(view);
        let mut in_line: BTreeMap<&str, usize> = BTreeMap::new();
        let mut shapes: Vec<(&Allocation, usize)> = Vec::new();
        let mut outlook = BTreeMap::new();
        for allocation in queue(view) {
            let known = shapes.iter().find(|(like, _)| is_alike(like, allocation)).map(|(_, possible)| *possible);
            let possible = known.unwrap_or_else(|| judge.possible(allocation));
            if known.is_none() && shapes.len() < SHAPES_MAX {
                shapes.push((allocation, possible));
            }
            let ahead = in_line.entry(view.queue_of(allocation)).or_default();
            // For those behind others, the short reason does not count free nodes.
            let free = || if *ahead == 0 { judge.count_free(&judge.sort_nodes(allocation).0, allocation) } else { 0 };
            let waits = judge.waits(allocation, *ahead, possible, free);
            let place = waits.is_in_line().then(|| {
                *ahead += 1;
                u32::try_from(*ahead).unwrap_or(u32::MAX)
            });
            outlook.insert(allocation.id, Expected { place, reason: waits.brief(&allocation.spec) });
        }
        Self(outlook)
    }

    /// The expectation for one waiting allocation.
    pub fn get(&self, id: &AllocationId) -> Option<&Expected> {
        self.0.get(id)
    }
}

/// Whether the same nodes could ever serve both: equal in all that [`possible`] reads.
fn is_alike(a: &Allocation, b: &Allocation) -> bool {
    let (x, y) = (&a.spec, &b.spec);
    let same_place = (&x.vcluster, &x.share, &x.constraints, x.sensitive) == (&y.vcluster, &y.share, &y.constraints, y.sensitive);
    let same_layout = (x.tasks_per_node, &x.binding, &x.launch) == (y.tasks_per_node, &y.binding, &y.launch);
    let same_care = (x.on_isolation, &x.checkpoint) == (y.on_isolation, &y.checkpoint);
    same_place && same_layout && same_care && x.env.get(STDIN_VARIABLE) == y.env.get(STDIN_VARIABLE) && a.excluded == b.excluded
}
