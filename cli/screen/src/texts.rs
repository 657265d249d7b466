//! The lines around the lists: header, status and keys.

use super::columns::Tone;
use super::events::{Mode, Request, Tab};
use super::lists::is_ready;
use super::model::Screen;
use lattice_cli_session::shown::{filled, short};
use lattice_model::count::counted;
use lattice_model::time::Timestamp;

/// The texts of the two header lines: left and right part each.
pub fn header(screen: &Screen) -> [(String, String); 2] {
    let work = screen.snapshot.work.at.map(|_| &screen.snapshot.work.value);
    let cluster = work.and_then(|work| filled(&work.quorum.cluster)).unwrap_or("?");
    let first = format!("Lattice {cluster}   {}", quorum_text(screen));
    let list = &screen.snapshot.nodes.value.nodes;
    let second = match screen.snapshot.nodes.at {
        None => "waiting for the agent".to_owned(),
        Some(_) => {
            let ready = list.iter().filter(|node| is_ready(node)).count();
            let total = |of: fn(&lattice_api::v1::Node) -> u64| list.iter().map(of).sum::<u64>();
            // An agent of role `node` does not know what runs elsewhere.
            let is_known = list.iter().all(|node| node.committed.is_some());
            let used = |of: fn(&lattice_api::v1::Node) -> u64| if is_known { total(of).to_string() } else { "?".to_owned() };
            let (cores, gpus) = (total(|node| node.cores.into()), total(|node| node.gpus.into()));
            let used_cores = used(|node| node.committed.map_or(0, |used| used.cores.into()));
            let used_gpus = used(|node| node.committed.map_or(0, |used| used.gpus.into()));
            let mut text = format!("nodes {ready}/{} Ready   cores {used_cores}/{cores}", list.len());
            if gpus > 0 {
                text.push_str(&format!("   GPUs {used_gpus}/{gpus}"));
            }
            if let Some(work) = work {
                let sum = |of: fn(&lattice_api::v1::VCluster) -> u32| work.vclusters.iter().map(|v| u64::from(of(v))).sum::<u64>();
                text.push_str(&format!("   running {}   pending {}", sum(|v| v.running), sum(|v| v.pending)));
            }
            text
        }
    };
    let users = if screen.all_users { "all users" } else { "own work" };
    [(first, clock(screen.now)), (second, users.to_owned())]
}

/// Hours, minutes and seconds of a time, in UTC.
fn clock(at: Timestamp) -> String {
    let text = at.to_string();
    format!("{} UTC", text.get(11..19).unwrap_or(&text))
}

fn quorum_text(screen: &Screen) -> String {
    if !screen.snapshot.nodes.value.quorum_error.is_empty() {
        return "the quorum does not answer".to_owned();
    }
    if screen.snapshot.work.at.is_none() {
        return String::new();
    }
    let quorum = &screen.snapshot.work.value.quorum;
    let members = counted(quorum.members.len(), "member");
    match quorum.leader {
        Some(leader) => format!("quorum of {members}, led by {leader}"),
        None => format!("quorum of {members}, no leader is known"),
    }
}

/// The names of the tabs, as they are shown.
pub fn tab_title(screen: &Screen, tab: Tab) -> String {
    let number = tab as usize + 1;
    let alerts = if tab == Tab::Alerts { screen.alerts_count() } else { 0 };
    if alerts > 0 { format!(" {number} {} ({alerts}) ", tab.name()) } else { format!(" {number} {} ", tab.name()) }
}

/// The status line: first what is wrong, then the answer to the user, then what is shown.
pub fn status_line(screen: &Screen) -> (String, Tone) {
    let age = screen.stale_seconds().map(|age| format!("; this is {age} s old")).unwrap_or_default();
    match &screen.mode {
        Mode::Filter => return (format!("filter: {}_", screen.filter), Tone::Plain),
        Mode::Confirm { question, .. } => return (format!("{question} [y/n]"), Tone::Waits),
        Mode::DrainReason { node, reason } => return (format!("Why is {node} drained? {reason}_"), Tone::Waits),
        Mode::Browse | Mode::Help | Mode::Text { .. } => {}
    }
    if let Some(message) = &screen.message {
        return (message.text.clone(), if message.is_failure { Tone::Bad } else { Tone::Plain });
    }
    if let Some(why) = &screen.lost {
        return (format!("no refresh, trying again{age}: {why}"), Tone::Bad);
    }
    if let Some(asked) = &screen.asked {
        return (asked_text(asked), Tone::Plain);
    }
    if !age.is_empty() {
        // The agent may be slow, or the next refresh waits because the last one took long.
        return (format!("refreshes take long{age}"), Tone::Bad);
    }
    let quorum_error = &screen.snapshot.nodes.value.quorum_error;
    if !quorum_error.is_empty() {
        return (format!("states come from gossip, work is not shown: {quorum_error}"), Tone::Bad);
    }
    let mut texts = Vec::new();
    if !screen.filter.is_empty() {
        texts.push(format!("filter: {} (Esc clears it)", screen.filter));
    }
    if screen.tab == Tab::Queue && screen.snapshot.work.value.more {
        texts.push(format!("the newest {} are shown", screen.snapshot.work.value.allocations.len()));
    }
    (texts.join("; "), Tone::Plain)
}

fn asked_text(asked: &Request) -> String {
    match asked {
        Request::Explain(id) => format!("asking why {} is as it is", short(id)),
        Request::Details(id) => format!("asking about {}", short(id)),
        Request::Cancel(id) => format!("cancelling {}", short(id)),
        Request::Drain { node, .. } => format!("draining {node}"),
        Request::Undrain(node) => format!("lifting the drain of {node}"),
    }
}

/// The text that is shown instead of rows.
pub fn empty_text(screen: &Screen) -> &'static str {
    let is_waiting = screen.reported_at().is_none() || screen.snapshot.work.value.all_users != screen.all_users;
    match screen.tab {
        _ if is_waiting => "waiting for the agent",
        _ if !screen.filter.is_empty() => "nothing matches the filter",
        Tab::Queue => "no work waits or runs",
        Tab::Nodes => "no node is registered",
        Tab::Usage => "nothing was used",
        Tab::Alerts => "nothing needs attention",
    }
}

/// The most useful keys, on one line of 80 characters.
pub fn keys_line(screen: &Screen) -> &'static str {
    match (&screen.mode, screen.tab) {
        (Mode::Browse, Tab::Queue) => "e explain  Enter details  c cancel  a users  s sort  / filter  Tab next  ? q",
        (Mode::Browse, Tab::Nodes) => "d drain  u undrain  Enter details  s sort  / filter  Tab next  ? help  q quit",
        (Mode::Browse, Tab::Usage | Tab::Alerts) => "/ filter  Tab next  ? help  q quit",
        (Mode::Filter, _) => "Enter keeps the filter  Esc clears it",
        (Mode::Help, _) => "any key goes back",
        (Mode::Text { .. }, _) => "j k PgUp PgDn move  Esc goes back",
        (Mode::Confirm { .. }, _) => "y yes  n no",
        (Mode::DrainReason { .. }, _) => "Enter drains the node  Esc does nothing",
    }
}

/// The text of `?`.
pub const HELP: &str = "\
Tab, 1 2 3 4     the next list; queue, nodes, usage, alerts
j k, arrows      select a row; PgUp, PgDn, Home and End too
/                filter by name, owner, state, vCluster, node; Esc clears it
e                explain the selected work: why it waits, or how it runs
Enter            all about the selected work or node
c                cancel the selected work
d                drain the selected node, for operators
u                lift its drain
a                the work of all users, or only your own
s                sort in another order
Ctrl-Z, Ctrl-L   stop this program; draw anew
q                quit

Cores and GPUs are those that belong to work. Alerts are what nodes, the
quorum, running work and budgets report.";
