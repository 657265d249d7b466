//! The plan of a queue as a chart: a line for each allocation, and time from left to right.
//!
//! ```text
//!   ID        NAME   NODES  now         +1h         +2h         +3h
//!   1f0c9a4e  large  4      =================
//!   20000000  next   8                       -----------
//! ```
//!
//! The axis has a round step, and each cell of a line is a twelfth of it.

use lattice_cli_session::table::{NOTHING, one_line, shortened};
use lattice_model::time::Timestamp;

/// Characters of a line.
pub const LINE_CHARS_MAX: usize = 80;
const NAME_CHARS_MAX: usize = 12;

const RUNS: &str = "=";
const PLANNED: &str = "-";
const CONTINUES: &str = ">";
const LEGEND: &str = "= runs, - is planned, > goes on or has no end; a text: why no start is known\n";

const MINUTE_MS: u64 = 60_000;
const DAY_MINUTES: u64 = 24 * 60;
const CELLS_PER_STEP: usize = 12;
/// The steps of an axis. With the last one, a chart has more than a year, which is the longest walltime.
const STEPS_MINUTES: [u64; 17] = [
    5,
    10,
    15,
    30,
    60,
    2 * 60,
    3 * 60,
    6 * 60,
    12 * 60,
    DAY_MINUTES,
    2 * DAY_MINUTES,
    5 * DAY_MINUTES,
    10 * DAY_MINUTES,
    20 * DAY_MINUTES,
    50 * DAY_MINUTES,
    100 * DAY_MINUTES,
    STEP_MINUTES_MAX,
];
const STEP_MINUTES_MAX: u64 = 200 * DAY_MINUTES;

/// What runs in a queue, and what is planned.
#[derive(Default)]
pub struct Plan {
    pub now: Timestamp,
    /// Work that runs, and then work that waits, in the order of the chart.
    pub rows: Vec<Row>,
    /// How many further allocations run and wait without a row.
    pub running_left_out: usize,
    pub waiting_left_out: usize,
}

/// One allocation.
pub struct Row {
    /// The short id.
    pub id: String,
    /// Empty if the site hides it.
    pub name: String,
    /// How many nodes it has or asks for.
    pub nodes: String,
    pub span: Span,
}

/// When an allocation has its nodes, in milliseconds since 1970. Without `end_ms` it has no walltime.
pub enum Span {
    Runs {
        end_ms: Option<u64>,
    },
    Planned {
        start_ms: u64,
        end_ms: Option<u64>,
    },
    /// When it starts is not known, for this reason.
    Unknown {
        reason: String,
    },
}

impl Plan {
    /// The chart, in lines of at most [`LINE_CHARS_MAX`] characters.
    pub fn chart(&self) -> String {
        if self.rows.is_empty() {
            return "nothing runs and nothing waits\n".to_owned();
        }
        let heading = ["ID", "NAME", "NODES"].map(str::to_owned);
        let labels: Vec<[String; 3]> = self.rows.iter().map(Row::labels).collect();
        let width = |column: usize| std::iter::once(&heading).chain(&labels).map(|label| label[column].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2)];
        let cells = LINE_CHARS_MAX.saturating_sub(widths.iter().map(|width| width + 2).sum::<usize>()).max(1);
        let axis = Axis::of(self, cells);
        let line = |label: &[String; 3], last: &str| {
            let label: String = label.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
            format!("{}\n", (label + last).trim_end())
        };
        let mut text = line(&heading, &axis.heading());
        for (label, row) in labels.iter().zip(&self.rows) {
            text.push_str(&line(label, &axis.drawn(&row.span)));
        }
        text + &self.left_out() + LEGEND
    }

    fn left_out(&self) -> String {
        match (self.running_left_out, self.waiting_left_out) {
            (0, 0) => String::new(),
            (running, 0) => format!("… and {running} more running\n"),
            (0, waiting) => format!("… and {waiting} more waiting\n"),
            (running, waiting) => format!("… and {running} more running, {waiting} more waiting\n"),
        }
    }
}

impl Row {
    fn labels(&self) -> [String; 3] {
        let name = shortened(&one_line(&self.name), NAME_CHARS_MAX);
        let name = if name.is_empty() { NOTHING.to_owned() } else { name };
        [self.id.clone(), name, self.nodes.clone()]
    }
}

/// The time axis.
struct Axis {
    now_ms: u64,
    step_minutes: u64,
    /// The length of a line; at least 1.
    cells: usize,
}

impl Axis {
    /// Has the shortest step with which the last end of running work and the last expected start are on the chart.
    fn of(plan: &Plan, cells: usize) -> Self {
        let now_ms = plan.now.0;
        let shown_ms = plan.rows.iter().filter_map(|row| match &row.span {
            Span::Runs { end_ms } => *end_ms,
            Span::Planned { start_ms, .. } => Some(*start_ms),
            Span::Unknown { .. } => None,
        });
        let last_ms = shown_ms.max().unwrap_or(now_ms);
        let with = |step_minutes| Self { now_ms, step_minutes, cells };
        let shortest = STEPS_MINUTES.into_iter().map(with).find(|axis| axis.cell_of(last_ms) < cells);
        shortest.unwrap_or_else(|| with(STEP_MINUTES_MAX))
    }

    fn cell_ms(&self) -> u64 {
        self.step_minutes * MINUTE_MS / CELLS_PER_STEP as u64
    }

    /// The cell of a time, from 0; a time in the past is in the first cell.
    fn cell_of(&self, at_ms: u64) -> usize {
        usize::try_from(at_ms.saturating_sub(self.now_ms) / self.cell_ms()).unwrap_or(usize::MAX)
    }

    /// How many cells there are until a time, including the cell of the time.
    fn cells_until(&self, at_ms: u64) -> usize {
        usize::try_from(at_ms.saturating_sub(self.now_ms).div_ceil(self.cell_ms())).unwrap_or(usize::MAX)
    }

    /// `now`, and the time since then at each step.
    fn heading(&self) -> String {
        let mut text = "now".to_owned();
        let mut at = CELLS_PER_STEP;
        let mut minutes = self.step_minutes;
        loop {
            let label = step_label(minutes, self.step_minutes);
            if at + label.len() > self.cells {
                return text;
            }
            text = format!("{text:at$}{label}");
            at += CELLS_PER_STEP;
            minutes += self.step_minutes;
        }
    }

    fn drawn(&self, span: &Span) -> String {
        match span {
            Span::Runs { end_ms } => self.bar(self.now_ms, *end_ms, RUNS),
            Span::Planned { start_ms, end_ms } => self.bar(*start_ms, *end_ms, PLANNED),
            Span::Unknown { reason } => shortened(&one_line(reason), self.cells),
        }
    }

    /// A bar has at least one cell. A bar that is longer than the chart, or has no end, ends in [`CONTINUES`].
    fn bar(&self, start_ms: u64, end_ms: Option<u64>, fill: &str) -> String {
        let start = self.cell_of(start_ms);
        let end = end_ms.map(|end_ms| self.cells_until(end_ms).max(start.saturating_add(1)));
        let first = start.min(self.cells - 1);
        let (end, continues) = match end {
            Some(end) if end <= self.cells => (end, ""),
            Some(_) | None => (self.cells - 1, CONTINUES),
        };
        format!("{}{}{continues}", " ".repeat(first), fill.repeat(end - first))
    }
}

/// A time since now, in the unit of the step: `+45m`, `+1h30m`, `+36h`, `+2d`.
fn step_label(minutes: u64, step_minutes: u64) -> String {
    let (hours, rest) = (minutes / 60, minutes % 60);
    match (hours, rest) {
        _ if step_minutes >= DAY_MINUTES => format!("+{}d", minutes / DAY_MINUTES),
        (0, rest) => format!("+{rest}m"),
        (hours, 0) => format!("+{hours}h"),
        (hours, rest) => format!("+{hours}h{rest:02}m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_772_704_812_034);
    const HOUR: u64 = 60 * MINUTE_MS;
    const YEAR: u64 = 365 * 24 * HOUR;

    fn row(id: &str, name: &str, nodes: &str, span: Span) -> Row {
        Row { id: id.to_owned(), name: name.to_owned(), nodes: nodes.to_owned(), span }
    }

    /// `end` and `start` are milliseconds from now on.
    fn runs(end: u64) -> Span {
        Span::Runs { end_ms: Some(NOW.0 + end) }
    }

    fn planned(start: u64, walltime: u64) -> Span {
        Span::Planned { start_ms: NOW.0 + start, end_ms: Some(NOW.0 + start + walltime) }
    }

    fn chart(rows: Vec<Row>) -> String {
        let text = Plan { now: NOW, rows, ..Plan::default() }.chart();
        assert!(text.lines().all(|line| line.chars().count() <= LINE_CHARS_MAX), "{text}");
        text
    }

    #[test]
    fn running_and_planned_work_have_bars_and_other_work_has_its_reason() {
        let rows = vec![
            row("1f0c9a4e", "training-run-7", "3", runs(90 * MINUTE_MS)),
            row("2a000000", "serve", "1", Span::Runs { end_ms: None }),
            row("3b000000", "large", "2-8", planned(90 * MINUTE_MS, HOUR)),
            row("4c000000", "after it", "4", planned(150 * MINUTE_MS, 48 * HOUR)),
            row("5d000000", "", "64", Span::Unknown { reason: "quota: 4 of 4 nodes of tenant\nphysics used".to_owned() }),
        ];
        let want = "\
ID        NAME          NODES  now         +1h         +2h         +3h
1f0c9a4e  training-ru…  3      ==================
2a000000  serve         1      ================================================>
3b000000  large         2-8                      ------------
4c000000  after it      4                                    ------------------>
5d000000  —             64     quota: 4 of 4 nodes of tenant physics used
… and 3 more running, 12 more waiting
= runs, - is planned, > goes on or has no end; a text: why no start is known
";
        let plan = Plan { now: NOW, rows, running_left_out: 3, waiting_left_out: 12 };
        assert_eq!(plan.chart(), want);
        assert!(want.lines().all(|line| line.chars().count() <= LINE_CHARS_MAX));
        assert_eq!(Plan { running_left_out: 1, ..Plan::default() }.left_out(), "… and 1 more running\n");
        assert_eq!(Plan { waiting_left_out: 1, ..Plan::default() }.left_out(), "… and 1 more waiting\n");
    }

    #[test]
    fn a_queue_without_work_has_no_chart() {
        assert_eq!(chart(vec![]), "nothing runs and nothing waits\n");
    }

    #[test]
    fn a_year_is_on_the_chart_and_what_is_later_is_at_its_edge() {
        let rows = vec![
            row("1f0c9a4e", "a", "1", runs(YEAR)),
            row("20000000", "b", "1", planned(5 * YEAR, YEAR)),
            row("30000000", "c", "1", planned(YEAR, HOUR)),
        ];
        let want = "\
ID        NAME  NODES  now         +200d       +400d       +600d       +800d
1f0c9a4e  a     1      ======================
20000000  b     1                                                              >
30000000  c     1                           -
= runs, - is planned, > goes on or has no end; a text: why no start is known
";
        assert_eq!(chart(rows), want);
        let endless = Span::Planned { start_ms: u64::MAX, end_ms: Some(u64::MAX) };
        assert!(chart(vec![row("1f0c9a4e", "a", "1", endless)]).contains(" >\n"));
    }

    #[test]
    fn a_service_alone_has_the_shortest_axis() {
        let want = "\
ID        NAME   NODES  now         +5m         +10m        +15m        +20m
1f0c9a4e  serve  1      =======================================================>
= runs, - is planned, > goes on or has no end; a text: why no start is known
";
        assert_eq!(chart(vec![row("1f0c9a4e", "serve", "1", Span::Runs { end_ms: None })]), want);
    }

    #[test]
    fn work_that_should_have_ended_has_one_cell() {
        let overdue = Span::Runs { end_ms: Some(NOW.0 - HOUR) };
        let want = "\
ID        NAME     NODES  now         +5m         +10m        +15m        +20m
1f0c9a4e  overdue  1      =
20000000  next     1      -----
= runs, - is planned, > goes on or has no end; a text: why no start is known
";
        assert_eq!(chart(vec![row("1f0c9a4e", "overdue", "1", overdue), row("20000000", "next", "1", planned(0, 2 * MINUTE_MS))]), want);
    }

    #[test]
    fn the_steps_are_round_and_each_end_is_on_the_chart() {
        for (end_minutes, heading) in HEADINGS {
            let text = chart(vec![row("1f0c9a4e", "training-run", "3", runs(end_minutes * MINUTE_MS))]);
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[0], format!("ID        NAME          NODES  {heading}"), "{end_minutes} minutes");
            assert!(lines[1].ends_with('='), "{end_minutes} minutes: {text}");
        }
    }

    /// By the minutes until the end of the work.
    const HEADINGS: [(u64, &str); 9] = [
        (3, "now         +5m         +10m        +15m"),
        (40, "now         +10m        +20m        +30m"),
        (100, "now         +30m        +1h         +1h30m"),
        (300, "now         +2h         +4h         +6h"),
        (500, "now         +3h         +6h         +9h"),
        (1000, "now         +6h         +12h        +18h"),
        (2000, "now         +12h        +24h        +36h"),
        (20_000, "now         +5d         +10d        +15d"),
        (100_000, "now         +20d        +40d        +60d"),
    ];

    #[test]
    fn long_labels_and_reasons_leave_no_line_too_long() {
        let reason = Span::Unknown { reason: "é".repeat(200) };
        let wide = row("1f0c9a4e", &"é".repeat(200), "4294967294-4294967295", reason);
        let text = chart(vec![wide, row("20000000", "b", "1", runs(17 * HOUR)), row("30000000", "c", "1", planned(HOUR, YEAR))]);
        assert!(text.contains("éééé…") && text.contains("--->\n"), "{text}");
    }
}
