//! Aligned columns, and blocks of `Label:  value`.

use crate::colour;
use crate::output::{TableSize, Width};

/// Shown for an empty cell.
pub const NOTHING: &str = "—";

/// Before further lines of an [`entry`].
const CONTINUED: &str = "    ";
/// The least characters of a line of an [`entry`].
const ENTRY_LEAST: usize = 24;
/// The least characters of a column on a narrow screen.
const COLUMN_LEAST: usize = 6;

/// A table with a heading. Columns are two spaces apart; the last one is not padded.
pub struct Table<'a> {
    heading: Vec<&'a str>,
    rows: Vec<Vec<String>>,
}

impl<'a> Table<'a> {
    /// A table without rows.
    pub fn new(heading: &[&'a str]) -> Self {
        Self { heading: heading.to_vec(), rows: Vec::new() }
    }

    /// Adds a row with as many cells as the heading has.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.heading.len());
        let shown = |cell: String| if cell.is_empty() { NOTHING.to_owned() } else { one_line(&cell) };
        self.rows.push(cells.into_iter().map(shown).collect());
    }

    /// As [`Self::text`]; a wide table has all columns, a terse one is made to fit on the screen.
    pub fn on_screen(&self, optional: &[&str], fit: &Fit<'_>, size: TableSize) -> String {
        match size.width {
            Width::Terse => self.fitted(optional, fit, size.columns),
            Width::Wide => self.text(&[]),
        }
    }

    /// The text without the columns named in `optional` that are empty in every row.
    pub fn text(&self, optional: &[&str]) -> String {
        self.fitted(optional, &Fit::default(), None)
    }

    /// As [`Self::text`], made to fit lines of this many characters: first as `fit` says, then by the widest columns,
    /// whose cells continue on the next line.
    fn fitted(&self, optional: &[&str], fit: &Fit<'_>, columns_max: Option<usize>) -> String {
        self.painted(optional, fit, columns_max, colour::is_on())
    }

    fn painted(&self, optional: &[&str], fit: &Fit<'_>, columns_max: Option<usize>, has_colours: bool) -> String {
        let filled = |column: usize| self.rows.iter().any(|row| row[column] != NOTHING);
        let mut columns: Vec<usize> =
            (0..self.heading.len()).filter(|&column| !optional.contains(&self.heading[column]) || filled(column)).collect();
        let heading: Vec<String> = self.heading.iter().map(|name| (*name).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let mut widths: Vec<usize> =
            (0..self.heading.len()).map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)).collect();
        if let Some(most) = columns_max {
            self.narrow(&mut columns, &mut widths, fit, most);
            squeeze(&columns, &mut widths, most);
        }
        let is_cut = |column: usize| fit.shortened.iter().any(|(name, _)| *name == self.heading[column]);
        let mut text = String::new();
        for (number, line) in lines.into_iter().enumerate() {
            let parts: Vec<Vec<String>> = columns
                .iter()
                .map(|&column| match &line[column] {
                    cell if cell.chars().count() <= widths[column] => vec![cell.clone()],
                    cell if is_cut(column) => vec![shortened(cell, widths[column])],
                    cell => wrapped(cell, widths[column]),
                })
                .collect();
            for row in 0..parts.iter().map(Vec::len).max().unwrap_or(0) {
                let cells = parts.iter().zip(&columns).map(|(part, &column)| {
                    let part = part.get(row).map_or("", String::as_str);
                    // Only states have colours, not the heading.
                    let codes = colour::codes(self.heading[column], &line[column]).filter(|_| has_colours && number > 0);
                    padded(part, widths[column], codes)
                });
                text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
                text.push('\n');
            }
        }
        text
    }

    /// Leaves columns out, then shortens others, until a line has at most this many characters or nothing more is
    /// allowed.
    fn narrow(&self, columns: &mut Vec<usize>, widths: &mut [usize], fit: &Fit<'_>, most: usize) {
        let of = |name: &str| self.heading.iter().position(|heading| *heading == name);
        for name in fit.left_out {
            if total(columns, widths) <= most {
                return;
            }
            columns.retain(|&column| Some(column) != of(name));
        }
        let whole = widths.to_vec();
        for name in std::iter::once(None).chain(fit.left_out_last.iter().map(Some)) {
            widths.copy_from_slice(&whole);
            columns.retain(|&column| name.is_none_or(|name| Some(column) != of(name)));
            for (name, least) in fit.shortened.iter().chain(fit.wrapped) {
                let over = total(columns, widths).saturating_sub(most);
                if let Some(column) = of(name).filter(|column| columns.contains(column)) {
                    widths[column] = widths[column].saturating_sub(over).max((*least).min(widths[column]));
                }
            }
            if total(columns, widths) <= most {
                return;
            }
        }
    }
}

/// The characters of a line.
fn total(columns: &[usize], widths: &[usize]) -> usize {
    columns.iter().map(|&column| widths[column]).sum::<usize>() + 2 * columns.len().saturating_sub(1)
}

/// Makes the widest columns narrower until a line has at most this many characters, or all columns are narrow.
fn squeeze(columns: &[usize], widths: &mut [usize], most: usize) {
    for _ in 0..total(columns, widths).saturating_sub(most) {
        let wide = columns.iter().copied().filter(|&column| widths[column] > COLUMN_LEAST);
        match wide.max_by_key(|&column| widths[column]) {
            Some(widest) => widths[widest] -= 1,
            None => return,
        }
    }
}

/// A text with spaces to this width, between codes of a colour, which have no width.
fn padded(text: &str, width: usize, codes: Option<(&str, &str)>) -> String {
    match codes.filter(|_| !text.is_empty()) {
        Some((before, after)) => format!("{before}{text}{after}{:1$}", "", width.saturating_sub(text.chars().count())),
        None => format!("{text:width$}"),
    }
}

/// How a table is made narrower: first the columns of `left_out` are removed, in this order; then those of `shortened`
/// are shortened, and those of `wrapped` continue on the next line, each to its least number of characters. If that is
/// not enough, those of `left_out_last` are removed as well. What is still too wide continues on the next line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fit<'a> {
    pub left_out: &'a [&'a str],
    pub shortened: &'a [(&'a str, usize)],
    pub wrapped: &'a [(&'a str, usize)],
    pub left_out_last: &'a [&'a str],
}

/// A text in lines of at most this many characters, broken between words if possible.
pub fn wrapped(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        let last = lines.last_mut().expect("there is one");
        let room = most.saturating_sub(last.chars().count() + 1);
        if !last.is_empty() && word.len() <= room {
            last.push(' ');
            last.extend(word);
            continue;
        }
        if !last.is_empty() {
            lines.push(String::new());
        }
        while word.len() > most.max(1) {
            let rest = word.split_off(most.max(1));
            lines.last_mut().expect("there is one").extend(word);
            lines.push(String::new());
            word = rest;
        }
        lines.last_mut().expect("there is one").extend(word);
    }
    lines
}

/// At most this many characters of a text; a longer one ends in an ellipsis.
pub fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Rows that arrive one after the other under one heading. Columns become wider if necessary.
pub struct Rows {
    heading: &'static [&'static str],
    /// The columns that are shown.
    columns: Vec<usize>,
    widths: Vec<usize>,
    /// Characters per line; a longer line is cut.
    line_max: Option<usize>,
    begun: bool,
}

impl Rows {
    /// Without rows yet; all columns are shown.
    pub fn new(heading: &'static [&'static str]) -> Self {
        Self::on_screen(heading, &[], TableSize::default())
    }

    /// As [`Self::new`]; a terse table on a screen is without these columns, and its lines are cut to fit.
    pub fn on_screen(heading: &'static [&'static str], left_out: &[&str], size: TableSize) -> Self {
        let line_max = size.columns.filter(|_| size.width == Width::Terse);
        let is_shown = |column: &usize| line_max.is_none() || !left_out.contains(&heading[*column]);
        let widths = heading.iter().map(|name| name.chars().count()).collect();
        Self { heading, columns: (0..heading.len()).filter(is_shown).collect(), widths, line_max, begun: false }
    }

    /// The text of further rows; the first call includes the heading.
    pub fn text(&mut self, rows: &[Vec<String>]) -> String {
        let shown = |cell: &String| if cell.is_empty() { NOTHING.to_owned() } else { one_line(cell) };
        let heading = self.heading.iter().map(|name| (*name).to_owned()).collect();
        let is_first = !std::mem::replace(&mut self.begun, true);
        let first = is_first.then_some(heading);
        let lines: Vec<Vec<String>> = first.into_iter().chain(rows.iter().map(|row| row.iter().map(shown).collect())).collect();
        for line in &lines {
            debug_assert_eq!(line.len(), self.widths.len());
            self.widths.iter_mut().zip(line).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
        }
        let has_colours = colour::is_on();
        lines.iter().enumerate().map(|(number, line)| self.line(line, has_colours && !(is_first && number == 0))).collect()
    }

    fn line(&self, line: &[String], has_colours: bool) -> String {
        let (mut text, mut left) = (String::new(), self.line_max.unwrap_or(usize::MAX));
        for &column in &self.columns {
            let gap = if text.is_empty() { "" } else { "  " };
            if left <= gap.len() {
                break;
            }
            left -= gap.len();
            let (cell, width) = (shortened(&line[column], left), self.widths[column].min(left));
            let codes = colour::codes(self.heading[column], &cell).filter(|_| has_colours);
            text.push_str(gap);
            text.push_str(&padded(&cell, width, codes));
            left -= width;
        }
        format!("{}\n", text.trim_end())
    }
}

/// Lines of `Label:  value` with the values aligned. A pair without a value is left out; one without a label continues
/// the previous one.
pub fn block(pairs: &[(&str, String)]) -> String {
    let shown = || pairs.iter().filter(|(_, value)| !value.is_empty());
    let width = shown().map(|(label, _)| label.chars().count() + 1).max().unwrap_or(0);
    let named = |label: &str| if label.is_empty() { String::new() } else { format!("{label}:") };
    let coloured = |label: &str, value: String| match colour::codes(label, &value).filter(|_| colour::is_on()) {
        Some((before, after)) => format!("{before}{value}{after}"),
        None => value,
    };
    shown().map(|(label, value)| format!("{:width$}  {}\n", named(label), coloured(label, one_line(value)))).collect()
}

/// A text behind a mark of at most four characters. Where the output is made to fit a screen, a
/// long text continues on further lines.
pub fn entry(mark: &str, text: &str, size: TableSize) -> String {
    let columns = match size.width {
        Width::Terse => size.columns,
        Width::Wide => None,
    };
    let most = columns.map_or(usize::MAX, |columns| columns.saturating_sub(CONTINUED.len()).max(ENTRY_LEAST));
    let lines = wrapped(&one_line(text), most);
    lines.iter().enumerate().map(|(at, line)| format!("{}{line}\n", if at == 0 { mark } else { CONTINUED })).collect()
}

/// A server's text with spaces instead of control characters, which would disturb a terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The narrowest screen that all tables must fit.
#[cfg(any(test, feature = "test-builders"))]
pub const NARROW: TableSize = TableSize { width: Width::Terse, columns: Some(80) };

/// Fails if a line does not fit on [`NARROW`].
#[cfg(any(test, feature = "test-builders"))]
pub fn assert_fits(text: &str) {
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_optional_ones_left_out() {
        let mut table = Table::new(&["ID", "NAME", "REASON"]);
        table.row(vec!["1".into(), "é-long-name".into(), String::new()]);
        table.row(vec!["22".into(), String::new(), String::new()]);
        assert_eq!(table.text(&["REASON"]), "ID  NAME\n1   é-long-name\n22  —\n");
        assert_eq!(table.text(&[]), "ID  NAME         REASON\n1   é-long-name  —\n22  —            —\n");
    }

    #[test]
    fn a_table_that_is_too_wide_loses_columns_and_then_the_ends_of_texts() {
        let mut table = Table::new(&["ID", "NAME", "WALLTIME", "REASON"]);
        table.row(vec!["1".into(), "a-long-name".into(), "01:00:00".into(), "behind 2 submitted before it".into()]);
        let fit = Fit { left_out: &["WALLTIME"], shortened: &[("NAME", 6), ("REASON", 10)], wrapped: &[], left_out_last: &[] };
        let at = |columns| table.on_screen(&[], &fit, TableSize { width: Width::Terse, columns });
        let whole = "ID  NAME         WALLTIME  REASON\n1   a-long-name  01:00:00  behind 2 submitted before it\n";
        assert_eq!((at(None).as_str(), at(Some(55)).as_str()), (whole, whole));
        assert_eq!(at(Some(45)), "ID  NAME         REASON\n1   a-long-name  behind 2 submitted before it\n");
        assert_eq!(at(Some(40)), "ID  NAME    REASON\n1   a-lon…  behind 2 submitted before it\n");
        assert_eq!(at(Some(30)), "ID  NAME    REASON\n1   a-lon…  behind 2 submitte…\n");
        assert_eq!(at(Some(5)), "ID  NAME    REASON\n1   a-lon…  behin…\n", "no column is narrower than that");
        assert_eq!(table.on_screen(&[], &fit, TableSize { width: Width::Wide, columns: Some(30) }), whole);
        let fit = Fit { left_out: &["WALLTIME"], shortened: &[("NAME", 6)], wrapped: &[("REASON", 10)], left_out_last: &["NAME"] };
        let narrow = table.on_screen(&[], &fit, TableSize { width: Width::Terse, columns: Some(26) });
        assert_eq!(narrow, "ID  NAME    REASON\n1   a-lon…  behind 2\n            submitted\n            before it\n");
        let narrower = table.on_screen(&[], &fit, TableSize { width: Width::Terse, columns: Some(16) });
        assert_eq!(narrower, "ID  REASON\n1   behind 2\n    submitted\n    before it\n");
        assert_eq!(wrapped("abcdefgh ij", 3), ["abc", "def", "gh", "ij"]);
        assert_eq!(wrapped("", 3), [""]);
    }

    #[test]
    fn a_table_that_no_rule_makes_narrow_enough_continues_on_further_lines() {
        let mut table = Table::new(&["NODE", "WHAT IT DOES", "TEXT"]);
        table.row(vec!["n1".into(), "x".repeat(30), "it waits for a disk".into()]);
        let text = table.on_screen(&[], &Fit::default(), TableSize { width: Width::Terse, columns: Some(32) });
        let want = "\
NODE  WHAT IT DOES  TEXT
n1    xxxxxxxxxxxx  it waits for
      xxxxxxxxxxxx  a disk
      xxxxxx
";
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(32), "{text}");
        assert_eq!(text, want);
    }

    #[test]
    fn states_are_coloured_and_columns_stay_aligned() {
        let mut table = Table::new(&["ID", "STATE", "NAME"]);
        table.row(vec!["1".into(), "Running".into(), "a".into()]);
        table.row(vec!["22".into(), "Failed (3)".into(), "b".into()]);
        let want = "\
ID  STATE       NAME
1   \u{1b}[32mRunning\u{1b}[0m     a
22  \u{1b}[31mFailed (3)\u{1b}[0m  b
";
        assert_eq!(table.painted(&[], &Fit::default(), None, true), want);
        assert!(!table.text(&[]).contains('\u{1b}'), "a pipe has none");
        let rows = Rows::new(&["ID", "STATE"]);
        assert_eq!(rows.line(&["1".into(), "Down".into()], true), "1   \u{1b}[31mDown\u{1b}[0m\n");
    }

    #[test]
    fn late_rows_on_a_screen_are_cut_and_have_no_long_lists() {
        let size = |width| TableSize { width, columns: Some(20) };
        let row = [["n1", "Ready", "gpu,nvme", "it is not well at all"].map(str::to_owned).to_vec()];
        let heading: &[&str] = &["NODE", "STATE", "FEATURES", "REASON"];
        let mut terse = Rows::on_screen(heading, &["FEATURES"], size(Width::Terse));
        assert_eq!(terse.text(&row), "NODE  STATE  REASON\nn1    Ready  it is …\n");
        let mut wide = Rows::on_screen(heading, &["FEATURES"], size(Width::Wide));
        assert!(wide.text(&row).ends_with("gpu,nvme  it is not well at all\n"));
    }

    #[test]
    fn late_rows_are_aligned_with_the_heading() {
        let mut rows = Rows::new(&["ID", "STATE", "REASON"]);
        let row = |cells: [&str; 3]| vec![cells.map(str::to_owned).to_vec()];
        assert_eq!(rows.text(&row(["1", "Pending", ""])), "ID  STATE    REASON\n1   Pending  —\n");
        assert_eq!(rows.text(&row(["222", "Up", "a\nb"])), "222  Up       a b\n");
        assert_eq!(rows.text(&[]), "");
    }

    #[test]
    fn a_long_entry_continues_on_further_lines_of_a_screen() {
        let text = "n1 rank 0 (7): nfs_wait < vfs_read < ksys_read";
        let at = |width, columns| entry("! ", text, TableSize { width, columns });
        let whole = format!("! {text}\n");
        assert_eq!([at(Width::Terse, None), at(Width::Wide, Some(30)), at(Width::Terse, Some(50))], [whole.as_str(); 3]);
        assert_eq!(at(Width::Terse, Some(30)), "! n1 rank 0 (7): nfs_wait <\n    vfs_read < ksys_read\n");
        assert_eq!(at(Width::Terse, Some(1)).lines().count(), 2, "no narrower than 24 characters");
    }

    #[test]
    fn control_characters_become_spaces() {
        assert_eq!(block(&[("Name", "a\u{1b}[31m\nb".into()), ("Node", String::new())]), "Name:  a [31m b\n");
    }
}
