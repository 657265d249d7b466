//! `--watch`: a list, then a line for each change, over broken connections and restarts of members and agents.
//!
//! ```text
//!   Watch ─▶ complete event ─▶ a line for each object that looks different ─▶ its position is stored
//!                                       connection lost ─▶ connect again ─▶ Watch since that position
//! ```
//!
//! Each change is reported once: no line is lost or repeated. If the quorum had to forget changes before they could be
//! sent, a note is written on stderr, and lines follow for all differences in a new list.

pub mod screen;

use crate::failure::{Exit, Failure};
use crate::node_list;
use crate::output::{Format, TableSize, print, print_names};
use crate::retries::Retries;
use crate::session::Session;
use crate::shown::{
    ALLOCATION_EXTRA, ALLOCATION_HEADING, AllocationJson, NODE_EXTRA, NODE_HEADING, allocation_row, lease_token, node_row, queue,
};
use crate::table::Rows;
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::json::{LeaseJson, WatchedNodeJson};
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_cli_syntax::args::allocations::StatusFilter;
use lattice_model::AllocationState;
use lattice_model::count::counted;
use lattice_model::duration::clock_text;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The most ended objects that are remembered. Later changes of them, such as a released share, make no line.
const ENDED_OBJECTS_MAX: usize = 10_000;
const LEASE_HEADING: &[&str] = &["NAME", "TOKEN", "HOLDER", "USER", "TTL", "STATE"];

/// What is watched, and which part of it is shown.
pub enum Watched {
    /// All nodes, or this one.
    Nodes { only: Option<String> },
    /// Allocations in these states, or in all if none is named, that match the filter. `until_ended`: a single one, to
    /// its end.
    Allocations { states: Vec<AllocationState>, filter: StatusFilter, until_ended: bool },
    /// All leases.
    Leases,
}

/// Watches until the allocation has ended, or for ever.
pub async fn run(session: &Session, what: What, watched: Watched) -> Result<(), Failure> {
    let request = v1::WatchRequest { what: Some(what), since: None };
    let mut watch =
        Watch { session, request, shown: ShownLines::new(&watched, session.table_size()), watched, retries: Retries::default() };
    let mut client = session.connect().await?;
    loop {
        match watch.once(&client).await {
            Ok(()) => return Ok(()),
            Err(failure) if watch.retries.should_retry(&failure) => client = watch.retries.reconnect(session, failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}

/// State that is kept over connections.
struct Watch<'a> {
    session: &'a Session,
    request: v1::WatchRequest,
    watched: Watched,
    shown: ShownLines,
    retries: Retries,
}

impl Watch<'_> {
    /// Watches on one connection, to the end of what is watched.
    async fn once(&mut self, client: &Client) -> Result<(), Failure> {
        let mut stream = client.watches().watch(self.request.clone()).await?.into_inner();
        let mut whole = v1::WatchEvent::default();
        while let Some(part) = stream.message().await? {
            self.retries.record_progress();
            if !part.resync_reason.is_empty() {
                self.session.note(&format!("some changes were missed ({}); a new list follows", part.resync_reason));
                self.request.since = None;
                continue;
            }
            let more = part.more;
            append_part(&mut whole, part);
            if more {
                continue;
            }
            let event = std::mem::take(&mut whole);
            self.request.since = event.cursor;
            if self.show(&event)? {
                return Ok(());
            }
        }
        // An agent that stops closes its streams without an error.
        Err(Failure::new(Exit::Unavailable, "the agent stopped sending changes").hint("`lattice node status` shows whether it runs"))
    }

    /// Shows the differences; `true`: no more will follow.
    fn show(&mut self, event: &v1::WatchEvent) -> Result<bool, Failure> {
        let mut lines = lines(event, &self.watched);
        if let Watched::Nodes { only: Some(name) } = &self.watched {
            if event.list {
                node_list::find(event.nodes.clone(), name)?;
            }
            lines.retain(|line| line.name == *name);
        }
        if event.list {
            let gone = self.shown.take_gone(&lines);
            match &self.watched {
                Watched::Leases => lines.extend(gone.into_iter().map(ended_lease)),
                Watched::Allocations { .. } if !gone.is_empty() => {
                    self.session.note(&format!(
                        "{} ended meanwhile; `lattice status ID` shows how: {}",
                        counted(gone.len(), "allocation"),
                        gone.join(" ")
                    ));
                }
                Watched::Nodes { .. } => lines.extend(gone.into_iter().map(removed_node)),
                Watched::Allocations { .. } => {}
            }
        }
        let over = matches!(self.watched, Watched::Allocations { until_ended: true, .. }) && lines.iter().any(|line| line.ended);
        lines.retain(|line| self.shown.record_if_new(line));
        lines.retain(|line| line.is_wanted);
        self.shown.print(self.session.format(), lines, event.list)?;
        Ok(over)
    }
}

/// The lines shown so far.
struct ShownLines {
    rows: Rows,
    /// The last shown line of each object.
    known: BTreeMap<String, ShownLine>,
    /// The ended objects, the first to end first.
    ended: VecDeque<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct ShownLine {
    /// Hash of its line.
    hash: u64,
    ended: bool,
}

impl ShownLines {
    fn new(watched: &Watched, size: TableSize) -> Self {
        let (heading, extra): (_, &[&str]) = match watched {
            Watched::Nodes { .. } => (NODE_HEADING, NODE_EXTRA),
            Watched::Allocations { .. } => (ALLOCATION_HEADING, ALLOCATION_EXTRA),
            Watched::Leases => (LEASE_HEADING, &[]),
        };
        Self { rows: Rows::on_screen(heading, extra, size), known: BTreeMap::new(), ended: VecDeque::new() }
    }

    /// Whether a line is new; records it.
    fn record_if_new(&mut self, line: &Line) -> bool {
        let mut hasher = DefaultHasher::new();
        line.json.to_string().hash(&mut hasher);
        let line_state = ShownLine { hash: hasher.finish(), ended: line.ended };
        if self.known.insert(line.name.clone(), line_state) == Some(line_state) {
            return false;
        }
        if line.ended {
            self.ended.push_back(line.name.clone());
        }
        if self.ended.len() > ENDED_OBJECTS_MAX
            && let Some(oldest) = self.ended.pop_front()
            // A lease may be held again.
            && self.known.get(&oldest).is_some_and(|line_state| line_state.ended)
        {
            self.known.remove(&oldest);
        }
        true
    }

    /// Objects that had not ended when they were last shown, and are not in a new list.
    fn take_gone(&mut self, list: &[Line]) -> Vec<String> {
        let there: BTreeSet<&str> = list.iter().map(|line| line.name.as_str()).collect();
        let is_gone = |(name, line_state): &(&String, &ShownLine)| !line_state.ended && !there.contains(name.as_str());
        let gone: Vec<String> = self.known.iter().filter(is_gone).map(|(name, _)| name.clone()).collect();
        for name in &gone {
            self.known.remove(name);
        }
        gone
    }

    fn print(&mut self, format: Format, lines: Vec<Line>, list: bool) -> Result<(), Failure> {
        match format {
            // For an empty list the heading is shown.
            Format::Table if list || !lines.is_empty() => {
                let rows: Vec<_> = lines.into_iter().map(|line| line.cells).collect();
                print(&self.rows.text(&rows))
            }
            Format::Data(notation) if !lines.is_empty() => {
                notation.print_each(&lines.into_iter().map(|line| line.json).collect::<Vec<_>>())
            }
            Format::Name if !lines.is_empty() => print_names(lines.iter().map(|line| line.name.as_str())),
            Format::Table | Format::Data(_) | Format::Name => Ok(()),
        }
    }
}

/// The line of one object.
struct Line {
    /// The object's unique name.
    name: String,
    cells: Vec<String>,
    json: Value,
    /// Whether nothing more happens to it.
    ended: bool,
    /// Whether it matches the filter now.
    is_wanted: bool,
}

impl Watched {
    /// Whether an allocation matches the part of the filter that never changes in its life.
    fn matches_fixed_part(&self, a: &v1::Allocation) -> bool {
        let Self::Allocations { filter: StatusFilter { user, name, vcluster, tenant, project: _, node, tags: _ }, until_ended, .. } = self
        else {
            return true;
        };
        // As in a list: lanes of task groups, and replicas of services, only where they are asked for.
        let shows_parts = *until_ended || node.is_some();
        let is = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|wanted| wanted == has);
        let is_shown = shows_parts || (a.lane_of.is_empty() && a.replica_of.is_empty());
        is_shown && is(user, &a.owner) && is(name, &a.name) && is(vcluster, queue(&a.vcluster)) && is(tenant, &a.tenant)
    }

    /// Whether it matches the part that can change.
    fn matches_changing_part(&self, a: &v1::Allocation, state: Option<AllocationState>) -> bool {
        let Self::Allocations { states, filter, .. } = self else { return true };
        (states.is_empty() || state.is_some_and(|state| states.contains(&state)))
            && filter.node.as_ref().is_none_or(|node| a.nodes.contains(node))
            && filter.project.as_ref().is_none_or(|project| a.project == *project)
            && filter.tags.iter().all(|(tag, value)| a.tags.get(tag) == Some(value))
    }
}

/// Appends a part of an event to the earlier parts.
fn append_part(whole: &mut v1::WatchEvent, part: v1::WatchEvent) {
    whole.list |= part.list;
    whole.cursor = part.cursor;
    whole.nodes.extend(part.nodes);
    whole.nodes_removed.extend(part.nodes_removed);
    whole.allocations.extend(part.allocations);
    whole.leases.extend(part.leases);
    whole.leases_ended.extend(part.leases_ended);
}

/// The lines of an event, allocations in the order of their submission.
fn lines(event: &v1::WatchEvent, watched: &Watched) -> Vec<Line> {
    let mut allocations: Vec<&v1::Allocation> = event.allocations.iter().filter(|a| watched.matches_fixed_part(a)).collect();
    allocations.sort_by_key(|a| (a.submitted_at_ms, &a.id));
    let allocations = allocations.into_iter().map(|a| {
        let state = state_from_name(&a.state).ok();
        let ended = state.is_some_and(AllocationState::is_terminal);
        let is_wanted = watched.matches_changing_part(a, state);
        Line { name: a.id.clone(), cells: allocation_row(a), json: json!(AllocationJson::from(a)), ended, is_wanted }
    });
    let nodes = event.nodes.iter().map(|n| node_line(n, false)).chain(event.nodes_removed.iter().cloned().map(removed_node));
    let leases = event.leases.iter().map(|l| {
        let ttl = clock_text(Duration::from_millis(l.ttl_ms));
        let cells = vec![l.name.clone(), lease_token(l), l.holder.clone(), l.user.clone(), ttl, "held".to_owned()];
        let mut json = json!(LeaseJson::from(l));
        json["ended"] = false.into();
        Line { name: l.name.clone(), cells, json, ended: false, is_wanted: true }
    });
    let ended = event.leases_ended.iter().cloned().map(ended_lease);
    allocations.chain(nodes).chain(leases).chain(ended).collect()
}

fn node_line(n: &v1::Node, ended: bool) -> Line {
    Line { name: n.id.clone(), cells: node_row(n), json: json!(WatchedNodeJson::from(n)), ended, is_wanted: true }
}

fn removed_node(id: String) -> Line {
    node_line(&v1::Node { id, state: "Removed".to_owned(), ..Default::default() }, true)
}

fn ended_lease(name: String) -> Line {
    let json = json!({ "name": name, "token": null, "holder": null, "user": null, "ttl_ms": null, "ended": true });
    let nothing = String::new;
    let cells = vec![name.clone(), nothing(), nothing(), nothing(), nothing(), "ended".to_owned()];
    Line { name, cells, json, ended: true, is_wanted: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocation(id: &str, state: &str, submitted_at_ms: u64) -> v1::Allocation {
        v1::Allocation { id: id.into(), state: state.into(), submitted_at_ms, ..Default::default() }
    }

    fn event(allocations: Vec<v1::Allocation>) -> v1::WatchEvent {
        v1::WatchEvent { allocations, ..Default::default() }
    }

    fn names(shown: &mut ShownLines, event: &v1::WatchEvent) -> Vec<String> {
        lines(event, &Watched::Leases).into_iter().filter(|line| shown.record_if_new(line)).map(|line| line.name).collect()
    }

    #[test]
    fn unchanged_objects_make_no_line_and_objects_missing_in_a_new_list_are_gone() {
        let mut shown = ShownLines::new(&Watched::Leases, TableSize::default());
        let first = event(vec![allocation("b", "Pending", 2), allocation("a", "Pending", 1)]);
        assert_eq!(names(&mut shown, &first), ["a", "b"]);
        assert_eq!(names(&mut shown, &first), Vec::<String>::new());
        assert_eq!(names(&mut shown, &event(vec![allocation("a", "Completed", 1)])), ["a"]);
        assert_eq!(shown.take_gone(&lines(&event(vec![allocation("c", "Pending", 3)]), &Watched::Leases)), ["b"], "how a ended was shown");
        assert_eq!(names(&mut shown, &event(vec![allocation("a", "Completed", 1)])), Vec::<String>::new());
    }

    #[test]
    fn lanes_and_replicas_are_shown_where_a_node_or_one_of_them_is_watched() {
        let lane =
            v1::Allocation { lane_of: "1f0c9a4e-5b7d".into(), lane_number: 3, name: "sweep".into(), ..allocation("b", "Running", 2) };
        let replica =
            v1::Allocation { replica_of: "1f0c9a4e-5b7d".into(), replica_number: 3, name: "serve".into(), ..allocation("c", "Running", 3) };
        let event = event(vec![allocation("a", "Pending", 1), lane, replica]);
        let watched = |node: Option<&str>, until_ended| {
            let filter = StatusFilter { node: node.map(str::to_owned), ..StatusFilter::default() };
            let of = Watched::Allocations { states: vec![], filter, until_ended };
            lines(&event, &of).into_iter().map(|line| line.cells[2].clone()).collect::<Vec<_>>()
        };
        assert_eq!(watched(None, false), [""]);
        let with_parts = ["", "sweep (lane 3 of 1f0c9a4e)", "serve (replica 3 of 1f0c9a4e)"].map(str::to_owned).to_vec();
        assert_eq!((watched(None, true), watched(Some("n1"), false)), (with_parts.clone(), with_parts));
    }

    #[test]
    fn a_lease_that_is_granted_again_is_shown_again() {
        let mut shown = ShownLines::new(&Watched::Leases, TableSize::default());
        let lease = v1::Lease { name: "l".into(), token: Some(3), ..Default::default() };
        let granted = v1::WatchEvent { leases: vec![lease], ..Default::default() };
        let ended = v1::WatchEvent { leases_ended: vec!["l".into()], ..Default::default() };
        for event in [&granted, &ended, &granted, &ended] {
            assert_eq!(names(&mut shown, event), ["l"]);
            assert_eq!(names(&mut shown, event), Vec::<String>::new());
        }
        assert!(shown.take_gone(&[]).is_empty(), "its end was shown");
        assert_eq!(names(&mut shown, &granted), ["l"]);
        assert_eq!(shown.take_gone(&[]), ["l"]);
    }

    #[test]
    fn a_node_that_is_removed_is_shown_once_and_again_when_it_returns() {
        let mut shown = ShownLines::new(&Watched::Nodes { only: None }, TableSize::default());
        let node = v1::Node { id: "n3".into(), state: "Ready".into(), ..Default::default() };
        let ready = v1::WatchEvent { nodes: vec![node], ..Default::default() };
        let removed = v1::WatchEvent { nodes_removed: vec!["n3".into()], ..Default::default() };
        for event in [&ready, &removed, &ready, &removed] {
            assert_eq!(names(&mut shown, event), ["n3"]);
            assert_eq!(names(&mut shown, event), Vec::<String>::new());
        }
        assert!(shown.take_gone(&[]).is_empty(), "its removal was shown");
        assert!(lines(&removed, &Watched::Leases)[0].cells.iter().any(|cell| cell == "Removed"));
    }

    #[test]
    fn the_number_of_remembered_ended_objects_is_bounded() {
        let mut shown = ShownLines::new(&Watched::Leases, TableSize::default());
        for number in 0..ENDED_OBJECTS_MAX + 5 {
            let id = format!("{number:08}");
            names(&mut shown, &event(vec![allocation(&id, "Pending", 1)]));
            names(&mut shown, &event(vec![allocation(&id, "Failed", 1)]));
        }
        assert_eq!((shown.known.len(), shown.ended.len()), (ENDED_OBJECTS_MAX, ENDED_OBJECTS_MAX));
    }

    #[test]
    fn a_filter_selects_matching_objects_also_after_changes() {
        let filter = StatusFilter { name: Some("x".into()), node: Some("n1".into()), ..StatusFilter::default() };
        let watched = Watched::Allocations { states: vec![AllocationState::Running], filter, until_ended: false };
        let with = |name: &str, state: &str, nodes: &[&str]| v1::Allocation {
            name: name.into(),
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            ..allocation("a", state, 1)
        };
        let seen = |a: v1::Allocation| lines(&event(vec![a]), &watched).iter().map(|line| line.is_wanted).collect::<Vec<_>>();
        assert_eq!(seen(with("x", "Running", &["n2", "n1"])), [true]);
        assert_eq!(seen(with("x", "Running", &["n2"])), [false], "it may come to n1 yet");
        assert_eq!(seen(with("x", "Completed", &["n1"])), [false]);
        assert!(seen(with("y", "Running", &["n1"])).is_empty(), "it is never this one");
    }

    #[test]
    fn parts_make_one_event() {
        let mut whole = v1::WatchEvent::default();
        append_part(&mut whole, v1::WatchEvent { list: true, more: true, ..event(vec![allocation("a", "Pending", 1)]) });
        let place = Some(v1::WatchCursor { generation: 1, revision: 7 });
        append_part(&mut whole, v1::WatchEvent { list: true, cursor: place, ..event(vec![allocation("b", "Pending", 1)]) });
        assert_eq!((whole.list, whole.cursor, whole.allocations.len()), (true, place, 2));
    }
}
