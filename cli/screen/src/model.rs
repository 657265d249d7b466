//! The state of the screen: what is known, what is selected, what is asked. Keys and reports change it; it does nothing
//! itself, and its clock is a report like any other.

use super::alerts::alert_list;
use super::columns::{List, Row};
use super::events::{Action, Change, Message, Mode, Request, Tab};
use super::filter::Filter;
use super::keys::Key;
use super::lists::{NodeOrder, QueueOrder, node_list, queue_list};
use super::node_details::node_details;
use super::plain::plain;
use super::snapshot::Snapshot;
use super::usage_list::usage_list;
use lattice_cli_session::shown::short;
use lattice_cli_session::table::{shortened, wrapped};
use lattice_model::time::Timestamp;

/// Lines of the screen beside the rows of a list: two of the header, the tabs, the heading, the status, the keys.
const FRAME_LINES: usize = 6;
/// How long a message is shown if no key is pressed.
const MESSAGE_MS: u64 = 10_000;
/// The longest reason for a drain that the API accepts.
const REASON_BYTES_MAX: usize = 256;
/// The longest filter.
const FILTER_BYTES_MAX: usize = 128;

/// The selected row: its key, and its place for the time after it is gone.
#[derive(Clone, Debug, Default)]
struct Cursor {
    key: String,
    at: usize,
}

/// The state of the screen.
#[derive(Debug)]
pub struct Screen {
    pub snapshot: Snapshot,
    pub now: Timestamp,
    pub tab: Tab,
    pub mode: Mode,
    pub filter: String,
    pub all_users: bool,
    /// Why the last refresh failed.
    pub lost: Option<String>,
    pub message: Option<Message>,
    /// A question that is not answered yet.
    pub asked: Option<Request>,
    pub interval_ms: u64,
    columns: usize,
    rows: usize,
    queue_order: QueueOrder,
    node_order: NodeOrder,
    cursors: [Cursor; 4],
}

impl Screen {
    /// Without any report.
    pub fn new(now: Timestamp, interval_ms: u64) -> Self {
        Self {
            snapshot: Snapshot::default(),
            now,
            tab: Tab::default(),
            mode: Mode::default(),
            filter: String::new(),
            all_users: true,
            lost: None,
            message: None,
            asked: None,
            interval_ms,
            columns: 80,
            rows: 24,
            queue_order: QueueOrder::default(),
            node_order: NodeOrder::default(),
            cursors: Default::default(),
        }
    }

    /// The rows of a tab, filtered and sorted.
    pub fn list(&self) -> List {
        let (snapshot, filter) = (&self.snapshot, Filter::of(&self.filter));
        match self.tab {
            Tab::Queue => queue_list(&snapshot.work.value, &filter, self.queue_order, self.now),
            Tab::Nodes => node_list(&snapshot.nodes.value, &filter, self.node_order),
            Tab::Usage => usage_list(snapshot, &filter),
            Tab::Alerts => alert_list(snapshot, &filter, self.now),
        }
    }

    /// How many alerts there are, whatever the filter.
    pub fn alerts_count(&self) -> usize {
        alert_list(&self.snapshot, &Filter::default(), self.now).rows.len()
    }

    /// The place of the selected row in `rows`.
    pub fn selected(&self, rows: &[Row]) -> Option<usize> {
        let cursor = &self.cursors[self.tab as usize];
        let by_key = rows.iter().position(|row| !row.key.is_empty() && row.key == cursor.key);
        (!rows.is_empty()).then(|| by_key.unwrap_or_else(|| cursor.at.min(rows.len() - 1)))
    }

    /// The number of rows of a list that fit on the screen.
    pub fn page_len(&self) -> usize {
        self.rows.saturating_sub(FRAME_LINES).max(1)
    }

    /// The lines of the shown text, as wide as the screen allows.
    pub fn text_lines(&self) -> Vec<String> {
        let Mode::Text { text, .. } = &self.mode else { return Vec::new() };
        let most = self.columns.saturating_sub(4).max(20);
        let whole = |line: &str| if line.chars().count() <= most { vec![line.to_owned()] } else { wrapped(line, most) };
        text.lines().flat_map(whole).collect()
    }

    /// The number of lines of a text that fit on the screen.
    pub fn text_page_len(&self) -> usize {
        self.rows.saturating_sub(4).max(1)
    }

    /// When the shown tab was reported; `None`: not yet.
    pub fn reported_at(&self) -> Option<Timestamp> {
        let Snapshot { nodes, work, usage } = &self.snapshot;
        match self.tab {
            Tab::Queue => work.at,
            Tab::Nodes => nodes.at,
            // The hours change slowly and are requested rarely, so the time of the queue counts.
            Tab::Usage => usage.at.and(work.at),
            Tab::Alerts => nodes.at.min(work.at),
        }
    }

    /// How old the shown tab is, in seconds, if refreshes are overdue.
    pub fn stale_seconds(&self) -> Option<u64> {
        let age_ms = self.now.since_ms(self.reported_at()?);
        (age_ms > 3 * self.interval_ms + 2000).then_some(age_ms / 1000)
    }

    /// Applies a change to the state.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Tick(now) => {
                self.now = now;
                if self.message.as_ref().is_some_and(|message| now.since_ms(message.since) > MESSAGE_MS) {
                    self.message = None;
                }
            }
            Change::Size { columns, rows } => (self.columns, self.rows) = (columns.into(), rows.into()),
            Change::Nodes(at, nodes) => {
                self.lost = None;
                self.snapshot.nodes.set(at, nodes);
            }
            // The request was sent before `a` was pressed.
            Change::Work(_, work) if work.all_users != self.all_users => {}
            Change::Work(at, work) => {
                self.lost = None;
                self.snapshot.work.set(at, *work);
            }
            Change::Usage(at, usage) => self.snapshot.usage.set(at, usage),
            Change::Lost(why) => self.lost = Some(why),
            Change::Answered { request, title, text } => {
                // An answer that nobody waits for any more opens nothing.
                if self.asked.take_if(|asked| *asked == request).is_some() {
                    self.mode = Mode::Text { title, text: plain(&text), top: 0 };
                }
            }
            Change::Done { request, result } => {
                if self.asked.as_ref() == Some(&request) {
                    self.asked = None;
                }
                let is_failure = result.is_err();
                let (Ok(text) | Err(text)) = result;
                // A long refusal is shown in full, with its remedy.
                if is_failure && text.chars().count() > self.columns && matches!(self.mode, Mode::Browse) {
                    self.mode = Mode::Text { title: "Not done".to_owned(), text: plain(&text), top: 0 };
                } else {
                    self.say(&text, is_failure);
                }
            }
        }
    }

    fn say(&mut self, text: &str, is_failure: bool) {
        self.message = Some(Message { text: plain(text).replace('\n', " "), is_failure, since: self.now });
    }

    /// A key was pressed.
    pub fn handle(&mut self, key: Key) -> Vec<Action> {
        match key {
            Key::Interrupt => return vec![Action::Quit],
            Key::Suspend => return vec![Action::Suspend],
            Key::Redraw => return vec![Action::Redraw],
            _ => self.message = None,
        }
        match std::mem::take(&mut self.mode) {
            Mode::Browse => self.browse(key),
            Mode::Help => Vec::new(),
            Mode::Filter => {
                self.type_filter(key);
                Vec::new()
            }
            Mode::Text { title, text, top } => {
                self.mode = Mode::Text { title, text, top };
                self.read(key, top);
                Vec::new()
            }
            Mode::Confirm { question, request } => self.confirm(key, question, request),
            Mode::DrainReason { node, reason } => self.type_reason(key, node, reason),
        }
    }

    fn browse(&mut self, key: Key) -> Vec<Action> {
        match key {
            Key::Char('q') => return vec![Action::Quit],
            Key::Char('?') => self.mode = Mode::Help,
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Escape => {
                self.filter.clear();
                self.asked = None;
            }
            Key::Tab => self.tab = self.tab.shifted(1),
            Key::BackTab => self.tab = self.tab.shifted(Tab::ALL.len() - 1),
            Key::Char(c @ '1'..='4') => self.tab = Tab::ALL[c as usize - '1' as usize],
            Key::Up | Key::Char('k') => self.select(|at, _| at.saturating_sub(1)),
            Key::Down | Key::Char('j') => self.select(|at, _| at + 1),
            Key::PageUp => self.select(usize::saturating_sub),
            Key::PageDown => self.select(|at, page| at + page),
            Key::Home => self.select(|_, _| 0),
            Key::End => self.select(|_, _| usize::MAX),
            Key::Char('s') => self.sort(),
            Key::Char('a') => {
                self.all_users = !self.all_users;
                // The old rows are of other users than the screen now says.
                self.snapshot.work.value.allocations.clear();
                self.say(if self.all_users { "work of all users" } else { "your own work" }, false);
                return vec![Action::ShowUsers { all: self.all_users }];
            }
            Key::Char('e') => return self.ask_about_work(Request::Explain),
            Key::Enter if self.selects_node() => self.show_node(),
            Key::Enter => return self.ask_about_work(Request::Details),
            Key::Char('c') => self.ask_to_cancel(),
            Key::Char('d') => match self.selected_node() {
                Some(node) => self.mode = Mode::DrainReason { node, reason: String::new() },
                None => self.say("select a node first: 2 shows them", true),
            },
            Key::Char('u') => match self.selected_node() {
                Some(node) => {
                    let question = format!("Lift the drain of node {node}?");
                    self.mode = Mode::Confirm { question, request: Request::Undrain(node) };
                }
                None => self.say("select a node first: 2 shows them", true),
            },
            Key::Char(_) | Key::Backspace | Key::Interrupt | Key::Suspend | Key::Redraw => {}
        }
        Vec::new()
    }

    /// Moves the selection. `to`: from the selected place and the length of a page to the new place.
    fn select(&mut self, to: impl Fn(usize, usize) -> usize) {
        let rows = self.list().rows;
        if let Some(at) = self.selected(&rows) {
            let at = to(at, self.page_len()).min(rows.len() - 1);
            self.cursors[self.tab as usize] = Cursor { key: rows[at].key.clone(), at };
        }
    }

    /// The key of the selected row, which stays selected from now on; empty: there is none.
    fn selected_key(&mut self) -> String {
        self.select(|at, _| at);
        let rows = self.list().rows;
        self.selected(&rows).map(|at| rows[at].key.clone()).unwrap_or_default()
    }

    fn selected_node(&mut self) -> Option<String> {
        let key = self.selected_key();
        self.snapshot.nodes.value.nodes.iter().any(|node| node.id == key).then_some(key)
    }

    fn selects_node(&mut self) -> bool {
        self.selected_node().is_some()
    }

    fn selected_work(&mut self) -> Option<String> {
        let key = self.selected_key();
        self.snapshot.work.value.allocations.iter().any(|a| a.id == key).then_some(key)
    }

    fn ask_about_work(&mut self, request: impl Fn(String) -> Request) -> Vec<Action> {
        let Some(id) = self.selected_work() else {
            self.say("select an allocation first: 1 shows the queue", true);
            return Vec::new();
        };
        let request = request(id);
        self.asked = Some(request.clone());
        vec![Action::Ask(request)]
    }

    fn ask_to_cancel(&mut self) {
        let id = self.selected_work();
        match id.and_then(|id| self.snapshot.work.value.allocations.iter().find(|a| a.id == id)) {
            Some(a) => {
                let question = format!("Cancel {} {} of {}?", short(&a.id), shortened(&a.name, 24), shortened(&a.owner, 16));
                self.mode = Mode::Confirm { question: plain(&question), request: Request::Cancel(a.id.clone()) };
            }
            None => self.say("select an allocation first: 1 shows the queue", true),
        }
    }

    fn show_node(&mut self) {
        let key = self.selected_key();
        if let Some(node) = self.snapshot.nodes.value.nodes.iter().find(|node| node.id == key) {
            let text = node_details(node);
            self.mode = Mode::Text { title: format!("Node {key}"), text: plain(&text), top: 0 };
        }
    }

    fn sort(&mut self) {
        let text = match self.tab {
            Tab::Queue => {
                self.queue_order = self.queue_order.next();
                self.queue_order.text()
            }
            Tab::Nodes => {
                self.node_order = self.node_order.next();
                self.node_order.text()
            }
            Tab::Usage | Tab::Alerts => "this list has one order only",
        };
        self.say(text, false);
    }

    fn type_filter(&mut self, key: Key) {
        self.mode = Mode::Filter;
        match key {
            Key::Enter => self.mode = Mode::Browse,
            Key::Escape => {
                self.filter.clear();
                self.mode = Mode::Browse;
            }
            Key::Backspace => {
                self.filter.pop();
            }
            Key::Char(c) if self.filter.len() + c.len_utf8() <= FILTER_BYTES_MAX => self.filter.push(c),
            Key::Up => self.select(|at, _| at.saturating_sub(1)),
            Key::Down => self.select(|at, _| at + 1),
            _ => {}
        }
    }

    fn read(&mut self, key: Key, at: usize) {
        let page = self.text_page_len();
        let last = self.text_lines().len().saturating_sub(page);
        let to = match key {
            Key::Escape | Key::Enter | Key::Char('q' | 'e') => {
                self.mode = Mode::Browse;
                return;
            }
            Key::Up | Key::Char('k') => at.saturating_sub(1),
            Key::Down | Key::Char('j') => at + 1,
            Key::PageUp => at.saturating_sub(page),
            Key::PageDown | Key::Char(' ') => at + page,
            Key::Home => 0,
            Key::End => last,
            _ => at,
        };
        if let Mode::Text { top, .. } = &mut self.mode {
            *top = to.min(last);
        }
    }

    fn confirm(&mut self, key: Key, question: String, request: Request) -> Vec<Action> {
        match key {
            Key::Char('y' | 'Y') => {
                self.asked = Some(request.clone());
                return vec![Action::Ask(request)];
            }
            Key::Char('n' | 'N' | 'q') | Key::Escape => self.say("nothing was done", false),
            _ => self.mode = Mode::Confirm { question, request },
        }
        Vec::new()
    }

    fn type_reason(&mut self, key: Key, node: String, mut reason: String) -> Vec<Action> {
        match key {
            Key::Escape => {
                self.say("nothing was done", false);
                return Vec::new();
            }
            Key::Enter if !reason.trim().is_empty() => {
                let request = Request::Drain { node, reason: reason.trim().to_owned() };
                self.asked = Some(request.clone());
                return vec![Action::Ask(request)];
            }
            Key::Backspace => {
                reason.pop();
            }
            Key::Char(c) if reason.len() + c.len_utf8() <= REASON_BYTES_MAX => reason.push(c),
            _ => {}
        }
        self.mode = Mode::DrainReason { node, reason };
        Vec::new()
    }
}
