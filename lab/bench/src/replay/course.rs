//! The product's scheduler on a scenario, in virtual time, with preemption.
//!
//! ```text
//!   submission ─┐                      ┌─▶ begins ──▶ ends ────────────────────────────▶ event
//!   end ────────┼─▶ event ─▶ a round ──┤
//!   given back ─┘                      └─▶ preempted ─▶ gives its nodes back, later ───▶ event, and waits again
//! ```
//!
//! All that happens within one second is one event. Starting work takes no time. Work that is preempted gives its
//! nodes back after the time that the plan assumes: to save itself and to end. If it saves itself, it continues later
//! with what it had left when it was asked; otherwise it begins anew. Saving always succeeds. Work that waits and could not
//! end by its deadline any more never begins. Work that begins with less than its walltime ends when that is over.

use super::product::{Begun, Lattice, Preempted, Round, owner, time};
use super::progress::Progress;
use super::scenario::{Scenario, Work};
use super::simulation::processor_time;
use super::site::Site;
use anyhow::{Context, Result};
use lattice_model::{Allocation, AllocationId, NodeUse, PreemptCause};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The course of a scenario's work.
#[derive(Debug)]
pub struct Course {
    /// By the index of the work.
    pub lives: Vec<Life>,
    /// In the order of their ends.
    pub stretches: Vec<Stretch>,
    /// When the last event was, in seconds.
    pub until_s: u64,
    pub effort: Effort,
}

/// The life of one allocation. Times are in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Its first start; `None`: it never began.
    pub started_s: Option<u64>,
    pub ended_s: Option<u64>,
    /// It first began while work ahead of it waited.
    pub is_backfill: bool,
}

/// A period in which an allocation had nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The index of the work.
    pub work: usize,
    pub from_s: u64,
    pub to_s: u64,
    pub uses: NodeUse,
    /// The cause, if a preemption ended it.
    pub preempted: Option<PreemptCause>,
}

/// What the plans cost: the only thing that differs from run to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effort {
    pub plans: u64,
    /// Processor time of all plans, and of the longest one.
    pub processor: Duration,
    pub longest: Duration,
}

/// Runs all work. `site`: the scenario's site, perhaps with other weights.
pub fn run(scenario: &Scenario, site: &Site) -> Result<Course> {
    let mut simulation = Simulation::new(&scenario.works, site);
    let mut arrivals = scenario.works.iter().enumerate().peekable();
    let mut progress = Progress::of(scenario.span_s());
    while let Some(now_s) = arrivals.peek().map(|(_, work)| work.submitted_s).into_iter().chain(simulation.next_event_s()).min() {
        progress.show(now_s);
        simulation.end_until(now_s);
        while let Some((_, work)) = arrivals.next_if(|(_, work)| work.submitted_s <= now_s) {
            simulation.submit(work);
        }
        simulation.round(now_s).with_context(|| format!("after {now_s} s"))?;
    }
    Ok(simulation.course)
}

/// Events of one second in the order in which they are handled: work that ends is not preempted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End,
    GiveBack,
}

/// Work that has nodes.
struct Running {
    from_s: u64,
    end_s: u64,
    uses: NodeUse,
    order: Option<Order>,
}

/// An order to give nodes back.
#[derive(Clone, Copy)]
struct Order {
    at_s: u64,
    cause: PreemptCause,
    /// How long it will still have to run then.
    left_s: u64,
}

struct Simulation<'a> {
    works: &'a [Work],
    index: BTreeMap<AllocationId, usize>,
    lattice: Lattice,
    events: BTreeSet<(u64, Event, usize)>,
    running: BTreeMap<usize, Running>,
    /// How long each work still runs, in seconds.
    left_s: Vec<u64>,
    course: Course,
}

impl<'a> Simulation<'a> {
    fn new(works: &'a [Work], site: &Site) -> Self {
        Self {
            works,
            index: works.iter().enumerate().map(|(index, work)| (work.id, index)).collect(),
            lattice: Lattice::new(site),
            events: BTreeSet::new(),
            running: BTreeMap::new(),
            left_s: works.iter().map(|work| work.run_s).collect(),
            course: Course { lives: vec![Life::default(); works.len()], stretches: Vec::new(), until_s: 0, effort: Effort::default() },
        }
    }

    fn next_event_s(&self) -> Option<u64> {
        self.events.first().map(|(at_s, _, _)| *at_s)
    }

    fn submit(&mut self, work: &Work) {
        let submitted = Allocation::submitted(work.id, work.request.spec(), owner(work.request.user), time(work.submitted_s));
        self.lattice.accept(submitted);
    }

    fn end_until(&mut self, now_s: u64) {
        while let Some((at_s, event, index)) = self.events.first().copied().filter(|(at_s, _, _)| *at_s <= now_s) {
            self.events.pop_first();
            let Some(running) = self.running.remove(&index) else { continue };
            let preempted = match event {
                Event::End => None,
                Event::GiveBack => running.order,
            };
            let Running { from_s, end_s, uses, order } = running;
            let cause = preempted.map(|order| order.cause);
            self.course.stretches.push(Stretch { work: index, from_s, to_s: at_s, uses, preempted: cause });
            if let Some(order) = preempted {
                self.events.remove(&(end_s, Event::End, index));
                self.left_s[index] = order.left_s;
                self.lattice.give_back(self.works[index].id, time(at_s));
            } else {
                if let Some(order) = order {
                    self.events.remove(&(order.at_s, Event::GiveBack, index));
                }
                self.course.lives[index].ended_s = Some(at_s);
                self.lattice.finish(self.works[index].id, time(at_s));
            }
        }
    }

    fn round(&mut self, now_s: u64) -> Result<()> {
        self.course.until_s = now_s;
        let before = processor_time()?;
        let Round { begun, preempted, .. } = self.lattice.round(time(now_s))?;
        let took = processor_time()?.saturating_sub(before);
        let effort = &mut self.course.effort;
        (effort.plans, effort.processor, effort.longest) = (effort.plans + 1, effort.processor + took, effort.longest.max(took));
        for begun in begun {
            self.begin(begun, now_s)?;
        }
        for preempted in preempted {
            self.order(preempted, now_s)?;
        }
        Ok(())
    }

    fn begin(&mut self, Begun { id, uses, is_backfill, walltime_s }: Begun, now_s: u64) -> Result<()> {
        let index = self.index_of(id)?;
        let runs_s = walltime_s.map_or(self.left_s[index], |given_s| self.left_s[index].min(given_s));
        let end_s = now_s.saturating_add(runs_s);
        self.events.insert((end_s, Event::End, index));
        self.running.insert(index, Running { from_s: now_s, end_s, uses, order: None });
        let life = &mut self.course.lives[index];
        if life.started_s.is_none() {
            (life.started_s, life.is_backfill) = (Some(now_s), is_backfill);
        }
        Ok(())
    }

    fn order(&mut self, Preempted { id, cause, giving_back_s }: Preempted, now_s: u64) -> Result<()> {
        let index = self.index_of(id)?;
        let saves_itself = self.works[index].request.checkpoint;
        let running = self.running.get_mut(&index).with_context(|| format!("work {id} is preempted and does not run"))?;
        let at_s = now_s.saturating_add(giving_back_s);
        let left_s = if saves_itself { running.end_s.saturating_sub(now_s) } else { self.works[index].run_s };
        running.order = Some(Order { at_s, cause, left_s });
        self.events.insert((at_s, Event::GiveBack, index));
        Ok(())
    }

    fn index_of(&self, id: AllocationId) -> Result<usize> {
        self.index.get(&id).copied().with_context(|| format!("the plan names {id}, which was not submitted"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::product::id;
    use super::super::scenario::whole_nodes;
    use super::super::site::{Site, vcluster};
    use super::*;
    use lattice_api::trace::{Request, Span};
    use lattice_model::{SchedulerKind, VCluster};

    const HOUR_S: u64 = 3600;

    fn work(number: usize, submitted_s: u64, run_s: u64, request: Request) -> Work {
        Work { id: id(number), request: Request { walltime: Some(Span(2 * run_s)), ..request }, submitted_s, run_s }
    }

    fn course(works: Vec<Work>, nodes: u32) -> Course {
        let scenario = Scenario { name: "t".into(), site: Site::alike(nodes), works, notes: vec![] };
        run(&scenario, &scenario.site).unwrap()
    }

    /// Background work on both nodes, and work of the usual class that wants them an hour later.
    fn preempting(background: Request) -> Course {
        let background = Request { priority: 1, ..background };
        course(vec![work(0, 0, 10 * HOUR_S, background), work(1, HOUR_S, HOUR_S, whole_nodes(2))], 2)
    }

    #[test]
    fn work_that_saves_itself_continues_and_is_charged_for_all_that_it_had() {
        let course = preempting(Request { checkpoint: true, ..whole_nodes(2) });
        let given_back_s = HOUR_S + 90;
        assert_eq!(course.lives[1].started_s, Some(given_back_s));
        let ends: Vec<_> = course.stretches.iter().map(|s| (s.work, s.from_s, s.to_s, s.preempted)).collect();
        let again_s = given_back_s + HOUR_S;
        let want = [
            (0, 0, given_back_s, Some(PreemptCause::Priority)),
            (1, given_back_s, again_s, None),
            // Nine hours were left when it was asked.
            (0, again_s, again_s + 9 * HOUR_S, None),
        ];
        assert_eq!(ends, want);
        assert!(course.stretches.iter().all(|stretch| stretch.uses.node_millionths == 2_000_000 && stretch.uses.gpus == 8));
    }

    #[test]
    fn work_saves_itself_for_as_long_as_the_store_needs() {
        let background = Request { priority: 1, checkpoint: true, ..whole_nodes(2) };
        let works = vec![work(0, 0, 10 * HOUR_S, background), work(1, HOUR_S, HOUR_S, whole_nodes(2))];
        let mut site = Site::alike(2);
        // It saves a quarter of the memory of both nodes, in 128 s.
        let memory_bytes: u64 = site.nodes.iter().map(|node| node.size.memory_bytes).sum();
        site.checkpoint_bytes_per_second = Some(memory_bytes as f64 / 512.0);
        let scenario = Scenario { name: "t".into(), site, works, notes: vec![] };
        let course = run(&scenario, &scenario.site).unwrap();
        assert_eq!(course.lives[1].started_s, Some(HOUR_S + 128 + 30));
    }

    #[test]
    fn work_that_borrowed_a_node_gives_it_back_to_its_lender_and_continues() {
        let mut site = Site::alike(2);
        site.nodes[1].home = "lender".into();
        site.vclusters = vec![
            VCluster { nodes: 1, lend_ms: Some(24 * HOUR_S * 1000), ..vcluster("lender", SchedulerKind::HpcBackfill) },
            VCluster { borrows: true, ..vcluster("borrower", SchedulerKind::HpcBackfill) },
        ];
        let of = |name: &str| Request { vcluster: name.to_owned(), ..whole_nodes(1) };
        let works = vec![
            // It fills the only node that is not the lender's, and may not be interrupted.
            work(0, 0, 10 * HOUR_S, of("borrower")),
            work(1, 1, 10 * HOUR_S, Request { checkpoint: true, ..of("borrower") }),
            work(2, HOUR_S, HOUR_S, of("lender")),
        ];
        let scenario = Scenario { name: "t".into(), site, works, notes: vec![] };
        let course = run(&scenario, &scenario.site).unwrap();
        let ends: Vec<_> = course.stretches.iter().map(|s| (s.work, s.from_s, s.to_s, s.preempted)).collect();
        let (reclaimed_s, again_s) = (HOUR_S + 90, 2 * HOUR_S + 90);
        let want = [
            (1, 1, reclaimed_s, Some(PreemptCause::Reclaim)),
            (2, reclaimed_s, again_s, None),
            (0, 0, 10 * HOUR_S, None),
            // Nine hours and a second were left when it was asked.
            (1, again_s, again_s + 9 * HOUR_S + 1, None),
        ];
        assert_eq!(ends, want);
    }

    #[test]
    fn work_that_cannot_save_itself_begins_anew() {
        let course = preempting(Request { requeues: 1, ..whole_nodes(2) });
        let again_s = HOUR_S + 30 + HOUR_S;
        assert_eq!(course.stretches.last().map(|s| (s.work, s.from_s, s.to_s)), Some((0, again_s, again_s + 10 * HOUR_S)));
        assert_eq!(course.lives[0], Life { started_s: Some(0), ended_s: Some(again_s + 10 * HOUR_S), is_backfill: false });
    }

    #[test]
    fn work_that_may_not_begin_anew_is_left_alone() {
        let course = preempting(whole_nodes(2));
        assert_eq!(course.stretches.iter().map(|s| (s.work, s.to_s)).collect::<Vec<_>>(), [(0, 10 * HOUR_S), (1, 11 * HOUR_S)]);
    }

    #[test]
    fn work_that_ends_while_it_saves_itself_has_ended() {
        let background = Request { priority: 1, checkpoint: true, ..whole_nodes(2) };
        // By its walltime it would run for another hour.
        let all = vec![work(0, 0, HOUR_S, background), work(1, HOUR_S - 10, HOUR_S, whole_nodes(2))];
        let course = course(all, 2);
        assert_eq!(course.lives[0].ended_s, Some(HOUR_S));
        assert_eq!(course.lives[1].started_s, Some(HOUR_S));
        assert!(course.stretches.iter().all(|stretch| stretch.preempted.is_none()));
    }

    #[test]
    fn work_that_no_node_can_serve_never_begins() {
        let course = course(vec![work(0, 5, 10, whole_nodes(3)), work(1, 6, 10, whole_nodes(1))], 2);
        assert_eq!(course.lives[0], Life::default());
        assert_eq!((course.lives[1].started_s, course.until_s), (Some(6), 16));
    }
}
