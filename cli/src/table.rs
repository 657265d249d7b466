//! Aligned columns, and blocks of `Label:  value`.

use crate::output::Width;

/// What stands where there is nothing.
pub const NOTHING: &str = "—";

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

    /// As [`Self::text`] has it, and wide with all columns.
    pub fn shown(&self, optional: &[&str], width: Width) -> String {
        match width {
            Width::Terse => self.text(optional),
            Width::Wide => self.text(&[]),
        }
    }

    /// The text, with the columns left out whose name is in `optional` and that are empty in every row.
    pub fn text(&self, optional: &[&str]) -> String {
        let filled = |column: usize| self.rows.iter().any(|row| row[column] != NOTHING);
        let columns: Vec<usize> =
            (0..self.heading.len()).filter(|&column| !optional.contains(&self.heading[column]) || filled(column)).collect();
        let heading: Vec<String> = self.heading.iter().map(|name| (*name).to_owned()).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&heading).chain(&self.rows).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = columns.iter().map(|&column| width(column)).collect();
        let mut text = String::new();
        for line in lines {
            let cells = columns.iter().zip(&widths).map(|(&column, &width)| format!("{:width$}", line[column]));
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

/// Rows that come one after the other under one heading. Columns become wider where they must; all of them are shown.
pub struct Rows {
    heading: &'static [&'static str],
    widths: Vec<usize>,
    begun: bool,
}

impl Rows {
    /// Nothing is shown yet.
    pub fn new(heading: &'static [&'static str]) -> Self {
        Self { heading, widths: heading.iter().map(|name| name.chars().count()).collect(), begun: false }
    }

    /// The text of further rows, at the first time with the heading.
    pub fn text(&mut self, rows: &[Vec<String>]) -> String {
        let shown = |cell: &String| if cell.is_empty() { NOTHING.to_owned() } else { one_line(cell) };
        let heading = self.heading.iter().map(|name| (*name).to_owned()).collect();
        let first = (!std::mem::replace(&mut self.begun, true)).then_some(heading);
        let lines: Vec<Vec<String>> = first.into_iter().chain(rows.iter().map(|row| row.iter().map(shown).collect())).collect();
        for line in &lines {
            debug_assert_eq!(line.len(), self.widths.len());
            self.widths.iter_mut().zip(line).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
        }
        let text = |line: &Vec<String>| {
            let cells: Vec<String> = line.iter().zip(&self.widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        lines.iter().map(text).collect()
    }
}

/// Lines of `Label:  value` with the values aligned; a pair without a value is left out.
pub fn block(pairs: &[(&str, String)]) -> String {
    let shown = || pairs.iter().filter(|(_, value)| !value.is_empty());
    let width = shown().map(|(label, _)| label.chars().count() + 1).max().unwrap_or(0);
    shown().map(|(label, value)| format!("{:width$}  {}\n", format!("{label}:"), one_line(value))).collect()
}

/// Text that a server sent, without what would disturb a terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
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
    fn rows_stand_under_their_heading_however_late_they_come() {
        let mut rows = Rows::new(&["ID", "STATE", "REASON"]);
        let row = |cells: [&str; 3]| vec![cells.map(str::to_owned).to_vec()];
        assert_eq!(rows.text(&row(["1", "Pending", ""])), "ID  STATE    REASON\n1   Pending  —\n");
        assert_eq!(rows.text(&row(["222", "Up", "a\nb"])), "222  Up       a b\n");
        assert_eq!(rows.text(&[]), "");
    }

    #[test]
    fn nothing_disturbs_the_terminal() {
        assert_eq!(block(&[("Name", "a\u{1b}[31m\nb".into()), ("Node", String::new())]), "Name:  a [31m b\n");
    }
}
