//! The routes of one agent in a launch's tree: which subtrees it serves, and how it bypasses agents
//! that it does not reach. Times are milliseconds of any clock that does not jump.
//!
//! ```text
//!   Broken ──connected──▶ Connected ──broken──▶ Broken ──for too long──▶ bypassed: its first part alone,
//!                                                                    and each subtree below it
//! ```
//!
//! If the agent of a child is unreachable for a moment, this agent waits. If it stays unreachable,
//! the child is bypassed: until this branch ends, this agent serves the child's own children, and the
//! child itself alone once it is back. If a part stays unreachable for long, the head is notified; if the
//! head reaches the part itself, it takes the part over from the agent above it.

use lattice_pmi::Subtree;
use std::collections::BTreeMap;

/// How long a child may be unreachable before it is bypassed, in milliseconds. A restarted agent is
/// often back by then.
const UNREACHABLE_MS_MAX: u64 = 2000;
/// The same if this agent reaches no other node: then its own network is the likely cause, and a
/// bypass is never undone.
const UNREACHABLE_ALONE_MS_MAX: u64 = 30_000;
/// How long a part is unreachable before the head is notified; also the interval between two
/// notices.
const UNREACHED_NOTICE_MS: u64 = 10_000;

/// The lines (connections) from an agent to the subtrees below it. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    fanout: u32,
    /// This node's part of the launch, if it has one.
    own: Option<u32>,
    lines: BTreeMap<u64, Line>,
    /// The last line number used.
    last: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    subtree: Subtree,
    /// When the line last served its subtree, or was opened.
    served_ms: u64,
    link: Link,
    /// When the head was last notified that the subtree's first part is unreachable.
    notified_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Link {
    Broken {
        since_ms: u64,
    },
    /// `unreachable`: the parts of the subtree that are unreachable or have not reported everything.
    Connected {
        unreachable: Vec<u32>,
    },
}

/// How a connected line broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// It served the subtree until then.
    Served,
    /// The agent at its end answered, and refused to serve.
    Refused,
    /// The agent at its end did not answer: it is stopping, or the connection broke.
    Silent,
}

/// An event of a line. An event of a closed line changes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteEvent {
    /// Serve a subtree by its first part.
    Serve {
        subtree: Subtree,
    },
    /// Serve a subtree from here: its first part alone, and each subtree below it.
    ServeBelow {
        subtree: Subtree,
    },
    Connected {
        line: u64,
    },
    Broken {
        line: u64,
        how: Broken,
    },
    /// The agent at the line's end reports which parts of its subtree are unreachable.
    UnreachableParts {
        line: u64,
        parts: Vec<u32>,
    },
    /// The line's buffer is full: reopen it, after which the agent at its end is sent everything.
    Full {
        line: u64,
    },
    /// The launch is brought down. No rank may run on because an agent in between is unreachable.
    BroughtDown,
    /// On the head: this part is reachable from here.
    Reached {
        part: u32,
    },
    /// Time passed.
    Clock,
}

/// What to do about lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// Open a line with this number to the subtree's first part.
    Open { line: u64, subtree: Subtree },
    /// Close the line.
    Close { line: u64 },
    /// Log that this part is bypassed: the parts below it are served from here.
    LogGoneRound { part: u32 },
    /// Log that this part is served from here because its parent does not reach it.
    LogTakenOver { part: u32, parent: u32 },
    /// Notify the head that this part is unreachable.
    NotifyUnreached { part: u32 },
}

impl Routes {
    /// Routes without lines; `own`: this node's part of the launch.
    pub fn new(fanout: u32, own: Option<u32>) -> Self {
        Self { fanout, own, lines: BTreeMap::new(), last: 0 }
    }

    /// Handles an event and appends the actions to `out`, in order.
    pub fn handle(&mut self, now_ms: u64, event: RouteEvent, out: &mut Vec<RouteAction>) {
        match event {
            RouteEvent::Serve { subtree } => self.serve(now_ms, subtree, out),
            RouteEvent::ServeBelow { subtree } => self.serve_below(now_ms, subtree, out),
            RouteEvent::Connected { line } => {
                if let Some(line) = self.lines.get_mut(&line) {
                    line.link = Link::Connected { unreachable: line.subtree.parts().collect() };
                    line.notified_ms = None;
                }
            }
            RouteEvent::Broken { line: number, how } => {
                let Some(line) = self.lines.get_mut(&number) else { return };
                if how == Broken::Served {
                    line.served_ms = now_ms;
                }
                line.link = Link::Broken { since_ms: line.served_ms };
                if how == Broken::Refused {
                    self.bypass(now_ms, number, out);
                }
            }
            RouteEvent::UnreachableParts { line, mut parts } => {
                if let Some(line) = self.lines.get_mut(&line) {
                    parts.retain(|part| line.has(*part));
                    line.link = Link::Connected { unreachable: parts };
                }
            }
            RouteEvent::Full { line } => {
                if let Some(subtree) = self.close(line, out) {
                    self.serve(now_ms, subtree, out);
                }
            }
            RouteEvent::BroughtDown => self.bypass_due(now_ms, |line| matches!(line.link, Link::Broken { .. }), out),
            RouteEvent::Reached { part } => self.take_over(now_ms, part, out),
            RouteEvent::Clock => self.check_lines(now_ms, out),
        }
    }

    /// Whether the line is connected.
    pub fn is_connected(&self, line: u64) -> bool {
        self.lines.get(&line).is_some_and(Line::is_connected)
    }

    /// The parts that are unreachable now, or have not reported everything.
    pub fn unreachable(&self) -> Vec<u32> {
        let of = |line: &Line| match &line.link {
            Link::Broken { .. } => line.subtree.parts().collect(),
            Link::Connected { unreachable } => unreachable.clone(),
        };
        self.lines.values().flat_map(of).collect()
    }

    /// Whether every part is reached, so that [`RouteEvent::Clock`] changes nothing.
    pub fn is_whole(&self) -> bool {
        self.lines.values().all(|line| matches!(&line.link, Link::Connected { unreachable } if unreachable.is_empty()))
    }

    fn serve(&mut self, now_ms: u64, subtree: Subtree, out: &mut Vec<RouteAction>) {
        self.last += 1;
        let link = Link::Broken { since_ms: now_ms };
        self.lines.insert(self.last, Line { subtree, served_ms: now_ms, link, notified_ms: None });
        out.push(RouteAction::Open { line: self.last, subtree });
    }

    fn serve_below(&mut self, now_ms: u64, subtree: Subtree, out: &mut Vec<RouteAction>) {
        self.serve(now_ms, Subtree::single(subtree.first), out);
        for child in subtree.children(self.fanout) {
            self.serve(now_ms, child, out);
        }
    }

    fn close(&mut self, line: u64, out: &mut Vec<RouteAction>) -> Option<Subtree> {
        let subtree = self.lines.remove(&line)?.subtree;
        out.push(RouteAction::Close { line });
        Some(subtree)
    }

    fn bypass(&mut self, now_ms: u64, number: u64, out: &mut Vec<RouteAction>) {
        if self.lines.get(&number).is_none_or(|line| line.subtree.is_single()) {
            return;
        }
        if let Some(subtree) = self.close(number, out) {
            out.push(RouteAction::LogGoneRound { part: subtree.first });
            self.serve_below(now_ms, subtree, out);
        }
    }

    fn bypass_due(&mut self, now_ms: u64, is_due: impl Fn(&Line) -> bool, out: &mut Vec<RouteAction>) {
        let due: Vec<u64> = self.lines.iter().filter(|(_, line)| is_due(line)).map(|(number, _)| *number).collect();
        due.into_iter().for_each(|number| self.bypass(now_ms, number, out));
    }

    /// Bypasses children that are unreachable for too long, and reports unreachable parts.
    fn check_lines(&mut self, now_ms: u64, out: &mut Vec<RouteAction>) {
        let is_alone = !self.lines.values().any(|line| Some(line.subtree.first) != self.own && line.is_connected());
        let unreachable_ms_max = if is_alone { UNREACHABLE_ALONE_MS_MAX } else { UNREACHABLE_MS_MAX };
        let is_longer = |at_ms: u64, than_ms: u64| now_ms.saturating_sub(at_ms) > than_ms;
        self.bypass_due(now_ms, |line| matches!(line.link, Link::Broken { since_ms } if is_longer(since_ms, unreachable_ms_max)), out);
        for line in self.lines.values_mut() {
            let is_unreachable = matches!(line.link, Link::Broken { since_ms } if is_longer(since_ms, UNREACHED_NOTICE_MS));
            if is_unreachable && line.notified_ms.is_none_or(|at_ms| is_longer(at_ms, UNREACHED_NOTICE_MS)) {
                line.notified_ms = Some(now_ms);
                out.push(RouteAction::NotifyUnreached { part: line.subtree.first });
            }
        }
    }

    /// Takes over a part that is reachable from here, with the parts below it, if the agent above it
    /// still reports it as unreachable.
    fn take_over(&mut self, now_ms: u64, part: u32, out: &mut Vec<RouteAction>) {
        let unreachable = |link: &Link| matches!(link, Link::Connected { unreachable } if unreachable.contains(&part));
        let is_above = |line: &Line| line.has(part) && line.subtree.first != part && unreachable(&line.link);
        let Some(number) = self.lines.iter().find(|(_, line)| is_above(line)).map(|(number, _)| *number) else { return };
        let Some(subtree) = self.close(number, out) else { return };
        if let Some(parent) = subtree.parent_of(part, self.fanout) {
            out.push(RouteAction::LogTakenOver { part, parent });
        }
        for piece in subtree.down_to(part, self.fanout) {
            self.serve(now_ms, piece, out);
        }
    }
}

impl Line {
    fn has(&self, part: u32) -> bool {
        self.subtree.contains(Subtree::single(part))
    }

    fn is_connected(&self) -> bool {
        match self.link {
            Link::Connected { .. } => true,
            Link::Broken { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RouteAction::{Close, LogGoneRound, LogTakenOver, NotifyUnreached, Open};
    use super::*;
    use proptest::prelude::*;

    fn tree(first: u32, end: u32) -> Subtree {
        Subtree { first, end }
    }

    fn step(routes: &mut Routes, now_ms: u64, event: RouteEvent) -> Vec<RouteAction> {
        let mut out = Vec::new();
        routes.handle(now_ms, event, &mut out);
        out
    }

    /// The head of seven parts with fan-out 2: part 0 by line 1, parts 1 to 3 by line 2, parts 4 to
    /// 6 by line 3.
    fn head() -> Routes {
        let mut routes = Routes::new(2, Some(0));
        let opened = step(&mut routes, 0, RouteEvent::ServeBelow { subtree: Subtree::whole(7) });
        let open = |line, first, end| Open { line, subtree: tree(first, end) };
        assert_eq!(opened, [open(1, 0, 1), open(2, 1, 4), open(3, 4, 7)]);
        routes
    }

    /// The same, once every line is connected and reports no unreachable part.
    fn whole() -> Routes {
        let mut routes = head();
        for line in 1..=3 {
            assert_eq!(step(&mut routes, 1, RouteEvent::Connected { line }), []);
            assert!(routes.is_connected(line) && !routes.is_whole(), "it has not reported all");
            assert_eq!(step(&mut routes, 1, RouteEvent::UnreachableParts { line, parts: vec![] }), []);
        }
        assert!(routes.is_whole());
        routes
    }

    /// The actions that bypass the agent of part 4: lines to this part alone, and to the two below it.
    fn bypass_4(line: u64) -> Vec<RouteAction> {
        let open = |line, first, end| Open { line, subtree: tree(first, end) };
        vec![Close { line: 3 }, LogGoneRound { part: 4 }, open(line, 4, 5), open(line + 1, 5, 6), open(line + 2, 6, 7)]
    }

    #[test]
    fn an_agent_that_stays_away_is_bypassed_after_two_seconds() {
        let mut routes = whole();
        assert_eq!(step(&mut routes, 1000, RouteEvent::Broken { line: 3, how: Broken::Served }), []);
        assert_eq!(routes.unreachable(), [4, 5, 6]);
        // A failed attempt does not count as service.
        step(&mut routes, 2000, RouteEvent::Connected { line: 3 });
        assert_eq!(step(&mut routes, 2500, RouteEvent::Broken { line: 3, how: Broken::Silent }), []);
        assert_eq!(step(&mut routes, 3000, RouteEvent::Clock), []);
        assert_eq!(step(&mut routes, 3001, RouteEvent::Clock), bypass_4(4));
        assert_eq!(step(&mut routes, 3002, RouteEvent::Connected { line: 3 }), [], "it was closed");
        assert_eq!(routes.unreachable(), [4, 5, 6]);
    }

    #[test]
    fn an_agent_that_reaches_no_other_node_waits_longer() {
        let mut routes = head();
        step(&mut routes, 0, RouteEvent::Connected { line: 1 });
        assert_eq!(step(&mut routes, 10_000, RouteEvent::Clock), []);
        let unreached = [NotifyUnreached { part: 1 }, NotifyUnreached { part: 4 }];
        assert_eq!(step(&mut routes, 10_001, RouteEvent::Clock), unreached);
        assert_eq!(step(&mut routes, 20_001, RouteEvent::Clock), []);
        assert_eq!(step(&mut routes, 20_002, RouteEvent::Clock), unreached);
        step(&mut routes, 20_003, RouteEvent::Connected { line: 2 });
        assert_eq!(step(&mut routes, 20_004, RouteEvent::Clock), bypass_4(4));
    }

    #[test]
    fn an_agent_that_refuses_to_serve_is_bypassed_at_once() {
        let mut routes = whole();
        assert_eq!(step(&mut routes, 1000, RouteEvent::Broken { line: 3, how: Broken::Refused }), bypass_4(4));
        assert_eq!(step(&mut routes, 1001, RouteEvent::Broken { line: 4, how: Broken::Refused }), [], "there is nothing below it");
    }

    #[test]
    fn bringing_down_reaches_those_below_an_agent_that_is_unreachable() {
        let mut routes = whole();
        assert_eq!(step(&mut routes, 1, RouteEvent::BroughtDown), []);
        step(&mut routes, 2, RouteEvent::Broken { line: 3, how: Broken::Served });
        assert_eq!(step(&mut routes, 2, RouteEvent::BroughtDown), bypass_4(4));
    }

    #[test]
    fn a_full_line_is_reopened() {
        let mut routes = whole();
        let expected = [Close { line: 2 }, Open { line: 4, subtree: tree(1, 4) }];
        assert_eq!(step(&mut routes, 5, RouteEvent::Full { line: 2 }), expected);
        assert!(!routes.is_connected(4));
        assert_eq!(step(&mut routes, 5, RouteEvent::Full { line: 2 }), []);
    }

    #[test]
    fn the_head_takes_over_a_part_that_it_reaches_and_its_parent_does_not() {
        let mut routes = whole();
        assert_eq!(step(&mut routes, 5, RouteEvent::Reached { part: 5 }), [], "it is not unreachable");
        assert_eq!(step(&mut routes, 5, RouteEvent::UnreachableParts { line: 3, parts: vec![5, 1] }), []);
        assert_eq!(routes.unreachable(), [5], "a part of another line is ignored");
        assert_eq!(step(&mut routes, 5, RouteEvent::Reached { part: 4 }), []);
        let open = |line, first, end| Open { line, subtree: tree(first, end) };
        let expected = [Close { line: 3 }, LogTakenOver { part: 5, parent: 4 }, open(4, 4, 5), open(5, 5, 6), open(6, 6, 7)];
        assert_eq!(step(&mut routes, 5, RouteEvent::Reached { part: 5 }), expected);
    }

    fn events() -> impl Strategy<Value = Vec<(u64, RouteEvent)>> {
        let line = || 1u64..40;
        let how = prop_oneof![Just(Broken::Served), Just(Broken::Refused), Just(Broken::Silent)];
        let event = prop_oneof![
            line().prop_map(|line| RouteEvent::Connected { line }),
            (line(), how).prop_map(|(line, how)| RouteEvent::Broken { line, how }),
            (line(), proptest::collection::vec(0u32..30, 0..4)).prop_map(|(line, parts)| RouteEvent::UnreachableParts { line, parts }),
            line().prop_map(|line| RouteEvent::Full { line }),
            Just(RouteEvent::BroughtDown),
            (0u32..30).prop_map(|part| RouteEvent::Reached { part }),
            Just(RouteEvent::Clock),
        ];
        proptest::collection::vec((0u64..12_000, event), 0..60)
    }

    proptest! {
        /// Whatever happens, each part is served by exactly one open line, and the actions match
        /// the lines.
        #[test]
        fn each_part_is_always_served_once(parts in 1u32..30, fanout in 2u32..5, history in events()) {
            let mut routes = Routes::new(fanout, Some(0));
            let (mut now_ms, mut open) = (0, BTreeMap::new());
            let begins = (0, RouteEvent::ServeBelow { subtree: Subtree::whole(parts) });
            for (later_ms, event) in std::iter::once(begins).chain(history) {
                now_ms += later_ms;
                for action in step(&mut routes, now_ms, event) {
                    match action {
                        Open { line, subtree } => prop_assert_eq!(open.insert(line, subtree), None),
                        Close { line } => prop_assert!(open.remove(&line).is_some()),
                        LogGoneRound { .. } | LogTakenOver { .. } | NotifyUnreached { .. } => {}
                    }
                }
                let mut served: Vec<u32> = open.values().flat_map(|subtree: &Subtree| subtree.parts()).collect();
                served.sort_unstable();
                prop_assert_eq!(served, (0..parts).collect::<Vec<_>>());
            }
        }
    }
}
