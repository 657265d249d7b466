//! The whole screen: exact text, and what keys do.

use super::columns::Tone;
use super::draw::draw;
use super::events::{Action, Change, Mode, Request, Tab};
use super::keys::{Key, KeyParser};
use super::model::Screen;
use super::snapshot::{NodeList, OwnUsage, Work};
use super::texts::status_line;
use lattice_api::json::UsageOf;
use lattice_api::v1;
use lattice_model::time::Timestamp;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

const NOW: Timestamp = Timestamp(1_772_704_812_000);
const HOUR_MS: u64 = 3_600_000;

fn node(id: &str, state: &str, committed: v1::Amount) -> v1::Node {
    v1::Node {
        id: id.into(),
        state: state.into(),
        cores: 64,
        memory_bytes: 512 << 30,
        gpus: 4,
        committed: Some(committed),
        schedulable: true,
        gossip: "alive".into(),
        ..Default::default()
    }
}

fn nodes() -> NodeList {
    let mut busy = node("n1", "Ready", v1::Amount { cores: 32, memory_bytes: 128 << 30, gpus: 2 });
    busy.allocations = vec!["1f0c9a4e-5b7d".into()];
    let mut draining = node("n2", "Draining", v1::Amount::default());
    draining.holds = vec!["drain by root since 2026: fan".into()];
    NodeList { nodes: vec![busy, draining], quorum_error: String::new() }
}

fn work() -> Work {
    let running = v1::Allocation {
        id: "1f0c9a4e-5b7d".into(),
        number: 12,
        name: "train".into(),
        owner: "ada".into(),
        state: "Running".into(),
        nodes: vec!["n1".into()],
        nodes_requested: 1,
        walltime_seconds: 7200,
        submitted_at_ms: NOW.0 - HOUR_MS,
        claimed_at_ms: NOW.0 - HOUR_MS,
        started_at_ms: NOW.0 - HOUR_MS,
        ..Default::default()
    };
    let waiting = v1::Allocation {
        id: "20000000-5b7d".into(),
        number: 13,
        name: "eval".into(),
        owner: "bob".into(),
        state: "Pending".into(),
        nodes_requested: 4,
        walltime_seconds: 7200,
        submitted_at_ms: NOW.0,
        queue_position: 1,
        status_message: "next: wants 4 nodes, 2 are free".into(),
        ..Default::default()
    };
    let default = v1::VCluster { name: "default".into(), scheduler: "hpc-backfill".into(), running: 1, pending: 1, ..Default::default() };
    let member = v1::quorum_status_response::Member { id: 1, votes: true, ..Default::default() };
    let quorum = v1::QuorumStatusResponse { cluster: "lab".into(), leader: Some(1), members: vec![member], ..Default::default() };
    Work { allocations: vec![running, waiting], more: false, all_users: true, vclusters: vec![default], quorum }
}

fn screen() -> Screen {
    let mut screen = Screen::new(NOW, 2000);
    screen.apply(Change::Nodes(NOW, nodes()));
    screen.apply(Change::Work(NOW, Box::new(work())));
    let usage = v1::Usage { name: "ada".into(), days: 90, node_ms: HOUR_MS * 3 / 2, gpu_ms: HOUR_MS, ..Default::default() };
    screen.apply(Change::Usage(NOW, vec![OwnUsage { of: UsageOf::User, usage }]));
    screen
}

/// The lines of the screen, without blanks at their ends.
fn shown(screen: &mut Screen, columns: u16, rows: u16) -> Vec<String> {
    screen.apply(Change::Size { columns, rows });
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| draw(screen, false, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    assert!(buffer.content().iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset), "no colours were wanted");
    let lines = buffer.content().chunks(usize::from(columns));
    lines.map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned()).collect()
}

/// The same without blank lines.
fn filled_lines(screen: &mut Screen, columns: u16, rows: u16) -> Vec<String> {
    shown(screen, columns, rows).into_iter().filter(|line| !line.is_empty()).collect()
}

fn types(screen: &mut Screen, keys: &str) -> Vec<Action> {
    KeyParser::default().feed(keys.as_bytes()).into_iter().flat_map(|key| screen.handle(key)).collect()
}

#[test]
fn the_queue_on_80_columns() {
    let shown = shown(&mut screen(), 80, 24);
    let top = [
        "Lattice lab   quorum of 1 member, led by 1                          10:00:12 UTC",
        "nodes 1/2 Ready   cores 32/128   GPUs 2/8   running 1   pending 1      all users",
        " 1 Queue  2 Nodes  3 Usage  4 Alerts (1)",
        "JOB  ID        NAME   OWNER  STATE    NODES  LEFT      ON  REASON",
        "12   1f0c9a4e  train  ada    Running  1      01:00:00  n1",
        "13   20000000  eval   bob    Pending  4      02:00:00      next: wants 4 nodes,…",
    ];
    assert_eq!(shown[..6], top);
    assert!(shown[6..23].iter().all(String::is_empty), "{shown:?}");
    assert_eq!(shown[23], "e explain  Enter details  c cancel  a users  s sort  / filter  Tab next  ? q");
}

#[test]
fn each_list_on_a_large_and_on_a_small_screen() {
    let mut screen = screen();
    let large = shown(&mut screen, 200, 60);
    let right = |left: &str, right: &str| format!("{left}{right:>width$}", width = 200 - left.len());
    let want = [
        right("Lattice lab   quorum of 1 member, led by 1", "10:00:12 UTC"),
        right("nodes 1/2 Ready   cores 32/128   GPUs 2/8   running 1   pending 1", "all users"),
        " 1 Queue  2 Nodes  3 Usage  4 Alerts (1)".to_owned(),
        "JOB  ID        NAME   OWNER  STATE    NODES  LEFT      VCLUSTER  ON  REASON".to_owned(),
        "12   1f0c9a4e  train  ada    Running  1      01:00:00  default   n1".to_owned(),
        "13   20000000  eval   bob    Pending  4      02:00:00  default       next: wants 4 nodes, 2 are free".to_owned(),
    ];
    assert_eq!((large[..6].to_vec(), large.len()), (want.to_vec(), 60));
    let mut rows = |key: &str| {
        assert!(types(&mut screen, key).is_empty());
        let lines = filled_lines(&mut screen, 80, 24);
        lines[3..lines.len() - 1].to_vec()
    };
    let want = [
        "NODE  STATE     CORES  MEMORY           GPUS  WORK  GOSSIP  REASON",
        "n1    Ready     32/64  128 GiB/512 GiB  2/4   1     alive",
        "n2    Draining  0/64   0/512 GiB        0/4         alive   drain by root since…",
    ];
    assert_eq!(rows("2"), want);
    let want = [
        "OF                RUNNING  PENDING  DAYS  NODE-HOURS  GPU-HOURS  SCHEDULER",
        "user ada                            90    1.50        1.00",
        "vCluster default  1        1                                     hpc-backfill",
    ];
    assert_eq!(rows("\t"), want);
    let want = ["ABOUT    WHAT", "node n2  is Draining; drain by root since 2026: fan (`lattice node undrain` lif…"];
    assert_eq!(rows("4"), want);
}

#[test]
fn colours_are_used_only_where_they_are_wanted() {
    let screen = screen();
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(&screen, true, frame)).unwrap();
    let colour = |y: u16| terminal.backend().buffer()[(0, y)].fg;
    assert_eq!([colour(0), colour(4), colour(5)], [Color::Reset, Color::Green, Color::Yellow]);
}

#[test]
fn a_filter_selects_rows_while_it_is_typed_and_stays_until_it_is_cleared() {
    let mut screen = screen();
    let ids = |screen: &Screen| screen.list().rows.iter().map(|row| row.cells[1].clone()).collect::<Vec<_>>();
    types(&mut screen, "/BOB");
    assert_eq!((ids(&screen), status_line(&screen).0.as_str()), (vec!["20000000".to_owned()], "filter: BOB_"));
    types(&mut screen, "\r");
    assert_eq!(status_line(&screen).0, "filter: BOB (Esc clears it)");
    for (filter, found) in [("n1", "1f0c9a4e"), ("12", "1f0c9a4e"), ("pending default", "20000000")] {
        types(&mut screen, "\x1b");
        types(&mut screen, &format!("/{filter}\r"));
        assert_eq!(ids(&screen), [found], "{filter}");
    }
    types(&mut screen, "/ xyz\r");
    assert!(filled_lines(&mut screen, 80, 24)[3].starts_with("nothing matches"));
    types(&mut screen, "\x1b");
    assert_eq!(ids(&screen).len(), 2);
}

#[test]
fn the_selected_row_stays_selected_when_the_list_changes() {
    let mut screen = screen();
    let id = "20000000-5b7d".to_owned();
    assert_eq!(types(&mut screen, "je"), [Action::Ask(Request::Explain(id.clone()))]);
    let mut other = work();
    other.allocations.reverse();
    screen.apply(Change::Work(NOW, Box::new(other)));
    assert_eq!(types(&mut screen, "\r"), [Action::Ask(Request::Details(id))]);
    screen.apply(Change::Work(NOW, Box::new(Work { all_users: true, ..Work::default() })));
    assert!(types(&mut screen, "e").is_empty(), "nothing is selected");
    assert_eq!(status_line(&screen), ("select an allocation first: 1 shows the queue".to_owned(), Tone::Bad));
}

#[test]
fn an_answer_opens_a_text_that_can_be_moved_unless_it_is_late() {
    let mut screen = screen();
    let request = Request::Explain("1f0c9a4e-5b7d".into());
    let lines: String = (1..=50).map(|line| format!("line {line}\n")).collect();
    let answer = |request: &Request| Change::Answered { request: request.clone(), title: "Explanation".into(), text: lines.clone() };
    types(&mut screen, "e");
    screen.apply(answer(&request));
    let shown = filled_lines(&mut screen, 80, 24);
    assert_eq!(shown[0], format!("Explanation{:>69}", "1-20 of 50"));
    assert_eq!((shown[1].as_str(), shown[20].as_str()), ("line 1", "line 20"));
    types(&mut screen, "\x1b[6~j");
    assert_eq!(filled_lines(&mut screen, 80, 24)[1], "line 22");
    types(&mut screen, "\x1b[F");
    assert_eq!(filled_lines(&mut screen, 80, 24)[20], "line 50");
    types(&mut screen, "q");
    assert!(matches!(screen.mode, Mode::Browse));
    types(&mut screen, "e");
    types(&mut screen, "\x1b");
    screen.apply(answer(&request));
    assert!(matches!(screen.mode, Mode::Browse), "the user does not wait for it any more");
}

#[test]
fn a_node_is_drained_with_a_reason_and_work_cancelled_after_a_question() {
    let mut screen = screen();
    assert!(types(&mut screen, "d").is_empty(), "no node is selected");
    assert!(types(&mut screen, "2jd\r bad fan\x7fn ").is_empty(), "a reason is needed, and is being typed");
    assert_eq!(status_line(&screen).0, "Why is n2 drained?  bad fan _");
    let request = Request::Drain { node: "n2".into(), reason: "bad fan".into() };
    assert_eq!(types(&mut screen, "\r"), [Action::Ask(request.clone())]);
    assert_eq!(status_line(&screen).0, "draining n2");
    let refusal = "only operators may drain a node; an operator's credential is needed: see `lattice whoami`".to_owned();
    screen.apply(Change::Done { request, result: Err(refusal) });
    assert!(matches!(&screen.mode, Mode::Text { text, .. } if text.ends_with("`lattice whoami`")), "a long refusal is shown whole");
    assert!(types(&mut screen, "qu").is_empty());
    assert_eq!(status_line(&screen).0, "Lift the drain of node n2? [y/n]");
    assert_eq!(types(&mut screen, "y"), [Action::Ask(Request::Undrain("n2".into()))]);
    assert!(types(&mut screen, "1c").is_empty());
    assert_eq!(status_line(&screen).0, "Cancel 1f0c9a4e train of ada? [y/n]");
    assert!(types(&mut screen, "xn").is_empty());
    assert_eq!(status_line(&screen).0, "nothing was done");
    assert_eq!(types(&mut screen, "cy"), [Action::Ask(Request::Cancel("1f0c9a4e-5b7d".into()))]);
}

#[test]
fn old_data_is_never_shown_as_new() {
    let mut screen = screen();
    screen.apply(Change::Lost("no agent answers".into()));
    screen.apply(Change::Tick(Timestamp(NOW.0 + 5000)));
    assert_eq!(status_line(&screen), ("no refresh, trying again: no agent answers".into(), Tone::Bad));
    screen.apply(Change::Tick(Timestamp(NOW.0 + 30_000)));
    assert_eq!(status_line(&screen).0, "no refresh, trying again; this is 30 s old: no agent answers");
    screen.apply(Change::Nodes(Timestamp(NOW.0 + 30_000), nodes()));
    assert_eq!(status_line(&screen).0, "refreshes take long; this is 30 s old", "the queue is old");
    types(&mut screen, "2");
    assert_eq!(status_line(&screen).0, "");
    screen.apply(Change::Nodes(Timestamp(NOW.0 + 30_000), NodeList { quorum_error: "no leader".into(), ..nodes() }));
    assert!(filled_lines(&mut screen, 80, 24)[0].contains("the quorum does not answer"));
    types(&mut screen, "1");
    assert_eq!(types(&mut screen, "a"), [Action::ShowUsers { all: false }]);
    assert!(screen.list().rows.is_empty(), "the work of others is not one's own");
    screen.apply(Change::Work(NOW, Box::new(work())));
    assert!(screen.list().rows.is_empty(), "a late answer");
    assert!(filled_lines(&mut screen, 80, 24)[3].starts_with("waiting for the agent"));
}

#[test]
fn keys_of_the_terminal_work_everywhere() {
    let mut screen = screen();
    for keys in ["", "/", "?", "2d"] {
        types(&mut screen, keys);
        assert_eq!(screen.handle(Key::Interrupt), [Action::Quit]);
        assert_eq!(screen.handle(Key::Suspend), [Action::Suspend]);
        types(&mut screen, "\x1b");
    }
    assert_eq!(types(&mut screen, "q"), [Action::Quit]);
    types(&mut screen, "?");
    assert!(filled_lines(&mut screen, 80, 24).iter().all(|line| line.chars().count() <= 80));
    types(&mut screen, "x\x1b[Z\x1b[Z");
    assert_eq!(screen.tab, Tab::Alerts, "Shift-Tab goes back from the nodes");
}

#[test]
fn a_screen_of_any_size_is_drawn() {
    let mut screen = screen();
    for (columns, rows) in [(1, 1), (3, 2), (20, 5), (500, 6)] {
        for keys in ["1", "2", "3", "4", "?", "q"] {
            types(&mut screen, keys);
            assert_eq!(shown(&mut screen, columns, rows).len(), usize::from(rows));
        }
    }
}
